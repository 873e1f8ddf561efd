import math
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from hybridfl import plots
from hybridfl.records import Arrival, SavedRun
from saved_runs import comparison, record, saved


def lines(figure: Figure | None) -> list[tuple[list[float], list[float]]]:
    assert figure is not None
    return [
        (np.asarray(line.get_xdata()).tolist(), np.asarray(line.get_ydata()).tolist()) for line in figure.axes[0].lines
    ]


def test_the_same_results_give_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "FIGURES", {"stragglers": plots.stragglers})
    first, again = (plots.write_figures(comparison(), tmp_path / name) for name in ("first", "again"))
    assert [path.name for path in first] == ["stragglers.svg", "stragglers.pdf"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]


def test_an_accuracy_curve_has_the_means_over_seeds() -> None:
    x, y = lines(plots.accuracy_time(comparison()))[0]
    assert x == [0, 1, 2, 10]
    assert y == pytest.approx([0.1, 0.5, 0.65, 0.75])


def test_loss_is_shown_on_two_panels() -> None:
    figure = plots.loss_time(comparison())
    assert figure is not None
    assert [axes.get_ylabel() for axes in figure.axes] == ["train loss", "test loss"]
    assert figure.get_figwidth() == plots.TWO_COLUMNS


def test_an_accuracy_version_figure_needs_a_version() -> None:
    assert plots.accuracy_version([saved("hfl", [record(0, 0)])]) is None
    x, _ = lines(plots.accuracy_version(comparison()))[0]
    assert x == [1, 2, 9]


def test_the_timeline_is_that_of_hfl() -> None:
    figure = plots.timeline(comparison())
    assert figure is not None
    assert figure.axes[0].get_title(loc="left") == "hfl"
    spans = sorted((bar.get_x(), bar.get_x() + bar.get_width()) for bar in figure.axes[0].patches)  # type: ignore[attr-defined]
    assert spans == [(0, 1), (0, 1.5), (1, 2)]


def test_discarded_work_is_hatched() -> None:
    figure = plots.timeline([run for run in comparison() if run.label == "fedavg"])
    assert figure is not None
    assert [bar.get_x() + bar.get_width() for bar in figure.axes[0].patches if bar.get_hatch()] == [4]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "run",
    [
        saved("cut off", [record(0, 0)]),
        saved("diverged", [record(0, 0), record(1, 1, train_loss=math.inf)], [Arrival(0, 0, 0, 1, 0, "late")]),
        saved("costs $5 or $6", [record(0, 0), record(1, 1)], [Arrival(0, 0, 0, 1, 0, None)]),
    ],
    ids=lambda run: run.label,
)
def test_odd_runs_can_be_drawn(run: SavedRun) -> None:
    for draw in plots.FIGURES.values():
        figure = draw([run])
        if figure is not None:
            figure.draw_without_rendering()


def test_what_has_nothing_to_show_is_left_out() -> None:
    run = saved("hfl", [record(0, 0, straggler_accuracy=math.nan)])
    assert [name for name, draw in plots.FIGURES.items() if draw([run]) is None] == [
        "accuracy-version",
        "devices",
        "stragglers",
        "staleness",
        "timeline",
    ]
