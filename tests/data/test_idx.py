import gzip
from pathlib import Path

import pytest

from hybridfl.data.idx import read_idx
from hybridfl.errors import InputError

HEADER = bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3])


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
