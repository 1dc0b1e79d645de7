"""Compiled side of ``hal.py``: knot planes, the bit-sliced Gram tile and its plain twin.

Planes have shape (ceil(n / 8), words, d, 8): bit b of word k of row i and coordinate j says whether the knot
that owns bit 64 k + b is at most row i there. The AND of the planes of two rows holds the knots below both;
adding its d bits gives the number g of coordinates in which a knot is below, 64 knots at once, as planes of
binary digits. The weight of g is a sum over the sets of digits that are all 1: a kernel value is a weighted
sum of popcounts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import float64, types, uint64
from numba.core import cgutils

from gramian.kernels._jit import emitter, helper, kernel
from gramian.kernels._lanes import I64, Lanes, add_bits, address, counter, loop
from gramian.kernels.hal import ALL, DIAGONAL, LANES, UPPER

GROUP = 4  # blocks of rows that stay close while a block of columns passes: more would crowd it out


@kernel
def fill_planes(rows: Any, by_row: Any, knots: Any, by_knot: Any, bits: Any, shift: int, out: Any) -> None:
    """Write the planes of n rows.

    Parameters
    ----------
    rows : (n, d) float64
    by_row : (d, n) int64
        Rows in increasing order along each coordinate.
    knots : (d, s) float64
    by_knot : (d, s) int64
        Knots in increasing order along each coordinate.
    bits : (s,) int64
        Bit of each knot.
    shift : int
        Binary logarithm of the knots from one row of the prefix table to the next.
    out : (ceil(n / 8), words, d, 8) uint64
        Overwritten; rows beyond n are zero.
    """
    d, size = knots.shape
    table = np.empty(((size >> shift) + 1, out.shape[1]), np.uint64)
    below = np.zeros(LANES * out.shape[0], np.int64)
    for j in range(d):
        _fill_table(by_knot, bits, j, 1 << shift, table)
        _count_below(rows, by_row, knots, by_knot, j, below)
        for block in range(out.shape[0]):
            for k in range(out.shape[1]):
                for t in range(LANES):
                    out[block, k, j, t] = table[below[LANES * block + t] >> shift, k]
            for t in range(LANES):
                count = below[LANES * block + t]
                for p in range(count >> shift << shift, count):
                    bit = bits[by_knot[j, p]]
                    out[block, bit >> 6, j, t] |= uint64(1) << uint64(bit & 63)


@helper
def _fill_table(by_knot: Any, bits: Any, j: int, stride: int, table: Any) -> None:
    """Planes of a row above the first 0, stride, 2 stride, ... knots of coordinate j."""
    for k in range(table.shape[1]):
        table[0, k] = uint64(0)
    for s in range(1, table.shape[0]):
        for k in range(table.shape[1]):
            table[s, k] = table[s - 1, k]
        for p in range((s - 1) * stride, s * stride):
            bit = bits[by_knot[j, p]]
            table[s, bit >> 6] |= uint64(1) << uint64(bit & 63)


@helper
def _count_below(rows: Any, by_row: Any, knots: Any, by_knot: Any, j: int, below: Any) -> None:
    """How many of the knots are at most each row's value: rows and knots merge in order."""
    count = 0
    for i in range(rows.shape[0]):
        row = by_row[j, i]
        while count < knots.shape[1] and knots[j, by_knot[j, count]] <= rows[row, j]:
            count += 1
        below[row] = count


@emitter
def _add_block(_: Any, addresses: Any, weights: Any, scale: Any) -> Any:
    """Add ``scale`` times the kernel of the first rows of one block with the 8 rows of another.

    ``addresses``: the two blocks of planes, words, rows, the output and the numbers from one of its rows to
    the next. The *type* of ``weights``, a float or None a term, selects the code.
    """

    def codegen(context: Any, builder: Any, _: Any, args: Any) -> Any:
        pa, pb, n_words, n_rows, out, stride = cgutils.unpack_tuple(builder, args[0], 6)
        words, floats = Lanes(context, builder, uint64), Lanes(context, builder, float64)
        values = cgutils.unpack_tuple(builder, args[1], len(weights))
        terms = {g: floats.splat(values[g - 1]) for g, kind in enumerate(weights, 1) if kind == float64}
        scale = floats.splat(args[2])

        def row(r: Any, _: Any) -> list[Any]:
            counts = _count_sets(words, len(weights), list(terms), (pa, pb, r), n_words)
            total = floats.constant(0.0)
            for weight, count in zip(terms.values(), counts, strict=True):
                total = floats.fma(weight, counter(words, floats, count), total)
            target = address(builder, builder.add(out, builder.mul(builder.mul(r, stride), I64(8))))
            floats.store(floats.fma(scale, total, floats.load(target, I64(0))), target, I64(0))
            return []

        loop(builder, n_rows, [], row)
        return context.get_dummy_value()

    return types.void(addresses, weights, scale), codegen


