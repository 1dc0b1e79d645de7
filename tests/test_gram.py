"""The table of kernels and the Gram operator: inherited suites, centring, scale, weights, stored matrices."""

from __future__ import annotations

import re
from typing import ClassVar
from unittest import mock

import numpy as np
import pytest
import zarr
from numpy.testing import assert_allclose, assert_array_equal

from gramian import engine, open_dataset
from gramian.blocks import ArraySpec
from gramian.errors import InputError, InputTypeError, StoreError
from gramian.gram import KERNELS, MAX_KNOTS, GramOperator, gram
from gramian.kernels.hal import hal_kernel
from tests import reference
from tests.contracts import FloatKernelContract, KernelContract, assert_same_bits, blocks_of, lazy, stored
from tests.strategies import orthonormal_bases

KNOTS = np.random.default_rng(7).integers(0, 6, (70, 3)) / 2


class TestHAL(FloatKernelContract):
    name = "hal"
    parameters: ClassVar[dict] = {"knots": KNOTS, "max_degree": 2}
    single = np.float64

    def rows(self, rng, count):
        return rng.integers(0, 6, (count, 3)) / 2

    def value(self, x, y):
        return reference.hal_kernel(x[None], y[None], KNOTS, 2)[0, 0]


class TestProjection(FloatKernelContract):
    name = "projection"

    def rows(self, rng, count):
        return orthonormal_bases(rng, count, 7, 2)

    def value(self, x, y):
        return reference.projection_kernel(x, y)


class TestPeriodic(FloatKernelContract):
    name = "periodic"
    parameters: ClassVar[dict] = {"omega": 0.8}

    def rows(self, rng, count):
        return orthonormal_bases(rng, count, 7, 2)

    def value(self, x, y):
        return reference.periodic_kernel(x, y, 0.8)


class TestProjectionRBF(FloatKernelContract):
    name = "projection-rbf"
    parameters: ClassVar[dict] = {"omega": 0.8}

    def rows(self, rng, count):
        return orthonormal_bases(rng, count, 7, 2)

    def value(self, x, y):
        return reference.projection_rbf_kernel(x, y, 0.8)


class TestHamming(KernelContract):
    name = "hamming"
    parameters: ClassVar[dict] = {"n_bits": 75}
    tolerance = 1e-7
    target = 1 << 12

    def rows(self, rng, count):
        return reference.packed_signs(rng.standard_normal((count, 75)))

    def value(self, x, y):
        return reference.hamming_kernel(x, y, 75)


def test_every_line_of_the_table_has_a_suite():
    suites = [*KernelContract.__subclasses__(), *FloatKernelContract.__subclasses__()]
    assert {suite.name for suite in suites if hasattr(suite, "name")} == set(KERNELS)


# ------------------------------------------------------------------------------------------- operators


@pytest.fixture
def X():
    return np.random.default_rng(0).integers(0, 9, (60, 3)) / 4


@pytest.fixture
def new(X):
    return X[:11] + 0.25


def weights(rows):
    return np.random.default_rng(3).integers(0, 4, rows).astype(float)


def centring(weights):
    """C = I - 1 w'/sum(w)."""
    return np.eye(len(weights)) - np.outer(np.ones(len(weights)), weights) / weights.sum()


CASES = pytest.mark.parametrize(
    ("center", "scale", "weighted"),
    [
        (False, None, False),
        (True, None, False),
        (False, "mean_diagonal", False),
        (True, 7.5, False),
        (True, "mean_diagonal", True),
        (False, None, True),
    ],
)


