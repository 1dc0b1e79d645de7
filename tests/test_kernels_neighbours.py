"""Tiles of neighbourhood components analysis against the definition in long double, and their known traps."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from gramian.errors import InputError, InputTypeError
from gramian.kernels.all_pairs import neighbour_gradient
from gramian.kernels.neighbours import (
    OBJECTIVES,
    SCALE,
    class_log_sums,
    class_scratch,
    neighbour_flops,
    neighbour_laplacian,
    neighbour_log_sums,
    neighbour_scratch,
    neighbour_sums,
    neighbour_terms,
    neighbour_weights,
    pack_points,
    shifted_laplacian,
    underflown,
)
from tests import reference

DTYPES = (np.float32, np.float64)


@pytest.fixture(params=["compiled", "plain"])
def kernels(request, monkeypatch):
    """The compiled code, then its plain twin."""
    monkeypatch.setenv("GRAMIAN_KERNELS", request.param.replace("compiled", ""))


both = pytest.mark.usefixtures("kernels")


@st.composite
def tiles(draw):
    """Points and labels of rows and of columns: near, equal, every remainder of a vector and a strip."""
    n, m, c = draw(st.integers(1, 40)), draw(st.integers(1, 70)), draw(st.integers(1, 9))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    Z = rng.standard_normal((n + m, c)) * draw(st.sampled_from((1e-3, 0.3, 1.0)))
    if draw(st.booleans()):
        Z[-1] = Z[0]
    labels = rng.integers(0, draw(st.integers(1, 5)), n + m)
    return Z.astype(draw(st.sampled_from(DTYPES))), labels, n


def packed(Z, labels, n):
    z = pack_points(Z, labels)
    return z[:, :n], z[:, n:]


def kernel(Z, n):
    """K of the first n rows with the others, in long double."""
    return np.exp(reference.neighbour_powers(Z[:n], Z[n:]))


def rounding(Z):
    """What rounding the points and the distances does to K, relative to it."""
    return 4 * np.finfo(Z.dtype).eps * (2 + (Z.astype(float) ** 2).sum(axis=1).max())


# ------------------------------------------------------------------------------------------- one tile


@both
def test_sums_of_a_tile_equal_the_definition():
    @given(problem=tiles())
    def check(problem):
        Z, labels, n = problem
        rows, columns = neighbour_sums(*packed(*problem))
        K, own = kernel(Z, n), labels[:n, None] == labels[n:]
        for got, axis in ((rows, 1), (columns, 0)):
            wanted = [np.where(which, K, 0).sum(axis=axis).astype(float) for which in (own, ~own)]
            assert_allclose(got, wanted, rtol=10 * rounding(Z), atol=0)

    check()


@both
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 33, 130])
@pytest.mark.parametrize("dtype", DTYPES)
def test_diagonal_tile_meets_each_pair_once(n, dtype):
    rng = np.random.default_rng(n)
    Z, labels = rng.standard_normal((n, 2)).astype(dtype), rng.integers(0, 3, n)
    a = pack_points(Z, labels)
    K = np.triu(kernel(np.concatenate([Z, Z]), n), 1).astype(float)
    own = labels[:, None] == labels
    rows, columns = neighbour_sums(a, a)
    for got, axis in ((rows, 1), (columns, 0)):
        wanted = [np.where(which, K, 0).sum(axis=axis) for which in (own, ~own)]
        assert_allclose(got, wanted, rtol=1e-12 if dtype is np.float64 else 1e-5, atol=0)


@both
def test_laplacian_of_a_tile_equals_the_definition():
    @given(problem=tiles(), seed=st.integers(0, 99))
    def check(problem, seed):
        Z, labels, n = problem
        weights = np.random.default_rng(seed).standard_normal((2, len(Z)))
        wa, wb = weights[:, :n], weights[:, n:]
        rows, columns = neighbour_laplacian(*packed(*problem), wa, wb)
        kind = np.where(labels[:n, None] == labels[n:], 0, 1)
        H = kernel(Z, n) * (wa[kind, np.arange(n)[:, None]] + wb[kind, np.arange(len(Z) - n)])
        gaps = Z[:n, None].astype(np.longdouble) - Z[n:]
        limit = rounding(Z) * np.abs(Z).max() * 10
        for got, axis, sign in ((rows, 1, 1), (columns, 0, -1)):
            wanted = sign * (H[..., None] * gaps).sum(axis=axis).T
            assert_allclose(got, wanted.astype(float), rtol=0, atol=limit * np.abs(H).sum(axis=axis).max())

    check()


@both
@pytest.mark.parametrize("dtype", DTYPES)
def test_laplacian_of_a_diagonal_tile_is_that_of_all_its_pairs(dtype):
    rng = np.random.default_rng(0)
    Z, labels, weights = rng.standard_normal((37, 3)), rng.integers(0, 3, 37), rng.standard_normal((2, 37))
    a = pack_points(Z.astype(dtype), labels)
    rows, columns = neighbour_laplacian(a, a, weights, weights)
    twice = neighbour_laplacian(a, a.copy(), weights, weights)[0]  # the pair (i, i) has no difference
    assert_allclose(rows + columns, twice, rtol=0, atol=1e-12 if dtype is np.float64 else 1e-4)


@both
def test_log_sums_by_class_equal_the_definition():
    @given(problem=tiles(), far=st.sampled_from((1.0, 30.0, 1e4)))
    def check(problem, far):
        Z, labels, n = problem
        Z = (Z * far).astype(Z.dtype)
        got = class_log_sums(*packed(Z, labels, n), 6)
        powers = reference.neighbour_powers(Z[:n], Z[n:])
        for label in range(6):
            wanted = [reference.log_sum(row[labels[n:] == label]) for row in powers]
            limit = 4 * np.finfo(Z.dtype).eps * (10 - powers.min())
            assert_allclose(got[:, label], np.array(wanted, float), rtol=0, atol=float(limit))

    check()


@both
@pytest.mark.parametrize("dtype", DTYPES)
def test_log_sums_over_columns_that_come_nearer_and_go(dtype):
    Z = np.abs(np.linspace(-60, 40, 1500))[:, None].astype(dtype)
    z = pack_points(Z, np.zeros(1500, int))
    got = class_log_sums(z[:, :7], z, 1)
    wanted = [reference.log_sum(row) for row in reference.neighbour_powers(Z[:7], Z)]
    assert_allclose(got[:, 0], np.array(wanted, float), rtol=0, atol=1e-11 if dtype is np.float64 else 1e-2)
    turned = class_log_sums(z[:, -7:], z, 1)
    wanted = [reference.log_sum(row) for row in reference.neighbour_powers(Z[-7:], Z)]
    assert_allclose(
        turned[:, 0], np.array(wanted, float), rtol=0, atol=1e-11 if dtype is np.float64 else 1e-2
    )


@both
def test_log_sums_do_not_depend_on_the_order_of_columns():
    rng = np.random.default_rng(0)
    z = pack_points(rng.standard_normal((60, 3)), rng.integers(0, 4, 60))
    order = rng.permutation(50)
    skip = np.array([3, -1, 49, 0, -1, 17, 8, 30, -1, 2])
    got = class_log_sums(z[:, 50:], z[:, :50], 4, skip)
    turned = np.where(skip < 0, -1, np.argsort(order)[skip])
    assert_allclose(class_log_sums(z[:, 50:], z[:, order], 4, turned), got, rtol=1e-13)


@both
@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks_of_columns_come_together_leaving_out_the_row_itself(dtype):
    rng = np.random.default_rng(0)
    Z, labels = (9 * rng.standard_normal((50, 2))).astype(dtype), rng.integers(0, 4, 50)
    z, rows = pack_points(Z, labels), np.array([3, 20, 21, 49, 0])
    logs = np.full((2, 5), -np.inf)
    for start in (0, 21):
        columns = z[:, start : 21 if start == 0 else 50]
        inside = (rows >= start) & (rows < start + columns.shape[1])
        logs = np.logaddexp(logs, neighbour_log_sums(z[:, rows], columns, np.where(inside, rows - start, -1)))
    wanted = reference.neighbour_log_sums(Z, labels)[:, rows].astype(float)
    assert_allclose(logs, wanted, rtol=1e-12 if dtype is np.float64 else 1e-5)


@both
def test_leave_one_out_probabilities_have_the_objective_as_their_share():
    rng = np.random.default_rng(0)
    Z, labels = rng.standard_normal((70, 2)), rng.integers(0, 5, 70)
    z = pack_points(Z, labels)
    logs = class_log_sums(z, z, 5, np.arange(70))
    shares = np.exp(logs - np.logaddexp.reduce(logs, axis=1)[:, None])
    assert_allclose(shares.sum(axis=1), 1, rtol=1e-13)
    p = neighbour_gradient(Z, labels).p
    assert_allclose(shares[np.arange(70), labels], p, rtol=1e-12)


@both
def test_labels_of_new_rows_do_not_count():
    rng = np.random.default_rng(0)
    z = pack_points(rng.standard_normal((30, 2)), rng.integers(0, 3, 30))
    a = z[:, :9].copy()
    a[-1] = 0
    assert_array_equal(class_log_sums(a, z[:, 9:], 3), class_log_sums(z[:, :9], z[:, 9:], 3))


@both
def test_more_classes_than_a_block_of_columns_has():
    z = pack_points(np.zeros((4, 1)), np.array([7, 2, 7, 900]))
    got = class_log_sums(z[:, :1], z, 1000)
    assert_allclose(got[0, [2, 7, 900]], np.log([1, 2, 1]), atol=1e-14)
    assert np.isneginf(np.delete(got[0], [2, 7, 900])).all()


@both
@pytest.mark.parametrize("dtype", DTYPES)
def test_points_as_far_apart_as_is_allowed(dtype):
    z = pack_points(np.array([[-1e12], [1e12], [0.0]], dtype), np.array([0, 0, 1]))
    assert_array_equal(neighbour_sums(z, z)[0], 0)
    got = neighbour_log_sums(z[:, :1], z, np.array([0]))
    assert_allclose(got[:, 0], [-4e24, -1e24], rtol=1e-5)


# ------------------------------------------------------------------------------- value and derivative


@st.composite
def problems(draw):
    """Scales from 1e-3 to 1e3, duplicates, classes of one row, one class."""
    n, c = draw(st.integers(1, 60)), draw(st.integers(1, 12) | st.sampled_from((31, 64, 70)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    Z = rng.standard_normal((n, c)) * 10.0 ** draw(st.integers(-3, 3)) / np.sqrt(c)
    if draw(st.booleans()):
        Z[n // 2 :] = Z[: n - n // 2]
    labels = rng.integers(0, draw(st.sampled_from((1, 2, 5, 40))), n)
    block = draw(st.sampled_from((8, 13, 32, 1024)))
    return Z.astype(draw(st.sampled_from(DTYPES))), labels, draw(st.sampled_from(OBJECTIVES)), block


@both
def test_gradient_equals_the_definition():
    @settings(max_examples=60)
    @given(problem=problems())
    def check(problem):
        Z, labels, objective, block = problem
        got = neighbour_gradient(Z, labels, objective=objective, block=block)
        value, slope = reference.neighbour_objective(Z, labels, objective)
        size = np.abs(Z).max()
        # A distance has the rounding of the squared size; a slope that of the largest pull times that.
        error = 20 * np.finfo(Z.dtype).eps * (1 + size**2)
        assert_allclose(got.value, float(value), rtol=error, atol=error)
        assert_allclose(got.slope, slope.astype(float), rtol=0, atol=error * len(Z) * size)

    check()


@both
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_slope_is_the_derivative_of_the_value(objective):
    """Without the transposed half it is not."""
    rng = np.random.default_rng(0)
    Z, labels, V = rng.standard_normal((50, 3)), rng.integers(0, 3, 50), rng.standard_normal((50, 3))
    before, here, after = (
        neighbour_gradient(Z + t * V, labels, objective=objective, block=16) for t in (-1e-5, 0, 1e-5)
    )
    assert_allclose((here.slope * V).sum(), (after.value - before.value) / 2e-5, rtol=1e-8)


@both
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_an_offset_costs_no_more_than_the_rounding_of_the_points(objective):
    rng = np.random.default_rng(0)
    Z, labels = rng.standard_normal((60, 3)), rng.integers(0, 3, 60)
    here = neighbour_gradient(Z, labels, objective=objective)
    there = neighbour_gradient(Z + 1e4, labels, objective=objective)
    assert_allclose(there.value, here.value, rtol=1e-11)
    assert_allclose(there.slope, here.slope, rtol=0, atol=1e-10 * np.abs(here.slope).max())


@both
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize(("dtype", "scale"), [(np.float32, 16), (np.float64, 50)])
def test_rows_whose_sums_underflow_keep_their_share(objective, dtype, scale):
    rng = np.random.default_rng(0)
    Z, labels = (scale * rng.standard_normal((70, 2))).astype(dtype), rng.integers(0, 3, 70)
    got = neighbour_gradient(Z, labels, objective=objective, block=24)
    assert 10 < got.n_shifted < 70
    value, slope = reference.neighbour_objective(Z, labels, objective)
    limit = 1e-12 if dtype is np.float64 else 1e-4
    assert_allclose(got.value, float(value), rtol=limit)
    assert_allclose(got.slope, slope.astype(float), rtol=0, atol=limit * float(np.abs(slope).max()))


@both
@pytest.mark.parametrize(
    ("dtype", "limit", "least"), [(np.float32, 1e-4, 2.0**-44), (np.float64, 1e-12, 0.0)]
)
def test_probabilities_close_to_one_keep_their_digits(dtype, limit, least):
    """log p and the slope are of the size of 1 - p, which is 1e-18 here: 1 - p from p would be 0."""
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1], 20)
    Z = (0.1 * rng.standard_normal((40, 2)) + 6.5 * labels[:, None] * [1, 0]).astype(dtype)
    got = neighbour_gradient(Z, labels, objective="kl")
    value, slope = reference.neighbour_objective(Z, labels, "kl")
    assert -1e-16 < got.value < -1e-18
    assert_allclose(got.value, float(value), rtol=limit)
    largest = float(np.abs(slope).max())
    assert_allclose(got.slope, slope.astype(float), rtol=0, atol=max(limit * largest, least))


@both
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_rows_alone_in_their_class_are_counted_and_have_no_term(objective):
    rng = np.random.default_rng(0)
    Z, labels = rng.standard_normal((20, 2)), np.arange(20) // 3
    labels[-2:] = 7, 8
    got = neighbour_gradient(Z, labels, objective=objective)
    assert (got.n_alone, got.n_shifted) == (2, 0)
    assert_array_equal(got.p[-2:], 0)
    assert_allclose(got.value, float(reference.neighbour_objective(Z, labels, objective)[0]), rtol=1e-13)


@both
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("n", [1, 2, 9])
def test_one_class_is_found_with_certainty(objective, n):
    got = neighbour_gradient(np.arange(n)[:, None] * 1.0, np.zeros(n, int), objective=objective)
    assert got.value == (n if objective == "accuracy" and n > 1 else 0)
    assert_array_equal(got.slope, 0)


@both
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_rows_that_coincide_have_the_shares_of_their_numbers(objective):
    labels = np.array([0, 0, 0, 1, 1])
    got = neighbour_gradient(np.full((5, 3), 2.5), labels, objective=objective)
    assert_allclose(got.p, [0.5, 0.5, 0.5, 0.25, 0.25], rtol=1e-15)
    assert_array_equal(got.slope, 0)


@both
@pytest.mark.parametrize("dtype", DTYPES)
def test_ties_so_far_away_that_float32_counts_in_thousands(dtype):
    Z, labels = 1e5 * np.array([[0], [1], [-1], [-1], [-1]], dtype), np.array([0, 0, 1, 1, 1])
    got = neighbour_gradient(Z, labels)
    assert_allclose(got.p, [0.25, 1, 1, 1, 1], rtol=1e-5)
    # Only the row at 0 has a choice: q = 3/16, its own neighbour at 1e5, each other one with a third of q.
    wanted = 2e5 * 3 / 16 * np.array([2, -1, -1 / 3, -1 / 3, -1 / 3])
    assert_allclose(got.slope[:, 0], wanted, rtol=1e-5)


@both
@pytest.mark.parametrize("dtype", DTYPES)
def test_logarithms_that_are_too_small_cannot_make_a_pull_large(dtype):
    rng = np.random.default_rng(0)
    a = pack_points(rng.standard_normal((20, 2)).astype(dtype), rng.integers(0, 2, 20))
    logs = neighbour_log_sums(a, a, np.arange(20)) - 1e4
    rows, columns = shifted_laplacian(a, a, logs, np.ones(20), np.arange(20))
    assert max(np.abs(rows).max(), np.abs(columns).max()) < 20 * 2 * 6


@both
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_saturated_map_has_finite_results(dtype):
    rng = np.random.default_rng(0)
    Z, labels = (1e9 * rng.standard_normal((40, 2))).astype(dtype), rng.integers(0, 3, 40)
    for objective in OBJECTIVES:
        got = neighbour_gradient(Z, labels, objective=objective)
        assert np.isfinite(got.value)
        assert np.isfinite(got.slope).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_plain_equals_compiled(monkeypatch, objective, dtype):
    rng = np.random.default_rng(0)
    Z, labels = rng.standard_normal((300, 5)).astype(dtype), rng.integers(0, 6, 300)
    Z[:30] *= 20
    compiled = neighbour_gradient(Z, labels, objective=objective, block=128)
    monkeypatch.setenv("GRAMIAN_KERNELS", "plain")
    simple = neighbour_gradient(Z, labels, objective=objective, block=128)
    limit = 1e-12 if dtype is np.float64 else 1e-4
    assert_allclose(compiled.value, simple.value, rtol=limit)
    assert_allclose(compiled.slope, simple.slope, rtol=0, atol=limit * np.abs(simple.slope).max())


# ------------------------------------------------------------------------- threads, memory, machines


@both
@pytest.mark.parametrize("dtype", DTYPES)
def test_threads_change_no_bit(dtype):
    rng = np.random.default_rng(0)
    Z, labels = (30 * rng.standard_normal((400, 3))).astype(dtype), rng.integers(0, 4, 400)
    alone = neighbour_gradient(Z, labels, objective="kl", block=64)
    with ThreadPoolExecutor(4) as pool:
        together = neighbour_gradient(Z, labels, objective="kl", block=64, mapper=pool.map)
    assert alone.n_shifted
    assert together.value == alone.value
    assert_array_equal(together.slope, alone.slope)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("c", [1, 2, 10, 64])
def test_a_tile_takes_no_more_than_declared(c, dtype):
    rng = np.random.default_rng(0)
    n, n_classes = 512, 20
    z = pack_points(rng.standard_normal((2 * n, c)).astype(dtype), rng.integers(0, n_classes, 2 * n))
    a, b, weights, q = z[:, :n], z[:, n:], np.ones((2, n)), np.ones(n)
    logs = neighbour_log_sums(a, b)
    calls = {
        neighbour_scratch((c,), dtype): (
            lambda: neighbour_sums(a, b),
            lambda: neighbour_laplacian(a, b, weights, weights),
            lambda: shifted_laplacian(a, b, logs, q),
        ),
        class_scratch((c,), dtype, n_classes=n_classes): (
            lambda: class_log_sums(a, b, n_classes),
            lambda: neighbour_log_sums(a, b),
        ),
    }
    for declared, functions in calls.items():
        peaks = []
        for function in functions:
            function()
            tracemalloc.start()
            function()
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        assert max(peaks) <= 2 * n * declared <= 2.5 * max(peaks)


def test_operations_of_a_pair_grow_with_the_coordinates():
    assert neighbour_flops((2,)) == 82
    assert neighbour_flops((10,)) == 170


CHILD = """
import sys
import numpy as np
from gramian.kernels.all_pairs import neighbour_gradient
from gramian.kernels.neighbours import class_log_sums, pack_points
rng, results = np.random.default_rng(0), []
for dtype in (np.float32, np.float64):
    for c in (1, 5, 20):
        Z, labels = rng.standard_normal((150, c)).astype(dtype), rng.integers(0, 4, 150)
        Z[:20] *= 30
        for objective in ("accuracy", "kl"):
            result = neighbour_gradient(Z, labels, objective=objective, block=64)
            results += [result.slope.ravel(), [result.value]]
        z = pack_points(Z, labels)
        results.append(np.maximum(class_log_sums(z[:, :50], z[:, 50:], 4), -1e3).ravel())
