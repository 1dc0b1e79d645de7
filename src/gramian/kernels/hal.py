"""HAL Gram matrices: the kernel of the highly adaptive lasso's basis, by interaction degree.

On blocks: `knot_planes` once a block of rows, then `hal_tile` of two of them. The work is done by the
compiled functions of ``_hal.py``, which is imported on the first call.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gramian.errors import InputError, InputTypeError
from gramian.kernels import _jit
from gramian.kernels._memory import aligned
from gramian.validation import finite, floating, integer, matrix

Array = NDArray[Any]
Float64 = NDArray[np.float64]

LANES = 8  # rows of a block of planes
ALL, UPPER, DIAGONAL = range(3)  # the part of a tile that is wanted
LARGEST = 10**300  # bound of an entry: its sums and products stay in float64
UNROLLED = 128  # covariates beyond which the unrolled tile takes too long to compile
PASS_BYTES = 20_000  # planes of a block of rows that one pass reads again and again: the first cache
PLAIN_BYTES = 80_000  # the same for the plain loops, which are slow over few words
TABLE_BYTES = 1 << 20  # prefix table of one coordinate: the second cache


@dataclass(frozen=True, eq=False)
class KnotPlanes:
    """A block of rows, as `hal_tile` reads it.

    Parameters
    ----------
    words : ndarray of uint64, shape (ceil(n / 8), words, d, 8)
        Bit b of word k of row i and coordinate j: is the knot that owns bit 64 k + b at most row i?
    n_rows : int
    last : ndarray of int64, shape (groups,)
        End of each group of words whose knots have one weight.
    scales : ndarray of float64, shape (groups,)
        That weight.
    total : float
        Sum of the weights of all knots.
    """

    words: NDArray[np.uint64]
    n_rows: int
    last: NDArray[np.int64]
    scales: Float64
    total: float

    def __len__(self) -> int:
        return self.n_rows


def knot_planes(rows: Array, knots: Array, knot_weights: Array | None = None) -> KnotPlanes:
    """Compare each row with each knot along each coordinate, for `hal_tile`.

    Parameters
    ----------
    rows : ndarray of float, shape (n, d)
    knots : ndarray of float, shape (m, d)
    knot_weights : ndarray, shape (m,), optional
        Weights of at least 0; 1 each where None.

    Returns
    -------
    KnotPlanes
        ``d * ceil(m / 64) * 8`` bytes a row without weights. Knots of equal weight share their words; where
        that takes fewer, each knot appears once for each binary digit of its weight.
    """
    groups = _groups(len(knots), knot_weights)
    members = np.concatenate([group for _, group in groups])
    last = np.cumsum([_words(len(group)) for _, group in groups])
    starts = [end - _words(len(group)) for end, (_, group) in zip(last, groups, strict=True)]
    bits = [64 * start + np.arange(len(group)) for start, (_, group) in zip(starts, groups, strict=True)]
    values = np.take(knots.T, members, axis=1).astype(np.float64, copy=False)
    words = aligned((-(-len(rows) // LANES), int(last[-1]), knots.shape[1], LANES), np.uint64)
    if len(rows):
        from gramian.kernels import _hal

        rows = np.ascontiguousarray(rows, np.float64)
        by_row = np.argsort(np.ascontiguousarray(rows.T), axis=1)
        shift = (8 * int(last[-1]) * len(members) // TABLE_BYTES).bit_length()
        _hal.fill_planes(rows, by_row, values, np.argsort(values, axis=1), np.concatenate(bits), shift, words)
    total = sum(scale * len(group) for scale, group in groups)
    return KnotPlanes(words, len(rows), last, np.array([scale for scale, _ in groups]), total)


def hal_tile(
    a: KnotPlanes, b: KnotPlanes, *, max_degree: int | None = None, out: Float64 | None = None
) -> Float64:
    """Block of the HAL kernel; the same object twice gives a symmetric one at half the cost.

    Parameters
    ----------
    a, b : KnotPlanes
        Of n and p rows, with the same knots and weights.
    max_degree : int, optional
        Highest degree of interaction; all where None.
    out : ndarray of float64, shape (n, p), optional
        Where to write the block; its rows must be contiguous.

    Returns
    -------
    ndarray of float64, shape (n, p)

    Notes
    -----
    About ``5 d + 3 t`` operations on 512 bits for 8 pairs and 64 knots, where t <= d terms of at most
    ``max_degree`` binary digits count. Safe to call from many threads.
    """
    out = _output(out, (len(a), len(b)))
    if out.size:
        _add_tile(a, b, max_degree, UPPER if a is b else ALL, out)
    return out


def hal_scratch(
    row_shape: tuple[int, ...],
    _dtype: DTypeLike = np.float64,
    *,
    knots: Array,
    knot_weights: Array | None = None,
) -> int:
    """Bytes a row that `knot_planes` and `hal_tile` take beside the row and the tile."""
    n_words = sum(_words(len(group)) for _, group in _groups(len(knots), knot_weights))
    return row_shape[0] * (8 * n_words + 3 * 8)


def hal_diagonal(
    rows: Array, *, knots: Array, knot_weights: Array | None = None, max_degree: int | None = None
) -> Float64:
    """Kernel of each row with itself.

    Parameters
    ----------
    rows : ndarray of float, shape (n, d)
    knots : ndarray of float, shape (m, d)
    knot_weights, max_degree
        As in `hal_kernel`.

    Returns
    -------
    ndarray of float64, shape (n,)
    """
    planes = knot_planes(rows, knots, knot_weights)
    values = np.zeros((len(rows), LANES))
    if len(rows):
        _add_tile(planes, planes, max_degree, DIAGONAL, values)
    index = np.arange(len(rows))
    return values[index, index % LANES]


def hal_kernel(
    X: Array,
    Y: Array | None = None,
    *,
    knots: Array | None = None,
    knot_weights: Array | None = None,
    max_degree: int | None = None,
    out: Float64 | None = None,
) -> Float64:
    """HAL kernel, ``K(x, y) = sum_i v_i sum_{s=1..q} C(g_i, s)``.

    ``g_i`` counts the coordinates in which knot i is at most both x and y: K is the inner product of the
    indicator bases of the highly adaptive lasso, without the constant. With all interactions the inner sum
    is ``2^g_i - 1``.

    Parameters
    ----------
    X : ndarray, shape (n, d)
        Rows, finite. float32 is compared as it is.
    Y : ndarray, shape (p, d), optional
        The other rows; those of X where None.
    knots : ndarray, shape (m, d), optional
        The rows of X where None; must be given with Y.
    knot_weights : ndarray, shape (m,), optional
        Weights ``v_i`` of at least 0, such as how often a knot is repeated; 1 each where None.
    max_degree : int, optional
        Highest degree q of interaction, at least 1; all d where None.
    out : ndarray of float64, shape (n, p), optional
        Where to write the result; its rows must be contiguous.

    Returns
    -------
    ndarray of float64, shape (n, p)
        Exact integers below 2^53 where the weights are integers.

    Raises
    ------
    InputTypeError
        Values that are not real numbers.
    InputError
        NaN, infinity, shapes that do not fit, Y without knots, a negative weight; or entries that could
        pass 1e300.

    Notes
    -----
    Cost: ``n p m d`` bits, by 512 at a time. Weights cost nothing extra where few different values occur;
    arbitrary real ones take about 30 times as long.

    References
    ----------
    Benkeser and van der Laan (2016), the highly adaptive lasso estimator. Wang, Schuler, van der Laan and
    García Meixide (2026), arXiv 2602.10613, the kernel of its basis.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]])
    >>> hal_kernel(x)
    array([[3., 3., 3.],
           [3., 6., 6.],
           [3., 6., 9.]])
    >>> hal_kernel(x, np.array([[0.5, 5.0]]), knots=x, max_degree=1)
    array([[2.],
           [3.],
           [4.]])
    """
    X = matrix(X, "X")
    if Y is not None and knots is None:
        raise InputError("Y is given without knots", "give knots=, the training rows or some of them")
    knots = X if knots is None else matrix(knots, "knots", columns=X.shape[1])
    a = knot_planes(X, knots, knot_weights)
    b = a if Y is None else knot_planes(matrix(Y, "Y", columns=X.shape[1]), knots, knot_weights)
    return hal_tile(a, b, max_degree=max_degree, out=out)


def _add_tile(a: KnotPlanes, b: KnotPlanes, max_degree: int | None, part: int, out: Float64) -> None:
    """Hand a tile to the compiled function that this machine and the switch ask for."""
    from gramian.kernels import _hal

    d = a.words.shape[2]
    degree = d if max_degree is None else min(d, integer(max_degree, "max_degree"))
    if a.words.shape[1:] != b.words.shape[1:] or not np.array_equal(a.scales, b.scales):
        raise InputError(
            f"planes of shapes {a.words.shape[1:]} and {b.words.shape[1:]} belong to different knots",
            "prepare both blocks with the same knots and weights",
        )
    _check_size(d, degree, a.total)
    weights = _digit_weights(d, degree)
    unrolled = d <= UNROLLED and not _jit.plain()
    longest = max(1, (PASS_BYTES if unrolled else PLAIN_BYTES) // (64 * d))
    passes = _passes(a.last, a.scales, longest)
    if unrolled:
        edge = aligned((LANES, LANES), np.float64)
        _hal.add_tile(a.words, b.words, *passes, weights, part, edge, out)
    else:
        plain = np.array([weight or 0.0 for weight in weights])
        _hal.add_tile_plain(a.words, b.words, *passes, plain, part, out)


def _check_size(d: int, degree: int, total: float) -> None:
    """Refuse a kernel whose largest entry, a row above all knots, could leave float64."""
    if not total <= LARGEST or _interactions(d, degree) * math.ceil(total) > LARGEST:
        raise InputError(
            f"entries of the kernel could exceed 1e300 with {d} covariates and max_degree={degree}",
            "give a smaller max_degree, for example 2",
        )


def _interactions(g: int, degree: int) -> int:
    """Subsets of g coordinates of size 1 to ``degree``: the weight of a knot below in g coordinates."""
    return 2**g - 1 if degree >= g else sum(math.comb(g, size) for size in range(1, degree + 1))


@functools.lru_cache(maxsize=64)
def _digit_weights(d: int, degree: int) -> tuple[float | None, ...]:
    """Weight of each set of binary digits, spelled 1 to d; None where it vanishes.

    ``sum over sets within g = _interactions(g)``: the Moebius transform, never negative; only sets of at most
    ``degree`` digits count.
    """
    weights = [_interactions(g, degree) for g in range(d + 1)]
    for digit in (1 << level for level in range(d.bit_length())):
        for g in range(d + 1):
            if g & digit:
                weights[g] -= weights[g ^ digit]
    return tuple(float(weight) if weight else None for weight in weights[1:])


def _passes(
    last: NDArray[np.int64], scales: Float64, longest: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], Float64]:
    """First word, end and weight of each pass: even runs of at most ``longest`` words of one group."""
    firsts, lasts, weights = [], [], []
    for start, stop, scale in zip([0, *last[:-1]], last, scales, strict=True):
        cuts = np.linspace(start, stop, -(-(stop - start) // longest) + 1).astype(np.int64)
        firsts += [*cuts[:-1]]
        lasts += [*cuts[1:]]
        weights += [scale] * (len(cuts) - 1)
    return np.array(firsts), np.array(lasts), np.array(weights)


def _groups(n_knots: int, knot_weights: Array | None) -> list[tuple[float, NDArray[np.intp]]]:
    """Weights, and the knots that each is given to: their sum over a knot's groups is its weight.

    Knots of one weight form a group, or all that have a certain binary digit: whichever takes fewer words.
    """
    if knot_weights is None:
        return [(1.0, np.arange(n_knots))]
    knot_weights = _checked_weights(knot_weights, n_knots)
    members = np.flatnonzero(knot_weights)
    if not members.size:
        return [(0.0, np.arange(n_knots))]
    weights = np.asarray(knot_weights, np.float64)[members]
    fraction, exponent = np.frexp(weights)
    mantissa = np.ldexp(fraction, 53).astype(np.int64)
    knot, digit = np.nonzero(mantissa[:, None] >> np.arange(53) & 1)
    by_value = _split(weights, members)
    by_digit = _split(exponent[knot] - 53 + digit, members[knot])
    if sum(_words(len(group)) for _, group in by_value) <= sum(_words(len(group)) for _, group in by_digit):
        return by_value
    return [(math.ldexp(1.0, int(power)), group) for power, group in by_digit]


def _split(keys: Array, members: NDArray[np.intp]) -> list[tuple[float, NDArray[np.intp]]]:
    """Each key once, with its members."""
    values, starts = np.unique(np.sort(keys), return_index=True)
    ordered = members[np.argsort(keys, kind="stable")]
    return list(zip(values.tolist(), np.split(ordered, starts[1:]), strict=True))


def _words(n_knots: int) -> int:
    """Words of 64 bits that so many knots fill."""
    return -(-n_knots // 64)


def _checked_weights(knot_weights: Array, n_knots: int) -> Array:
    weights = finite(floating(knot_weights, "knot_weights"), "knot_weights")
    if weights.shape != (n_knots,):
        raise InputError(
            f"knot_weights has shape {weights.shape} for {n_knots} knots", "give one weight a knot"
        )
    if (weights < 0).any():
        raise InputError(f"knot_weights has {weights.min():g}", "give weights of at least 0")
    return weights


def _output(out: Float64 | None, shape: tuple[int, int]) -> Float64:
    """Zeros of the shape, in ``out`` where it is given."""
    if out is None:
        return np.zeros(shape)
    if not isinstance(out, np.ndarray):
        raise InputTypeError(f"out is a {type(out).__name__}", f"give float64 of shape {shape}")
    if out.shape != shape or out.dtype != np.float64 or (out.size and out.strides[1] != 8):
        raise InputError(
            f"out is {out.dtype} of shape {out.shape} and strides {out.strides}",
            f"give float64 of shape {shape} with contiguous rows",
        )
    out[...] = 0.0
    return out
