"""Checks of NumPy blocks and of parameters, shared by kernels and estimators.

Each raises one line: the condition with the value that was found, and the remedy.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gramian.errors import InputError, InputTypeError

HIGHEST_FREQUENCY = 1e100
HIGHEST_TARGET = 1e150
HIGHEST_WEIGHT = 1e100
ORTHONORMAL = {4: 1e-4, 8: 1e-6}  # largest allowed entry of |U'U - I|, by bytes of the float type


def shown(value: Any) -> str:
    """A value as a message shows it: on one line, not long, NumPy's numbers as Python's."""
    text = " ".join(repr(value.item() if isinstance(value, np.generic) else value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def refuse_masked(array: Any, name: str) -> None:
    """Refuse values behind a mask: what reads them would not see the mask."""
    if isinstance(array, np.ma.MaskedArray) and array.mask.any():
        raise InputTypeError(
            f"{name} is a masked array, {int(array.mask.sum())} of its values are masked",
            "remove these rows or fill them in, for example with array.filled(0)",
        )


def numpy_array(value: Any, name: str) -> NDArray[Any]:
    """A value as NumPy makes an array of it; rows of several lengths it cannot."""
    try:
        return np.asarray(value)
    except (ValueError, TypeError) as error:
        cause = " ".join(str(error).split()).rstrip(".")
        raise InputError(f"{name} is no array, {cause}", "give rows of one length") from error


def floating(block: Any, name: str) -> NDArray[Any]:
    """The block as a C-contiguous array of float32 or float64; integers and booleans become float64."""
    refuse_masked(block, name)
    array = numpy_array(block, name)
    native = array.dtype.newbyteorder("=")
    if native in (np.float32, np.float64):
        return np.ascontiguousarray(array, dtype=native)
    if array.dtype.kind in "iub" or array.dtype == np.float16:
        return np.ascontiguousarray(array, dtype=np.float64)
    raise InputTypeError(f"{name} has the type {array.dtype}", "give real numbers, as float32 or float64")


def finite(block: NDArray[Any], name: str) -> NDArray[Any]:
    """Refuse NaN and infinity, naming the first row that holds one."""
    good = np.isfinite(block)
    if not good.all():
        index = tuple(int(i) for i in np.argwhere(~good)[0])
        raise InputError(
            f"{name} has {'NaN' if np.isnan(block[index]) else 'infinity'} at {index}, "
            f"{int((~good).sum())} such values in all",
            "remove these rows or fill them in",
        )
    return block


def matrix(block: Any, name: str, *, columns: int | None = None, rows: int = 1) -> NDArray[Any]:
    """A finite (N, d) array of floats with at least ``rows`` rows and one column."""
    array = floating(block, name)
    if array.ndim != 2:
        raise InputError(
            f"{name} has {array.ndim} dimensions, shape {array.shape}",
            "give a two-dimensional array of rows and columns",
        )
    if array.shape[0] < rows or array.shape[1] < 1:
        raise InputError(f"{name} has shape {array.shape}", f"give at least {rows} row(s) and one column")
    if columns is not None and array.shape[1] != columns:
        raise InputError(
            f"{name} has {array.shape[1]} columns, expected {columns}",
            "give the same columns, in the same order",
        )
    return finite(array, name)


def same_columns(shape: tuple[int, ...], expected: int) -> None:
    """Refuse rows of another shape than a model was fitted to, before any is read."""
    if len(shape) != 2 or shape[1] != expected:
        raise InputError(
            f"X has shape {shape}, the model was fitted to {expected} columns",
            "give the same columns, in the same order",
        )


def subspaces(block: Any, name: str, *, dimension: int | None = None) -> NDArray[Any]:
    """A finite (N, n, k) array of orthonormal bases, k <= n; trailing zero columns are padding."""
    array = floating(block, name)
    if array.ndim == 2:
        raise InputError(
            f"{name} is a single basis of shape {array.shape}",
            "give an array (N, n, k), for one basis basis[None]",
        )
    if array.ndim != 3:
        raise InputError(
            f"{name} has {array.ndim} dimensions, shape {array.shape}",
            "give orthonormal bases as an array (N, n, k)",
        )
    count, n, k = array.shape
    if not count or not n or not k:
        raise InputError(f"{name} has shape {array.shape}", "give at least one basis of one column")
    if k > n:
        raise InputError(
            f"{name} has {k} columns in dimension {n}",
            "give bases (n, k) with k <= n; transpose them if rows and columns are exchanged",
        )
    if dimension is not None and n != dimension:
        raise InputError(
            f"{name} lies in dimension {n}, expected {dimension}",
            "give subspaces of the same ambient dimension",
        )
    orthonormal(finite(array, name), name)
    return array


def subspace_dimensions(block: NDArray[Any]) -> NDArray[np.intp]:
    """Columns of each basis (N, n, k) before the trailing ones that are exactly zero: (N,) integers."""
    dimensions = np.full(len(block), block.shape[2], np.intp)
    rows = np.arange(len(block))
    for column in reversed(range(block.shape[2])):  # few rows, if any, go beyond the first step
        rows = rows[~block[rows, :, column].any(axis=1)]
        dimensions[rows] = column
    return dimensions


def orthonormal(block: NDArray[Any], name: str, *, first_row: int = 0) -> NDArray[Any]:
    """Refuse bases (N, n, k) whose columns, up to trailing zero columns, are not orthonormal."""
    k = block.shape[2]
    gram = np.matmul(block.transpose(0, 2, 1), block)
    wanted = np.eye(k, dtype=bool) & (np.arange(k) < subspace_dimensions(block)[:, None, None])
    error = np.abs(gram - wanted).max(axis=(1, 2), initial=0.0)
    limit = ORTHONORMAL[block.dtype.itemsize]
    bad = np.flatnonzero(error > limit)
    if bad.size:
        raise InputError(
            f"basis {first_row + int(bad[0])} of {name} is not orthonormal, |U'U - I| reaches "
            f"{error[bad[0]]:.2g} where {limit:.0e} is allowed",
            "orthonormalise it, for example by `gramian ingest --subspaces`",
        )
    empty = np.flatnonzero(~wanted[:, 0, 0])
    if empty.size:
        raise InputError(
            f"basis {first_row + int(empty[0])} of {name} has no column that is not zero",
            "drop it or give it at least one direction",
        )
    return block


def integer(value: Any, name: str, *, low: int = 1, high: int | None = None) -> int:
    """A whole number between ``low`` and ``high``."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InputTypeError(f"{name} is {shown(value)}", f"give a whole number of at least {low}")
    number = int(value)
    if number < low or (high is not None and number > high):
        span = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise InputError(f"{name} is {value}", f"give a whole number {span}")
    return number


