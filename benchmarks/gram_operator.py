"""Memory of K @ Omega from Zarr as the rows double, and the exact HAL Gram matrix written to Zarr.

python benchmarks/gram_operator.py [--short] [--folder DIR]

Each figure comes from a process of its own, with the workers it starts; its peak is the largest sum of
resident sizes over the whole tree, looked at twenty times a second. The product is checked against some rows
of K, the matrix against some of its entries.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import zarr

COVARIATES, KNOTS, COLUMNS, CHUNK = 8, 256, 32, 4096
LIMIT = "700MiB"  # of each of the two workers
MIB = 1 << 20


# ----------------------------------------------------------------------- what a process of its own does


def product(folder: Path, rows: int) -> dict[str, float]:
    from gramian import GramOperator, cluster
    from gramian.kernels import hal_kernel

    X = zarr.open_array(str(folder / f"{rows}.zarr"), mode="r")
    V = np.random.default_rng(1).standard_normal((rows, COLUMNS))
    with cluster.local(2, 1, LIMIT):
        operator = GramOperator(X, kernel="hal", n_knots=KNOTS)
        planned = operator.plan(COLUMNS).total_bytes(2, 1)
        start = time.perf_counter()
        image = operator @ V
        wall = time.perf_counter() - start
    wanted = hal_kernel(X[:5], X[:], knots=operator.params["knots"]) @ V
    np.testing.assert_allclose(image[:5], wanted, rtol=1e-9, atol=1e-9 * np.abs(wanted).max())
    return {"wall": wall, "planned": planned}


def exact(folder: Path, rows: int) -> dict[str, float]:
    from gramian import cluster, gram
    from gramian.kernels import hal_kernel

    X = zarr.open_array(str(folder / f"{rows}.zarr"), mode="r")
    with cluster.local(2, 1, LIMIT):
        start = time.perf_counter()
        K = gram(X, kernel="hal", out=folder / "gram.zarr", force=True)
        wall = time.perf_counter() - start
    some = np.random.default_rng(2).integers(0, rows, 5)
    blocks = [[K[i, j] for j in some] for i in some]
    np.testing.assert_array_equal(blocks, hal_kernel(X[:][some], knots=X[:]))
    return {"wall": wall}


CHILDREN = {"product": product, "exact": exact}


# ------------------------------------------------------------------------------------------- measuring


def measured(what: str, folder: Path, rows: int) -> dict[str, float]:
    """What a child says, and the peak of its process tree."""
    with subprocess.Popen(
        [sys.executable, __file__, "--child", what, str(folder), str(rows)], stdout=subprocess.PIPE, text=True
    ) as child:
        peak = 0
        while child.poll() is None:
            peak = max(peak, tree_bytes(child.pid))
            time.sleep(0.05)
        said = child.stdout.read() if child.stdout else ""
    if child.returncode:
        raise SystemExit(f"{what} of {rows} rows failed")
    return {**json.loads(said.splitlines()[-1]), "peak": peak}


def tree_bytes(pid: int) -> int:
    total = 0
    try:
        root = psutil.Process(pid)
        members = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    for member in members:
        try:
            total += member.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total


def generate(folder: Path, rows: int) -> None:
    """Rows in Zarr, chunk by chunk."""
    array = zarr.create_array(
        str(folder / f"{rows}.zarr"), shape=(rows, COVARIATES), dtype="f8", chunks=(CHUNK, COVARIATES)
    )
    rng = np.random.default_rng(0)
    for start in range(0, rows, CHUNK):
        stop = min(rows, start + CHUNK)
        array[start:stop] = rng.standard_normal((stop - start, COVARIATES))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--folder", type=Path, help="where data goes; 8 GB without --short")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    words: Any = parser.parse_args()
    if words.child:
        what, folder, rows = words.child
        print(json.dumps(CHILDREN[what](Path(folder), int(rows))))
        return
    sizes = [10_000, 20_000, 40_000] if words.short else [25_000, 50_000, 100_000]
    size = 8_000 if words.short else 30_000
    with tempfile.TemporaryDirectory(dir=words.folder) as name:
        folder = Path(name)
        for rows in {*sizes, size}:
            generate(folder, rows)
        print(
            "| what | wall | peak of the process tree | planned | against the first |\n|---|---|---|---|---|"
        )
        first = 0.0
        for rows in sizes:
            seen = measured("product", folder, rows)
            first = first or seen["peak"]
            print(
                f"| K @ Omega, HAL, {rows:,} x {COVARIATES}, {KNOTS} knots, {COLUMNS} columns, 2 workers "
                f"| {seen['wall']:.1f} s | {seen['peak'] / MIB:.0f} MiB | {seen['planned'] / MIB:.0f} MiB "
                f"| {seen['peak'] / first:.3f} |"
            )
        seen = measured("exact", folder, size)
        pairs = size**3 / 2 / seen["wall"] / 1e9
        print(
            f"| exact HAL Gram to Zarr, {size:,} x {COVARIATES}, all rows as knots, 2 workers "
            f"| {seen['wall']:.1f} s ({pairs:.0f} G pair-knots/s) | {seen['peak'] / MIB:.0f} MiB | | |"
        )


if __name__ == "__main__":
    main()
