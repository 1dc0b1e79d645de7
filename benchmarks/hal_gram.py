"""HAL Gram matrices against hapc 2.7.1, one thread, whole call; equal before anything is timed.

python benchmarks/hal_gram.py [--short] [--forms native,avx2,sse2,plain]

The peer gets an environment of its own in .cache/benchmarks. Both sides run in processes that own one and the
same core, in turns; each figure is a median of turns, wall seconds with CPU seconds behind.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

PEER = "hapc==2.7.1"
ROOT = Path(__file__).parents[1]
ENVIRONMENT = ROOT / ".cache" / "benchmarks" / PEER.replace("==", "-")
CASES = ((5, 5), (10, 10), (20, 20), (20, 2), (20, 3), (40, 2), (40, 3))
FORMS = {
    "native": {},
    "avx2": {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": ""},
    "sse2": {"NUMBA_CPU_NAME": "x86-64", "NUMBA_CPU_FEATURES": ""},
    "plain": {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "", "GRAMIAN_KERNELS": "plain"},
}
CALLS = 5  # of ours a turn: they take milliseconds


# ------------------------------------------------------------------------- what runs in either process


def serve(side: str) -> None:
    """Answer each line of (rows, degree, calls, where to save) with seconds: wall and CPU of one call."""
    if side == "hapc":
        from hapc import kernel_hapc

        def kernel(X, degree):
            return kernel_hapc(X, max_degree=degree, center=False)
    else:
        from gramian.kernels import hal_kernel

        def kernel(X, degree):
            return hal_kernel(X, max_degree=degree)

    for line in sys.stdin:
        task = json.loads(line)
        X = np.load(task["rows"])
        result, times = None, []
        for _ in range(task["calls"]):
            wall, cpu = time.perf_counter(), time.process_time()
            result = kernel(X, task["degree"])
            times.append((time.perf_counter() - wall, time.process_time() - cpu))
        if task["save"]:
            np.save(task["save"], result)
        print(json.dumps([statistics.median(side) for side in zip(*times, strict=True)]), flush=True)


# ------------------------------------------------------------------------------------------ the driver


class Side:
    """A process on one core that times a kernel."""

    def __init__(self, python: Path | str, side: str, settings: dict[str, str]) -> None:
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        inherited = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "GRAMIAN_KERNELS")}
        path = {"PYTHONPATH": str(ROOT / "src")} if side == "gramian" else {}
        self.process = subprocess.Popen(
            [str(python), __file__, "--serve", side],
            env=inherited | path | threads | settings,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Side:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stdin.close()
        self.process.wait()

    def time(self, rows: Path, degree: int, calls: int = 1, save: Path | None = None) -> tuple[float, float]:
        task = {"rows": str(rows), "degree": degree, "calls": calls, "save": save and str(save)}
        self.process.stdin.write(json.dumps(task) + "\n")
        self.process.stdin.flush()
        return tuple(json.loads(self.process.stdout.readline()))


def peer_python() -> Path:
    """The interpreter of the peer's environment, made if it is missing."""
    python = ENVIRONMENT / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", PEER], check=True, stdout=sys.stderr)
    return python


def assert_equal(ours: Path, theirs: Path) -> None:
    a, b = np.load(ours), np.load(theirs)
    np.testing.assert_allclose(a, b, rtol=0 if b.max() < 2**53 else 1e-12, atol=0)


def measure(
    n: int, case: tuple[int, int], turns: int, peer: Side, forms: dict[str, Side], folder: Path
) -> None:
    """Print one row for each form of ours."""
    d, degree = case
    rows, ours, theirs = folder / "rows.npy", folder / "ours.npy", folder / "theirs.npy"
    np.save(rows, np.random.default_rng(d).random((n, d)))
    peer.time(rows, degree, save=theirs)
    for form in forms.values():
        form.time(rows, degree, save=ours)
        assert_equal(ours, theirs)
    times: dict[str, list[Any]] = {name: [] for name in forms}
    for _ in range(turns):
        other = peer.time(rows, degree)
        for name, form in forms.items():
            times[name].append((*form.time(rows, degree, CALLS), *other))
    for name, turn in times.items():
        a, a_cpu, b, b_cpu = (statistics.median(column) for column in zip(*turn, strict=True))
        wall, cpu = (statistics.median(row[k + 2] / row[k] for row in turn) for k in (0, 1))
        degrees = "all degrees" if degree == d else f"degree {degree}"
        print(
            f"| HAL Gram, n = {n}, d = {d}, {degrees}, {name} | {a * 1e3:.1f} ms ({a_cpu * 1e3:.1f} CPU) "
            f"| {b:.2f} s ({b_cpu:.2f} CPU), hapc | {wall:.0f}x ({cpu:.0f}x CPU) |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--short", action="store_true", help="400 rows, 3 turns, up to 20 covariates")
    parser.add_argument("--forms", default=",".join(FORMS), help="comma-separated: %(default)s")
    parser.add_argument("--serve", choices=("hapc", "gramian"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    n, turns = (400, 3) if options.short else (1000, 7)
    python = peer_python()
    with contextlib.suppress(AttributeError):  # macOS has no affinity
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        peer = stack.enter_context(Side(python, "hapc", {}))
        forms = {
            name: stack.enter_context(Side(sys.executable, "gramian", FORMS[name]))
            for name in options.forms.split(",")
        }
        print("| what | gramian | peer | ratio |\n|---|---|---|---|", flush=True)
        for case in CASES:
            if not (options.short and case[0] > 20):
                measure(n, case, turns, peer, forms, folder)


if __name__ == "__main__":
    main()
