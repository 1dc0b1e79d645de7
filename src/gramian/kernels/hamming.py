"""Gram matrix of packed signs: one minus twice the share of bits that differ.

On blocks: `bit_words` once a block of rows, then `hamming_tile` of two of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gramian.errors import InputError, InputTypeError
from gramian.kernels._jit import plain
from gramian.validation import integer, numpy_array

Words = NDArray[np.uint64]
Array32 = NDArray[np.float32]

PANEL = 512  # rows and columns that are compared at a time: they stay in the cache
ROWS, COLUMNS = 4, 16  # of the tile that compiled code computes at once
GROUP = 8  # 64-bit words that it adds up before it counts


def bit_words(block: NDArray[np.uint8], *, n_bits: int) -> Words:
    """Packed signs as 64-bit words, checked, for `hamming_tile`.

    Parameters
    ----------
    block : ndarray of uint8, shape (N, ceil(n_bits / 8))
        Bits, least significant first; those after ``n_bits`` are zero.
    n_bits : int
        Bits in use.

    Returns
    -------
    ndarray of uint64, shape (N, 8 ceil(n_bits / 512))
    """
    _check(block, n_bits)
    words = np.zeros((len(block), -(-n_bits // (64 * GROUP)) * 8 * GROUP), np.uint8)
    words[:, : block.shape[1]] = block
    return words.view(np.uint64)


def words_scratch(row_shape: tuple[int, ...], dtype: DTypeLike = np.uint8) -> int:
    """Bytes a row that `bit_words` and `hamming_tile` take beside the row and the tile: three copies."""
    words = -(-row_shape[0] * np.dtype(dtype).itemsize // (8 * GROUP)) * GROUP
    return 3 * 8 * words


def hamming_tile(a: Words, b: Words, *, n_bits: int) -> Array32:
    """Block of the Hamming kernel; the same object twice gives a symmetric one.

    Parameters
    ----------
    a, b : ndarray of uint64, shapes (N, w) and (M, w)
        What `bit_words` returned.
    n_bits : int
        Bits in use.

    Returns
    -------
    ndarray of float32, shape (N, M)
    """
    compare, turn = _functions()
    rows, columns = _padded(a, ROWS), _column_blocks(b)
    tile = np.empty((len(a), len(b)), np.float32)
    block = np.empty((PANEL, PANEL), np.float32)  # copied while it is in the cache
    for i in range(0, len(a), PANEL):
        for j in range(i if a is b else 0, len(b), PANEL):
            compare(rows[i : i + PANEL], columns[j // COLUMNS : (j + PANEL) // COLUMNS], n_bits, block)
            part = tile[i : i + PANEL, j : j + PANEL]
            part[:] = block[: part.shape[0], : part.shape[1]]
            if a is b and j > i:
                turn(block, tile[j : j + PANEL, i : i + PANEL])
    return tile


def hamming_kernel(A: NDArray[np.uint8], B: NDArray[np.uint8] | None = None, *, n_bits: int) -> Array32:
    """Hamming kernel of packed signs, ``1 - 2 H / n_bits`` with H the number of bits that differ.

    Equal to ``F @ G.T / n_bits`` of the signs as +1 and -1, at a thirty-second of the memory. For the
    signs of rank-one projections it estimates the sign kernel.

    Parameters
    ----------
    A : ndarray of uint8, shape (N, ceil(n_bits / 8))
        Packed signs: feature j is bit ``j % 8``, least significant first, of byte ``j // 8``.
    B : ndarray of uint8, shape (M, ceil(n_bits / 8)), optional
        The other rows; those of A where None.
    n_bits : int
        Bits in use; the rest of the last byte must be zero.

    Returns
    -------
    ndarray of float32, shape (N, M)
        From -1 to 1, each the quotient of integers, correctly rounded up to 2^24 bits.

    Raises
    ------
    InputTypeError
        Rows that are not uint8.
    InputError
        A width that is not ceil(n_bits / 8), or bits after the last one in use.

    Notes
    -----
    ``n_bits / 64`` exclusive-ors and population counts of 64-bit words a pair.

    Examples
    --------
    >>> import numpy as np
    >>> hamming_kernel(np.array([[0b1011], [0b0011]], np.uint8), n_bits=4)
    array([[1. , 0.5],
           [0.5, 1. ]], dtype=float32)
    """
    integer(n_bits, "n_bits")
    a = bit_words(numpy_array(A, "A"), n_bits=n_bits)
    return hamming_tile(a, a if B is None else bit_words(numpy_array(B, "B"), n_bits=n_bits), n_bits=n_bits)


def _check(block: NDArray[Any], n_bits: int) -> None:
    if block.dtype != np.uint8:
        raise InputTypeError(
            f"packed signs have the type {block.dtype}",
            "give uint8, as a map with packed=True or np.packbits(..., bitorder='little') makes them",
        )
    width = -(-n_bits // 8)
    if block.ndim != 2 or block.shape[1] != width or not len(block):
        raise InputError(
            f"packed signs have shape {block.shape} for {n_bits} bits", f"give rows of {width} bytes"
        )
    if n_bits % 8 and (block[:, -1] >> n_bits % 8).any():
        raise InputError(
            f"bits after the last of {n_bits} are set", "give the right n_bits, or set them to zero"
        )


def _padded(words: Words, multiple: int) -> Words:
    """The rows, and zero ones up to a multiple."""
    missing = -len(words) % multiple
    return np.pad(words, ((0, missing), (0, 0))) if missing else words


def _column_blocks(words: Words) -> Words:
    """Rows (M, w) as blocks of COLUMNS side by side, (ceil(M / COLUMNS), w, COLUMNS)."""
    blocks = _padded(words, COLUMNS).reshape(-1, COLUMNS, words.shape[1])
    return np.ascontiguousarray(blocks.transpose(0, 2, 1))


def _functions() -> tuple[Callable[..., None], Callable[..., None]]:
    """``compare`` and ``turn``, compiled or plain."""
    if plain():
        return _compare, _turn
    from gramian.kernels._hamming import compare, turn

    return compare, turn


def _compare(a: Words, b: Words, bits: int, out: Array32) -> None:
    """The plain twin of the compiled function."""
    for i, row in enumerate(a):
        distances = np.bitwise_count(row[:, None] ^ b).sum(axis=1, dtype=np.int64).ravel()
        out[i, : len(distances)] = (bits - 2 * distances).astype(np.float32) / np.float32(bits)


def _turn(block: Array32, out: Array32) -> None:
    """The plain twin of the compiled function."""
    out[:] = block[: out.shape[1], : out.shape[0]].T
