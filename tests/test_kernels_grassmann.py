"""Kernels of subspaces against their literal definitions, and what every such kernel must keep."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gramian.errors import InputError, InputTypeError
from gramian.kernels.grassmann import (
    bases_scratch,
    periodic_kernel,
    periodic_tile,
    principal_angles,
    projection_kernel,
    projection_rbf_kernel,
    projection_tile,
    stack_bases,
)
from tests import reference
from tests.strategies import orthonormal_bases, subspaces

TOLERANCE = {4: 2e-5, 8: 1e-12}  # by bytes of the float type


@pytest.fixture(params=["compiled", "plain"])
def kernels(request, monkeypatch):
    """The compiled code, then its plain twins."""
    monkeypatch.setenv("GRAMIAN_KERNELS", request.param.replace("compiled", ""))


def bases(count, n, k, seed=0, dtype=np.float64):
    return orthonormal_bases(np.random.default_rng(seed), count, n, k, dtype)


class AnExactKernel:
    """What each exact kernel of subspaces inherits: `kernel` and `literal` on blocks and on pairs."""

    @pytest.mark.usefixtures("kernels")
    def test_equals_its_literal_definition(self):
        @given(data=st.data(), dtype=st.sampled_from((np.float32, np.float64)))
        def check(data, dtype):
            X = data.draw(subspaces(dtypes=(dtype,)))
            Y = data.draw(subspaces(n=X.shape[1], dtypes=(dtype,)))
            got = self.kernel(X, Y)
            assert got.dtype == dtype
            wanted = reference.gram(self.literal, X.astype(float), Y.astype(float))
            np.testing.assert_allclose(got, wanted, rtol=0, atol=self.tolerance(X))

        check()

    def test_without_y_is_the_kernel_of_the_rows_with_themselves(self):
        X = bases(70, 11, 3)
        np.testing.assert_allclose(self.kernel(X), self.kernel(X, X.copy()), rtol=0, atol=1e-13)

    @pytest.mark.usefixtures("kernels")
    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_is_exactly_symmetric(self, dtype):
        K = self.kernel(bases(300, 40, 9, dtype=dtype))
        assert np.array_equal(K, K.T)

    def test_large_blocks_of_several_panels(self):
        X, Y = bases(130, 20, 5), bases(45, 20, 7, seed=1)
        np.testing.assert_allclose(
            self.kernel(X, Y), reference.gram(self.literal, X, Y), rtol=0, atol=self.tolerance(X)
        )

    def test_common_rotation_changes_nothing(self):
        X, Q = bases(30, 12, 4), bases(1, 12, 12, seed=1)[0]
        np.testing.assert_allclose(self.kernel(Q @ X), self.kernel(X), rtol=0, atol=1e-11)

    def test_change_of_basis_changes_nothing(self):
        X, Q = bases(30, 12, 4), bases(30, 4, 4, seed=1)
        np.testing.assert_allclose(self.kernel(X @ Q), self.kernel(X), rtol=0, atol=1e-11)

    def test_zero_columns_change_nothing(self):
        X = bases(30, 12, 4)
        padded = np.concatenate([X, np.zeros((30, 12, 3))], axis=2)
        for other in (X, padded):
            np.testing.assert_allclose(self.kernel(padded, other), self.kernel(X), rtol=0, atol=1e-12)

    def test_dimensions_apart_or_padded_are_the_same(self):
        X, Y = bases(20, 12, 2), bases(25, 12, 5, seed=1)
        padded = np.concatenate([X, np.zeros((20, 12, 3))], axis=2)
        np.testing.assert_allclose(self.kernel(X, Y), self.kernel(padded, Y), rtol=0, atol=1e-12)
        np.testing.assert_allclose(self.kernel(X, Y), self.kernel(Y, X).T, rtol=0, atol=1e-12)

    def test_no_negative_eigenvalue_beyond_rounding(self):
        X = bases(120, 10, 4)
        X *= np.arange(4) < np.random.default_rng(1).integers(1, 5, 120)[:, None, None]
        values = np.linalg.eigvalsh(self.kernel(X))
        assert values[0] > -1e-12 * values[-1]

    def test_float32_and_float64_give_float64(self):
        assert self.kernel(bases(3, 6, 2, dtype=np.float32), bases(4, 6, 2)).dtype == np.float64

    def tolerance(self, X):
        return TOLERANCE[X.dtype.itemsize]


class TestProjectionKernel(AnExactKernel):
    kernel = staticmethod(projection_kernel)
    literal = staticmethod(reference.projection_kernel)


class TestNormalizedProjectionKernel(AnExactKernel):
    kernel = staticmethod(partial(projection_kernel, normalize=True))

    @staticmethod
    def literal(U, V):
        value = reference.projection_kernel
        return value(U, V) / np.sqrt(value(U, U) * value(V, V))

    def test_is_the_projection_kernel_over_k(self):
        X = bases(9, 8, 3)
        np.testing.assert_allclose(self.kernel(X), projection_kernel(X) / 3, rtol=1e-14)


class ThePeriodicKernel(AnExactKernel):
    omega: float

    def kernel(self, X, Y=None):
        return periodic_kernel(X, Y, omega=self.omega)

    def literal(self, U, V):
        return reference.periodic_kernel(U, V, self.omega)

    def tolerance(self, X):
        return TOLERANCE[X.dtype.itemsize] * max(1, self.omega) ** 2

    def test_is_the_product_over_principal_angles(self):
        X, Y = bases(20, 9, 3), bases(21, 9, 3, seed=1)
        sines = np.sin(principal_angles(X, Y))
        wanted = np.prod(1 / (1 + self.omega**2 * sines**2), axis=2)
        np.testing.assert_allclose(self.kernel(X, Y), wanted, rtol=1e-12)


class TestProjectionRBFKernel(AnExactKernel):
    kernel = staticmethod(partial(projection_rbf_kernel, omega=0.7))

    @staticmethod
    def literal(U, V):
        return reference.projection_rbf_kernel(U, V, 0.7)

    def test_is_the_limit_of_the_periodic_kernel_at_small_frequencies(self):
        X = bases(20, 9, 3)
        near = projection_rbf_kernel(X, omega=0.01) - periodic_kernel(X, omega=0.01)
        assert np.abs(near).max() < 1e-7


class TestPeriodicKernelBelowOne(ThePeriodicKernel):
    omega = 0.1


class TestPeriodicKernelAtOne(ThePeriodicKernel):
    omega = 1.0


class TestPeriodicKernelAboveOne(ThePeriodicKernel):
    omega = 3.0


def test_periodic_kernel_of_unequal_dimensions_by_hand():
    X, Y = np.eye(4)[None, :, :1], np.eye(4)[None, :, :3]
    np.testing.assert_allclose(periodic_kernel(X, Y, omega=2.0), [[1 / 5]], rtol=1e-15)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_periodic_kernel_of_many_columns_stays_finite(dtype):
    X = bases(20, 200, 60, dtype=dtype)
    X[:10, :, 1:] = 0
    K = periodic_kernel(X, omega=50.0)
    assert np.isfinite(K).all()
    np.testing.assert_allclose(np.diag(K), 1, rtol=0, atol=60 * 2500 * 40 * np.finfo(dtype).eps)


def test_periodic_kernel_beyond_the_range_is_refused():
    with pytest.raises(InputError, match="the kernel is the identity; give a smaller omega"):
        periodic_kernel(bases(2, 100, 90), omega=1e4)


@given(data=st.data())
def test_angles_equal_their_literal_definition(data):
    U = data.draw(subspaces())
    V = data.draw(subspaces(n=U.shape[1]))
    got = principal_angles(U, V)
    assert got.shape == (len(U), len(V), min(U.shape[2], V.shape[2]))
    for i, u in enumerate(U):
        for j, v in enumerate(V):
            wanted = reference.principal_angles(u, v)
            np.testing.assert_allclose(got[i, j, : len(wanted)], wanted, rtol=0, atol=1e-14)
            assert np.isnan(got[i, j, len(wanted) :]).all()


@pytest.mark.parametrize("shape", [(7, 2, 3), (9, 3, 2), (12, 4, 4)])
def test_angles_are_ascending(shape):
    n, k1, k2 = shape
    angles = principal_angles(bases(8, n, k1), bases(6, n, k2, seed=1))
    assert (np.diff(angles, axis=2) >= 0).all()


@pytest.mark.parametrize("theta", [0.0, 1e-15, 1e-9, 1e-4, 0.5, np.pi / 2 - 1e-9, np.pi / 2])
def test_angles_small_and_large_keep_their_digits(theta):
    n, k = 9, 3
    U = np.eye(n)[:, :k]
    V = U.copy()
    V[0, 0], V[k, 0] = np.cos(theta), np.sin(theta)
    Q, R, S = bases(1, n, n)[0], bases(1, k, k, seed=1)[0], bases(1, k, k, seed=2)[0]
    angles = principal_angles((Q @ U @ R)[None], (Q @ V @ S)[None])[0, 0]
    np.testing.assert_allclose(angles, [0, 0, theta], rtol=0, atol=4e-15)


def test_angles_preserve_float32():
    assert (
        principal_angles(bases(2, 6, 2, dtype=np.float32), bases(2, 6, 3, dtype=np.float32)).dtype
        == np.float32
    )


def test_angles_in_parts_are_the_same(monkeypatch):
    U, V = bases(3, 8, 2), bases(17, 8, 3, seed=1)
    whole = principal_angles(V, U)
    monkeypatch.setattr("gramian.kernels.grassmann.RESIDUALS", 8 * 8 * 2 * 2)
    np.testing.assert_allclose(principal_angles(V, U), whole, rtol=0, atol=1e-15)


@pytest.mark.parametrize("tile", [projection_tile, partial(periodic_tile, omega=0.7)])
def test_tiles_of_stacked_bases_are_blocks_of_the_kernel(tile):
    X = bases(90, 15, 4)
    whole = tile(stack_bases(X), stack_bases(X))
    parts = [[tile(stack_bases(a), stack_bases(b)) for b in np.split(X, [30])] for a in np.split(X, [30])]
    np.testing.assert_allclose(np.block(parts), whole, rtol=0, atol=1e-13)


def test_scratch_is_the_stacked_copy():
    X = bases(50, 15, 4, dtype=np.float32)
    stacked = sum(panel.nbytes for panel in stack_bases(X).panels)
    assert stacked == 50 * bases_scratch(X.shape[1:], X.dtype)


BAD = {
    "a single basis": (np.eye(4)[:, :2], "single basis of shape (4, 2)"),
    "one dimension": (np.ones(3), "1 dimensions"),
    "more columns than rows": (np.zeros((1, 2, 3)), "3 columns in dimension 2"),
    "NaN": (np.full((1, 3, 1), np.nan), "NaN at (0, 0, 0)"),
    "infinity": (np.full((1, 3, 1), np.inf), "infinity at (0, 0, 0)"),
    "not orthonormal": (2 * np.eye(4)[None, :, :2], "basis 0 of X is not orthonormal"),
    "zero column before another": (np.eye(4)[None, :, :2] * [0, 1], "basis 0 of X is not orthonormal"),
    "all zero": (np.zeros((1, 4, 2)), "has no column that is not zero"),
    "no rows": (np.zeros((0, 4, 2)), "shape (0, 4, 2)"),
}


@pytest.mark.parametrize("kernel", [projection_kernel, partial(periodic_kernel, omega=1.0)])
@pytest.mark.parametrize(("X", "cause"), BAD.values(), ids=BAD.keys())
def test_bad_subspaces_are_refused(kernel, X, cause):
    with pytest.raises(InputError) as caught:
        kernel(X)
    assert cause in caught.value.cause
    assert caught.value.remedy


def test_complex_bases_are_refused():
    with pytest.raises(InputTypeError, match="complex128"):
        projection_kernel(np.eye(3)[None] + 0j)


def test_unequal_ambient_dimension_is_refused():
    with pytest.raises(InputError, match="Y lies in dimension 5, expected 4"):
        projection_kernel(bases(2, 4, 2), bases(2, 5, 2))


@pytest.mark.parametrize("omega", [0, -1.0, np.nan, np.inf])
def test_omega_that_is_not_above_zero_is_refused(omega):
    with pytest.raises(InputError, match="omega is"):
        periodic_kernel(bases(2, 4, 2), omega=omega)


def test_float32_bases_may_be_less_exact():
    X = bases(5, 30, 4, dtype=np.float32) * np.float32(1 + 2e-5)
    assert projection_kernel(X).shape == (5, 5)
    with pytest.raises(InputError, match="not orthonormal"):
        projection_kernel(X.astype(np.float64))
