"""Models the experiments use. Any other `nn.Module` works as well."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LogisticRegression(nn.Module):
    """Multinomial logistic regression: logits = W·x + b, with w_0 = 0 as in the paper.

    Its gradient has a closed form, so there is a trainer made for it (`softmax.py`).
    """

    def __init__(self, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(num_features, num_classes)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.linear(torch.flatten(inputs, start_dim=1))
        return logits
