"""Grids and plans are arithmetic: their properties over drawn sizes."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gramian.blocks import DRIVER_BASE, TARGET, WORKER_BASE, ArraySpec, Grid, Plan, Step, duration_text
from gramian.errors import InputError, PlanError
from gramian.job import parse_size

sizes = st.integers(0, 5000)


@given(sizes, st.integers(1, 700))
def test_grid_covers_every_row_once(size: int, step: int) -> None:
    rows = [row for block in Grid(size, step) for row in range(block.start, block.stop)]
    assert rows == list(range(size))


@given(st.integers(1, 10**7), st.integers(1, 10**9))
def test_row_grid_is_the_highest_power_of_two_within_the_target(rows: int, row_bytes: int) -> None:
    step = Grid.for_rows(rows, row_bytes).step
    assert step & (step - 1) == 0
    assert step == 1 or step * row_bytes <= TARGET
    assert 2 * step * row_bytes > TARGET


@given(st.integers(1, 10**6), st.sampled_from([4, 8]))
def test_tile_grid_stays_within_the_target(row_bytes: int, itemsize: int) -> None:
    step = Grid.for_tiles(10**6, row_bytes, itemsize).step
    assert step == 1 or step * (2 * row_bytes + step * itemsize) <= TARGET


def test_grid_does_not_depend_on_the_number_of_rows() -> None:
    assert Grid.for_rows(10, 1000).step == Grid.for_rows(10**8, 1000).step


@pytest.mark.parametrize(("size", "step"), [(-1, 4), (4, 0)])
def test_impossible_grids_are_refused(size: int, step: int) -> None:
    with pytest.raises(InputError, match="a grid of"):
        Grid(size, step)


@pytest.mark.parametrize("index", [-1, 3])
def test_blocks_outside_the_grid_do_not_exist(index: int) -> None:
    with pytest.raises(IndexError):
        Grid(10, 4)[index]


@given(st.integers(1, 300), st.integers(1, 64), st.integers(1, 64))
def test_read_bytes_counts_every_touched_chunk(rows: int, step: int, height: int) -> None:
    grid = Grid(rows, step)
    touched = sum(len({row // height for row in range(block.start, block.stop)}) for block in grid)
    spec = ArraySpec((rows, 3), np.dtype("f8"), (height, 3))
    assert spec.read_bytes(grid) == touched * height * 24


def test_a_few_rows_of_a_large_chunk_cost_the_chunk() -> None:
    spec = ArraySpec((4096, 8), np.dtype("f8"), (4096, 8))
    assert spec.read_bytes(Grid(4096, 512)) == 8 * spec.nbytes


@given(st.integers(1, 300), st.integers(1, 5), st.integers(1, 64), st.integers(1, 64))
def test_rows_that_are_picked_cost_the_chunks_they_are_spread_over(rows, every, step, height) -> None:
    grid, indices = Grid(rows, step), every * np.arange(rows)
    touched = sum(len(set(indices[block] // height)) for block in grid)
    spec = ArraySpec((rows, 3), np.dtype("f8"), (height, 3), span=int(indices[-1]) + 1)
    assert touched * height * 24 <= spec.read_bytes(grid) <= (touched + 2 * len(grid)) * height * 24


def test_a_picked_block_holds_a_chunk_beside_it() -> None:
    spec = ArraySpec((4096, 8), np.dtype("f8"), (512, 8))
    assert replace(spec, span=8192).block_bytes(Grid(4096, 512)) == 2 * spec.block_bytes(Grid(4096, 512))


def test_plan_adds_up_and_takes_the_largest_task() -> None:
    plan = Plan((Step("a", 3, read=10, written=5, files=2, flops=7.0, task_bytes=100),)) + Plan(
        (Step("b", 4, read=1, task_bytes=300, driver_bytes=50),)
    )
    assert (plan.tasks, plan.read, plan.written, plan.files, plan.flops) == (7, 11, 5, 2, 7.0)
    assert plan.worker_bytes(threads=2) == WORKER_BASE + 600


def test_results_in_flight_count_for_every_thread_of_the_cluster() -> None:
    plan = Plan((Step("a", 30, task_bytes=10, driver_bytes=50, result_bytes=7),))
    assert plan.driver_bytes(threads=6) == DRIVER_BASE + 50 + 2 * 6 * 7
    assert plan.total_bytes(3, 2) == plan.driver_bytes(6) + 3 * plan.worker_bytes(2)
    assert plan.total_bytes(0, 2) == plan.driver_bytes(2) + 2 * 10


def test_no_more_tasks_are_counted_than_there_are() -> None:
    plan = Plan((Step("a", 1, task_bytes=100, result_bytes=7), Step("b", 9, task_bytes=40, result_bytes=1)))
    assert plan.worker_bytes(threads=4) == WORKER_BASE + 160
    assert Plan(plan.steps[:1]).worker_bytes(threads=4) == WORKER_BASE + 100
    assert Plan(plan.steps[:1]).driver_bytes(threads=4) == DRIVER_BASE + 7


def test_plan_that_does_not_fit_says_needed_allowed_and_remedy() -> None:
    plan = Plan((Step("a", 1, task_bytes=1 << 30),))
    with pytest.raises(PlanError, match=r"needs .* GiB .*allowed are 1 GiB; raise the limit to") as error:
        plan.check(workers=2, threads=1, max_memory=1 << 30)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("size", [1, (1 << 30) - 1, 1 << 30, (1 << 30) + 1, 1_120_000_001, 987_654_321_987])
def test_the_limit_that_a_plan_asks_for_is_enough(size: int) -> None:
    plan = Plan((Step("a", 1, task_bytes=size),))
    with pytest.raises(PlanError) as error:
        plan.check(workers=2, threads=1, max_memory=1)
    (asked,) = re.findall(r"raise the limit to (.*?),", str(error.value))
    plan.check(workers=2, threads=1, max_memory=parse_size(asked, "max_memory"))


def test_plan_above_the_limit_of_a_worker_is_refused() -> None:
    plan = Plan((Step("a", 1, task_bytes=600 << 20),))
    with pytest.raises(PlanError, match="a worker needs"):
        plan.check(workers=2, threads=1, worker_limit=700 << 20)
    plan.check(workers=2, threads=1, worker_limit=900 << 20)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.5, "0.5 s"), (59, "59 s"), (90, "1.5 min"), (5000, "1.4 h"), (2e5, "2.3 days")]
)
def test_times_are_told_in_their_unit(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
