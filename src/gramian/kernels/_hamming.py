"""Compiled side of ``hamming.py``: the bits in which rows differ, one word of eight rows a vector."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types, uint64
from numba.core import cgutils

from gramian.kernels._jit import emitter, kernel
from gramian.kernels._lanes import I32, I64, Lanes, address, loop
from gramian.kernels.hamming import COLUMNS, GROUP, ROWS

LANES = 8  # columns that a vector holds


class _Tile:
    """A tile of ROWS x COLUMNS distances, spoken to one LLVM builder.

    ``addresses``: the first row, the block of columns, words of a row, bits, the output, bytes from one of
    its rows to the next.
    """

    def __init__(self, context: Any, builder: Any, addresses: Any) -> None:
        self.lanes, self.builder = Lanes(context, builder, uint64), builder
        first, columns, self.n_words, self.bits, self.out, self.stride = cgutils.unpack_tuple(
            builder, addresses, 6
        )
        self.row_bytes = builder.mul(self.n_words, I64(8))
        self.first, self.columns = first, address(builder, columns)

    def row(self, r: Any) -> Any:
        return address(self.builder, self.builder.add(self.first, self.builder.mul(r, self.row_bytes)))

    def column(self, word: Any, v: Any) -> Any:
        """Word of the columns of vector v."""
        at = self.builder.add(self.builder.mul(word, I64(COLUMNS // LANES)), v)
        return self.lanes.load(self.columns, at)

    def differ(self, row: Any, word: Any, column: Any) -> Any:
        return self.builder.xor(self.lanes.spread(row, word), column)

    def finish(self, distances: Any, r: Any, v: Any) -> None:
        """Write ``(bits - 2 distances) / bits``."""
        b, narrow = self.builder, ir.VectorType(I32, LANES)
        single = ir.VectorType(ir.FloatType(), LANES)
        rest = b.sub(self.lanes.splat(self.bits), b.add(distances, distances))
        bits = b.sitofp(b.trunc(self.lanes.splat(self.bits), narrow), single)
        values = b.fdiv(b.sitofp(b.trunc(rest, narrow), single), bits)
        place = b.gep(address(b, b.add(self.out, b.mul(r, self.stride))), [v], source_etype=single)
        b.store(values, place).align = 4


@emitter
def _compare_tile(_: Any, addresses: Any) -> Any:
    """The kernel of ROWS rows with a block of COLUMNS columns, see `_Tile`."""

    def codegen(context: Any, builder: Any, _: Any, args: Any) -> Any:
        tile = _Tile(context, builder, args[0])
        if tile.lanes.counts_bits:
            _by_population_count(tile)
        else:
            _by_carry_save(tile)
        return context.get_dummy_value()

    return types.void(addresses), codegen


def _by_population_count(tile: _Tile) -> None:
    """Where a vector's bits are counted by one instruction: all distances of the tile at once."""
    vectors = range(COLUMNS // LANES)
    rows = [tile.row(I64(r)) for r in range(ROWS)]

    def word(k: Any, totals: list[Any]) -> list[Any]:
        columns = [tile.column(k, I64(v)) for v in vectors]
        counts = [tile.lanes.popcount(tile.differ(row, k, column)) for row in rows for column in columns]
        return [tile.builder.add(total, count) for total, count in zip(totals, counts, strict=True)]

    totals = loop(tile.builder, tile.n_words, [tile.lanes.constant(0)] * (ROWS * len(vectors)), word)
    for at, total in enumerate(totals):
        tile.finish(total, I64(at // len(vectors)), I64(at % len(vectors)))


def _by_carry_save(tile: _Tile) -> None:
    """Elsewhere: add GROUP words bit by bit (Harley and Seal) and count one plane of their sums."""
    b, lanes = tile.builder, tile.lanes

    def pair(at: Any, _: Any) -> list[Any]:
        r, v = b.udiv(at, I64(COLUMNS // LANES)), b.urem(at, I64(COLUMNS // LANES))
        row = tile.row(r)

        def group(g: Any, state: list[Any]) -> list[Any]:
            first = b.mul(g, I64(GROUP))
            words = [b.add(first, I64(k)) for k in range(GROUP)]
            planes = [[tile.differ(row, word, tile.column(word, v)) for word in words]]
            sums = []
            for digit in state[:-1]:
                carries = []
                for x, y in zip(planes[-1][::2], planes[-1][1::2], strict=True):
                    carries.append(lanes.majority(digit, x, y))
                    digit = lanes.parity(digit, x, y)
                sums.append(digit)
                planes.append(carries)
            return [*sums, b.add(state[-1], lanes.popcount(planes[-1][0]))]

        depth = GROUP.bit_length() - 1
        groups = b.udiv(tile.n_words, I64(GROUP))
        *digits, total = loop(b, groups, [lanes.constant(0)] * (depth + 1), group)
        for digit in reversed(digits):
            total = b.add(b.add(total, total), lanes.popcount(digit))
        tile.finish(total, r, v)
        return []

    loop(b, I64(ROWS * COLUMNS // LANES), [], pair)


@kernel
def compare(a: Any, b: Any, bits: int, out: Any) -> None:
    """The Hamming kernel of all pairs.

    Parameters
    ----------
    a : (n, words) uint64, C-contiguous
        n a multiple of ROWS, words of GROUP.
    b : (blocks, words, COLUMNS) uint64, C-contiguous
    bits : int
    out : (at least n, at least blocks * COLUMNS) float32, C-contiguous
    """
    n_words = a.shape[1]
    for c in range(b.shape[0]):
        column, columns = COLUMNS * c, b[c].ctypes.data
        for i in range(0, a.shape[0], ROWS):
            tile = out[i : i + ROWS, column : column + COLUMNS]
            _compare_tile((a[i].ctypes.data, columns, n_words, bits, tile.ctypes.data, out.strides[0]))


@kernel
def turn(block: Any, out: Any) -> None:
    """Fill ``out`` with the transpose of as much of a block, square by square of one cache line a side."""
    n_rows, n_columns = out.shape
    for i in range(0, n_columns, COLUMNS):
        for j in range(0, n_rows, COLUMNS):
            for t in range(j, min(j + COLUMNS, n_rows)):
                for r in range(i, min(i + COLUMNS, n_columns)):
                    out[t, r] = block[r, t]
