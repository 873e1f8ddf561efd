"""What `hybridfl run`, `resume` and `compare` can be told: the options they share, each with its help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import click
import typer

from hybridfl.errors import InputError, nearest
from hybridfl.presets import PRESETS


def examples(*commands: str) -> str:
    """A help page's last part: an empty line between two lines keeps them apart."""
    return "\n\n".join(["[bold]Examples[/bold]", *commands])


def _apply_preset(context: typer.Context, name: str | None) -> str | None:
    """It is read before all others, which then fall back on it."""
    if name is not None:
        if name not in PRESETS:
            raise InputError(f"Unknown preset '{name}'.{nearest(name, PRESETS)} Known: {', '.join(PRESETS)}.")
        context.default_map = dict(PRESETS[name])
    return name


class Folder(click.ParamType):
    """A path that is no empty text: that would stand for the current folder, and is a variable of a shell that is not set."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        if value == "":
            named = param.opts[0] if param is not None and param.opts else "The folder"
            raise InputError(f"{named} '' names no folder: give one, or '.' for the current one.")
        return Path(value)


PresetOption = Annotated[
    str | None,
    typer.Option(
        help=f"Settings with a name, for all options that are not given: {', '.join(PRESETS)}.",
        is_eager=True,
        callback=_apply_preset,
        show_default=False,
    ),
]
TaskOption = Annotated[
    str,
    typer.Option(
        "--task",
        help="What is learned: synthetic, 'synthetic(0, 0)', fashion-mnist, 'mnist(Dirichlet(0.1))', shakespeare, sent140, …",
        rich_help_panel="Task",
    ),
]

DevicesOption = Annotated[int, typer.Option(help="Devices in the fleet.", rich_help_panel="Fleet")]
FleetOption = Annotated[
    str,
    typer.Option(
        "--fleet",
        help="How its devices behave: one of `hybridfl fleet list`, or written as it prints: 'phones(sigma=0.6)', "
        "'Conditions(Drawn(Pareto()), lost=0.05)'.",
        rich_help_panel="Fleet",
    ),
]
StragglersOption = Annotated[
    float | None,
    typer.Option(
        help="Of the fleet 'paper': share of the devices that are slow, 0 to 1. (default: 0.9)",
        rich_help_panel="Fleet",
        show_default=False,
    ),
]
MaxDelayOption = Annotated[
    int | None,
    typer.Option(
        help="Of the fleet 'paper': a slow device takes 1 + τ s, τ uniform in 1..this; others take 1 s. (default: 10)",
        rich_help_panel="Fleet",
        show_default=False,
    ),
]
GuardOption = Annotated[
    str,
    typer.Option(
        "--guard",
        help="Refuse bad updates: off, on, or written as it prints: 'Guard(norm=10, quarantine=5)'.",
        rich_help_panel="Fleet",
    ),
]
CheckpointOption = Annotated[
    int | None,
    typer.Option(
        "--checkpoint-every",
        help="Versions between two checkpoints. (default: at most one per minute)",
        rich_help_panel="Machine",
        show_default=False,
    ),
]
FreshOption = Annotated[
    bool,
    typer.Option(
        "--fresh",
        help="Start runs that were interrupted or have ended from the beginning, instead of going on.",
        rich_help_panel="Machine",
    ),
]
SecondsOption = Annotated[
    float | None, typer.Option(help="Virtual seconds to run.", rich_help_panel="Budget", show_default=False)
]
RoundsOption = Annotated[
    int | None, typer.Option(help="Versions of the joint model to make.", rich_help_panel="Budget", show_default=False)
]
EveryOption = Annotated[
    float | None,
    typer.Option(
        help="Virtual seconds between evaluations. (default: --seconds / 200, or every version without --seconds)",
        rich_help_panel="Budget",
        show_default=False,
    ),
]
EpochsOption = Annotated[int, typer.Option(help="Local epochs of a job.", rich_help_panel="Local work")]
BatchOption = Annotated[int, typer.Option(help="Samples in a minibatch.", rich_help_panel="Local work")]
RateOption = Annotated[float, typer.Option(help="Learning rate of version 0.", rich_help_panel="Local work")]
ScheduleOption = Annotated[
    str,
    typer.Option(
        help="How the rate falls with the version t: inverse (1/(1+t)), sqrt (1/√(1+t)), constant, cosine "
        "(to rest at version --rounds, or 200).",
        rich_help_panel="Local work",
    ),
]
ClipOption = Annotated[
    float,
    typer.Option(
        help="Longest gradient of a step; longer ones are shortened to it.",
        rich_help_panel="Local work",
        show_default="no limit",
    ),
]
DeviceOption = Annotated[
    str, typer.Option(help="Where to compute: cpu, cuda, or auto: a GPU if there is one.", rich_help_panel="Machine")
]
RayOption = Annotated[
    str | None,
    typer.Option(
        "--ray",
        help="Spread the work over a Ray cluster: its address, or auto: the one of this machine, else a new one.",
        rich_help_panel="Machine",
        show_default=False,
    ),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress display, no table.")]
