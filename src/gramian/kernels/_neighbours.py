"""Compiled side of ``neighbours.py``: strips of a few rows against a panel of columns, a column a lane.

A panel has the shape (vectors, c + 1, lanes), a strip (c + 1, ROWS); both are padded by points so far away
that their K is 0. Each function computes the powers of two of K again: only the weighted K of a few vectors
are kept, in the first cache, while the coordinates pass.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
from numba import float32, int32, int64, types
from numba.core import cgutils
from numpy.typing import NDArray

from gramian.kernels._jit import emitter, helper, kernel, supports
from gramian.kernels._lanes import I64, Lanes, address, loop
from gramian.kernels._memory import BYTES, aligned

Array = NDArray[Any]

ROWS = 8 if supports("avx512f") else 4  # of a strip: as many as there are registers for
BATCH = 16  # vectors of columns whose K is kept
FAR = 1e18  # coordinate of padding: 2**-FAR**2 is 0
HIDDEN, NONE = -1e36, -1e34  # power of a pair that does not count, and one below that of every pair that does


# --------------------------------------------------------------------------- what a strip does to a panel


class _Strip:
    """Pairs of the rows of a strip with the columns of a panel, spoken to one LLVM builder.

    ``span``: coordinates, first vector, vectors. ``strip``, ``panel``: where they are. ``gaps``: where the
    first hidden column of each row and their number are, or nothing.
    """

    def __init__(
        self, context: Any, builder: Any, like: Any, span: Any, strip: Any, panel: Any, gaps: Any = None
    ) -> None:
        self.lanes, self.builder = Lanes(context, builder, like), builder
        self.integers = Lanes(context, builder, int32 if like == float32 else int64)
        self.c, self.first, self.count = cgutils.unpack_tuple(builder, span, 3)
        self.rows, self.columns, self.gaps = strip, panel, gaps

    def at(self, index: Any, width: int, offset: int = 0) -> Any:
        return self.builder.add(self.builder.mul(index, I64(width)), I64(offset))

    def vector(self, k: Any) -> Any:
        """Number within the panel of vector k of the span."""
        return self.builder.add(self.first, k)

    def entry(self, v: Any, m: Any) -> Any:
        """Where coordinate m of vector v is."""
        return self.builder.add(self.builder.mul(v, self.builder.add(self.c, I64(1))), m)

    def points(self, m: Any) -> list[Any]:
        """Coordinate m of each row, in every lane."""
        return [self.lanes.spread(self.rows, self.at(m, ROWS, r)) for r in range(ROWS)]

    def powers(self, v: Any) -> list[Any]:
        """``-||z_i - z_j||^2`` of each row with vector v, hidden where it does not count."""

        def coordinate(m: Any, totals: list[Any]) -> list[Any]:
            column = self.lanes.load(self.columns, self.entry(v, m))
            gaps = [self.builder.fsub(column, point) for point in self.points(m)]
            pairs = zip(gaps, totals, strict=True)
            return [self.lanes.fma(self.builder.fneg(gap), gap, total) for gap, total in pairs]

        powers = loop(self.builder, self.c, [self.lanes.constant(0.0)] * ROWS, coordinate)
        return powers if self.gaps is None else self._hide(v, powers)

    def own(self, v: Any) -> list[Any]:
        """Which columns of vector v are of the class of each row."""
        labels = self.lanes.load(self.columns, self.entry(v, self.c))
        return [self.builder.fcmp_ordered("==", point, labels) for point in self.points(self.c)]

    def _hide(self, v: Any, powers: list[Any]) -> list[Any]:
        b, integers = self.builder, self.integers
        first = b.mul(v, I64(integers.count))
        first = first if integers.scalar == I64 else b.trunc(first, integers.scalar)
        column = b.add(integers.splat(first), integers.steps())
        out = []
        for r, power in enumerate(powers):
            begin, count = (integers.spread(self.gaps, I64(kind * ROWS + r)) for kind in range(2))
            hidden = b.icmp_unsigned("<", b.sub(column, begin), count)
            out.append(b.select(hidden, self.lanes.constant(HIDDEN), power))
        return out

    def loop_in(self, state: Any, indices: range, body: Any) -> None:
        """Loop over the span with some vectors of memory as the values."""
        start = [self.lanes.load(state, I64(k)) for k in indices]
        for k, value in zip(indices, loop(self.builder, self.count, start, body), strict=True):
            self.lanes.store(value, state, I64(k))


def _total(builder: Any, values: list[Any]) -> Any:
    """Sum of a power of two of vectors, pair by pair."""
    while len(values) > 1:
        values = [builder.fadd(x, y) for x, y in zip(values[::2], values[1::2], strict=True)]
    return values[0]


def _pointers(builder: Any, addresses: Any, count: int) -> list[Any]:
    return [address(builder, value) for value in cgutils.unpack_tuple(builder, addresses, count)]


@emitter
def _add_sums(_: Any, like: Any, span: Any, gaps: Any, classes: Any, addresses: Any) -> Any:
    """Add to the own and other sums of rows and columns.

    ``addresses``: strip, panel, sums of the columns (vectors, 2), sums of the rows (2, ROWS), all vectors.
    The *types* of ``gaps``, an address or None, and ``classes``, None where no column is of the class of a
    row, select the code.
    """

    def codegen(context: Any, b: Any, _: Any, args: Any) -> Any:
        hidden = None if gaps == types.none else address(b, args[2])
        rows, panel, columns, sums = _pointers(b, args[4], 4)
        strip = _Strip(context, b, like, args[1], rows, panel, hidden)
        lanes = strip.lanes
        first = 1 if classes == types.none else 0  # of the kinds that occur

        def vector(k: Any, totals: list[Any]) -> list[Any]:
            v = strip.vector(k)
            parts = [[lanes.exp2(power) for power in strip.powers(v)]]
            if not first:
                pairs = zip(strip.own(v), parts[0], strict=True)
                own = [b.select(same, x, lanes.constant(0.0)) for same, x in pairs]
                parts = [own, [b.fsub(x, y) for x, y in zip(parts[0], own, strict=True)]]  # exactly K or 0
            for kind, part in enumerate(parts, first):
                at = strip.at(v, 2, kind)
                lanes.store(b.fadd(lanes.load(columns, at), _total(b, part)), columns, at)
            return [b.fadd(total, x) for total, x in zip(totals, chain(*parts), strict=True)]

        strip.loop_in(sums, range(first * ROWS, 2 * ROWS), vector)
        return context.get_dummy_value()

    return types.void(like, span, gaps, classes, addresses), codegen


@emitter
def _weigh(_: Any, like: Any, span: Any, gaps: Any, classes: Any, addresses: Any) -> Any:
    """Write K times the weights of both ends.

    ``addresses``: strip, panel, weights of the rows (2, ROWS), of the columns (vectors, 2), the result
    (vectors, ROWS), shifts of the rows (2, ROWS). ``gaps`` and ``classes`` as in `_add_sums`; shifts count
    where there are gaps.
    """

    def codegen(context: Any, b: Any, _: Any, args: Any) -> Any:
        hidden = None if gaps == types.none else address(b, args[2])
        rows, panel, row_weights, column_weights, out, shifts = _pointers(b, args[4], 6)
        strip = _Strip(context, b, like, args[1], rows, panel, hidden)
        lanes, zero = strip.lanes, strip.lanes.constant(0.0)

        def pick(same: Any, own: Any, other: Any) -> Any:
            return other if same is None else b.select(same, own, other)

        def of_row(base: Any, same: Any, r: int) -> Any:
            return pick(same, *(lanes.spread(base, I64(kind * ROWS + r)) for kind in range(2)))

        def vector(k: Any, _: list[Any]) -> list[Any]:
            v = strip.vector(k)
            weights = [lanes.load(column_weights, strip.at(v, 2, kind)) for kind in range(2)]
            own = [None] * ROWS if classes == types.none else strip.own(v)
            for r, (same, power) in enumerate(zip(own, strip.powers(v), strict=True)):
                if hidden is not None:
                    power = b.fneg(lanes.larger(b.fneg(b.fadd(power, of_row(shifts, same, r))), zero))
                weight = b.fadd(of_row(row_weights, same, r), pick(same, *weights))
                lanes.store(b.fmul(lanes.exp2(power), weight), out, strip.at(k, ROWS, r))
            return []

        loop(b, strip.count, [], vector)
        return context.get_dummy_value()

    return types.void(like, span, gaps, classes, addresses), codegen


@emitter
def _pull(_: Any, like: Any, span: Any, addresses: Any) -> Any:
    """Add what `_weigh` wrote, times the differences, to the rows, and take it from the columns.

    ``addresses``: strip, panel, weighted K (vectors, ROWS), columns (vectors, c + 1), rows (c, ROWS).
    """

    def codegen(context: Any, b: Any, _: Any, args: Any) -> Any:
        rows, panel, weighted, columns, out = _pointers(b, args[2], 5)
        strip = _Strip(context, b, like, args[1], rows, panel)
        lanes = strip.lanes

        def coordinate(m: Any, _: list[Any]) -> list[Any]:
            points, at = strip.points(m), [strip.at(m, ROWS, r) for r in range(ROWS)]

            def vector(k: Any, totals: list[Any]) -> list[Any]:
                entry, new = strip.entry(strip.vector(k), m), []
                column, rest = lanes.load(panel, entry), lanes.load(columns, entry)
                for r, (point, total) in enumerate(zip(points, totals, strict=True)):
                    h, gap = lanes.load(weighted, strip.at(k, ROWS, r)), b.fsub(point, column)
                    new.append(lanes.fma(h, gap, total))
                    rest = lanes.fma(b.fneg(h), gap, rest)
                lanes.store(rest, columns, entry)
                return new

            totals = loop(b, strip.count, [lanes.load(out, k) for k in at], vector)
            for k, total in zip(at, totals, strict=True):
                lanes.store(total, out, k)
            return []

        loop(b, strip.c, [], coordinate)
        return context.get_dummy_value()

    return types.void(like, span, addresses), codegen


@emitter
def _add_shifted(_: Any, like: Any, span: Any, gaps: Any, addresses: Any) -> Any:
    """Bring sums of K relative to the largest K of each lane up to date with the vectors of the span.

    ``addresses``: strip, panel, scratch (vectors, ROWS), state (2, ROWS): the largest powers, the sums.
    """

    def codegen(context: Any, b: Any, _: Any, args: Any) -> Any:
        rows, panel, kept, state = _pointers(b, args[3], 4)
        strip = _Strip(context, b, like, args[1], rows, panel, address(b, args[2]))
        lanes = strip.lanes
        old, sums = ([lanes.load(state, I64(kind * ROWS + r)) for r in range(ROWS)] for kind in range(2))

        def largest(k: Any, best: list[Any]) -> list[Any]:
            powers = strip.powers(strip.vector(k))
            for r, power in enumerate(powers):
                lanes.store(power, kept, strip.at(k, ROWS, r))
            return [lanes.larger(power, x) for power, x in zip(powers, best, strict=True)]

        new = loop(b, strip.count, old, largest)

        def relative(power: Any, r: int) -> Any:
            return lanes.exp2(b.fsub(power, new[r]))

        def add(k: Any, totals: list[Any]) -> list[Any]:
            powers = [lanes.load(kept, strip.at(k, ROWS, r)) for r in range(ROWS)]
            return [b.fadd(total, relative(powers[r], r)) for r, total in enumerate(totals)]

        sums = [b.fmul(total, relative(old[r], r)) for r, total in enumerate(sums)]
        for k, value in enumerate([*new, *loop(b, strip.count, sums, add)]):
            lanes.store(value, state, I64(k))
        return context.get_dummy_value()

    return types.void(like, span, gaps, addresses), codegen


@emitter
def _fold_sums(_: Any, like: Any, count: Any, addresses: Any) -> Any:
    """Write the sum of the lanes of each of ``count`` vectors. ``addresses``: vectors, totals."""

    def codegen(context: Any, b: Any, _: Any, args: Any) -> Any:
        lanes = Lanes(context, b, like)
        vectors, totals = _pointers(b, args[2], 2)

        def vector(k: Any, _: list[Any]) -> list[Any]:
            total = lanes.fold(lanes.load(vectors, k), b.fadd)
            b.store(total, b.gep(totals, [k], source_etype=lanes.scalar))
            return []

        loop(b, args[1], [], vector)
        return context.get_dummy_value()

    return types.void(like, count, addresses), codegen


@emitter
def _fold_shifted(_: Any, like: Any, addresses: Any) -> Any:
    """Bring the lanes of `_add_shifted`'s state together. ``addresses``: state, result (2, ROWS) scalars."""

    def codegen(context: Any, b: Any, _: Any, args: Any) -> Any:
        lanes = Lanes(context, b, like)
        state, out = _pointers(b, args[1], 2)

        def row(r: Any, _: list[Any]) -> list[Any]:
            powers, sums = (lanes.load(state, b.add(r, I64(kind * ROWS))) for kind in range(2))
            largest = lanes.fold(powers, lanes.larger)
            scaled = b.fmul(sums, lanes.exp2(b.fsub(powers, lanes.splat(largest))))
            for kind, value in enumerate((largest, lanes.fold(scaled, b.fadd))):
                b.store(value, b.gep(out, [b.add(r, I64(kind * ROWS))], source_etype=lanes.scalar))
            return []

        loop(b, I64(ROWS), [], row)
        return context.get_dummy_value()

    return types.void(like, addresses), codegen


