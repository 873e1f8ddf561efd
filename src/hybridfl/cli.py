"""The command line: `hybridfl run`, `resume`, `compare`, `report`, `algorithms`, `data`, `fleet`."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import click
import typer
from click.core import ParameterSource

from hybridfl import cli_data, cli_deploy, cli_fleet, cli_paper
from hybridfl.cli_data import DataDirOption
from hybridfl.cli_options import (
    BatchOption,
    CheckpointOption,
    ClipOption,
    DeviceOption,
    DevicesOption,
    EpochsOption,
    EveryOption,
    FleetOption,
    Folder,
    FreshOption,
    GuardOption,
    MaxDelayOption,
    PresetOption,
    QuietOption,
    RateOption,
    RayOption,
    RoundsOption,
    ScheduleOption,
    SecondsOption,
    StragglersOption,
    TaskOption,
    examples,
)
from hybridfl.cli_output import say
from hybridfl.cli_stopping import STOPPED, Stoppable, again, stoppable
from hybridfl.errors import MOST_SEED, InputError, nearest
from hybridfl.waiting import making_data, under_way
from hybridfl.wording import counted, listed, shares_in_words

if TYPE_CHECKING:
    from hybridfl.algorithms.local_work import FullWork
    from hybridfl.conditions import Conditions
    from hybridfl.plan import Run
    from hybridfl.records import Record
    from hybridfl.task import Task
    from hybridfl.timing import Pace

app = typer.Typer(
    cls=Stoppable,
    no_args_is_help=True,
    rich_markup_mode="rich",
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Federated learning that neither waits for slow devices nor throws their work away.\n\n"
    "Runs are simulated in virtual time, on this machine; the same seed gives the same numbers. `deploy` is for real fleets.",
    epilog=examples("hybridfl run", "hybridfl compare --seconds 200 --seeds 3", "hybridfl COMMAND --help"),
)

app.add_typer(cli_data.app, name="data")
app.add_typer(cli_fleet.app, name="fleet")
app.add_typer(cli_deploy.app, name="deploy")


def _print_version(wanted: bool) -> None:
    if wanted:
        from hybridfl import __version__

        say(f"hybridfl {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Options of `hybridfl` itself; its help is the app's."""


ALL = "hfl,hfl-by-device,hfl-drift,hfl-as-printed,fedavg,fedprox,fedasync,fedbuff"
DIVERGED = 1
"""The exit code where a run has diverged: its figures are no results."""


