"""What a fitted estimator has to show: curves as plain numbers, which a report draws."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gramian import engine
from gramian.blocks import ArraySpec, Plan
from gramian.features import sample_size, sample_step
from gramian.kernels.grassmann import PRODUCT_BYTES, periodic_kernel, projection_kernel
from gramian.streams import Stream, generator

POINTS = 512  # of a spectrum, at most
NEIGHBOURS = 2000  # rows among which neighbours are looked for
NEAREST = 3  # of them that vote
SHOWN = 600  # points of a scatter plot, at most


def kernel_error(fitted: Any, X: Any) -> dict[str, Any]:
    """Mean absolute error of the kernel's estimate from the first m projections, for growing m.

    The features of a sample of rows are made anew, a feature block at a time: a few rows of a store of
    features would take whole chunks of it.

    Parameters
    ----------
    fitted : GrassmannianRandomFeatures
        Fitted; other maps, and those whose kernel has no closed form, have no such curve.
    X : array (N, n, k)

    Returns
    -------
    dict
        ``{"kernel_error": {"projections", "error", "pairs"}}``, or empty.
    """
    exact, spec = _exact_kernel(fitted), engine.spec_of(X)
    if exact is None or spec.shape[0] < 2:
        return {}
    drawn = generator(fitted.seed_, Stream.SAMPLE, 1).permutation(spec.shape[0])[: sample_size(spec)]
    bases = engine.take(X, np.sort(drawn))
    upper = np.triu_indices(len(bases), 1)
    m, errors = int(fitted.n_projections), []
    counts = [2**power for power in range(3, m.bit_length()) if 2**power < m] + [m]
    with engine.pinned():
        wanted = exact(bases)
        for count, products in zip(counts, _growing_products(fitted, bases, counts), strict=True):
            errors.append(float(np.abs(products * (m / count) - wanted)[upper].mean()))
    return {"kernel_error": {"projections": counts, "error": errors, "pairs": len(upper[0])}}


def _growing_products(fitted: Any, bases: NDArray[Any], counts: list[int]) -> Iterator[NDArray[np.float64]]:
    """Inner products of the features of the first projections, for each of the counts."""
    row_map = fitted.row_map(bases)
    prepared = row_map.prepared(bases)
    width = row_map.shape[1] // counts[-1]  # columns of one projection
    edges = [width * count for count in counts]
    products = np.zeros((len(bases), len(bases)))
    for column, part in enumerate(row_map.columns):
        block = row_map.function(*prepared, column=column).astype(np.float64)
        start = part.start
        while edges and edges[0] <= part.stop:
            piece = block[:, start - part.start : edges[0] - part.start]
            products += piece @ piece.T
            start = edges.pop(0)
            yield products
        piece = block[:, start - part.start :]
        products += piece @ piece.T


def kernel_error_plan(fitted: Any, X: ArraySpec) -> Plan:
    """What `kernel_error` takes, before the fit too: one step of the driver, or none."""
    if _exact_kernel(fitted) is None or X.shape[0] < 2:
        return Plan()
    count, (_, n, k), m = sample_size(X), X.shape, int(fitted.n_projections)
    sample = ArraySpec((count, n, k), X.dtype)
    block = fitted.as_fitted(sample).row_map(sample).step("block", sample).task_bytes
    step = sample_step("kernel error", X)
    flops = 4.0 * count * n * k * m + 2.0 * count**2 * (2 * m + n * k**2)
    return Plan((replace(step, flops=flops, driver_bytes=step.driver_bytes + PRODUCT_BYTES + block),))


def _exact_kernel(fitted: Any) -> Any:
    """The kernel that the features estimate, where it has a closed form."""
    nonlinearity = getattr(fitted, "nonlinearity", None)
    if nonlinearity == "periodic":
        return lambda X: periodic_kernel(X, omega=fitted.omega_)
    if nonlinearity == "linear":
        return projection_kernel
    return None


def spectrum(fitted: Any) -> dict[str, Any]:
    """Eigenvalues in descending order, thinned where there are many."""
    values = getattr(fitted, "eigenvalues_", None)
    if values is None or len(values) < 2:
        return {}
    values = np.asarray(values, dtype=np.float64)
    values = values[values > 0]
    places = np.unique(np.geomspace(1, len(values), POINTS).astype(int)) - 1
    curve = {"component": (places + 1).tolist(), "eigenvalues": values[places].tolist()}
    return {"spectrum": {**curve, "components": int(getattr(fitted, "n_components_", len(values)))}}


def path(fitted: Any) -> dict[str, Any]:
    """Cross-validated scores along the regularization path, at what else was chosen."""
    table = getattr(fitted, "cv_results_", None)
    if not table or "param_alpha" not in table or len(set(table["param_alpha"])) < 2:
        return {}
    keep = _at_choice(fitted, table)
    order = np.argsort(np.asarray(table["param_alpha"], dtype=np.float64)[keep], kind="stable")
    columns = {
        "alpha": table["param_alpha"],
        "score": table["mean_test_score"],
        "spread": table["std_test_score"],
    }
    curve = {
        name: np.asarray(column, dtype=np.float64)[keep][order].tolist() for name, column in columns.items()
    }
    folds = sum(name.startswith("split") for name in table)
    return {"path": {**curve, "chosen": float(fitted.alpha_), "folds": folds, "metric": "R²"}}


def _at_choice(fitted: Any, table: dict[str, Any]) -> NDArray[np.bool_]:
    """The candidates that share everything but alpha with the chosen one."""
    params = table["params"]
    others = [name for name in params[0] if name != "alpha"]
    return np.array([all(entry[name] == getattr(fitted, f"{name}_") for name in others) for entry in params])


def neighbourhoods(fitted: Any, X: Any, y: Any) -> dict[str, Any]:
    """How a map that gathers classes got there, and what it did to the neighbours of a sample of its rows.

    Parameters
    ----------
    fitted : NeighborhoodComponentsAnalysis
        Fitted to these rows; others have no such curves.
    X : array (N, d)
    y : array (N,) of labels

    Returns
    -------
    dict
        ``{"objective", "neighbours"}`` and, for a map to two components, ``"scatter"``; or empty.
    """
    if not hasattr(fitted, "objective_history_"):
        return {}
    rows = engine.spec_of(X).shape[0]
    drawn = np.sort(generator(fitted.seed_, Stream.SAMPLE, 1).permutation(rows)[:NEIGHBOURS])
    sample, labels = np.asarray(engine.take(X, drawn), np.float64), engine.take(y, drawn)
    before, after = sample @ fitted.start_.T, sample @ fitted.components_.T.astype(np.float64)
    accuracies = {
        "columns": _nearest_accuracy(sample, labels),
        "start": _nearest_accuracy(before, labels),
        "end": _nearest_accuracy(after, labels),
    }
    found: dict[str, Any] = {
        "objective": {
            "iteration": list(range(fitted.n_iter_ + 1))[-len(fitted.objective_history_) :],
            "value": (fitted.objective_history_ / rows).tolist(),
            "objective": fitted.objective,
        },
        "neighbours": {**accuracies, "rows": len(drawn), "nearest": NEAREST, "start_name": fitted.init_},
    }
    if after.shape[1] == 2:
        classes, codes = np.unique(labels, return_inverse=True)
        shown = slice(None, SHOWN)
        found["scatter"] = {
            "before": before[shown].tolist(),
            "after": after[shown].tolist(),
            "codes": codes[shown].tolist(),
            "classes": [str(name) for name in getattr(fitted, "class_names_", classes)],
            "start_name": fitted.init_,
        }
    return found


def _nearest_accuracy(points: NDArray[Any], labels: NDArray[Any]) -> float:
    """Part of the points that the majority of their nearest others classifies rightly."""
    from sklearn.neighbors import KNeighborsClassifier

    codes = np.unique(labels, return_inverse=True)[1]
    k = min(NEAREST, len(points) - 1)
    nearest = KNeighborsClassifier(k).fit(points, codes).kneighbors(return_distance=False)
    votes = (codes[nearest][:, :, None] == np.arange(codes.max() + 1)).sum(axis=1)
    return float((votes.argmax(axis=1) == codes).mean())
