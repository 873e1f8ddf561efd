"""Downloads, against a server on this machine that serves files, cuts connections and corrupts bytes."""

import gzip
import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from hybridfl.data import store
from hybridfl.data.store import DataSet, RemoteFile, condition, data_dir, data_set, fetch, is_intact, locate
from hybridfl.errors import InputError

CONTENT = bytes(range(256)) * 400


@dataclass
class Upstream:
    """`plan` says what happens to each request in turn: whole, cut, corrupt or gone; after its end all are whole."""

    address: str = ""
    plan: list[str] = field(default_factory=list)
    requests: int = 0


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    state = Upstream()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            what = state.plan[state.requests] if state.requests < len(state.plan) else "whole"
            state.requests += 1
            self.send_response(404 if what == "gone" else 200)
            self.send_header("Content-Length", str(len(CONTENT)))
            self.end_headers()
            body = CONTENT[: len(CONTENT) // 2] if what == "cut" else CONTENT
            self.wfile.write(b"x" + body[1:] if what == "corrupt" else body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.address = f"http://127.0.0.1:{server.server_port}/"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield state
    server.shutdown()
    server.server_close()


@pytest.fixture
def published(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> RemoteFile:
    checksum = f"md5:{hashlib.md5(CONTENT).hexdigest()}"
    file = RemoteFile("toys/a.bin", upstream.address + "a.bin", len(CONTENT), checksum)
    monkeypatch.setitem(store.DATA_SETS, "toys", DataSet("toys", "Toys", "free", (file,)))
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    return file


def test_a_file_is_fetched_once(upstream: Upstream, published: RemoteFile, tmp_path: Path) -> None:
    (path,) = fetch("toys", tmp_path)
    assert path == tmp_path / "toys" / "a.bin"
    assert path.read_bytes() == CONTENT
    fetch("toys", tmp_path)
    assert upstream.requests == 1


@pytest.mark.parametrize("trouble", ["cut", "corrupt", "gone"])
def test_trouble_is_tried_again(trouble: str, upstream: Upstream, published: RemoteFile, tmp_path: Path) -> None:
    upstream.plan = [trouble, trouble]
    (path,) = fetch("toys", tmp_path)
    assert path.read_bytes() == CONTENT
    assert upstream.requests == 3


@pytest.mark.parametrize("trouble", ["cut", "corrupt", "gone"])
def test_lasting_trouble_leaves_no_half_file(
    trouble: str, upstream: Upstream, published: RemoteFile, tmp_path: Path
) -> None:
    upstream.plan = [trouble] * 10
    with pytest.raises(InputError, match="Could not fetch http://127"):
        fetch("toys", tmp_path, retries=1)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_damaged_file_is_fetched_again(upstream: Upstream, published: RemoteFile, tmp_path: Path) -> None:
    (tmp_path / "toys").mkdir()
    (tmp_path / "toys" / "a.bin").write_bytes(CONTENT[:-1])
    (path,) = fetch("toys", tmp_path)
    assert path.read_bytes() == CONTENT


def test_progress_is_told_of_every_byte(upstream: Upstream, published: RemoteFile, tmp_path: Path) -> None:
    class Counter:
        total = 0
        done = 0

        def update(self, num_bytes: int) -> None:
            self.done += num_bytes

        def reset(self) -> None:
            self.done = 0

        def close(self) -> None:
            pass

    counter = Counter()
    fetch("toys", tmp_path, lambda file: counter)
    assert (counter.total, counter.done) == (len(CONTENT), len(CONTENT))


def test_what_is_missing_is_said_in_one_line(published: RemoteFile, tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        locate("toys", tmp_path)
    assert f"run `hybridfl data fetch toys --data-dir {tmp_path}` (0.1 MB)" in str(error.value)
    assert str(tmp_path) in str(error.value)


def test_another_file_under_the_published_name_is_said(
    published: RemoteFile, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "toys" / "a.bin"
    path.parent.mkdir()
    path.write_bytes(CONTENT)
    locate("toys", tmp_path)
    assert caplog.messages == []
    path.write_bytes(b"other")
    locate("toys", tmp_path)
    assert caplog.messages == [f"'{path}' is not the file that was published as toys: `hybridfl data check` has more."]


def test_a_mirror_helps_when_the_address_has_moved(
    upstream: Upstream, published: RemoteFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = replace(published, url=upstream.address + "old", mirrors=(upstream.address + "new",))
    monkeypatch.setitem(store.DATA_SETS, "toys", DataSet("toys", "Toys", "free", (moved,)))
    upstream.plan = ["gone", "gone"]
    (path,) = fetch("toys", tmp_path, retries=1)
    assert path.read_bytes() == CONTENT
    assert upstream.requests == 3


@pytest.mark.parametrize("has_content_sum", [True, False])
def test_a_file_may_stand_in_for_the_published_one(
    has_content_sum: bool,
    upstream: Upstream,
    published: RemoteFile,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    content_sum = hashlib.sha256(CONTENT).hexdigest() if has_content_sum else ""
    file = replace(published, content_sha256=content_sum, stand_ins=("toys/b.gz",))
    monkeypatch.setitem(store.DATA_SETS, "toys", DataSet("toys", "Toys", "free", (file,)))
    assert condition(tmp_path, file) == "missing"
    (tmp_path / "toys").mkdir()
    (tmp_path / "toys" / "b.gz").write_bytes(gzip.compress(CONTENT))
    assert locate("toys", tmp_path) == [tmp_path / "toys" / "b.gz"]
    assert condition(tmp_path, file) == ("intact" if has_content_sum else "unverified")
    # What is known to be the whole need not be fetched; what may be a part does.
    fetch("toys", tmp_path)
    assert upstream.requests == (0 if has_content_sum else 1)
    assert condition(tmp_path, file) == "intact"
    (tmp_path / "toys" / "a.bin").write_bytes(b"damaged")
    assert condition(tmp_path, file) == "damaged"
    fetch("toys", tmp_path)
    assert condition(tmp_path, file) == "intact"


def test_the_same_content_packed_otherwise_is_intact(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(CONTENT, mtime=1))
    known = RemoteFile("a.gz", "", 0, "md5:0", hashlib.sha256(CONTENT).hexdigest())
    assert is_intact(path, known)
    path.write_bytes(gzip.compress(CONTENT + b"x"))
    assert not is_intact(path, known)
    path.write_bytes(b"no gzip")
    assert not is_intact(path, known)
    assert not is_intact(tmp_path / "absent", known)


def test_the_folder_is_the_option_else_the_environment_else_the_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HYBRIDFL_DATA", str(tmp_path))
    assert data_dir(Path("mine")) == Path("mine")
    assert data_dir() == tmp_path
    monkeypatch.delenv("HYBRIDFL_DATA")
    assert data_dir().name == "hybridfl"


def test_an_unknown_name_has_a_nearest_one() -> None:
    with pytest.raises(InputError, match="Did you mean 'fashion-mnist'"):
        data_set("fashion-minst")


@pytest.mark.data("fashion-mnist", "mnist")
@pytest.mark.parametrize("name", ["fashion-mnist", "mnist"])
def test_the_real_files_are_what_was_published(name: str) -> None:
    for path, file in zip(locate(name), data_set(name).files, strict=True):
        assert is_intact(path, file)
        assert path.stat().st_size == file.num_bytes