@app.command(
    epilog=examples(
        "hybridfl run",
        "hybridfl run --task 'synthetic(0, 0)' --algorithm fedbuff --seconds 100",
        "hybridfl run --algorithm 'HFL(merge=Memory(RankOne(trust=0.6)))' --stragglers 0.5",
        "hybridfl run --preset fashion-mnist",
        "hybridfl run --fleet flaky --guard on --seconds 200",
        "hybridfl run --task 'shakespeare(sequences=20000, hidden=64)' --devices 20 --batch-size 10 --epochs 1 "
        "--learning-rate 1 --schedule constant --clip 1 --seconds 60",
    )
)
def run(
    preset: PresetOption = None,
    task: TaskOption = "synthetic",
    algorithm: Annotated[
        str, typer.Option(help="One of `hybridfl algorithms`, or written as it prints: 'FedBuff(buffer=20)'.")
    ] = "hfl",
    devices: DevicesOption = 100,
    fleet: FleetOption = "paper",
    stragglers: StragglersOption = None,
    max_delay: MaxDelayOption = None,
    guard: GuardOption = "off",
    seconds: SecondsOption = None,
    rounds: RoundsOption = None,
    evaluate_every: EveryOption = None,
    epochs: EpochsOption = 5,
    batch_size: BatchOption = 64,
    learning_rate: RateOption = 0.1,
    schedule: ScheduleOption = "inverse",
    clip: ClipOption = math.inf,
    seed: Annotated[int, typer.Option(help="Decides the data, the delays and every draw.", min=0, max=MOST_SEED)] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the results. (default: results/TASK-ALGORITHM-seed-N)",
            show_default=False,
            click_type=Folder(),
        ),
    ] = None,
    data_dir: DataDirOption = None,
    device: DeviceOption = "auto",
    ray: RayOption = None,
    checkpoint_every: CheckpointOption = None,
    fresh: FreshOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run one algorithm in virtual time. Without --seconds or --rounds: 200 rounds."""
    if seconds is None and rounds is None:
        rounds = 200
    with stoppable(), making_data(devices, quiet):
        from hybridfl.comparison import Comparison, slug
        from hybridfl.spelling import read_guard, read_labelled, read_task

        local = _local_work(epochs, batch_size, learning_rate, schedule, clip, rounds)
        _check_local_is_used([algorithm])
        comparison = Comparison(
            read_task(task),
            dict([read_labelled(algorithm, local)]),
            _fleet(fleet, stragglers, max_delay),
            devices,
            (seed,),
            seconds,
            rounds,
            evaluate_every,
            data_dir,
            read_guard(guard),
        )
        (plan,) = comparison.runs()
    folder = out or Path("results") / slug(f"{plan.task.name}-{plan.name}-seed-{seed}")
    _print_notes(plan.task, quiet)
    _play([plan], [folder], folder, device, ray, checkpoint_every, fresh, quiet)


@app.command(
    epilog=examples("hybridfl resume results/hfl", "hybridfl resume results/compare-synthetic-1-1 --device cpu")
)
def resume(
    folder: Annotated[Path, typer.Argument(help="A folder that `run --out` or `compare --out` wrote.")],
    data_dir: DataDirOption = None,
    device: DeviceOption = "auto",
    ray: RayOption = None,
    checkpoint_every: CheckpointOption = None,
    quiet: QuietOption = False,
) -> None:
    """Go on with the runs in a folder that were interrupted, from their last checkpoints: to the same numbers.

    The records are those of a run that was never interrupted, byte for byte.
    """
    with stoppable(), under_way("Making the data again", quiet or not sys.stderr.isatty()):
        from hybridfl.resuming import planned

        plans = planned(folder, data_dir)
    _play(list(plans.values()), list(plans), folder, device, ray, checkpoint_every, False, quiet)


@app.command(
    epilog=examples(
        "hybridfl compare --seconds 200 --seeds 3",
        "hybridfl compare --seeds 5 --first-seed 10",
        "hybridfl compare --algorithms 'hfl,small=FedBuff(buffer=5),large=FedBuff(buffer=20)' --out results/buffers",
        "hybridfl compare --algorithms hfl,fedavg --rounds 50 --json > table.json",
    )
)
def compare(
    preset: PresetOption = None,
    algorithms: Annotated[
        str,
        typer.Option(
            help="Comma-separated names, or algorithms written as they print, with a label or without: "
            "'hfl,FedBuff(buffer=20),quick=HFL(round_seconds=2)'."
        ),
    ] = ALL,
    task: TaskOption = "synthetic",
    devices: DevicesOption = 100,
    fleet: FleetOption = "paper",
    stragglers: StragglersOption = None,
    max_delay: MaxDelayOption = None,
    guard: GuardOption = "off",
    seeds: Annotated[int, typer.Option(help="Runs of each algorithm, with seeds 0, 1, …")] = 3,
    first_seed: Annotated[
        int,
        typer.Option(help="The first of the seeds: judge by others than you tuned by.", min=0, max=MOST_SEED),
    ] = 0,
    seconds: SecondsOption = None,
    rounds: RoundsOption = None,
    evaluate_every: EveryOption = None,
    epochs: EpochsOption = 5,
    batch_size: BatchOption = 64,
    learning_rate: RateOption = 0.1,
    schedule: ScheduleOption = "inverse",
    clip: ClipOption = math.inf,
    target: Annotated[
        float | None,
        typer.Option(help="Accuracy to time, 0 to 1. (default: 95 % of the best)", show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the results. (default: results/compare-TASK)", show_default=False, click_type=Folder()
        ),
    ] = None,
    data_dir: DataDirOption = None,
    device: DeviceOption = "auto",
    ray: RayOption = None,
    checkpoint_every: CheckpointOption = None,
    fresh: FreshOption = False,
    quiet: QuietOption = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the table as JSON, and nothing else, on standard output.")
    ] = False,
) -> None:
    """Compare algorithms on the same data, fleet and delays, and write a report.

    They get equal virtual time (--seconds, 200 by default) or equal rounds (--rounds).
    """
    if seconds is None and rounds is None:
        seconds = 200.0
    with stoppable(), making_data(devices, quiet):
        from hybridfl.comparison import Comparison, check_out, folder_of, slug
        from hybridfl.errors import require_share
        from hybridfl.experiment import save_all
        from hybridfl.progress import RunsDisplay
        from hybridfl.records import load
        from hybridfl.spelling import read_algorithms, read_guard, read_task, split_list
        from hybridfl.summary import baseline, baseline_name, by_label, default_target, is_bound, measure_of, summarise
        from hybridfl.summary_table import json_row, print_table

        if target is not None:
            require_share("target", target)
        local = _local_work(epochs, batch_size, learning_rate, schedule, clip, rounds)
        unreached = _check_local_is_used(split_list(algorithms))
        comparison = Comparison(
            read_task(task),
            read_algorithms(algorithms, local),
            _fleet(fleet, stragglers, max_delay),
            devices,
            range(first_seed, first_seed + seeds),
            seconds,
            rounds,
            evaluate_every,
            data_dir,
            read_guard(guard),
        )
        runs = list(comparison.runs())
        folder = out or Path("results") / slug(f"compare-{runs[0].task.name}")
        folders = [folder_of(folder, plan) for plan in runs]
        records = save_all(runs, folders, device, ray, checkpoint_every, fresh)
        check_out(folder, runs)
    _print_notes(runs[0].task, quiet or as_json)
    for line in [] if quiet else unreached:
        typer.echo(line, err=True)
    _say_what_has_ended(runs, folders, fresh or quiet or as_json)
    interrupted = False
    with stoppable(lambda: _how_to_go_on(folder)), RunsDisplay(runs, quiet) as display:
        try:
            for plan, record in records:
                display.show(plan, record)
        except KeyboardInterrupt:
            interrupted = True
    with stoppable(lambda: _how_to_go_on(folder)):
        begun = [folder_of(folder, plan) for plan in runs if (folder_of(folder, plan) / "run.json").exists()]
        saved = [run for run in map(load, begun) if run.records]
        if not saved:
            _stopped(folder)
        goal = default_target(saved) if target is None else target
        rows = summarise(saved, goal)
        if as_json:
            typer.echo(
                json.dumps(
                    {
                        "rows": [json_row(row) for row in rows],
                        "target": None if math.isnan(goal) else goal,
                        "baseline": baseline(saved),
                        "other_labels": sorted(_others_in(folder, begun)),
                    },
                    indent=2,
                )
            )
        elif not quiet:
            bounds = {label for label, group in by_label(saved).items() if is_bound(group)}
            cut = " (interrupted: runs end at different times)" if interrupted else ""
            slow = shares_in_words([float(plan.stage.is_straggler.mean()) for plan in runs])
            title = f"{runs[0].task.name}, {counted(devices, 'device')}, {slow} stragglers{cut}"
            print_table(rows, goal, title, measure_of(saved), bounds, baseline_name(saved))
        _report(folder, target, quiet or as_json)
        if not quiet and not as_json:
            _say_what_else_is_there(folder, begun)
    if interrupted:
        _stopped(folder)
    if any(row.diverged for row in rows):
        raise typer.Exit(DIVERGED)


@app.command(epilog=examples("hybridfl report results/compare-synthetic-1-1"))
def report(
    folder: Annotated[Path, typer.Argument(help="A folder that `run --out` or `compare --out` wrote.")],
    target: Annotated[
        float | None,
        typer.Option(help="Accuracy to time, 0 to 1. (default: 95 % of the best)", show_default=False),
    ] = None,
) -> None:
    """Write one page with all figures that works offline, and the figures as SVG and PDF."""
    from hybridfl.report import write_report

    say(f"Report: {write_report(folder, target)}")


@app.command(epilog=examples("hybridfl tensorboard results/demo", "hybridfl tensorboard results/flower --follow"))
def tensorboard(
    folder: Annotated[
        Path, typer.Argument(help="A folder that `run --out` or `compare --out` wrote, or a deployment.")
    ],
    follow: Annotated[bool, typer.Option("--follow", help="Go on while runs are under way, until Ctrl-C.")] = False,
) -> None:
    """Write the records of all runs as TensorBoard's events, beside them."""
    from hybridfl.tensorboard import Events

    events = Events(folder)
    count = events.write()
    say(f"{counted(count, 'record')}. Look at them with: tensorboard --logdir {shlex.quote(str(events.folder))}")
    with contextlib.suppress(KeyboardInterrupt):
        while follow:
            time.sleep(2)
            events.write()


