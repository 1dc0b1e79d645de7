"""Nyström features: rows by their kernel with landmarks, so that inner products approximate the kernel.

Let k(x) be the kernel of a row x with L landmarks over a provisional ``unit``, and W that of the landmarks
with each other. The features ``phi(x) = W^{+1/2} k(x)`` have the inner products ``k(x)' W^+ k(z)``. Moments
of them over many rows are one pass (`gramian.moments`); a rotation of the features to the principal axes
of these moments gives scores.

Williams and Seeger (2001), Using the Nyström method to speed up kernel machines, NIPS 13.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from gramian.moments import Moments, above_rounding

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class NystroemFeatures:
    """``phi(x) = (columns(x) / unit) @ root``, less a shift.

    Parameters
    ----------
    columns : callable
        ``columns(rows (n, ...)) -> (n, L)``: the kernel of rows with the landmarks. A module-level function
        or method with its arguments bound: workers get it.
    unit : float
        A provisional scale, above 0.
    root : (L, r) float64
        ``V S^-1/2`` of ``columns(landmarks) / unit = V S V'``, without its numerical null space.
    shift : (r,) float64
        Mean of the features over the landmarks.
    """

    columns: Callable[[NDArray[Any]], Array]
    unit: float
    root: Array
    shift: Array

    @classmethod
    def of(
        cls,
        columns: Callable[[NDArray[Any]], Array],
        corner: Array,
        *,
        unit: float = 1.0,
        dtype: Any = np.float64,
    ) -> NystroemFeatures:
        """From the kernel of the landmarks with each other.

        Parameters
        ----------
        columns : callable
        corner : (L, L) float64
            ``columns(landmarks)``.
        unit : float
        dtype : float type
            That the kernel is computed in.
        """
        values, vectors = leading((corner + corner.T) / (2 * unit), len(corner), dtype)
        return cls(columns, unit, vectors / np.sqrt(values), vectors.mean(axis=0) * np.sqrt(values))

    def block(self, rows: NDArray[Any], out: Array | None = None) -> Array:
        """Features of rows (n, ...), less the shift: (n, r)."""
        values = np.matmul(self.columns(rows), self.root / self.unit, out=out)
        values -= self.shift
        return values


@dataclass(frozen=True, eq=False)
class Rotation:
    """Principal axes of features: ``scores = (phi - mean) @ matrix``, of the kernel over ``unit * ratio``.

    Parameters
    ----------
    eigenvalues : (k,) float64
        Descending: sums of squares of the scores over the rows of the moments.
    matrix : (r, k) float64
    mean : (r,) float64
        0 where the features are not centred.
    ratio : float
        The final scale of the kernel over the features' `unit`.
    """

    eigenvalues: Array
    matrix: Array
    mean: Array
    ratio: float

    @classmethod
    def of(
        cls, moments: Moments, n_components: int, *, center: bool, ratio: float = 1.0, dtype: Any = np.float64
    ) -> Rotation:
        """From moments of the features; ``dtype`` is that of the kernel."""
        about = moments.about_mean(center)
        values, vectors = leading(about.gram / ratio, n_components, dtype)
        return cls(values, vectors / np.sqrt(ratio), about.feature_mean, ratio)

    def upright(self, features: NystroemFeatures, rows: NDArray[Any]) -> Rotation:
        """With signs that make the scores of largest magnitude among these rows positive."""
        scores = (features.block(rows) + (features.shift - self.mean)) @ self.matrix
        return replace(self, matrix=self.matrix * signs_upright(scores))

    def scored(self, moments: Moments, n_targets: int) -> Moments:
        """Moments of the scores and the first targets."""
        return moments.with_targets(n_targets).mapped(self.matrix)

    def coefficients(self, features: NystroemFeatures) -> tuple[Array, Array]:
        """(L, k) and (k,): ``scores(x) = columns(x) / (unit * ratio) @ projection - offset``."""
        return features.root @ self.matrix * self.ratio, self.mean @ self.matrix


def leading(gram: Array, n_components: int, dtype: Any = np.float64) -> tuple[Array, Array]:
    """At most so many numerically positive eigenvalues, descending, and their vectors.

    Parameters
    ----------
    gram : (n, n) float64
        Symmetric. Overwritten.
    n_components : int
    dtype : float type
        That the entries were computed in: what rounding leaves counts as 0.
    """
    n = len(gram)
    if not n:
        return np.empty(0), gram
    some = n_components < n // 8  # the others cost more to leave out than to compute
    how: dict[str, Any] = {"subset_by_index": (n - n_components, n - 1)} if some else {"driver": "evd"}
    values, vectors = scipy.linalg.eigh(gram, overwrite_a=True, check_finite=False, **how)
    values, vectors = values[::-1][:n_components], vectors[:, ::-1][:, :n_components]
    kept = int(above_rounding(values, n, dtype).sum())
    return values[:kept], vectors[:, :kept]


def signs_upright(scores: Array) -> Array:
    """Signs that make the entry of largest magnitude in each column of the scores positive: (k,)."""
    largest = scores[np.abs(scores).argmax(axis=0), np.arange(scores.shape[1])]
    return np.where(largest < 0, -1.0, 1.0)
