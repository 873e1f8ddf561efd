from dataclasses import replace

import pytest

from hybridfl.summary import baseline_name, measure_of, summarise
from hybridfl.summary_table import json_row, print_table
from saved_runs import comparison, fair, record, saved

LABELS = ("hfl-as-printed", "FedBuff(buffer=20, server_rate=0.5)")


def shown(capsys: pytest.CaptureFixture[str], labels: tuple[str, ...] = LABELS, fedavg: bool = True) -> str:
    runs = [fair(seed, 0.3, label) for seed in (0, 1) for label in labels]
    base = [replace(run, config={**run.config, "algorithm": "FedAvg()"}) for run in (fair(0, 0.5, "fedavg"),)]
    runs += base if fedavg else []
    print_table(summarise(runs, 0.5), 0.5, "toy", measure_of(runs), (), baseline_name(runs))
    return capsys.readouterr().out


@pytest.mark.parametrize("width", [40, 60, 62, 72, 80, 120])
def test_a_table_keeps_its_names_and_all_columns_on_a_narrow_terminal(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    text = shown(capsys)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    for word in ("Algorithm", "hfl-as-printed", "by device", "tenth", "chance", "by sample", "to 50.0%", "carded"):
        assert word in text
    assert text.count("Algorithm") == text.count("hfl-as-printed") == (1 if width >= 80 else text.count("Algorithm"))


def test_the_caption_says_what_is_averaged_and_over_whose_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = " ".join(shown(capsys).split())
    assert "Means over the records of the last 15 % of virtual time" in text
    assert "speed-up: FedAvg's over these." in text
    assert "Seconds: of the first record at that accuracy by sample, no finer than records (--evaluate-every)" in text
    alone = " ".join(shown(capsys, fedavg=False).split())
    assert "peed-" not in alone
    assert "FedAvg" not in alone


def test_few_seconds_have_a_decimal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    runs = [saved("a", [record(1, 2.5, 0.5)]), saved("b", [record(1, 1234.5, 0.5)]), saved("c", [record(1, 9.96, 0.5)])]
    print_table(summarise(runs, 0.5), 0.5, "toy", measure_of(runs), (), None)
    cells = {
        line.split()[0]: line.split()[2]
        for line in capsys.readouterr().out.splitlines()
        if line[:2] in (" a", " b", " c")
    }
    assert cells == {"a": "2.5", "b": "1,234", "c": "10"}


def test_json_has_the_bound_where_the_table_has() -> None:
    row = next(json_row(row) for row in summarise(comparison(), 0.5) if row.algorithm == "hfl")
    assert (row["speedup"], row["speedup_bound"]) == (None, 10.0)
