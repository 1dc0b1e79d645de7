"""Neighbourhood components analysis on tiles: sums of a Gaussian kernel by class, and their gradient.

``K_ij = exp(-||z_i - z_j||^2)`` of n points in c dimensions, ``K_ii = 0``; N_i and O_i are its sums over
the rows of the class of row i and over all others, ``p_i = N_i / (N_i + O_i)`` is the probability that row i
finds a neighbour of its own class. The objective is ``sum p_i`` ("accuracy") or ``sum log p_i`` ("kl"). With
``q_i = p_i (1 - p_i)`` or ``q_i = 1 - p_i``, and weights ``w_ij`` of ``-q_i / N_i`` within the class and
``q_i / O_i`` outside of it, its derivative by z_i is ``2 sum_j K_ij (w_ij + w_ji) (z_i - z_j)``.

Two passes over the tiles of the upper triangle, each pair of rows once: `neighbour_sums`, whose sums give the
weights (`underflown`, `neighbour_terms`, `neighbour_weights`), then `neighbour_laplacian`. Rows whose sums
underflow are left out of both and have passes of their own, over all columns: `neighbour_log_sums` and
`shifted_laplacian`. `gramian.kernels.all_pairs` puts the tiles together. `class_log_sums` gives the
probabilities of classes, of new rows and of training rows.

Own and other sums stay apart throughout: ``1 - p = O / (N + O)`` keeps its digits where p is close to 1.

References
----------
Goldberger, Roweis, Hinton and Salakhutdinov (2005), Neighbourhood components analysis.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gramian.errors import InputError, InputTypeError
from gramian.kernels._jit import plain
from gramian.kernels.linear import mapped_rows
from gramian.validation import choice, matrix

Array = NDArray[Any]
Float64 = NDArray[np.float64]
Indices = NDArray[np.int64]
Objective = Literal["accuracy", "kl"]

OBJECTIVES = ("accuracy", "kl")
BLOCK = 2048  # rows and columns of a tile: its points and sums stay in the second cache
SCALE = math.sqrt(math.log2(math.e))  # of packed points: K is a power of two of theirs
LARGEST = 1e12  # coordinate of a point
LEAST = {4: 2.0**-75, 8: 2.0**-900}  # a smaller sum has lost digits to underflow, by bytes of the float type
UNIT = {4: 2.0**44, 8: 2.0**100}  # weights are multiplied by it and dropped below 1: no product is subnormal


def pack_points(Z: Array, labels: Array) -> Array:
    """Points and their classes as the tiles read them; slices of columns are blocks of rows.

    Parameters
    ----------
    Z : ndarray of float32 or float64, shape (n, c)
        Points ``A x``. Centre them before they are rounded: their differences count alone.
    labels : ndarray of int, shape (n,)
        Class of each, from 0; below 2^24 for float32. Rows in any order; everything is faster where they are
        sorted by class, predictions and rows whose sums underflow several times if there are many classes.

    Returns
    -------
    ndarray of the type of Z, shape (c + 1, n)
        Coordinates times ``sqrt(log2(e))``, then the labels.

    Raises
    ------
    InputTypeError, InputError
        Points that are not finite or beyond 1e12; labels that are no whole numbers, or out of range.
    """
    Z = matrix(Z, "Z")
    if np.abs(Z).max() > LARGEST:
        raise InputError(
            f"Z has a coordinate of {np.abs(Z).max():.3g}", f"scale the data or the map below {LARGEST:g}"
        )
    labels = np.asarray(labels)
    if labels.dtype.kind not in "iu":
        raise InputTypeError(f"labels have the type {labels.dtype}", "give whole numbers from 0")
    if labels.shape != Z.shape[:1]:
        raise InputError(f"labels have shape {labels.shape} for {len(Z)} rows", "give one a row")
    most = 2 ** (24 if Z.itemsize == 4 else 53)
    if labels.min() < 0 or labels.max() >= most:
        raise InputError(
            f"labels go from {labels.min()} to {labels.max()}", f"number the classes from 0, below {most}"
        )
    packed = np.empty((Z.shape[1] + 1, len(Z)), Z.dtype)
    np.multiply(Z.T, Z.dtype.type(SCALE), out=packed[:-1])
    packed[-1] = labels
    return packed


# ------------------------------------------------------------------------------------------ the tiles


def neighbour_sums(a: Array, b: Array) -> tuple[Float64, Float64]:
    """Own and other sums of K over one tile, for its rows and for its columns.

    Parameters
    ----------
    a, b : ndarray, shapes (c + 1, n) and (c + 1, m)
        Rows and columns, slices of what `pack_points` returned. The same object twice is a tile on the
        diagonal: each pair ``i < j`` is evaluated once, and both results belong to the same rows.

    Returns
    -------
    rows : ndarray of float64, shape (2, n)
        Sums over the columns of the row's own class, then over the others; within the tile they are
        accumulated in the type of the points.
    columns : ndarray of float64, shape (2, m)
        The same for the columns over the rows. Add both to the totals of their rows, in float64.

    Notes
    -----
    Differences, never an expanded square: an offset costs no digits beyond the rounding of the points. A K
    below the normal numbers is 0, see `underflown`. Safe to call from many threads.
    """
    return _compiled_or_plain().sums(a, b, _triangle(a, b))


def neighbour_laplacian(
    a: Array, b: Array, row_weights: Float64, column_weights: Float64
) -> tuple[Float64, Float64]:
    """Laplacian product ``sum_j h_ij (z_i - z_j)``, ``h_ij = K_ij (w_ij + w_ji)``, over one tile.

    Parameters
    ----------
    a, b : ndarray, shapes (c + 1, n) and (c + 1, m)
        As in `neighbour_sums`.
    row_weights, column_weights : ndarray of float64, shapes (2, n) and (2, m)
        Weight of each row for the columns of its class, then for the others; those of `neighbour_weights`.

    Returns
    -------
    rows : ndarray of float64, shape (c, n)
    columns : ndarray of float64, shape (c, m)
        The same of the columns over the rows. Half the derivative of the objective by the points, once
        the tiles are added.

    Notes
    -----
    Weights below 2^-44 (float64: 2^-100) count as 0, for no product may be a number that processors are slow
    with: in float32, slopes below 1e-13 have no digits.
    """
    weights = (_in_units(row_weights, a), _in_units(column_weights, b))
    return _from_units(_compiled_or_plain().laplacian(a, b, _triangle(a, b), None, *weights), a)


def shifted_laplacian(
    a: Array, b: Array, logs: Float64, q: Float64, skip: Indices | None = None
) -> tuple[Float64, Float64]:
    """Laplacian product of rows whose sums underflow: their own weights alone, relative to their sums.

    Parameters
    ----------
    a : ndarray, shape (c + 1, n)
        The rows, any columns of what `pack_points` returned.
    b : ndarray, shape (c + 1, m)
        A block of all rows.
    logs : ndarray of float64, shape (2, n)
        Logarithms of the sums of the rows over all columns, own and other; see `neighbour_log_sums`.
    q : ndarray of float64, shape (n,)
        What `neighbour_terms` returned for them.
    skip : ndarray of int, shape (n,), optional
        Column of b that is the row itself; -1, and None for all, where none is.

    Returns
    -------
    rows : ndarray of float64, shape (c, n)
    columns : ndarray of float64, shape (c, m)
        To be added to `neighbour_laplacian`'s, where these rows have weight 0.
    """
    shift = np.nan_to_num(-logs / math.log(2), posinf=0.0).astype(a.dtype)
    with np.errstate(invalid="ignore"):  # what rounding took from the shift goes to the weight
        rest = np.exp2(np.clip(-logs / math.log(2) - shift, -64, 1))
    weights = np.where(np.isfinite(logs), np.stack([-q, q]) * rest, 0.0)
    none = np.zeros((2, b.shape[1]), b.dtype)
    gaps = _itself(a, skip)
    return _from_units(_compiled_or_plain().laplacian(a, b, gaps, shift, _in_units(weights, a), none), a)


def class_log_sums(a: Array, b: Array, n_classes: int, skip: Indices | None = None) -> Float64:
    """Logarithm of the sum of K over the columns of each class, for each row, without underflow.

    Parameters
    ----------
    a : ndarray, shape (c + 1, n)
        Rows, as `pack_points` returns them; their labels do not count.
    b : ndarray, shape (c + 1, m)
        Columns: a block of the training rows. Fastest where rows of a class follow each other.
    n_classes : int
        More than the largest label of b.
    skip : ndarray of int, shape (n,), optional
        Column of b that is the row itself and does not count, for leave-one-out; -1, and None for all,
        where none is.

    Returns
    -------
    ndarray of float64, shape (n, n_classes)
        Minus infinity where the block has no other row of the class. Blocks of columns come together by
        ``np.logaddexp``; the probabilities of the classes are the softmax of the result.
    """
    classes, logs = _segment_logs(a, b, skip)
    out = np.full((a.shape[1], n_classes), -np.inf)
    out[:, classes] = logs
    return out


def neighbour_log_sums(a: Array, b: Array, skip: Indices | None = None) -> Float64:
    """Logarithms of the own and other sums of K of rows over a block of columns, without underflow.

    Parameters
    ----------
    a, b, skip
        As in `class_log_sums`; the labels of the rows count.

    Returns
    -------
    ndarray of float64, shape (2, n)
        Minus infinity where there is nothing to sum. Blocks of columns come together by ``np.logaddexp``.
    """
    classes, logs = _segment_logs(a, b, skip)
    own = classes == a[-1].astype(np.int64)[:, None]
    parts = (np.where(kind, logs, -np.inf) for kind in (own, ~own))
    return np.stack([np.logaddexp.reduce(part, axis=1) for part in parts])


def _segment_logs(a: Array, b: Array, skip: Indices | None) -> tuple[Indices, Float64]:
    """The classes of b, and the logarithms of the sums over each, (n, classes)."""
    labels = b[-1].astype(np.int64)
    order = np.argsort(labels, kind="stable")
    classes, starts = np.unique(labels[order], return_index=True)
    if skip is not None:
        place = np.argsort(order)
        skip = np.where(skip < 0, -1, place[skip])
    powers = _compiled_or_plain().log_sums(a, b[:, order], _itself(a, skip), starts)
    return classes, powers * math.log(2)


def class_probabilities(
    rows: Array,
    *,
    mean: Float64,
    A: Array,
    z: Array,
    n_classes: int,
    classes: Array | None = None,
    block: int = BLOCK,
) -> Array:
    """Probabilities that the neighbour of a new row is of each class, or the most probable class.

    Parameters
    ----------
    rows : ndarray of shape (n, d)
    mean, A : ndarrays of shapes (d,) and (c, d)
        The points are ``A (x - mean)``.
    z : ndarray of shape (c + 1, N)
        Training points, as `pack_points` returned them.
    n_classes : int
    classes : ndarray of shape (n_classes,), optional
        Where given, the most probable of them is the result.
    block : int
        Columns of a tile.

    Returns
    -------
    ndarray of shape (n, n_classes), float64, or (n,) of the type of ``classes``
    """
    points = pack_points(mapped_rows(rows, mean=mean, A=A), np.zeros(len(rows), np.int64))
    found = _softmax(_class_logs(points, z, n_classes, None, block))
    return found if classes is None else classes[found.argmax(axis=1)]


def left_out_probabilities(start: int, *, z: Array, n_classes: int, block: int = BLOCK) -> Float64:
    """The same for the training rows from ``start`` on, one block of them, each from all others."""
    rows = np.arange(start, min(start + block, z.shape[1]))
    return _softmax(_class_logs(z[:, rows], z, n_classes, rows, block))


def _class_logs(a: Array, z: Array, n_classes: int, rows: Indices | None, block: int) -> Float64:
    logs = np.full((a.shape[1], n_classes), -np.inf)
    for start in range(0, z.shape[1], block):
        columns, skip = z[:, start : start + block], None
        if rows is not None:
            inside = (rows >= start) & (rows < start + columns.shape[1])
            skip = np.where(inside, rows - start, -1)
        np.logaddexp(logs, class_log_sums(a, columns, n_classes, skip), out=logs)
    return logs


def _softmax(logs: Float64) -> Float64:
    sizes = np.exp(logs - logs.max(axis=1, keepdims=True))
    shares: Float64 = sizes / sizes.sum(axis=1, keepdims=True)
    return shares


# ------------------------------------------------------------------------------------- sums to weights


def underflown(sums: Float64, dtype: DTypeLike, objective: Objective) -> NDArray[np.bool_]:
    """Rows whose sums over all columns have lost digits to underflow, or are 0.

    Parameters
    ----------
    sums : ndarray of float64, shape (2, n)
        Totals of `neighbour_sums`.
    dtype : dtype
        Of the points.
    objective : {"accuracy", "kl"}

    Returns
    -------
    ndarray of bool, shape (n,)
        Those that need `neighbour_log_sums`. Rows that are alone in their class are among them, for "kl"
        all; they need nothing.
    """
    counted = sums[0] if objective == "kl" else sums[0] + sums[1]
    few: NDArray[np.bool_] = counted < LEAST[np.dtype(dtype).itemsize]
    return few


def neighbour_terms(logs: Float64, objective: Objective) -> tuple[Float64, Float64, Float64]:
    """Terms of the objective from the logarithms of the own and other sums.

    Parameters
    ----------
    logs : ndarray of float64, shape (2, n)
    objective : {"accuracy", "kl"}

    Returns
    -------
    terms : ndarray of float64, shape (n,)
        ``p`` or ``log p``; 0 for a row whose own sum is 0, as it is where a row is alone in its class.
    p : ndarray of float64, shape (n,)
        Probability of a neighbour of the own class.
    q : ndarray of float64, shape (n,)
        ``p (1 - p)`` or ``1 - p``, what the weights are made of; 0 for such a row.
    """
    alone = np.isneginf(logs[0])
    with np.errstate(invalid="ignore", over="ignore"):
        odds = np.where(alone, np.inf, logs[1] - logs[0])
        p, rest = 1 / (1 + np.exp(odds)), 1 / (1 + np.exp(-odds))
    if choice(objective, "objective", OBJECTIVES) == "accuracy":
        return p, p, p * rest
    return np.where(alone, 0.0, -np.logaddexp(0, odds)), p, np.where(alone, 0.0, rest)


def neighbour_weights(logs: Float64, q: Float64) -> Float64:
    """Weights ``(-q / N, q / O)`` for `neighbour_laplacian`, (2, n); 0 where q is, and for an empty sum.

    Give 0 as the q of rows that `shifted_laplacian` serves.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        sizes = np.exp(np.log(q) - logs)
    return np.where(np.isfinite(logs) & (q > 0), np.array([[-1.0], [1.0]]) * sizes, 0.0)