@CASES
def test_symmetric_operator_is_the_literal_product(X, center, scale, weighted):
    w = weights(60) if weighted else np.ones(60)
    K = hal_kernel(X)
    C = centring(w) if center else np.eye(60)
    K /= {None: 1.0, "mean_diagonal": np.average(np.diagonal(K), weights=w)}.get(scale, scale)
    wanted = np.sqrt(np.outer(w, w)) * (C @ K @ C.T)
    operator = GramOperator(
        X, kernel="hal", center=center, scale=scale, sample_weight=w if weighted else None
    )
    close = {"rtol": 1e-12, "atol": 1e-12 * np.abs(wanted).max()}
    V = np.random.default_rng(1).standard_normal((60, 2))
    assert_allclose(operator.toarray(), wanted, **close)
    assert_allclose(operator @ V, wanted @ V, rtol=1e-11, atol=1e-11 * np.abs(wanted).max())
    assert_allclose(operator.diagonal(), np.diagonal(wanted), **close)
    assert operator.trace() == pytest.approx(np.trace(wanted), rel=1e-12)


@CASES
def test_rectangular_operator_is_centred_and_scaled_by_the_training_rows(X, new, center, scale, weighted):
    w = weights(60) if weighted else np.ones(60)
    K, cross = hal_kernel(X), hal_kernel(new, X, knots=X)
    means = K @ w / w.sum() if center else np.zeros(60)
    C = centring(w) if center else np.eye(60)
    factor = {None: 1.0, "mean_diagonal": np.average(np.diagonal(K), weights=w)}.get(scale, scale)
    wanted = (cross - means) @ C.T * np.sqrt(w) / factor
    operator = GramOperator(
        new, X, kernel="hal", knots=X, center=center, scale=scale, sample_weight=w if weighted else None
    )
    rng, close = np.random.default_rng(1), {"rtol": 1e-11, "atol": 1e-10 * np.abs(wanted).max()}
    V, U = rng.standard_normal((60, 2)), rng.standard_normal((11, 2))
    assert_allclose(operator.toarray(), wanted, **close)
    assert_allclose(operator @ V, wanted @ V, **close)
    assert_allclose(operator.rmatmul(U), wanted.T @ U, **close)
    assert_allclose(U.T @ operator, U.T @ wanted, **close)


def test_centred_rows_of_the_training_data_are_rows_of_the_centred_matrix(X):
    cross = GramOperator(X[:7], X, kernel="hal", knots=X, center=True)
    assert_allclose(cross.toarray(), GramOperator(X, kernel="hal", center=True).toarray()[:7], atol=1e-10)


def test_centred_matrix_is_symmetric_to_the_last_bit(X):
    K = GramOperator(X, kernel="hal", center=True, scale="mean_diagonal").toarray()
    assert_same_bits(K, np.ascontiguousarray(K.T))


def test_integer_weights_are_repeated_rows(X):
    w = weights(60).astype(int)
    once = GramOperator(X, kernel="hal", knots=X, center=True, scale="mean_diagonal", sample_weight=w)
    repeated = GramOperator(
        np.repeat(X, w, axis=0), kernel="hal", knots=X, center=True, scale="mean_diagonal"
    )
    assert once.trace() == pytest.approx(repeated.trace(), rel=1e-12)
    assert_allclose(
        np.linalg.eigvalsh(once.toarray())[-20:], np.linalg.eigvalsh(repeated.toarray())[-20:], rtol=1e-10
    )


def test_vector_times_operator_is_a_vector(X, new):
    operator = GramOperator(new, X, kernel="hal", knots=X)
    assert (operator @ np.ones(60)).shape == (11,)
    assert operator.rmatmul(np.ones(11)).shape == (60,)
    assert (np.ones(11) @ operator).shape == (60,)


def test_means_and_scale_of_the_kernel(X):
    K = hal_kernel(X)
    operator = GramOperator(X, kernel="hal", center=True, scale=2.0)
    assert_allclose(operator.means, K.mean(axis=1) / 2, rtol=1e-14)
    assert operator.grand_mean == pytest.approx(K.mean() / 2)
    assert GramOperator(X, kernel="hal", scale="mean_diagonal").scale == pytest.approx(np.trace(K) / 60)


