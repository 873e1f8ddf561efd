"""All studies, in the order of the paper."""

from __future__ import annotations

from hybridfl.paper import ablation, convergence, lambda_0, learning_curves, max_delay, search, straggler_share
from hybridfl.paper.study import Study

STUDIES: tuple[Study, ...] = (
    *learning_curves.STUDIES,
    *lambda_0.STUDIES,
    *max_delay.STUDIES,
    *straggler_share.STUDIES,
    *ablation.STUDIES,
    *convergence.STUDIES,
    *search.STUDIES,
)
