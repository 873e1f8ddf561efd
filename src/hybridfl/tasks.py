"""The tasks that have a name on the command line: a small value each, from which the data are made."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from hybridfl.data.federated import Samples
from hybridfl.data.idx import read_idx
from hybridfl.data.packed import open_packed
from hybridfl.data.partition import Partition, PowerLaw, like
from hybridfl.data.sent140 import Merged, Tweets, Users, read_glove, read_tweets, sent140
from hybridfl.data.shakespeare import (
    ALPHABET,
    MOST_BYTES_OF_PLAYS,
    WINDOW,
    draw_roles,
    draw_sequences,
    kept_by_leaf,
    read_roles,
    windows,
)
from hybridfl.data.store import locate
from hybridfl.data.synthetic import NUM_CLASSES, NUM_FEATURES, synthetic, synthetic_crowd, synthetic_iid
from hybridfl.errors import InputError, require_whole
from hybridfl.models import CharacterLSTM, LogisticRegression, SentimentLSTM
from hybridfl.randomness import key
from hybridfl.task import Task

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

PAPER_L2 = 1e-4
"""ε of the paper's term ε‖w‖²."""


class TaskRecipe(Protocol):
    """Makes a task for a fleet of so many devices; the seed decides the data, or how they are shared out.

    `data_dir` is where downloaded data lie, if not in the usual place (`data/store.py`).
    """

    def build(self, devices: int, seed: int, data_dir: Path | None = None) -> Task: ...


@dataclass(frozen=True)
class Synthetic:
    """Synthetic(γ, ξ) with multinomial logistic regression; ξ: how much inputs differ. γ has no effect (see `synthetic`)."""

    gamma: float = 1.0
    xi: float = 1.0

    def build(self, devices: int, seed: int, data_dir: Path | None = None) -> Task:
        return _logistic_regression(
            f"synthetic({self.gamma:g}, {self.xi:g})", synthetic(self.gamma, self.xi, devices, seed), seed
        )


@dataclass(frozen=True)
class SyntheticIID:
    """The i.i.d. variant of Synthetic with multinomial logistic regression."""

    def build(self, devices: int, seed: int, data_dir: Path | None = None) -> Task:
        return _logistic_regression("synthetic-iid", synthetic_iid(devices, seed), seed)


@dataclass(frozen=True)
class SyntheticCrowd:
    """Synthetic(γ, ξ) for a fleet of any size, a million devices included: `kinds` devices' data, shared by all.

    Every device draws `samples` of the data of its kind. `scored`: how many samples scores are taken on.
    """

    gamma: float = 1.0
    xi: float = 1.0
    kinds: int = 1000
    samples: int = 20
    scored: int | None = 10_000

    def __post_init__(self) -> None:
        _require_sizes(self, "kinds", "samples", "scored")

    def build(self, devices: int, seed: int, data_dir: Path | None = None) -> Task:
        train, test = synthetic_crowd(self.gamma, self.xi, devices, self.kinds, self.samples, seed=seed)
        model = LogisticRegression(NUM_FEATURES, NUM_CLASSES)
        return Task(_spelled("synthetic-crowd", self), train, test, model, l2=PAPER_L2, scored=self.scored)


@dataclass(frozen=True)
class FashionMNIST:
    """Fashion-MNIST with multinomial logistic regression; by default two labels a device and power-law sizes.

    With `held_out`, so many of the training images are kept from the devices and scored on instead of the test images: for
    whoever chooses hyperparameters.
    """

    partition: Partition = PowerLaw()
    held_out: int = 0

    def __post_init__(self) -> None:
        _check_held_out(self.held_out)

    def build(self, devices: int, seed: int, data_dir: Path | None = None) -> Task:
        return _images("fashion-mnist", self, devices, seed, data_dir)


@dataclass(frozen=True)
class MNIST:
    """MNIST with multinomial logistic regression; by default two labels a device and power-law sizes.

    `held_out` is as in `FashionMNIST`.
    """

    partition: Partition = PowerLaw()
    held_out: int = 0

    def __post_init__(self) -> None:
        _check_held_out(self.held_out)

    def build(self, devices: int, seed: int, data_dir: Path | None = None) -> Task:
        return _images("mnist", self, devices, seed, data_dir)


@dataclass(frozen=True)
class Shakespeare:
    """The next character of Shakespeare's plays, with a `CharacterLSTM`; a device is a role, drawn by the seed.

    `sequences`: how many samples all devices hold together; None: all that their roles have. A tenth of a role's samples
    is held out, its last words; 79 before them are used by neither, so that no test input was seen in training.
    `scored`: how many samples scores are taken on.
    """

    sequences: int | None = None
    embedding: int = 8
    hidden: int = 256
    layers: int = 2
    scored: int | None = 2000

    def __post_init__(self) -> None:
        _require_sizes(self, "sequences", "embedding", "hidden", "layers", "scored")

    @classmethod
    def paper(cls, embedding: int = 8, hidden: int = 256, layers: int = 2, scored: int | None = 2000) -> Shakespeare:
        """The paper's size, with its 100 devices: 517,106 samples."""
        return cls(517_106, embedding, hidden, layers, scored)

    def build(self, devices: int, seed: int, data_dir: Path | None = None) -> Task:
        (path,) = locate("shakespeare", data_dir)
        everything, gap = _read_plays(path), WINDOW - 1
        if self.sequences is None:
            samples = draw_roles(everything, devices, seed)
        else:
            samples = draw_sequences(everything, devices, self.sequences, seed, gap)
        train, test = samples.split_in_order(0.1, gap)
        with _initial_weights(seed):
            model = CharacterLSTM(len(ALPHABET), self.embedding, self.hidden, self.layers)
        return Task(_spelled("shakespeare", self), train, test, model, scored=self.scored)


