"""`hybridfl fleet`: which fleets have a name, what one looks like, and traces of real ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hybridfl.cli_options import examples
from hybridfl.cli_output import say
from hybridfl.errors import MOST_SEED, InputError, nearest
from hybridfl.wording import counted

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", help="Fleets: list, show, import recorded ones.")

ROWS = 12
FEWEST_COLUMNS = 10


@app.command("list", epilog=examples("hybridfl fleet list"))
def list_all() -> None:
    """The fleets that have a name, and how long their jobs take."""
    import numpy as np
    from rich.console import Console
    from rich.table import Table

    from hybridfl.fleet_picture import drawn_up, histogram, job_seconds
    from hybridfl.fleets import FLEETS
    from hybridfl.spelling import spelled

    console = Console(highlight=False)
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, make in FLEETS.items():
        seconds = job_seconds(drawn_up(make(), 100, 0), 100, 200.0)
        table.add_row(f"[bold]{name}[/bold]", f"{(make.__doc__ or '').strip()}")
        table.add_row(
            "", f"{histogram(seconds, 20)}  jobs take {np.median(seconds):.1f} s (median), up to {seconds.max():.1f} s"
        )
        table.add_row("", f"[dim]{spelled(name, make)}[/dim]\n")
    console.print(table)
    console.print("Use one with `hybridfl run --fleet NAME`, look at it with `hybridfl fleet show NAME`.")


@app.command(
    epilog=examples(
        "hybridfl fleet show phones",
        "hybridfl fleet show flaky --devices 1000 --seconds 200",
        "hybridfl fleet show 'Conditions(Drawn(Pareto()), lost=0.05)'",
    )
)
def show(
    fleet: Annotated[str, typer.Argument(help="A name of `hybridfl fleet list`, or a fleet written as it prints.")],
    devices: Annotated[int, typer.Option(help="Devices in the fleet.")] = 100,
    samples: Annotated[int, typer.Option(help="Samples of every device.")] = 100,
    seconds: Annotated[float, typer.Option(help="Virtual seconds to look at.")] = 60.0,
    seed: Annotated[int, typer.Option(help="Decides who is slow, away, lost.", min=0, max=MOST_SEED)] = 0,
) -> None:
    """Draw what the devices of a fleet do, if each gets its next job as soon as it is free."""
    import numpy as np
    from rich.console import Console

    from hybridfl.errors import require_positive
    from hybridfl.fleet_picture import drawn_up, histogram, job_seconds, stretches, timeline
    from hybridfl.spelling import read_fleet

    for name, value in (("devices", devices), ("samples", samples), ("seconds", seconds)):
        require_positive(name, value)
    timing = drawn_up(read_fleet(fleet), devices, seed, samples)
    shown = np.unique(np.linspace(0, devices - 1, min(ROWS, devices)).round().astype(int))
    chosen = np.argsort(timing.expected_seconds, kind="stable")[shown].tolist()
    console = Console(highlight=False, markup=False)
    names = [f"device {device:>{len(str(max(chosen)))}}  " for device in chosen]
    columns = max(FEWEST_COLUMNS, console.width - len(names[0]))
    how_many = f"{len(chosen)} of {counted(devices, 'device')}"
    console.print(f"{fleet}: {how_many}, fastest first, over {seconds:g} virtual seconds\n")
    for name, line in zip(names, timeline(timing, chosen, seconds, columns), strict=True):
        console.print(name + line, soft_wrap=True)
    end = f"{seconds:g} s"
    console.print(f"{'':{len(names[0])}}0{end:>{columns - 1}}", soft_wrap=True)
    console.print("\n█▒ at work, one job after the other (▓ many short ones)\n×  a job that is lost\n·  not there\n")
    answered = job_seconds(timing, min(devices, 1000), seconds)
    jobs = [job for device in range(min(devices, 1000)) for job in stretches(timing, device, seconds, most=50)]
    lost = sum(job.lost is not None for job in jobs)
    if len(answered):
        low, middle, high = np.quantile(answered, [0.1, 0.5, 0.9])
        console.print(
            f"{histogram(answered)}  from the shortest job to the longest, {answered.min():.2g} to {answered.max():.3g} s\n"
            f"Half of the jobs take less than {middle:.2g} s, a tenth less than {low:.2g} s, a tenth more than {high:.2g} s."
        )
    console.print(
        f"{timing.is_straggler.mean():.0%} of the devices are stragglers; {lost / max(1, len(jobs)):.1%} of the jobs are lost."
    )


@app.command(
    "import",
    epilog=examples(
        "hybridfl fleet import fedscale-capacity client_device_capacity seconds.csv",
        "hybridfl fleet import fedscale-availability client_behave_trace there.csv",
    ),
)
def import_trace(
    layout: Annotated[str, typer.Argument(help="fedscale-capacity or fedscale-availability.")],
    source: Annotated[Path, typer.Argument(help="FedScale's file: a pickle of plain values, or the same as JSON.")],
    target: Annotated[Path, typer.Argument(help="The CSV file to write.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Write it even if there is such a file.")] = False,
) -> None:
    """Make a trace of another framework one of ours, for `Recorded` and `RecordedAvailability`."""
    from hybridfl.traces import import_fedscale_availability, import_fedscale_capacity

    importers = {
        "fedscale-capacity": (import_fedscale_capacity, "--fleet \"Recorded('{}')\""),
        "fedscale-availability": (
            import_fedscale_availability,
            "--fleet \"Conditions(availability=RecordedAvailability('{}'))\", for FedScale's six days again and again with "
            "', repeat_every=518400' after the file's name",
        ),
    }
    if layout not in importers:
        raise InputError(f"Unknown layout '{layout}'.{nearest(layout, importers)} Known: {', '.join(importers)}.")
    if target.exists() and not overwrite:
        raise InputError(f"'{target}' is there already: give another path, or --overwrite.")
    importer, usage = importers[layout]
    say(f"{counted(importer(source, target), 'device')} in {target}. Use it with {usage.format(target)}")
