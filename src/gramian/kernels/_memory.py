"""Memory as vectors read it best."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

BYTES = 64  # of a vector, and of a line of the cache


def aligned(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Uninitialised, on a boundary of 64 bytes: a vector across two lines of the cache costs twice."""
    dtype = np.dtype(dtype)
    size = math.prod(shape)
    block = np.empty(size + BYTES // dtype.itemsize, dtype)
    start = -block.ctypes.data % BYTES // dtype.itemsize
    return block[start : start + size].reshape(shape)
