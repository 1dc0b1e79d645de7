"""Block grids, and the plan: bytes, tasks, operations, files. Pure arithmetic; nothing is read or run.

A grid follows from shapes, dtypes and parameters alone, never from chunks, memory or workers, so
that a result has the same bits wherever it is computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from gramian.errors import InputError, PlanError

TARGET = 32 << 20  # bytes that the rows of one block take: input, output and scratch


@dataclass(frozen=True)
class Grid:
    """Blocks of equal length along one axis; only the last may be shorter, and it is never padded.

    Parameters
    ----------
    size : int
        Length of the axis.
    step : int
        Length of a block.
    """

    size: int
    step: int

    def __post_init__(self) -> None:
        if self.size < 0 or self.step < 1:
            raise InputError(
                f"a grid of {self.size} rows in blocks of {self.step}",
                "give a size of at least 0 and a step of at least 1",
            )

    @classmethod
    def for_rows(cls, rows: int, row_bytes: int) -> Grid:
        """The highest power of two whose rows of ``row_bytes`` stay within the target.

        ``row_bytes`` is an input row, an output row and the declared scratch of a row together.
        """
        return cls(rows, 1 << max(0, (TARGET // max(1, row_bytes)).bit_length() - 1))

    @classmethod
    def for_tiles(cls, rows: int, row_bytes: int, itemsize: int) -> Grid:
        """The same for square tiles: two blocks of rows and the tile itself."""
        step = 1
        while 2 * step * (2 * row_bytes + 2 * step * itemsize) <= TARGET:
            step *= 2
        return cls(rows, step)

    def __len__(self) -> int:
        return -(-self.size // self.step)

    def __getitem__(self, index: int) -> slice:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return slice(index * self.step, min(self.size, (index + 1) * self.step))

    def __iter__(self) -> Iterator[slice]:
        return (self[index] for index in range(len(self)))

    def length(self, index: int) -> int:
        """Rows of one block."""
        block = self[index]
        return block.stop - block.start