# --------------------------------------------------------------------------------------- for the planner


def neighbour_scratch(row_shape: tuple[int, ...], dtype: DTypeLike = np.float64) -> int:
    """Bytes a row of either block that a tile takes beside its points, with its results.

    Parameters
    ----------
    row_shape : tuple of int
        (c,).
    dtype : dtype
        Of the points.
    """
    c = row_shape[0]
    return (4 * c + 12) * np.dtype(dtype).itemsize + (c + 12) * 8


def class_scratch(row_shape: tuple[int, ...], dtype: DTypeLike = np.float64, *, n_classes: int) -> int:
    """The same for `class_log_sums`, with its result; ``n_classes`` in all."""
    return neighbour_scratch(row_shape, dtype) + n_classes * (3 * 8 + 2 * np.dtype(dtype).itemsize)


def neighbour_flops(row_shape: tuple[int, ...]) -> float:
    """Operations of one pair of rows in both passes: 30 for K each, 3 and 8 for each of c coordinates."""
    return 60.0 + 11.0 * row_shape[0]


# ------------------------------------------------------------------- what compiled code and its twin share


def _triangle(a: Array, b: Array) -> Indices:
    """First column that each row of a tile does not meet, and how many, (2, n): up to it on the diagonal."""
    gaps = np.zeros((2, a.shape[1]), np.int64)
    if a is b:
        gaps[1] = np.arange(1, a.shape[1] + 1)
    return gaps