# --------------------------------------------------------------------------------------- a tile of strips


GAPS, MIXED, OTHERS = range(3)  # what vectors are to a strip: some hidden; all classes; other classes alone


@helper
def _piece(spans: Any, s: int, v: int, n_vectors: int) -> Any:
    """What vector v is to strip s, and where the vectors that are the same end."""
    if v < spans[s, 1]:
        return GAPS, spans[s, 1]
    if v < spans[s, 2]:
        return OTHERS, spans[s, 2]
    if v < spans[s, 3]:
        return MIXED, spans[s, 3]
    return OTHERS, n_vectors


@kernel
def add_sums(strips: Any, panel: Any, gaps: Any, spans: Any, columns: Any, state: Any, rows: Any) -> None:
    """Own and other sums of K for a tile.

    Parameters
    ----------
    strips : (strips, c + 1, ROWS) float32 or float64
    panel : (vectors, c + 1, lanes) of the same type
    gaps : (strips, 2, ROWS) int32 or int64, as wide as the floats
        First hidden column of each row, and how many.
    spans : (strips, 4) int64
        Vector to begin with, as those before are hidden; end of the vectors with gaps; begin and end of the
        others that have a column of the class of a row.
    columns : (vectors, 2, lanes)
        Added to.
    state : (2, ROWS, lanes)
        Scratch.
    rows : (strips, 2, ROWS)
        Overwritten.
    """
    like, c, n_vectors = panel[0, 0, 0], panel.shape[1] - 1, panel.shape[0]
    points, sums = panel.ctypes.data, state.ctypes.data
    for s in range(strips.shape[0]):
        state.fill(0)
        addresses = (strips.ctypes.data + s * strips.strides[0], points, columns.ctypes.data, sums)
        v = spans[s, 0]
        while v < n_vectors:
            kind, end = _piece(spans, s, v, n_vectors)
            if kind == GAPS:
                gap = gaps.ctypes.data + s * gaps.strides[0]
                _add_sums(like, (c, v, end - v), gap, 0, addresses)
            elif kind == MIXED:
                _add_sums(like, (c, v, end - v), None, 0, addresses)
            else:
                _add_sums(like, (c, v, end - v), None, None, addresses)
            v = end
        _fold_sums(like, 2 * ROWS, (sums, rows.ctypes.data + s * rows.strides[0]))


