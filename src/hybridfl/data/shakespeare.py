"""Shakespeare's plays as next-character data: a device is a role, a sample 80 of its characters and the one that follows.

Read from "The Complete Works of William Shakespeare", Project Gutenberg #100 in its edition of January 1994, into the roles
of LEAF (Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018): 1,129 roles of 36 plays, 4,226,159 samples.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from hybridfl.data.federated import Samples
from hybridfl.errors import InputError, require_whole
from hybridfl.randomness import generator
from hybridfl.wording import counted

ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""The 80 characters of LEAF: a character's code is its place. All that the roles say is made of them."""

WINDOW = 80
"""Characters a sample shows before the one to predict."""


MOST_BYTES_OF_PLAYS = 2**26
"""All that Shakespeare wrote has 5.6 MB."""


@dataclass(frozen=True)
class Role:
    """One speaker of one play, and all lines spoken."""

    play: str
    speaker: str
    lines: tuple[str, ...]

    @property
    def name(self) -> str:
        """As LEAF names it: THE_TRAGEDY_OF_MACBETH_LADY_MACBETH."""
        return re.sub(r"\W+", "_", f"{self.play}_{self.speaker}".replace(" ", "_"))

    @property
    def text(self) -> str:
        """The lines as one passage; every line ends in a space, and several spaces are one."""
        return re.sub(r" {2,}", " ", "".join(line + " " for line in self.lines))


@dataclass(frozen=True)
class _Layout:
    """How a play is set: which lines open a speech, go on with it, or end it; other lines are passed over."""

    opens: re.Pattern[str]
    goes_on: re.Pattern[str]
    ends: re.Pattern[str]


_INDENTED = _Layout(re.compile(r"  ([A-Za-z][A-Za-z ]*)\. (.*)"), re.compile(r" {4}(.*)"), re.compile(r"(?!)"))
_FLUSH = _Layout(re.compile(r"([A-Za-z][A-Za-z ]*)\. (.*)"), re.compile(r"(.*)"), re.compile(r"ACT |<"))
"""The Comedy of Errors is set without indentation; headings of acts and notes in angle brackets end a speech there."""


def read_roles(text: str) -> list[Role]:
    """Every role of every play, in the order of their first lines."""
    roles = []
    for title, lines in _works(text.splitlines()):
        layout = _FLUSH if title == "THE COMEDY OF ERRORS" else _INDENTED
        spoken = _speeches(lines, layout)
        # A work with a single "speaker" is no play: sonnets and a poem have lines that look like a speech.
        if len(spoken) > 1:
            roles += [Role(title, speaker, tuple(said)) for speaker, said in spoken.items()]
    return roles


def _works(lines: Sequence[str]) -> Iterator[tuple[str, Sequence[str]]]:
    """(title, lines) of each work: the title is the last line written at least two lines above the author's name."""
    starts = [number for number, line in enumerate(lines) if line.strip() == "by William Shakespeare"]
    for start, end in itertools.pairwise([*starts, len(lines)]):
        title = next((lines[above].strip() for above in range(start - 2, -1, -1) if lines[above].strip()), "")
        yield title, lines[start + 1 : end]


def _speeches(lines: Sequence[str], layout: _Layout) -> dict[str, list[str]]:
    """What each speaker says, line by line. Names come in several spellings of case: in capitals they are one."""
    spoken: dict[str, list[str]] = {}
    speaking: list[str] | None = None
    for line in lines:
        if layout.ends.match(line):
            speaking = None
        elif opening := layout.opens.match(line):
            speaking = spoken.setdefault(opening[1].upper(), [])
            speaking.append(opening[2])
        elif speaking is not None and (more := layout.goes_on.match(line)):
            speaking.append(more[1])
    return spoken


def kept_by_leaf(roles: Sequence[Role]) -> list[Role]:
    """The roles of three lines or more that are long enough for a window and the character after it."""
    return [role for role in roles if len(role.lines) > 2 and len(role.text) > WINDOW]


def windows(roles: Sequence[Role]) -> Samples:
    """Every window of every role. The inputs are a view of one row of character codes: nothing is copied 80 times."""
    texts = [role.text for role in roles]
    codes = torch.from_numpy(_encode("".join(texts)))
    lengths = np.array([len(text) for text in texts])
    starts = np.cumsum(lengths) - lengths
    rows = [np.arange(start, start + length - WINDOW) for start, length in zip(starts, lengths, strict=True)]
    return Samples.shared_out(codes.unfold(0, WINDOW, 1)[:-1], codes[WINDOW:].long(), rows)


def _encode(text: str) -> NDArray[np.uint8]:
    places = np.full(256, 255, dtype=np.uint8)
    places[list(ALPHABET.encode("latin-1"))] = np.arange(len(ALPHABET))
    codes: NDArray[np.uint8] = places[np.frombuffer(text.encode("latin-1"), dtype=np.uint8)]
    if (codes == 255).any():
        raise InputError(
            f"{text[int(np.argmax(codes == 255))]!r} is not one of the 80 characters: is this Gutenberg #100?"
        )
    return codes


def draw_roles(samples: Samples, devices: int, seed: int) -> Samples:
    """So many of the roles, drawn by the seed, with all they say."""
    require_whole("devices", devices)
    if devices > len(samples):
        raise InputError(
            f"{counted(devices, 'device')}, but the plays have {counted(len(samples), 'role')}: ask for fewer."
        )
    return samples.with_rows([samples.rows(role) for role in _drawn(len(samples), devices, seed, attempt=0)])


MOST_DRAWS = 1000


def draw_sequences(samples: Samples, devices: int, sequences: int, seed: int, gap: int) -> Samples:
    """So many roles that hold `sequences` samples together, when `gap` of each are lost between training and test.

    Roles are drawn until they hold enough; then all are cut short by the same share.
    """
    require_whole("devices", devices)
    usable = samples.num_samples - gap
    eligible = np.flatnonzero(usable >= 2)
    if devices > len(eligible):
        raise InputError(
            f"{counted(devices, 'device')}, but {len(eligible):,} roles are long enough to train and test on: ask for fewer."
        )
    if sequences < 2 * devices:
        raise InputError(f"sequences={sequences:,} are too few for {counted(devices, 'device')}: two each are needed.")
    for attempt in range(MOST_DRAWS):
        roles = eligible[_drawn(len(eligible), devices, seed, attempt)]
        if usable[roles].sum() >= sequences:
            counts = _shortened(usable[roles], sequences)
            return samples.with_rows(
                [samples.rows(role)[: count + gap] for role, count in zip(roles, counts, strict=True)]
            )
    raise InputError(
        f"{counted(devices, 'role')} can hardly hold {sequences:,} sequences ({MOST_DRAWS} draws tried): "
        "ask for more devices or fewer sequences."
    )


def _drawn(roles: int, devices: int, seed: int, attempt: int) -> NDArray[np.int64]:
    return np.sort(generator(seed, "roles", attempt).permutation(roles)[:devices])


def _shortened(counts: NDArray[np.int64], total: int) -> NDArray[np.int64]:
    """`counts` scaled to the sum `total`, none of them below 2."""
    shares = np.cumsum(counts - 2) / max((counts - 2).sum(), 1)
    ends = np.round(shares * (total - 2 * len(counts))).astype(np.int64)
    shorter: NDArray[np.int64] = 2 + np.diff(ends, prepend=0)
    return shorter