@pytest.mark.parametrize("make", [stored, lazy])
@pytest.mark.parametrize("chunk", [7, 60])
def test_centred_and_scaled_product_has_the_same_bits_for_any_input(X, make, chunk):
    V = np.random.default_rng(1).standard_normal((60, 2))
    options = {"kernel": "hal", "center": True, "scale": "mean_diagonal"}
    with blocks_of(1 << 13):
        assert_same_bits(GramOperator(make(X, chunk), **options) @ V, GramOperator(X, **options) @ V)


# --------------------------------------------------------------------------------- knots and bits


def test_rows_are_the_default_knots(X):
    assert_array_equal(gram(X, kernel="hal"), hal_kernel(X))


def test_drawn_knots_are_rows_and_follow_the_seed(X):
    first = GramOperator(X, kernel="hal", n_knots=9).params["knots"]
    again = GramOperator(stored(X, 7), kernel="hal", n_knots=9, random_state=0).params["knots"]
    other = GramOperator(X, kernel="hal", n_knots=9, random_state=1).params["knots"]
    assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    assert {tuple(knot) for knot in first} <= {tuple(row) for row in X}


def test_store_keeps_the_seed_of_drawn_knots(X, tmp_path):
    out = gram(X, kernel="hal", n_knots=9, random_state=np.random.default_rng(5), out=tmp_path / "gram")
    seed = zarr.open_group(tmp_path / "gram").attrs["gramian"]["parameters"]["random_state"]
    assert_array_equal(out[:], gram(X, kernel="hal", n_knots=9, random_state=seed))


def test_knot_weights_are_used(X):
    v = weights(60)
    assert_array_equal(gram(X, kernel="hal", knot_weights=v), hal_kernel(X, knot_weights=v))


def test_too_many_rows_do_not_become_knots_unasked():
    spec = ArraySpec((MAX_KNOTS + 1, 3), np.dtype(float))
    with pytest.raises(InputError, match=r"all 65537 rows would be knots; give n_knots"):
        GramOperator(spec, kernel="hal")


def test_other_rows_need_knots(X):
    with pytest.raises(InputError, match="Y but no knots; give knots="):
        gram(X, X, kernel="hal")


def test_knots_and_their_number_exclude_each_other(X):
    with pytest.raises(InputError, match="both knots and n_knots=3"):
        gram(X, kernel="hal", knots=X, n_knots=3)


@pytest.mark.parametrize("n_knots", [0, 61])
def test_impossible_number_of_knots_is_refused(X, n_knots):
    with pytest.raises(InputError, match=f"n_knots is {n_knots}; give a whole number from 1 to 60"):
        gram(X, kernel="hal", n_knots=n_knots)


def packed(n_bits):
    array = stored(reference.packed_signs(np.random.default_rng(0).standard_normal((20, n_bits))))
    array.attrs["n_bits"] = n_bits
    array.attrs["scale"] = n_bits**-0.5
    return array


def test_bits_are_found_in_a_store_and_read_as_they_are():
    assert_array_equal(gram(packed(19), kernel="hamming"), gram(packed(19)[:], kernel="hamming", n_bits=19))


def test_bits_that_disagree_are_refused():
    with pytest.raises(InputError, match="n_bits is 19 here and 20 there"):
        gram(packed(19), packed(20), kernel="hamming")


def test_bits_must_be_known():
    with pytest.raises(InputTypeError, match="kernel 'hamming' has no n_bits; give n_bits="):
        gram(packed(19)[:], kernel="hamming")


# ---------------------------------------------------------------------------------- stored matrices


@pytest.fixture
def K(X):
    return hal_kernel(X)


