"""`hybridfl fleet`: which fleets have a name, what one looks like, and traces of real ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hybridfl.errors import MOST_SEED, InputError, nearest

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", help="Fleets: list, show, import recorded ones.")

COLUMNS = 60
ROWS = 12


@app.command("list")
def list_all() -> None:
    """The fleets that have a name, and how long their jobs take."""
    import numpy as np
    from rich.console import Console
    from rich.table import Table

    from hybridfl.fleet_picture import drawn_up, histogram, job_seconds
    from hybridfl.fleets import FLEETS
    from hybridfl.spelling import spelled

    table = Table("Fleet", "Jobs, short to long", "What it is", box=None, pad_edge=False)
    for name, make in FLEETS.items():
        seconds = job_seconds(drawn_up(make(), 100, 0), 100, 200.0)
        what = f"{(make.__doc__ or '').strip()}\n[dim]{spelled(name, make)}[/dim]\n"
        jobs = f"{histogram(seconds, 20)}\nmedian {np.median(seconds):.1f}, up to {seconds.max():.1f} s"
        table.add_row(name, jobs, what)
    Console().print(table)
    typer.echo("\nUse one with `hybridfl run --fleet NAME`, look at it with `hybridfl fleet show NAME`.")


@app.command()
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
    console = Console(highlight=False)
    console.print(f"{fleet}: {len(chosen)} of {devices} devices, fastest first, over {seconds:g} virtual seconds\n")
    for device, line in zip(chosen, timeline(timing, chosen, seconds, COLUMNS), strict=True):
        console.print(f"device {device:>6}  {line}")
    console.print(f"{'':15}0{'':{COLUMNS - 8}}{seconds:>5g} s")
    console.print("\n█▒ at work, one job after the other (▓ many short ones)   × a job that is lost   · not there")
    answered = job_seconds(timing, min(devices, 1000), seconds)
    jobs = [job for device in range(min(devices, 1000)) for job in stretches(timing, device, seconds, most=50)]
    lost = sum(job.lost is not None for job in jobs)
    if len(answered):
        low, middle, high = np.quantile(answered, [0.1, 0.5, 0.9])
        console.print(
            f"A job takes {middle:.2g} s in the middle, one of ten less than {low:.2g} s, one of ten more than {high:.2g} s, "
            f"the longest {answered.max():.3g} s:  {histogram(answered)}"
        )
    console.print(
        f"{timing.is_straggler.mean():.0%} of the devices are stragglers; {lost / max(1, len(jobs)):.1%} of the jobs are lost."
    )


@app.command("import")
def import_trace(
    layout: Annotated[str, typer.Argument(help="fedscale-capacity or fedscale-availability.")],
    source: Annotated[Path, typer.Argument(help="FedScale's file: a pickle of plain values, or the same as JSON.")],
    target: Annotated[Path, typer.Argument(help="The CSV file to write.")],
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
    importer, usage = importers[layout]
    typer.echo(f"{importer(source, target)} devices in {target}. Use it with {usage.format(target)}")
