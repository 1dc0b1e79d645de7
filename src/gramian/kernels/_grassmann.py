"""Compiled side of ``grassmann.py``: determinants of many small matrices, one pair of subspaces a lane.

Where a matrix has a number, there is a group here: the numbers of WIDTH vectors of pairs, which gives the
processor independent chains of operations.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from gramian.kernels._jit import emitter, kernel
from gramian.kernels._lanes import I64, Lanes, address, loop
from gramian.kernels._memory import BYTES

WIDTH = 2  # vectors of a group, together GROUP bytes


class _Groups:
    """Rows of groups in memory, spoken to one LLVM builder."""

    def __init__(self, context: Any, builder: Any, scalar: Any) -> None:
        self.lanes, self.builder = Lanes(context, builder, scalar), builder

    def load(self, pointer: Any, index: Any) -> list[Any]:
        first = self.builder.mul(index, I64(WIDTH))
        return [self.lanes.load(pointer, self.builder.add(first, I64(v))) for v in range(WIDTH)]

    def store(self, group: list[Any], pointer: Any, index: Any) -> None:
        first = self.builder.mul(index, I64(WIDTH))
        for v, value in enumerate(group):
            self.lanes.store(value, pointer, self.builder.add(first, I64(v)))

    def dot(self, pa: Any, pb: Any, count: Any) -> list[Any]:
        """Sum of the products of the first ``count`` groups of two rows."""

        def term(p: Any, totals: list[Any]) -> list[Any]:
            triples = zip(self.load(pa, p), self.load(pb, p), totals, strict=True)
            return [self.lanes.fma(*triple) for triple in triples]

        return loop(self.builder, count, [self.lanes.constant(0.0)] * WIDTH, term)


@emitter
def _take(_: Any, like: Any, addresses: Any) -> Any:
    """Copy groups to two rows. ``addresses``: the first group, bytes to the next, groups, the rows."""

    def codegen(context: Any, builder: Any, _: Any, args: Any) -> Any:
        groups = _Groups(context, builder, like)
        source, stride, count, row, current = cgutils.unpack_tuple(builder, args[1], 5)

        def copy(p: Any, _: Any) -> list[Any]:
            group = groups.load(address(builder, builder.add(source, builder.mul(p, stride))), I64(0))
            groups.store(group, address(builder, row), p)
            groups.store(group, address(builder, current), p)
            return []

        loop(builder, count, [], copy)
        return context.get_dummy_value()

    return types.void(like, addresses), codegen


@emitter
def _eliminate(_: Any, like: Any, addresses: Any, at: Any) -> Any:
    """Entry ``at`` of the current row of the triangular factor.

    ``addresses``: the current row before division by the pivots, the same after it, the other row, the
    inverse of its pivot, the pivot of the current row.
    """

    def codegen(context: Any, builder: Any, _: Any, args: Any) -> Any:
        groups = _Groups(context, builder, like)
        pointers = [address(builder, value) for value in cgutils.unpack_tuple(builder, args[1], 5)]
        current, row, other, inverse, pivot = pointers
        entries = [builder.fneg(x) for x in groups.dot(current, other, args[2])]
        factors = [builder.fmul(x, y) for x, y in zip(entries, groups.load(inverse, I64(0)), strict=True)]
        groups.store(entries, current, args[2])
        groups.store(factors, row, args[2])
        triples = zip(groups.load(pivot, I64(0)), entries, factors, strict=True)
        groups.store([builder.fsub(d, builder.fmul(x, y)) for d, x, y in triples], pivot, I64(0))
        return context.get_dummy_value()

    return types.void(like, addresses, at), codegen


@emitter
def _finish(_: Any, like: Any, addresses: Any, count: Any) -> Any:
    """Complete a pivot by the first ``count`` groups of its row, and multiply the determinant by it.

    ``addresses``: the row, the pivot, its inverse, the determinants in float64.
    """

    def codegen(context: Any, builder: Any, _: Any, args: Any) -> Any:
        groups = _Groups(context, builder, like)
        lanes, wide = groups.lanes, ir.VectorType(ir.DoubleType(), groups.lanes.count)
        pointers = [address(builder, value) for value in cgutils.unpack_tuple(builder, args[1], 4)]
        current, pivot, inverse, product = pointers
        squares = groups.dot(current, current, args[2])
        values = [builder.fsub(d, x) for d, x in zip(groups.load(pivot, I64(0)), squares, strict=True)]
        groups.store([builder.fdiv(lanes.constant(1.0), value) for value in values], inverse, I64(0))
        for v, value in enumerate(values):
            place = builder.gep(product, [I64(v)], source_etype=wide)
            old = builder.load(place, typ=wide)
            old.align = 8
            factor = value if lanes.vector == wide else builder.fpext(value, wide)
            builder.store(builder.fmul(old, factor), place).align = 8
        return context.get_dummy_value()

    return types.void(like, addresses, count), codegen


@kernel
def determinants(C: Any, scale: Any, out: Any) -> None:
    """Determinants of ``scale I - C C'`` for every pair, by elimination without pivoting.

    Parameters
    ----------
    C : (k, n_rows, n_inner, n_columns), float32 or float64, C-contiguous
        ``C[:, i, :, j]`` is the matrix of pair (i, j); n_columns a multiple of 32 (float64: 16).
    scale : number of the same type
        Above the largest squared singular value of every C.
    out : (n_rows, n_columns) float64
        Overwritten.
    """
    k, n_rows, n_inner, n_columns = C.shape
    width, length = WIDTH * BYTES // C.itemsize, n_inner + k
    buffer = np.empty(((k + 1) * length + k + 2) * width, C.dtype)
    first = -buffer.ctypes.data % BYTES // C.itemsize  # vectors that cross cache lines cost twice as much
    buffer = buffer[first : first + buffer.size - width].reshape(-1, width)
    rows = buffer[: k * length].reshape(k, length, width)  # c_a, then row a of the triangular factor
    current = buffer[k * length : (k + 1) * length]  # the same before division by the pivots
    inverses, pivot = buffer[-k - 1 : -1], buffer[-1]
    zero, at_current, at_pivot = scale - scale, current.ctypes.data, pivot.ctypes.data
    for i in range(n_rows):
        for j in range(0, n_columns, width):
            product = out[i, j : j + width]
            product[:] = 1.0
            for a in range(k):
                row, inverse = rows[a].ctypes.data, inverses[a].ctypes.data
                _take(zero, (C[a, i, 0, j:].ctypes.data, C.strides[2], n_inner, row, at_current))
                pivot[:] = scale
                for b in range(a):
                    addresses = (at_current, row, rows[b].ctypes.data, inverses[b].ctypes.data, at_pivot)
                    _eliminate(zero, addresses, n_inner + b)
                _finish(zero, (at_current, at_pivot, inverse, product.ctypes.data), n_inner)
