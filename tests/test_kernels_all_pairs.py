"""Truncation: what is left out changes the objective by less than its bound, and the bound is small."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from gramian.kernels import all_pairs
from gramian.kernels.all_pairs import neighbour_gradient, spatial_order
from gramian.kernels.neighbours import BLOCK, OBJECTIVES, neighbour_scratch, pack_points
from gramian.nca import pair_step
from tests import reference
from tests.contracts import drawn


@pytest.fixture
def small_leaves(monkeypatch):
    """Few rows then have many leaves."""
    monkeypatch.setattr(all_pairs, "LEAF", 16)
    monkeypatch.setattr(all_pairs, "LEAVES", 3)
    monkeypatch.setattr(all_pairs, "FEWEST", 64)
    monkeypatch.setattr(all_pairs, "NEAR", 1.0)


def spread(n, c, side, seed, dtype=np.float64):
    rng = np.random.default_rng(seed)
    Z = (rng.random((n, c)) - 0.5) * side
    return Z.astype(dtype), (Z[:, 0] > 0).astype(int) + 2 * (rng.random(n) < 0.2)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("c", [1, 2, 3])
def test_what_is_left_out_stays_within_its_bound(small_leaves, objective, c, dtype):
    Z, labels = spread(900, c, {1: 600, 2: 60, 3: 30}[c], 0, dtype)
    exact = neighbour_gradient(Z, labels, objective=objective)
    found = neighbour_gradient(Z, labels, objective=objective, truncate=True)
    rounding = 20 * np.finfo(dtype).eps
    assert found.kept < 0.6
    assert found.error <= all_pairs.ERROR
    assert abs(found.value - exact.value) <= (found.error + rounding) * abs(exact.value)
    size = np.abs(exact.slope).max()
    assert_allclose(found.slope, exact.slope, rtol=0, atol=(1e-7 + 100 * rounding) * size)
    assert_allclose(found.p, exact.p, atol=1e-7 + rounding)


@drawn
@given(
    n=st.integers(64, 400),
    c=st.integers(1, 4),
    side=st.sampled_from((1.0, 20.0, 200.0, 5000.0)),
    objective=st.sampled_from(OBJECTIVES),
    seed=st.integers(0, 99),
)
def test_drawn_points_with_far_rows_duplicates_and_singletons(n, c, side, objective, seed):
    Z, labels = spread(n, c, side, seed)
    Z[:5] = Z[5]
    Z[6] += 10 * side
    labels[7], labels[8] = 8, 9
    exact = neighbour_gradient(Z, labels, objective=objective)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("LEAF", 16), ("FEWEST", 64), ("NEAR", 1.0), ("WORTH", 1.0)):
            patch.setattr(all_pairs, name, value)
        found = neighbour_gradient(Z, labels, objective=objective, truncate=True)
    assert found.n_alone == exact.n_alone
    assert_allclose(found.value, exact.value, rtol=found.error + 1e-12)
    assert_allclose(found.slope, exact.slope, rtol=0, atol=1e-7 * max(1.0, np.abs(exact.slope).max()))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_whose_own_sums_vanish_still_pull_at_others(dtype):
    """Whole blocks of rows have weight 0 here, as they are far from their class, and not from the other."""
    places = 100.0 * np.arange(8)
    Z = np.concatenate([places, np.repeat(places, 4) + np.tile([0.3, 0.5, 0.7, 1.1], 8)])[:, None].astype(
        dtype
    )
    labels = np.repeat([0, 1], [8, 32])
    found = neighbour_gradient(Z, labels, objective="kl", block=8)
    value, slope = reference.neighbour_objective(Z, labels, "kl")
    limit = 1e-11 if dtype is np.float64 else 1e-4
    assert_allclose(found.value, float(value), rtol=limit)
    near = np.repeat([False, True], [8, 32])  # the others' slopes are of the size of the gaps
    assert_allclose(found.slope[near], slope[near].astype(float), rtol=0, atol=limit * 300)
    assert np.abs(found.slope[near]).max() > 0.1


def test_a_row_that_near_leaves_leave_without_a_sum_meets_all(small_leaves, monkeypatch):
    """Of what is nearest to it, one leaf could be left out and one that is further away could not."""
    monkeypatch.setattr(all_pairs, "FEWEST", 48)
    monkeypatch.setattr(all_pairs, "WORTH", 1.0)
    apart = np.column_stack([10.0 * np.arange(16), np.zeros(16)])  # the last at (150, 0)
    dense = np.tile([155.5, 0.0], (16, 1))
    loose = np.column_stack([np.full(16, 151.0), 6.2 + 5.5 * np.arange(16)])
    Z = np.concatenate([apart, dense, loose]).astype(np.float32)
    labels = np.repeat([0, 1, 0], 16)
    found = neighbour_gradient(Z, labels, truncate=True)
    exact = neighbour_gradient(Z, labels)
    assert found.kept < 1
    assert_allclose(found.p, exact.p, atol=1e-5)


def test_threads_change_no_bit(small_leaves):
    from concurrent.futures import ThreadPoolExecutor

    Z, labels = spread(900, 2, 60, 0)
    wanted = neighbour_gradient(Z, labels, truncate=True)
    with ThreadPoolExecutor(3) as pool:
        found = neighbour_gradient(Z, labels, truncate=True, mapper=pool.map)
    assert found.value == wanted.value
    assert (found.slope == wanted.slope).all()


@pytest.mark.parametrize("function", ["_leaf_sums", "_leaf_laplacian"])
def test_a_task_takes_no_more_than_a_pass_declares(small_leaves, monkeypatch, function):
    """Many leaves meet many others: what a task adds up does not grow with the tiles it meets."""
    rng = np.random.default_rng(0)
    n, c, labels = 12000, 2, np.arange(12000) // 4000
    Z = rng.standard_normal((n, c)) * 3 + 200 * labels[:, None]
    peaks, real = [], getattr(all_pairs, function)

    def watched(*arguments, **how):
        tracemalloc.start()
        found = real(*arguments, **how)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        return found

    monkeypatch.setattr(all_pairs, "LEAVES", 16)
    monkeypatch.setattr(all_pairs, function, watched)
    assert 0.2 < neighbour_gradient(Z, labels, truncate=True).kept < 0.6
    assert max(peaks) < pair_step(n, c, Z.dtype, 1).task_bytes - 2 * BLOCK * neighbour_scratch((c,), Z.dtype)


def test_close_points_are_all_met():
    Z, labels = spread(9000, 2, 3, 0)
    found = neighbour_gradient(Z, labels, truncate=True)
    exact = neighbour_gradient(Z, labels)
    assert (found.kept, found.error) == (1.0, 0.0)
    assert found.value == exact.value
    assert (found.slope == exact.slope).all()


@pytest.mark.parametrize("n", [1, 15, 16, 17, 47, 64, 100])
def test_the_order_is_a_permutation_whose_leaves_are_boxes_apart(n, monkeypatch):
    monkeypatch.setattr(all_pairs, "LEAF", 16)
    Z, labels = spread(n, 1, 100, 0)
    order = spatial_order(pack_points(Z, labels))
    assert sorted(order) == list(range(n))
    highest = -np.inf
    for start in range(0, n, 16):
        leaf = Z[order[start : start + 16], 0]
        assert leaf.min() >= highest
        highest = leaf.max()
