"""Sentiment140: tweets by user, positive or negative.

Go, Bhayani and Huang, "Twitter Sentiment Classification using Distant Supervision", 2009. A CSV file without a heading:
target (0 or 4), id, date, query, user, text.
"""

from __future__ import annotations

import csv
import html
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hybridfl.data.federated import Samples
from hybridfl.data.packed import lines_of, open_packed
from hybridfl.errors import InputError, require_whole
from hybridfl.randomness import generator
from hybridfl.wording import counted

Rows = NDArray[np.int64]

_LABELS = {"0": 0, "4": 1}
_COLUMNS = 6
_LOST = re.compile("ï¿½|[\ufffd\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Characters that stand for nothing: what an earlier conversion could not read, and control codes."""


@dataclass(frozen=True, eq=False)
class Tweets:
    """Row i: the user `users[i]` wrote `texts[i]`; `labels[i]` is 1 if it is positive, 0 if negative."""

    users: list[str]
    texts: list[str]
    labels: NDArray[np.int64]
    malformed: int = 0
    """Rows left out, because they have not six columns, another target or no user."""
    undecodable: int = 0
    """Characters that nothing can be made of; each was replaced by a space."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of results should know of the file."""
        kinds = ((self.malformed, "malformed rows left out"), (self.undecodable, "undecodable characters blanked"))
        return tuple(f"{counted(len(self.users), 'tweet')} read, {what}: {count:,}" for count, what in kinds if count)


def read_tweets(path: Path) -> Tweets:
    """The tweets of a file as it is published, inside its zip archive or not."""
    with open_packed(path, "noemoticon.csv") as file:
        tweets = parse_tweets(lines_of(file, path))
    if not tweets.users:
        raise InputError(f"'{path}' holds no tweets: its rows should be target, id, date, query, user, text.")
    return tweets


def parse_tweets(lines: Iterable[bytes] | IO[bytes]) -> Tweets:
    """The tweets of CSV lines. A line that is no tweet is counted and left out; it cannot spoil its neighbours."""
    users: list[str] = []
    texts: list[str] = []
    labels: list[int] = []
    malformed = undecodable = 0
    for raw in lines:
        line, lost = _LOST.subn(" ", _decoded(raw.rstrip(b"\r\n")))
        if not line.strip():
            continue
        try:
            (columns,) = csv.reader([line], strict=True)
        except (csv.Error, ValueError):
            columns = []
        if len(columns) != _COLUMNS or columns[0] not in _LABELS or not columns[4]:
            malformed += 1
            continue
        undecodable += lost
        labels.append(_LABELS[columns[0]])
        users.append(columns[4])
        texts.append(columns[5])
    return Tweets(users, texts, np.array(labels, dtype=np.int64), malformed, undecodable)


def _decoded(line: bytes) -> str:
    """As UTF-8 or, like the published file, as Latin-1."""
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        return line.decode("latin-1")


class Users(Protocol):
    """Which tweets each device holds."""

    def __call__(self, users: Sequence[str], devices: int, seed: int) -> list[Rows]: ...


@dataclass(frozen=True)
class Chosen:
    """A device is one user of at least so many tweets; which of them is drawn by the seed."""

    at_least: int = 20

    def __post_init__(self) -> None:
        require_whole("at_least", self.at_least)

    def __call__(self, users: Sequence[str], devices: int, seed: int) -> list[Rows]:
        return _drawn(users, self.at_least, devices, seed)[:devices]


@dataclass(frozen=True)
class Merged:
    """A device is several users of at least so many tweets each; a user is on one device only.

    Users are drawn by the seed until they have `tweets` tweets (None: all of them), and dealt out to the devices in turn.
    """

    at_least: int = 2
    tweets: int | None = 40_783

    def __post_init__(self) -> None:
        require_whole("at_least", self.at_least)
        if self.tweets is not None:
            require_whole("tweets", self.tweets)

    def __call__(self, users: Sequence[str], devices: int, seed: int) -> list[Rows]:
        drawn = _drawn(users, self.at_least, devices, seed)
        if self.tweets is not None:
            had = np.cumsum([len(rows) for rows in drawn])
            # At least one user a device; the last one is cut short where that makes the number exact.
            enough = max(int(np.searchsorted(had, self.tweets)) + 1, devices)
            drawn = drawn[:enough]
            surplus = int(had[len(drawn) - 1]) - self.tweets
            if 0 < surplus < len(drawn[-1]):
                drawn[-1] = drawn[-1][:-surplus]
        return [np.sort(np.concatenate(drawn[device::devices])) for device in range(devices)]


def _drawn(users: Sequence[str], at_least: int, devices: int, seed: int) -> list[Rows]:
    """The rows of every user of at least so many tweets, users in an order drawn by the seed."""
    require_whole("devices", devices)
    _, who = np.unique(np.array(users), return_inverse=True)
    by_user = np.split(np.argsort(who, kind="stable"), np.cumsum(np.bincount(who))[:-1])
    eligible = [rows for rows in by_user if len(rows) >= at_least]
    if devices > len(eligible):
        raise InputError(
            f"{counted(devices, 'device')}, but {len(eligible):,} users with {counted(at_least, 'tweet')} or more: "
            "ask for fewer devices or fewer tweets a user."
        )
    return [eligible[user] for user in generator(seed, "users").permutation(len(eligible))]


_TOKEN = re.compile(r"(https?://\S+|www\.\S+)|(@\w+)|(\d[\d.,:]*)|(\w+(?:'\w+)*|[!?])")
_KINDS = ("<link>", "<user>", "<number>")


def tokens(text: str) -> list[str]:
    """Words in lower case, ! and ?; links, handles and numbers are one word each, whichever they are."""
    found = []
    for match in _TOKEN.finditer(html.unescape(text).lower()):
        kind = match.lastindex or 0
        found.append(match[0] if kind > len(_KINDS) else _KINDS[kind - 1])
    return found


PADDING, UNKNOWN = 0, 1


def vocabulary(texts: Iterable[Sequence[str]], size: int) -> dict[str, int]:
    """The codes of the most frequent words (of equals, the first in the alphabet): `size` with padding's and unknown words'."""
    require_whole("vocabulary", size)
    counts = Counter(word for text in texts for word in text)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))[: max(size - 2, 0)]
    return {word: code for code, word in enumerate(ranked, start=2)}


