"""Value and gradient of neighbourhood components analysis against scikit-learn, one thread, user CPU.

python -m benchmarks.nca_gradient [--short] [--forms native,avx2,sse2,plain,large-float32,large-float64]

The large forms have 100,000 rows, where the peer would need 320 GB: two threads, memory beyond the data.

Each form runs in a process of its own with the peer beside it, equal before anything is timed: a gradient by
A (c, d) at random, from X and the labels. User CPU, for much of the peer's time is the system's: it asks for
n x n arrays anew.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time

from benchmarks.turns import medians, one_core, text  # first: it sets the number of threads

# isort: split
import numpy as np

EXTENSIONS = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
WIDE = [name for name in EXTENSIONS if name.startswith(("X86_V4", "AVX512"))]
FORMS = {  # the peer's libraries keep to the same instructions
    "native": {},
    "avx2": {
        "NUMBA_CPU_NAME": "haswell",
        "NUMBA_CPU_FEATURES": "",
        "OPENBLAS_CORETYPE": "Haswell",
        "NPY_DISABLE_CPU_FEATURES": " ".join(WIDE),
    },
    "sse2": {
        "NUMBA_CPU_NAME": "x86-64",
        "NUMBA_CPU_FEATURES": "",
        "OPENBLAS_CORETYPE": "Prescott",
        "NPY_DISABLE_CPU_FEATURES": " ".join(EXTENSIONS),
    },
    "plain": {"GRAMIAN_KERNELS": "plain"},
}
CASES = ((10_000, 20, 2), (5_000, 50, 10))  # n, d, c
SHORT = ((3_000, 20, 2),)
CLASSES = 10
LARGE = {"large-float32": "float32", "large-float64": "float64"}


def user() -> float:
    """Seconds of user CPU of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime


def ours(A: np.ndarray, X: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    from gramian.kernels.all_pairs import neighbour_gradient

    result = neighbour_gradient(X @ A.T, y)
    return result.value, result.slope.T.astype(X.dtype) @ X


def theirs(A: np.ndarray, X: np.ndarray, same_class: np.ndarray) -> tuple[float, np.ndarray]:
    from sklearn.neighbors import NeighborhoodComponentsAnalysis

    peer = NeighborhoodComponentsAnalysis()
    peer.n_iter_ = 0
    value, gradient = peer._loss_grad_lbfgs(A.ravel(), X, same_class)
    return value, gradient.reshape(A.shape)


def large(dtype: str, n: int) -> None:
    """Print the row of one float type: many rows on two threads, and the memory beyond the data."""
    import dask

    from gramian.nca import _Problem

    rng = np.random.default_rng(0)
    y = rng.integers(0, CLASSES, n)
    A = rng.standard_normal((2, 20)) / np.sqrt(20)
    X = (rng.standard_normal((n, 20)) + y[:, None] * rng.standard_normal(20) / CLASSES).astype(dtype)
    mean = X.mean(axis=0, dtype=np.float64)
    with dask.config.set(num_workers=2):
        _Problem(X[:5000], y[:5000], mean, "accuracy").evaluate(A)
        before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        _Problem(X, y, mean, "accuracy").evaluate(A)
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    print(
        f"| NCA value and gradient, n = {n}, d = 20, c = 2, {dtype}, two threads "
        f"| {seconds:.2f} s ({after.ru_utime - before.ru_utime:.2f} CPU) | none can "
        f"| {max(0, after.ru_maxrss - before.ru_maxrss) >> 10} MiB beyond the data |",
        flush=True,
    )


def measure(form: str, n: int, d: int, c: int, turns: int) -> None:
    """Print one row for each float type of ours."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, CLASSES, n)
    X = rng.standard_normal((n, d)) + y[:, None] * rng.standard_normal(d) / CLASSES
    X -= X.mean(axis=0)
    A = rng.standard_normal((c, d)) / np.sqrt(d)
    same_class = y[:, None] == y
    value, gradient = theirs(A, X, same_class)
    sides = {}
    for dtype, digits in ((np.float64, 1e-9), (np.float32, 1e-4)):
        given = A.astype(dtype), X.astype(dtype), y
        got = ours(*given)
        np.testing.assert_allclose(got[0], value, rtol=digits)
        np.testing.assert_allclose(got[1], gradient, rtol=0, atol=digits * np.abs(gradient).max())
        sides[np.dtype(dtype).name] = lambda given=given: ours(*given)
    times = medians({**sides, "peer": lambda: theirs(A, X, same_class)}, turns, user)
    for dtype in sides:
        print(
            f"| NCA value and gradient, n = {n}, d = {d}, c = {c}, {dtype}, {form} | {text(times[dtype])} "
            f"| {text(times['peer'])}, scikit-learn, float64 | {times['peer'][1] / times[dtype][1]:.0f}x |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--short", action="store_true", help="3000 rows, 3 turns")
    parser.add_argument("--forms", default=",".join((*FORMS, *LARGE)), help="comma-separated: %(default)s")
    parser.add_argument("--form", choices=(*FORMS, *LARGE), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.form in LARGE:
        large(LARGE[options.form], 20_000 if options.short else 100_000)
        return
    if options.form:
        one_core()
        for case in SHORT if options.short else CASES:
            measure(options.form, *case, 3 if options.short else 5)
        return
    print("| what | gramian | peer | ratio |\n|---|---|---|---|", flush=True)
    for form in options.forms.split(","):
        command = [sys.executable, "-m", "benchmarks.nca_gradient", "--form", form]
        command += ["--short"] if options.short else []
        kept = {name: value for name, value in os.environ.items() if name != "GRAMIAN_KERNELS"}
        subprocess.run(command, env={**kept, **FORMS.get(form, {})}, check=True)


if __name__ == "__main__":
    main()
