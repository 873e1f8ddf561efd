"""How much memory is free, here or on a GPU."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from hybridfl.errors import InputError
from hybridfl.wording import in_bytes

_UNLIMITED = 1 << 60


def free_bytes(device: torch.device) -> int:
    """What can still be used before somebody is killed for it: the machine's, and the container's where there is one."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return min(_of_machine(), _of_container())


def check_room(name: str, count: int, bytes_each: float, otherwise: str = "") -> None:
    """Raise `InputError` if a number of devices, say, needs more memory than is free; `otherwise`: what else would help."""
    free = free_bytes(torch.device("cpu"))
    if count * bytes_each > free:
        remedy = (
            f"ask for {_two_digits(free / bytes_each):,} at most{otherwise}" if bytes_each <= free else "use less data"
        )
        raise InputError(
            f"{name}={count:,} would need about {in_bytes(count * bytes_each)} of memory, and {in_bytes(free)} are free: "
            f"{remedy}."
        )


def _two_digits(value: float) -> int:
    """Rounded down: 52,345 is 52,000."""
    size = int(10 ** max(0, len(str(int(value))) - 2))
    return int(value) // size * size


def _of_machine() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (ValueError, OSError, AttributeError):
        return 4 << 30


def _of_container(folder: Path = Path("/sys/fs/cgroup")) -> int:
    """Control groups, version 2: the limit less what is used, without what is only cached files."""
    try:
        limit = (folder / "memory.max").read_text().strip()
        if limit == "max":
            return _UNLIMITED
        statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        used = int((folder / "memory.current").read_text()) - int(statistics.get("inactive_file", 0))
        return max(0, int(limit) - used)
    except (OSError, ValueError):
        return _UNLIMITED
