"""Weighted moments of rows and targets: what one pass over the data leaves for closed forms.

A pass adds up Gram matrices of the columns (1, features, targets), one for each part of the rows.
Everything after it (folds, centring, paths of models, their errors) is small algebra on these.
The features are the rows themselves (`PlainFeatures`), or what a block of rows is turned into.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gramian import engine
from gramian.blocks import ArraySpec, Grid, Step
from gramian.errors import InputError
from gramian.kernels.linear import signs
from gramian.validation import matrix, target_block, weights_block

Array = NDArray[np.float64]
Parts = NDArray[np.integer[Any]] | NDArray[np.bool_]

SHIFT_ROWS = 256  # leading rows whose mean is subtracted before products are summed


def above_rounding(values: Array, size: int, dtype: Any = np.float64) -> NDArray[np.bool_]:
    """Which eigenvalues of a Gram matrix are more than the rounding of its entries: the others count as 0.

    Independent errors of a unit in the last place change eigenvalues by at most ``4 sqrt(size) eps`` of the
    largest, twice the norm of such a random matrix.

    Parameters
    ----------
    values : (k,) float64
        The largest among them.
    size : int
        Rows of the matrix.
    dtype : float type, default float64
        Of its entries as they were computed.
    """
    cut = 4 * np.sqrt(size) * float(np.finfo(dtype).eps)
    return np.asarray(values > cut * values.max(initial=0.0))


def refuse_overflow(moments: Moments) -> None:
    """Refuse columns whose products are beyond float64."""
    if not np.isfinite(moments.scatter).all():
        raise InputError(
            "products of the columns overflow float64", "divide each column by its largest value"
        )


def moment_grid(n_rows: int, row_bytes: int, width: int, n_parts: int) -> Grid:
    """Blocks of rows for a pass that sums `part_grams` of so many columns.

    They are high enough that computing a block's products outweighs adding them up, and no larger than twice
    these products.
    """
    height = Grid.for_rows(n_rows, row_bytes).step
    return Grid(n_rows, max(height, 1 << (n_parts * width // 2).bit_length()))


def in_order(parts: Parts | None, *arrays: NDArray[Any] | None) -> list[Any]:
    """The parts in ascending order, and the rows of the arrays with them; as they are where parts overlap."""
    if parts is None or parts.ndim > 1:
        return [parts, *arrays]
    order = np.argsort(parts, kind="stable")
    return [None if array is None else array[order] for array in (parts, *arrays)]


def part_grams(columns: Array, weights: Array | None, parts: Parts | None, n_parts: int) -> Array:
    """Gram matrix of the columns over each part of the rows of one block.

    Parameters
    ----------
    columns : (n, q) float64
        Its first column is 1 where `Moments.of` is to read the result. Overwritten where there are weights.
    weights : (n,) float64, optional
        Non-negative; all 1 where None.
    parts : (n,) ascending integers or (n, n_parts) booleans, optional
        The part of each row; or, where parts overlap, whether it belongs to each. None: one part.
    n_parts : int

    Returns
    -------
    (n_parts, q, q) float64
        ``sum_i w_i c_i c_i'`` over the rows of each part.
    """
    if weights is not None:
        columns *= np.sqrt(weights)[:, None]
    if parts is None:
        return (columns.T @ columns)[None]
    out = np.empty((n_parts, columns.shape[1], columns.shape[1]))
    for part in range(n_parts):
        inside = slice(*np.searchsorted(parts, (part, part + 1))) if parts.ndim == 1 else parts[:, part]
        members = columns[inside]
        np.matmul(members.T, members, out=out[part])
    return out


@dataclass(frozen=True)
class Moments:
    """Sum of weights, means, and sums of products about the means.

    Parameters
    ----------
    weight : float
        Sum of the weights; it stands where the number of rows stands in unweighted formulas.
    mean : (p + t,) float64
        Weighted means of p features and t targets.
    scatter : (p + t, p + t) float64
        ``sum_i w_i (c_i - mean)(c_i - mean)'``.
    n_features : int
        p.
    """

    weight: float
    mean: Array
    scatter: Array
    n_features: int

    @classmethod
    def of(cls, gram: Array, n_features: int, shift: Array | float = 0.0) -> Moments:
        """From the Gram matrix of the columns (1, features, targets), less ``shift``."""
        weight = float(gram[0, 0])
        mean = gram[0, 1:] / weight if weight > 0 else np.zeros(len(gram) - 1)
        return cls(weight, mean + shift, gram[1:, 1:] - weight * np.outer(mean, mean), n_features)

    @classmethod
    def together(cls, moments: Sequence[Moments]) -> Moments:
        """Of disjoint sets of rows together (the parallel update of Chan, Golub & LeVeque, 1983)."""
        weight = sum(part.weight for part in moments)
        mean = np.sum([part.weight * part.mean for part in moments], axis=0) / (weight or 1.0)
        scatter = np.zeros_like(moments[0].scatter)
        for part in moments:
            scatter += part.about(mean)
        return cls(weight, mean, scatter, moments[0].n_features)

    def about(self, centre: Array) -> Array:
        """``sum_i w_i (c_i - centre)(c_i - centre)'``: (p + t, p + t)."""
        gap = self.mean - centre
        return self.scatter + self.weight * np.outer(gap, gap)

    @property
    def feature_mean(self) -> Array:
        """(p,) means."""
        return self.mean[: self.n_features]

    @property
    def target_mean(self) -> Array:
        """(t,) means."""
        return self.mean[self.n_features :]

    @property
    def gram(self) -> Array:
        """Centred Gram matrix of the features: (p, p)."""
        return self.scatter[: self.n_features, : self.n_features]

    @property
    def cross(self) -> Array:
        """Centred products of features and targets: (p, t)."""
        return self.scatter[: self.n_features, self.n_features :]

    @property
    def target_squares(self) -> Array:
        """Centred sum of squares of each target: (t,)."""
        return np.diagonal(self.scatter)[self.n_features :].copy()

    def mapped(self, matrix: Array) -> Moments:
        """Of the features ``z @ matrix`` in place of ``z``, for a matrix (p, k)."""
        p, k = matrix.shape
        t = len(self.mean) - p
        scatter = np.empty((k + t, k + t))
        scatter[:k, :k] = matrix.T @ self.gram @ matrix
        scatter[:k, k:] = matrix.T @ self.cross
        scatter[k:, :k] = scatter[:k, k:].T
        scatter[k:, k:] = self.scatter[p:, p:]
        return Moments(
            self.weight, np.concatenate([self.feature_mean @ matrix, self.target_mean]), scatter, k
        )

    def about_mean(self, center: bool) -> Moments:
        """Themselves; without ``center`` the same about zero, for models without an intercept."""
        if center:
            return self
        zero = np.zeros_like(self.mean)
        return Moments(self.weight, zero, self.about(zero), self.n_features)

    def with_targets(self, count: int) -> Moments:
        """With the first targets alone."""
        kept = self.n_features + count
        return Moments(self.weight, self.mean[:kept], self.scatter[:kept, :kept], self.n_features)

    def squared_errors(self, coefficients: Array, centre: Array) -> Array:
        """Weighted sums of squared errors of linear models.

        A model predicts ``centre_y + (z - centre_z)' b``.

        Parameters
        ----------
        coefficients : (p, a, t) float64
            b of each of a models for each target.
        centre : (p + t,) float64
            The means of the rows that the models were fitted to.

        Returns
        -------
        (a, t) float64
        """
        p, a, t = coefficients.shape
        about = self.about(centre)
        product = (about[:p, :p] @ coefficients.reshape(p, a * t)).reshape(p, a, t)
        linear = np.einsum("pat,pt->at", coefficients, about[:p, p:])
        quadratic = np.einsum("pat,pat->at", coefficients, product)
        return np.asarray(np.maximum(np.diagonal(about)[p:] - 2 * linear + quadratic, 0.0))


