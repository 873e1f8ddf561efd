import itertools
import json
import math
import re
from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
import torch

from hybridfl import plots, report
from hybridfl.algorithms.fedavg import FedAvg
from hybridfl.algorithms.hfl import HFL
from hybridfl.algorithms.sampling import Uniform
from hybridfl.errors import InputError
from hybridfl.experiment import simulate
from hybridfl.losses import Loss
from hybridfl.panels import staleness_figure
from hybridfl.records import Arrival, SavedRun
from hybridfl.report import check_comparable, cut_off, render, write_report
from hybridfl.task import Task
from hybridfl.timing import PaperDelays
from saved_runs import broken, comparison, fair, no_classes, record, saved, write

EVIL = "<script>alert('1')</script>"


class Page(HTMLParser):
    """What a browser sees: tags with their attributes, text outside scripts, and the figures."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._scripts: list[str] = []
        self._in_script = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._in_script = tag == "script"

    def handle_endtag(self, tag: str) -> None:
        self._in_script = False

    def handle_data(self, data: str) -> None:
        if self._in_script:
            self._scripts.append(data)
        else:
            self.text += data

    @property
    def figures(self) -> dict[str, dict[str, Any]]:
        return json.loads(next(script for script in self._scripts if script.startswith("{")))  # type: ignore[no-any-return]


@pytest.fixture
def without_plotly_js(monkeypatch: pytest.MonkeyPatch) -> None:
    """plotly.js is 5 MB of other people's text."""
    monkeypatch.setattr("plotly.offline.get_plotlyjs", lambda: "/* plotly.js */")


def test_a_report_is_one_page_with_figures_for_print_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "FIGURES", {"staleness": plots.staleness})
    page = write_report(write(tmp_path, *comparison()))
    assert page == tmp_path / "report.html"
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {"staleness.svg", "staleness.pdf"}
    assert "plotly.js v" in page.read_text(encoding="utf-8")[:20_000], "it is in the page"
    assert page.stat().st_size < 7_000_000