np.save(sys.argv[1], np.concatenate(results))
"""


def test_other_machines_give_the_same_within_rounding(tmp_path):
    names = ["generic", *(["haswell", "x86-64"] if platform.machine() == "x86_64" else [])]
    forms = {"native": {}} | {name: {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": ""} for name in names}
    for name, form in forms.items():
        command = [sys.executable, "-W", "error", "-c", CHILD, str(tmp_path / f"{name}.npy")]
        environment = {**os.environ, "GRAMIAN_KERNELS": "", **form}
        subprocess.run(command, env=environment, check=True, timeout=120)
    native = np.load(tmp_path / "native.npy")
    for name in names:
        other = np.load(tmp_path / f"{name}.npy")
        half = len(native) // 2
        for part, limit in ((slice(half), 1e-4), (slice(half, None), 1e-11)):
            assert_allclose(other[part], native[part], rtol=0, atol=limit * np.abs(native[part]).max())


# ------------------------------------------------------------------------------- packing, weights, errors


def test_packed_points_are_scaled_rows_above_their_labels():
    Z = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
    z = pack_points(Z, np.array([1, 0]))
    assert z.dtype == np.float32
    assert_allclose(z, [[SCALE, 3 * SCALE], [2 * SCALE, 4 * SCALE], [1, 0]], rtol=1e-6)


def test_underflow_is_judged_by_what_the_objective_needs():
    sums = np.array([[0.0, 1e-30, 1.0], [1.0, 0.0, 0.0]])
    assert underflown(sums, np.float32, "accuracy").tolist() == [False, True, False]
    assert underflown(sums, np.float32, "kl").tolist() == [True, True, False]
    assert underflown(sums, np.float64, "kl").tolist() == [True, False, False]


def test_terms_and_weights_of_a_row():
    logs = np.log([[3.0], [1.0]])
    for objective, term, q in (("accuracy", 0.75, 0.1875), ("kl", np.log(0.75), 0.25)):
        got = neighbour_terms(logs, objective)
        assert_allclose([x[0] for x in got], [term, 0.75, q], rtol=1e-14)
        assert_allclose(neighbour_weights(logs, got[2])[:, 0], [-q / 3, q], rtol=1e-14)


def test_rows_without_a_neighbour_weigh_nothing():
    logs = np.array([[-np.inf, -np.inf, 0.0], [-np.inf, 0.0, -np.inf]])
    for objective in OBJECTIVES:
        assert_array_equal(neighbour_weights(logs, neighbour_terms(logs, objective)[2]), 0)


GOOD = np.ones((3, 2))
LABELS = np.array([0, 1, 1])
BAD = {
    "NaN": (np.where(np.eye(3, 2), np.nan, GOOD), LABELS, InputError, "Z has NaN at"),
    "one dimension": (GOOD[0], LABELS, InputError, "Z has 1 dimensions"),
    "far": (GOOD * 1e13, LABELS, InputError, r"Z has a coordinate of 1e\+13; scale"),
    "labels of text": (GOOD, np.array(["a", "b", "b"]), InputTypeError, "labels have the type <U1"),
    "labels of floats": (GOOD, LABELS * 1.0, InputTypeError, "labels have the type float64"),
    "a label too few": (GOOD, LABELS[:2], InputError, r"labels have shape \(2,\) for 3 rows"),
    "negative label": (GOOD, LABELS - 1, InputError, "labels go from -1 to 0"),
    "large label": (GOOD.astype("f4"), LABELS << 24, InputError, "labels go from 0 to 16777216"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(case):
    Z, labels, error, message = BAD[case]
    with pytest.raises(error, match=message) as raised:
        pack_points(Z, labels)
    assert "\n" not in str(raised.value)


def test_an_unknown_objective_is_refused():
    with pytest.raises(InputError, match="objective is 'f'; give one of 'accuracy', 'kl'"):
        neighbour_gradient(GOOD, LABELS, objective="f")
