"""Row maps, tile maps and tree sums over blocks of rows, and the session that records them.

Tasks carry indices, paths and small arrays. Results do not depend on chunks, workers, threads or
order: the grids follow from shapes, sums follow a fixed binary tree, BLAS has one thread.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import zarr
from numpy.typing import NDArray

from gramian import maps
from gramian.blocks import DRIVER_BASE, Grid, Plan, Step
from gramian.dispatch import active_client, completed, count_threads, one_thread, pinned
from gramian.errors import InputError, PlanError
from gramian.maps import RowMap, TileMap, sum_level, sum_step
from gramian.sources import (
    STAGED,
    Memory,
    Raw,
    RowSource,
    Scratch,
    Selected,
    Stored,
    as_array,
    digest,
    in_memory,
    is_dask,
    lives_in_memory,
    row_source,
    rows_of_size,
    scratch,
    ship,
    spec_of,
    take,
)
from gramian.store.manifest import cpu, fingerprint, versions
from gramian.store.run import Run
from gramian.store.writer import block_exists, check_block, reading, write_block
from gramian.validation import integer, path_text

__all__ = [
    "Progress",
    "Raw",
    "RowMap",
    "Selected",
    "Step",
    "TileMap",
    "admit",
    "admit_plan",
    "apply",
    "as_array",
    "check_blocks",
    "collect",
    "forget",
    "in_memory",
    "in_order",
    "pinned",
    "remember",
    "remember_each",
    "row_sum",
    "session",
    "spec_of",
    "staged",
    "sum_step",
    "take",
    "tell",
    "tile_product",
    "tiles",
    "write",
    "write_tiles",
]

Block = NDArray[Any]
Index = tuple[int, ...]


# ------------------------------------------------------------------------------------- the session


@dataclass(frozen=True)
class Progress:
    """How far an operation is: ``done`` of ``total`` blocks."""

    name: str
    done: int
    total: int


@dataclass
class _Session:
    run: Run | None = None
    max_memory: int | None = None
    on_progress: Callable[[Progress], None] | None = None
    stage: str = ""

    def full(self, name: str) -> str:
        return f"{self.stage}/{name}" if self.stage else name


_session: ContextVar[_Session | None] = ContextVar("gramian-session", default=None)


def _current() -> _Session:
    return _session.get() or _Session()


@contextmanager
def session(
    run: Run | str | Path | None = None,
    max_memory: int | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    stage: str = "",
) -> Iterator[None]:
    """Within it, named operations are recorded, resumed, bounded and reported.

    Parameters
    ----------
    run : Run or path, optional
        Where finished blocks are recorded. A path is opened, and resumed where it exists.
    max_memory : int, optional
        Bytes that driver and workers may take together, at least 1; what needs more is refused.
    on_progress : callable, optional
        Called with a `Progress` as blocks finish.
    stage : str
        Prefix of the names in the records. Estimators that share a run need a stage each: of two sums of
        one name that differ in their data or parameters, the run keeps the later.

    Raises
    ------
    RunError
        For a run of other versions or another CPU, a run in use, and one that no session has begun.
    """
    if max_memory is not None:
        integer(max_memory, "max_memory")
    with ExitStack() as stack:
        if run is not None and not isinstance(run, Run):
            manifest = {"versions": versions(), "cpu": cpu()}
            run = stack.enter_context(Run.open(path_text(run, "run"), manifest, resume=True))
        token = _session.set(_Session(run, max_memory, on_progress, stage))
        try:
            yield
        finally:
            _session.reset(token)


def tell(name: str, done: int, total: int) -> None:
    """Report how far a method is that decides its own steps."""
    on_progress = _current().on_progress
    if on_progress:
        on_progress(Progress(name, done, total))


def admit(step: Step) -> None:
    """Refuse work of this process alone, such as a large eigenproblem, that does not fit."""
    _admit(step, None)


def _admit(step: Step, client: Any) -> None:
    _check(Plan((step,)), step.name, client, _current().max_memory)


def admit_plan(plan: Plan, max_memory: int | None) -> None:
    """Refuse a plan that does not fit the active cluster, or this process where there is none."""
    _check(plan, "the plan", active_client(), max_memory)


def _check(plan: Plan, name: str, client: Any, allowed: int | None) -> None:
    """Refuse what does not fit, before anything of it is submitted."""
    if client is None:
        threads = count_threads(None)
        need = plan.total_bytes(0, threads) - DRIVER_BASE
        free = psutil.virtual_memory().available
        if need > free:
            raise PlanError(
                f"{name} needs {need >> 20} MiB with {threads} threads, {free >> 20} MiB are free",
                "free memory, use fewer threads (dask.config.set(num_workers=1)) or fewer rows",
            )
        plan.check(workers=0, threads=threads, max_memory=allowed)
        return
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    limits = [worker["memory_limit"] for worker in workers if worker.get("memory_limit")]
    plan.check(
        workers=len(workers),
        threads=max((worker["nthreads"] for worker in workers), default=1),
        max_memory=allowed,
        worker_limit=min(limits, default=None),
    )


@contextmanager
def staged(*arrays: Any) -> Iterator[tuple[Any, ...]]:
    """The same arrays, ready to be read several times: Dask arrays are computed once, to a scratch Zarr.

    So is an in-memory Zarr array under a cluster. None stays None. The scratch is removed at the end.
    """
    with scratch() as place:
        yield tuple(_staged(array, place) for array in arrays)


def _staged(array: Any, place: Scratch) -> Any:
    if array is None:
        return None
    array = as_array(array)
    if is_dask(array):
        return _store_dask(array, place)
    if isinstance(array, zarr.Array) and lives_in_memory(array) and active_client() is not None:
        kept = place.keep(array, rows_of_size(spec_of(Raw(array)), 8 << 20))
        kept.attrs.update({key: array.attrs[key] for key in ("scale", "n_bits") if key in array.attrs})
        return kept
    return array


def _store_dask(array: Any, place: Scratch) -> Any:
    """Small arrays and vectors become NumPy; others are written block by block where they are computed."""
    if array.ndim == 1 or array.nbytes <= STAGED:
        return np.ascontiguousarray(array.compute())
    step = rows_of_size(spec_of(array), 8 << 20)
    out = place.create(array.shape, array.dtype, step)
    chunks = (step, *array.shape[1:])
    written = array.rechunk(chunks).map_blocks(
        _write_staged,
        out=out,
        dtype=np.int64,
        drop_axis=list(range(1, array.ndim)),
        meta=np.empty(0, np.int64),
    )
    written.compute()
    return out


def _write_staged(block: Block, out: Any = None, block_info: Any = None) -> Block:
    index = block_info[0]["chunk-location"]
    return np.array([write_block(out, tuple(index), np.ascontiguousarray(block))])


class _Operation:
    """Sources, backend and records of one call: what every operation of the engine shares."""

    def __init__(self, step: Step, sources: Sequence[Any], stack: ExitStack) -> None:
        self.session, self.name = _current(), step.name
        arrays = stack.enter_context(staged(*sources))
        self.client = None if all(in_memory(array) for array in arrays) else active_client()
        self.sources = [row_source(array) for array in arrays]
        self._place = stack.enter_context(scratch())
        _admit(step, self.client)

    def keep(self, array: Block, step: int) -> zarr.Array[Any]:
        """An array as a file that every worker can read, until the operation ends."""
        return self._place.keep(array, step)

    def alone(self, rows: slice) -> tuple[RowSource, ...]:
        """What a task needs to read these rows, wherever it runs."""
        if self.client is None:
            return tuple(self.sources)
        return tuple(source.alone(rows) for source in self.sources)

    def run(
        self,
        function: Callable[..., Any],
        items: Iterable[tuple[Any, ...]],
        total: int,
        done: int = 0,
        *,
        ordered: bool = False,
    ) -> Iterator[tuple[tuple[Any, ...], Any]]:
        """Results as they come, or in order; progress is told and records are flushed on the way."""
        run, tell = self.session.run, self.session.on_progress
        if self.client is not None:
            function = ship(function, self._place)
        idle = run.flush_if_due if run is not None else (lambda: None)
        if tell:
            tell(Progress(self.name, done, total))
        try:
            for item, result in completed(function, items, client=self.client, ordered=ordered, idle=idle):
                yield item, result
                done += len(result) if isinstance(result, list) else 1
                if tell:
                    tell(Progress(self.name, done, total))
        finally:
            if run is not None:
                run.flush()


# --------------------------------------------------------------------------------------- row maps


def apply(row_map: RowMap, X: Any) -> Any:
    """The rows of the map: NumPy for NumPy; for Dask and Zarr a lazy Dask array over the same grid.

    Parameters
    ----------
    row_map : RowMap
    X : NumPy, Zarr or Dask array, Raw or Selected
    """
    X = as_array(X)
    if not in_memory(X):
        return _lazy(row_map, X)
    if len(row_map.grid) == 1:
        with one_thread:
            return row_map.whole(row_source(X).read(row_map.grid[0]))
    return collect(row_map, X, name="apply")


def collect(row_map: RowMap, *sources: Any, name: str = "rows") -> Block:
    """The rows of the map in memory, wherever they are computed.

    Parameters
    ----------
    row_map : RowMap
    *sources : arrays with as many rows as the map
    name : str
        Of the operation, for progress.
    """
    out = np.empty(row_map.shape, row_map.dtype)
    with ExitStack() as stack:
        operation = _Operation(row_map.collect_step(name, *sources), sources, stack)
        items = ((i, operation.alone(row_map.grid[i])) for i in range(len(row_map.grid)))
        one = functools.partial(_whole_block, row_map)
        for (i, _), block in operation.run(one, items, len(row_map.grid)):
            out[row_map.grid[i]] = block
    return out


def _whole_block(row_map: RowMap, i: int, sources: tuple[RowSource, ...]) -> Block:
    return row_map.whole(*(source.read(row_map.grid[i]) for source in sources))


def in_order(function: Callable[..., Any], items: Iterable[Any], *beside: Any, step: Step) -> Iterator[Any]:
    """Yield ``function(item)`` in the order of the items, computed where blocks of an array would be.

    Parameters
    ----------
    function : callable
        Module-level, or a partial of such a function; large arrays in it reach each worker once.
    items : iterable of small values
    *beside : arrays
        On the active client's workers where one of them is stored, else on threads of this process.
    step : Step
        What it takes: its name, number of tasks, bytes of a task and of its result.
    """
    with ExitStack() as stack:
        operation = _Operation(step, beside, stack)
        for _, result in operation.run(function, ((item,) for item in items), step.tasks, ordered=True):
            yield result


def _lazy(row_map: RowMap, X: Any) -> Any:
    import dask.array as da

    heights = tuple(row_map.grid.length(i) for i in range(len(row_map.grid)))
    chunks = (heights, *((n,) for n in row_map.tail))
    shape = {
        "dtype": row_map.dtype,
        "chunks": chunks,
        "meta": np.empty((0,) * (1 + len(row_map.tail)), row_map.dtype),
    }
    new = list(range(1, 1 + len(row_map.tail))) or None
    if is_dask(X):
        source = X.rechunk((row_map.grid.step, *X.shape[1:]))
        return da.map_blocks(
            _lazy_block, source, row_map=row_map, drop_axis=list(range(1, X.ndim)), new_axis=new, **shape
        )
    index = da.arange(len(row_map.grid), chunks=1)
    return da.map_blocks(_lazy_rows, index, row_map=row_map, source=row_source(X), new_axis=new, **shape)


def _lazy_block(block: Block, row_map: RowMap) -> Block:
    with one_thread:
        return row_map.whole(np.ascontiguousarray(block))


def _lazy_rows(index: Block, row_map: RowMap, source: RowSource) -> Block:
    with one_thread:
        return row_map.whole(source.read(row_map.grid[int(index[0])]))


def write(row_map: RowMap, out: zarr.Array[Any], *sources: Any, name: str) -> None:
    """Compute and store every block of ``out`` that has no record in the session's run.

    Parameters
    ----------
    row_map : RowMap
    out : zarr.Array
        Chunked as ``row_map.grids``.
    *sources : arrays with as many rows as the map
    name : str
        Name of the output in the records.
    """
    _check_output(out, row_map.shape, row_map.dtype)
    with ExitStack() as stack:
        operation = _Operation(row_map.step(name, *sources), sources, stack)
        columns = range(1 if row_map.columns is None else len(row_map.columns))
        rest = (0,) * max(0, len(row_map.tail) - 1)
        every = [
            (i, *((j, *rest) if row_map.tail else ())) for i in range(len(row_map.grid)) for j in columns
        ]
        missing = _missing(operation, every)
        rows = [(i, tuple(group)) for i, group in itertools.groupby(missing, key=lambda index: index[0])]
        items = ((i, indices, operation.alone(row_map.grid[i])) for i, indices in rows)
        one = functools.partial(_write_rows, row_map, out)
        for _, records in operation.run(one, items, len(every), len(every) - len(missing)):
            _record(operation, records)


def _write_rows(
    row_map: RowMap,
    out: zarr.Array[Any],
    i: int,
    indices: tuple[Index, ...],
    sources: tuple[RowSource, ...],
) -> list[tuple[Index, int]]:
    blocks = row_map.prepared(*(source.read(row_map.grid[i]) for source in sources))
    records = []
    for index in indices:
        column = {} if row_map.columns is None else {"column": index[1]}
        records.append((index, write_block(out, index, row_map.function(*blocks, **column))))
    return records


def _check_output(out: zarr.Array[Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    if tuple(out.shape) != tuple(shape) or out.dtype != dtype:
        raise InputError(
            f"the output has shape {tuple(out.shape)} of {out.dtype}, the map {tuple(shape)} of {dtype}",
            "create the array from the grids of the map",
        )


def _missing(operation: _Operation, indices: list[Index]) -> list[Index]:
    run = operation.session.run
    return indices if run is None else run.missing(operation.session.full(operation.name), indices)


def _record(operation: _Operation, records: list[tuple[Index, int]]) -> None:
    run = operation.session.run
    if run is not None:
        for index, crc in records:
            run.record(operation.session.full(operation.name), index, crc)


def forget(name: str) -> None:
    """Drop the session's records of a name: its array is made anew, none of its blocks is there."""
    session = _current()
    if session.run is not None:
        full = session.full(name)
        session.run.forget(full, list(session.run.done.get(full, {})))


