"""Text files as they are shipped: plain, gzipped, or inside a zip archive."""

from __future__ import annotations

import gzip
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from hybridfl.errors import InputError


@contextmanager
def open_packed(path: Path, member: str) -> Iterator[IO[bytes]]:
    """A file's content; of a zip archive, that of its first file whose name ends in `member`."""
    try:
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                names = [name for name in archive.namelist() if name.endswith(member)]
                if not names:
                    raise InputError(f"'{path}' holds no file that ends in '{member}': fetch it again.")
                with archive.open(names[0]) as file:
                    yield file
        elif path.suffix == ".gz":
            with gzip.open(path) as file:
                yield cast(IO[bytes], file)
        else:
            with path.open("rb") as file:
                yield file
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise InputError(f"'{path}' cannot be read ({error}): fetch it again.") from None
