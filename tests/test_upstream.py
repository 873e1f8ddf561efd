"""From the publishers' servers to a task, through the command line: small files in their layout, on a server here."""

import gzip
import hashlib
import struct
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner

from hybridfl.cli import app
from hybridfl.data import store
from hybridfl.data.store import DATA_SETS

WORDS = "The quality of mercy is not strain'd, it droppeth as the gentle rain from heaven"


def idx(*shape: int, values: bytes) -> bytes:
    return gzip.compress(struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape) + values)


def zipped(**files: str) -> bytes:
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in files.items():
            archive.writestr(name.replace("_", "."), content)
    return packed.getvalue()


def plays() -> str:
    speeches = [f"  {name}. {WORDS}\n    {WORDS}\n    {WORDS}\n" for name in ("PORTIA", "SHYLOCK", "ANTONIO")]
    return "1596\n\nTHE MERCHANT OF VENICE\n\nby William Shakespeare\n\n" + "".join(speeches)


def tweets() -> str:
    rows = [f'"{4 * (n % 2)}","{n}","today","NO_QUERY","user{n % 5}","tweet number {n}"' for n in range(40)]
    return "\n".join(rows) + "\n"


UPSTREAM = {
    "train-images-idx3-ubyte.gz": idx(100, 28, 28, values=bytes(range(256)) * 306 + bytes(64)),
    "train-labels-idx1-ubyte.gz": idx(100, values=bytes(n % 10 for n in range(100))),
    "t10k-images-idx3-ubyte.gz": idx(20, 28, 28, values=bytes(20 * 784)),
    "t10k-labels-idx1-ubyte.gz": idx(20, values=bytes(n % 10 for n in range(20))),
    "1994-01-100.zip": zipped(**{"100_txt": plays()}),
    "trainingandtestdata.zip": zipped(
        **{"training_1600000_processed_noemoticon_csv": tweets(), "testdata_manual_2009_06_14_csv": "no tweets\n"}
    ),
}


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Every data set at the path of its own address, on this machine; the paths asked for. Every first reply is cut short."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = UPSTREAM[Path(self.path).name]
            body = content if self.path in asked else content[: len(content) // 2]
            asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    for name, data_set in DATA_SETS.items():
        files = tuple(
            replace(
                file,
                url=f"http://127.0.0.1:{server.server_port}{urlsplit(file.url).path}",
                checksum=f"sha256:{hashlib.sha256(UPSTREAM[Path(file.name).name]).hexdigest()}",
            )
            for file in data_set.files
        )
        monkeypatch.setitem(store.DATA_SETS, name, replace(data_set, files=files))
    yield asked
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("name", "task", "devices"),
    [
        ("fashion-mnist", "fashion-mnist", 5),
        ("mnist", "mnist(IID())", 5),
        ("shakespeare", "shakespeare(hidden=3)", 3),
        ("sent140", "sent140(Chosen(at_least=8), hidden=3, vocabulary=30)", 4),
    ],
)
def test_fetch_then_run(name: str, task: str, devices: int, published: list[str], tmp_path: Path) -> None:
    def hybridfl(*arguments: object) -> str:
        options = [str(argument) for argument in arguments]
        return CliRunner().invoke(app, [*options, "--data-dir", str(tmp_path / "store")], catch_exceptions=False).output

    assert f"{name} is in {tmp_path / 'store'}" in hybridfl("data", "fetch", name).replace("\n", "")
    assert len(published) == 2 * len(DATA_SETS[name].files)
    assert f"{name}: intact" in hybridfl("data", "check")
    hybridfl("run", "--task", task, "--devices", devices, "--rounds", 2, "--out", tmp_path / "run", "--quiet")
    assert (tmp_path / "run" / "records.jsonl").read_text().count("\n") == 3
    hybridfl("data", "fetch", name)
    assert len(published) == 2 * len(DATA_SETS[name].files)