def real(value: Any, name: str, *, low: float = 0.0, strict: bool = False) -> float:
    """A finite number of at least ``low``, or above it where ``strict``."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InputTypeError(f"{name} is {shown(value)}", "give a number")
    try:
        number = float(value)
    except OverflowError:  # of a whole number
        number = np.inf
    if not np.isfinite(number) or number < low or (strict and number <= low):
        raise InputError(
            f"{name} is {value}", f"give a finite number {'above' if strict else 'of at least'} {low:g}"
        )
    return number


def frequency(value: Any) -> float:
    """An ``omega``: above 0, and small enough that its square is finite."""
    number = real(value, "omega", strict=True)
    if number > HIGHEST_FREQUENCY:
        raise InputError(
            f"omega is {number:g}, every kernel is the identity there",
            "give a smaller omega, of the order of 1/sqrt(k)",
        )
    return number


def choice(value: Any, name: str, allowed: Sequence[Any]) -> Any:
    """One of the values that exist."""
    if not any(value is option or (type(value) is type(option) and value == option) for option in allowed):
        raise InputError(f"{name} is {shown(value)}", f"give one of {', '.join(map(repr, allowed))}")
    return value


def path_text(value: Any, name: str) -> str:
    """A path or URL as text."""
    try:
        path = os.fspath(value)
    except TypeError:
        path = None
    if not isinstance(path, str) or not path:
        raise InputTypeError(f"{name} is {shown(value)}", "give a path, as text or as a pathlib.Path")
    return path


def boolean(value: Any, name: str) -> bool:
    """True or False, and nothing that merely counts as one of them."""
    if not isinstance(value, (bool, np.bool_)):
        raise InputTypeError(f"{name} is {shown(value)}", "give True or False")
    return bool(value)


def refuse_no_weight(total: float) -> None:
    """Weights that are all zero leave no row to fit to."""
    if not total > 0:
        raise InputError("sample_weight is zero for every row", "give a positive weight to at least one")


def weights_block(block: NDArray[Any]) -> NDArray[np.float64]:
    """Finite, non-negative weights as float64."""
    weights = finite(floating(block, "sample_weight"), "sample_weight").astype(np.float64)
    if (weights < 0).any():
        raise InputError(f"sample_weight holds {weights.min():g}", "give weights of at least 0")
    if weights.max(initial=0.0) > HIGHEST_WEIGHT:
        raise InputError(f"sample_weight holds {weights.max():g}", "divide the weights by the largest")
    return weights


def target_block(block: NDArray[Any]) -> NDArray[np.float64]:
    """Finite targets as a float64 matrix (n, t), small enough that sums of squares are finite."""
    target = finite(floating(block, "y"), "y").astype(np.float64)
    largest = np.abs(target).max(initial=0.0)
    if largest > HIGHEST_TARGET:
        raise InputError(f"y reaches {largest:.3g}, its square overflows", "divide y by its largest value")
    return target[:, None] if target.ndim == 1 else target


def candidates(value: Any, name: str, check: Callable[[Any, str], Any]) -> tuple[Any, ...] | None:
    """None for "auto", else the checked candidates: one for a number, several for a sequence of them."""
    if isinstance(value, str) and value == "auto":
        return None
    value = value.item() if isinstance(value, np.ndarray) and not value.ndim else value
    if isinstance(value, (tuple, list, np.ndarray)):
        if not len(value):
            raise InputError(f"{name} holds no candidate", "give at least one")
        return tuple(check(candidate, name) for candidate in value)
    if isinstance(value, str):
        raise InputError(f"{name} is {shown(value)}", "give a number, several candidates or 'auto'")
    return (check(value, name),)


def positive(value: Any, name: str) -> float:
    """A finite number above zero."""
    return real(value, name, strict=True)


def not_negative(value: Any, name: str) -> float:
    """A finite number of at least zero."""
    return real(value, name)
