"""What a fitted estimator has to show: curves as plain numbers, which a report draws."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gramian import engine
from gramian.kernels.grassmann import periodic_kernel, projection_kernel
from gramian.streams import Stream, generator

SAMPLE = 96  # rows on whose pairs features are compared with their kernel
POINTS = 512  # of a spectrum, at most
NEIGHBOURS = 2000  # rows among which neighbours are looked for
NEAREST = 3  # of them that vote
SHOWN = 600  # points of a scatter plot, at most


def kernel_error(fitted: Any, X: Any, features: Any) -> dict[str, Any]:
    """Mean absolute error of the kernel's estimate from the first m projections, for growing m.

    Parameters
    ----------
    fitted : GrassmannianRandomFeatures
        Fitted; other maps, and those whose kernel has no closed form, have no such curve.
    X : array (N, n, k)
    features : array (N, columns)
        What it made of X, as a reader sees it.

    Returns
    -------
    dict
        ``{"kernel_error": {"projections", "error", "pairs"}}``, or empty.
    """
    exact = _exact_kernel(fitted)
    rows = engine.spec_of(X).shape[0]
    if exact is None or rows < 2:
        return {}
    drawn = generator(fitted.seed_, Stream.SAMPLE, 1).permutation(rows)[:SAMPLE]
    indices = np.sort(drawn)
    wanted, found = exact(engine.take(X, indices)), engine.take(features, indices).astype(np.float64)
    m = int(fitted.n_projections)
    width = found.shape[1] // m  # columns of one projection
    upper = np.triu_indices(len(indices), 1)
    counts = [2**power for power in range(3, m.bit_length()) if 2**power < m] + [m]
    errors = []
    for count in counts:
        part = found[:, : width * count]
        estimate = part @ part.T * (m / count)
        errors.append(float(np.abs(estimate - wanted)[upper].mean()))
    return {"kernel_error": {"projections": counts, "error": errors, "pairs": len(upper[0])}}


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
