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
from gramian.validation import subspaces

Array = NDArray[Any]

FEATURE_BLOCK = 256  # projections that are drawn together
PROBE_CACHE_BYTES = 64 << 20  # probes that a process keeps, at most
PANEL = 1024  # basis vectors that one product takes: what it gives stays in the cache


class _ProbeCache:
    """Least recently used probes of this process, within a limit of bytes; safe between threads."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = 0
        self._kept: OrderedDict[tuple[Any, ...], Array] = OrderedDict()
        self._lock = Lock()

    def get(self, key: tuple[Any, ...]) -> Array | None:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def put(self, key: tuple[Any, ...], probes: Array) -> None:
        with self._lock:
            if key in self._kept or probes.nbytes > self.limit:
                return
            while self.size + probes.nbytes > self.limit:
                _, dropped = self._kept.popitem(last=False)
                self.size -= dropped.nbytes
            self._kept[key] = probes
            self.size += probes.nbytes


_CACHE = _ProbeCache(PROBE_CACHE_BYTES)


def draw_probes(n: int, m_block: int, seed: int, block: int, dtype: DTypeLike = np.float64) -> Array:
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
    ndarray of shape (2, m_block, n)
        A and B, independent, of standard normal rows. Read-only: drawn blocks are kept, up to 64 MiB a
        process.

    Examples
    --------
    >>> A, B = draw_probes(10, 100, seed=0, block=0)
    >>> A.shape, bool((A[:50] == draw_probes(10, 50, seed=0, block=0)[0]).all())
    ((100, 10), True)
    """
    key = (n, seed, block, np.dtype(dtype).str)
    probes = _CACHE.get(key)
    if probes is None:
        probes = np.empty((2, FEATURE_BLOCK, n), dtype)
        for side, stream in zip(probes, (Stream.PROBES_A, Stream.PROBES_B), strict=True):
            side[:] = generator(seed, stream, block).standard_normal(side.shape)
        probes.flags.writeable = False
        _CACHE.put(key, probes)
    return probes[:, :m_block]


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
    return project(stack_vectors(X), np.stack([A, B]))


def stack_vectors(X: Array) -> Array:
    """Basis vectors (N, k, n) of bases (N, n, k), one after the other in memory, for `project`."""
    return np.ascontiguousarray(X.transpose(0, 2, 1))


def project(vectors: Array, probes: Array) -> Array:
    """Rank-one projections from stacked basis vectors.

    Parameters
    ----------
    vectors : ndarray of shape (N, k, n)
        What `stack_vectors` gives.
    probes : ndarray of shape (2, m, n)
        What `draw_probes` gives.

    Returns
    -------
    ndarray of shape (N, m)

    Notes
    -----
    The projector is never formed: ``u = sum_l (U'a)_l (U'b)_l``, 4 n k m operations a subspace in one
    product of matrices.
    """
    (N, k, n), m = vectors.shape, probes.shape[1]
    both = probes.reshape(2 * m, n).T
    rows = min(N, max(1, PANEL // k))
    products = np.empty((rows, k, 2 * m), vectors.dtype)
    u = np.empty((N, m), vectors.dtype)
    for i in range(0, N, rows):
        part = vectors[i : i + rows]
        pair = products[: len(part)]
        np.matmul(part.reshape(-1, n), both, out=pair.reshape(-1, 2 * m))
        np.einsum("ilj,ilj->ij", pair[:, :, :m], pair[:, :, m:], out=u[i : i + rows])
    return u


def projections_scratch(row_shape: tuple[int, ...], dtype: DTypeLike) -> int:
    """Bytes a row of `stack_vectors` and of `project` with one feature block, beside row and result."""
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


def checked_vectors(bases: NDArray[Any]) -> NDArray[Any]:
    """The basis vectors (N, k, n) of a block of subspaces."""
    return stack_vectors(subspaces(bases, "X"))


def feature_block(
    vectors: NDArray[Any],
    *,
    column: int,
    n_projections: int,
    nonlinearity: str,
    omega: float | None,
    packed: bool,
    scale: float | None,
    seed: int,
    dtype: np.dtype[Any],
) -> NDArray[Any]:
    """One feature block of a block of subspaces."""
    count = min(FEATURE_BLOCK, n_projections - column * FEATURE_BLOCK)
    u = project(vectors, draw_probes(vectors.shape[2], count, seed, column, vectors.dtype))
    if packed:
        return sign_bits(u)
    if nonlinearity == "periodic":
        assert omega is not None
        features = periodic_features(u, omega)
    else:
        features = sign_features(u) if nonlinearity == "sign" else u
    features = features.astype(dtype, copy=False)
    if scale is not None:
        features *= features.dtype.type(scale)
    return features