@app.command(epilog=examples("hybridfl algorithms", "hybridfl algorithms | less"))
def algorithms() -> None:
    """List the algorithms, tasks and fleets, with their hyperparameters as they can be written."""
    from rich.console import Console
    from rich.table import Table

    from hybridfl.fleets import FLEETS
    from hybridfl.spelling import ALGORITHMS, PARTS, TASKS, spelled

    console = Console()

    def print_table(title: str, second: str, rows: Iterable[tuple[str, str]]) -> None:
        table = Table(box=None, pad_edge=False)
        table.add_column(title, no_wrap=True)
        table.add_column(second, overflow="fold")
        for row in rows:
            table.add_row(*row)
        console.print(table)

    kinds: tuple[tuple[str, Mapping[str, Callable[..., object]]], ...] = (
        ("Algorithm", ALGORITHMS),
        ("Task", TASKS),
        ("Fleet", FLEETS),
    )
    for title, constructors in kinds:
        rows = [(name, spelled(name, constructor)) for name, constructor in constructors.items()]
        print_table(title, "Its hyperparameters and their defaults", rows)
        console.print()
    print_table(
        "Where this is wanted",
        "one of these may stand",
        [(role.__name__, "\n".join(spelled(part.__name__, part) for part in parts)) for role, parts in PARTS.items()],
    )