@kernel
def add_laplacian(
    strips: Any,
    panel: Any,
    gaps: Any,
    spans: Any,
    shifts: Any,
    row_weights: Any,
    column_weights: Any,
    columns: Any,
    kept: Any,
    state: Any,
    rows: Any,
) -> None:
    """Laplacian product for a tile; shifts count within the spans of the gaps.

    Parameters
    ----------
    strips, panel, gaps, spans
        As in `add_sums`.
    shifts, row_weights : (strips, 2, ROWS)
    column_weights : (vectors, 2, lanes)
    columns : (vectors, c + 1, lanes)
        Added to, but for the labels.
    kept : (BATCH, ROWS, lanes)
        Scratch.
    state : (c, ROWS, lanes)
        Scratch.
    rows : (strips, c, ROWS)
        Overwritten.
    """
    like, c, n_vectors = panel[0, 0, 0], panel.shape[1] - 1, panel.shape[0]
    points, h, sums = panel.ctypes.data, kept.ctypes.data, state.ctypes.data
    for s in range(strips.shape[0]):
        state.fill(0)
        strip = strips.ctypes.data + s * strips.strides[0]
        weights = row_weights.ctypes.data + s * row_weights.strides[0]
        shift = shifts.ctypes.data + s * shifts.strides[0]
        addresses = (strip, points, weights, column_weights.ctypes.data, h, shift)
        v = spans[s, 0]
        while v < n_vectors:
            kind, end = _piece(spans, s, v, n_vectors)
            count = min(BATCH, end - v)
            if kind == GAPS:
                gap = gaps.ctypes.data + s * gaps.strides[0]
                _weigh(like, (c, v, count), gap, 0, addresses)
            elif kind == MIXED:
                _weigh(like, (c, v, count), None, 0, addresses)
            else:
                _weigh(like, (c, v, count), None, None, addresses)
            _pull(like, (c, v, count), (strip, points, h, columns.ctypes.data, sums))
            v += count
        _fold_sums(like, c * ROWS, (sums, rows.ctypes.data + s * rows.strides[0]))


