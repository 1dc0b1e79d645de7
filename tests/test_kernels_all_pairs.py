"""Truncation: what is left out changes the objective by less than its bound, and the bound is small."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from gramian.kernels import all_pairs
from gramian.kernels.all_pairs import neighbour_gradient, spatial_order
from gramian.kernels.neighbours import OBJECTIVES, pack_points
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


def test_threads_change_no_bit(small_leaves):
    from concurrent.futures import ThreadPoolExecutor

    Z, labels = spread(900, 2, 60, 0)
    wanted = neighbour_gradient(Z, labels, truncate=True)
    with ThreadPoolExecutor(3) as pool:
        found = neighbour_gradient(Z, labels, truncate=True, mapper=pool.map)
    assert found.value == wanted.value
    assert (found.slope == wanted.slope).all()


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
