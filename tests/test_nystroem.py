"""Nyström features against their definition, with and without a null space, and their moments by parts."""

from functools import partial
from unittest import mock

import numpy as np
import pytest
from numpy.testing import assert_allclose

from gramian import engine, moments
from gramian.kernels.hal import hal_kernel
from gramian.moments import MomentPass, PlainFeatures, above_rounding, row_moments
from gramian.nystroem import NystroemFeatures, Rotation, leading
from tests.contracts import assert_same_bits, blocks_of

N, L = 150, 20


def columns(rows, *, landmarks, knots):
    return hal_kernel(rows, landmarks, knots=knots)


def example(unit=1.0, values=None):
    """Features at the first rows of some that are drawn, or that repeat these values."""
    rng = np.random.default_rng(0)
    X = rng.random((N, 3)) if values is None else rng.choice(values, (N, 2))
    function = partial(columns, landmarks=X[:L], knots=X[:30])
    return X, function, NystroemFeatures.of(function, function(X[:L]), unit=unit)


def run(features, X, targets=0, **options):
    width = 1 + len(features.shift) + targets
    figures = MomentPass.over(engine.spec_of(X), width, options.get("n_parts", 1), scratch=8 * L)
    return row_moments(features, X, figures, **options)


def literal(columns, weights):
    mean = np.average(columns, axis=0, weights=weights)
    return mean, (columns - mean).T @ (weights[:, None] * (columns - mean))


# ---------------------------------------------------------------------------------------- features


@pytest.mark.parametrize("unit", [1.0, 7.5])
@pytest.mark.parametrize("values", [None, [0.0, 1.0, 2.0]])
def test_inner_products_are_those_of_the_approximation(unit, values):
    X, function, features = example(unit, values)
    phi, C = features.block(X) + features.shift, function(X)
    wanted = C @ np.linalg.pinv(C[:L], rcond=1e-10, hermitian=True) @ C.T / unit
    assert_allclose(phi @ phi.T, wanted, atol=1e-9 * wanted.max())


def test_directions_that_repeat_others_are_left_out():
    X, _, features = example(values=[0.0, 1.0])
    different = np.unique(X[:L], axis=0)
    rank = np.linalg.matrix_rank(hal_kernel(different, knots=X[:30]))
    assert features.root.shape == (L, rank)


def test_the_shift_is_the_mean_over_the_landmarks():
    X, _, features = example()
    assert_allclose(features.block(X[:L]).mean(axis=0), 0, atol=1e-12)


def test_features_can_be_written_where_they_are_wanted():
    X, _, features = example()
    out = np.empty((N, len(features.shift)))
    assert features.block(X, out=out) is out
    assert_same_bits(out, features.block(X))


def test_no_landmark_with_a_kernel_above_zero_gives_no_feature():
    features = NystroemFeatures.of(lambda rows: np.zeros((len(rows), 4)), np.zeros((4, 4)))
    assert features.block(np.zeros((7, 2))).shape == (7, 0)


# ----------------------------------------------------------------------------------- the null space


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [10, 100, 500])
def test_rounding_of_the_entries_is_below_the_cut(size, dtype):
    rng = np.random.default_rng(size)
    factor = rng.standard_normal((size, 5))
    values = np.linalg.eigvalsh((factor @ factor.T).astype(dtype).astype(float))
    assert above_rounding(values, size, dtype).sum() == 5


def test_no_value_of_zeros_is_above_rounding():
    assert not above_rounding(np.zeros(3), 3).any()


@pytest.mark.parametrize("count", [2, 30, 60])
def test_leading_pairs_are_those_of_the_matrix(count):
    factor = np.random.default_rng(1).standard_normal((60, 40))
    gram = factor @ factor.T
    values, vectors = leading(gram.copy(), count)
    assert_allclose(values, np.linalg.eigvalsh(gram)[::-1][: min(count, 40)], rtol=1e-10)
    assert_allclose(gram @ vectors, vectors * values, atol=1e-10 * values[0])


# ------------------------------------------------------------------------------------ the one pass


def test_moments_of_parts_are_those_of_their_rows():
    X, _, features = example()
    rng = np.random.default_rng(2)
    y, w, parts = rng.standard_normal((N, 2)), rng.random(N), rng.integers(0, 3, N)
    found = run(features, X, 2, target=y, weights=w, parts=parts, n_parts=3)
    every = np.hstack([features.block(X) + features.shift, y])
    for part, moment in enumerate(found):
        mean, scatter = literal(every[parts == part], w[parts == part])
        assert moment.weight == pytest.approx(w[parts == part].sum())
        assert_allclose(moment.mean, mean, atol=1e-12)
        assert_allclose(moment.scatter, scatter, atol=1e-10)


def test_the_diagonal_is_the_last_target():
    X, _, features = example()
    y = np.arange(N, dtype=float)
    (found,) = run(features, X, 2, target=y, diagonal=partial(np.sum, axis=1))
    assert_allclose(found.target_mean, [y.mean(), X.sum(axis=1).mean()])


@pytest.mark.parametrize(("n_classes", "targets"), [(2, 1), (3, 3)])
def test_classes_have_signs_as_targets(n_classes, targets):
    X = np.random.default_rng(3).standard_normal((N, 4))
    codes = np.arange(N) % n_classes
    (found,) = run(PlainFeatures.of(X), X, targets, target=codes, n_classes=n_classes)
    share = np.array([np.mean(codes == code) for code in range(n_classes)])
    assert_allclose(found.target_mean, (2 * share - 1)[n_classes - targets :])


def test_plain_features_keep_the_digits_of_rows_far_away():
    X = np.random.default_rng(4).standard_normal((N, 3))
    (found,) = run(PlainFeatures.of(X + 1e7), X + 1e7)
    assert_allclose(found.gram, np.cov(X.T, bias=True) * N, rtol=1e-7)


@pytest.mark.parametrize("center", [True, False])
def test_scores_have_the_eigenvalues_as_squares(center):
    X, function, features = example(unit=3.0)
    rotation = Rotation.of(run(features, X)[0], 6, center=center, ratio=1.7)
    projection, offset = rotation.coefficients(features)
    scores = function(X) / (3.0 * 1.7) @ projection - offset
    assert_allclose(scores.T @ scores, np.diag(rotation.eigenvalues), atol=1e-10 * rotation.eigenvalues[0])


def test_a_finished_pass_is_replayed_with_the_same_bits(tmp_path):
    X, _, features = example()
    with engine.session(run=tmp_path / "run"), blocks_of(1 << 15):
        (first,) = run(features, X)
    with (
        engine.session(run=tmp_path / "run"),
        blocks_of(1 << 15),
        mock.patch.object(moments, "_row_grams", side_effect=AssertionError("computed again")),
    ):
        (again,) = run(features, X)
    assert_same_bits(again.scatter, first.scatter)


def test_a_pass_of_other_landmarks_is_computed_anew(tmp_path):
    X, function, features = example()
    other = NystroemFeatures.of(function, function(X[:L]), unit=2.0)
    with engine.session(run=tmp_path / "run"):
        run(features, X)
        (found,) = run(other, X)
    assert_allclose(found.gram, run(other, X)[0].gram)