@pytest.mark.parametrize("make", [lambda K: K, lambda K: stored(K, 13), lambda K: lazy(K, 13)])
def test_stored_matrix_is_its_kernel(X, K, make):
    V = np.random.default_rng(1).standard_normal((60, 2))
    options = {"center": True, "scale": "mean_diagonal"}
    kernel = GramOperator(X, kernel="hal", **options)
    with blocks_of(1 << 12):
        matrix = GramOperator(make(K), kernel="precomputed", **options)
        assert_allclose(matrix @ V, kernel @ V, rtol=1e-12, atol=1e-10)
        assert_allclose(matrix.toarray(), kernel.toarray(), rtol=1e-12, atol=1e-12)
        assert_allclose(matrix.diagonal(), kernel.diagonal(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("make", [lambda K: K, lambda K: stored(K, 13), lambda K: lazy(K, 13)])
def test_stored_rectangle(K, make):
    rng = np.random.default_rng(1)
    V, U = rng.standard_normal((60, 2)), rng.standard_normal((20, 2))
    with blocks_of(1 << 12):
        operator = GramOperator(make(K[:20]), kernel="precomputed")
        assert_allclose(operator @ V, K[:20] @ V, rtol=1e-12)
        assert_allclose(operator.rmatmul(U), K[:20].T @ U, rtol=1e-12, atol=1e-12)
        assert_array_equal(operator.toarray(), K[:20])


def test_array_of_a_stored_matrix_is_a_copy(K):
    before = K.copy()
    GramOperator(K, kernel="precomputed", center=True, scale=3.0).toarray()
    assert_array_equal(K, before)


def test_stored_columns(K):
    operator = GramOperator(K, kernel="precomputed", scale=2.0)
    assert_array_equal(engine.apply(operator.columns(np.array([4, 9])), K), K[:, [4, 9]] / 2)


@pytest.mark.parametrize("row", [3, 59])
def test_stored_matrix_that_is_not_symmetric_is_refused(K, row):
    K[row, 7] *= 1 + 1e-6
    with pytest.raises(InputError, match="the stored Gram matrix is not symmetric"):
        GramOperator(stored(K, 13), kernel="precomputed") @ np.ones(60)


def test_rounding_does_not_make_a_stored_matrix_unsymmetric(K):
    K = K.astype(np.float32)
    K[3, 7] *= 1 + 2e-7
    assert np.isfinite(GramOperator(K, kernel="precomputed") @ np.ones(60)).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_stored_matrix_that_is_not_finite_is_refused(K, bad):
    K[40, 7] = K[7, 40] = bad
    with pytest.raises(InputError, match="row 7 of the stored Gram matrix is not finite"):
        GramOperator(K, kernel="precomputed").toarray()


def test_some_rows_of_a_stored_matrix_are_refused():
    with pytest.raises(InputError, match="some rows of a stored Gram matrix"):
        GramOperator(engine.Selected(stored(np.eye(6), 2), np.arange(3)), kernel="precomputed")


def test_stored_matrix_takes_no_other_rows(X, K):
    with pytest.raises(InputTypeError, match="Y is given with a stored Gram matrix"):
        GramOperator(K, X, kernel="precomputed")


def test_stored_matrix_takes_no_parameter(K):
    with pytest.raises(InputTypeError, match="omega is given with a stored Gram matrix"):
        GramOperator(K, kernel="precomputed", omega=1.0)


def test_stored_matrix_of_another_rank_is_refused(K):
    with pytest.raises(InputError, match=re.escape("the stored Gram matrix has shape (60,)")):
        GramOperator(K[0], kernel="precomputed")


def test_stored_rectangle_cannot_be_centred(K):
    with pytest.raises(InputError, match="knows no training rows"):
        GramOperator(K[:20], kernel="precomputed", center=True)


# ---------------------------------------------------------------------------------------- bad input


def test_unknown_kernel_is_refused_with_the_list(X):
    with pytest.raises(InputError, match=f"kernel is 'rbf'; give one of {', '.join(map(repr, KERNELS))}"):
        gram(X, kernel="rbf")


def test_missing_parameter_is_named():
    with pytest.raises(InputTypeError, match="kernel 'periodic' has no omega; give omega="):
        gram(orthonormal_bases(np.random.default_rng(0), 4, 5, 2), kernel="periodic")


def test_value_of_a_parameter_is_judged_before_any_block_is_read():
    spec = ArraySpec((10, 5, 2), np.dtype(float))
    with pytest.raises(InputError, match="omega is -1"):
        GramOperator(spec, kernel="periodic", omega=-1.0)


def test_path_is_refused():
    with pytest.raises(InputTypeError, match=r"is the path 'x.zarr'; open it first"):
        gram("x.zarr", kernel="hal")


@pytest.mark.parametrize("scale", [0.0, -1.0, np.nan, "mean"])
def test_scale_out_of_range_is_refused(X, scale):
    with pytest.raises(InputError, match="scale is"):
        GramOperator(X, kernel="hal", scale=scale)


def test_scale_by_a_diagonal_of_zeros_is_refused():
    with pytest.raises(InputError, match=r"the mean of the diagonal is 0\.0"):
        GramOperator(np.zeros((3, 3)), kernel="precomputed", scale="mean_diagonal") @ np.ones(3)


@pytest.mark.parametrize("bad", [np.ones(59), np.zeros(60), -np.ones(60), np.full(60, np.nan)])
def test_unusable_weights_are_refused(X, bad):
    with pytest.raises(InputError, match="sample_weight"):
        GramOperator(X, kernel="hal", sample_weight=bad)


@pytest.mark.parametrize("shape", [(59,), (59, 2), (60, 2, 2)])
def test_factor_of_another_shape_is_refused(X, shape):
    with pytest.raises(InputError, match=re.escape(f"the other factor has shape {shape}")):
        GramOperator(X, kernel="hal") @ np.ones(shape)


@pytest.mark.parametrize("what", ["diagonal", "trace"])
def test_rectangle_has_no_diagonal(X, what):
    with pytest.raises(InputError, match=re.escape("shape (11, 60) has no diagonal; leave out Y")):
        getattr(GramOperator(X[:11], X, kernel="hal", knots=X), what)()


def test_existing_output_is_kept(X, tmp_path):
    gram(X, kernel="hal", out=tmp_path / "gram")
    with pytest.raises(StoreError, match="exists already"):
        gram(X, kernel="hal", out=tmp_path / "gram")
    assert gram(X, kernel="hal", out=tmp_path / "gram", force=True).shape == (60, 60)


def test_a_gram_matrix_that_was_interrupted_does_not_open(tmp_path):
    X = np.random.default_rng(0).random((60, 2))
    with (
        mock.patch.object(engine, "write_tiles", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        gram(X, kernel="hal", out=tmp_path / "gram")
    with pytest.raises(StoreError, match="begun but not finished"):
        open_dataset(tmp_path / "gram")
    gram(X, kernel="hal", out=tmp_path / "gram", force=True)
    assert_array_equal(open_dataset(tmp_path / "gram").gram[:], gram(X, kernel="hal"))


def test_a_damaged_chunk_of_a_stored_matrix_is_one_line(tmp_path):
    K = gram(np.random.default_rng(0).random((60, 2)), kernel="hal", out=tmp_path / "gram")
    (tmp_path / "gram" / "gram" / "c" / "0" / "0").write_bytes(b"x")
    operator = GramOperator(K, kernel="precomputed")
    for call in (operator.diagonal, lambda: operator @ np.ones(60)):
        with pytest.raises(StoreError, match=r"gram cannot be read: .*; find its damaged chunks"):
            call()


def test_gram_matrices_of_one_session_are_each_computed(tmp_path):
    X, Z = (np.random.default_rng(seed).random((60, 2)) for seed in (0, 1))
    with engine.session(run=tmp_path / "run"):
        for name, rows in (("one", X), ("two", Z)):
            assert_array_equal(gram(rows, kernel="hal", out=tmp_path / name)[:], gram(rows, kernel="hal"))
        again = gram(Z, kernel="hal", out=tmp_path / "one", force=True)
    assert_array_equal(again[:], gram(Z, kernel="hal"))
