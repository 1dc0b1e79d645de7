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
        return int(block.stop - block.start)


@dataclass(frozen=True)
class ArraySpec:
    """What a plan needs to know of an array: nothing of it is read.

    Parameters
    ----------
    shape : tuple of int
    dtype : numpy.dtype
    chunks : tuple of int or None
        Shape of one stored chunk; None for an array in memory.
    span : int or None
        Stored rows from the first to the last, where the rows are picked from among others.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    chunks: tuple[int, ...] | None = None
    span: int | None = None

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        size: int = prod(self.shape[1:]) * self.dtype.itemsize
        return size

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        return self.shape[0] * self.row_bytes

    @property
    def chunk_bytes(self) -> int:
        """Bytes of the rows of one chunk, all columns of them; 0 in memory."""
        return 0 if self.chunks is None else self.chunks[0] * self.row_bytes

    def read_bytes(self, grid: Grid) -> int:
        """Bytes decoded when every block of ``grid`` is read once: whole chunks, however few rows count."""
        if self.chunks is None or not len(grid):
            return self.nbytes
        starts = np.arange(0, grid.size, grid.step)
        stops = np.minimum(starts + grid.step, grid.size)
        height = self.chunks[0]
        if self.span is None:
            touched = (stops - 1) // height - starts // height + 1
        else:  # as if the picked rows were evenly spread
            stored = -(-(stops - starts) * self.span // self.shape[0])
            touched = np.minimum(stops - starts, -(-stored // height) + 1)
        return int(touched.sum()) * self.chunk_bytes

    def picked_bytes(self, count: int) -> int:
        """Bytes decoded when so many rows are read, wherever they stand: whole chunks, each once."""
        if self.chunks is None:
            return count * self.row_bytes
        return min(count, -(-(self.span or self.shape[0]) // self.chunks[0])) * self.chunk_bytes

    def taken_bytes(self, count: int) -> int:
        """Bytes held while so many rows are read: they, the rows of one chunk, and that as it is stored."""
        return count * self.row_bytes + 2 * self.chunk_bytes

    def block_bytes(self, grid: Grid) -> int:
        """Bytes held while one block is read: the block, and one chunk beside it where they differ."""
        block = min(grid.step, grid.size) * self.row_bytes
        if self.chunks is None or (self.chunks[0] == grid.step and self.span is None):
            return block
        return block + self.chunk_bytes


@dataclass(frozen=True)
class Step:
    """One operation of the engine, as the plan sees it. All sizes are in bytes."""

    name: str
    tasks: int
    read: int = 0
    written: int = 0
    files: int = 0
    flops: float = 0.0
    task_bytes: int = 0  # peak of one task, input, output and scratch
    driver_bytes: int = 0  # peak in the driver
    result_bytes: int = 0  # what one task sends to the driver
    seconds: float = 0.0  # of one thread, where measured rates are known


# Measured resident sizes of a process that has imported all that a task needs and compiled its kernels.
WORKER_BASE = 260 << 20
DRIVER_BASE = 380 << 20
FLYING = 2  # tasks a thread that are submitted and not yet taken up


def size_text(size: float) -> str:
    """Bytes for people: ``size_text(3 << 29) == '1.5 GiB'``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.3g} {unit}" if abs(size) < 100 else f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.3g} TiB"


def duration_text(seconds: float) -> str:
    """A time for people, to two digits: ``duration_text(5000) == '1.4 h'``."""
    for unit, size in (("s", 60), ("min", 60), ("h", 24)):
        if seconds < size:
            return f"{seconds:.2g} {unit}"
        seconds /= size
    return f"{seconds:.2g} days"


def enough_text(size: int) -> str:
    """A limit that so many bytes fit into: rounded up, ``enough_text((1 << 30) + 1) == '1.01 GiB'``."""
    unit, name = (1 << 30, "GiB") if size >= 1 << 30 else (1 << 20, "MiB")
    return f"{-(-100 * size // unit) / 100:.2f} {name}"


@dataclass(frozen=True)
class Plan:
    """What will be done before anything is submitted; plans of stages add up.

    Parameters
    ----------
    steps : tuple of Step
    """

    steps: tuple[Step, ...] = field(default_factory=tuple)

    def __add__(self, other: Plan) -> Plan:
        return Plan(self.steps + other.steps)

    @property
    def tasks(self) -> int:
        return sum(step.tasks for step in self.steps)

    @property
    def read(self) -> int:
        return sum(step.read for step in self.steps)

    @property
    def written(self) -> int:
        return sum(step.written for step in self.steps)

    @property
    def files(self) -> int:
        return sum(step.files for step in self.steps)

    @property
    def flops(self) -> float:
        return sum(step.flops for step in self.steps)

    @property
    def seconds(self) -> float:
        """Of one thread, as far as it is known; rates were measured on a core with AVX-512."""
        return sum(step.seconds for step in self.steps)

    def prefixed(self, stage: str) -> Plan:
        """The same steps under the name of a stage."""
        return Plan(tuple(replace(step, name=f"{stage}/{step.name}") for step in self.steps))

    def holding(self, size: int) -> Plan:
        """The same with so many bytes in the driver all the while."""
        return Plan(tuple(replace(step, driver_bytes=step.driver_bytes + size) for step in self.steps))

    def worker_bytes(self, threads: int = 1) -> int:
        """Peak of one worker process that runs ``threads`` tasks at once."""
        held = (min(threads, step.tasks) * step.task_bytes for step in self.steps)
        return WORKER_BASE + max(held, default=0)

    def driver_bytes(self, threads: int = 1) -> int:
        """Peak of the process that drives a cluster of so many threads in all."""
        held = (
            step.driver_bytes + min(FLYING * threads, step.tasks) * step.result_bytes for step in self.steps
        )
        return DRIVER_BASE + max(held, default=0)

    def total_bytes(self, workers: int, threads: int) -> int:
        """Peak of driver and workers together; ``workers=0`` means that the driver's threads do the work."""
        driver = self.driver_bytes(max(1, workers) * threads)
        return driver + max(1, workers) * self.worker_bytes(threads) - (0 if workers else WORKER_BASE)

    def check(
        self,
        *,
        workers: int,
        threads: int,
        max_memory: int | None = None,
        worker_limit: int | None = None,
    ) -> None:
        """Refuse what does not fit.

        Raises
        ------
        PlanError
            With what is needed, what is allowed and how to fix it.
        """
        worker = self.worker_bytes(threads)
        if workers and worker_limit is not None and worker > worker_limit:
            raise PlanError(
                f"a worker needs {enough_text(worker)} with {threads} threads, its limit is "
                f"{size_text(worker_limit)}",
                f"raise the memory limit of a worker to {enough_text(worker)} or give it fewer threads",
            )
        total = self.total_bytes(workers, threads)
        if max_memory is not None and total > max_memory:
            raise PlanError(
                f"the plan needs {enough_text(total)} "
                f"({size_text(self.driver_bytes(max(1, workers) * threads))} in the driver, "
                f"{workers} workers of {size_text(worker)}), allowed are {size_text(max_memory)}",
                f"raise the limit to {enough_text(total)}, or use fewer workers or threads",
            )

    def rows(self) -> list[dict[str, str]]:
        """One row of text for each step, for a table."""
        return [
            {
                "step": step.name,
                "tasks": f"{step.tasks:,}",
                "read": size_text(step.read),
                "written": size_text(step.written),
                "files": f"{step.files:,}",
                "operations": f"{step.flops:.2g}",
                "time": duration_text(step.seconds) if step.seconds else "–",
                "task memory": size_text(step.task_bytes),
            }
            for step in self.steps
        ]
