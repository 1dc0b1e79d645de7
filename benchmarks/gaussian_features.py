"""Gaussian features of subspaces against one sgemm of the same number of operations, one thread.

python -m benchmarks.gaussian_features [--short]

Ours is the whole of ``transform``: checks, probes (kept after the first call), products and cosines.
"""

from __future__ import annotations

import argparse

from benchmarks.turns import medians, one_core, text  # first: it sets the number of threads

# isort: split
import dask
import numpy as np

from gramian import GrassmannianRandomFeatures

SHAPES = ((1024, 10), (3072, 20), (256, 5), (1024, 1))  # n, k


def check(X: np.ndarray, model: GrassmannianRandomFeatures, F: np.ndarray) -> None:
    """Features of the first rows against a' (U U') b with the projector formed, in float64."""
    from gramian.kernels.rank_one import FEATURE_BLOCK, draw_probes

    A, B = draw_probes(X.shape[1], FEATURE_BLOCK, model.seed_, 0)
    for U, row in zip(X[:3].astype(float), F, strict=False):
        u = np.einsum("ij,jk,ik->i", A, U @ U.T, B)
        wanted = np.stack([np.cos(model.omega_ * u), np.sin(model.omega_ * u)], axis=1).ravel()
        got = row[: 2 * FEATURE_BLOCK] * np.sqrt(model.n_projections)
        np.testing.assert_allclose(got, wanted, rtol=0, atol=2e-4)


def measure(n: int, k: int, numbers: int, m: int, turns: int) -> None:
    rng = np.random.default_rng(0)
    count = max(16, numbers // (n * k))
    X = np.linalg.qr(rng.standard_normal((count, n, k), dtype=np.float32))[0]
    model = GrassmannianRandomFeatures(m, omega=0.3, random_state=0).fit(X)
    check(X, model, model.transform(X))
    stacked = np.ascontiguousarray(X.transpose(0, 2, 1)).reshape(-1, n)
    probes = rng.standard_normal((n, 2 * m), dtype=np.float32)
    times = medians({"ours": lambda: model.transform(X), "sgemm": lambda: stacked @ probes}, turns)
    rate = times["sgemm"][1] / times["ours"][1]
    print(
        f"| Gaussian features, n = {n}, k = {k}, m = {m}, {count} subspaces | {text(times['ours'])} "
        f"| {text(times['sgemm'])}, sgemm of the same operations | {rate:.0%} of its rate |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--short", action="store_true", help="fewer subspaces and turns")
    short = parser.parse_args().short
    one_core()
    print("| what | gramian | peer | ratio |\n|---|---|---|---|")
    with dask.config.set(num_workers=1):
        for n, k in SHAPES:
            measure(n, k, 2_000_000 if short else 8_000_000, 1024, 5 if short else 9)


if __name__ == "__main__":
    main()
