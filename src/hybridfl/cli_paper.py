"""`hybridfl reproduce`: the paper's figures and a verdict on its claims."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from hybridfl.cli_data import DataDirOption
from hybridfl.cli_options import DeviceOption, Folder, QuietOption
from hybridfl.cli_output import say
from hybridfl.cli_stopping import stoppable
from hybridfl.errors import InputError, nearest
from hybridfl.wording import counted


def reproduce(
    names: Annotated[
        list[str],
        typer.Argument(
            help="Studies as `list` names them; `all`; `list`; or `page`, the page from results that are there."
        ),
    ],
    seeds: Annotated[
        int | None, typer.Option(help="Seeds 0, 1, … (default: 5, and 3 for recurrent models)", show_default=False)
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Folder for runs, results, figures and the page.", click_type=Folder())
    ] = Path("results/paper"),
    quick: Annotated[
        bool, typer.Option("--quick", help="A tiny run of everything, in two minutes: does it all work?")
    ] = False,
    full: Annotated[
        bool, typer.Option("--full", help="Recurrent models at the paper's size: days on a CPU, hours on a GPU.")
    ] = False,
    data_dir: DataDirOption = None,
    device: DeviceOption = "auto",
    quiet: QuietOption = False,
) -> None:
    """Rebuild the paper's figures and judge its claims. What is done is skipped, what was interrupted goes on."""
    from hybridfl.paper.page import write_page
    from hybridfl.paper.reproduce import Plan, reproduce
    from hybridfl.paper.studies import STUDIES

    if names == ["list"]:
        _list()
        return
    known = {study.name: study for study in STUDIES}
    for name in names:
        if name not in (*known, "all", "page"):
            begin = [each for each in known if each.startswith(name)]
            hint = f" These begin so: {', '.join(begin)}." if begin else nearest(name, known)
            raise InputError(f"Unknown study '{name}'.{hint} `hybridfl reproduce list` names them all.")
    if quick and full:
        raise InputError("--quick and --full exclude each other.")
    if seeds is not None and seeds < 1:
        raise InputError(f"--seeds {seeds}: give 1 or more.")
    chosen = STUDIES if "all" in names else tuple(known[name] for name in names if name in known)
    if chosen:
        sized = [study.quick() if quick else study.at_full_size() if full else study for study in chosen]
        plan = Plan([replace(study, seeds=seeds or study.seeds) for study in sized], out, data_dir)
        plan.check(device)
        with stoppable(lambda: "Stopped. The same command goes on."):
            reproduce(plan, device, quiet)
    page = write_page(out, STUDIES)
    if not quiet:
        say(f"Page: {page}")


def _list() -> None:
    from rich.console import Console
    from rich.table import Table

    from hybridfl.paper.studies import STUDIES

    table = Table("Study", "In the paper", "Runs", box=None, pad_edge=False)
    for study in STUDIES:
        table.add_row(study.name, study.shows, f"{len(study.arms)} × {counted(study.seeds, 'seed')}")
    Console(highlight=False).print(table)
