"""Exact periodic Gram of subspaces against a double loop and against batched numpy.linalg, one thread.

python -m benchmarks.periodic_gram [--short]

The peers use the symmetry too. The loop, one singular value decomposition a pair as in the packages that ship
it, runs on some rows; its seconds are scaled by the number of pairs.
"""

from __future__ import annotations

import argparse

from benchmarks.turns import medians, one_core, text  # first: it sets the number of threads

# isort: split
import numpy as np

from gramian.kernels import periodic_kernel

OMEGA = 0.5
LOOPED = 120  # rows of the loop


def by_loop(X: np.ndarray) -> np.ndarray:
    K = np.empty((len(X), len(X)))
    for i in range(len(X)):
        for j in range(i, len(X)):
            cosines = np.linalg.svd(X[i].T @ X[j], compute_uv=False)
            K[i, j] = K[j, i] = np.prod(1 / (1 + OMEGA**2 * (1 - cosines**2)))
    return K


def by_batches(X: np.ndarray) -> np.ndarray:
    K, eye = np.empty((len(X), len(X)), X.dtype), np.eye(X.shape[2], dtype=X.dtype)
    for i in range(len(X)):
        C = X[i].T @ X[i:]
        K[i, i:] = K[i:, i] = 1 / np.linalg.det((1 + OMEGA**2) * eye - OMEGA**2 * C @ C.transpose(0, 2, 1))
    return K


def measure(rows: int, n: int, k: int, dtype: type, turns: int) -> None:
    X = np.linalg.qr(np.random.default_rng(0).standard_normal((rows, n, k)))[0].astype(dtype)
    tolerance = 1e-12 if dtype is np.float64 else 1e-5
    K = periodic_kernel(X, omega=OMEGA)
    np.testing.assert_allclose(K, by_batches(X), rtol=0, atol=tolerance)
    np.testing.assert_allclose(K[:LOOPED, :LOOPED], by_loop(X[:LOOPED]), rtol=0, atol=tolerance)
    sides = {
        "ours": lambda: periodic_kernel(X, omega=OMEGA),
        "batched": lambda: by_batches(X),
        "loop": lambda: by_loop(X[:LOOPED]),
    }
    times = medians(sides, turns)
    pairs = rows * (rows + 1) / (LOOPED * (LOOPED + 1))
    times["loop"] = times["loop"][0] * pairs, times["loop"][1] * pairs
    for peer, name in (
        ("batched", "batched numpy.linalg"),
        ("loop", f"double loop, scaled from {LOOPED} rows"),
    ):
        print(
            f"| periodic Gram, N = {rows}, n = {n}, k = {k}, {np.dtype(dtype)} | {text(times['ours'])} "
            f"| {text(times[peer])}, {name} | {times[peer][1] / times['ours'][1]:.1f}x |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--short", action="store_true", help="500 rows")
    short = parser.parse_args().short
    one_core()
    print("| what | gramian | peer | ratio |\n|---|---|---|---|")
    for n, dtype in ((64, np.float64), (400, np.float64), (400, np.float32)):
        measure(500 if short else 2000, n, 10, dtype, 3 if short else 5)


if __name__ == "__main__":
    main()
