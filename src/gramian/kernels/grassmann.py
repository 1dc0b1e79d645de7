"""Kernels of subspaces: functions of the principal angles alone.

A subspace is an orthonormal basis (n, k); for two of them ``C = U'V`` has the cosines of the
principal angles as singular values. Bases of lower dimension are padded with zero columns at the end.

On blocks, a kernel is `stack_bases` once a block of rows, then a tile (N, M) of two stacked blocks of N and
M subspaces; of the same object twice it is symmetric to the last bit. A tile checks nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gramian.errors import InputError
from gramian.kernels._jit import plain
from gramian.validation import boolean, frequency, subspace_dimensions, subspaces

Array = NDArray[Any]

PANEL = 1024  # basis vectors on a side of one product C, which is reduced while it is in the cache
PRODUCT_BYTES = 3 * 8 * PANEL**2  # the product, a copy of it and what reduces it
GROUP = 128  # bytes of one number of as many subspaces as compiled code takes at a time
RESIDUALS = 8 << 20  # bytes of residuals that principal_angles holds at a time


@dataclass(frozen=True)
class Bases:
    """Stacked bases of a block of subspaces.

    Attributes
    ----------
    panels : tuple of ndarray, each (k * r, n)
        Row ``a * r + i`` is basis vector ``a`` of the panel's subspace ``i``.
    dimensions : ndarray of shape (N,)
        Dimension of each subspace.
    k : int
        Columns of a basis, padding included.
    """

    panels: tuple[Array, ...]
    dimensions: NDArray[np.intp]
    k: int

    def slices(self) -> Iterator[tuple[slice, Array]]:
        """The rows of the block that each panel holds, and the panel."""
        start = 0
        for panel in self.panels:
            stop = start + len(panel) // self.k
            yield slice(start, stop), panel
            start = stop


def stack_bases(X: Array) -> Bases:
    """Stack the bases of a block, for tiles of the projection and the periodic kernel.

    Parameters
    ----------
    X : ndarray of shape (N, n, k)
        Orthonormal bases, not checked here.
    """
    _, n, k = X.shape
    lanes = GROUP // X.itemsize
    rows = max(lanes, PANEL // k // lanes * lanes)
    panels = tuple(
        np.ascontiguousarray(X[i : i + rows].transpose(2, 0, 1)).reshape(-1, n)
        for i in range(0, len(X), rows)
    )
    return Bases(panels, subspace_dimensions(X), k)


def bases_scratch(row_shape: tuple[int, ...], dtype: DTypeLike) -> int:
    """Bytes a row that `stack_bases` and a tile take beside the row and the tile: the stacked copy."""
    n, k = row_shape
    return n * k * np.dtype(dtype).itemsize


def projection_tile(a: Bases, b: Bases, *, normalize: bool = False) -> Array:
    """Tile of `projection_kernel`."""

    def reduce(C: Array, d: Array, e: Array) -> Array:
        block: Array = np.square(C, out=C).sum(axis=(0, 2))
        return block / np.sqrt(np.multiply.outer(d, e)) if normalize else block

    return _tile(a, b, reduce)


def projection_rbf_tile(a: Bases, b: Bases, *, omega: float) -> Array:
    """Tile of `projection_rbf_kernel`."""

    def reduce(C: Array, d: Array, e: Array) -> Array:
        halves = np.add.outer(d, e) / C.dtype.type(2) - np.square(C, out=C).sum(axis=(0, 2))
        result: Array = np.exp(-(omega**2) * np.maximum(halves, 0))
        return result

    return _tile(a, b, reduce)


def periodic_tile(a: Bases, b: Bases, *, omega: float) -> Array:
    """Tile of `periodic_kernel`."""
    # With d and e the dimensions: (1 + w^2)^(-(d + e)/2) / det(I - w^2 / (1 + w^2) CC').
    # Right for any d and e, and padding (zero rows and columns of C) does not change it.
    k, log_s = min(a.k, b.k), np.log(np.hypot(1.0, omega))

    def reduce(C: Array, d: Array, e: Array) -> Array:
        logs = (
            _log_determinants(C, omega) if a.k <= b.k else _log_determinants(C.transpose(2, 3, 0, 1), omega).T
        )
        result: Array = np.exp(log_s * np.add.outer(k - d, -e) - logs)
        return result

    return _tile(a, b, reduce)


def projection_kernel(X: Array, Y: Array | None = None, *, normalize: bool = False) -> Array:
    """Projection kernel of subspaces, ``||U'V||_F^2``: the sum of the squared cosines.

    Parameters
    ----------
    X : ndarray of shape (N, n, k1)
        Orthonormal bases, float32 or float64; trailing zero columns are padding.
    Y : ndarray of shape (M, n, k2), optional
        The other subspaces; those of X where None.
    normalize : bool, default False
        Divide by the geometric mean of the two dimensions, so that ``k(U, U) = 1``.

    Returns
    -------
    ndarray of shape (N, M)
        From 0 to min(k1, k2), or to 1 where normalised; float32 for float32 bases.

    Raises
    ------
    InputError
        Bases that are not orthonormal (beyond 1e-6, float32 1e-4), not finite or of unequal
        ambient dimension.

    Notes
    -----
    One product of stacked bases, 2 n k1 k2 operations a pair.

    References
    ----------
    Hamm and Lee (2008), Grassmann discriminant analysis: a unifying view on subspace-based learning.

    Examples
    --------
    >>> import numpy as np
    >>> line = np.array([[[1.0], [0.0]], [[0.6], [0.8]]])
    >>> projection_kernel(line).round(2)
    array([[1.  , 0.36],
           [0.36, 1.  ]])
    """
    a, b = _stack_checked(X, Y)
    return projection_tile(a, b, normalize=boolean(normalize, "normalize"))


def periodic_kernel(X: Array, Y: Array | None = None, *, omega: float) -> Array:
    """Periodic kernel of subspaces, ``prod_j 1 / (1 + omega^2 sin^2 theta_j)``.

    The kernel that random features ``exp(i omega a'UU'b)`` approximate. Subspaces of dimensions
    d and e have ``|d - e|`` further factors ``(1 + omega^2)^(-1/2)``; in general it is
    ``det(I + omega^2 (P - Q)^2)^(-1/2)`` of the projectors.

    Parameters
    ----------
    X, Y : ndarrays of shapes (N, n, k1) and (M, n, k2), Y optional
        As in `projection_kernel`.
    omega : float
        Frequency, above 0. It must shrink with the dimension: at 1, orthogonal subspaces of
        dimension 5 have the value 1/32.

    Returns
    -------
    ndarray of shape (N, M)
        In (0, 1]; float32 for float32 bases.

    Raises
    ------
    InputError
        Bases as for `projection_kernel`; an omega that is not above 0, or so large that the
        kernel is the identity to the last digit.

    Notes
    -----
    Without singular values: the determinant of ``(1 + omega^2) I - omega^2 CC'`` by elimination,
    after one product of stacked bases.

    References
    ----------
    Random features for Grassmannian kernels by bounded rank-one projections, OpenReview wq18dZJ2pA.

    Examples
    --------
    >>> import numpy as np
    >>> line = np.array([[[1.0], [0.0]], [[0.6], [0.8]]])
    >>> periodic_kernel(line, omega=1.0).round(3)
    array([[1.  , 0.61],
           [0.61, 1.  ]])
    """
    omega = frequency(omega)
    a, b = _stack_checked(X, Y)
    check_frequency(omega, min(a.k, b.k))
    return periodic_tile(a, b, omega=omega)


def projection_rbf_kernel(X: Array, Y: Array | None = None, *, omega: float) -> Array:
    """Projection RBF kernel of subspaces, ``exp(-omega^2 / 2 ||P - Q||_F^2)`` of the projectors.

    For equal dimensions ``exp(-omega^2 sum_j sin^2 theta_j)``, the limit of the periodic kernel at
    small frequencies.

    Parameters
    ----------
    X, Y : ndarrays of shapes (N, n, k1) and (M, n, k2), Y optional
        As in `projection_kernel`.
    omega : float
        Frequency, above 0.

    Returns
    -------
    ndarray of shape (N, M)
        In (0, 1]; float32 for float32 bases.

    Raises
    ------
    InputError
        Bases as for `projection_kernel`; an omega that is not above 0.

    References
    ----------
    Hamm and Lee (2008), as for `projection_kernel`: the projection metric.

    Examples
    --------
    >>> import numpy as np
    >>> line = np.array([[[1.0], [0.0]], [[0.6], [0.8]]])
    >>> projection_rbf_kernel(line, omega=1.0).round(3)
    array([[1.   , 0.527],
           [0.527, 1.   ]])
    """
    omega = frequency(omega)
    a, b = _stack_checked(X, Y)
    return projection_rbf_tile(a, b, omega=omega)


def check_frequency(omega: float, k: int) -> None:
    """Refuse a frequency at which determinants of size k leave the range of float64."""
    if k * np.log(np.hypot(1.0, omega)) > 700:
        raise InputError(
            f"omega is {omega:g} for subspaces of dimension {k}: the kernel is the identity",
            "give a smaller omega, of the order of 1/sqrt(k)",
        )


def principal_angles(U: Array, V: Array) -> Array:
    """Principal angles between subspaces, ascending, in radians.

    Parameters
    ----------
    U : ndarray of shape (N, n, k1)
        Orthonormal bases, float32 or float64; trailing zero columns are padding.
    V : ndarray of shape (M, n, k2)
        The other subspaces.

    Returns
    -------
    ndarray of shape (N, M, min(k1, k2))
        From 0 to pi/2. A pair of which one is padded has fewer angles: the last ones are NaN.

    Raises
    ------
    InputError
        Bases as for `projection_kernel`.

    Notes
    -----
    Two singular value decompositions a pair: cosines from ``U'V``, sines from the part of the
    smaller subspace that is orthogonal to the larger, and atan2 of both, which keeps all digits of
    small and of large angles [1]_.

    References
    ----------
    .. [1] Björck & Golub (1973), Numerical methods for computing angles between linear subspaces.

    Examples
    --------
    >>> import numpy as np
    >>> plane = np.eye(3)[None, :, :2]
    >>> line = np.array([[[np.cos(1e-9)], [0.0], [np.sin(1e-9)]]])
    >>> principal_angles(plane, line)
    array([[[1.e-09]]])
    """
    X, Y = _checked(U, V)
    angles = np.full((len(X), len(Y), min(X.shape[2], Y.shape[2])), np.nan, X.dtype)
    for d, rows in _by_dimension(X):
        for e, columns in _by_dimension(Y):
            angles[np.ix_(rows, columns, np.arange(min(d, e)))] = _angles(X[rows, :, :d], Y[columns, :, :e])
    return angles


def _checked(X: Array, Y: Array | None) -> tuple[Array, Array]:
    """Both blocks checked and of one type; the same object twice where Y is None."""
    X = subspaces(X, "X")
    if Y is None:
        return X, X
    Y = subspaces(Y, "Y", dimension=X.shape[1])
    dtype = np.result_type(X, Y)
    return X.astype(dtype, copy=False), Y.astype(dtype, copy=False)


def _stack_checked(X: Array, Y: Array | None) -> tuple[Bases, Bases]:
    X, other = _checked(X, Y)
    a = stack_bases(X)
    return a, a if Y is None else stack_bases(other)


def _tile(a: Bases, b: Bases, reduce: Callable[[Array, Array, Array], Array]) -> Array:
    """Apply ``reduce`` to each pair of panels: the products C (k1, r1, k2, r2) and the dimensions."""
    tile = np.empty((len(a.dimensions), len(b.dimensions)), a.panels[0].dtype)
    products = np.empty(len(a.panels[0]) * len(b.panels[0]), tile.dtype)  # new memory is dear
    for i, (rows, left) in enumerate(a.slices()):
        for j, (columns, right) in enumerate(b.slices()):
            if a is b and j < i:
                continue
            room = products[: len(left) * len(right)].reshape(len(left), len(right))
            C = np.matmul(left, right.T, out=room).reshape(a.k, -1, b.k, len(right) // b.k)
            block = reduce(C, a.dimensions[rows], b.dimensions[columns])
            if a is b:
                block = np.triu(block) + np.triu(block, 1).T if i == j else block
                tile[columns, rows] = block.T
            tile[rows, columns] = block
    return tile


def _log_determinants(C: Array, omega: float) -> Array:
    """``log det(s I - w^2 / s CC')`` of pairs, (k, r, l, c) -> (r, c); s = sqrt(1 + w^2) keeps it finite."""
    columns, s = C.shape[3], np.hypot(1.0, omega)
    missing = -columns % (GROUP // C.itemsize)
    C *= C.dtype.type(omega / np.sqrt(s))
    padded: Array = np.pad(C, ((0, 0),) * 3 + ((0, missing),)) if missing else np.ascontiguousarray(C)
    out = np.empty((C.shape[1], padded.shape[3]))
    _determinants(padded, C.dtype.type(s), out)
    logs: Array = np.log(out[:, :columns])
    return logs


def _determinants(C: Array, scale: Any, out: Array) -> None:
    """``det(scale I - CC')`` of pairs; by NumPy alone where plain twins are asked for."""
    if not plain():
        from gramian.kernels._grassmann import determinants

        determinants(C, scale, out)
        return
    pairs = C.transpose(1, 3, 0, 2)
    matrices = scale * np.eye(len(C), dtype=C.dtype) - pairs @ pairs.transpose(0, 1, 3, 2)
    out[:] = np.linalg.det(matrices.astype(np.float64))


def _by_dimension(X: Array) -> Iterator[tuple[int, NDArray[np.intp]]]:
    """Each dimension that occurs, with the rows that have it."""
    dimensions = subspace_dimensions(X)
    for d in np.unique(dimensions):
        yield int(d), np.flatnonzero(dimensions == d)


def _angles(X: Array, Y: Array) -> Array:
    """Angles (N, M, min(d, e)) between unpadded bases (N, n, d) and (M, n, e)."""
    if X.shape[2] < Y.shape[2]:
        return _angles(Y, X).transpose(1, 0, 2)
    angles = np.empty((len(X), len(Y), Y.shape[2]), X.dtype)
    step = max(1, RESIDUALS // Y[0].nbytes)
    for i, U in enumerate(X):
        for j in range(0, len(Y), step):
            V = Y[j : j + step]
            C = U.T @ V
            cosines = np.linalg.svd(C, compute_uv=False)
            sines = np.linalg.svd(V - U @ C, compute_uv=False)[:, ::-1]
            angles[i, j : j + step] = np.arctan2(sines, cosines)
    return angles
