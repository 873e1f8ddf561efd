import contextlib
import gzip
import struct
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hybridfl.data.idx import read_idx
from hybridfl.errors import InputError

HEADER = bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3])


def idx(dimensions: int, size: int) -> bytes:
    """A header."""
    return bytes([0, 0, 8, dimensions]) + struct.pack(f">{dimensions}I", *[size] * dimensions)


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(gzip.compress(content))
    return path


def test_a_file_by_hand(tmp_path: Path) -> None:
    numbers = read_idx(write(tmp_path / "a.gz", HEADER + bytes([1, 2, 3, 253, 254, 255])))
    assert numbers.tolist() == [[1, 2, 3], [253, 254, 255]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (HEADER + bytes(5), "holds 5 numbers instead of 6"),
        (HEADER + bytes(5_000_000), "holds more than 6 numbers instead of 6"),
        (idx(65, 1) + bytes(1), r"says that it holds 1 × 1 × 1 × 1 × … numbers in 65 dimensions"),
        (idx(3, 2**32 - 1) + bytes(9), "says that it holds 4294967295 × 4294967295 × 4294967295 numbers"),
        (idx(2, 0), "says that it holds 0 × 0 numbers"),
        (idx(0, 0) + bytes(1), "says that it holds no numbers in 0 dimensions"),
        (bytes([0, 0, 9, 1, 0, 0, 0, 1, 7]), "not an IDX file of bytes"),
        (bytes([0, 0]), "not a gzipped IDX file"),
        (b"", "not a gzipped IDX file"),
    ],
)
def test_damage_is_named(content: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        read_idx(write(tmp_path / "a.gz", content))


@pytest.mark.parametrize(
    "content", [b"no gzip", gzip.compress(HEADER + bytes(600))[:-9], b""], ids=["text", "cut", "empty"]
)
def test_what_is_no_whole_gzip_file(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(content)
    with pytest.raises(InputError, match="fetch it again"):
        read_idx(tmp_path / "a.gz")


def test_no_more_is_unpacked_than_the_header_says(tmp_path: Path) -> None:
    bomb = write(tmp_path / "a.gz", HEADER + bytes(200_000_000))
    tracemalloc.start()
    with pytest.raises(InputError, match="holds more than 6 numbers"):
        read_idx(bomb)
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()


@settings(derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=40), st.booleans(), st.integers(0, 5), st.integers(0, 2**32 - 1))
def test_whatever_is_in_it_is_read_or_refused_in_one_line(
    tmp_path: Path, content: bytes, is_packed: bool, dimensions: int, size: int
) -> None:
    for each in (content, HEADER[:6] + content, idx(dimensions, size) + content):
        (tmp_path / "a.gz").write_bytes(gzip.compress(each) if is_packed else each)
        with contextlib.suppress(InputError):
            read_idx(tmp_path / "a.gz")
