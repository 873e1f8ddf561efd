"""What becomes of the paper's claims."""

from __future__ import annotations

from hybridfl.paper import convergence, lambda_0, learning_curves, max_delay
from hybridfl.paper.verdict import Book, Verdict

CLAIMS = (*learning_curves.CLAIMS, *lambda_0.CLAIMS, *max_delay.CLAIMS, *convergence.CLAIMS)


def verdicts(book: Book) -> list[Verdict]:
    """All claims, figure family by figure family."""
    return [claim.verdict(book) for claim in CLAIMS]
