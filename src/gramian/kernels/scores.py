"""Sums behind scores, on one block of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray


def target_sums(
    y: NDArray[Any], w: NDArray[Any] | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Sum of the weights, and weighted sums of the targets (n,) or (n, t)."""
    weights = np.ones(len(y)) if w is None else w.astype(np.float64)
    return np.array([weights.sum()]), weights @ y.reshape(len(y), -1).astype(np.float64)


def error_sums(
    predict: Callable[[NDArray[Any]], NDArray[Any]],
    mean: NDArray[np.float64],
    X: NDArray[Any],
    y: NDArray[Any],
    w: NDArray[Any] | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Weighted squares of the errors and of the targets about their mean."""
    weights = np.ones(len(y)) if w is None else w.astype(np.float64)
    y = y.reshape(len(y), -1).astype(np.float64)
    return weights @ (y - predict(X).reshape(y.shape)) ** 2, weights @ (y - mean) ** 2


def class_sums(
    answer: Callable[[NDArray[Any]], NDArray[Any]],
    classes: NDArray[Any],
    codes: NDArray[np.intp] | None,
    probable: bool,
    X: NDArray[Any],
    labels: NDArray[Any],
    w: NDArray[Any] | None = None,
) -> tuple[NDArray[np.float64], ...]:
    """Sum of the weights, of those whose class is right, and of the log losses where answers are probable.

    ``codes[label]`` is what a label is among the classes, where they are numbered differently.
    """
    labels = labels if codes is None else codes[labels]
    weights = np.ones(len(labels)) if w is None else w.astype(np.float64)
    found, loss = answer(X), np.zeros(1)
    if probable:
        own = (found * (classes == labels[:, None])).sum(axis=1)  # 0 for a class that was not learnt
        loss = np.array([-weights @ np.log(np.maximum(own, np.finfo(np.float64).eps))])
        found = classes[found.argmax(axis=1)]
    return np.array([weights.sum()]), np.array([weights @ (found == labels)]), loss
