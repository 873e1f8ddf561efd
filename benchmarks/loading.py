"""How long each task takes to load and how much memory it needs: `python benchmarks/loading.py`.

Every task is built in a process of its own: seconds from the files to a task of 100 devices (1,129 for all of
Shakespeare), the memory this added at its peak, and the seconds to build it again with another seed.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from hybridfl.data.packed import open_packed
from hybridfl.data.store import locate

TASKS = {
    "synthetic": 100,
    "mnist": 100,
    "fashion-mnist": 100,
    "shakespeare": 1129,
    "shakespeare-paper": 100,
    "sent140": 100,
}


def peak_megabytes() -> float:
    """The most memory this process has held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(name: str, devices: int) -> str:
    """One row of the table."""
    from hybridfl.spelling import read_task

    recipe = read_task(name)
    at_rest = peak_megabytes()
    started = time.perf_counter()
    task = recipe.build(devices, 0)
    loaded = time.perf_counter()
    recipe.build(devices, 1)
    again = time.perf_counter()
    samples = len(task.train.index) + len(task.test.index)
    return (
        f"| {name} | {devices:,} | {samples:,} | {loaded - started:.2f} s | {again - loaded:.2f} s "
        f"| {peak_megabytes() - at_rest:.0f} MB |"
    )


def of_full_length(folder: Path) -> None:
    """A Sent140 file of 1,600,000 rows: those that are here over and over, under other users' names."""
    with open_packed(locate("sent140")[0], "noemoticon.csv") as file:
        rows = [line.rstrip().split(b'","', 5) for line in file]
    (folder / "sent140").mkdir()
    with (folder / "sent140" / "training.1600000.processed.noemoticon.csv").open("wb") as out:
        for number in range(1_600_000):
            target, tweet, date, query, user, text = rows[number % len(rows)]
            out.write(b'","'.join([target, tweet, date, query, user + b"%d" % (number // len(rows)), text]) + b"\n")


def main() -> None:
    """Print the table."""
    print("| task | devices | samples | first time | another seed | memory |\n|---|---|---|---|---|---|", flush=True)
    for name in TASKS:
        subprocess.run([sys.executable, __file__, name], check=True)
    print("The last again, with a file of the full length:", flush=True)
    with TemporaryDirectory() as folder:
        of_full_length(Path(folder))
        elsewhere = os.environ | {"HYBRIDFL_DATA": folder}
        subprocess.run([sys.executable, __file__, "sent140"], check=True, env=elsewhere)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        print(measure(sys.argv[1], TASKS[sys.argv[1]]), flush=True)
    else:
        main()
