"""Weighted moments against sums written out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gramian.moments import Moments, in_order, moment_grid, part_grams


def drawn(seed, n=60, p=3, t=2, offset=0.0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, p)) + offset, rng.standard_normal((n, t)), rng.random(n)


def with_ones(features, targets, shift=0.0):
    return np.hstack([np.ones((len(features), 1)), np.hstack([features, targets]) - shift])


def literal(features, targets, weights):
    """Mean and scatter, row by row."""
    columns = np.hstack([features, targets])
    mean = sum(w * c for w, c in zip(weights, columns, strict=True)) / weights.sum()
    return mean, sum(w * np.outer(c - mean, c - mean) for w, c in zip(weights, columns, strict=True))


def moments_of(features, targets, weights):
    return Moments(weights.sum(), *literal(features, targets, weights), features.shape[1])


def assert_same(a, b, tolerance=1e-12):
    assert np.isclose(a.weight, b.weight)
    np.testing.assert_allclose(a.mean, b.mean, atol=tolerance)
    np.testing.assert_allclose(a.scatter, b.scatter, atol=tolerance * (1 + np.abs(b.scatter).max()))


@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.booleans(), st.booleans())
def test_part_grams_are_the_products_of_each_part(seed, n_parts, weighted, overlapping):
    features, targets, weights = drawn(seed)
    columns = with_ones(features, targets)
    rng = np.random.default_rng(seed)
    masks = rng.random((len(columns), n_parts)) < 0.5 if overlapping else None
    parts = masks if overlapping else np.sort(rng.integers(0, n_parts, len(columns)))
    grams = part_grams(columns.copy(), weights if weighted else None, parts, n_parts)
    for part in range(n_parts):
        inside = masks[:, part] if overlapping else parts == part
        w = weights[inside] if weighted else np.ones(inside.sum())
        np.testing.assert_allclose(
            grams[part], columns[inside].T @ (w[:, None] * columns[inside]), atol=1e-12
        )


def test_rows_of_a_part_stand_together():
    parts, rows, missing = in_order(np.array([2, 0, 1, 0]), np.arange(4.0), None)
    assert (list(parts), list(rows), missing) == ([0, 0, 1, 2], [1, 3, 2, 0], None)


def test_overlapping_parts_keep_the_order_of_the_rows():
    masks = np.array([[True, True], [False, True]])
    parts, rows = in_order(masks, np.arange(2.0))
    assert (parts is masks, list(rows)) == (True, [0, 1])


@pytest.mark.parametrize(
    ("row_bytes", "width", "n_parts", "step"), [(1 << 12, 10, 5, 1 << 13), (1 << 15, 1000, 5, 4096)]
)
def test_blocks_outweigh_their_products(row_bytes, width, n_parts, step):
    assert moment_grid(10**6, row_bytes, width, n_parts).step == step


def test_moments_of_a_gram_matrix_are_those_of_the_rows():
    features, targets, weights = drawn(0)
    (gram,) = part_grams(with_ones(features, targets), weights, None, 1)
    assert_same(Moments.of(gram, 3), moments_of(features, targets, weights))


def test_a_shift_keeps_the_digits_of_far_away_rows():
    features, targets, weights = drawn(1, offset=1e7)
    shift = np.hstack([features, targets])[:5].mean(axis=0)
    (gram,) = part_grams(with_ones(features, targets, shift), weights, None, 1)
    centred = moments_of(features - 1e7, targets, weights)
    np.testing.assert_allclose(Moments.of(gram, 3, shift).scatter, centred.scatter, rtol=1e-7)


@given(st.integers(0, 2**32 - 1), st.integers(1, 5))
def test_moments_of_parts_together_are_those_of_all_rows(seed, n_parts):
    features, targets, weights = drawn(seed, offset=100.0)
    part = np.random.default_rng(seed).integers(0, n_parts, len(features))
    pieces = [
        moments_of(features[part == p], targets[part == p], weights[part == p])
        for p in range(n_parts)
        if (part == p).any()
    ]
    assert_same(Moments.together(pieces), moments_of(features, targets, weights), 1e-10)


def test_a_part_without_rows_adds_nothing():
    features, targets, weights = drawn(2)
    empty = Moments.of(np.zeros((6, 6)), 3)
    rows = moments_of(features, targets, weights)
    assert_same(Moments.together([empty, rows]), rows)


def test_named_views_are_those_of_the_scatter():
    features, targets, weights = drawn(3)
    moments = moments_of(features, targets, weights)
    centred = features - weights @ features / weights.sum()
    np.testing.assert_allclose(moments.gram, centred.T @ (weights[:, None] * centred), atol=1e-12)
    np.testing.assert_allclose(moments.cross, centred.T @ (weights[:, None] * targets), atol=1e-12)
    np.testing.assert_allclose(moments.target_mean, weights @ targets / weights.sum())
    np.testing.assert_allclose(
        moments.target_squares, weights @ (targets - moments.target_mean) ** 2, atol=1e-12
    )


def test_mapped_moments_are_those_of_mapped_features():
    features, targets, weights = drawn(4)
    matrix = np.random.default_rng(4).standard_normal((3, 2))
    mapped = moments_of(features, targets, weights).mapped(matrix)
    assert_same(mapped, moments_of(features @ matrix, targets, weights))


def test_moments_about_zero_are_plain_products():
    features, targets, weights = drawn(5)
    about = moments_of(features, targets, weights).about_mean(False)
    columns = np.hstack([features, targets])
    np.testing.assert_allclose(about.scatter, columns.T @ (weights[:, None] * columns), atol=1e-12)


def test_only_the_first_targets_stay():
    features, targets, weights = drawn(6)
    kept = moments_of(features, targets, weights).with_targets(1)
    assert_same(kept, moments_of(features, targets[:, :1], weights))


@pytest.mark.parametrize("center", [True, False])
def test_squared_errors_are_those_of_the_predictions(center):
    features, targets, weights = drawn(7)
    train = moments_of(*drawn(8)).about_mean(center)
    coefficients = np.random.default_rng(9).standard_normal((3, 4, 2))
    errors = moments_of(features, targets, weights).squared_errors(coefficients, train.mean)
    predicted = train.target_mean + np.einsum("np,pat->nat", features - train.feature_mean, coefficients)
    np.testing.assert_allclose(errors, np.einsum("n,nat->at", weights, (targets[:, None] - predicted) ** 2))
