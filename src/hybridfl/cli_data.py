"""`hybridfl data`: what data sets there are, where they lie, and how skewed a task's devices are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hybridfl.cli_options import examples
from hybridfl.cli_output import say
from hybridfl.errors import MOST_SEED
from hybridfl.waiting import making_data
from hybridfl.wording import counted

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from hybridfl.data.store import RemoteFile

ROWS = 12

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", help="Data sets: list, fetch, check, where, show.")

DataDirOption = Annotated[
    Path | None,
    typer.Option(
        "--data-dir", help="Where data sets lie. (default: $HYBRIDFL_DATA, else the cache folder)", show_default=False
    ),
]
NameArgument = Annotated[str, typer.Argument(help="A name of `hybridfl data list`.")]


@app.command("list", epilog=examples("hybridfl data list", "hybridfl data list --data-dir ~/data"))
def list_all(data_dir: DataDirOption = None) -> None:
    """The data sets there are, and which of them are on this machine."""
    from rich.console import Console
    from rich.table import Table

    from hybridfl.data.store import DATA_SETS, find
    from hybridfl.data.store import data_dir as folder_of

    folder = folder_of(data_dir)
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, data_set in DATA_SETS.items():
        found = [find(folder, file) for file in data_set.files]
        is_other = any(path and path != folder / file.name for path, file in zip(found, data_set.files, strict=True))
        here = "here" if not is_other else f"here as {', '.join(path.name for path in found if path)}"
        table.add_row(f"[bold]{name}[/bold]", data_set.title)
        table.add_row("", "not here" if None in found else here)
        table.add_row("", f"[dim]{data_set.num_bytes / 1e6:.1f} MB; terms: {data_set.terms}[/dim]\n")
    Console(highlight=False).print(table)


@app.command(epilog=examples("hybridfl data fetch fashion-mnist", "hybridfl data fetch mnist --data-dir ~/data"))
def fetch(name: NameArgument, data_dir: DataDirOption = None) -> None:
    """Download a data set, unless it is there already."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from hybridfl.data.store import fetch as fetch_files

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        paths = fetch_files(name, data_dir, lambda file: FileProgress(progress, file))
    say(f"{name} is in {paths[0].parent}")


@app.command(epilog=examples("hybridfl data check", "hybridfl data check --data-dir ~/data"))
def check(data_dir: DataDirOption = None) -> None:
    """Verify the checksums of all data sets on this machine."""
    from hybridfl.data.store import DATA_SETS, condition, find
    from hybridfl.data.store import data_dir as folder_of
    from hybridfl.errors import InputError

    folder = folder_of(data_dir)
    damaged = []
    for name, data_set in DATA_SETS.items():
        conditions = {file: condition(folder, file) for file in data_set.files}
        bad = [str(find(folder, file)) for file, state in conditions.items() if state == "damaged"]
        damaged += [name] if bad else []
        states = set(conditions.values())
        if bad:
            say(f"{name}: damaged: {', '.join(bad)}")
        elif states == {"missing"}:
            say(f"{name}: not here")
        elif "missing" in states:
            say(f"{name}: incomplete")
        elif "unverified" in states:
            say(f"{name}: here as {', '.join(str(find(folder, file)) for file in conditions)}, checksum not known")
        else:
            say(f"{name}: intact")
    if damaged:
        again = ", ".join(f"`hybridfl data fetch {name}`" for name in damaged)
        raise InputError(f"Not all is what was published: run {again}.")


@app.command(epilog=examples("hybridfl data where"))
def where(data_dir: DataDirOption = None) -> None:
    """Print the folder that holds the data sets."""
    from hybridfl.data.store import data_dir as folder_of

    say(str(folder_of(data_dir)))


@app.command(
    epilog=examples(
        "hybridfl data show",
        "hybridfl data show --task fashion-mnist --devices 50",
        "hybridfl data show --task 'fashion-mnist(Dirichlet(0.3))' --out labels.svg",
    )
)
def show(
    task: Annotated[str, typer.Option(help="fashion-mnist, 'mnist(Dirichlet(0.1))', synthetic, …")] = "synthetic",
    devices: Annotated[int, typer.Option(help="Devices in the fleet.")] = 100,
    seed: Annotated[int, typer.Option(help="Decides how samples are shared out.", min=0, max=MOST_SEED)] = 0,
    out: Annotated[
        Path | None, typer.Option(help="A picture to write too: .svg, .pdf or .png.", show_default=False)
    ] = None,
    data_dir: DataDirOption = None,
) -> None:
    """Show which labels the devices hold, and how many samples of each: a few of them here, all of them in a picture."""
    with making_data(devices, quiet=False):
        import numpy as np
        from rich.console import Console

        from hybridfl.label_counts import LabelCounts, legend, table
        from hybridfl.spelling import read_task

        if out is not None:
            _check_picture(out)
        built = read_task(task).build(devices, seed, data_dir)
    labels = LabelCounts.of(built.train)
    chosen = np.unique(np.linspace(0, devices - 1, min(ROWS, devices)).round().astype(int)).tolist()
    console = Console(highlight=False, markup=False)
    console.print(f"{task}, seed {seed}: {len(chosen)} of {counted(devices, 'device')}\n")
    for line in table(labels, chosen, console.width):
        console.print(line, soft_wrap=True)
    console.print(f"\n{legend(labels, console.width)}\n")
    for note in built.notes:
        console.print(note)
    console.print(f"{counted(len(built.train.index), 'sample')} to train on, {len(built.test.index):,} to test on.")
    sizes, held = labels.counts.sum(axis=0), (labels.counts > 0).sum(axis=0)
    console.print(f"Training samples per device: {sizes.min():,} to {sizes.max():,}, median {np.median(sizes):,g}.")
    if labels.are_classes:
        console.print(f"Labels per device: {held.min()} to {held.max()}, median {np.median(held):g}.")
    if out is not None:
        from hybridfl.label_plot import write_label_plot

        train = counted(len(built.train.index), "training sample")
        write_label_plot(labels, f"{task}: {train} on {counted(devices, 'device')}, seed {seed}", out)
        say(f"Picture: {out}")


def _check_picture(out: Path) -> None:
    from importlib.util import find_spec

    from hybridfl.errors import InputError

    if out.suffix not in (".svg", ".pdf", ".png"):
        raise InputError(f"'{out}' is no picture: end its name in .svg, .pdf or .png.")
    if not out.parent.is_dir():
        raise InputError(f"There is no folder '{out.parent}' to put the picture into.")
    if out.is_dir():
        raise InputError(f"'{out}' is a folder: give the name of a file.")
    if find_spec("matplotlib") is None:
        raise InputError(
            "The picture needs matplotlib: pip install 'hybridfl[report]'. Without --out there is a table."
        )


class FileProgress:
    """One line of the display, as pooch wants it: it sets `total` and calls `update`, `reset` and `close`."""

    def __init__(self, progress: Progress, file: RemoteFile) -> None:
        self._progress = progress
        self._line: TaskID = progress.add_task(Path(file.name).name, total=file.num_bytes)
        self.total = file.num_bytes

    @property
    def total(self) -> int:
        """Bytes to come. Setting it is how a new attempt announces itself."""
        return self._total

    @total.setter
    def total(self, num_bytes: int) -> None:
        self._total = num_bytes
        self._arrived = 0

    def update(self, num_bytes: int) -> None:
        """So many more bytes have arrived."""
        self._arrived += num_bytes
        self._progress.update(self._line, total=self.total, completed=self._arrived)

    def reset(self) -> None:
        """Start again from nothing."""
        self._arrived = 0

    def close(self) -> None:
        """All is there."""
