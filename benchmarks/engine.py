"""Overhead of an empty task against Dask's own map and gather; two workers against one.

python benchmarks/engine.py [--short]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from gramian import cluster, engine
from gramian.blocks import Grid
from gramian.dispatch import completed


def nothing(index: int) -> int:
    return index


def work(block: np.ndarray) -> tuple[np.ndarray, ...]:
    """About a tenth of a second of one core."""
    total = block
    for _ in range(12):
        total = np.tanh(total @ (block.T @ block) * 1e-3)
    return (total.sum(axis=0),)


def seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def overhead(tasks: int, repeats: int) -> str:
    with cluster.local(1, 1, "1GiB") as client:
        pairs = [
            (
                seconds(lambda: drain(client, tasks)),
                seconds(lambda: client.gather(client.map(nothing, range(tasks), pure=False))),
            )
            for _ in range(repeats + 1)
        ][1:]
    a, b = (statistics.median(side) / tasks * 1e3 for side in zip(*pairs, strict=True))
    ratio = statistics.median(x / y for x, y in pairs)
    return f"| engine overhead per empty task | {a:.2f} ms | {b:.2f} ms (client.map, gather) | {ratio:.2f}x |"


def drain(client: Any, tasks: int) -> None:
    seen = sum(result for _, result in completed(nothing, ((i,) for i in range(tasks)), client=client))
    assert seen == tasks * (tasks - 1) // 2


def scaling(blocks: int, repeats: int, folder: Path) -> str:
    rows = np.random.default_rng(0).standard_normal((blocks * 2000, 200))
    array = zarr.create_array(str(folder / "x.zarr"), shape=rows.shape, dtype="f8", chunks=(2000, 200))
    array[:] = rows
    grid, times, sums = Grid(len(rows), 2000), {1: [], 2: []}, []
    for _ in range(repeats):
        for workers in (1, 2):
            with cluster.local(workers, 1, "1GiB"):
                engine.row_sum(work, Grid(4000, 2000), array[:4000][:])
                engine.row_sum(work, grid, array)
                times[workers].append(seconds(lambda: sums.append(engine.row_sum(work, grid, array)[0])))
    assert all(np.array_equal(sums[0], other) for other in sums)
    one, two = (statistics.median(times[workers]) for workers in (1, 2))
    return (
        f"| two workers against one, equal bits | {two:.2f} s | {one:.2f} s (one worker) | {one / two:.2f}x |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true")
    short = parser.parse_args().short
    with tempfile.TemporaryDirectory() as name:
        print("| what | gramian | peer | ratio |\n|---|---|---|---|")
        print(overhead(500 if short else 2000, 3 if short else 7))
        print(scaling(20 if short else 60, 2 if short else 5, Path(name)))


if __name__ == "__main__":
    main()