@kernel
def add_log_sums(
    strips: Any, panel: Any, gaps: Any, first: Any, last: Any, kept: Any, state: Any, out: Any
) -> None:
    """Sums of K over segments of the columns, relative to the largest K.

    Parameters
    ----------
    strips, panel, gaps
        As in `add_sums`.
    first, last : (segments,) int64
        Vectors of each segment, at least one.
    kept : (BATCH, ROWS, lanes)
        Scratch.
    state : (2, ROWS, lanes)
        Scratch.
    out : (strips, segments, 2, ROWS)
        Overwritten: the power of two of the largest K, and the sum in its units.
    """
    like, c = panel[0, 0, 0], panel.shape[1] - 1
    points, h, sums = panel.ctypes.data, kept.ctypes.data, state.ctypes.data
    for s in range(strips.shape[0]):
        strip = strips.ctypes.data + s * strips.strides[0]
        gap = gaps.ctypes.data + s * gaps.strides[0]
        for k in range(len(first)):
            for r in range(ROWS):
                for t in range(state.shape[2]):
                    state[0, r, t] = NONE
                    state[1, r, t] = 0
            v = first[k]
            while v < last[k]:
                count = min(BATCH, last[k] - v)
                _add_shifted(like, (c, v, count), gap, (strip, points, h, sums))
                v += count
            _fold_shifted(like, (sums, out.ctypes.data + s * out.strides[0] + k * out.strides[1]))


