"""What an import costs, and the first call of a kernel: cold cache, and warm cache in a new process.

python benchmarks/imports.py [--short]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
TIMED = """
import time
{before}
wall, cpu = time.perf_counter(), time.process_time()
{statement}
print(time.perf_counter() - wall, time.process_time() - cpu)
"""
READY = """
import numpy as np, scipy.linalg
from gramian import kernels
from gramian.kernels.all_pairs import neighbour_gradient
rng = np.random.default_rng(0)
covariates = rng.random((50, 10))
subspaces = np.linalg.qr(rng.standard_normal((20, 12, 3)))[0]
bits = rng.integers(0, 256, (50, 64)).astype(np.uint8)
points, labels = 100 * covariates, rng.integers(0, 3, 50)
"""
KERNELS = {
    "HAL": "kernels.hal_kernel(covariates)",
    "HAL, degree 2": "kernels.hal_kernel(covariates, max_degree=2)",
    "periodic": "kernels.periodic_kernel(subspaces, omega=1.0)",
    "Hamming": "kernels.hamming_kernel(bits, n_bits=512)",
    "NCA, float64": "neighbour_gradient(points, labels)",
    "NCA, float32": "neighbour_gradient(points.astype(np.float32), labels)",
}


def seconds(statement: str, before: str = "", **environment: str) -> tuple[float, ...]:
    """Of one statement in a fresh interpreter: wall and CPU."""
    done = subprocess.run(
        [sys.executable, "-c", TIMED.format(before=before, statement=statement)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return tuple(float(word) for word in done.stdout.split()[-2:])


def medians(turns: list[tuple[float, ...]]) -> list[float]:
    return [statistics.median(column) for column in zip(*turns, strict=True)]


def first_calls(call: str) -> tuple[float, ...]:
    """Cold and warm: wall and CPU of each."""
    with tempfile.TemporaryDirectory() as cache:
        return sum((seconds(call, READY, NUMBA_CACHE_DIR=cache) for _ in range(2)), ())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--short", action="store_true", help="3 turns")
    turns = 3 if parser.parse_args().short else 7
    print("| what | gramian | peer | ratio |\n|---|---|---|---|")
    for statement in ("import gramian", "import gramian.kernels", "import numpy"):
        wall, cpu = medians([seconds(statement) for _ in range(turns + 1)][1:])
        print(f"| {statement} | {wall:.3f} s ({cpu:.3f} CPU) | – | – |", flush=True)
    for name, call in KERNELS.items():
        cold, cold_cpu, warm, warm_cpu = medians([first_calls(call) for _ in range(turns)])
        print(
            f"| first call, {name}: cold cache; warm, in a new process "
            f"| {cold:.2f} s ({cold_cpu:.2f} CPU); {warm:.2f} s ({warm_cpu:.2f} CPU) | – | – |",
            flush=True,
        )


if __name__ == "__main__":
    main()
