"""Text files as they are shipped: plain, gzipped, or inside a zip archive. None may bring more than its kind can hold."""

from __future__ import annotations

import gzip
import io
import lzma
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, cast

from hybridfl.errors import InputError

MOST_BYTES = 2**28
"""Of what is inside, unless said otherwise: the largest published file but word vectors, Sentiment140's, has 239 MB."""
MOST_BYTES_OF_A_LINE = 2**20

_BROKEN = (
    *(OSError, EOFError, ValueError, LookupError, OverflowError, RuntimeError),
    *(struct.error, zlib.error, lzma.LZMAError, zipfile.BadZipFile),
)
"""What an archive that nobody made can raise; a `RuntimeError` where it is packed in a way Python does not know."""
_PACKED_BY = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Others may ask for gigabytes to unpack a byte."""


@contextmanager
def open_packed(path: Path, member: str, most: int = MOST_BYTES) -> Iterator[IO[bytes]]:
    """A file's content, of `most` bytes; of a zip archive, that of its first file whose name ends in `member`."""
    with ExitStack() as opened:
        try:
            inner = _inner(path, member, opened)
        except InputError:
            raise
        except _BROKEN as error:
            raise _unreadable(path, error) from None
        yield cast(IO[bytes], io.BufferedReader(_Bounded(path, inner, most), 2**18))


def lines_of(file: IO[bytes], path: Path) -> Iterator[bytes]:
    """Its lines, none of which may be longer than any text's are."""
    while line := file.readline(MOST_BYTES_OF_A_LINE + 1):
        if len(line) > MOST_BYTES_OF_A_LINE:
            raise InputError(f"'{path}' has a line of more than {MOST_BYTES_OF_A_LINE:,} bytes: fetch it again.")
        yield line


def _inner(path: Path, member: str, opened: ExitStack) -> Any:
    if path.suffix == ".gz":
        return opened.enter_context(gzip.open(path))
    if path.suffix != ".zip":
        return opened.enter_context(path.open("rb"))
    archive = opened.enter_context(zipfile.ZipFile(path))
    found = next((each for each in archive.infolist() if each.filename.endswith(member)), None)
    if found is None:
        raise InputError(f"'{path}' holds no file that ends in '{member}': fetch it again.")
    if found.flag_bits & 1:
        raise InputError(f"'{path}' is encrypted: unpack it, and pack it again without a password.")
    if found.compress_type not in _PACKED_BY:
        raise InputError(
            f"'{path}' is packed in an unusual way (type {found.compress_type}): unpack it, and zip it again."
        )
    return opened.enter_context(archive.open(found))


class _Bounded(io.RawIOBase):
    """A file that is read to so many bytes: one that claims little and holds much is not unpacked any further."""

    def __init__(self, path: Path, inner: Any, most: int) -> None:
        super().__init__()
        self._path, self._inner, self._most, self._read = path, inner, most, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            content = self._inner.read(len(buffer))
        except _BROKEN as error:
            raise _unreadable(self._path, error) from None
        self._read += len(content)
        if self._read > self._most:
            raise InputError(
                f"'{self._path}' holds more than {self._most:,} bytes, as no such file does: fetch it again."
            )
        buffer[: len(content)] = content
        return len(content)


def _unreadable(path: Path, error: Exception) -> InputError:
    return InputError(f"'{path}' cannot be read ({' '.join(str(error).split())[:200]}): fetch it again.")