# ----------------------------------------------------------------------- what ``neighbours.py`` calls


def sums(a: Array, b: Array, gaps: Array) -> tuple[Array, Array]:
    """Own and other sums for rows and columns, (2, n) and (2, m) in float64."""
    tile = _Tile(a, b, gaps)
    columns, rows = tile.columns(2), tile.rows(2)
    add_sums(tile.strips, tile.panel, tile.gaps, tile.spans, columns, tile.vectors(2), rows)
    return _joined(rows, a.shape[1]), _joined(columns, b.shape[1])


def laplacian(
    a: Array, b: Array, gaps: Array, shift: Array | None, row_weights: Array, column_weights: Array
) -> tuple[Array, Array]:
    """Laplacian products for rows and columns, (c, n) and (c, m) in float64."""
    tile, c = _Tile(a, b, gaps), len(a) - 1
    columns, rows = tile.columns(c + 1), tile.rows(c)
    if shift is not None:
        tile.spans[:] = 0, len(tile.panel), 0, 0
    add_laplacian(
        tile.strips,
        tile.panel,
        tile.gaps,
        tile.spans,
        tile.rows(2) if shift is None else _cut(shift, ROWS, 0),
        _cut(row_weights, ROWS, 0),
        _cut(column_weights, tile.lanes, 0),
        columns,
        tile.vectors(BATCH),
        tile.vectors(c),
        rows,
    )
    return _joined(rows, a.shape[1]), _joined(columns[:, :-1], b.shape[1])


