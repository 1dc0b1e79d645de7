"""Timing in turns: both sides on one core, one after the other, as often as asked; medians of the turns."""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"):
    os.environ[variable] = "1"  # before NumPy is imported

Seconds = tuple[float, float]  # wall, CPU


def one_core() -> None:
    """Stay on one core, where the system lets a process choose."""
    with contextlib.suppress(AttributeError):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def seconds(call: Callable[[], Any], clock: Callable[[], float] = time.process_time) -> Seconds:
    """Wall and CPU seconds of one call."""
    wall, cpu = time.perf_counter(), clock()
    call()
    return time.perf_counter() - wall, clock() - cpu


def medians(
    sides: dict[str, Callable[[], Any]], turns: int, clock: Callable[[], float] = time.process_time
) -> dict[str, Seconds]:
    """Each side once for warmth, then all in turns."""
    for call in sides.values():
        call()
    times: dict[str, list[Seconds]] = {name: [] for name in sides}
    for _ in range(turns):
        for name, call in sides.items():
            times[name].append(seconds(call, clock))
    return {
        name: (statistics.median(t[0] for t in row), statistics.median(t[1] for t in row))
        for name, row in times.items()
    }


def text(measured: Seconds) -> str:
    """Wall and CPU seconds for a table."""
    wall, cpu = measured
    return f"{wall * 1e3:.1f} ms ({cpu * 1e3:.1f} CPU)" if wall < 1 else f"{wall:.2f} s ({cpu:.2f} CPU)"