def _count_sets(words: Lanes, d: int, sets: list[int], at: tuple[Any, Any, Any], n_words: Any) -> list[Any]:
    """For each set of digits, spelled as a number, the knots where all its digits are 1.

    ``at``: the block of rows, the block of columns, and which row.
    """
    b = words.builder
    pa, pb = address(b, b.add(at[0], b.mul(at[2], I64(8)))), address(b, at[1])

    def word(k: Any, counts: list[Any]) -> list[Any]:
        first = b.mul(k, I64(d))
        bits = []
        for j in range(d):
            plane = b.add(first, I64(j))
            bits.append(b.and_(words.spread(pa, b.mul(plane, I64(LANES))), words.load(pb, plane)))
        digits = add_bits(words, bits)
        planes = {0: words.constant(-1)}
        for g in range(1, d + 1):  # what no term needs is dead code
            low = g & -g
            planes[g] = (
                b.and_(planes[g ^ low], digits[low.bit_length() - 1])
                if g ^ low
                else digits[low.bit_length() - 1]
            )
        return [b.add(count, words.popcount(planes[g])) for g, count in zip(sets, counts, strict=True)]

    return loop(b, n_words, [words.constant(0)] * len(sets), word)


@kernel
def add_tile(
    pa: Any, pb: Any, first: Any, last: Any, scales: Any, weights: Any, part: int, edge: Any, out: Any
) -> None:
    """Add the kernel of all pairs of rows to ``out``, one pass for each run of words.

    Parameters
    ----------
    pa, pb : (blocks, words, d, 8) uint64
        Planes of the rows and of the columns.
    first, last : (passes,) int64
        The words of each pass, few enough to stay in the first cache.
    scales : (passes,) float64
        Weight of the knots of each pass.
    weights : tuple of float or None
        Weight of each set of digits, spelled 1 to d; None where it vanishes.
    part : int
        ALL; UPPER: rows and columns are the same, half is computed and mirrored; DIAGONAL: block i with
        block i alone, into an ``out`` of 8 columns.
    edge : (8, 8) float64
        Scratch for the last columns.
    out : (n, p) float64, rows contiguous
    """
    n_rows, n_columns = out.shape
    stride = out.strides[0] // 8
    for s in range(len(first)):
        n_words = last[s] - first[s]
        for start in range(0, pa.shape[0], GROUP):
            for c in range(0 if part == ALL else start, pb.shape[0]):
                for i in range(start, min(start + GROUP, pa.shape[0])):
                    if (part == UPPER and i > c) or (part == DIAGONAL and i != c):
                        continue
                    rows = min(LANES, n_rows - LANES * i)
                    column = 0 if part == DIAGONAL else LANES * c
                    a = pa.ctypes.data + pa.strides[0] * i + pa.strides[1] * first[s]
                    b = pb.ctypes.data + pb.strides[0] * c + pb.strides[1] * first[s]
                    if column + LANES <= n_columns:
                        target = out.ctypes.data + out.strides[0] * LANES * i + 8 * column
                        _add_block((a, b, n_words, rows, target, stride), weights, scales[s])
                    else:
                        edge.fill(0.0)
                        _add_block((a, b, n_words, rows, edge.ctypes.data, LANES), weights, scales[s])
                        _add_edge(edge, LANES * i, column, out)
                    if part == UPPER and c > i and s + 1 == len(first):
                        _mirror(LANES * i, column, out)


@helper
def _add_edge(edge: Any, row: int, column: int, out: Any) -> None:
    for r in range(min(LANES, out.shape[0] - row)):
        for t in range(out.shape[1] - column):
            out[row + r, column + t] += edge[r, t]