app.command(
    epilog=examples(
        "hybridfl reproduce list",
        "hybridfl reproduce all --quick",
        "hybridfl reproduce fig2-fashion-mnist fig3-lambda --out results/paper",
        "hybridfl reproduce all --seeds 5 --device cuda --out results/paper",
        "hybridfl reproduce page --out docs/paper",
    )
)(cli_paper.reproduce)


def main() -> None:
    """The entry point: a user's mistake is one line on standard error and exit code 2, never a traceback."""
    try:
        app()
    except InputError as error:
        say(f"Error: {error}", err=True)
        sys.exit(2)
    except (MemoryError, RuntimeError) as error:  # PyTorch has no exception of its own for it on the CPU
        if not isinstance(error, MemoryError) and "can't allocate memory" not in str(error):
            raise
        say(
            "Error: There is not enough memory: ask for fewer devices, epochs or samples, or a smaller model.", err=True
        )
        sys.exit(2)
    except OSError as error:
        if error.errno not in OF_THE_DISK:
            raise
        place = f"'{error.filename}'" if error.filename else "what was to be written"
        say(f"Error: {error.strerror}: {place}. Make room, or choose a place that can be read and written.", err=True)
        # What waits in standard output would fail once more at the very end.
        with contextlib.suppress(OSError), Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        sys.exit(1)


OF_THE_DISK = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.EFBIG, errno.ENAMETOOLONG}
)
"""What can go wrong wherever something is written; any other `OSError` is a fault of ours, whose traceback is wanted."""