@pytest.mark.usefixtures("without_plotly_js")
class TestPage:
    def test_nothing_is_loaded_from_anywhere(self) -> None:
        text = render(comparison())
        links = [values.get(name) for _, values in Page(text).tags for name in ("src", "href") if name in values]
        assert links == ["figures/"]
        assert not re.search("https?:", text)
        assert "url(" not in text
        assert "@import" not in text

    def test_every_choice_has_a_figure_that_plotly_accepts(self) -> None:
        page = Page(render(comparison()))
        radios: dict[str, list[str]] = {}
        for tag, values in page.tags:
            if tag == "input" and values["type"] == "radio":
                radios.setdefault(str(values["name"]), []).append(str(values["value"]))
        panels = [str(values["data-panel"]) for tag, values in page.tags if "data-panel" in values]
        assert panels == ["curves", "stragglers", "staleness", "timeline"]
        for panel in panels:
            choices = [values for name, values in radios.items() if name.rsplit("-", 1)[0] == panel]
            assert set(page.figures[panel]) == {" ".join(choice) for choice in itertools.product(*choices)}
            for figure in page.figures[panel].values():
                go.Figure(figure)

    def test_what_comes_from_files_is_escaped(self) -> None:
        run = saved(
            EVIL,
            [record(0, 0, 0.1), record(1, 1)],
            [Arrival(0, 0, 0, 1, 0, None), Arrival(1, 0, 0, 2, 0, EVIL)],
            algorithm=EVIL,
            task={"name": EVIL},
            timing=EVIL,
            versions={EVIL: EVIL},
        )
        text = render([run])
        page = Page(text)
        assert EVIL not in text
        assert [tag for tag, _ in page.tags].count("script") == 3
        assert page.text.count(EVIL) >= 8, "it is there to read, though"
        assert EVIL not in json.dumps(page.figures), "plotly.js reads labels as HTML, too"

    def test_a_table_row(self) -> None:
        text = Page(render(comparison(), target=0.5)).text.replace("\N{NO-BREAK SPACE}", " ")
        assert "hfl75.0 % ± 7.165.0 %1.0> 10.0 ×0" in text
        assert "fedavg40.0 %30.0 %––1 (33 %)" in text
        assert "s-sgd upper bound90.0 %80.0 %10.0–0" in text
        assert "means over the records of the last 15 % of a run's virtual seconds" in text
        assert "a test accuracy by sample of 50.0 %, as given" in text

    def test_a_table_row_begins_with_the_accuracy_by_device(self) -> None:
        text = Page(render([fair(0, 0.3), fair(1, 0.5)], target=0.5)).text.replace("\N{NO-BREAK SPACE}", " ")
        assert "by devicetenth" not in text
        assert "hfl40.0 % ± 14.15.0 %20.0 %75.0 % ± 0.065.0 %9.00" in text
        assert "the worst tenth is the mean" in text

    def test_a_diverged_seed_is_said_in_table_warning_and_curve(self) -> None:
        whole = [record(0, 0, 0.1), record(1, 5, 0.6), record(2, 9, 0.6)]
        text = render([saved("hfl", whole, seed=0), broken(seed=1), saved("fedavg", whole, seed=0)], target=0.5)
        page = Page(text)
        words = page.text.replace("\N{NO-BREAK SPACE}", " ")
        assert "hfl1 of 2 diverged" in words
        assert "hfl diverged on 1 of 2 seeds (seed 1 at version 3): its weights" in words
        assert words.count("diverged on") == 1, "once is enough"
        assert "no record after" not in words, "it has ended, it was not cut off"
        marks = [
            each
            for each in page.figures["curves"]["test_accuracy seconds"]["data"]
            if each.get("name") == "hfl diverges"
        ]
        assert [(mark["x"], mark["y"]) for mark in marks] == [([0.0], [0.1])], "where both seeds had a score"

    def test_a_task_without_classes_is_shown_by_its_loss(self) -> None:
        runs = [no_classes("hfl", 0.5), no_classes("fedavg", 0.7)]
        page = Page(render(runs))
        assert {key.split()[0] for key in page.figures["curves"]} == {"test_loss", "train_loss"}
        words = page.text.replace("\N{NO-BREAK SPACE}", " ")
        assert "hfl ends at a test loss of 0.5, against fedavg at 0.7." in words
        assert "final test loss" in words
        assert "accuracy" not in words.split("Learning curves")[0].split("In the text above")[0]
        assert "nan" not in words.lower()

    def test_the_default_target_is_explained(self) -> None:
        text = Page(render(comparison())).text.replace("\N{NO-BREAK SPACE}", " ")
        assert "a test accuracy by sample of 71.2 %, 95 % of the best that a federated" in text

    def test_the_configuration_names_every_value_once(self) -> None:
        text = Page(render(comparison())).text
        assert text.count("PaperDelays(stragglers=0.9, max_delay=10)") == 1
        assert "seed0, 1" in text
        assert "task devices3" in text

    @pytest.mark.parametrize(
        ("run", "panels"),
        [
            (comparison()[0], ["curves", "stragglers", "staleness", "timeline"]),
            (saved("hfl", [record(0, 0)]), ["curves", "stragglers"]),
            (saved("hfl", [record(0, 0, 0.1), record(1, 9, straggler_accuracy=math.nan)]), ["curves"]),
            (saved("ssgd", [record(0, 0), record(1, 9)], algorithm="SSGD()"), ["curves", "stragglers"]),
            (
                saved("a", [record(0, 0, 0.1), record(1, 9, test_loss=math.inf)], [Arrival(0, 0, 0, 1, 0, "late")]),
                ["curves", "stragglers", "timeline"],
            ),
        ],
        ids=["one run", "one record", "no stragglers", "S-SGD alone", "all discarded"],
    )
    def test_a_page_of_one_run_shows_what_there_is(self, run: SavedRun, panels: list[str]) -> None:
        page = Page(render([run], target=0.9))
        assert list(page.figures) == panels
        assert "nan" not in page.text.lower()
        for panel in page.figures.values():
            for figure in panel.values():
                go.Figure(figure)

    def test_a_run_cut_off_after_its_first_record_reaches_its_own_target_at_once(self) -> None:
        assert list(Page(render([saved("hfl", [record(0, 0)])])).figures) == ["curves", "stragglers"]


def test_a_run_that_was_cut_off_is_pointed_out() -> None:
    runs = [
        saved("short", [record(0, 0), record(1, 4)]),
        saved("whole", [record(0, 0), record(1, 8.5)]),
        saved("enough rounds", [record(0, 0), record(5, 1)], rounds=5),
        saved("few rounds", [record(0, 0), record(4, 1)], rounds=5, seconds=None),
    ]
    assert cut_off(runs) == [
        "short, seed 0: no record after 4 of 10 virtual seconds.",
        "few rounds, seed 0: no record after version 4 of 5.",
    ]