@helper
def _mirror(row: int, column: int, out: Any) -> None:
    for t in range(min(LANES, out.shape[1] - column)):
        for r in range(LANES):
            out[column + t, row + r] = out[row + r, column + t]


@kernel
def add_tile_plain(
    pa: Any, pb: Any, first: Any, last: Any, scales: Any, weights: Any, part: int, out: Any
) -> None:
    """The same as `add_tile` by plain loops; ``weights`` (d,) float64, 0 where a term vanishes."""
    d = pa.shape[2]
    longest = LANES
    for s in range(len(first)):
        longest = max(longest, LANES * (last[s] - first[s]))
    rows = np.empty((LANES, d, longest), np.uint64)
    columns = np.empty((d, longest), np.uint64)
    digits = np.empty((64, longest), np.uint64)
    carry, total = np.empty(longest, np.uint64), np.empty(longest)
    for s in range(len(first)):
        size = LANES * (last[s] - first[s])
        for i in range(pa.shape[0]):
            _repeat_rows(pa, i, first[s], size, rows)
            for c in range(0 if part == ALL else i, i + 1 if part == DIAGONAL else pb.shape[0]):
                _gather_columns(pb, c, first[s], size, columns)
                column = 0 if part == DIAGONAL else LANES * c
                for r in range(min(LANES, out.shape[0] - LANES * i)):
                    _add_digits(rows[r], columns, size, digits, carry)
                    _weigh(digits, weights, size, carry, total)
                    for t in range(min(LANES, out.shape[1] - column)):
                        value = 0.0
                        for k in range(t, size, LANES):
                            value += total[k]
                        out[LANES * i + r, column + t] += scales[s] * value
                if part == UPPER and c > i and s + 1 == len(first):
                    _mirror(LANES * i, column, out)


@helper
def _repeat_rows(pa: Any, i: int, first: int, size: int, rows: Any) -> None:
    """Each word of each row of a block, eight times over: (8, d, 8 words)."""
    for r in range(LANES):
        for j in range(pa.shape[2]):
            for k in range(size // LANES):
                for t in range(LANES):
                    rows[r, j, LANES * k + t] = pa[i, first + k, j, r]


@helper
def _gather_columns(pb: Any, c: int, first: int, size: int, columns: Any) -> None:
    """The planes of a block, one row a coordinate: (d, 8 words)."""
    for j in range(pb.shape[2]):
        for k in range(size // LANES):
            for t in range(LANES):
                columns[j, LANES * k + t] = pb[c, first + k, j, t]


@helper
def _add_digits(row: Any, columns: Any, size: int, digits: Any, carry: Any) -> None:
    """Add the bits of all coordinates, each rippling through the binary digits."""
    for j in range(row.shape[0]):
        p, q = row[j], columns[j]
        for t in range(size):
            carry[t] = p[t] & q[t]
        level = 0
        while (j + 1) >> level:
            digit = digits[level]
            if j + 1 == 1 << level:
                digit.fill(uint64(0))
            for t in range(size):
                above = carry[t] & digit[t]
                digit[t] ^= carry[t]
                carry[t] = above
            level += 1


@helper
def _weigh(digits: Any, weights: Any, size: int, both: Any, total: Any) -> None:
    """Weighted popcounts of the sets of digits."""
    total.fill(0.0)
    for g in range(1, len(weights) + 1):
        if weights[g - 1] != 0.0:
            both.fill(~uint64(0))
            for level in range(64):
                if g >> level & 1:
                    digit = digits[level]
                    for t in range(size):
                        both[t] &= digit[t]
            for t in range(size):
                total[t] += weights[g - 1] * float64(_popcount(both[t]))


@helper
def _popcount(x: Any) -> Any:
    """Bits that are set; LLVM recognises this and uses the machine's instruction."""
    x = x - ((x >> uint64(1)) & uint64(0x5555555555555555))
    x = (x & uint64(0x3333333333333333)) + ((x >> uint64(2)) & uint64(0x3333333333333333))
    x = (x + (x >> uint64(4))) & uint64(0x0F0F0F0F0F0F0F0F)
    return (x * uint64(0x0101010101010101)) >> uint64(56)
