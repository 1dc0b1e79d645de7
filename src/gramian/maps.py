"""What an estimator hands to the engine: a block function over a grid, and what running it takes.

Nothing is read or run here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gramian.blocks import TARGET, ArraySpec, Grid, Step
from gramian.sources import spec_of

GROUP = 4  # one task computes at most so many tiles each way, from blocks that it prepares once
NODES = 64  # partial sums that travel to the driver, at least 4 for each thread

Block = NDArray[Any]


@dataclass(frozen=True)
class RowMap:
    """Output rows from input rows, block by block.

    Parameters
    ----------
    function : callable
        ``function(*row_blocks)`` gives the block of output rows; with `columns`,
        ``function(*row_blocks, column=j)`` gives the columns ``columns[j]`` of it. A module-level
        function, or a partial of one with small arguments.
    grid : Grid
        Blocks of rows.
    tail : tuple of int
        Shape of one output row; () for a vector.
    dtype : numpy.dtype
    columns : Grid, optional
        Blocks of output columns, computed one at a time.
    prepare : callable, optional
        ``prepare(*row_blocks)``, once a block of rows: what the function then takes in their place.
    scratch : int
        Bytes a row that both need beside input and output.
    constant : int
        Bytes that it needs whatever the rows.
    flops : float
        Operations of the whole map.
    """

    function: Callable[..., Block]
    grid: Grid
    tail: tuple[int, ...]
    dtype: np.dtype[Any]
    columns: Grid | None = None
    prepare: Callable[..., Any] | None = None
    scratch: int = 0
    constant: int = 0
    flops: float = 0.0

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.grid.size, *self.tail)

    @property
    def grids(self) -> tuple[Grid, ...]:
        """Grid of each axis of the output, for `store.layout.create_array`."""
        inner = [Grid(n, max(1, n)) for n in self.tail]
        if self.columns is not None:
            inner[0] = self.columns
        return (self.grid, *inner)

    def prepared(self, *blocks: Block) -> tuple[Any, ...]:
        """What the function takes for these blocks."""
        return blocks if self.prepare is None else (self.prepare(*blocks),)

    def whole(self, *blocks: Block) -> Block:
        """All columns of one block of rows."""
        taken = self.prepared(*blocks)
        if self.columns is None:
            return self.function(*taken)
        out = np.empty((len(blocks[0]), *self.tail), self.dtype)
        for column, part in enumerate(self.columns):
            out[:, part] = self.function(*taken, column=column)
        return out

    def step(self, name: str, *sources: Any) -> Step:
        """What `write` with these sources takes."""
        specs = [spec_of(source) for source in sources]
        height = min(self.grid.step, max(1, self.grid.size))
        width = self.columns.step if self.columns is not None else prod(self.tail)
        blocks = len(self.columns) if self.columns is not None else 1
        # the block, its encoded copy and the buffer of the write
        output = 3 * height * width * self.dtype.itemsize
        return Step(
            name,
            tasks=len(self.grid),
            read=sum(spec.read_bytes(self.grid) for spec in specs),
            written=self.grid.size * prod(self.tail) * self.dtype.itemsize,
            files=len(self.grid) * blocks,
            flops=self.flops,
            task_bytes=sum(2 * spec.block_bytes(self.grid) for spec in specs)
            + output
            + height * self.scratch
            + self.constant,
        )

    def collect_step(self, name: str, *sources: Any) -> Step:
        """What `collect` with these sources takes."""
        row = prod(self.tail) * self.dtype.itemsize
        return replace(
            self.step(name, *sources),
            written=0,
            files=0,
            driver_bytes=self.grid.size * row,
            result_bytes=min(self.grid.step, self.grid.size) * row,
        )


@dataclass(frozen=True)
class TileMap:
    """Tiles of a Gram matrix from two blocks of rows.

    Parameters
    ----------
    tile : callable or None
        ``tile(prepared_a, prepared_b)`` gives the (rows_a, rows_b) tile; on the diagonal of a
        symmetric map both are the same object. None: the source is the matrix itself.
    prepare : callable or None
        ``prepare(row_block)``, once a block.
    rows, columns : Grid
        `columns` None: symmetric, and only tiles on and above the diagonal are computed.
    dtype : numpy.dtype
    scratch : int
        Bytes a row of what `prepare` gives.
    constant : int
        Bytes that a tile needs whatever the rows.
    flops : float
        Operations of one entry.
    """

    tile: Callable[[Any, Any], Block] | None
    prepare: Callable[[Block], Any] | None
    rows: Grid
    columns: Grid | None
    dtype: np.dtype[Any]
    scratch: int = 0
    constant: int = 0
    flops: float = 0.0

    @property
    def symmetric(self) -> bool:
        return self.columns is None

    @property
    def across(self) -> Grid:
        """The grid of the columns."""
        return self.rows if self.columns is None else self.columns

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows.size, self.across.size

    @property
    def grids(self) -> tuple[Grid, Grid]:
        return self.rows, self.across

    def groups(self) -> Iterator[tuple[tuple[int, int], ...]]:
        """The tiles (i, j) that one task computes, group after group; where symmetric those with j >= i."""
        for i in range(0, len(self.rows), GROUP):
            for j in range(i if self.symmetric else 0, len(self.across), GROUP):
                yield tuple(
                    (a, b)
                    for a in range(i, min(i + GROUP, len(self.rows)))
                    for b in range(j, min(j + GROUP, len(self.across)))
                    if not self.symmetric or b >= a
                )

    def step(self, name: str, X: Any, Y: Any = None, *, stored: bool = True, width: int = 0) -> Step:
        """What `write_tiles` takes; not `stored`: `tiles`, or `tile_product` with ``width`` columns."""
        first, second = spec_of(X), spec_of(X if Y is None else Y)
        n, m = self.shape
        entries = n * (n + 1) / 2 if self.symmetric else n * m
        a, b = min(self.rows.step, n), min(self.across.step, m)
        across = min(GROUP, len(self.across))
        tile = a * b * self.dtype.itemsize
        blocks = first.block_bytes(self.rows) + second.block_bytes(self.across)
        prepared = a * (first.row_bytes + self.scratch) + across * b * (second.row_bytes + self.scratch)
        held = tile if self.tile is None else blocks + prepared
        share = 8 * width * (min(GROUP, len(self.rows)) * a + (across * b if self.symmetric else 0))
        driver = 0 if stored else 3 * 8 * n * width if width else n * m * self.dtype.itemsize
        return Step(
            name,
            tasks=sum(1 for _ in self.groups()),
            read=int(entries / max(1, GROUP * a)) * second.row_bytes + first.nbytes,
            written=n * m * self.dtype.itemsize if stored else 0,
            files=len(self.rows) * len(self.across) if stored else 0,
            flops=self.flops * entries,
            # what is prepared; a tile, its transposed copy and the buffers of a write, or the shares of K @ V
            task_bytes=held
            + (4 if stored else 2 if width else GROUP**2 + 1) * tile
            + 3 * share
            + 16 * b * width
            + self.constant,
            driver_bytes=driver,
            result_bytes=0 if stored else share if width else GROUP**2 * tile,
        )


def sum_level(grid: Grid, nodes: int) -> int:
    """Level of the subtrees that one task adds up: at most so many partial sums remain."""
    level = 0
    while -(-len(grid) >> level) > nodes:
        level += 1
    return level


def sum_step(
    name: str, grid: Grid, *sources: Any, scratch: int = 0, result: int = 0, flops: float = 0.0
) -> Step:
    """What `row_sum` takes: ``scratch`` bytes a row, ``result`` bytes of one partial sum."""
    specs = [spec_of(source) for source in sources]
    level = sum_level(grid, NODES)
    nodes = -(-len(grid) >> level)
    height = min(grid.step, max(1, grid.size))
    return Step(
        name,
        tasks=nodes,
        read=sum(spec.read_bytes(grid) for spec in specs),
        written=nodes * result,
        files=nodes,
        flops=flops,
        # of a subtree one sum a level waits for its sibling; five are new, sent, or being added
        task_bytes=sum(2 * spec.block_bytes(grid) for spec in specs)
        + height * scratch
        + (5 + level) * result,
        driver_bytes=(2 + nodes.bit_length()) * result,
        result_bytes=result,
    )


def bounded_step(name: str, X: ArraySpec, row_bytes: int) -> Step:
    """A row map whose function has yet to be learnt: its output rows and the most that a block may take."""
    grid = Grid.for_rows(X.shape[0], X.row_bytes)
    height = min(grid.step, X.shape[0])
    return Step(
        name,
        tasks=len(grid),
        read=X.read_bytes(grid),
        written=row_bytes * X.shape[0],
        files=len(grid),
        task_bytes=2 * X.block_bytes(grid) + 3 * min(TARGET, height * row_bytes) + TARGET,
    )


def after(first: RowMap, second: RowMap, X: ArraySpec) -> RowMap:
    """Rows through one map and then another, block by block."""
    between = prod(first.tail) * first.dtype.itemsize
    scratch = 2 * between + first.scratch + second.scratch
    out = prod(second.tail) * second.dtype.itemsize
    grid = Grid.for_rows(first.grid.size, X.row_bytes + out + scratch)
    return RowMap(
        partial(_both, first.whole, second.whole),
        grid,
        second.tail,
        second.dtype,
        scratch=scratch,
        constant=first.constant + second.constant,
        flops=first.flops + second.flops,
    )


def _both(first: Any, second: Any, block: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(second(first(block)))