def log_sums(a: Array, b: Array, gaps: Array, starts: Array) -> Array:
    """Binary logarithms of the sums over the segments of columns that begin at ``starts``, (n, segments)."""
    lanes = BYTES // b.itemsize
    lengths = np.diff(starts, append=b.shape[1])
    last = np.cumsum(-(-lengths // lanes))  # each segment begins with a vector of its own
    first = np.concatenate([[0], last[:-1]])
    place = np.arange(b.shape[1]) + np.repeat(first * lanes - starts, lengths)
    padded = np.full((len(b), int(last[-1]) * lanes), FAR, b.dtype)
    padded[:, place] = b
    tile = _Tile(a, padded, np.stack([place[gaps[0]], gaps[1]]))
    out = np.empty((len(tile.strips), len(starts), 2, ROWS), b.dtype)
    kept, state = tile.vectors(BATCH), tile.vectors(2)
    add_log_sums(tile.strips, tile.panel, tile.gaps, first, last, kept, state, out)
    powers, totals = out[:, :, 0].astype(np.float64), out[:, :, 1].astype(np.float64)
    with np.errstate(divide="ignore"):
        logs: Array = powers + np.log2(totals)
    return _joined(logs, a.shape[1]).T


class _Tile:
    """Points of a tile in strips and a panel, and what the compiled functions want beside them."""

    def __init__(self, a: Array, b: Array, gaps: Array) -> None:
        self.lanes = BYTES // b.itemsize
        self.strips, self.panel = _cut(a, ROWS, FAR), _cut(b, self.lanes, FAR)
        first, count = np.pad(gaps, ((0, 0), (0, -a.shape[1] % ROWS)), mode="edge")
        self.gaps = _cut(np.stack([first, count]).astype(f"i{b.itemsize}"), ROWS, 0)
        stop = first + count
        begin = np.where(first == 0, stop // self.lanes, 0).reshape(-1, ROWS).min(axis=1)
        end = np.where(count > 0, -(-stop // self.lanes), 0).reshape(-1, ROWS).max(axis=1)
        self.spans = np.stack([begin, end, *self._with_own(a[-1], b[-1])], axis=1)

    def _with_own(self, rows: Array, columns: Array) -> tuple[Array, Array]:
        """First and last vector, for each strip, with a column of the class of a row; all if unordered."""
        if (columns[1:] < columns[:-1]).any():
            return np.zeros(len(self.strips), np.int64), np.full(len(self.strips), len(self.panel))
        labels = np.pad(rows, (0, -len(rows) % ROWS), mode="edge").reshape(-1, ROWS)
        first = np.searchsorted(columns, labels.min(axis=1), "left")
        last = np.searchsorted(columns, labels.max(axis=1), "right")
        return first // self.lanes, np.where(first < last, -(-last // self.lanes), 0)

    def rows(self, height: int) -> Array:
        return np.zeros((len(self.strips), height, ROWS), self.panel.dtype)

    def columns(self, height: int) -> Array:
        zeros = aligned((len(self.panel), height, self.lanes), self.panel.dtype)
        zeros.fill(0)
        return zeros

    def vectors(self, count: int) -> Array:
        """Scratch: ``count`` vectors for each row of a strip."""
        return aligned((count, ROWS, self.lanes), self.panel.dtype)


def _cut(values: Array, width: int, padding: float) -> Array:
    """Columns (k, m) in pieces, (ceil(m / width), k, width); the last one padded."""
    height, length = values.shape
    whole, rest = divmod(length, width)
    out = aligned((whole + (rest > 0), height, width), values.dtype)
    out[:whole] = values[:, : whole * width].reshape(height, whole, width).transpose(1, 0, 2)
    if rest:
        out[whole] = padding
        out[whole, :, :rest] = values[:, whole * width :]
    return out


def _joined(pieces: Array, length: int) -> Array:
    """The first columns of what was cut, (k, length) in float64."""
    joined: Array = pieces.transpose(1, 0, 2).reshape(pieces.shape[1], -1)[:, :length].astype(np.float64)
    return joined