def _itself(a: Array, skip: Indices | None) -> Indices:
    """The same where each row meets all columns but itself."""
    place = np.full(a.shape[1], -1) if skip is None else skip
    return np.stack([np.maximum(place, 0), place >= 0]).astype(np.int64)


def _in_units(weights: Float64, points: Array) -> Array:
    """Weights in the unit and the type of compiled code; those too small for it dropped."""
    scaled = weights * UNIT[points.itemsize]
    return np.where(np.abs(scaled) < 1, 0.0, scaled).astype(points.dtype)


def _from_units(products: tuple[Array, Array], points: Array) -> tuple[Float64, Float64]:
    rows, columns = (part.astype(np.float64) / (SCALE * UNIT[points.itemsize]) for part in products)
    return rows, columns


class _Functions(Protocol):
    """What `_Plain` and the compiled module have."""

    def sums(self, a: Array, b: Array, gaps: Indices, /) -> tuple[Float64, Float64]: ...

    def laplacian(
        self,
        a: Array,
        b: Array,
        gaps: Indices,
        shift: Array | None,
        row_weights: Array,
        column_weights: Array,
        /,
    ) -> tuple[Array, Array]: ...

    def log_sums(self, a: Array, b: Array, gaps: Indices, starts: Indices, /) -> Float64: ...