def _local_work(
    epochs: int, batch_size: int, learning_rate: float, schedule: str, clip: float, rounds: int | None
) -> FullWork:
    from hybridfl.algorithms.local_work import ConstantRate, Cosine, FullWork, InverseSqrt, InverseTime, Schedule

    schedules: dict[str, Callable[[float], Schedule]] = {
        "inverse": InverseTime,
        "sqrt": InverseSqrt,
        "constant": ConstantRate,
        "cosine": lambda rate: Cosine(rate, rounds or 200),
    }
    if schedule not in schedules:
        raise InputError(f"Unknown schedule '{schedule}'.{nearest(schedule, schedules)} Known: {', '.join(schedules)}.")
    return FullWork(epochs, batch_size, schedules[schedule](learning_rate), clip=clip)


def _check_local_is_used(texts: Sequence[str]) -> list[str]:
    """Refuse options of the local work that none of the algorithms takes, since each spells its own; a line if some do."""
    from hybridfl.algorithms.local_work import FullWork
    from hybridfl.spelling import read_labelled

    context = click.get_current_context()
    names = ("epochs", "batch_size", "learning_rate", "schedule", "clip")
    given = [name for name in names if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    ones, twos = ([read_labelled(text, FullWork(epochs=epochs)) for text in texts] for epochs in (1, 2))
    options = [f"--{name.replace('_', '-')}" for name in given]
    if texts and given and ones == twos:
        raise InputError(
            f"{options[0]} has no effect, because '{texts[0]}' spells its own local work: leave the option "
            "out, or take local=… out of the algorithm."
        )
    own = [one[0] for one, two in zip(ones, twos, strict=True) if one == two]
    if not given or not own:
        return []
    verb, spell = ("does", "spells its") if len(own) == 1 else ("do", "spell their")
    return [
        f"{listed(own)} {verb} not take {listed(options)}: {'it' if len(own) == 1 else 'they'} {spell} own local work."
    ]


def _print_notes(task: Task, quiet: bool) -> None:
    """What a reader of the results should know of the data, on standard error."""
    for note in () if quiet else task.notes:
        say(f"{task.name}: {note}", err=True)


def _report(folder: Path, target: float | None, quiet: bool) -> None:
    """The report is an extra: without its packages a comparison is complete all the same."""
    try:
        from hybridfl.report import write_report

        page = write_report(folder, target)
    except InputError as error:
        say(f"No report: {error}", err=True)
        return
    if not quiet:
        say(f"Report: {page}")


def _say_what_else_is_there(folder: Path, ours: Sequence[Path]) -> None:
    """The report is of the whole folder, the table of what was asked for."""
    others = _others_in(folder, ours)
    if others:
        count = sum(others.values())
        say(
            f"The report also covers {counted(count, 'other run')} in {folder} ({', '.join(sorted(others))}), which the table "
            "leaves out."
        )


def _others_in(folder: Path, ours: Sequence[Path]) -> Counter[str]:
    """How many other runs with records a folder holds, by label."""
    from hybridfl.records import RECORDS, RUN, files_below, load_config

    others = [path.parent for path in files_below(folder, RUN) if path.parent not in ours]
    held = [each for each in others if (each / RECORDS).exists() and (each / RECORDS).stat().st_size]
    return Counter(str(load_config(each)["label"]) for each in held)


def _stopped(folder: Path) -> NoReturn:
    say(_how_to_go_on(folder), err=True)
    raise typer.Exit(STOPPED)


def _how_to_go_on(folder: Path) -> str:
    """With runs that were stopped, or with the report on them; without a record, the same command is as good."""
    from hybridfl.records import FINISHED, RECORDS, RUN

    runs = [path.parent for path in folder.rglob(RUN)] if folder.is_dir() else []
    name = shlex.quote(str(folder))
    records = [run / RECORDS for run in runs]
    if not any(path.exists() and path.stat().st_size for path in records):
        return again()
    if all((run / FINISHED).exists() for run in runs):
        return f"Stopped. The runs in {folder} have ended; `hybridfl report {name}` writes their report."
    return f"Stopped. What was recorded until then is in {folder}; go on with `hybridfl resume {name}`."


def _fleet(fleet: str, stragglers: float | None, max_delay: int | None) -> Pace | Conditions:
    from hybridfl.fleets import paper
    from hybridfl.spelling import read_fleet

    given = {"stragglers": stragglers, "max_delay": max_delay}
    given = {name: value for name, value in given.items() if value is not None}
    if not given:
        return read_fleet(fleet)
    if fleet != "paper":
        raise InputError(
            f"--{next(iter(given)).replace('_', '-')} is for the fleet 'paper', not for '{fleet}': leave it out, or write the "
            "fleet's own numbers, for example --fleet 'paper(0.5, 20)'."
        )
    return paper(**given)  # type: ignore[arg-type]


def _play(
    plans: Sequence[Run],
    folders: Sequence[Path],
    root: Path,
    device: str,
    ray: str | None,
    checkpoint_every: int | None,
    fresh: bool,
    quiet: bool,
) -> None:
    """Play runs into their folders, show how far they are, and say how each has ended."""
    from hybridfl.experiment import save_all
    from hybridfl.progress import RunsDisplay

    with stoppable(lambda: _how_to_go_on(root)):
        records = save_all(plans, folders, device, ray, checkpoint_every, fresh)
        _say_what_has_ended(plans, folders, fresh or quiet)
    latest: dict[int, Record] = {}
    interrupted = False
    started = time.perf_counter()
    with stoppable(lambda: _how_to_go_on(root)), RunsDisplay(plans, quiet) as display:
        try:
            for plan, record in records:
                latest[id(plan)] = record
                display.show(plan, record)
        except KeyboardInterrupt:
            interrupted = True
    took = time.perf_counter() - started
    for plan in () if quiet else plans:
        if id(plan) in latest:
            say(_ended(plan, latest[id(plan)]))
    if not quiet and not interrupted:
        say(f"{took:.1f} s here. Results: {root}    Report: hybridfl report {shlex.quote(str(root))}")
    if interrupted:
        _stopped(root)
    if any(record.has_diverged for record in latest.values()):
        raise typer.Exit(DIVERGED)


def _say_what_has_ended(plans: Sequence[Run], folders: Sequence[Path], quiet: bool) -> None:
    from hybridfl.run_folder import RunFolder

    ended = [RunFolder(folder, plan.config).is_finished for plan, folder in zip(plans, folders, strict=True)]
    if any(ended) and not quiet:
        have = "has" if sum(ended) == 1 else "have"
        which = "This run has" if len(plans) == 1 else f"{sum(ended)} of {len(plans)} runs {have}"
        say(f"{which} ended already and will only be read; `run --fresh` or `compare --fresh` begins again.", err=True)


def _ended(plan: Run, record: Record) -> str:
    counts = {"merged": record.merged, "discarded": record.discarded, "refused": record.refused}
    updates = ", ".join(f"{count:,} {fate}" for fate, count in counts.items() if count or fate != "refused")
    lost = f"; {counted(record.lost, 'job')} lost" if record.lost else ""
    lost += f"; {record.barred:,} of {counted(len(plan.task.train), 'device')} in quarantine" if record.barred else ""
    return (
        f"{plan.name} on {plan.task.name}, seed {plan.seed}: {_scores(record)} after {counted(record.version, 'version')} and "
        f"{record.seconds:g} s of virtual time; updates: {updates}{lost}."
    )


def _scores(record: Record) -> str:
    """By device and by sample; the loss where there are no classes."""
    if record.has_diverged:
        return "diverged"
    if math.isnan(record.test_accuracy):
        return f"test loss {record.test_loss:.4g}"
    return f"test accuracy {record.device_accuracy:.1%} by device, {record.test_accuracy:.1%} by sample,"
