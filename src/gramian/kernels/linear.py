"""Linear models on one block of rows: values, classes, targets of one class against the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gramian.validation import matrix

Array = NDArray[np.float64]


def linear_rows(rows: NDArray[Any], *, coef: Array, intercept: Array, single: bool) -> NDArray[Any]:
    """Values ``x'b + c`` (n, t) of rows (n, m); (n,) where `single`."""
    values = matrix(rows, "X") @ coef.T + intercept
    return np.asarray(values[:, 0] if single else values)


def class_rows(rows: NDArray[Any], *, coef: Array, intercept: Array, classes: NDArray[Any]) -> NDArray[Any]:
    """The class with the largest value; of two classes, the second where its value is positive: (n,)."""
    values = matrix(rows, "X") @ coef.T + intercept
    return np.asarray(classes[(values[:, 0] > 0).astype(int) if len(classes) == 2 else values.argmax(axis=1)])


def signs(codes: NDArray[np.integer], n_classes: int) -> Array:
    """One column of +-1 for each class against the rest; a single one for two classes: (n, t)."""
    if n_classes == 2:
        return np.where(codes == 1, 1.0, -1.0)[:, None]
    return np.where(codes[:, None] == np.arange(n_classes), 1.0, -1.0)


def mapped_rows(rows: NDArray[Any], *, mean: Array | None, A: NDArray[Any]) -> NDArray[Any]:
    """``A (x - mean)`` of rows (n, d), or ``A x``, in the type of A (c, d): (n, c)."""
    return np.asarray(_centred(rows, mean, A.dtype) @ A.T)


def centred_products(rows: NDArray[Any], weights: NDArray[Any], *, mean: Array) -> tuple[Array]:
    """``weights' (x - mean)`` of rows (n, d) and weights (n, c), in the type of the weights: float64."""
    return ((weights.T @ _centred(rows, mean, weights.dtype)).astype(np.float64),)


def _centred(rows: NDArray[Any], mean: Array | None, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Rows less their mean, which is subtracted before they are rounded."""
    rows = matrix(rows, "X")
    return (rows if mean is None else rows - mean).astype(dtype, copy=False)
