"""Rank-one projections of subspaces, ``u_i(U) = a_i' U U' b_i``, and the features made of them.

Projections come in feature blocks of 256. The probes a_i and b_i of a block follow from the seed and
the block's index alone and are always drawn whole, so that more projections leave earlier ones as they are.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gramian.streams import Stream, generator

Array = NDArray[Any]
Probes = tuple[Array, Array]

FEATURE_BLOCK = 256  # projections that are drawn together
PROBE_CACHE_BYTES = 64 << 20  # probes that a process keeps, at most
PANEL = 8 << 20  # bytes of stacked bases that one product takes


class _ProbeCache:
    """Least recently used probes of this process, within a limit of bytes; safe between threads."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = 0
        self._kept: OrderedDict[tuple[Any, ...], Probes] = OrderedDict()
        self._lock = Lock()

    def get(self, key: tuple[Any, ...]) -> Probes | None:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def put(self, key: tuple[Any, ...], probes: Probes) -> None:
        size = sum(side.nbytes for side in probes)
        with self._lock:
            if key in self._kept or size > self.limit:
                return
            while self.size + size > self.limit:
                _, dropped = self._kept.popitem(last=False)
                self.size -= sum(side.nbytes for side in dropped)
            self._kept[key] = probes
            self.size += size


_CACHE = _ProbeCache(PROBE_CACHE_BYTES)


def draw_probes(n: int, m_block: int, seed: int, block: int, dtype: DTypeLike = np.float64) -> Probes:
    """Gaussian probes of one feature block: the first ``m_block`` of the 256 that are drawn.

    Parameters
    ----------
    n : int
        Ambient dimension of the subspaces.
    m_block : int
        Projections wanted of this block, from 1 to 256.
    seed : int
        Seed of the feature map.
    block : int
        Index of the feature block.
    dtype : dtype, default float64
        Type of the result; float32 probes are the rounded float64 ones.

    Returns
    -------
    A, B : ndarray of shape (m_block, n)
        Independent standard normal rows. Read-only: drawn blocks are kept, up to 64 MiB a process.

    Examples
    --------
    >>> A, B = draw_probes(10, 100, seed=0, block=0)
    >>> A.shape, bool((A[:50] == draw_probes(10, 50, seed=0, block=0)[0]).all())
    ((100, 10), True)
    """
    key = (n, seed, block, np.dtype(dtype).str)
    probes = _CACHE.get(key)
    if probes is None:
        probes = _draw(n, seed, Stream.PROBES_A, block, dtype), _draw(n, seed, Stream.PROBES_B, block, dtype)
        _CACHE.put(key, probes)
    A, B = probes
    return A[:m_block], B[:m_block]


def _draw(n: int, seed: int, stream: Stream, block: int, dtype: DTypeLike) -> Array:
    drawn = generator(seed, stream, block).standard_normal((FEATURE_BLOCK, n)).astype(dtype, copy=False)
    drawn.flags.writeable = False
    return drawn


def rank_one_projections(X: Array, A: Array, B: Array) -> Array:
    """Rank-one projections ``u_i(U) = a_i' U U' b_i`` of a block of subspaces.

    Parameters
    ----------
    X : ndarray of shape (N, n, k)
        Bases; zero columns add nothing.
    A, B : ndarray of shape (m, n)
        Probes, as `draw_probes` gives them, of the type of X.

    Returns
    -------
    ndarray of shape (N, m)
        Unscaled: ``E[u(U) u(V)] = ||U'V||_F^2`` for standard normal probes.

    Notes
    -----
    The projector is never formed: ``u = sum_l (U'a)_l (U'b)_l``, 4 n k m operations a subspace in
    products of stacked bases.

    References
    ----------
    Delogne & Jacques (2025), arXiv 2504.21533.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.eye(3)[None, :, :2]
    >>> rank_one_projections(X, np.array([[1.0, 2.0, 3.0]]), np.array([[4.0, 5.0, 6.0]]))
    array([[14.]])
    """
    N, n, k = X.shape
    m, probes = len(A), np.concatenate([A, B])
    rows = min(N, max(1, PANEL // (n * k * X.itemsize)))
    stacked = np.empty((rows, k, n), X.dtype)
    products = np.empty((rows, k, 2 * m), X.dtype)
    u = np.empty((N, m), X.dtype)
    for i in range(0, N, rows):
        count = min(rows, N - i)
        stacked[:count] = X[i : i + count].transpose(0, 2, 1)
        pair = products[:count]
        np.matmul(stacked[:count].reshape(-1, n), probes.T, out=pair.reshape(-1, 2 * m))
        np.einsum("ilj,ilj->ij", pair[:, :, :m], pair[:, :, m:], out=u[i : i + count])
    return u


def projections_scratch(row_shape: tuple[int, ...], dtype: DTypeLike) -> int:
    """Bytes a row that `rank_one_projections` takes for one feature block, beside the row and its result."""
    n, k = row_shape
    return k * (n + 2 * FEATURE_BLOCK) * np.dtype(dtype).itemsize


def periodic_features(u: Array, omega: float) -> Array:
    """``cos(omega u)`` and ``sin(omega u)``, interleaved and unscaled.

    Parameters
    ----------
    u : ndarray of shape (N, m)
        Rank-one projections.
    omega : float
        Frequency.

    Returns
    -------
    ndarray of shape (N, 2 m)
        Column 2j the cosine and column 2j + 1 the sine of projection j: the real form of
        ``exp(i omega u)``, whose products estimate the periodic kernel.

    References
    ----------
    Random features for Grassmannian kernels by bounded rank-one projections, OpenReview wq18dZJ2pA.

    Examples
    --------
    >>> import numpy as np
    >>> periodic_features(np.array([[0.0, np.pi]]), omega=1.0).round(2) + 0.0
    array([[ 1.,  0., -1.,  0.]])
    """
    phase = u * u.dtype.type(omega)
    features = np.empty((*u.shape, 2), u.dtype)
    np.cos(phase, out=features[:, :, 0])
    np.sin(phase, out=features[:, :, 1])
    return features.reshape(len(u), 2 * u.shape[1])


def sign_features(u: Array) -> Array:
    """Signs of the projections (N, m) as +1 and -1; the sign of zero is +1.

    Examples
    --------
    >>> import numpy as np
    >>> sign_features(np.array([[0.5, -0.5, 0.0, -0.0]]))
    array([[ 1., -1.,  1.,  1.]])
    """
    signs: Array = np.where(u >= 0, u.dtype.type(1), u.dtype.type(-1))
    return signs


def sign_bits(u: Array) -> NDArray[np.uint8]:
    """Signs of the projections as bits, 1 for +1; the sign of zero is +1.

    Parameters
    ----------
    u : ndarray of shape (N, m)
        Rank-one projections.

    Returns
    -------
    ndarray of uint8, shape (N, ceil(m / 8))
        Projection j is bit ``j % 8``, least significant first, of byte ``j // 8``; the rest of the
        last byte is zero.

    Examples
    --------
    >>> import numpy as np
    >>> sign_bits(np.array([[1.0, -1.0, 0.0]]))
    array([[5]], dtype=uint8)
    """
    return np.packbits(u >= 0, axis=1, bitorder="little")
