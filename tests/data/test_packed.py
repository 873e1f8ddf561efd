import contextlib
import gzip
import struct
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hybridfl.data.packed import MOST_BYTES_OF_A_LINE, lines_of, open_packed
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


def zipped(path: Path, content: bytes, how: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", how) as archive:
        archive.writestr("a.txt", content)
    return path


@pytest.mark.parametrize("name", ["a.txt", "a.gz", "a.zip"])
def test_no_more_is_unpacked_than_its_kind_can_hold(name: str, tmp_path: Path) -> None:
    path, content = tmp_path / name, bytes(100_000_000)
    if name == "a.zip":
        zipped(path, content)
    else:
        path.write_bytes(gzip.compress(content) if name == "a.gz" else content)
    tracemalloc.start()
    with (
        open_packed(path, ".txt", 1_000_000) as file,
        pytest.raises(InputError, match="holds more than 1,000,000 bytes"),
    ):
        file.read()
    assert tracemalloc.get_traced_memory()[1] < 20_000_000
    tracemalloc.stop()
    assert len(read(path)) == len(content), "by default there is room for the largest published file"


def test_no_line_is_longer_than_text_has_them(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"word\n" + b"x" * (MOST_BYTES_OF_A_LINE + 1)))
    with open_packed(path, ".txt") as file:
        lines = lines_of(file, path)
        assert next(lines) == b"word\n"
        with pytest.raises(InputError, match="has a line of more than"):
            next(lines)


def test_an_encrypted_archive_says_so(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", b"words")
    content = bytearray(path.read_bytes())
    for signature, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(signature) + place] |= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"a\.zip' is encrypted: unpack it"):
        read(path)


@pytest.mark.parametrize("how", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_an_archive_packed_otherwise_says_so(how: int, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is packed in an unusual way \(type \d+\)"):
        read(zipped(tmp_path / "a.zip", b"words", how))


def test_a_lying_size_is_no_reason_to_reserve_memory(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", b"words")
    content = bytearray(path.read_bytes())
    place = content.index(b"PK\x01\x02") + 24
    content[place : place + 4] = struct.pack("<I", 2**32 - 2)
    path.write_bytes(content)
    tracemalloc.start()
    with contextlib.suppress(InputError):
        read(path)
    assert tracemalloc.get_traced_memory()[1] < 20_000_000
    tracemalloc.stop()


@settings(derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=3), st.sampled_from(["a.gz", "a.zip"]))
def test_whatever_is_changed_in_it_is_read_or_refused_in_one_line(
    tmp_path: Path, changes: list[tuple[int, int]], name: str
) -> None:
    whole = (
        gzip.compress(b"words " * 9, mtime=0)
        if name == "a.gz"
        else zipped(tmp_path / "b.zip", b"words " * 9).read_bytes()
    )
    content = bytearray(whole)
    for place, value in changes:
        content[place % len(content)] = value
    (tmp_path / name).write_bytes(content)
    with contextlib.suppress(InputError):
        assert read(tmp_path / name) == b"words " * 9
