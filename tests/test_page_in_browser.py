"""The report in a real browser, offline: hostile texts are text, the page's own scripts run, and nothing else does."""

import base64
import hashlib
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import hostile_texts
from hybridfl.records import Arrival, DeviceScore, SavedRun
from hybridfl.report import render
from saved_runs import comparison, record, saved

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here")

OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--enable-logging=stderr", "--virtual-time-budget=120000"),
)

WATCH = """
document.documentElement.dataset.forbidden = "";
addEventListener("securitypolicyviolation", (event) => {
  document.documentElement.dataset.forbidden += event.effectiveDirective + " " + event.sample + ";";
});
addEventListener("error", (event) => { document.documentElement.dataset.failed = event.message; });
"""
"""Runs first, and says what the policy forbids."""

USE = """
const said = document.documentElement.dataset;
const plots = [...document.querySelectorAll(".plot")];
said.drawn = plots.filter((plot) => plot.querySelector("svg.main-svg")).length + "/" + plots.length;
const hovered = new Set();
const point = async (plot, type) => { // what a pointer on each of the points shows, one every 60 ms
  for (const [curve, trace] of plot.data.entries()) {
    for (const number of trace.type === type && !trace.hoverinfo ? [0, 1, 2] : []) {
      Plotly.Fx.hover(plot, [{ curveNumber: curve, pointNumber: number }]);
      for (const each of plot.querySelectorAll(".hoverlayer text")) hovered.add(each.textContent);
      await new Promise((go) => setTimeout(go, 60));
    }
  }
};
const use = async () => {
let changed = 0;
for (const input of document.querySelectorAll("fieldset input")) {
  const plot = input.closest("section").querySelector(".plot"), before = JSON.stringify(plot.data);
  input.click();
  if (JSON.stringify(plot.data) !== before) changed += 1;
  if (input.closest("[data-panel=timeline]")) await point(plot, "bar");
}
said.changed = changed;
for (const plot of plots.slice(0, 3)) await point(plot, "scatter");
said.hovered = [...hovered].join(" | ");
plots[0].querySelector(".legendtoggle").dispatchEvent(new MouseEvent("mousedown", { bubbles: true }));
document.dispatchEvent(new MouseEvent("mouseup", { bubbles: true }));
for (const link of document.querySelectorAll("a")) if (!link.href.endsWith("/figures/")) said.links = link.href;
said.done = 1;
};
use();
"""
"""Runs last: presses every button, and points at everything."""


