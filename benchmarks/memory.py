"""Memory is a contract: planned, kept, and flat in the number of rows.

    python benchmarks/memory.py regression      # N, 2N, 4N rows on two workers of 700 MiB
    python benchmarks/memory.py featurize       # at least 6 GiB of subspaces within 2 GiB
    python benchmarks/memory.py nca             # 1,000,000 x 50: exact, and by mini-batches, in 2 GiB
    python benchmarks/memory.py [--short]       # all

Data is generated where `--folder` says and removed afterwards. Exit code 1 if a promise is broken.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from gramian import load_model
from gramian.blocks import Grid, size_text
from gramian.store.layout import create_array, create_store
from gramian.store.writer import write_block

MIB = 1 << 20


def tree_bytes(process: psutil.Process) -> int:
    """Resident size of a process and all that it has started."""
    total = 0
    with suppress(psutil.Error):
        for one in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):
                total += one.memory_info().rss
    return total


def measured(*words: str) -> tuple[dict[str, Any], int, float]:
    """Run a command of gramian: what it says, the peak of its process tree, its seconds."""
    start, peak = time.perf_counter(), 0
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "gramian.cli", *words, "--quiet", "--json"], stdout=out
        )
        watched = psutil.Process(process.pid)
        while process.poll() is None:
            peak = max(peak, tree_bytes(watched))
            time.sleep(0.02)
        if process.returncode:
            raise SystemExit(f"{' '.join(words)} ended with {process.returncode}")
        out.seek(0)
        return json.loads(out.read()), peak, time.perf_counter() - start


def covariates(path: Path, rows: int) -> None:
    """(rows, 8) normal covariates and a smooth target, written block by block."""
    group = create_store(str(path), "dataset")
    grid = Grid(rows, 1 << 16)
    X = create_array(group, "covariates", (rows, 8), np.dtype("f8"), (grid, Grid(8, 8)))
    y = create_array(group, "target", (rows,), np.dtype("f8"), (grid,))
    for index in range(len(grid)):
        rng = np.random.default_rng([0, index])
        block = rng.standard_normal((grid.length(index), 8))
        write_block(X, (index, 0), block)
        noise = 0.1 * rng.standard_normal(len(block))
        write_block(y, (index,), np.sin(block[:, 0]) + block[:, 1] * block[:, 2] + noise)


def subspaces(path: Path, size: int, n: int = 1024, k: int = 4) -> int:
    """At least ``size`` bytes of random float32 bases (N, n, k), written block by block; N."""
    rows = -(-size // (4 * n * k))
    group = create_store(str(path), "dataset")
    grid = Grid(rows, 256)
    U = create_array(group, "subspaces", (rows, n, k), np.dtype("f4"), (grid, Grid(n, n), Grid(k, k)))
    for index in range(len(grid)):
        draws = np.random.default_rng([1, index]).standard_normal((grid.length(index), n, k))
        write_block(U, (index, 0, 0), np.linalg.qr(draws)[0].astype("f4"))
    return rows


def classes(path: Path, rows: int, d: int = 50) -> None:
    """(rows, d) float32 covariates of ten classes that ten columns tell apart; a tenth is for testing."""
    group = create_store(str(path), "dataset")
    grid = Grid(rows, 1 << 15)
    X = create_array(group, "covariates", (rows, d), np.dtype("f4"), (grid, Grid(d, d)))
    sides = {
        name: create_array(group, name, (rows,), np.dtype("i8"), (grid,)) for name in ("labels", "split")
    }
    centres = 1.2 * np.random.default_rng(2).standard_normal((10, d)) * (np.arange(d) < 10)
    for index in range(len(grid)):
        rng = np.random.default_rng([2, index])
        labels = rng.integers(0, 10, grid.length(index))
        draws = rng.standard_normal((len(labels), d)) * np.where(np.arange(d) < 10, 1.0, 3.0)
        write_block(X, (index, 0), (centres[labels] + draws).astype("f4"))
        write_block(sides["labels"], (index,), labels)
        write_block(sides["split"], (index,), (rng.random(len(labels)) < 0.1).astype("i8"))


def line(what: str, planned: int, peak: int, seconds: float) -> bool:
    kept = peak <= planned <= 2 * peak
    print(
        f"| {what} | {size_text(planned)} | {size_text(peak)} | {planned / peak:.2f} | {seconds:.1f} s | "
        f"{'kept' if kept else 'BROKEN'} |",
        flush=True,
    )
    return kept


def regression(folder: Path, rows: int) -> bool:
    good, peaks = True, []
    for count in (rows, 2 * rows, 4 * rows):
        data = folder / f"{count}.zarr"
        covariates(data, count)
        words = ["fit", str(data), "--model", "pchar", "--out", str(folder / f"{count}.model.zarr")]
        settings = ["--set", "n_knots=256", "--set", "n_landmarks=256", "--set", "n_components=256"]
        place = ["--set", "random_state=0", "--workers", "2", "--threads", "1", "--memory-limit", "700MiB"]
        facts, peak, seconds = measured(*words, *settings, *place)
        good &= line(f"PCHAR, {count:,} x 8, 256 knots", facts["planned_bytes"], peak, seconds)
        peaks.append(peak)
        shutil.rmtree(data)
    flat = max(peaks) <= 1.1 * min(peaks)
    print(
        f"| largest against smallest | | | {max(peaks) / min(peaks):.3f} | | {'kept' if flat else 'BROKEN'} |"
    )
    return good and flat


def featurize(folder: Path, size: int) -> bool:
    data = folder / "subspaces.zarr"
    rows = subspaces(data, size)
    words = ["featurize", str(data), "--features", "periodic", "--out", str(folder / "features.zarr")]
    settings = ["--set", "n_projections=512", "--set", "random_state=0"]
    place = ["--max-memory", "2GiB", "--workers", "2", "--threads", "1", "--memory-limit", "700MiB"]
    facts, peak, seconds = measured(*words, *settings, *place)
    good = line(
        f"periodic features, {rows:,} subspaces, {size_text(size)}", facts["planned_bytes"], peak, seconds
    )
    return good and peak <= 2048 * MIB


def nca(folder: Path, rows: int) -> bool:
    data = folder / "classes.zarr"
    classes(data, rows)
    place = ["--max-memory", "2GiB", "--workers", "2", "--threads", "1"]
    good = True
    for solver, iterations, c in (("minibatch", 3, 5), ("lbfgs", 1, 2)):
        model = folder / f"{solver}.zarr"
        words = ["fit", str(data), "--model", "nca", "--rows", "train", "--out", str(model)]
        settings = {
            "solver": solver,
            "n_components": c,
            "init": "pca",
            "max_iter": iterations,
            "random_state": 0,
        }
        given = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        facts, peak, seconds = measured(*words, *given, *place)
        what = f"NCA, {rows:,} x 50, {c} components, {solver}, {iterations} iteration(s)"
        good &= line(what, facts["planned_bytes"], peak, seconds) and peak <= 2048 * MIB
        history = load_model(model).objective_history_ / (0.9 * rows)
        print(f"| objective a row: {', '.join(f'{value:.4f}' for value in history)} | | | | | |", flush=True)
    return good


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", choices=["regression", "featurize", "nca"])
    parser.add_argument("--short", action="store_true", help="a tenth of the rows")
    parser.add_argument("--folder", help="where the data goes, default the system's temporary folder")
    options = parser.parse_args()
    share = 10 if options.short else 1
    jobs: dict[str, Callable[[Path], bool]] = {
        "regression": lambda folder: regression(folder, 200_000 // share),
        "featurize": lambda folder: featurize(folder, (6 << 30) // share),
        "nca": lambda folder: nca(folder, 1_000_000 // share),
    }
    print("| job | planned peak | measured peak | ratio | time | promise |\n|---|---|---|---|---|---|")
    good = True
    for name in [options.what] if options.what else list(jobs):
        with tempfile.TemporaryDirectory(prefix="gramian-memory-", dir=options.folder) as folder:
            good &= jobs[name](Path(folder))
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