def test_different_experiments_are_not_averaged() -> None:
    one = saved("hfl", [record(0, 0)])
    with pytest.raises(InputError, match=r"cannot be compared \(task name 'toy' and 'mnist'\)"):
        check_comparable([one, saved("hfl", [record(0, 0)], task={"name": "mnist"})], Path("results"))
    for other, words in (
        (saved("hfl", [record(0, 0)], seed=1, algorithm="HFL(5)"), r"algorithm 'HFL\(\)' and 'HFL\(5\)'"),
        (saved("hfl", [record(0, 0)], seed=1, guard="Guard()"), r"guard 'None' and 'Guard\(\)'"),
    ):
        with pytest.raises(InputError, match=rf"runs of 'hfl' .* \({words}, of seeds 0 and 1\): give"):
            check_comparable([one, other], Path("results"))
    sizes = {"name": "toy", "devices": 3, "train_samples": 7, "checksum": "b"}
    check_comparable([one, saved("hfl", [record(0, 0)], seed=1, task=sizes, guard="None")], Path("results"))
    with pytest.raises(InputError, match="'results' holds 2 runs of 'hfl' with seed 0"):
        check_comparable([one, one], Path("results"))


@pytest.mark.parametrize("missing", ["plotly", "matplotlib", "scipy"])
def test_a_missing_extra_is_named(missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "find_spec", lambda name: None if name == missing else object())
    with pytest.raises(InputError) as caught:
        write_report(write(tmp_path, *comparison()))
    assert str(caught.value) == "The report needs plotly, matplotlib and scipy: pip install 'hybridfl[report]'."


def mean_square(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs - targets).square().mean(1)


def binary_cross_entropy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.binary_cross_entropy_with_logits(outputs, targets, reduction="none").mean(1)


def nothing_to_learn(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return 0 * outputs.sum(1)


@pytest.mark.parametrize("loss", [mean_square, binary_cross_entropy, nothing_to_learn])
def test_a_regression_or_several_labels_have_a_report(loss: Loss, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(12, 3, generator=generator) for _ in range(6)]
    devices = [(each, (each[:, :2] > 0).float()) for each in inputs]
    torch.manual_seed(0)
    task = Task.from_devices(devices, torch.nn.Linear(3, 2), loss=loss)
    for label, algorithm in (("hfl", HFL()), ("fedavg", FedAvg(Uniform(2)))):
        simulate(task, algorithm, PaperDelays(0.5, 3), seconds=6, label=label, out=tmp_path / label)
    write_report(tmp_path)
    assert {path.stem for path in (tmp_path / "figures").iterdir()} == {"loss-time", "staleness", "timeline"}


def test_a_report_is_made_of_runs_that_diverged_at_their_first_version(tmp_path: Path) -> None:
    runs = [replace(broken(label), records=(*broken(label).records[:1], record(1, 2, diverged_at=1))) for label in "ab"]
    write_report(write(tmp_path, *runs))


def test_a_run_that_made_no_version_is_pointed_out() -> None:
    assert cut_off([saved("hfl", [record(0, 0), record(0, 10)])]) == [
        "hfl, seed 0: made no version, so its figures are those of the first model."
    ]


def test_letters_that_no_font_has_are_no_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "FIGURES", {"accuracy-time": plots.accuracy_time})
    write_report(write(tmp_path, saved("世界 🙂", [record(0, 0), record(1, 9)])))


def test_other_seeds_and_other_code_are_said_in_the_page_and_in_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(plots, "FIGURES", {"accuracy-time": plots.accuracy_time})
    told = [record(0, 0, 0.1), record(1, 9)]
    one, two = (saved("hfl", told, seed=seed, code={"mine": str(seed)}) for seed in (0, 1))
    fedavg = saved("fedavg", told, algorithm="FedAvg()")
    page = write_report(write(tmp_path, one, two, fedavg)).read_text()
    for line in (
        "The algorithms have different seeds (hfl has seeds 0 and 1; fedavg has seed 0): every seed has other data",
        "hfl: its seeds were not computed by the same code (mine differ).",
    ):
        assert line in page
        assert line in caplog.text
    caplog.clear()
    write_report(write(tmp_path / "same", one, fedavg))
    assert caplog.text == ""


