"""The engine gives the same bits for every container, chunking, cluster and order; and it forgets nothing."""

from __future__ import annotations

import functools
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from gramian import cluster, dispatch, engine, maps, sources
from gramian.blocks import ArraySpec, Grid
from gramian.errors import ClusterError, InputError, InputTypeError, PlanError, RunError, StoreError
from gramian.store.layout import create_array
from gramian.store.run import Run
from gramian.store.writer import write_block

ROWS = 1000
GRID = Grid(ROWS, 128)


def data(dtype: str = "f8") -> np.ndarray:
    return np.random.default_rng(0).standard_normal((ROWS, 6)).astype(dtype)


def moments(block: np.ndarray) -> tuple[np.ndarray, ...]:
    return block.sum(axis=0, dtype=np.float64), (block.T @ block).astype(np.float64)


def doubled(block: np.ndarray) -> np.ndarray:
    return np.tanh(block) * 2


def columns_of(block: np.ndarray, column: int) -> np.ndarray:
    return (block * (column + 1))[:, :2]


def inner(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a @ b.T


def zarr_of(array: np.ndarray, path: Path | None, chunks: tuple[int, ...]) -> zarr.Array:
    store = zarr.storage.MemoryStore() if path is None else str(path)
    out = zarr.create_array(store, shape=array.shape, dtype=array.dtype, chunks=chunks)
    out[:] = array
    return out


def output(path: Path, row_map: engine.RowMap) -> zarr.Array:
    return create_array(
        zarr.open_group(str(path), mode="a"), "out", row_map.shape, row_map.dtype, row_map.grids
    )


MAP = engine.RowMap(doubled, GRID, (6,), np.dtype("f8"))
WIDE = engine.RowMap(columns_of, GRID, (6,), np.dtype("f8"), columns=Grid(6, 2))
TILES = engine.TileMap(inner, None, Grid(ROWS, 300), None, np.dtype("f8"))


@pytest.fixture(
    scope="module", params=[(1, 1), (2, 1), (1, 2), (2, 2)], ids=lambda shape: f"{shape[0]}x{shape[1]}"
)
def client(request: pytest.FixtureRequest) -> Iterator[Any]:
    with cluster.local(*request.param, memory_limit="1GiB") as client:
        yield client


# ------------------------------------------------------------------------------------------ sums


@given(st.integers(1, 70), st.randoms(use_true_random=False))
def test_tree_sum_does_not_depend_on_the_order(count: int, random: Any) -> None:
    values = np.random.default_rng(count).standard_normal((count, 3))
    order = list(range(count))
    sums = []
    for _ in range(2):
        tree = engine.TreeSum(count)
        for index in order:
            tree.add(index, (values[index].copy(),))
        sums.append(tree.root[0])
        random.shuffle(order)
    assert np.array_equal(*sums)
    np.testing.assert_allclose(sums[0], values.sum(axis=0), atol=1e-12)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@settings(max_examples=25)
@given(chunk=st.integers(1, 1100), width=st.integers(1, 6))
def test_sum_has_the_same_bits_for_numpy_dask_and_zarr(dtype: str, chunk: int, width: int) -> None:
    array = data(dtype)
    wanted = engine.row_sum(moments, GRID, array)
    for given_as in (
        zarr_of(array, None, (min(chunk, ROWS), width)),
        da.from_array(array, chunks=(chunk, width)),
        np.asfortranarray(array),
    ):
        found = engine.row_sum(moments, GRID, given_as)
        assert all(np.array_equal(a, b) for a, b in zip(wanted, found, strict=True))


@pytest.mark.parametrize("nodes", [1, 2, 3, 64])
def test_sum_does_not_depend_on_the_level_of_the_subtrees(
    nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = engine.row_sum(moments, Grid(ROWS, 8), data())
    monkeypatch.setattr(maps, "NODES", nodes)
    with dask.config.set(scheduler="synchronous"):
        found = engine.row_sum(moments, Grid(ROWS, 8), data())
    assert all(np.array_equal(a, b) for a, b in zip(wanted, found, strict=True))


def test_cluster_gives_the_bits_of_no_cluster(client: Any, tmp_path: Path) -> None:
    array = data()
    wanted = (
        *engine.row_sum(moments, GRID, array),
        engine.tile_product(TILES, array, array),
        engine.tiles(TILES, array),
    )
    stored = zarr_of(array, tmp_path / "x.zarr", (77, 4))
    found = (
        *engine.row_sum(moments, GRID, stored),
        engine.tile_product(TILES, array, stored),
        engine.tiles(TILES, stored),
    )
    assert all(np.array_equal(a, b) for a, b in zip(wanted, found, strict=True))


def test_side_arrays_of_numpy_stand_beside_zarr_on_a_cluster(client: Any, tmp_path: Path) -> None:
    array, y = data(), np.arange(float(ROWS))
    found = engine.row_sum(weighted, GRID, zarr_of(array, tmp_path / "x.zarr", (100, 6)), y)
    assert np.array_equal(found[0], engine.row_sum(weighted, GRID, array, y)[0])


@pytest.mark.parametrize("order", ["C", "F"])
def test_large_constants_travel_as_files_and_give_the_same_bits(
    client: Any, order: str, tmp_path: Path
) -> None:
    constant = np.asarray(np.random.default_rng(5).standard_normal((6, 20_000)), order=order)
    function = functools.partial(projected, constant=constant)
    array = data()
    found = engine.row_sum(function, GRID, zarr_of(array, tmp_path / "x.zarr", (100, 6)))
    assert np.array_equal(found[0], engine.row_sum(function, GRID, array)[0])
    with sources.scratch() as place:
        shipped = sources.ship(function, place)
        assert len(pickle.dumps(shipped)) < 10_000
        assert np.array_equal(shipped(array[:5])[0], function(array[:5])[0])


def test_a_process_holds_the_constants_of_one_function_read_once_for_all_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held: list[weakref.ref[np.ndarray]] = []
    before: list[int] = []
    real = sources._Unpacker.persistent_load

    def load(self: Any, pid: Any) -> np.ndarray:
        before.append(sum(reference() is not None for reference in held))
        values = real(self, pid)
        held.append(weakref.ref(values))
        return values

    monkeypatch.setattr(sources._Unpacker, "persistent_load", load)
    functions = [functools.partial(projected, constant=np.full((6, 20_000), value)) for value in (1.0, 2.0)]
    with sources.scratch() as place, ThreadPoolExecutor(4) as pool:
        for function in functions:
            shipped = sources.ship(function, place)
            found = list(pool.map(shipped, [data()[:5]] * 8))
            assert all(np.array_equal(one[0], function(data()[:5])[0]) for one in found)
    assert before == [0, 0]


def test_constants_that_a_worker_does_not_see_are_an_error(client: Any, tmp_path: Path) -> None:
    function = functools.partial(projected, constant=np.ones((6, 20_000)))
    with sources.scratch() as place:
        shipped = sources.ship(function, place)
    with pytest.raises(StoreError, match="not to be seen"):
        client.submit(shipped, data()[:5]).result()


def projected(block: np.ndarray, constant: np.ndarray) -> tuple[np.ndarray, ...]:
    return ((block @ constant).sum(axis=0),)


def weighted(block: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, ...]:
    return (block.T @ y,)


# ------------------------------------------------------------------------------------- row maps


def test_numpy_gives_numpy_and_dask_and_zarr_stay_lazy(tmp_path: Path) -> None:
    array = data()
    stored = zarr_of(array, tmp_path / "x.zarr", (90, 6))
    with dask.config.set(scheduler=_refuse):
        lazy = [
            engine.apply(row_map, x)
            for row_map in (MAP, WIDE)
            for x in (stored, da.from_array(array, chunks=(70, 3)))
        ]
    for row_map, results in ((MAP, lazy[:2]), (WIDE, lazy[2:])):
        eager = engine.apply(row_map, array)
        assert isinstance(eager, np.ndarray)
        for result in results:
            assert isinstance(result, da.Array)
            assert result.dtype == eager.dtype
            assert np.array_equal(result.compute(), eager)


def _refuse(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("something was computed")


def test_lazy_result_on_a_cluster(client: Any, tmp_path: Path) -> None:
    array = data()
    lazy = engine.apply(WIDE, zarr_of(array, tmp_path / "x.zarr", (90, 6)))
    assert np.array_equal(lazy.compute(), engine.apply(WIDE, array))


def test_vector_outputs() -> None:
    row_map = engine.RowMap(first_column, GRID, (), np.dtype("f8"))
    array = data()
    assert np.array_equal(engine.apply(row_map, array), array[:, 0])
    assert np.array_equal(engine.apply(row_map, da.from_array(array, chunks=(300, 6))).compute(), array[:, 0])


def first_column(block: np.ndarray) -> np.ndarray:
    return block[:, 0].copy()


@given(st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=300))
def test_selected_rows_and_take_follow_their_indices(indices: list[int]) -> None:
    array = data()
    stored = zarr_of(array, None, (64, 6))
    assert np.array_equal(engine.take(stored, indices), array[indices])
    chosen = engine.Selected(stored, np.array(indices))
    row_map = engine.RowMap(doubled, Grid(len(indices), 32), (6,), np.dtype("f8"))
    wanted = doubled(array[indices])
    assert np.array_equal(engine.apply(row_map, chosen).compute(), wanted)
    assert np.array_equal(engine.apply(row_map, engine.Selected(array, np.array(indices))), wanted)


def test_stored_features_are_read_as_transform_returns_them() -> None:
    signs = np.random.default_rng(1).integers(0, 2, (50, 13))
    packed = zarr_of(np.packbits(signs, axis=1, bitorder="little"), None, (20, 2))
    packed.attrs.update({"n_bits": 13, "scale": 13**-0.5})
    wanted = ((2 * signs - 1) * np.float32(13**-0.5)).astype("f4")
    assert engine.spec_of(packed).shape == (50, 13)
    np.testing.assert_allclose(engine.take(packed, np.arange(50)), wanted, rtol=1e-6)
    assert np.array_equal(engine.take(engine.Raw(packed), np.arange(50)), packed[:])


def test_write_stores_every_block(client: Any, tmp_path: Path) -> None:
    array = data()
    out = output(tmp_path / "out.zarr", WIDE)
    engine.write(WIDE, out, zarr_of(array, tmp_path / "x.zarr", (300, 6)), name="out")
    assert np.array_equal(out[:], engine.apply(WIDE, array))


def test_output_of_another_shape_is_refused(tmp_path: Path) -> None:
    out = output(tmp_path / "out.zarr", engine.RowMap(doubled, Grid(ROWS, 64), (5,), np.dtype("f8")))
    with pytest.raises(InputError, match="the output has shape"):
        engine.write(MAP, out, data(), name="out")


def test_output_on_another_grid_is_refused(tmp_path: Path) -> None:
    out = output(tmp_path / "out.zarr", engine.RowMap(doubled, Grid(ROWS, 64), (6,), np.dtype("f8")))
    with pytest.raises(Exception, match="has shape"):
        engine.write(MAP, out, data(), name="out")


def with_weights(rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return rows * weights[:, None]


def test_collected_rows_are_those_of_the_map_wherever_they_are(client: Any, tmp_path: Path) -> None:
    array, weights = data(), np.arange(float(ROWS))
    row_map = engine.RowMap(with_weights, GRID, (6,), np.dtype("f8"))
    for given_as in (array, zarr_of(array, tmp_path / "x.zarr", (100, 6)), da.from_array(array, chunks=70)):
        assert np.array_equal(engine.collect(row_map, given_as, weights), array * weights[:, None])


def total_from(large: np.ndarray, start: int) -> tuple[int, float, int]:
    time.sleep(0.02 if start % 3 == 0 else 0)
    return start, float(large[start:].sum()), os.getpid()


def test_results_come_in_order_from_the_workers_where_an_array_is_stored(client: Any, tmp_path: Path) -> None:
    large, stored = np.arange(1e5), zarr_of(data(), tmp_path / "x.zarr", (100, 6))
    one, step = functools.partial(total_from, large), engine.Step("bands", 20)
    here = list(engine.in_order(one, range(20), data(), step=step))
    there = list(engine.in_order(one, range(20), stored, step=step))
    assert [result[:2] for result in here] == [(start, large[start:].sum()) for start in range(20)]
    assert [result[:2] for result in there] == [result[:2] for result in here]
    assert {pid for *_, pid in here} == {os.getpid()}
    assert os.getpid() not in {pid for *_, pid in there}


# ----------------------------------------------------------------------------------------- tiles


@pytest.mark.parametrize("width", [1, 7])
def test_products_and_tiles_agree_with_the_whole_matrix(width: int) -> None:
    array, other = data(), data()[:450] + 1
    V = np.random.default_rng(3).standard_normal((ROWS, width))
    K = array @ array.T
    np.testing.assert_allclose(engine.tiles(TILES, array), K, atol=1e-12)
    np.testing.assert_allclose(engine.tile_product(TILES, V, array), K @ V, atol=1e-9)
    cross = engine.TileMap(inner, None, Grid(450, 100), Grid(ROWS, 300), np.dtype("f8"))
    np.testing.assert_allclose(engine.tiles(cross, other, array), other @ array.T, atol=1e-12)
    np.testing.assert_allclose(engine.tile_product(cross, V, other, array), other @ array.T @ V, atol=1e-9)


@pytest.mark.parametrize("group", [1, 2, 3])
def test_tiles_do_not_depend_on_how_tasks_group_them(group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    array = data()
    small = engine.TileMap(inner, None, Grid(ROWS, 90), None, np.dtype("f8"))
    wanted = engine.tiles(small, array)
    monkeypatch.setattr(maps, "GROUP", group)
    assert np.array_equal(engine.tiles(small, array), wanted)
    np.testing.assert_allclose(engine.tile_product(small, array, array), wanted @ array, atol=1e-9)


def test_diagonal_tile_gets_one_object_twice() -> None:
    seen: list[bool] = []
    tile_map = engine.TileMap(functools.partial(_note, seen), np.copy, Grid(ROWS, 300), None, np.dtype("f8"))
    with dask.config.set(scheduler="synchronous"):
        engine.tiles(tile_map, data())
    assert seen.count(True) == len(tile_map.rows)


def _note(seen: list[bool], a: np.ndarray, b: np.ndarray) -> np.ndarray:
    seen.append(a is b)
    return a @ b.T


def test_stored_gram_matrix_is_read_by_tiles(tmp_path: Path) -> None:
    array = data()
    gram = create_array(
        zarr.open_group(str(tmp_path / "g.zarr"), mode="a"), "gram", TILES.shape, TILES.dtype, TILES.grids
    )
    engine.write_tiles(TILES, gram, array, name="gram")
    assert np.array_equal(gram[:], gram[:].T)
    np.testing.assert_allclose(gram[:], array @ array.T, atol=1e-12)
    read = engine.TileMap(None, None, TILES.rows, None, TILES.dtype)
    assert np.array_equal(engine.tile_product(read, array, gram), engine.tile_product(TILES, array, array))


# --------------------------------------------------------------------------------------- records


def counted(folder: str, block: np.ndarray) -> np.ndarray:
    descriptor = os.open(f"{folder}/calls", os.O_APPEND | os.O_CREAT | os.O_WRONLY)
    os.write(descriptor, b"x")
    os.close(descriptor)
    return doubled(block)


def counted_moments(folder: str, block: np.ndarray) -> tuple[np.ndarray, ...]:
    counted(folder, block)
    return moments(block)


def calls(folder: Path) -> int:
    return (folder / "calls").stat().st_size if (folder / "calls").exists() else 0


def test_recorded_blocks_are_not_computed_again(tmp_path: Path) -> None:
    row_map = engine.RowMap(functools.partial(counted, str(tmp_path)), GRID, (6,), np.dtype("f8"))
    out = output(tmp_path / "out.zarr", row_map)
    with Run.open(tmp_path / "run", {}) as run, engine.session(run=run, stage="s"):
        engine.write(row_map, out, data(), name="out")
        run.forget("s/out", [(2, 0), (5, 0)])
        engine.write(row_map, out, data(), name="out")
    assert calls(tmp_path) == len(GRID) + 2
    assert engine.check_blocks(out, run.done["s/out"]) == {}


def test_named_sum_goes_on_from_its_records(tmp_path: Path) -> None:
    function = functools.partial(counted_moments, str(tmp_path))
    wanted = engine.row_sum(moments, GRID, data())
    with Run.open(tmp_path / "run", {}) as run, engine.session(run=run):
        engine.row_sum(function, GRID, data(), name="gram")
        run.forget("gram", [(3, 0)])
    with Run.open(tmp_path / "run", {}, resume=True) as run, engine.session(run=run):
        found = engine.row_sum(function, GRID, data(), name="gram")
    assert calls(tmp_path) == len(GRID) + 1
    assert all(np.array_equal(a, b) for a, b in zip(wanted, found, strict=True))


def test_damaged_partial_sum_is_computed_again(tmp_path: Path) -> None:
    wanted = engine.row_sum(moments, GRID, data())
    with Run.open(tmp_path / "run", {}) as run, engine.session(run=run):
        engine.row_sum(moments, GRID, data(), name="gram")
        write_block(run.find_partials("gram"), (1, 0), np.zeros((1, 42)))
        found = engine.row_sum(moments, GRID, data(), name="gram")
    assert all(np.array_equal(a, b) for a, b in zip(wanted, found, strict=True))


def test_remembered_values_are_replayed(tmp_path: Path) -> None:
    seen = []

    def compute() -> np.ndarray:
        seen.append(1)
        return np.arange(6.0).reshape(2, 3)

    for _ in range(2):
        with engine.session(run=tmp_path / "run"):
            value = engine.remember("step/0", (1,), [data()], compute)
    assert np.array_equal(value, np.arange(6.0).reshape(2, 3))
    assert len(seen) == 1


@pytest.mark.parametrize("same_session", [True, False])
def test_a_sum_of_other_rows_or_arguments_is_not_taken_from_its_name(same_session, tmp_path: Path) -> None:
    calls_of = [(moments, data()), (moments, 2 * data()), (functools.partial(scaled, factor=3.0), data())]
    wanted = [engine.row_sum(function, GRID, rows) for function, rows in calls_of]
    with ExitStack() as stack:
        if same_session:
            stack.enter_context(engine.session(run=tmp_path / "run"))
        for (function, rows), sums in zip(calls_of, wanted, strict=True):
            with nullcontext() if same_session else engine.session(run=tmp_path / "run"):
                found = engine.row_sum(function, GRID, rows, name="gram")
            assert all(np.array_equal(a, b) for a, b in zip(sums, found, strict=True))


def scaled(block: np.ndarray, factor: float) -> tuple[np.ndarray, ...]:
    return tuple(factor * part for part in moments(block))


def test_a_value_of_other_rows_or_another_key_is_not_replayed(tmp_path: Path) -> None:
    with engine.session(run=tmp_path / "run"):
        first = engine.remember("step", (np.zeros(3),), [data()], lambda: np.zeros(2))
        other = engine.remember("step", (np.ones(3),), [data()], lambda: np.ones(2))
        third = engine.remember("step", (np.ones(3),), [data() + 1], lambda: np.full(2, 2.0))
    assert [first[0], other[0], third[0]] == [0, 1, 2]


def test_a_session_of_other_versions_is_not_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with engine.session(run=tmp_path / "run"):
        engine.row_sum(moments, GRID, data(), name="one")
    with engine.session(run=tmp_path / "run"):
        engine.row_sum(moments, GRID, data(), name="one")
    monkeypatch.setattr(engine, "versions", lambda: {"numpy": "0.1"})
    with (
        pytest.raises(RunError, match=r"was begun elsewhere: .*numpy .* -> 0\.1"),
        engine.session(run=tmp_path / "run"),
    ):
        pass


@pytest.mark.parametrize(("limit", "error"), [("2GiB", InputTypeError), (0, InputError)])
def test_a_limit_that_is_no_number_of_bytes_is_refused(limit: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="max_memory is"), engine.session(max_memory=limit):
        pass


def test_progress_counts_every_block(tmp_path: Path) -> None:
    told: list[engine.Progress] = []
    with engine.session(on_progress=told.append):
        engine.write(WIDE, output(tmp_path / "out.zarr", WIDE), data(), name="out")
    assert (told[0].done, told[-1].done, told[-1].total) == (0, 3 * len(GRID), 3 * len(GRID))


@pytest.mark.parametrize("damage", ["flip", "delete"])
def test_check_names_exactly_the_bad_chunk(tmp_path: Path, damage: str) -> None:
    out = output(tmp_path / "out.zarr", MAP)
    with Run.open(tmp_path / "run", {}) as run, engine.session(run=run):
        engine.write(MAP, out, data(), name="out")
    chunk = tmp_path / "out.zarr" / "out" / "c" / "3" / "0"
    if damage == "flip":
        content = bytearray(chunk.read_bytes())
        content[100] ^= 1
        chunk.write_bytes(content)
    else:
        chunk.unlink()
    assert engine.check_blocks(out, run.done["out"]) == {(3, 0): "damaged" if damage == "flip" else "missing"}


# ---------------------------------------------------------------------------------------- limits


def test_what_does_not_fit_is_refused_before_anything_is_read() -> None:
    with engine.session(max_memory=50 << 20), pytest.raises(PlanError, match="allowed are 50 MiB"):
        engine.row_sum(_refuse, GRID, data(), name="gram")


def test_threads_of_blas_are_given_back() -> None:
    controller = dispatch.controller()
    before = [library["num_threads"] for library in controller.info()]
    with engine.pinned(), engine.pinned():
        assert all(library["num_threads"] == 1 for library in controller.info())
    assert [library["num_threads"] for library in controller.info()] == before


def test_a_pinned_worker_stays_pinned_whoever_was_inside() -> None:
    code = (
        "from gramian import dispatch\n"
        "with dispatch.one_thread:\n"
        "    dispatch.pin_worker()\n"
        "print({library['num_threads'] for library in dispatch.controller().info()})\n"
    )
    many = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "4")
    found = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **many}, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "{1}"


def test_the_plan_of_a_map_holds_its_constant() -> None:
    large = replace(MAP, constant=5 << 20)
    step = large.step("out", data())
    assert step.task_bytes == MAP.step("out", data()).task_bytes + (5 << 20)
    X = ArraySpec(data().shape, data().dtype)
    assert maps.after(MAP, large, X).constant == 5 << 20


@pytest.mark.parametrize(
    ("given_as", "error", "words"),
    [
        ("x.zarr", InputTypeError, "is the path"),
        (
            da.from_array(np.ones((9, 2)), chunks=3)[da.from_array(np.ones(9) > 0, chunks=3)],
            InputError,
            "compute_chunk_sizes",
        ),
    ],
)
def test_what_is_no_array_is_refused(given_as: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        engine.as_array(given_as)


def test_memory_error_in_a_task_is_explained() -> None:
    with pytest.raises(ClusterError, match="ran out of memory"):
        engine.row_sum(_exhausted, GRID, data())


def _exhausted(block: np.ndarray) -> tuple[np.ndarray, ...]:
    raise MemoryError("8 EiB")


# ---------------------------------------------------------------------------------------- faults


def slow_moments(block: np.ndarray) -> tuple[np.ndarray, ...]:
    time.sleep(0.05)
    return moments(block)


def suicide(block: np.ndarray) -> tuple[np.ndarray, ...]:
    os.kill(os.getpid(), signal.SIGKILL)
    return moments(block)


def test_a_killed_worker_changes_nothing(tmp_path: Path) -> None:
    array = data()
    stored = zarr_of(array, tmp_path / "x.zarr", (100, 6))
    grid = Grid(ROWS, 16)
    wanted = engine.row_sum(moments, grid, array)
    with cluster.local(2, 1, "1GiB") as client:
        victim = next(iter(client.run(os.getpid).values()))
        timer = threading.Timer(0.6, os.kill, (victim, signal.SIGKILL))
        timer.start()
        found = engine.row_sum(slow_moments, grid, stored)
        timer.join()
    assert all(np.array_equal(a, b) for a, b in zip(wanted, found, strict=True))


def test_a_block_that_kills_workers_is_explained(tmp_path: Path) -> None:
    stored = zarr_of(data(), tmp_path / "x.zarr", (100, 6))
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 1}),
        cluster.local(1, 1, "1GiB"),
        pytest.raises(ClusterError, match=r"killed 2 workers.*; raise the memory limit"),
    ):
        engine.row_sum(suicide, GRID, stored)