class Browser(HTMLParser):
    """What became of a page: what its root says of it, and its text."""

    def __init__(self, folder: Path, page: str) -> None:
        super().__init__()
        self.root: dict[str, str | None] = {}
        self.tags: list[str] = []
        self.text = ""
        path = folder / "page.html"
        path.write_text(page, encoding="utf-8")
        assert BROWSER is not None
        done = subprocess.run(
            [BROWSER, *OPTIONS, f"--user-data-dir={folder / 'profile'}", "--dump-dom", path.as_uri()],
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
        self.console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        self.feed(done.stdout)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == "html":
            self.root = {name.removeprefix("data-"): value for name, value in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def watched(page: str) -> str:
    """The page with our two scripts in it, which its policy is told of."""
    page = page.replace("script-src ", f"script-src {digest(WATCH)} {digest(USE)} ", 1)
    page = re.sub(r'(<meta charset="utf-8">\n(?:<meta http-equiv[^>]*>\n)?)', rf"\1<script>{WATCH}</script>", page)
    return page.replace("</body>", f"<script>{USE}</script></body>")


def without_policy(page: str) -> str:
    found = re.sub(r"<meta http-equiv[^>]*>\n", "", page)
    assert found != page
    return found


def evil_runs(as_devices: bool) -> list[SavedRun]:
    """Every text of every run is hostile, in each run another one; also where a folder's texts would have been refused."""
    runs = []
    evils = [text for text in [*hostile_texts.HARMLESS_AS_SHOWN.values(), *hostile_texts.REFUSED.values()] if text]
    for place, evil in enumerate(evils):
        devices: Any = (evil, evil + "2", 2) if as_devices else (0, 1, 2)
        config = hostile_texts.files(evil)["run.json"][0]
        task = {**config["task"], "name": hostile_texts.HARMLESS_AS_SHOWN["script"], "test_samples": 0}
        run = saved(
            evil,
            [record(0, 0, 0.1), record(1, 9, 0.5 + place / 100, lost=1, refused=1)],
            [
                Arrival(devices[0], 0, 0, 1, 0, discarded=evil),
                Arrival(devices[1], 0, 0, 2, 0, refused=evil),
                Arrival(devices[2], 0, 0, 3, 0, lost=evil),
                Arrival(devices[0], 1, 1, 4, 1),
            ],
            algorithm=evil,
            **{name: config[name] for name in ("traces", "guard", "code", "versions", "of a later version")},
            **dict[str, Any]({evil + " key": evil}),
        )
        timing = {"task": {**task, "notes": [evil]}, "timing": "PaperDelays()", "seed": 0}
        scores = tuple(DeviceScore(device, 0.1 * device, 3, device > 0) for device in range(3))
        runs.append(replace(run, config={**run.config, **timing}, devices=scores))
    return runs


@pytest.fixture(scope="module", params=[False, True], ids=["devices are numbers", "devices are texts"])
def evil_page(request: pytest.FixtureRequest) -> str:
    return render(evil_runs(request.param))


@pytest.mark.parametrize("has_policy", [True, False])
def test_no_script_of_a_folder_s_texts_runs(evil_page: str, has_policy: bool, tmp_path: Path) -> None:
    """Not even without the policy, which is there for what we do not know of."""
    found = Browser(tmp_path, watched(evil_page) if has_policy else watched(without_policy(evil_page)))
    assert "ran" not in found.root
    assert "links" not in found.root
    assert found.root["forbidden"] == ""
    assert "failed" not in found.root
    assert "done" in found.root
    assert found.root["drawn"] == "5/5"
    assert not {"img", "iframe", "object", "embed", "form", "base"} & {*found.tags}
    assert hostile_texts.HARMLESS_AS_SHOWN["script"] in found.text, "it is there to read"
    assert hostile_texts.HARMLESS_AS_SHOWN["written twice"] in found.text
    hovered = found.root["hovered"] or ""
    for fate in ("discarded", "refused", "lost"):
        assert f"{fate}: {hostile_texts.HARMLESS_AS_SHOWN['script']}" in hovered, "also beside the pointer"
    assert rf"lost: {hostile_texts.HARMLESS_AS_SHOWN['template']}" in hovered


def test_the_page_works_and_its_policy_forbids_nothing_of_it(tmp_path: Path) -> None:
    scores = (DeviceScore(0, 0.3, 5, False), DeviceScore(1, 0.6, 3, True))
    found = Browser(tmp_path, watched(render([replace(run, devices=scores) for run in comparison()])))
    assert found.console == []
    assert found.root["forbidden"] == ""
    assert "failed" not in found.root
    assert "done" in found.root
    assert found.root["drawn"] == "5/5"
    assert int(found.root["changed"] or 0) >= 8, "every button but those that were pressed changes a figure"
    assert "hfl" in (found.root["hovered"] or "")
    assert "image" in found.tags, "the heatmap"


@pytest.mark.parametrize("has_policy", [True, False])
def test_what_would_get_into_the_page_all_the_same_does_not_run(has_policy: bool, tmp_path: Path) -> None:
    """With the policy; and without it, it would: so these tests would see it."""
    page = render(comparison()).replace("</header>", hostile_texts.HARMLESS_AS_SHOWN["image"] + "</header>")
    page = page.replace("</header>", hostile_texts.HARMLESS_AS_SHOWN["script"] + "</header>")
    found = Browser(tmp_path, page if has_policy else without_policy(page))
    assert ("ran" in found.root) != has_policy
