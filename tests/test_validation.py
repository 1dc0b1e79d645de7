"""Every bad block or parameter is refused with one line: condition, value, remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gramian import validation
from gramian.errors import GramianError, InputError, InputTypeError


def bases(count: int = 3, n: int = 6, k: int = 2, dtype: str = "f8") -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(0).standard_normal((count, n, k)))[0].astype(dtype)


def altered(index: tuple[int, ...], value: float) -> np.ndarray:
    block = bases()
    block[index] = value
    return block


BAD = [
    (lambda: validation.floating(["a"], "X"), InputTypeError, "X has the type <U1; give real numbers"),
    (lambda: validation.floating(np.ones(2, complex), "X"), InputTypeError, "complex128"),
    (lambda: validation.frequency(0), InputError, "omega is 0; give a finite number above 0"),
    (lambda: validation.frequency(1e300), InputError, "omega is 1e+300, every kernel is the identity there"),
    (lambda: validation.matrix(np.ones(3), "X"), InputError, "X has 1 dimensions, shape (3,)"),
    (lambda: validation.matrix(np.ones((0, 3)), "X"), InputError, "X has shape (0, 3); give at least 1 row"),
    (lambda: validation.matrix(np.ones((3, 0)), "X"), InputError, "X has shape (3, 0)"),
    (lambda: validation.matrix(np.ones((3, 2)), "X", columns=4), InputError, "X has 2 columns, expected 4"),
    (
        lambda: validation.matrix([[1, np.nan], [np.nan, 1]], "X"),
        InputError,
        "X has NaN at (0, 1), 2 such values",
    ),
    (lambda: validation.matrix([[1, -np.inf]], "X"), InputError, "X has infinity at (0, 1)"),
    (
        lambda: validation.same_columns((5, 3), 4),
        InputError,
        "X has shape (5, 3), the model was fitted to 4 columns",
    ),
    (lambda: validation.same_columns((5, 4, 1), 4), InputError, "X has shape (5, 4, 1)"),
    (lambda: validation.subspaces(bases()[0], "X"), InputError, "X is a single basis of shape (6, 2)"),
    (lambda: validation.subspaces(np.ones(4), "X"), InputError, "X has 1 dimensions"),
    (lambda: validation.subspaces(bases()[:0], "X"), InputError, "X has shape (0, 6, 2)"),
    (
        lambda: validation.subspaces(bases().transpose(0, 2, 1), "X"),
        InputError,
        "X has 6 columns in dimension 2",
    ),
    (
        lambda: validation.subspaces(bases(), "X", dimension=7),
        InputError,
        "X lies in dimension 6, expected 7",
    ),
    (lambda: validation.subspaces(2 * bases(), "X"), InputError, "basis 0 of X is not orthonormal"),
    (lambda: validation.subspaces(altered((1, 0, 1), np.nan), "X"), InputError, "X has NaN at (1, 0, 1)"),
    (
        lambda: validation.subspaces(altered((2, slice(None), 0), 0), "X"),
        InputError,
        "basis 2 of X is not orthonormal",
    ),
    (
        lambda: validation.subspaces(altered((1,), 0), "X"),
        InputError,
        "basis 1 of X has no column that is not zero",
    ),
    (lambda: validation.integer(1.5, "k"), InputTypeError, "k is 1.5; give a whole number of at least 1"),
    (lambda: validation.integer(True, "k"), InputTypeError, "k is True"),
    (lambda: validation.integer(9, "k", high=4), InputError, "k is 9; give a whole number from 1 to 4"),
    (lambda: validation.real("x", "w"), InputTypeError, "w is 'x'; give a number"),
    (lambda: validation.real(np.nan, "w"), InputError, "w is nan"),
    (lambda: validation.real(0, "w", strict=True), InputError, "w is 0; give a finite number above 0"),
    (lambda: validation.real(10**400, "w"), InputError, "w is 1000"),
    (lambda: validation.real(np.bool_(True), "w"), InputTypeError, "w is True"),
    (lambda: validation.boolean(1, "flag"), InputTypeError, "flag is 1; give True or False"),
    (lambda: validation.boolean("no", "flag"), InputTypeError, "flag is 'no'"),
    (lambda: validation.choice(np.int64(3), "kind", ("a",)), InputError, "kind is 3; give one of 'a'"),
    (lambda: validation.floating([[1], [1, 2]], "X"), InputError, "X is no array"),
    (lambda: validation.floating(np.ma.masked_equal([1, 2], 2), "X"), InputTypeError, "1 of its values"),
    (lambda: validation.target_block(np.full(3, 1e200)), InputError, "y reaches 1e+200"),
    (lambda: validation.choice("b", "kind", ("a", None)), InputError, "kind is 'b'; give one of 'a', None"),
]


@pytest.mark.parametrize(("call", "error", "words"), BAD)
def test_bad_input_is_one_line(call: Callable[[], Any], error: type[GramianError], words: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_bases_keep_their_type_and_rounding_is_allowed(dtype: str) -> None:
    assert validation.subspaces(bases(dtype=dtype), "X").dtype == dtype


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6))
def test_dimension_is_read_off_trailing_zero_columns(dimensions: list[int]) -> None:
    block = bases(len(dimensions), 7, 4)
    for basis, dimension in zip(block, dimensions, strict=True):
        basis[:, dimension:] = 0
    assert validation.subspace_dimensions(validation.subspaces(block, "X")).tolist() == dimensions


def test_integers_become_floats() -> None:
    assert validation.matrix([[1, 2]], "X").dtype == np.float64


def test_good_parameters_come_back() -> None:
    assert validation.integer(np.int64(3), "k") == 3
    assert validation.real(np.float32(0.5), "w") == 0.5
    assert validation.choice(None, "kind", ("a", None)) is None
