"""Models the experiments use. Any other `nn.Module` works as well."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LogisticRegression(nn.Module):
    """Multinomial logistic regression: logits = W·x + b, with w_0 = 0 as in the paper.

    Its gradient has a closed form, so there are trainers made for it (`dense_training.py`, `softmax_cuda.py`).
    """

    def __init__(self, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(num_features, num_classes)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.linear(torch.flatten(inputs, start_dim=1))
        return logits


class CharacterLSTM(nn.Module):
    """The next character after a window of them: an embedding, a stacked LSTM, and a linear layer on its last output.

    McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", 2017: an embedding of 8
    numbers and two layers of 256.
    """

    def __init__(self, characters: int = 80, embedding: int = 8, hidden: int = 256, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.linear = nn.Linear(hidden, characters)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs, _ = self.lstm(self.embedding(inputs.long()))
        logits: Tensor = self.linear(outputs[:, -1])
        return logits


class FixedEmbedding(nn.Module):
    """Given word vectors, which training leaves alone."""

    vectors: Tensor

    def __init__(self, vectors: Tensor) -> None:
        super().__init__()
        self.register_buffer("vectors", vectors)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.vectors[inputs]


class SentimentLSTM(nn.Module):
    """Whether a text is positive: word vectors, a stacked LSTM, and a linear layer on its last output.

    The word vectors are learned or, where `vectors` [words, size] are given (GloVe), fixed.
    """

    def __init__(
        self, words: int, embedding: int = 32, hidden: int = 64, layers: int = 1, vectors: Tensor | None = None
    ) -> None:
        super().__init__()
        self.embedding: nn.Module = nn.Embedding(words, embedding) if vectors is None else FixedEmbedding(vectors)
        size = embedding if vectors is None else vectors.shape[1]
        self.lstm = nn.LSTM(size, hidden, layers, batch_first=True)
        self.linear = nn.Linear(hidden, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs, _ = self.lstm(self.embedding(inputs))
        logits: Tensor = self.linear(outputs[:, -1])
        return logits
