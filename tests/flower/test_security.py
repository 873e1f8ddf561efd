"""TLS, keys and a proxy, with real processes: who is let in, and who is not."""

from __future__ import annotations

import contextlib
import http.client
import shutil
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flower_trial import Trial, check_counted_once, of
from hybridfl.flower.credentials import make_certificates, make_keys
from hybridfl.flower.local_fleet import answers
from hybridfl.flower.proxy import nginx_config
from hybridfl.records import FINISHED

pytestmark = pytest.mark.flower
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")


class Guarded(Trial):
    """A fleet behind nginx, with TLS, on which only registered keys are let in."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        assert NGINX is not None
        self.certificates, self.keys = folder / "certificates", folder / "keys"
        make_certificates(self.certificates, ["localhost", "127.0.0.1"])
        make_keys(self.keys, ["device-0", "device-1", "stranger"])
        self.fleet.superlink(
            *("--ssl-ca-certfile", str(self.certificates / "ca.crt")),
            *("--ssl-certfile", str(self.certificates / "server.crt")),
            *("--ssl-keyfile", str(self.certificates / "server.key")),
            "--enable-supernode-auth",
        )
        self.fleet.configure(options=[f'root-certificates = "{self.certificates / "ca.crt"}"'])
        for name in ("device-0", "device-1"):
            registered = self.fleet.flwr("supernode", "register", str(self.keys / f"{name}.pub"), "local-fleet")
            assert registered.returncode == 0, registered.stdout + registered.stderr
        self.port = self.fleet.port + 50
        (folder / "nginx").mkdir()
        config = folder / "nginx.conf"
        config.write_text(
            nginx_config(self.certificates, folder / "nginx", f"127.0.0.1:{self.port}", self.fleet.address)
        )
        self.nginx = subprocess.Popen([NGINX, "-c", str(config), "-g", "daemon off;"])
        until = time.monotonic() + 20
        while not answers(self.port):
            assert time.monotonic() < until
            time.sleep(0.1)

    def device(self, number: int, authority: Path | None = None, key: str | None = None) -> None:
        """Through the proxy."""
        options = ["--superlink", f"127.0.0.1:{self.port}"]
        options += ["--root-certificates", str((authority or self.certificates) / "ca.crt")]
        options += ["--auth-supernode-private-key", str(self.keys / key)] if key else []
        self.node(number, 5, {}, *options)

    def post(self, path: str, port: int, body: bytes = b"") -> int:
        """Byte for byte: httpx would resolve the dots of a path."""
        context = ssl.create_default_context(cafile=str(self.certificates / "ca.crt"))
        with contextlib.closing(
            http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=20)
        ) as connection:
            connection.putrequest("POST", path)
            connection.putheader("Content-Type", "application/protobuf")
            connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            return connection.getresponse().status


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    if NGINX is None:
        pytest.skip("There is no nginx here: apt-get install nginx-light.")
    made = Guarded(tmp_path_factory.mktemp("guarded"))
    yield made
    made.nginx.terminate()
    made.nginx.wait()
    made.fleet.stop()


def test_registered_devices_train_through_the_proxy_and_nobody_else_is_let_in(
    guarded: Guarded, tmp_path_factory: pytest.TempPathFactory
) -> None:
    others = tmp_path_factory.mktemp("others")
    make_certificates(others, ["127.0.0.1"])
    guarded.device(0, key="device-0")
    guarded.device(1, key="device-1")
    guarded.device(2, key="device-0", authority=others)
    guarded.device(3)
    guarded.device(4, key="stranger")
    guarded.run(rounds=2, devices=2)
    run = guarded.wait()
    assert {arrival.device for arrival in run.arrivals} == {0, 1}
    assert all(arrival.is_merged for arrival in run.arrivals)
    time.sleep(5)
    assert "CERTIFICATE_VERIFY_FAILED" in guarded.log("node-2")
    assert "Received" in guarded.log("node-0")
    for number in (2, 3, 4):
        assert "Received" not in guarded.log(f"node-{number}"), "no message of a run has reached it"
    listed = guarded.fleet.flwr("supernode", "list", "local-fleet", "--format", "json").stdout
    assert listed.count('"online"') == 2, listed


@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/start-run",
        "/v1/control/register-node",
        "/v1/runtime/push-messages",
        "/docs",
        "/v1/fleet/%2e%2e/control/list-runs",
        "/v1/fleet/../control/list-runs",
        "/v1/control/list-runs%3f/../../fleet/x",
        "//v1/control/list-runs",
    ],
)
def test_control_and_runtime_paths_are_refused_by_the_proxy(guarded: Guarded, path: str) -> None:
    assert guarded.post(path, guarded.port) == 403


def test_without_the_proxy_they_would_be_served(guarded: Guarded) -> None:
    """Otherwise the test before would show nothing."""
    assert guarded.post("/v1/control/start-run", guarded.fleet.port) not in (403, 404)


def test_a_device_with_a_key_that_was_killed_comes_back_as_itself(guarded: Guarded) -> None:
    """Flower lets it in again when it has noticed that it was gone; till then it ends at once, and is started anew."""
    guarded.out = guarded.out.with_name("killed")
    for number in (0, 1):
        if f"node-{number}" not in guarded.fleet.processes:
            guarded.device(number, key=f"device-{number}")
    guarded.run(rounds=0, seconds=170.0, devices=2)
    killed_at = guarded.wait(guarded.has_version(2)).records[-1].seconds
    guarded.fleet.kill("node-1")

    def is_over() -> bool:
        """What a service manager does, every ten seconds."""
        if "node-1" not in guarded.fleet.processes or guarded.fleet.processes["node-1"].poll() is not None:
            guarded.device(1, key="device-1")
            time.sleep(10)
        return (guarded.out / FINISHED).exists()

    run = guarded.wait(is_over)
    check_counted_once(run)
    assert {arrival.device for arrival in run.arrivals} == {0, 1}
    assert len([arrival for arrival in of(run, 1) if arrival.lost]) <= 1, "the job it had, at most"
    assert all(arrival.is_merged for arrival in of(run, 0))
    assert any(arrival.is_merged and arrival.sent_at > killed_at + 20 for arrival in of(run, 1))


def test_models_of_megabytes_pass_without_touching_the_disk(guarded: Guarded) -> None:
    """nginx's workers may not write where root started it."""
    small, large = bytes(2_000_000), bytes(70_000_000)
    of_superlink = guarded.post("/v1/fleet/push-object", guarded.fleet.port, small)
    assert guarded.post("/v1/fleet/push-object", guarded.port, small) == of_superlink != 413
    assert guarded.post("/v1/fleet/push-object", guarded.port, large) == 413, "too large for nginx"


def test_operators_cannot_work_through_the_proxy(guarded: Guarded) -> None:
    """Not even with Flower's own command line and the right certificate."""
    home = guarded.fleet.home / "config.toml"
    said = home.read_text()
    home.write_text(said.replace(guarded.fleet.address, f"127.0.0.1:{guarded.port}"))
    try:
        result = guarded.fleet.flwr("list", "local-fleet", timeout=60)
    finally:
        home.write_text(said)
    assert result.returncode != 0
