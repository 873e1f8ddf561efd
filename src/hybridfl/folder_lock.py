"""One process at a time writes a folder."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from hybridfl.errors import InputError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"


@contextmanager
def locked(folders: Sequence[Path]) -> Iterator[None]:
    """Keep other processes out of these folders until the end; the system lets them in again however this one ends.

    Only the folder they have in common is held, since there may be hundreds of them. Whoever holds one of them alone shares
    its parents' locks, so each notices the other.
    """
    whole = Path(os.path.commonpath([folder.resolve() for folder in folders])) if folders else None
    if whole is None or fcntl is None:
        yield
        return
    whole.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        held.enter_context(_held(whole, fcntl.LOCK_EX))
        for parent in whole.parents:
            if (parent / LOCK).exists():
                held.enter_context(_held(parent, fcntl.LOCK_SH))
        resolved = [folder.resolve() for folder in folders]
        for inner in sorted(
            {path for folder in resolved for path in (folder, *folder.parents) if whole in path.parents}
        ):
            if (inner / LOCK).exists():
                with _held(inner, fcntl.LOCK_EX):
                    pass
        yield


@contextmanager
def _held(folder: Path, kind: int) -> Iterator[None]:
    try:
        handle = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o644)
    except OSError:  # not ours to write, for example, or a link
        yield
        return
    try:
        _take(handle, kind, folder)
        yield
    finally:
        os.close(handle)


def _take(handle: int, kind: int, folder: Path) -> None:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            raise InputError(
                f"Another process is writing to '{folder}': wait for it, or choose another folder. (Is it a deployment? "
                "`flwr list` shows it, `flwr stop` ends it.)"
            ) from None
        # A file system without locks: better unprotected than not at all.