# ------------------------------------------------------------------------------------- the one pass


class Features(Protocol):
    """Features of rows, less a shift near their mean, so that sums of products keep their digits."""

    @property
    def shift(self) -> Array:
        """(p,)."""

    def block(self, rows: NDArray[Any], out: Array | None = None) -> Array:
        """Features of rows (n, ...), less the shift: (n, p)."""


@dataclass(frozen=True, eq=False)
class PlainFeatures:
    """The rows themselves.

    Parameters
    ----------
    shift : (m,) float64
    """

    shift: Array

    @classmethod
    def of(cls, X: Any) -> PlainFeatures:
        """With the mean of the leading rows as the shift."""
        return cls(matrix(_leading_rows(X), "X").mean(axis=0, dtype=np.float64))

    def block(self, rows: NDArray[Any], out: Array | None = None) -> Array:
        """Rows (n, m), less the shift: (n, m)."""
        less: Array = np.subtract(matrix(rows, "X"), self.shift, out=out)
        return less


@dataclass(frozen=True)
class MomentPass:
    """What a pass takes, from shapes alone: `row_moments` runs with the figures that a plan shows.

    Parameters
    ----------
    grid : Grid
    scratch : int
        Bytes a row beside the row.
    result : int
        Bytes of the sums.
    """

    grid: Grid
    scratch: int
    result: int

    @classmethod
    def over(cls, spec: ArraySpec, width: int, n_parts: int = 1, scratch: int = 0) -> MomentPass:
        """Over rows of this shape.

        Parameters
        ----------
        spec : ArraySpec of the rows
        width : int
            Columns (1, features, targets).
        n_parts : int
        scratch : int
            Bytes a row that the features take beside their columns.
        """
        scratch += 2 * 8 * width
        grid = moment_grid(spec.shape[0], spec.row_bytes + scratch, width, n_parts)
        return cls(grid, scratch, 8 * n_parts * width**2)

    def step(self, name: str, *sources: Any, flops: float) -> Step:
        """The pass as a plan sees it."""
        return engine.sum_step(
            name, self.grid, *sources, scratch=self.scratch, result=self.result, flops=flops
        )


