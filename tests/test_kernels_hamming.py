"""The Hamming kernel against counting bits one by one."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gramian.errors import InputError, InputTypeError
from gramian.kernels.hamming import bit_words, hamming_kernel, hamming_tile, words_scratch
from gramian.kernels.rank_one import sign_bits
from tests import reference

WIDTHS = (1, 7, 8, 9, 63, 64, 65, 100, 512, 577)


@pytest.fixture(params=["compiled", "plain"])
def kernels(request, monkeypatch):
    """The compiled code, then its plain twin."""
    monkeypatch.setenv("GRAMIAN_KERNELS", request.param.replace("compiled", ""))


def signs(rows, n_bits, seed=0):
    return np.random.default_rng(seed).choice([-1.0, 1.0], (rows, n_bits))


@pytest.mark.usefixtures("kernels")
def test_equals_the_product_of_signs():
    @given(rows=st.integers(1, 40), columns=st.integers(1, 40), n_bits=st.integers(1, 1600))
    def check(rows, columns, n_bits):
        F, G = signs(rows, n_bits), signs(columns, n_bits, seed=1)
        got = hamming_kernel(sign_bits(F), sign_bits(G), n_bits=n_bits)
        assert got.dtype == np.float32
        assert np.array_equal(got, (F @ G.T).astype(np.float32) / np.float32(n_bits))

    check()


@pytest.mark.parametrize("n_bits", WIDTHS)
def test_equals_its_literal_definition(n_bits):
    A, B = sign_bits(signs(9, n_bits)), sign_bits(signs(10, n_bits, seed=1))
    wanted = [[reference.hamming_kernel(a, b, n_bits) for b in B] for a in A]
    np.testing.assert_allclose(hamming_kernel(A, B, n_bits=n_bits), wanted, rtol=0, atol=1e-7)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("rows", [1, 8, 511, 512, 513, 1100])
def test_without_b_is_exactly_symmetric_and_the_same(rows):
    A = sign_bits(signs(rows, 70))
    K = hamming_kernel(A, n_bits=70)
    assert np.array_equal(K, K.T)
    assert np.array_equal(K, hamming_kernel(A, A.copy(), n_bits=70))
    assert (np.diag(K) == 1).all()


def test_tiles_of_words_are_blocks_of_the_kernel():
    A = sign_bits(signs(90, 130))
    a, b = (bit_words(part, n_bits=130) for part in np.split(A, [30]))
    assert np.array_equal(hamming_tile(a, b, n_bits=130), hamming_kernel(A, n_bits=130)[:30, 30:])


def test_scratch_is_three_copies_in_whole_groups_of_words():
    assert words_scratch((17,)) == 3 * 64
    assert words_scratch((65,)) == 3 * 128


def test_packed_rows_need_not_be_contiguous():
    A = sign_bits(signs(20, 200))
    assert np.array_equal(hamming_kernel(A[::2], n_bits=200), hamming_kernel(A[::2].copy(), n_bits=200))


def test_signs_that_are_not_packed_are_refused():
    with pytest.raises(InputTypeError, match="type float64; give uint8"):
        hamming_kernel(signs(3, 8), n_bits=8)


@pytest.mark.parametrize("shape", [(3, 2), (3, 4), (3,), (0, 3)])
def test_another_width_is_refused(shape):
    with pytest.raises(InputError, match="for 20 bits; give rows of 3 bytes"):
        hamming_kernel(np.zeros(shape, np.uint8), n_bits=20)


def test_bits_after_the_last_are_refused():
    A = sign_bits(signs(3, 20))
    A[1, 2] |= 1 << 4
    with pytest.raises(InputError, match="bits after the last of 20 are set"):
        hamming_kernel(A, n_bits=20)


@pytest.mark.parametrize("n_bits", [0, -8])
def test_no_bits_are_refused(n_bits):
    with pytest.raises(InputError, match=f"n_bits is {n_bits}"):
        hamming_kernel(np.zeros((2, 1), np.uint8), n_bits=n_bits)


def test_a_fraction_of_bits_is_refused():
    with pytest.raises(InputTypeError, match=r"n_bits is 8\.0"):
        hamming_kernel(np.zeros((2, 1), np.uint8), n_bits=8.0)


CHILD = """
import numpy as np
from gramian.kernels import hamming_kernel
from gramian.kernels.rank_one import sign_bits
for n_bits in (9, 512, 1100):
    F = np.random.default_rng(n_bits).choice([-1.0, 1.0], (21, n_bits))
    assert np.array_equal(hamming_kernel(sign_bits(F), n_bits=n_bits), (F @ F.T / n_bits).astype(np.float32))
"""


def test_machines_that_count_no_bits_in_vectors_give_the_same():
    generic = {**os.environ, "NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "", "GRAMIAN_KERNELS": ""}
    subprocess.run([sys.executable, "-W", "error", "-c", CHILD], env=generic, check=True, timeout=120)