def encode(texts: Sequence[Sequence[str]], codes: dict[str, int], length: int) -> Tensor:
    """[texts, length]: the codes of the first `length` words. Short texts are padded in front, so that all end at the end."""
    encoded = np.full((len(texts), length), PADDING, dtype=np.int32)
    for row, text in enumerate(texts):
        words = [codes.get(word, UNKNOWN) for word in text[:length]]
        if words:
            encoded[row, length - len(words) :] = words
    return torch.from_numpy(encoded)


MOST_BYTES_OF_VECTORS = 2**34
"""The largest published file of GloVe, 840B.300d, has 5.6 GB."""
MOST_NUMBERS_OF_A_WORD = 2_000


def read_glove(path: Path, codes: dict[str, int], num_codes: int) -> Tensor:
    """[num_codes, size]: the vectors of a GloVe file, a word and its numbers a line; zeros for words it does not have."""
    if not path.is_file():
        raise InputError(f"There is no file '{path}': give the path of a GloVe file, or leave glove out.")
    found: dict[str, list[float]] = {}
    with open_packed(path, ".txt", MOST_BYTES_OF_VECTORS) as file:
        for number, raw in enumerate(lines_of(file, path), start=1):
            word, *numbers = raw.decode("utf-8", "replace").rstrip().split(" ")
            if word in codes:
                if len(numbers) > MOST_NUMBERS_OF_A_WORD:
                    raise InputError(f"Line {number} of '{path}' is no word vector.")
                try:
                    found[word] = [float(each) for each in numbers]
                except ValueError:
                    raise InputError(f"Line {number} of '{path}' is no word vector.") from None
    sizes = {len(vector) for vector in found.values()}
    if len(sizes) != 1:
        wrong = "none of the vocabulary's words" if not sizes else f"vectors of {sorted(sizes)} numbers"
        raise InputError(f"'{path}' holds {wrong}: is it a GloVe file?")
    vectors = torch.zeros(num_codes, sizes.pop())
    for word, vector in found.items():
        vectors[codes[word]] = torch.tensor(vector)
    return vectors


def sent140(
    tweets: Tweets, users: Users, devices: int, seed: int, size: int, length: int
) -> tuple[Samples, Samples, dict[str, int]]:
    """(train, test, vocabulary). Words are counted in the training part alone."""
    shared_out = users(tweets.users, devices, seed)
    rows = np.concatenate(shared_out)
    texts = [tokens(tweets.texts[row]) for row in rows]
    ends = np.cumsum([len(part) for part in shared_out])
    placed = [np.arange(end - len(part), end) for part, end in zip(shared_out, ends, strict=True)]
    samples = Samples.shared_out(torch.empty(len(rows), 0), torch.from_numpy(tweets.labels[rows]), placed)
    train, test = samples.split(0.1, seed)
    words = vocabulary((texts[row] for row in train.index), size)
    inputs = encode(texts, words, length)
    return train.with_inputs(inputs), test.with_inputs(inputs), words
