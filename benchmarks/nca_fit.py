"""Fits of neighbourhood components analysis against scikit-learn: time from the same start, and the optimum.

python -m benchmarks.nca_fit [--short]

Both start at the principal components; the objective after the same number of iterations is compared first.
User CPU, one thread: much of the peer's time is the system's.
"""

from __future__ import annotations

import argparse
import resource
import warnings
from functools import partial

from benchmarks.turns import medians, one_core, text  # first: it sets the number of threads

# isort: split
import dask
import numpy as np
from sklearn.datasets import load_digits, make_classification
from sklearn.neighbors import NeighborhoodComponentsAnalysis as Peer

from gramian import NeighborhoodComponentsAnalysis

ITERATIONS = 20


def generated(n: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    X, y = make_classification(n, d, n_informative=10, n_classes=4, random_state=0)
    return X, y


def digits() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_digits(return_X_y=True)
    return X[:, X.std(axis=0) > 0], y


def user() -> float:
    """Seconds of user CPU of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime


def value(A: np.ndarray, X: np.ndarray, y: np.ndarray) -> float:
    """The objective by the peer's own function."""
    peer = Peer()
    peer.n_iter_ = 1
    return float(peer._loss_grad_lbfgs(A.ravel(), X, y[:, None] == y)[0])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--short", action="store_true", help="1,500 generated rows, 1 turn")
    options = parser.parse_args()
    one_core()
    warnings.simplefilter("ignore")
    n, turns = (1_500, 1) if options.short else (5_000, 5)
    cases = {
        f"n = {n:,}, d = 50, c = 10": (*generated(n, 50), 10),
        "digits, c = 2": (*digits(), 2),
        "digits, c = 10": (*digits(), 10),
    }
    print("| what | gramian | peer | ratio | objective |\n|---|---|---|---|---|")
    for name, (X, y, c) in cases.items():
        settings = {"init": "pca", "max_iter": ITERATIONS, "random_state": 0}
        models = {"ours": NeighborhoodComponentsAnalysis(c, **settings), "peer": Peer(c, **settings)}
        with dask.config.set(scheduler="synchronous"):
            found = {side: value(model.fit(X, y).components_, X, y) for side, model in models.items()}
            sides = {side: partial(model.fit, X, y) for side, model in models.items()}
            times = medians(sides, turns, user)
        if found["ours"] < 0.995 * found["peer"]:
            raise SystemExit(f"{name}: the objective is {found['ours']}, the peer's {found['peer']}")
        print(
            f"| NCA fit, {name}, {ITERATIONS} iterations | {text(times['ours'])} | {text(times['peer'])} "
            f"| {times['peer'][1] / times['ours'][1]:.0f}x | {found['ours']:.3f}, {found['peer']:.3f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
