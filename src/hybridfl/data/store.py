"""Where data sets lie on this machine, and how they get there.

One folder holds them all: `--data-dir`, else the environment's HYBRIDFL_DATA, else the platform's cache folder. In it every
data set has a folder of its own with the files as their publishers ship them.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridfl.data.packed import open_packed
from hybridfl.errors import InputError, nearest

log = logging.getLogger("hybridfl")


@dataclass(frozen=True)
class RemoteFile:
    """One published file: where it lies in the store, where it comes from, how large it is, and how to know it."""

    name: str
    url: str
    num_bytes: int
    checksum: str
    """`md5:…` or `sha256:…` of the file as published."""
    content_sha256: str = ""
    """Of what is inside a packed file: other packers of the same content make other files."""
    content_name: str = ""
    """How the name of that content ends, where the file is a zip archive."""
    mirrors: tuple[str, ...] = ()
    """Where else it may be had."""
    stand_ins: tuple[str, ...] = ()
    """Files that do as well if the published one is not there: the same content packed otherwise, or a part of it."""


@dataclass(frozen=True)
class DataSet:
    """Some published files under one name."""

    name: str
    title: str
    terms: str
    files: tuple[RemoteFile, ...]

    @property
    def num_bytes(self) -> int:
        return sum(file.num_bytes for file in self.files)


def _idx_files(folder: str, address: str, facts: tuple[tuple[str, int, str, str], ...]) -> tuple[RemoteFile, ...]:
    return tuple(
        RemoteFile(f"{folder}/{name}", address + name, num_bytes, f"md5:{md5}", content)
        for name, num_bytes, md5, content in facts
    )


DATA_SETS = {
    "fashion-mnist": DataSet(
        "fashion-mnist",
        "Fashion-MNIST: 70,000 images of clothes, 10 classes (Xiao et al. 2017)",
        "MIT licence",
        _idx_files(
            "fashion_mnist",
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            (
                (
                    "train-images-idx3-ubyte.gz",
                    26421880,
                    "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                    "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
                ),
                (
                    "train-labels-idx1-ubyte.gz",
                    29515,
                    "25c81989df183df01b3e8a0aad5dffbe",
                    "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
                ),
                (
                    "t10k-images-idx3-ubyte.gz",
                    4422102,
                    "bef4ecab320f06d8554ea6380940ec79",
                    "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
                ),
                (
                    "t10k-labels-idx1-ubyte.gz",
                    5148,
                    "bb300cfdad3c16e7a12a480ee83cd310",
                    "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
                ),
            ),
        ),
    ),
    "mnist": DataSet(
        "mnist",
        "MNIST: 70,000 images of handwritten digits (LeCun et al. 1998)",
        "CC BY-SA 3.0",
        _idx_files(
            "mnist",
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            (
                (
                    "train-images-idx3-ubyte.gz",
                    9912422,
                    "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                    "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                ),
                (
                    "train-labels-idx1-ubyte.gz",
                    28881,
                    "d53e105ee54ea40749a09fcbcd1e9432",
                    "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                ),
                (
                    "t10k-images-idx3-ubyte.gz",
                    1648877,
                    "9fb629c4189551a2d022fa330f9573f3",
                    "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                ),
                (
                    "t10k-labels-idx1-ubyte.gz",
                    4542,
                    "ec29112dd5afa0611ce80d1b7f02629c",
                    "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
                ),
            ),
        ),
    ),
    "shakespeare": DataSet(
        "shakespeare",
        "Shakespeare's plays by role: 4,226,159 windows of 80 characters, 1,129 roles (Project Gutenberg #100)",
        "private and non-commercial copies only",
        (
            RemoteFile(
                "shakespeare/1994-01-100.zip",
                "http://www.gutenberg.org/files/100/old/1994-01-100.zip",
                2_000_000,
                "md5:b8d60664a90939fa7b5d9f4dd064a1d5",
                "df0204dc84dc94f6807c875b3d48d1becf7d0572f78d6af819808cb3b290609d",
                ".txt",
                mirrors=("https://www.gutenberg.org/files/100/old/old/1994-01-100.zip",),
                stand_ins=("shakespeare/pg100.txt.gz", "shakespeare/pg100.txt", "shakespeare/100.txt"),
            ),
        ),
    ),
    "sent140": DataSet(
        "sent140",
        "Sentiment140: 1,600,000 tweets, positive or negative (Go et al. 2009)",
        "research only; contains users' handles",
        (
            RemoteFile(
                "sent140/trainingandtestdata.zip",
                "https://cs.stanford.edu/people/alecmgo/trainingandtestdata.zip",
                81_363_704,
                "sha256:004a3772c8a7ff9bbfeb875880f47f0679d93fc63e5cf9cff72d54a8a6162e57",
                content_name="noemoticon.csv",
                stand_ins=(
                    "sent140/training.1600000.processed.noemoticon.csv",
                    "sent140/training.1600000.processed.noemoticon.csv.gz",
                    "sent140/sent140_subset.csv.gz",
                ),
            ),
        ),
    ),
}


def data_dir(chosen: str | Path | None = None) -> Path:
    """The folder that holds all data sets."""
    if chosen is not None:
        return Path(chosen)
    if os.environ.get("HYBRIDFL_DATA"):
        return Path(os.environ["HYBRIDFL_DATA"])
    import pooch

    return Path(pooch.os_cache("hybridfl"))


def data_set(name: str) -> DataSet:
    """The data set of this name."""
    if name not in DATA_SETS:
        raise InputError(f"Unknown data set '{name}'.{nearest(name, DATA_SETS)} Known: {', '.join(DATA_SETS)}.")
    return DATA_SETS[name]


def locate(name: str, chosen: Path | None = None) -> list[Path]:
    """The files of a data set on this machine, in the order of its list."""
    folder, known = data_dir(chosen), data_set(name)
    paths = [found for file in known.files if (found := find(folder, file)) is not None]
    if len(paths) < len(known.files):
        raise InputError(
            f"{known.name} is not in '{folder}': run `hybridfl data fetch {known.name}{_option(chosen)}` "
            f"({known.num_bytes / 1e6:.1f} MB), or point HYBRIDFL_DATA or --data-dir to where it is."
        )
    for file, path in zip(known.files, paths, strict=True):
        if condition(folder, file) == "damaged":
            log.warning(
                "'%s' is not the file that was published as %s: `hybridfl data check` has more.", path, known.name
            )
    return paths


def _option(chosen: Path | None) -> str:
    return "" if chosen is None else f" --data-dir {shlex.quote(str(chosen))}"


def find(folder: Path, file: RemoteFile) -> Path | None:
    """Where a published file, or one that stands in for it, lies in the store; None if neither is there."""
    return next((folder / name for name in (file.name, *file.stand_ins) if (folder / name).is_file()), None)


def fetch(
    name: str,
    chosen: Path | None = None,
    progress: Callable[[RemoteFile], Any] = lambda file: False,
    retries: int = 3,
) -> list[Path]:
    """Download what is missing or damaged. A file gets its name only once it is complete and its checksum right.

    `progress(file)` gives an object with `total`, `update(num_bytes)`, `reset()` and `close()`, or False for none.
    """
    folder = data_dir(chosen)
    for file in data_set(name).files:
        found = find(folder, file)
        if found is None or not is_intact(found, file):
            _fetch_file(file, folder, progress, retries)
    return locate(name, chosen)


def _fetch_file(file: RemoteFile, folder: Path, progress: Callable[[RemoteFile], Any], retries: int) -> None:
    """From its address or, if that fails for good, from the next mirror."""
    import pooch
    import requests

    pooch.get_logger().setLevel("ERROR")
    reasons = []
    for url in (file.url, *file.mirrors):
        source = pooch.create(
            folder, base_url="", registry={file.name: file.checksum}, urls={file.name: url}, retry_if_failed=retries
        )
        try:
            source.fetch(file.name, downloader=pooch.HTTPDownloader(progressbar=progress(file)))
            return
        except (ValueError, OSError, requests.RequestException) as error:
            reasons.append(" ".join(str(error).split()))
    raise InputError(
        f"Could not fetch {file.url} into '{folder}': {reasons[0]} Try again, or put the file there yourself."
    )


def condition(folder: Path, file: RemoteFile) -> str:
    """What is there of a published file: "missing", "intact", "damaged", or "unverified" for a part of one's own."""
    path = find(folder, file)
    if path is None:
        return "missing"
    if is_intact(path, file):
        return "intact"
    # A part of a published file has no published checksum.
    return "damaged" if path == folder / file.name or file.content_sha256 else "unverified"


def is_intact(path: Path, file: RemoteFile) -> bool:
    """Whether a file is there and is what was published, or has the same content packed otherwise."""
    if not path.is_file():
        return False
    kind, _, expected = file.checksum.partition(":")
    with path.open("rb") as content:
        if hashlib.file_digest(content, kind).hexdigest() == expected:
            return True
    if not file.content_sha256:
        return False
    try:
        with open_packed(path, file.content_name) as content:
            found = hashlib.sha256()
            while part := content.read(2**20):
                found.update(part)
            return found.hexdigest() == file.content_sha256
    except InputError:
        return False
