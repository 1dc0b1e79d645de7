"""Rank-one projections and their features against the formed projector and the exact kernels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gramian.kernels import rank_one
from gramian.kernels.rank_one import (
    FEATURE_BLOCK,
    PROBE_CACHE_BYTES,
    draw_probes,
    periodic_features,
    projections_scratch,
    rank_one_projections,
    sign_bits,
    sign_features,
)
from gramian.streams import Stream, generator
from tests import reference
from tests.strategies import orthonormal_bases, subspaces


def projections(X, m, seed=0):
    """m projections of a block, over as many feature blocks as they take."""
    starts = range(0, m, FEATURE_BLOCK)
    probes = [draw_probes(X.shape[1], min(FEATURE_BLOCK, m - i), seed, i // FEATURE_BLOCK) for i in starts]
    return np.concatenate([rank_one_projections(X, A, B) for A, B in probes], axis=1)


@given(data=st.data(), m=st.integers(1, FEATURE_BLOCK), dtype=st.sampled_from((np.float32, np.float64)))
def test_projections_equal_their_literal_definition(data, m, dtype):
    X = data.draw(subspaces(dtypes=(dtype,)))
    A, B = draw_probes(X.shape[1], m, 3, 0, dtype)
    got = rank_one_projections(X, A, B)
    assert got.dtype == dtype
    assert got.shape == (len(X), m)
    for j in {0, m // 2, m - 1}:
        wanted = [reference.rank_one_projection(*(v.astype(float) for v in (U, A[j], B[j]))) for U in X]
        np.testing.assert_allclose(got[:, j], wanted, rtol=0, atol=1e-4 if dtype == np.float32 else 1e-12)


def test_projections_in_parts_are_the_same(monkeypatch):
    X = orthonormal_bases(np.random.default_rng(0), 40, 9, 3)
    whole = projections(X, 20)
    monkeypatch.setattr(rank_one, "PANEL", 7 * 3)  # the last part is smaller
    np.testing.assert_allclose(projections(X, 20), whole, rtol=0, atol=1e-13)


def test_probes_are_drawn_whole():
    A, B = draw_probes(17, FEATURE_BLOCK, 5, 2)
    for m in (1, 100, 255):
        fewer = draw_probes(17, m, 5, 2)
        assert np.array_equal(fewer[0], A[:m])
        assert np.array_equal(fewer[1], B[:m])


def test_probes_follow_from_seed_and_block_alone():
    A, B = draw_probes(6, FEATURE_BLOCK, 5, 2)
    assert np.array_equal(A, generator(5, Stream.PROBES_A, 2).standard_normal((FEATURE_BLOCK, 6)))
    assert np.array_equal(B, generator(5, Stream.PROBES_B, 2).standard_normal((FEATURE_BLOCK, 6)))


def test_probes_of_float32_are_the_rounded_ones():
    single, double = draw_probes(6, 30, 5, 2, np.float32), draw_probes(6, 30, 5, 2)
    assert np.array_equal(single, double.astype(np.float32))


def test_probes_kept_cannot_be_changed():
    with pytest.raises(ValueError, match="read-only"):
        draw_probes(6, 30, 5, 2)[0][0, 0] = 1


def test_probes_kept_stay_within_the_declared_bytes():
    n = PROBE_CACHE_BYTES // (2 * FEATURE_BLOCK * 8) // 4
    for block in range(9):
        draw_probes(n, 10, 0, block)
    cache = rank_one._CACHE
    kept = sum(probes.nbytes for probes in cache._kept.values())
    assert 0.5 * PROBE_CACHE_BYTES < kept == cache.size <= PROBE_CACHE_BYTES


def test_probes_larger_than_the_cache_are_not_kept(monkeypatch):
    cache = rank_one._ProbeCache(1000)
    monkeypatch.setattr(rank_one, "_CACHE", cache)
    A, _ = draw_probes(7, 256, 0, 0)
    assert cache.size == 0
    assert np.array_equal(A, draw_probes(7, 256, 0, 0)[0])


def test_scratch_covers_the_copy_and_two_products():
    assert projections_scratch((100, 3), np.float32) == 3 * (100 + 2 * FEATURE_BLOCK) * 4


def test_periodic_features_are_cosines_and_sines_in_turn():
    u = np.random.default_rng(0).standard_normal((5, 7))
    wanted = [[f(0.3 * x) for x in row for f in (np.cos, np.sin)] for row in u]
    np.testing.assert_allclose(periodic_features(u, 0.3), wanted, rtol=0, atol=1e-15)


def test_features_preserve_float32():
    u = np.ones((2, 3), np.float32)
    assert periodic_features(u, 0.3).dtype == sign_features(u).dtype == np.float32


@given(rows=st.integers(1, 4), m=st.integers(1, 40), seed=st.integers(0, 99))
def test_bits_are_packed_least_significant_first(rows, m, seed):
    u = np.random.default_rng(seed).integers(-2, 3, (rows, m)).astype(float)
    assert np.array_equal(sign_bits(u), reference.packed_signs(u))


def test_sign_of_zero_is_positive():
    zeros = np.array([[0.0, -0.0]])
    assert sign_features(zeros).tolist() == [[1.0, 1.0]]
    assert sign_bits(zeros).tolist() == [[0b11]]


PAIRS = [(1, 1), (2, 2), (5, 5), (1, 3), (5, 2)]


def a_pair(k1, k2, n=11):
    """Two subspaces with something in common, the smaller one padded."""
    rng = np.random.default_rng(k1 * 10 + k2)
    shared = rng.standard_normal((n, max(k1, k2)))
    bases = [np.linalg.qr(shared[:, :k] + 0.4 * rng.standard_normal((n, k)))[0] for k in (k1, k2)]
    return np.stack([np.pad(U, ((0, 0), (0, max(k1, k2) - U.shape[1]))) for U in bases])


@pytest.mark.parametrize(("k1", "k2"), PAIRS)
@pytest.mark.parametrize("omega", [0.3, 1.0])
def test_periodic_features_estimate_the_periodic_kernel(k1, k2, omega):
    X, m = a_pair(k1, k2), 40_000
    u = projections(X, m)
    kappa, doubled = (reference.periodic_kernel(*X, w) for w in (omega, 2 * omega))
    F = periodic_features(u, omega)
    error = np.sqrt(((1 + doubled) / 2 - kappa**2) / m)
    assert abs(F[0] @ F[1] / m - kappa) < 4 * error


@pytest.mark.parametrize(("k1", "k2"), PAIRS)
def test_sign_features_estimate_the_sign_kernel(k1, k2):
    X, m = a_pair(k1, k2), 40_000
    if k1 == k2 == 1:
        kappa, uncertainty = (1 - 2 / np.pi * reference.principal_angles(*X)[0]) ** 2, 0.0
    else:
        kappa, uncertainty = reference.sign_kernel(*X, 200_000, np.random.default_rng(0))
    F = sign_features(projections(X, m))
    error = np.hypot(np.sqrt((1 - kappa**2) / m), uncertainty)
    assert abs(F[0] @ F[1] / m - kappa) < 4 * error


def test_sign_kernel_reference_has_its_closed_form_for_lines():
    X = a_pair(1, 1)
    kappa, error = reference.sign_kernel(*X, 200_000, np.random.default_rng(0))
    assert abs(kappa - (1 - 2 / np.pi * reference.principal_angles(*X)[0]) ** 2) < 4 * error


def test_linear_features_estimate_the_projection_kernel():
    X, m = a_pair(3, 3), 40_000
    products = np.prod(projections(X, m), axis=0)
    error = products.std() / np.sqrt(m)
    assert abs(products.mean() - reference.projection_kernel(*X)) < 4 * error