def row_moments(
    features: Features,
    X: Any,
    figures: MomentPass,
    *,
    target: Any = None,
    n_classes: int = 0,
    diagonal: Callable[[NDArray[Any]], Array] | None = None,
    weights: Any = None,
    parts: Parts | None = None,
    n_parts: int = 1,
    name: str = "gram",
) -> list[Moments]:
    """Moments of the features of each part of the rows: one pass.

    Parameters
    ----------
    features : Features
    X : array of N rows
    figures : MomentPass
    target : (N,) or (N, t) array, optional
    n_classes : int
        Where it is not 0, the targets are the signs of class membership and ``target`` holds codes.
    diagonal : callable, optional
        ``diagonal(rows) -> (n,)``: one more target, the last, that follows from the rows.
    weights : (N,) array, optional
    parts : as `part_grams` takes them
    n_parts : int
    name : str
        Of the sum in the records of a session's run.
    """
    sides = {"target": target, "weights": weights, "parts": parts}
    names = tuple(side for side, array in sides.items() if array is not None)
    shift = np.empty(0)
    if target is not None:
        shift = _targets(_leading_rows(target), n_classes).mean(axis=0)
    shift = np.append(shift, [0.0] * (diagonal is not None))
    function = partial(
        _row_grams,
        features=features,
        names=names,
        shift=shift,
        n_classes=n_classes,
        diagonal=diagonal,
        n_parts=n_parts,
    )
    (grams,) = engine.row_sum(
        function,
        figures.grid,
        X,
        *(sides[side] for side in names),
        name=name,
        scratch=figures.scratch,
        result=figures.result,
    )
    back = np.concatenate([features.shift, shift])
    return [Moments.of(gram, len(features.shift), back) for gram in grams]


def _row_grams(
    rows: NDArray[Any],
    *sides: NDArray[Any],
    features: Features,
    names: tuple[str, ...],
    shift: Array,
    n_classes: int,
    diagonal: Callable[[NDArray[Any]], Array] | None,
    n_parts: int,
) -> tuple[Array]:
    """Gram matrices (n_parts, q, q) of the q columns (1, features, targets, diagonal), less their shifts."""
    side = dict(zip(names, sides, strict=True))
    target = _targets(side["target"], n_classes) if "target" in side else np.empty((len(rows), 0))
    weights = weights_block(side["weights"]) if "weights" in side else None
    parts, rows, target, weights = in_order(side.get("parts"), rows, target, weights)
    first = 1 + len(features.shift)
    columns = np.empty((len(rows), first + len(shift)))
    columns[:, 0] = 1
    features.block(rows, out=columns[:, 1:first])
    columns[:, first : first + target.shape[1]] = target
    if diagonal is not None:
        columns[:, -1] = diagonal(rows)
    columns[:, first:] -= shift
    return (part_grams(columns, weights, parts, n_parts),)


def _targets(block: NDArray[Any], n_classes: int) -> Array:
    return signs(block, n_classes) if n_classes else target_block(block)


def _leading_rows(X: Any) -> NDArray[Any]:
    first = np.arange(min(engine.spec_of(X).shape[0], SHIFT_ROWS))
    return engine.take(X, first)