def test_losses_of_one_name_and_other_code_are_said_in_the_page_and_in_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(plots, "FIGURES", {"accuracy-time": plots.accuracy_time})
    task = {"name": "toy", "devices": 3, "loss": "focal", "model": "Net()"}
    runs = [
        saved(name, [record(0, 0), record(1, 9)], task=task, code={"loss": name, "model": "m"}) for name in ("a", "b")
    ]
    page = write_report(write(tmp_path, *runs)).read_text()
    line = "The loss of a and that of b are both written 'focal' and are not the same code"
    assert escape(line) in page
    assert line in caplog.text


def test_the_percents_of_a_staleness_cell_can_be_read_on_it() -> None:
    figure = staleness_figure(comparison())[""]
    heatmap, written = figure["data"]
    assert "texttemplate" not in heatmap, "plotly.js chooses grey on a light blue cell of the dark page"
    for text, colour in zip(written["text"], written["textfont"]["color"], strict=True):
        assert colour == ("#FFFFFF" if int(text) >= 65 else "#000000")
    assert {"67", "33"} <= set(written["text"])


def test_a_figure_that_scrolls_says_so() -> None:
    page = Page(render(comparison()))
    frames = [values for tag, values in page.tags if values.get("class") == "frame"]
    assert len(frames) == len(page.figures)


LEARNT = [record(0, 0, 0.1), record(1, 10)]


@pytest.mark.parametrize(
    ("runs", "line"),
    [
        (
            [saved("hfl", LEARNT), saved("fedavg", LEARNT, guard="Guard(norm=10)")],
            "The algorithms did not run behind the same guard: hfl without a guard; fedavg with Guard(norm=10).",
        ),
        (
            [saved("hfl", LEARNT, seed=seed, versions={"hybridfl": f"1.{seed}", "torch": "2"}) for seed in (0, 1)],
            "hfl: its seeds were not computed by the same versions (hybridfl 1.0 for seed 0; hybridfl 1.1 for seed 1).",
        ),
        (
            [
                saved("hfl", LEARNT, seed=seed, versions={"hybridfl": "1", "python": str(seed)} | numba)
                for seed, numba in enumerate(({}, {}, {"numba": "0.6"}))
            ],
            "hfl: its seeds were not computed by the same versions (numba none for seeds 0 and 1; numba 0.6 for seed 2).",
        ),
        (
            [saved("hfl", [record(0, 0, 0.3), record(1, 10, 0.4)])],
            "The target of 20.0 % is not above the 30.0 % by sample that the first model reaches, which nobody trained: "
            "0 seconds to it are no merit. Give a higher --target.",
        ),
    ],
)
def test_what_a_comparison_rests_on_is_said_in_the_page_and_in_the_terminal(
    runs: list[SavedRun],
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(plots, "FIGURES", {"accuracy-time": plots.accuracy_time})
    page = write_report(write(tmp_path, *runs), target=0.2).read_text()
    assert f'<p class="warning">{line}</p>' in page
    assert caplog.messages == [line]


def test_nothing_is_said_of_one_guard_and_of_packages_that_only_stand_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(plots, "FIGURES", {"accuracy-time": plots.accuracy_time})
    runs = [saved("hfl", LEARNT, seed=seed, versions={"hybridfl": "1", "numpy": str(seed)}) for seed in (0, 1)]
    others = [saved("fedavg", LEARNT, seed=seed, guard="None") for seed in (0, 1)]
    write_report(write(tmp_path, *runs, *others), target=0.2)
    assert caplog.messages == []


def test_the_headline_of_runs_that_have_not_ended_says_so_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(plots, "FIGURES", {"accuracy-time": plots.accuracy_time})
    hfl = replace(saved("hfl", [record(0, 0, 0.1), record(1, 4)]), is_finished=False)
    fedavg = saved("fedavg", LEARNT, algorithm="FedAvg()")
    line = (
        "Not finished: 1 of 2 runs has not ended (hfl, seed 0, at 4 of 10 virtual seconds). Figures are of what was recorded "
        "until then, and say neither who is ahead nor how long anything takes."
    )
    page = write_report(write(tmp_path, hfl, fedavg)).read_text()
    assert line in page
    for claim in ("is the first at the target", "as long", "ends at a test accuracy"):
        assert claim not in Page(page).text
    assert caplog.messages == [line]


def test_the_legend_says_how_fine_the_seconds_are() -> None:
    assert "those of the first record that reaches it, and no finer than the records (--evaluate-every)." in render(
        comparison()
    )
