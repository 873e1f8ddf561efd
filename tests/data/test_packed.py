import gzip
import zipfile
from pathlib import Path

import pytest

from hybridfl.data.packed import open_packed
from hybridfl.errors import InputError


def read(path: Path, member: str = ".txt") -> bytes:
    with open_packed(path, member) as file:
        return file.read()


def test_plain_gzipped_and_zipped_files_read_alike(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"words\n")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"words\n"))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("README", "others")
        archive.writestr("folder/a.txt", "words\n")
    assert {read(tmp_path / name) for name in ("a.txt", "a.txt.gz", "a.zip")} == {b"words\n"}


def test_an_archive_without_the_file_says_so(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("README", "others")
    with pytest.raises(InputError, match=r"holds no file that ends in '\.txt'"):
        read(tmp_path / "a.zip")


@pytest.mark.parametrize("name", ["a.gz", "a.zip", "absent.txt"])
def test_damaged_and_absent_files_say_so(name: str, tmp_path: Path) -> None:
    if not name.startswith("absent"):
        (tmp_path / name).write_bytes(b"neither")
    with pytest.raises(InputError, match=r"cannot be read .*: fetch it again"):
        read(tmp_path / name)


def test_a_gzip_file_cut_short_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(bytes(range(256)) * 100)[:-20])
    with pytest.raises(InputError, match="fetch it again"):
        read(tmp_path / "a.gz")
