"""The HAL kernel against its literal definition: shapes, ties, every degree, weights, tiles, bad input."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from gramian.errors import InputError, InputTypeError
from gramian.kernels.hal import (
    UNROLLED,
    _digit_weights,
    _groups,
    hal_diagonal,
    hal_kernel,
    hal_scratch,
    hal_tile,
    knot_planes,
)
from tests import reference

DIMENSIONS = (1, 2, 3, 4, 7, 8, 9, 16, 31, 32, 63, 64, 70)
BEYOND = UNROLLED + 3


@pytest.fixture
def plain(monkeypatch):
    monkeypatch.setenv("GRAMIAN_KERNELS", "plain")


def tied(rng, *shape):
    """Values on a coarse grid: rows and knots coincide."""
    return rng.integers(0, 6, shape) / 2


def assert_equal_to_the_definition(got, X, Y, knots, max_degree=None, knot_weights=None):
    """To the bit where the integers fit, to rounding beyond."""
    wanted = reference.hal_kernel(X, Y, knots, max_degree, knot_weights)
    fits = wanted.max() < 2**53 and (knot_weights is None or knot_weights.dtype.kind == "i")
    assert_allclose(got, wanted.astype(float), rtol=0 if fits else 1e-14, atol=0)


@st.composite
def problems(draw):
    """Rows, other rows or none, knots, degree: ties, constant columns, repeated rows, one row or knot."""
    d = draw(st.integers(1, 4))
    n, p = draw(st.integers(1, 90)), draw(st.integers(1, 40))
    m = draw(st.sampled_from((1, 2, 63, 64, 65, 130)) | st.integers(1, 200))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    draws = {
        "ties": lambda k: tied(rng, k, d),
        "no ties": lambda k: rng.standard_normal((k, d)),
        "constant": lambda k: np.where(np.arange(d) == 0, 1.0, tied(rng, k, d)),
    }
    values = draws[draw(st.sampled_from(sorted(draws)))]
    X, Y, knots = values(n), values(p), values(m)
    if draw(st.booleans()):
        X[n // 2] = X[0]
    return X, draw(st.sampled_from((Y, None))), knots, draw(st.sampled_from((None, 1, 2, 3, 9)))


@given(problem=problems())
def test_tile_equals_the_definition(problem):
    X, Y, knots, max_degree = problem
    got = hal_kernel(X, Y, knots=knots, max_degree=max_degree)
    assert_equal_to_the_definition(got, X, X if Y is None else Y, knots, max_degree)


@given(problem=problems())
def test_plain_equals_the_definition(problem):
    X, Y, knots, max_degree = problem
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRAMIAN_KERNELS", "plain")
        got = hal_kernel(X, Y, knots=knots, max_degree=max_degree)
    assert_equal_to_the_definition(got, X, X if Y is None else Y, knots, max_degree)


def wide_problem(d):
    """Several passes over the knots, every count from 0 to d, columns that do not fill a block."""
    rng = np.random.default_rng(d)
    X, Y, knots = (tied(rng, k, d) for k in (11, 13, 700))
    knots[0] = -1
    return X, Y, knots


@pytest.mark.parametrize("d", DIMENSIONS)
@pytest.mark.parametrize("kind", ["all degrees", "some degree"])
def test_tile_of_d_covariates(d, kind):
    X, Y, knots = wide_problem(d)
    max_degree = None if kind == "all degrees" else 1 + DIMENSIONS.index(d) % 3
    got = hal_kernel(X, Y, knots=knots, max_degree=max_degree)
    assert_equal_to_the_definition(got, X, Y, knots, max_degree)


@pytest.mark.parametrize("d", [*DIMENSIONS, BEYOND])
@pytest.mark.parametrize("max_degree", [1, 2, 3, None])
def test_plain_of_d_covariates(plain, d, max_degree):
    X, Y, knots = wide_problem(d)
    got = hal_kernel(X, Y, knots=knots, max_degree=max_degree)
    assert_equal_to_the_definition(got, X, Y, knots, max_degree)


@pytest.mark.slow
@pytest.mark.parametrize("d", range(1, 71))
@pytest.mark.parametrize("max_degree", [1, 2, 3, None])
def test_tile_of_every_number_of_covariates(d, max_degree):
    X, Y, knots = wide_problem(d)
    for other in (Y, None):
        got = hal_kernel(X, other, knots=knots, max_degree=max_degree)
        assert_equal_to_the_definition(got, X, X if other is None else other, knots, max_degree)


def test_more_covariates_than_are_unrolled_take_the_plain_loops():
    X, Y, knots = wide_problem(BEYOND)
    got = hal_kernel(X, Y, knots=knots, max_degree=3)
    assert_equal_to_the_definition(got, X, Y, knots, 3)


def test_is_the_inner_product_of_the_indicator_basis():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((12, 3))
    H = reference.hal_basis(X, X)
    assert_array_equal(hal_kernel(X), H @ H.T)


def test_degree_beyond_d_means_all():
    X = np.random.default_rng(0).random((20, 3))
    assert_array_equal(hal_kernel(X, max_degree=7), hal_kernel(X))


@pytest.mark.parametrize("degree", [1, 3])
@pytest.mark.parametrize("centred", [False, True])
def test_spectrum_of_an_ordered_sample(degree, centred):
    # Ordered in every coordinate: K = sum_{s<=q} C(d, s) A with A_ij = min(i, j), Brownian motion's.
    n, d = 60, 4
    X = np.sort(np.random.default_rng(0).standard_normal((n, d)), axis=0)
    K = hal_kernel(X, max_degree=degree) / reference.interactions(d, degree)
    k = np.arange(1, n + 1)
    wanted = 1 / (4 * np.sin((2 * k - 1) * np.pi / (2 * (2 * n + 1))) ** 2)
    if centred:
        J = np.eye(n) - 1 / n
        K = J @ K @ J
        wanted = np.append(1 / (4 * np.sin(k[:-1] * np.pi / (2 * n)) ** 2), 0)
    assert_allclose(np.linalg.eigvalsh(K)[::-1], wanted, rtol=1e-10, atol=1e-10)


@given(seed=st.integers(0, 2**32 - 1), m=st.integers(1, 150), max_degree=st.sampled_from((None, 2)))
def test_integer_weights_are_repeated_knots(seed, m, max_degree):
    rng = np.random.default_rng(seed)
    X, Y, knots = (tied(rng, k, 3) for k in (9, 10, m))
    weights = rng.integers(0, 5, m)
    got = hal_kernel(X, Y, knots=knots, knot_weights=weights, max_degree=max_degree)
    if not weights.any():
        assert_array_equal(got, 0)
    else:
        repeated = np.repeat(knots, weights, axis=0)
        assert_array_equal(got, hal_kernel(X, Y, knots=repeated, max_degree=max_degree))


WEIGHTS = {
    "all different": lambda rng, m: rng.random(m),
    "few values": lambda rng, m: rng.choice([0.1, 0.7, 3.3], m),
    "far apart": lambda rng, m: 10.0 ** rng.integers(-12, 12, m),
    "large integers": lambda rng, m: rng.integers(0, 10**9, m),
    "scaled integers": lambda rng, m: rng.integers(0, 4, m) / 1.7,
}


@pytest.mark.parametrize("path", ["tile", "plain"])
@pytest.mark.parametrize("kind", WEIGHTS)
def test_weights_equal_the_definition(monkeypatch, kind, path):
    monkeypatch.setenv("GRAMIAN_KERNELS", "plain" if path == "plain" else "")
    rng = np.random.default_rng(0)
    X, Y, knots = (tied(rng, k, 3) for k in (9, 10, 300))
    weights = WEIGHTS[kind](rng, 300)
    for other in (Y, None):
        got = hal_kernel(X, other, knots=knots, knot_weights=weights)
        assert_equal_to_the_definition(got, X, X if other is None else other, knots, None, weights)


@given(weights=st.lists(st.floats(0, 1e200) | st.integers(0, 9), min_size=1, max_size=80))
def test_groups_of_knots_sum_to_their_weights(weights):
    weights = np.array(weights)
    total = np.zeros(len(weights))
    for scale, members in _groups(len(weights), weights):
        total[members] += scale
    assert_array_equal(total, weights)


@pytest.mark.parametrize("d", [1, 5, 40, 200])
@pytest.mark.parametrize("degree", [1, 2, 3, None])
def test_digit_weights_within_a_count_sum_to_its_interactions(d, degree):
    degree = degree or d
    weights = (0.0, *(weight or 0.0 for weight in _digit_weights(d, degree)))
    assert min(weights) >= 0
    for g in range(d + 1):
        within = sum(weight for digits, weight in enumerate(weights) if digits & g == digits)
        assert_allclose(within, float(reference.interactions(g, degree)), rtol=1e-14)


@pytest.mark.parametrize("path", ["tile", "plain"])
@pytest.mark.parametrize("n", [1, 7, 8, 9, 64, 65, 150])
def test_symmetric_tile_has_the_bits_of_a_rectangular_one(monkeypatch, n, path):
    monkeypatch.setenv("GRAMIAN_KERNELS", "plain" if path == "plain" else "")
    rng = np.random.default_rng(n)
    X, knots = rng.random((n, 3)), rng.random((200, 3))
    K = hal_kernel(X, knots=knots, knot_weights=rng.random(200))
    assert_array_equal(K, K.T)
    rng = np.random.default_rng(n)
    X, knots = rng.random((n, 3)), rng.random((200, 3))
    assert_array_equal(K, hal_kernel(X, X, knots=knots, knot_weights=rng.random(200)))


@given(cut=st.integers(1, 89), across=st.integers(1, 89))
def test_tiles_have_the_bits_of_the_whole(cut, across):
    rng = np.random.default_rng(0)
    X, knots, weights = rng.random((90, 3)), rng.random((200, 3)), rng.random(200)
    whole = hal_kernel(X, knots=knots, knot_weights=weights)
    a, b = knot_planes(X[:cut], knots, weights), knot_planes(X[across:], knots, weights)
    assert_array_equal(hal_tile(a, b), whole[:cut, across:])


def test_diagonal_is_that_of_the_kernel():
    rng = np.random.default_rng(0)
    X, knots, weights = rng.random((21, 3)), rng.random((100, 3)), rng.random(100)
    given = {"knots": knots, "knot_weights": weights, "max_degree": 2}
    assert_array_equal(hal_diagonal(X, **given), np.diag(hal_kernel(X, **given)))


def test_blocks_without_rows():
    rng = np.random.default_rng(0)
    knots = rng.random((100, 3))
    none, some = knot_planes(np.empty((0, 3)), knots), knot_planes(rng.random((9, 3)), knots)
    assert hal_tile(none, some).shape == (0, 9)
    assert hal_tile(some, none).shape == (9, 0)
    assert hal_tile(none, none).shape == (0, 0)
    assert hal_diagonal(np.empty((0, 3)), knots=knots).shape == (0,)


def test_float32_is_compared_as_it_is():
    X = np.random.default_rng(0).random((40, 3), dtype=np.float32)
    K = hal_kernel(X)
    assert K.dtype == np.float64
    assert_array_equal(K, hal_kernel(X.astype(float)))


def test_integers_and_columns_in_any_layout():
    X = np.random.default_rng(0).integers(0, 9, (30, 3))
    wanted = hal_kernel(X.astype(float))
    assert_array_equal(hal_kernel(X), wanted)
    assert_array_equal(hal_kernel(np.asfortranarray(X.astype(float))), wanted)


@pytest.mark.parametrize("path", ["tile", "plain"])
def test_out_receives_the_result(monkeypatch, path):
    monkeypatch.setenv("GRAMIAN_KERNELS", "plain" if path == "plain" else "")
    X = np.random.default_rng(0).random((21, 3))
    whole = np.full((21, 40), np.nan)
    out = whole[:, 3:24]
    assert hal_kernel(X, out=out) is out
    assert_array_equal(out, hal_kernel(X))
    assert np.isnan(whole[:, :3]).all()
    assert np.isnan(whole[:, 24:]).all()


def test_threads_share_planes():
    rng = np.random.default_rng(0)
    knots = rng.random((300, 4))
    a, b = knot_planes(rng.random((100, 4)), knots), knot_planes(rng.random((90, 4)), knots)
    start = threading.Barrier(4)

    def tile(_):
        start.wait()
        return [hal_tile(a, b) for _ in range(5)]

    with ThreadPoolExecutor(4) as pool:
        results = [block for blocks in pool.map(tile, range(4)) for block in blocks]
    assert all(np.array_equal(block, results[0]) for block in results)


@pytest.mark.parametrize("weights", [None, np.arange(300), np.linspace(0, 1, 300)])
def test_planes_take_no_more_than_declared(weights):
    rng = np.random.default_rng(0)
    knots = rng.random((300, 5))
    planes = knot_planes(rng.random((64, 5)), knots, weights)
    declared = hal_scratch((5,), np.float64, knots=knots, knot_weights=weights)
    assert planes.words.nbytes <= 64 * declared <= 2 * planes.words.nbytes


def test_no_eigenvalue_is_negative_beyond_rounding():
    X = np.random.default_rng(0).standard_normal((80, 4))
    values = np.linalg.eigvalsh(hal_kernel(X, max_degree=2))
    assert values[0] > -1e-12 * values[-1]


GOOD = np.random.default_rng(0).random((6, 3))
INFINITE = np.full((2, 3), np.inf)
NAN = np.where(np.arange(3) == 1, np.nan, GOOD)
BAD = {
    "NaN": ({"X": NAN}, InputError, "X has NaN"),
    "infinity": ({"X": GOOD, "Y": INFINITE, "knots": GOOD}, InputError, "Y has inf"),
    "one dimension": ({"X": GOOD[0]}, InputError, "X has 1 dimensions"),
    "no rows": ({"X": GOOD[:0]}, InputError, r"X has shape \(0, 3\)"),
    "no columns": ({"X": GOOD[:, :0]}, InputError, r"X has shape \(6, 0\)"),
    "no knots": ({"X": GOOD, "knots": GOOD[:0]}, InputError, r"knots has shape \(0, 3\)"),
    "columns of Y": ({"X": GOOD, "Y": GOOD[:, :2], "knots": GOOD}, InputError, "Y has 2 columns, expected 3"),
    "columns of knots": ({"X": GOOD, "knots": GOOD[:, :2]}, InputError, "knots has 2 columns, expected 3"),
    "Y without knots": ({"X": GOOD, "Y": GOOD}, InputError, "Y is given without knots"),
    "text": ({"X": np.array([["a"]])}, InputTypeError, "X has the type"),
    "complex": ({"X": GOOD * 1j}, InputTypeError, "X has the type complex128"),
    "degree 0": ({"X": GOOD, "max_degree": 0}, InputError, "max_degree is 0"),
    "degree 1.5": ({"X": GOOD, "max_degree": 1.5}, InputTypeError, "max_degree is 1.5"),
    "a weight too few": (
        {"X": GOOD, "knot_weights": np.ones(5)},
        InputError,
        r"knot_weights has shape \(5,\)",
    ),
    "negative weight": ({"X": GOOD, "knot_weights": np.arange(6) - 1}, InputError, "knot_weights has -1"),
    "NaN weight": ({"X": GOOD, "knot_weights": NAN[:, 1]}, InputError, "knot_weights has NaN"),
    "out of another shape": ({"X": GOOD, "out": np.empty((6, 5))}, InputError, "out is float64 of shape"),
    "out of another type": ({"X": GOOD, "out": np.empty((6, 6), np.float32)}, InputError, "out is float32"),
    "columns of out": ({"X": GOOD, "out": np.empty((6, 6), order="F")}, InputError, "contiguous rows"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(case):
    arguments, error, message = BAD[case]
    with pytest.raises(error, match=message) as raised:
        hal_kernel(**arguments)
    assert "\n" not in str(raised.value)


def test_entries_that_could_overflow_name_max_degree():
    X = np.zeros((3, 1200))
    with pytest.raises(InputError, match="max_degree=1200"):
        hal_kernel(X)
    assert_array_equal(hal_kernel(X, max_degree=2), 3 * (1200 + 1200 * 1199 // 2))


def test_entries_below_the_bound_are_finite():
    X = np.zeros((3, 990))
    assert_allclose(hal_kernel(X), 3 * 2.0**990, rtol=1e-14)


def test_weights_count_towards_the_bound():
    with pytest.raises(InputError, match="max_degree"):
        hal_kernel(np.zeros((3, 2)), knot_weights=np.array([0, 1, 1e300]))


def test_planes_of_different_knots_are_refused():
    a, b = knot_planes(GOOD, GOOD), knot_planes(GOOD, np.zeros((70, 3)))
    with pytest.raises(InputError, match="different knots"):
        hal_tile(a, b)
