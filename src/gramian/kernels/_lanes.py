"""A vocabulary of 64-byte vectors over LLVM: inner loops are written in its words.

One source serves every machine: LLVM cuts a vector into what the machine has. What AVX-512 does in one
instruction that LLVM would not find is asked for by name there; numba's cache key names the machine too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types

from gramian.kernels._memory import BYTES

I32, I64 = ir.IntType(32), ir.IntType(64)
POINTER = ir.PointerType()
# Minimax polynomials of 2**x on [-.5, .5], relative error 2e-9 and 2e-16, by bits of the float type.
# fmt: off
TWO_TO = {
    32: (1.0, 0.6931471824645996, 0.24022646248340607, 0.05550328642129898, 0.009618489071726799,
         0.0013399930903688073, 0.0001534581242594868),
    64: (1.0, 0.6931471805599497, 0.24022650695908768, 0.055504108664458846, 0.009618129108034373,
         0.0013333558228562122, 0.00015403529961352443, 1.5252658115635544e-05, 1.3215662740180713e-06,
         1.0208538130852747e-07, 7.037293297794372e-09),
}
# fmt: on
FORMAT = {32: (23, 127), 64: (52, 1023)}  # bits of the mantissa, bias of the exponent


class Lanes:
    """Words for vectors of one scalar type, spoken to one LLVM builder.

    Parameters
    ----------
    context, builder
        What an intrinsic's code generator is handed.
    scalar : numba type
        uint64, int64, float64, float32 or another integer: the type of a lane.
    """

    def __init__(self, context: Any, builder: Any, scalar: Any) -> None:
        self.builder, self.context = builder, context
        self.scalar = context.get_value_type(scalar)
        self.count = BYTES * 8 // scalar.bitwidth
        self.vector = ir.VectorType(self.scalar, self.count)
        self.code = ("f" if isinstance(scalar, types.Float) else "i") + str(scalar.bitwidth)

    def constant(self, value: float) -> Any:
        """The same number in every lane."""
        return ir.Constant(self.vector, [value] * self.count)

    def splat(self, value: Any) -> Any:
        """A scalar in every lane."""
        empty = ir.Constant(self.vector, ir.Undefined)
        zeros = ir.Constant(ir.VectorType(I32, self.count), [0] * self.count)
        return self.builder.shuffle_vector(self.builder.insert_element(empty, value, I32(0)), empty, zeros)

    def load(self, pointer: Any, index: Any) -> Any:
        """The vector at ``pointer``, ``index`` vectors on."""
        value = self.builder.load(self._at(pointer, index, self.vector), typ=self.vector)
        value.align = self._item
        return value

    def store(self, value: Any, pointer: Any, index: Any) -> None:
        """Write the vector at ``pointer``, ``index`` vectors on."""
        self.builder.store(value, self._at(pointer, index, self.vector)).align = self._item

    def spread(self, pointer: Any, index: Any) -> Any:
        """The scalar at ``pointer``, ``index`` scalars on, in every lane."""
        return self.splat(self.builder.load(self._at(pointer, index, self.scalar), typ=self.scalar))

    def steps(self) -> Any:
        """0, 1, 2, ... from lane to lane."""
        return ir.Constant(self.vector, list(range(self.count)))

    def larger(self, x: Any, y: Any) -> Any:
        """The larger of two floats, lane by lane."""
        return self.builder.select(self.builder.fcmp_ordered(">", x, y), x, y)

    def exp2(self, x: Any) -> Any:
        """``2**x`` for floats up to 100, within two units in the last place; 0 below the normal numbers."""
        b, bits = self.builder, BYTES * 8 // self.count
        mantissa, bias = FORMAT[bits]
        x = self.larger(x, self.constant(1.0 - bias))
        magic = self.constant(1.5 * 2.0**mantissa + bias - 1)
        rounded = b.fadd(x, magic)  # its low bits are those of an exponent
        rest = b.fsub(x, b.fsub(rounded, magic))
        square, coefficients = b.fmul(rest, rest), [self.constant(2 * a) for a in TWO_TO[bits]]
        even, odd = (self._horner(coefficients[k::2], square) for k in range(2))  # two chains, half as long
        integers = ir.VectorType(ir.IntType(bits), self.count)
        shift = ir.Constant(integers, [mantissa] * self.count)
        power = b.bitcast(b.shl(b.bitcast(rounded, integers), shift), self.vector)
        return b.fmul(self.fma(odd, rest, even), power)

    def _horner(self, coefficients: Sequence[Any], x: Any) -> Any:
        *lower, value = coefficients
        for a in reversed(lower):
            value = self.fma(value, x, a)
        return value

    def fold(self, x: Any, operation: Callable[[Any, Any], Any]) -> Any:
        """All lanes brought together by an operation on vectors, as a scalar."""
        half, empty = self.count, ir.Constant(self.vector, ir.Undefined)
        while half > 1:
            half //= 2
            order = [(k + half) % self.count for k in range(self.count)]
            turned = ir.Constant(ir.VectorType(I32, self.count), order)
            x = operation(x, self.builder.shuffle_vector(x, empty, turned))
        return self.builder.extract_element(x, I32(0))

    def popcount(self, x: Any) -> Any:
        """Bits that are set, in each lane."""
        return self._call(f"llvm.ctpop.v{self.count}{self.code}", x)

    def fma(self, x: Any, y: Any, z: Any) -> Any:
        """``x * y + z``: one instruction where there is one, else two (llvm.fma would call a function)."""
        return self._call(f"llvm.fmuladd.v{self.count}{self.code}", x, y, z)

    def parity(self, x: Any, y: Any, z: Any) -> Any:
        """The sum digit of three bits."""
        if self._ternary:
            return self._look_up(x, y, z, 0x96)
        return self.builder.xor(self.builder.xor(x, y), z)

    def majority(self, x: Any, y: Any, z: Any) -> Any:
        """The carry of three bits."""
        if self._ternary:
            return self._look_up(x, y, z, 0xE8)
        b = self.builder
        return b.or_(b.and_(x, y), b.and_(b.xor(x, y), z))

    @property
    def counts_bits(self) -> bool:
        """Whether `popcount` is one instruction of this machine."""
        return "+avx512vpopcntdq" in str(self.context.codegen().magic_tuple())

    @property
    def _item(self) -> int:
        return BYTES // int(self.count)

    @property
    def _ternary(self) -> bool:
        return self.code == "i64" and "+avx512f" in str(self.context.codegen().magic_tuple())

    def _look_up(self, x: Any, y: Any, z: Any, table: int) -> Any:
        return self._call("llvm.x86.avx512.pternlog.q.512", x, y, z, I32(table))

    def _at(self, pointer: Any, index: Any, element: Any) -> Any:
        return self.builder.gep(pointer, [index], source_etype=element)

    def _call(self, name: str, *args: Any) -> Any:
        module = self.builder.module
        kind = ir.FunctionType(self.vector, [arg.type for arg in args])
        return self.builder.call(module.globals.get(name) or ir.Function(module, kind, name), args)


def counter(lanes: Lanes, floats: Lanes, counts: Any) -> Any:
    """Counts below 2**52 as floating-point numbers, exactly, without an instruction of AVX-512."""
    b = lanes.builder
    biased = b.bitcast(b.or_(counts, lanes.constant(0x4330000000000000)), floats.vector)
    return b.fsub(biased, floats.constant(2.0**52))


def address(builder: Any, value: Any) -> Any:
    """An integer as a pointer."""
    return builder.inttoptr(value, POINTER)


def loop(
    builder: Any, count: Any, start: Sequence[Any], body: Callable[[Any, list[Any]], Sequence[Any]]
) -> list[Any]:
    """``values = start; for k in range(count): values = body(k, values)``; ``count`` is at least 1."""
    before = builder.block
    head, after = builder.append_basic_block("loop"), builder.append_basic_block("after")
    builder.branch(head)
    builder.position_at_end(head)
    k, values = builder.phi(I64), [builder.phi(x.type) for x in start]
    new = list(body(k, values))
    following = builder.add(k, I64(1))
    for phi, first, later in zip([k, *values], [I64(0), *start], [following, *new], strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(later, builder.block)
    builder.cbranch(builder.icmp_unsigned("<", following, count), head, after)
    builder.position_at_end(after)
    return new


def add_bits(lanes: Lanes, bits: Sequence[Any]) -> list[Any]:
    """Carry-save sum of one-bit numbers, 512 at once: the planes of its binary digits, lowest first."""
    b = lanes.builder
    waiting: list[list[Any]] = [[]]

    def push(level: int, bit: Any) -> None:
        if level == len(waiting):
            waiting.append([])
        waiting[level].append(bit)
        if len(waiting[level]) == 3:
            three = waiting[level]
            waiting[level] = [lanes.parity(*three)]
            push(level + 1, lanes.majority(*three))

    for bit in bits:
        push(0, bit)
    for level, pair in enumerate(waiting):  # grows while it is walked
        if len(pair) == 2:
            waiting[level] = [b.xor(*pair)]
            push(level + 1, b.and_(*pair))
    return [digit[0] for digit in waiting]