@dataclass(frozen=True)
class Sent140:
    """Whether a tweet is positive, with a `SentimentLSTM` on its first `tokens` words; devices are made of `users`.

    `vocabulary`: how many codes there are: padding's, unknown words' and the most frequent words' of the training part.
    `glove`: a file of word vectors (glove.6B.300d.txt, for example) to use instead of learning an embedding.
    """

    users: Users = Merged()
    tokens: int = 25
    vocabulary: int = 5000
    glove: str | None = None
    embedding: int = 32
    hidden: int = 64
    layers: int = 1
    scored: int | None = 4000

    def __post_init__(self) -> None:
        if self.glove is not None:
            object.__setattr__(self, "glove", os.fspath(self.glove))
        _require_sizes(self, "tokens", "vocabulary", "embedding", "hidden", "layers", "scored")

    def build(self, devices: int, seed: int, data_dir: Path | None = None) -> Task:
        (path,) = locate("sent140", data_dir)
        tweets = _read_tweets(path)
        train, test, words = sent140(tweets, self.users, devices, seed, self.vocabulary, self.tokens)
        vectors = None if self.glove is None else read_glove(Path(self.glove), words, self.vocabulary)
        with _initial_weights(seed):
            model = SentimentLSTM(self.vocabulary, self.embedding, self.hidden, self.layers, vectors)
        return Task(_spelled("sent140", self), train, test, model, scored=self.scored, notes=tweets.notes)


def _spelled(name: str, recipe: DataclassInstance) -> str:
    """A recipe as it can be written, defaults left out: `mnist`, `shakespeare(sequences=20000)`."""
    given = [
        f"{field.name}={value!r}" for field in fields(recipe) if (value := getattr(recipe, field.name)) != field.default
    ]
    return f"{name}({', '.join(given)})" if given else name


def _require_sizes(recipe: object, *names: str) -> None:
    for name in names:
        if getattr(recipe, name) is not None:
            require_whole(name, getattr(recipe, name))


@contextmanager
def _initial_weights(seed: int) -> Iterator[None]:
    """PyTorch draws a model's first weights from a global stream: here it is the seed's, and put back afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key(seed, "initial weights"))
        yield


@lru_cache(maxsize=1)
def _read_plays(path: Path) -> Samples:
    """All windows of all roles; all seeds and runs share them."""
    with open_packed(path, ".txt", MOST_BYTES_OF_PLAYS) as file:
        roles = kept_by_leaf(read_roles(file.read().decode("latin-1")))
    if not roles:
        raise InputError(f"'{path}' holds no plays as Project Gutenberg set them in January 1994: fetch it again.")
    return windows(roles)


@lru_cache(maxsize=1)
def _read_tweets(path: Path) -> Tweets:
    return read_tweets(path)


def _check_held_out(images: int) -> None:
    require_whole("held_out", images, least=0)
    if images > 50_000:
        raise InputError(f"held_out={images}: of 60,000 training images keep 0 to 50,000 for scoring.")


def _logistic_regression(name: str, samples: Samples, seed: int) -> Task:
    train, test = samples.split(0.1, seed)
    return Task(name, train, test, LogisticRegression(NUM_FEATURES, NUM_CLASSES), l2=PAPER_L2)


def _images(name: str, recipe: FashionMNIST | MNIST, devices: int, seed: int, data_dir: Path | None) -> Task:
    """The published training images shared out by the partition, the published test images in the same proportions."""
    images, labels, test_images, test_labels = _read_images(tuple(locate(name, data_dir)))
    if recipe.held_out:
        images, test_images = images[: -recipe.held_out], images[-recipe.held_out :]
        labels, test_labels = labels[: -recipe.held_out], labels[-recipe.held_out :]
    rows = recipe.partition(labels.numpy(), devices, seed)
    test_rows = like(rows, labels.numpy(), test_labels.numpy(), seed)
    train = Samples.shared_out(images, labels, rows, scale=1 / 255)
    test = Samples.shared_out(test_images, test_labels, test_rows, scale=1 / 255)
    model = LogisticRegression(images[0].numel(), NUM_CLASSES)
    return Task(_spelled(name, recipe), train, test, model, l2=PAPER_L2)


@lru_cache(maxsize=2)
def _read_images(paths: tuple[Path, ...]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images stay bytes; all seeds and runs share them."""
    images, labels, test_images, test_labels = (read_idx(path) for path in paths)
    return images, labels.long(), test_images, test_labels.long()
