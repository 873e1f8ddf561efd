"""`hybridfl deploy`: what a fleet on Flower needs besides Flower's own commands."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from hybridfl.errors import InputError
from hybridfl.wording import counted

app = typer.Typer(no_args_is_help=True, help="For hybridfl on Flower: certificates, keys, a proxy, a local fleet.")


@app.command()
def certificates(
    folder: Annotated[Path, typer.Argument(help="Where ca.crt, server.crt and server.key are written.")],
    host: Annotated[
        list[str], typer.Option("--host", help="A name or address of the server; give it for each there is.")
    ] = ["localhost", "127.0.0.1"],  # noqa: B006 - typer copies it
    days: Annotated[int, typer.Option(min=1, max=36_500, help="How long they are good for.")] = 825,
) -> None:
    """Make an authority and a server's certificate, for TLS between devices and server.

    Every device gets a copy of ca.crt; server.key stays on the server. A company with an authority of its own uses that.

    Example: hybridfl deploy certificates certificates --host fl.example.org --host 127.0.0.1
    """
    _require_flower()
    from hybridfl.flower.credentials import make_certificates

    with _writing(folder):
        made = make_certificates(folder, host, days)
    for path in made:
        typer.echo(f"{path}")


@app.command()
def keys(
    folder: Annotated[Path, typer.Argument(help="Where the keys are written.")],
    count: Annotated[int, typer.Option(min=1, help="How many devices.")] = 1,
    prefix: Annotated[str, typer.Option(help="What they are called, before their number.")] = "device-",
    first: Annotated[int, typer.Option(min=0, help="The first one's number, to add devices later.")] = 0,
) -> None:
    """Make a key pair for every device, with which it proves who it is.

    The private key goes to its device; the public one is made known with `flwr supernode register`.

    Example: hybridfl deploy keys keys --count 4
    """
    _require_flower()
    from hybridfl.flower.credentials import make_keys

    with _writing(folder):
        made = make_keys(folder, [f"{prefix}{number}" for number in range(first, first + count)])
    for path in made:
        typer.echo(f"{path} {path}.pub")


@app.command()
def proxy(
    certificates: Annotated[Path, typer.Option(help="The folder with ca.crt, server.crt and server.key.")],
    state: Annotated[Path, typer.Option(help="A folder for nginx's logs and temporary files.")],
    listen: Annotated[str, typer.Option(help="The port, or address and port, that devices connect to.")] = "8443",
    superlink: Annotated[str, typer.Option(help="Where the SuperLink listens.")] = "127.0.0.1:8000",
    largest: Annotated[str, typer.Option(help="The most that one request may bring, in nginx's words.")] = "64m",
) -> None:
    """Print a configuration for nginx that lets devices reach what is theirs of a SuperLink, and nothing else.

    Example: hybridfl deploy proxy --certificates certificates --state nginx > nginx.conf && nginx -c $PWD/nginx.conf
    """
    _require_flower()
    from hybridfl.flower.proxy import nginx_config

    for name in ("ca.crt", "server.crt", "server.key"):
        if not (certificates / name).exists():
            raise InputError(
                f"There is no '{certificates / name}': run `hybridfl deploy certificates {certificates}` first."
            )
    with _writing(state):
        state.mkdir(parents=True, exist_ok=True)
    typer.echo(nginx_config(certificates, state, listen, superlink, largest), nl=False)


@app.command()
def local(
    devices: Annotated[int, typer.Option(min=1, help="How many SuperNodes.")] = 3,
    slow: Annotated[int, typer.Option(min=0, help="How many of them are stragglers.")] = 0,
    slow_seconds: Annotated[float, typer.Option(help="How long a straggler takes for a job, at least.")] = 30.0,
    folder: Annotated[Path, typer.Option(help="Where logs and Flower's own settings are kept.")] = Path("local-fleet"),
    port: Annotated[int, typer.Option(help="The SuperLink's port; SuperNodes take those from 100 above on.")] = 8000,
) -> None:
    """Run a SuperLink and SuperNodes on this machine, until Ctrl-C: a fleet to try an app on. Without TLS, on loopback.

    Example: hybridfl deploy local --devices 6 --slow 3
    """
    if not 0 <= slow_seconds < math.inf:
        raise InputError(f"--slow-seconds {slow_seconds:g} is no time that a job takes: give 0 or more.")
    _require_flower()
    from hybridfl.flower.local_fleet import LocalFleet

    if slow > devices:
        raise InputError(f"--slow {slow} of --devices {devices}: at most all of them can be slow.")
    for ending in (
        signal.SIGINT,
        signal.SIGTERM,
    ):  # SIGINT too: a shell that starts programs in the background ignores it
        signal.signal(ending, signal.default_int_handler)
    with LocalFleet(folder, port) as fleet:
        fleet.superlink()
        name = fleet.configure()
        for number in range(devices):
            is_slow = number >= devices - slow
            seconds = slow_seconds if is_slow else 0.0
            fleet.node(number, {"partition-id": number, "num-partitions": devices, "at-least-seconds": seconds})
        typer.echo(f"{counted(devices, 'device')} at {fleet.address}, logs in '{folder}'. Another terminal:\n")
        typer.echo(f"  FLWR_HOME={fleet.home.resolve()} flwr run examples/flower {name} --stream\n")
        typer.echo("Ctrl-C ends it.")
        ended: set[str] = set()
        try:
            while True:
                for label, process in fleet.processes.items():
                    if process.poll() is not None and label not in ended:
                        ended.add(label)
                        where = f"{label} has ended: see '{folder / f'{label}.log'}'."
                        if label == "superlink":
                            raise InputError(where)
                        typer.echo(where)
                time.sleep(0.5)
        except KeyboardInterrupt:
            typer.echo("Stopping.")


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"Cannot write to '{folder}' ({error.strerror}): choose another folder.") from None


def _require_flower() -> None:
    from importlib.util import find_spec

    if find_spec("flwr") is None:
        raise InputError("This needs Flower: pip install 'hybridfl[flower]'.")
