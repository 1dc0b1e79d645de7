"""The objective of neighbourhood components analysis and its derivative by the points, over all pairs.

Points stand in the order of their classes, and each block of rows meets the blocks from its own on: a band of
tiles. Or, where it pays, they stand in the order of a k-d tree, and a leaf meets those leaves alone whose
kernel can count: the others are bounded by the distance of the boxes around both, relative to the sums of
their rows, so that what is left out changes the objective by less than a stated part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gramian.kernels.neighbours import (
    BLOCK,
    LEAST,
    OBJECTIVES,
    Array,
    Float64,
    Indices,
    Objective,
    neighbour_laplacian,
    neighbour_log_sums,
    neighbour_sums,
    neighbour_terms,
    neighbour_weights,
    pack_points,
    shifted_laplacian,
    underflown,
)
from gramian.validation import choice

Mapper = Callable[..., Iterable[Any]]

LEAF = 512  # rows of a leaf
LEAVES = 16  # of them that one task serves
FEWEST = 8192  # rows below which nothing is left out
WORTH = 0.6  # part of the pairs that must not be exceeded, else all are met
NEAR = 0.1  # part of the pairs that touching boxes may make up
SAMPLE = 256  # rows that tell whether it is worth a try
CLOSE = 40.0  # binary digits that a kernel value must lack before it can be left out
ERROR = 1e-8  # of the objective: what is left out changes it by less


def band_sums(z: Array, start: int, block: int = BLOCK) -> Float64:
    """What the tiles of one block of rows, on and right of the diagonal, add to the sums of all rows.

    Parameters
    ----------
    z : ndarray, shape (c + 1, n)
        What `pack_points` returned.
    start : int
        First row of the block.
    block : int
        Rows and columns of a tile.

    Returns
    -------
    ndarray of float64, shape (2, n - start)
        For the rows from ``start`` on.
    """
    rows, out = z[:, start : start + block], np.zeros((2, z.shape[1] - start))
    for at in range(0, out.shape[1], block):
        columns = rows if not at else z[:, start + at : start + at + block]
        for first, part in zip((0, at), neighbour_sums(rows, columns), strict=True):
            out[:, first : first + block] += part
    return out


def band_laplacian(z: Array, weights: Float64, start: int, block: int = BLOCK) -> Float64:
    """What the tiles of `band_sums` add to the Laplacian product, (c, n - start).

    Parameters
    ----------
    z, start, block
        As in `band_sums`.
    weights : ndarray of float64, shape (2, n)
        Tiles without any are left out.
    """
    rows, out = z[:, start : start + block], np.zeros((len(z) - 1, z.shape[1] - start))
    own = weights[:, start : start + block]
    for at in range(0, out.shape[1], block):
        columns = rows if not at else z[:, start + at : start + at + block]
        other = weights[:, start + at : start + at + block]
        if own.any() or other.any():
            for first, part in zip((0, at), neighbour_laplacian(rows, columns, own, other), strict=True):
                out[:, first : first + block] += part
    return out


def row_log_sums(z: Array, rows: Indices, block: int = BLOCK) -> Float64:
    """`neighbour_log_sums` of some rows over all columns, (2, rows)."""
    logs = np.full((2, len(rows)), -np.inf)
    for _, columns, skip in _column_blocks(z, rows, block):
        logs = np.logaddexp(logs, neighbour_log_sums(z[:, rows], columns, skip))
    return logs


def row_laplacian(z: Array, logs: Float64, q: Float64, rows: Indices, block: int = BLOCK) -> Float64:
    """`shifted_laplacian` of some rows over all columns, (c, n): what they add to the product of all rows.

    ``logs`` (2, rows) and ``q`` (rows,) are theirs.
    """
    out, own = np.zeros((len(z) - 1, z.shape[1])), z[:, rows]
    for start, columns, skip in _column_blocks(z, rows, block):
        part, across = shifted_laplacian(own, columns, logs, q, skip)
        out[:, rows] += part
        out[:, start : start + block] += across
    return out


def _column_blocks(z: Array, rows: Indices, block: int) -> Iterator[tuple[int, Array, Indices]]:
    """First column, points, and where each row stands within, for each block of columns."""
    for start in range(0, z.shape[1], block):
        columns = z[:, start : start + block]
        inside = (rows >= start) & (rows < start + columns.shape[1])
        yield start, columns, np.where(inside, rows - start, -1)


@dataclass(frozen=True, eq=False)
class NeighbourGradient:
    """An objective of neighbourhood components analysis and its derivative by the points.

    Parameters
    ----------
    value : float
        ``sum p_i`` or ``sum log p_i``.
    slope : ndarray of float64, shape (n, c)
        Derivative by Z. For ``Z = X A'`` the derivative by A is ``slope' X``.
    p : ndarray of float64, shape (n,)
        Probability that each row finds a neighbour of its own class.
    n_shifted : int
        Rows whose sums underflow.
    n_alone : int
        Rows that are alone in their class: "accuracy" counts them as 0, "kl" drops them.
    kept : float
        Part of the pairs that were met.
    error : float
        Bound of what the others would have changed, relative to the value.
    """

    value: float
    slope: Float64
    p: Float64
    n_shifted: int
    n_alone: int
    kept: float = 1.0
    error: float = 0.0


def neighbour_gradient(
    Z: Array,
    labels: Array,
    *,
    objective: Objective = "accuracy",
    truncate: bool = False,
    block: int = BLOCK,
    mapper: Mapper = map,
) -> NeighbourGradient:
    """Objective of neighbourhood components analysis and its derivative by the points, in memory.

    Parameters
    ----------
    Z : ndarray of float32 or float64, shape (n, c)
        Points, centred.
    labels : ndarray of int, shape (n,)
        Class of each, from 0.
    objective : {"accuracy", "kl"}
        ``sum p_i`` or ``sum log p_i``.
    truncate : bool
        Leave out far tiles where that pays: their part of the objective is below 1e-8, and `error` bounds it.
    block : int
        Rows and columns of a tile. Results depend on it within rounding.
    mapper : callable
        Calls a function on small items; that of a thread pool, for many threads. The results are added in
        order: it changes no bit.

    Returns
    -------
    NeighbourGradient

    Raises
    ------
    InputTypeError, InputError
        As `pack_points`, and for an unknown objective.

    Notes
    -----
    ``n^2 / 2`` pairs at `neighbour_flops` operations, ``n (c + 4)`` numbers of float64 and the scratch of a
    tile. Rows whose sums underflow cost ``n`` pairs more each.

    Examples
    --------
    >>> import numpy as np
    >>> Z = np.array([[0.0], [0.5], [2.0], [2.5]])
    >>> result = neighbour_gradient(Z, np.array([0, 0, 1, 1]))
    >>> round(result.value, 4)
    3.6752
    >>> result.slope.round(3).ravel()
    array([-0.04 , -0.907,  0.907,  0.04 ])
    """
    choice(objective, "objective", OBJECTIVES)
    z = pack_points(Z, labels)
    _, inverse, counts = np.unique(z[-1], return_inverse=True, return_counts=True)
    alone = counts[inverse] == 1
    passes: _Bands | _Leaves | None = _Leaves.of(z, alone, objective, mapper) if truncate else None
    if passes is None:
        passes = _Bands(z, block, mapper)
    z, alone = z[:, passes.order], alone[passes.order]
    sums = passes.sums()
    lonely = np.flatnonzero((underflown(sums, z.dtype, objective) | passes.forced) & ~alone)
    parts = [lonely[i : i + block] for i in range(0, len(lonely), block)]
    with np.errstate(divide="ignore"):
        logs = np.log(sums)
    found = mapper(partial(_log_sums_of, z=z, block=block), parts)
    for rows, part in zip(parts, found, strict=True):
        logs[:, rows] = part
    terms, p, q = neighbour_terms(logs, objective)
    met = q.copy()
    met[lonely] = 0
    product = passes.laplacian(neighbour_weights(logs, met))
    served = [(rows, logs[:, rows], q[rows]) for rows in parts]
    for part in mapper(partial(_laplacian_of, z=z, block=block), served):
        product += part
    back = np.argsort(passes.order)
    value = float(terms.sum())
    return NeighbourGradient(
        value,
        2 * product.T[back],
        p[back],
        len(lonely),
        int(alone.sum()),
        passes.kept,
        passes.error / max(abs(value), np.finfo(float).tiny),
    )


def _log_sums_of(rows: Indices, *, z: Array, block: int) -> Float64:
    return row_log_sums(z, rows, block)


def _laplacian_of(served: tuple[Indices, Float64, Float64], *, z: Array, block: int) -> Float64:
    rows, logs, q = served
    return row_laplacian(z, logs, q, rows, block)


# ----------------------------------------------------------------------------------------- all tiles


class _Bands:
    """Every tile: a block of rows meets the blocks from its own on."""

    kept, error = 1.0, 0.0

    def __init__(self, z: Array, block: int, mapper: Mapper) -> None:
        self.order = np.argsort(z[-1], kind="stable")
        self.forced = np.zeros(z.shape[1], bool)
        self._z, self._block, self._mapper = z[:, self.order], block, mapper

    def sums(self) -> Float64:
        """Own and other sums of all rows: (2, n)."""
        return self._gather(2, partial(_band_sums, z=self._z, block=self._block))

    def laplacian(self, weights: Float64) -> Float64:
        """(c, n)."""
        one = partial(_band_laplacian, z=self._z, weights=weights, block=self._block)
        return self._gather(len(self._z) - 1, one)

    def _gather(self, height: int, function: Callable[[int], Float64]) -> Float64:
        n = self._z.shape[1]
        out, starts = np.zeros((height, n)), range(0, n, self._block)
        for start, part in zip(starts, self._mapper(function, starts), strict=True):
            out[:, start:] += part
        return out


def _band_sums(start: int, *, z: Array, block: int) -> Float64:
    return band_sums(z, start, block)


def _band_laplacian(start: int, *, z: Array, weights: Float64, block: int) -> Float64:
    return band_laplacian(z, weights, start, block)


# ---------------------------------------------------------------------------------- tiles that count


class _Leaves:
    """Leaves of a k-d tree, and for each the leaves from its own on whose kernel can count.

    Boxes that touch are met first. The least sum of a leaf's rows so far is a lower bound of their sums; a
    pair of leaves further apart is left out where all of its kernel values together are below
    ``ERROR / (4 leaves)`` of it for both, times the mean of the objective.
    """

    def __init__(self, z: Array, order: Indices, near: NDArray[np.bool_], mapper: Mapper) -> None:
        self.order, self._z, self._mapper = order, z, mapper
        self._met = near
        self.forced = np.zeros(z.shape[1], bool)
        self.error, self._sums = 0.0, np.empty(0)
        sizes = np.diff(_edges(z.shape[1]))
        self._pairs = np.outer(sizes, sizes)

    @classmethod
    def of(cls, z: Array, alone: NDArray[np.bool_], objective: Objective, mapper: Mapper) -> _Leaves | None:
        """None where too few pairs could be left out."""
        if z.shape[1] < FEWEST or _close(z) > WORTH:
            return None
        order = spatial_order(z)
        z, alone = z[:, order], alone[order]
        gaps = _gaps_of_boxes(z)
        upper = np.triu(np.ones(gaps.shape, bool))
        leaves = cls(z, order, upper & (gaps == 0), mapper)
        if leaves.kept > NEAR:
            return None
        return leaves if leaves._settle(gaps, upper, alone, objective) else None

    @property
    def kept(self) -> float:
        """Part of the pairs that are met."""
        return float(self._pairs[self._met].sum() / self._pairs[np.triu_indices(len(self._pairs))].sum())

    def _settle(
        self, gaps: Float64, upper: NDArray[np.bool_], alone: NDArray[np.bool_], objective: Objective
    ) -> bool:
        """Meet the near leaves, then decide on the others; whether it pays."""
        edges = _edges(self._z.shape[1])
        self._sums = self._gather(2, partial(_leaf_sums, z=self._z, met=self._met))
        counted = self._sums[0] if objective == "kl" else self._sums[0] + self._sums[1]
        self.forced = (counted < LEAST[self._z.itemsize]) & ~alone
        some = np.where(self.forced | alone, np.inf, counted)
        least = np.minimum.reduceat(some, edges[:-1])
        with np.errstate(divide="ignore"):
            terms = neighbour_terms(np.log(self._sums), objective)[0]
        mean = min(1.0, float(np.abs(terms).mean()))
        cut = ERROR * mean / (4 * len(least))
        sizes = np.diff(edges)
        shares = np.exp2(-gaps) * sizes  # of all of leaf j, at most, for a row of leaf i
        far = (shares <= cut * least[:, None]) & (cut * least >= shares.T)
        rest = upper & ~far & ~self._met
        self._met = self._met | rest
        if self.kept > WORTH or self.forced.mean() > NEAR:
            return False
        self._sums += self._gather(2, partial(_leaf_sums, z=self._z, met=rest))
        left = np.where(far & ~(self._met | self._met.T), shares, 0.0)
        bound = np.divide(left.sum(axis=1), least, out=np.zeros(len(least)), where=np.isfinite(least))
        self.error = float((bound * sizes).sum()) * (2.0 if objective == "kl" else 1.0)
        return True

    def sums(self) -> Float64:
        """Own and other sums of all rows: (2, n)."""
        return self._sums

    def laplacian(self, weights: Float64) -> Float64:
        """(c, n)."""
        one = partial(_leaf_laplacian, z=self._z, met=self._met, weights=weights)
        return self._gather(len(self._z) - 1, one)

    def _gather(self, height: int, function: Callable[[int], list[tuple[int, Float64]]]) -> Float64:
        out, firsts = np.zeros((height, self._z.shape[1])), range(0, len(self._met), LEAVES)
        for parts in self._mapper(function, firsts):
            for start, part in parts:
                out[:, start : start + part.shape[1]] += part
        return out


def _close(z: Array) -> float:
    """Part of the pairs of some rows that are too close to be left out, wherever the leaves are cut."""
    some = z[:-1, :: -(-z.shape[1] // SAMPLE)].astype(np.float64)
    squares = (some**2).sum(axis=0)
    return float((squares[:, None] + squares - 2 * some.T @ some < CLOSE).mean())


def spatial_order(z: Array) -> Indices:
    """Rows in the order of a k-d tree whose leaves have `LEAF` rows, the last fewer; by class within a leaf.

    Parameters
    ----------
    z : ndarray of shape (c + 1, n)
        What `pack_points` returned.
    """
    order, open_ = np.arange(z.shape[1]), [(0, z.shape[1])]
    while open_:
        start, stop = open_.pop()
        rows = order[start:stop]
        if len(rows) <= LEAF:
            order[start:stop] = rows[np.argsort(z[-1, rows], kind="stable")]
            continue
        points = z[:-1, rows]
        widest = int((points.max(axis=1) - points.min(axis=1)).argmax())
        middle = LEAF * (-(-len(rows) // LEAF) // 2)
        order[start:stop] = rows[np.argpartition(points[widest], middle)]
        open_ += [(start, start + middle), (start + middle, stop)]
    return order


def _edges(n: int) -> Indices:
    """First row of each leaf, and n."""
    return np.append(np.arange(0, n, LEAF), n)


def _gaps_of_boxes(z: Array) -> Float64:
    """Squared distances between the boxes around the leaves: (leaves, leaves)."""
    starts = _edges(z.shape[1])[:-1]
    low = np.minimum.reduceat(z[:-1], starts, axis=1).astype(np.float64)
    high = np.maximum.reduceat(z[:-1], starts, axis=1).astype(np.float64)
    gaps = np.zeros((len(starts), len(starts)))
    for a, b in zip(low, high, strict=True):
        gaps += np.maximum(0.0, np.maximum(a[:, None] - b, a - b[:, None])) ** 2
    return gaps


def _runs(first: int, met: NDArray[np.bool_], n: int) -> Iterator[tuple[slice, slice]]:
    """Rows of one leaf and columns of leaves that follow each other, for the leaves that a task serves."""
    edges = _edges(n)
    most = BLOCK // LEAF
    for i in range(first, min(first + LEAVES, len(met))):
        rows = slice(edges[i], edges[i + 1])
        if met[i, i]:
            yield rows, rows
        columns = np.flatnonzero(met[i])
        columns = columns[columns > i]
        breaks = np.flatnonzero(np.diff(columns) > 1) + 1
        for run in np.split(columns, breaks):
            for start in range(0, len(run), most):
                part = run[start : start + most]
                yield rows, slice(edges[part[0]], edges[part[-1] + 1])


def _leaf_sums(first: int, *, z: Array, met: NDArray[np.bool_]) -> list[tuple[int, Float64]]:
    """What the tiles of some leaves add to the sums, with the first row of each part."""
    found = []
    for rows, columns in _runs(first, met, z.shape[1]):
        a = z[:, rows]
        own, across = neighbour_sums(a, a if columns == rows else z[:, columns])
        found += [(rows.start, own), (columns.start, across)]
    return found


def _leaf_laplacian(
    first: int, *, z: Array, met: NDArray[np.bool_], weights: Float64
) -> list[tuple[int, Float64]]:
    """What they add to the Laplacian product."""
    found = []
    for rows, columns in _runs(first, met, z.shape[1]):
        a, w, v = z[:, rows], weights[:, rows], weights[:, columns]
        if w.any() or v.any():
            own, across = neighbour_laplacian(a, a if columns == rows else z[:, columns], w, v)
            found += [(rows.start, own), (columns.start, across)]
    return found