def _compiled_or_plain() -> _Functions:
    if plain():
        return _Plain()
    from gramian.kernels import _neighbours

    return _neighbours


class _Plain:
    """The plain twins: one row after the other, in NumPy."""

    @staticmethod
    def sums(a: Array, b: Array, gaps: Indices) -> tuple[Float64, Float64]:
        """Own and other sums for rows and columns."""
        rows, columns = np.zeros((2, a.shape[1])), np.zeros((2, b.shape[1]))
        for i, (powers, own) in enumerate(_pairs(a, b, gaps)):
            k = np.exp2(powers)
            for kind, part in enumerate((np.where(own, k, 0), np.where(own, 0, k))):
                rows[kind, i] = part.sum()
                columns[kind] += part
        return rows, columns

    @staticmethod
    def laplacian(
        a: Array, b: Array, gaps: Indices, shift: Array | None, row_weights: Array, column_weights: Array
    ) -> tuple[Array, Array]:
        """Laplacian products for rows and columns; K times two to the ``shift`` (2, n) where there is one."""
        rows, columns = np.zeros((len(a) - 1, a.shape[1])), np.zeros((len(b) - 1, b.shape[1]))
        for i, (powers, own) in enumerate(_pairs(a, b, gaps)):
            if shift is not None:
                powers = np.minimum(powers + np.where(own, shift[0, i], shift[1, i]), 0)
            weights = row_weights[:, i, None] + column_weights
            pull = np.exp2(powers) * np.where(own, *weights) * (a[:-1, i, None] - b[:-1])
            rows[:, i] = pull.sum(axis=1)
            columns -= pull
        return rows, columns

    @staticmethod
    def log_sums(a: Array, b: Array, gaps: Indices, starts: Indices) -> Float64:
        """Binary logarithms of the sums over the segments of columns that begin at ``starts``."""
        rows = (powers.astype(np.float64) for powers, _ in _pairs(a, b, gaps))
        return np.array([np.logaddexp2.reduceat(powers, starts) for powers in rows])


def _pairs(a: Array, b: Array, gaps: Indices) -> Iterator[tuple[Array, NDArray[np.bool_]]]:
    """For each row: the binary logarithms of K with the columns, and which are of its class."""
    for point, first, count in zip(a.T, *gaps, strict=True):
        powers = -((point[:-1, None] - b[:-1]) ** 2).sum(axis=0)
        powers[first : first + count] = -np.inf
        yield powers, b[-1] == point[-1]