# --------------------------------------------------------------------------------------- tree sums


class TreeSum:
    """Sum of ``count`` tuples of arrays by the fixed binary tree over their indices, added in any order."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.pending: dict[tuple[int, int], tuple[Block, ...]] = {}
        self.root: tuple[Block, ...] = ()

    def add(self, index: int, value: tuple[Block, ...]) -> None:
        level, width = 0, self.count
        while width > 1:
            sibling = index ^ 1
            if sibling < width:  # an odd last node goes up unchanged
                other = self.pending.pop((level, sibling), None)
                if other is None:
                    self.pending[level, index] = value
                    return
                value = tuple(a + b for a, b in zip(other, value, strict=True))
            index, level, width = index >> 1, level + 1, (width + 1) >> 1
        self.root = value


def row_sum(
    function: Callable[..., tuple[Block, ...]],
    grid: Grid,
    *sources: Any,
    name: str | None = None,
    scratch: int = 0,
    result: int = 0,
) -> tuple[Block, ...]:
    """Sum of ``function(*row_blocks)``, a tuple of float64 arrays, over all blocks of rows.

    A named sum keeps its partial sums in the session's run and computes only those without a record of
    the same sources and arguments.

    Parameters
    ----------
    function : callable
        Module-level, or a partial of such a function.
    grid : Grid
    *sources : arrays of ``grid.size`` rows
    name : str, optional
    scratch, result : int
        Bytes a row that the function needs; bytes of its result.
    """
    with ExitStack() as stack:
        step = sum_step(name or "sum", grid, *sources, scratch=scratch, result=result)
        operation = _Operation(step, sources, stack)
        if operation.client is None and len(grid) == 1 and (name is None or operation.session.run is None):
            with one_thread:
                return function(*(source.read(grid[0]) for source in operation.sources))
        return _named_sum(function, grid, operation, name)


def _named_sum(
    function: Callable[..., tuple[Block, ...]], grid: Grid, operation: _Operation, name: str | None
) -> tuple[Block, ...]:
    run = operation.session.run if name is not None else None
    key = "" if run is None else _key_of_sum(function, grid, operation.sources)
    kept = _Partials(operation, name, key)
    level = kept.level(grid)
    nodes = -(-len(grid) // (1 << level))
    tree = TreeSum(nodes)
    missing = []
    for node in range(nodes):
        value = kept.load(node)
        if value is None:
            missing.append(node)
        else:
            tree.add(node, value)
    items = ((node, operation.alone(_node_rows(grid, level, node))) for node in missing)
    one = functools.partial(_sum_node, function, grid, level)
    for (node, _), value in operation.run(one, items, nodes, nodes - len(missing)):
        kept.save(node, nodes, value)
        tree.add(node, value)
    return tree.root


def _key_of_sum(function: Callable[..., Any], grid: Grid, sources: Sequence[RowSource]) -> str:
    """What a sum depends on: the rows, as far as a fingerprint tells, and what the function carries."""
    carried = (function.args, function.keywords) if isinstance(function, functools.partial) else ()
    return digest((grid, carried, _fingerprints(sources)))


def _fingerprints(sources: Sequence[RowSource]) -> list[Any]:
    return [(fingerprint(source.array), getattr(source, "indices", None)) for source in sources]


def _node_rows(grid: Grid, level: int, node: int) -> slice:
    first, last = node << level, min(len(grid), (node + 1) << level) - 1
    return slice(grid[first].start, grid[last].stop)


def _sum_node(
    function: Callable[..., tuple[Block, ...]],
    grid: Grid,
    level: int,
    node: int,
    sources: tuple[RowSource, ...],
) -> tuple[Block, ...]:
    """One aligned subtree of 2**level leaves: a node of the same tree, whatever the level."""
    first = node << level
    tree = TreeSum(min(1 << level, len(grid) - first))
    for leaf in range(tree.count):
        rows = grid[first + leaf]
        tree.add(leaf, function(*(source.read(rows) for source in sources)))
    return tree.root


class _Partials:
    """The partial sums of a named operation, kept by the session's run as one array (nodes, length).

    Those of another key are not its own: they are not loaded, and make way.
    """

    def __init__(self, operation: _Operation, name: str | None, key: str) -> None:
        self._key = key
        self._run = operation.session.run if name is not None else None
        self._name = operation.session.full(name or "")
        self._threads = count_threads(operation.client)
        found = None if self._run is None else self._run.find_partials(self._name)
        self._array = found if found is not None and found.attrs.get("key") == key else None

    def level(self, grid: Grid) -> int:
        """Chosen once, then frozen in the run."""
        if self._array is not None:
            frozen: Any = self._array.attrs["level"]
            return int(frozen)
        self._level = sum_level(grid, max(maps.NODES, 4 * self._threads))
        return self._level

    def load(self, node: int) -> tuple[Block, ...] | None:
        """The partial sum of a node, where it is recorded and undamaged."""
        if self._run is None or self._array is None:
            return None
        known = self._run.done.get(self._name, {}).get((node, 0))
        if known is None or check_block(self._array, (node, 0)) != known:
            return None
        flat, value, start = np.asarray(self._array[node]), [], 0
        shapes: Any = self._array.attrs["shapes"]
        for shape in shapes:
            value.append(flat[start : start + prod(shape)].reshape(shape))
            start += prod(shape)
        return tuple(value)

    def save(self, node: int, nodes: int, value: tuple[Block, ...]) -> None:
        if self._run is None:
            return
        flat = np.concatenate([np.asarray(part, np.float64).ravel() for part in value])
        if self._array is None:
            shapes = [list(np.shape(part)) for part in value]
            attrs = {"key": self._key, "level": self._level, "shapes": shapes}
            self._array = self._run.partials(self._name, nodes, len(flat), attrs)
        self._run.record(self._name, (node, 0), write_block(self._array, (node, 0), flat[None]))


def remember(name: str, key: tuple[Any, ...], sources: Sequence[Any], compute: Callable[[], Block]) -> Block:
    """What an iterative method evaluated: computed once in a session with a run, then replayed.

    Parameters
    ----------
    name : str
        Unique within the stage, for example ``"product/3"``.
    key : tuple
        What the value depends on beside the sources; arrays too. Of another key, it is computed anew.
    sources : sequence of arrays
        NumPy or Zarr, perhaps within Raw or Selected.
    compute : callable
        Gives a float64 array.
    """
    return _remembered(name, key, sources, [compute])[0]


def remember_each(
    name: str, key: tuple[Any, ...], sources: Sequence[Any], computes: Sequence[Callable[[], Block]]
) -> list[Block]:
    """What problems beside each other give, such as the folds of a cross-validation; with progress.

    Parameters
    ----------
    name, key, sources
        As in `remember`.
    computes : sequence of callables
        Each gives a float64 array, all of one shape.
    """
    return _remembered(name, key, sources, computes, tell)


def _remembered(
    name: str,
    key: tuple[Any, ...],
    sources: Sequence[Any],
    computes: Sequence[Callable[[], Block]],
    tell: Callable[[str, int, int], None] = lambda *_: None,
) -> list[Block]:
    run, values = _current().run, list[Block]()
    with ExitStack() as stack:
        if run is not None:
            own = digest((key, _fingerprints([row_source(source) for source in sources])))
            kept = _Partials(_Operation(Step(name, 1), [], stack), name, own)
            kept.level(Grid(1, 1))
        for node, compute in enumerate(computes):
            tell(name, node, len(computes))
            found = None if run is None else kept.load(node)
            if found is None:
                found = (np.asarray(compute(), np.float64),)
                if run is not None:
                    kept.save(node, len(computes), found)
                    run.flush()
            values.append(found[0])
    tell(name, len(computes), len(computes))
    return values


# ------------------------------------------------------------------------------------------- tiles


def _prepared(tile_map: TileMap, source: RowSource, rows: slice) -> Any:
    block = source.read(rows)
    return block if tile_map.prepare is None else tile_map.prepare(block)


def _computed(
    tile_map: TileMap, pairs: Sequence[tuple[int, int]], X: RowSource, Y: RowSource | None
) -> Iterator[tuple[int, int, Block]]:
    """(i, j, tile) of a group, its columns prepared once; on the diagonal both sides are the same object."""
    if tile_map.tile is None:
        for i, j in pairs:
            yield i, j, _stored_tile(X, tile_map.rows[i], tile_map.across[j])
        return
    other = X if Y is None else Y
    columns = {j: _prepared(tile_map, other, tile_map.across[j]) for j in sorted({j for _, j in pairs})}
    for i, group in itertools.groupby(pairs, key=lambda pair: pair[0]):
        known = Y is None and i in columns
        row = columns[i] if known else _prepared(tile_map, X, tile_map.rows[i])
        for _, j in group:
            yield i, j, tile_map.tile(row, columns[j])


def _stored_tile(source: RowSource, rows: slice, columns: slice) -> Block:
    with reading(source.array):
        return np.ascontiguousarray(source.array[rows, columns])


def _pair(operation: _Operation) -> tuple[RowSource, RowSource | None]:
    X, *rest = operation.sources
    return X, rest[0] if rest else None


def _given(X: Any, Y: Any) -> list[Any]:
    return [X] if Y is None else [X, Y]


def tiles(tile_map: TileMap, X: Any, Y: Any = None) -> Block:
    """The whole matrix in memory.

    Parameters
    ----------
    tile_map : TileMap
    X, Y : arrays of rows; Y None for a symmetric matrix
    """
    with ExitStack() as stack:
        step = tile_map.step("gram", X, Y, stored=False)
        operation = _Operation(step, _given(X, Y), stack)
        out = np.empty(tile_map.shape, tile_map.dtype)
        one = functools.partial(_some_tiles, tile_map, *_pair(operation))
        for _, group in operation.run(one, ((pairs,) for pairs in tile_map.groups()), step.tasks):
            for i, j, tile in group:
                out[tile_map.rows[i], tile_map.across[j]] = tile
                if tile_map.symmetric and i != j:
                    out[tile_map.across[j], tile_map.rows[i]] = tile.T
    return out


def _some_tiles(
    tile_map: TileMap, X: RowSource, Y: RowSource | None, pairs: tuple[tuple[int, int], ...]
) -> tuple[tuple[int, int, Block], ...]:
    return tuple(_computed(tile_map, pairs, X, Y))


def write_tiles(tile_map: TileMap, out: zarr.Array[Any], X: Any, Y: Any = None, *, name: str) -> None:
    """Compute and store every tile of ``out`` that has no record; of a symmetric matrix once for both sides.

    Parameters
    ----------
    tile_map : TileMap
    out : zarr.Array
        Chunked as ``tile_map.grids``.
    X, Y : arrays of rows; Y None for a symmetric matrix
    name : str
        Name of the output in the records.
    """
    _check_output(out, tile_map.shape, tile_map.dtype)
    with ExitStack() as stack:
        operation = _Operation(tile_map.step(name, X, Y), _given(X, Y), stack)
        every: list[Index] = [(i, j) for i in range(len(tile_map.rows)) for j in range(len(tile_map.across))]
        missing = set(_missing(operation, every))
        items = []
        for pairs in tile_map.groups():
            places = {pair: found for pair in pairs if (found := _places(tile_map, pair, missing))}
            if places:
                items.append((places,))
        one = functools.partial(_write_group, tile_map, out, *_pair(operation))
        for _, records in operation.run(one, items, len(every), len(every) - len(missing)):
            _record(operation, records)


def _places(tile_map: TileMap, pair: tuple[int, int], missing: set[Index]) -> tuple[Index, ...]:
    """Where this tile is still to be written: beside the diagonal of a symmetric matrix twice."""
    places = (pair, pair[::-1]) if tile_map.symmetric and pair[0] != pair[1] else (pair,)
    return tuple(place for place in places if place in missing)


def _write_group(
    tile_map: TileMap,
    out: zarr.Array[Any],
    X: RowSource,
    Y: RowSource | None,
    places: dict[tuple[int, int], tuple[Index, ...]],
) -> list[tuple[Index, int]]:
    records = []
    for i, j, tile in _computed(tile_map, tuple(places), X, Y):
        for place in places[i, j]:
            block = tile if place == (i, j) else np.ascontiguousarray(tile.T)
            records.append((place, write_block(out, place, block)))
    return records


def tile_product(tile_map: TileMap, V: Block, X: Any, Y: Any = None) -> Block:
    """K @ V without ever holding K.

    Parameters
    ----------
    tile_map : TileMap
    V : (M, s) float64
    X, Y : arrays of rows; Y None for a symmetric matrix

    Returns
    -------
    (N, s) float64
    """
    V = np.ascontiguousarray(V, dtype=np.float64)
    n, width = tile_map.rows.size, V.shape[1]
    with ExitStack() as stack:
        step = tile_map.step("product", X, Y, stored=False, width=width)
        operation = _Operation(step, _given(X, Y), stack)
        vectors: RowSource = Memory(V)
        if operation.client is not None and V.nbytes > STAGED:
            vectors = Stored(operation.keep(V, tile_map.across.step))
        one = functools.partial(_product_group, tile_map, vectors, *_pair(operation))
        out = np.zeros((n, width))
        items = ((pairs,) for pairs in tile_map.groups())
        for _, shares in operation.run(one, items, step.tasks, ordered=True):  # always the same bits
            for start, share in shares:
                out[start : start + len(share)] += share
    return out


def _product_group(
    tile_map: TileMap,
    vectors: RowSource,
    X: RowSource,
    Y: RowSource | None,
    pairs: tuple[tuple[int, int], ...],
) -> tuple[tuple[int, Block], ...]:
    """What one group of tiles adds to K @ V, as (first row, share): at its rows, then at its columns."""
    own = slice(tile_map.rows[pairs[0][0]].start, tile_map.rows[pairs[-1][0]].stop)
    across = slice(tile_map.across[pairs[0][1]].start, tile_map.across[pairs[-1][1]].stop)
    V = vectors.read(across)
    mirrored = tile_map.symmetric
    W = vectors.read(own) if mirrored else V
    down, right = np.zeros((own.stop - own.start, V.shape[1])), np.zeros_like(V)
    for i, j, tile in _computed(tile_map, pairs, X, Y):
        rows = _within(tile_map.rows[i], own)
        columns = _within(tile_map.across[j], across)
        down[rows] += tile @ V[columns]
        if mirrored and i != j:
            right[columns] += tile.T @ W[rows]
    return ((own.start, down), (across.start, right)) if mirrored else ((own.start, down),)


def _within(part: slice, whole: slice) -> slice:
    return slice(part.start - whole.start, part.stop - whole.start)


# ------------------------------------------------------------------------------------ verification


def check_blocks(array: zarr.Array[Any], records: dict[Index, int]) -> dict[Index, str]:
    """Read every recorded block again: {index: "damaged" or "missing"} of those that are not as written."""
    bad = {}
    client = None if lives_in_memory(array) else active_client()
    one = functools.partial(_check_one, array)
    for (index, _), state in completed(one, records.items(), client=client):
        if state is not None:
            bad[index] = state
    return dict(sorted(bad.items()))


def _check_one(array: zarr.Array[Any], index: tuple[int, ...], recorded: int) -> str | None:
    if check_block(array, index) == recorded:
        return None
    return "damaged" if block_exists(array, index) else "missing"
