"""Gram matrices: the table of kernels, and the matrix as an operator that is never formed.

A kernel is one line of the table. The operator, `gram`, the plan, the command line and the inherited
tests follow from the line.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from inspect import Parameter, signature
from numbers import Real
from typing import Any, Literal, Self

import numpy as np
import zarr
from numpy.typing import NDArray

from gramian import engine
from gramian.blocks import ArraySpec, Grid, Plan
from gramian.errors import InputError, InputTypeError
from gramian.kernels.grassmann import (
    PRODUCT_BYTES,
    bases_scratch,
    periodic_kernel,
    periodic_tile,
    projection_kernel,
    projection_rbf_kernel,
    projection_rbf_tile,
    projection_tile,
    stack_bases,
)
from gramian.kernels.hal import hal_diagonal, hal_kernel, hal_scratch, hal_tile, knot_planes
from gramian.kernels.hamming import bit_words, hamming_kernel, hamming_tile, words_scratch
from gramian.sources import is_dask
from gramian.store.layout import create_array, create_store, finish_store
from gramian.store.writer import checksum, reading
from gramian.streams import Stream, draw_rows, generator, seed_of
from gramian.validation import boolean, choice, floating, integer, matrix, real, subspaces

Array = NDArray[Any]
Check = Callable[[Array, str], Array]
Prepare = Callable[[Array], Any]
Tile = Callable[[Any, Any], Array]

MAX_KNOTS = 1 << 16  # rows that become knots without being asked for


# ------------------------------------------------------------------------------ the table of kernels


@dataclass(frozen=True)
class Preparation:
    """How rows are read for tiles: kernels of the same rows share it.

    Parameters
    ----------
    reads : {"subspaces", "covariates", "features"}
        The array of a data set. Features are read as they are stored.
    prepare : callable
        ``prepare(rows, **parameters)``, once a block of rows.
    scratch : callable
        ``scratch(row_shape, dtype, **parameters)``: bytes a row beside the row and the tile.
    flops : callable
        ``flops(row_shape, **parameters)``: operations of one entry.
    constant : int
        Bytes that a tile needs whatever the rows.
    """

    reads: Literal["subspaces", "covariates", "features"]
    prepare: Callable[..., Any]
    scratch: Callable[..., int]
    flops: Callable[..., float]
    constant: int = 0


@dataclass(frozen=True)
class Kernel:
    """One line of the table: what it takes to use a kernel on blocks.

    Each function, those of the preparation too, is given those of the parameters that it names.

    Parameters
    ----------
    name : str
    function : callable
        ``function(X, Y=None, **parameters)``, the public one. Its keywords are the kernel's parameters
        with their defaults; it judges their values, and the dtype of its result is the kernel's.
    rows : Preparation
    tile : callable
        ``tile(a, b, **parameters)`` of two prepared blocks; the same object twice on the diagonal.
    settle : callable, optional
        ``settle(X, Y, **parameters)``: parameters that follow from the rows as a whole, settled before
        the first block. Its further keywords are parameters too.
    diagonal : callable, optional
        ``diagonal(rows, **parameters)`` where that is cheaper than the diagonal of a tile.
    """

    name: str
    function: Callable[..., Array]
    rows: Preparation
    tile: Callable[..., Array]
    settle: Callable[..., dict[str, Any]] | None = None
    diagonal: Callable[..., Array] | None = None

    @property
    def reads(self) -> str:
        """The array of a data set that it is a kernel of."""
        return self.rows.reads

    @property
    def parameters(self) -> dict[str, Any]:
        """Names and defaults; `inspect.Parameter.empty` where one must be given."""
        found: dict[str, Any] = {}
        for function in (self.function, self.settle):
            for parameter in signature(function).parameters.values() if function else ():
                if parameter.kind is Parameter.KEYWORD_ONLY and parameter.name != "out":
                    found.setdefault(parameter.name, parameter.default)
        return found

    def complete(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters that were given, and the defaults of the others."""
        known = self.parameters
        for name in given:
            if name not in known:
                names = ", ".join(known) or "none"
                raise InputTypeError(f"kernel {self.name!r} has no parameter {name!r}", f"it has {names}")
        return {**known, **given}

    def bound(self, function: Callable[..., Any], parameters: Mapping[str, Any]) -> Callable[..., Any]:
        """The function with those of the parameters that it names."""
        names = signature(function).parameters
        return partial(function, **{name: value for name, value in parameters.items() if name in names})


def _settle_knots(
    X: Any,
    Y: Any,
    *,
    knots: Any = None,
    n_knots: int | None = None,
    random_state: Any = 0,
) -> dict[str, Any]:
    """HAL's knots: those given, ``n_knots`` rows drawn by the seed, or all rows."""
    rows, *_ = engine.spec_of(X).shape
    if knots is not None:
        if n_knots is not None:
            raise InputError(f"both knots and n_knots={n_knots} are given", "give one of them")
        return {"knots": matrix(knots, "knots", columns=engine.spec_of(X).shape[1])}
    if Y is not None:
        raise InputError("kernel 'hal' has Y but no knots", "give knots=, the training rows or some of them")
    count = rows if n_knots is None else integer(n_knots, "n_knots", high=rows)
    if n_knots is None and rows > MAX_KNOTS:
        raise InputError(f"all {rows} rows would be knots", "give n_knots, for example 2048, or knots")
    if isinstance(X, ArraySpec):  # a plan needs their number alone
        return {"knots": np.broadcast_to(np.float64(0), (count, X.shape[1]))}
    if n_knots is None:
        return {"knots": matrix(engine.take(X, np.arange(rows)), "X")}
    seed = seed_of(random_state)
    drawn = draw_rows(rows, count, seed, Stream.KNOTS)
    return {"knots": matrix(engine.take(X, drawn), "X"), "random_state": seed}


def _settle_bits(X: Any, Y: Any, *, n_bits: int | None = None) -> dict[str, Any]:
    """The number of bits, which a store of packed signs knows."""
    stored = [getattr(getattr(array, "array", array), "attrs", {}).get("n_bits") for array in (X, Y)]
    known = [value for value in (n_bits, *stored) if value is not None]
    if not known:
        return {}
    if len(set(known)) > 1:
        raise InputError(f"n_bits is {known[0]} here and {known[1]} there", "give features of the same map")
    return {"n_bits": known[0]}


def _bases_flops(row_shape: tuple[int, ...]) -> float:
    return 2.0 * row_shape[0] * row_shape[1] ** 2


def _knot_flops(row_shape: tuple[int, ...], knots: Array) -> float:
    return float(row_shape[0] * len(knots))


def _bits_flops(row_shape: tuple[int, ...]) -> float:
    return 2.0 * row_shape[0]


_KNOTS = Preparation("covariates", knot_planes, hal_scratch, _knot_flops)
_BASES = Preparation("subspaces", stack_bases, bases_scratch, _bases_flops, PRODUCT_BYTES)
_WORDS = Preparation("features", bit_words, words_scratch, _bits_flops)

_TABLE = (
    Kernel("hal", hal_kernel, _KNOTS, hal_tile, _settle_knots, hal_diagonal),
    Kernel("projection", projection_kernel, _BASES, projection_tile),
    Kernel("periodic", periodic_kernel, _BASES, periodic_tile),
    Kernel("projection-rbf", projection_rbf_kernel, _BASES, projection_rbf_tile),
    Kernel("hamming", hamming_kernel, _WORDS, hamming_tile, _settle_bits),
)

KERNELS: dict[str, Kernel] = {kernel.name: kernel for kernel in _TABLE}

_CHECKS: dict[str, Check] = {"subspaces": subspaces, "covariates": matrix}  # packed signs: by their kernel


# ---------------------------------------------------------------------- functions that tasks carry


def _prepare(block: Array, *, prepare: Prepare, check: Check | None, dtype: np.dtype[Any]) -> Any:
    """Check a block of rows and prepare it for tiles."""
    return prepare(block if check is None else check(block, "X").astype(dtype, copy=False))


def _own_diagonal(block: Array, *, diagonal: Callable[[Array], Array], check: Check | None) -> Array:
    return diagonal(block if check is None else check(block, "X")).astype(np.float64)


def _tile_diagonal(block: Array, *, tile: Tile, prepare: Prepare) -> Array:
    rows = prepare(block)
    return np.diagonal(tile(rows, rows)).astype(np.float64)


def _columns(block: Array, *, prepare: Prepare, tile: Tile, rows: Array, scale: float) -> Array:
    """Kernel of a block of rows with the given rows, (block, rows)."""
    return tile(prepare(block), prepare(rows)).astype(np.float64) / scale


def _stored_columns(block: Array, *, indices: NDArray[np.intp], scale: float) -> Array:
    return block[:, indices].astype(np.float64) / scale


def _stored_sum(block: Array, U: Array) -> tuple[Array]:
    return (block.T.astype(np.float64) @ U,)


# -------------------------------------------------------------------------------------- the operator


class GramOperator:
    """A Gram matrix K(X, Y) that is never formed, as a linear operator.

    Parameters
    ----------
    X : array of N rows
        NumPy, Zarr or Dask: covariates (N, d), subspaces (N, n, k) or packed features (N, bytes), as the
        kernel reads. With ``kernel="precomputed"`` the Gram matrix itself, (N, N) or (N, M).
    Y : array of M rows, optional
        The rows of the columns, and then the training rows: centring and scale are theirs. Without it
        the operator is symmetric.
    kernel : str
        A name of the table `KERNELS`, or ``"precomputed"``.
    center : bool, default False
        Centre the kernel's features by their mean over the training rows. For ``J = I - 11'/N`` this
        is ``J K J``; rows K' of new data become ``(K' - 1 m') J`` with m the row means of K.
    scale : float or "mean_diagonal", optional
        What K is divided by: a number above 0, or the mean of the diagonal of the uncentred kernel over
        the training rows.
    sample_weight : (N,) array, optional
        Weights w of the training rows; (M,) of them where Y is given. Means are weighted, and the
        operator is ``W^1/2 K W^1/2``; with Y, ``K W^1/2``.
    **params
        Parameters of the kernel. HAL takes ``knots`` (default: the rows of X), or ``n_knots`` rows
        drawn by ``random_state`` (default 0). The Hamming kernel finds ``n_bits`` in a store.

    Attributes
    ----------
    shape : (int, int)
    dtype : numpy.dtype
        Of the entries of K. Products are float64.
    tile_map : engine.TileMap
        Tiles of the raw kernel: not centred, scaled or weighted.
    params : dict
        All parameters of the kernel, settled.

    Raises
    ------
    InputError, InputTypeError
        For an unknown kernel or parameter, and for rows that the kernel does not read.

    Examples
    --------
    >>> import numpy as np
    >>> K = GramOperator(np.array([[0.0], [1.0], [2.0]]), kernel="hal")
    >>> K @ np.ones(3)
    array([3., 5., 6.])
    >>> K.toarray()
    array([[1., 1., 1.],
           [1., 2., 2.],
           [1., 2., 3.]])
    """

    __array_ufunc__ = None  # NumPy's @ leaves the product to __rmatmul__

    def __init__(
        self,
        X: Any,
        Y: Any = None,
        *,
        kernel: str,
        center: bool = False,
        scale: float | Literal["mean_diagonal"] | None = None,
        sample_weight: Any = None,
        **params: Any,
    ) -> None:
        self.kernel: str = choice(kernel, "kernel", [*KERNELS, "precomputed"])
        self.center = boolean(center, "center")
        self._scale = _scale(scale)
        self._X = _rows_of(X, "X")
        self._Y = None if Y is None else _rows_of(Y, "Y")
        if kernel == "precomputed":
            self.params, self.tile_map = {}, _stored_map(self._X, self._Y, params)
        else:
            entry = KERNELS[kernel]
            self.params = _settled(entry, self._X, self._Y, params)
            self.tile_map = _computed_map(entry, self.params, self._X, self._Y)
            if entry.reads == "features":
                self._X, self._Y = _as_stored(self._X), _as_stored(self._Y)
        if (
            self.stored
            and not self.symmetric
            and (center or scale == "mean_diagonal" or sample_weight is not None)
        ):
            raise InputError(
                f"a stored Gram matrix of shape {self.shape} knows no training rows",
                "leave out center, scale and sample_weight, or give the square matrix",
            )
        self.sample_weight = None if sample_weight is None else _weights(sample_weight, self.shape[1])

    def __repr__(self) -> str:
        said = f"{self.kernel!r} {self.shape[0]:,} x {self.shape[1]:,}"
        centred = ", centred" if self.center else ""
        weighted = "" if self.sample_weight is None else ", weighted"
        return f"<GramOperator {said}{centred}{weighted}>"

    @property
    def shape(self) -> tuple[int, int]:
        """Rows of X, rows of Y."""
        return self.tile_map.shape

    @property
    def ndim(self) -> int:
        return 2

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the entries of K."""
        return self.tile_map.dtype

    @property
    def stored(self) -> bool:
        """Whether the matrix is read, not computed."""
        return self.tile_map.tile is None

    @property
    def symmetric(self) -> bool:
        """Whether rows and columns are the same rows."""
        return self.tile_map.symmetric

    @property
    def sources(self) -> tuple[Any, ...]:
        """X, or X and Y, as the engine reads them."""
        return (self._X,) if self._Y is None else (self._X, self._Y)

    @contextmanager
    def staged(self) -> Iterator[Self]:
        """The same operator over rows that can be read many times: Dask arrays are computed once."""
        with engine.staged(self._X, self._Y) as (X, Y):
            yield self._changed(_X=X, _Y=Y)

    # ------------------------------------------------------------------------------- means and scale

    @cached_property
    def scale(self) -> float:
        """What K is divided by."""
        if self._scale != "mean_diagonal":
            return 1.0 if self._scale is None else float(self._scale)
        mean = float(np.average(self._training().raw_diagonal(), weights=self.sample_weight))
        if not mean > 0:
            raise InputError(f"the mean of the diagonal is {mean}", "give scale as a number, or none")
        return mean

    @cached_property
    def means(self) -> Array:
        """Mean of each row of K over the training rows, scaled but not centred: (M,)."""
        weights = np.ones(self.shape[1]) if self.sample_weight is None else self.sample_weight
        total = self._training().raw_product(weights[:, None])[:, 0]
        means: Array = total / (weights.sum() * self.scale)
        return means

    @property
    def grand_mean(self) -> float:
        """Mean of all entries of K over the training rows, scaled but not centred."""
        return float(np.average(self.means, weights=self.sample_weight))

    # ------------------------------------------------------------------------------------- products

    def __matmul__(self, V: Any) -> Array:
        """``self @ V`` for V of shape (M,) or (M, s); float64."""
        V, flat = _vectors(V, self.shape[1])
        inner = self.from_right(V)
        out = self.raw_product(inner) / self.scale
        if self.symmetric:
            out = self._from_left(out)
        elif self.center:
            with engine.pinned():
                out -= self.means @ inner
        return out[:, 0] if flat else out

    def rmatmul(self, U: Any) -> Array:
        """``self.T @ U`` for U of shape (N,) or (N, s); float64."""
        if self.symmetric:
            product: Array = self @ U
            return product
        U, flat = _vectors(U, self.shape[0])
        out = self._transposed_product(U) / self.scale
        if self.center:
            out -= np.outer(self.means, U.sum(axis=0))
        out = self._from_left(out)
        return out[:, 0] if flat else out

    def __rmatmul__(self, U: Any) -> Array:
        """``U @ self`` for U of shape (N,) or (s, N); float64."""
        return self.rmatmul(np.asarray(U).T).T

    def from_right(self, V: Array) -> Array:
        """``C' W^1/2 V`` with the centring ``C = I - 1 w'/sum(w)``."""
        w = self.sample_weight
        V = V if w is None else np.sqrt(w)[:, None] * V
        if not self.center:
            return V
        return V - V.mean(axis=0) if w is None else V - np.outer(w, V.sum(axis=0) / w.sum())

    def _from_left(self, V: Array) -> Array:
        """``W^1/2 C V``."""
        if self.center:
            V = V - np.average(V, axis=0, weights=self.sample_weight)
        return V if self.sample_weight is None else np.sqrt(self.sample_weight)[:, None] * V

    def toarray(self) -> Array:
        """The whole matrix in memory, float64."""
        self._admit()
        K = engine.tiles(self.tile_map, *self.sources).astype(np.float64, copy=False)
        K /= self.scale
        if self.center:
            _center(K, self.sample_weight, None if self.symmetric else self.means)
        if self.sample_weight is not None:
            root = np.sqrt(self.sample_weight)
            K *= root
            if self.symmetric:
                K *= root[:, None]
        return K

    def diagonal(self) -> Array:
        """The diagonal of a symmetric operator, centred, scaled and weighted: (N,)."""
        diagonal = self.raw_diagonal() / self.scale
        if self.center:
            diagonal += self.grand_mean - 2 * self.means
        return diagonal if self.sample_weight is None else diagonal * self.sample_weight

    def trace(self) -> float:
        """The sum of the diagonal, and of all eigenvalues."""
        return float(self.diagonal().sum())

    # --------------------------------------------------- the raw kernel: not centred, scaled, weighted

    def raw_product(self, V: Array) -> Array:
        """K @ V of the kernel as the table has it, V (M, s)."""
        self._admit()
        return engine.tile_product(self.tile_map, V, *self.sources)

    def raw_diagonal(self) -> Array:
        """The diagonal of the kernel as the table has it: (N,) float64."""
        self._need_symmetric("diagonal")
        grid, tile_map = self.tile_map.rows, self.tile_map
        if tile_map.tile is None:
            with reading(self._X):
                blocks = [np.diagonal(_computed(self._X[rows, rows])) for rows in grid]
            return np.concatenate(blocks).astype(np.float64)
        kernel, scratch = KERNELS[self.kernel], tile_map.scratch
        if kernel.diagonal is None:
            function = partial(_tile_diagonal, **_functions(tile_map))
            scratch += grid.step * self.dtype.itemsize
        else:
            diagonal = kernel.bound(kernel.diagonal, self.params)
            function = partial(_own_diagonal, diagonal=diagonal, check=_CHECKS.get(kernel.reads))
        return _computed(
            engine.apply(
                engine.RowMap(
                    function,
                    grid,
                    (),
                    np.dtype(np.float64),
                    scratch=scratch,
                    constant=tile_map.constant,
                ),
                self._X,
            )
        )

    def columns(self, indices: NDArray[np.intp]) -> engine.RowMap:
        """Columns of the scaled matrix, neither centred nor weighted, as a map of the rows of X.

        Parameters
        ----------
        indices : (L,) integers

        Returns
        -------
        engine.RowMap
            Blocks (rows, L), float64.
        """
        self._admit()
        if self.stored:
            function = partial(_stored_columns, indices=indices, scale=self.scale)
        else:
            rows = engine.take(self._X, indices)
            function = partial(_columns, rows=rows, scale=self.scale, **_functions(self.tile_map))
        return replace(self.column_map(len(indices)), function=function)

    def column_map(self, count: int) -> engine.RowMap:
        """`columns` of a number of indices for a plan: nothing is read, and it cannot be run."""
        self._need_symmetric("columns")
        scratch = self.tile_map.scratch + 8 * count
        own_bytes = engine.spec_of(self._X).row_bytes
        row_bytes = own_bytes + 8 * count + scratch
        return engine.RowMap(
            _columns,
            Grid.for_rows(self.shape[0], row_bytes),
            (count,),
            np.dtype(np.float64),
            scratch=scratch,
            constant=self.tile_map.constant + count * (own_bytes + self.tile_map.scratch),
            flops=self.tile_map.flops * self.shape[0] * count,
        )

    def _transposed_product(self, U: Array) -> Array:
        """K' @ U of the raw rectangular kernel."""
        self._admit()
        n, m = self.shape
        if self.stored:
            grid = Grid.for_rows(n, m * self.dtype.itemsize)
            return engine.row_sum(_stored_sum, grid, self._X, U, result=8 * m * U.shape[1])[0]
        turned = replace(self.tile_map, rows=self.tile_map.across, columns=self.tile_map.rows)
        return engine.tile_product(turned, U, self._Y, self._X)

    # ------------------------------------------------------------------------------------------ plan

    def plan(self, width: int | None = None) -> Plan:
        """What one product with ``width`` columns takes, or, without it, `gram` into a store."""
        if width is None:
            return Plan((self.tile_map.step("gram", *self.sources),))
        return Plan((self.tile_map.step("product", *self.sources, stored=False, width=width),))

    # -------------------------------------------------------------------------------------- internal

    def _changed(self, **attributes: Any) -> Self:
        other = copy.copy(self)
        other.__dict__.update(attributes)
        return other

    def _training(self) -> GramOperator:
        """The operator of the training rows; only its raw kernel is used."""
        if self.symmetric:
            return self
        tile_map = replace(self.tile_map, rows=self.tile_map.across, columns=None)
        return self._changed(_X=self._Y, _Y=None, tile_map=tile_map)

    def _need_symmetric(self, what: str) -> None:
        if not self.symmetric:
            raise InputError(f"a Gram matrix of shape {self.shape} has no {what}", "leave out Y")

    def _admit(self) -> None:
        """Look at a stored matrix once before it is used."""
        if self.stored:
            _ = self._looked_at

    @cached_property
    def _looked_at(self) -> bool:
        """Refuse a stored matrix that is not finite or, where it is square, not symmetric.

        One pass: for random V, ``V'KV`` is symmetric where K is, and else it is not.
        """
        V = generator(0, Stream.SAMPLE).standard_normal((self.shape[1], 4))
        product = engine.tile_product(replace(self.tile_map, columns=self.tile_map.across), V, self._X)
        bad = np.flatnonzero(~np.isfinite(product).all(axis=1))
        if bad.size:
            raise InputError(f"row {bad[0]} of the stored Gram matrix is not finite", "compute it again")
        if self.symmetric:
            with engine.pinned():
                seen = V.T @ product
            # halves that differ by rounding pass: 2e-12 of the whole in float64, 6e-6 in float32
            precision = np.finfo(self.dtype if self.dtype.kind == "f" else np.float64).eps ** 0.75
            if np.abs(seen - seen.T).max() > precision * np.abs(seen).max():
                raise InputError(
                    "the stored Gram matrix is not symmetric",
                    "give K(X, X); a kernel of new rows with old ones has no spectrum",
                )
        return True


# --------------------------------------------------------------------------------- parts of the operator


def _rows_of(array: Any, name: str) -> Any:
    return array if isinstance(array, ArraySpec) else engine.as_array(array, name)


def _scale(scale: Any) -> float | Literal["mean_diagonal"] | None:
    if isinstance(scale, Real):
        return real(scale, "scale", strict=True)
    given: Literal["mean_diagonal"] | None = choice(scale, "scale", [None, "mean_diagonal"])
    return given


def _settled(kernel: Kernel, X: Any, Y: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """All parameters, those that follow from the rows too."""
    for name, rows in (("X", X), ("Y", Y)):
        if rows is not None:
            _check_rows(kernel, name, _spec(kernel, rows))
    params = kernel.complete(given)
    if kernel.settle is not None:
        known = {name: value for name, value in params.items() if value is not Parameter.empty}
        params |= kernel.bound(kernel.settle, known)(X, Y)
    for name, value in params.items():
        if value is Parameter.empty:
            raise InputTypeError(f"kernel {kernel.name!r} has no {name}", f"give {name}=")
    return params


def _spec(kernel: Kernel, rows: Any) -> ArraySpec:
    return engine.spec_of(_as_stored(rows) if kernel.reads == "features" else rows)


def _as_stored(rows: Any) -> Any:
    """Stored features without the decoding that its attributes ask for."""
    if isinstance(rows, engine.Selected):
        return engine.Selected(_as_stored(rows.array), rows.indices)
    return engine.Raw(rows) if isinstance(rows, zarr.Array) else rows


def _check_rows(kernel: Kernel, name: str, spec: ArraySpec) -> None:
    """Refuse rows that the kernel cannot read, by their shape alone."""
    wanted = 3 if kernel.reads == "subspaces" else 2
    if len(spec.shape) != wanted or 0 in spec.shape:
        raise InputError(
            f"{name} has shape {spec.shape}, kernel {kernel.name!r} reads {kernel.reads}",
            f"give {kernel.reads} of shape {'(N, n, k)' if wanted == 3 else '(N, d)'}, at least one row",
        )


def _computed_map(kernel: Kernel, params: dict[str, Any], X: Any, Y: Any) -> engine.TileMap:
    """The tiles of a kernel; the kernel judges its parameters on one row."""
    specs = [_spec(kernel, rows) for rows in (X, X if Y is None else Y)]
    samples = [_one_row(kernel.reads, spec) for spec in specs]
    dtype = np.result_type(*samples)
    entry = kernel.bound(kernel.function, params)(*samples)
    scratch = max(int(kernel.bound(kernel.rows.scratch, params)(spec.shape[1:], dtype)) for spec in specs)
    row_bytes = max(spec.row_bytes for spec in specs) + scratch
    grids = [Grid.for_tiles(spec.shape[0], row_bytes, entry.dtype.itemsize) for spec in specs]
    prepare = kernel.bound(kernel.rows.prepare, params)
    return engine.TileMap(
        tile=kernel.bound(kernel.tile, params),
        prepare=partial(_prepare, prepare=prepare, check=_CHECKS.get(kernel.reads), dtype=dtype),
        rows=grids[0],
        columns=None if Y is None else grids[1],
        dtype=entry.dtype,
        scratch=scratch,
        constant=kernel.rows.constant,
        flops=max(float(kernel.bound(kernel.rows.flops, params)(spec.shape[1:])) for spec in specs),
    )


def _functions(tile_map: engine.TileMap) -> dict[str, Any]:
    return {"prepare": tile_map.prepare, "tile": tile_map.tile}


def _one_row(reads: str, spec: ArraySpec) -> Array:
    """One valid row of this shape and dtype."""
    row = np.zeros((1, *spec.shape[1:]))
    if reads == "features":
        return row.astype(spec.dtype)
    if reads == "subspaces":
        np.fill_diagonal(row[0], 1.0)
    return row.astype(floating(np.empty(0, spec.dtype), "X").dtype)


def _stored_map(X: Any, Y: Any, params: Mapping[str, Any]) -> engine.TileMap:
    """The tiles of a matrix that exists."""
    for name in ("Y",) if Y is not None else params:
        raise InputTypeError(f"{name} is given with a stored Gram matrix", "leave it out, or name the kernel")
    if isinstance(X, engine.Selected):
        raise InputError("some rows of a stored Gram matrix are given", "give the matrix itself")
    spec = engine.spec_of(X)
    if len(spec.shape) != 2 or 0 in spec.shape or spec.dtype.kind not in "fiu":
        raise InputError(
            f"the stored Gram matrix has shape {spec.shape} of {spec.dtype}",
            "give real numbers, (N, N) or (N, M)",
        )
    rows, columns = (Grid.for_tiles(size, 0, spec.dtype.itemsize) for size in spec.shape)
    square = spec.shape[0] == spec.shape[1]
    return engine.TileMap(None, None, rows, None if square else columns, spec.dtype)


def _weights(values: Any, rows: int) -> Array:
    weights = floating(_computed(values), "sample_weight").astype(np.float64)
    if weights.shape != (rows,):
        raise InputError(
            f"sample_weight has shape {weights.shape} for {rows} training rows", "give one weight a row"
        )
    if not (np.isfinite(weights).all() and (weights >= 0).all() and weights.any()):
        raise InputError(
            f"sample_weight goes from {weights.min()} to {weights.max()}", "give finite weights of at least 0"
        )
    return weights


def _vectors(V: Any, rows: int) -> tuple[Array, bool]:
    """V as (rows, s) float64, and whether it was a single vector."""
    V = floating(V, "the other factor").astype(np.float64, copy=False)
    if V.ndim not in (1, 2) or V.shape[0] != rows:
        raise InputError(f"the other factor has shape {V.shape}", f"give ({rows},) or ({rows}, s)")
    return (V[:, None], True) if V.ndim == 1 else (V, False)


def _center(K: Array, weights: Array | None, training_means: Array | None) -> None:
    """Centre in place; a symmetric K (no means given) stays symmetric to the last bit."""
    if training_means is not None:
        K -= training_means
        K -= np.average(K, axis=1, weights=weights)[:, None]
        return
    means = np.average(K, axis=1, weights=weights)
    grand = np.average(means, weights=weights)
    for rows in Grid.for_rows(len(K), K.strides[0]):
        K[rows] -= means[rows, None] + means
        K[rows] += grand


def _computed(array: Any) -> Array:
    return np.asarray(array.compute() if is_dask(array) else array)


# ---------------------------------------------------------------------------------- the whole matrix


def gram(X: Any, Y: Any = None, *, kernel: str, out: Any = None, force: bool = False, **params: Any) -> Any:
    """The Gram matrix of a kernel, in memory or in a store.

    Parameters
    ----------
    X : array of N rows
        NumPy, Zarr or Dask: what the kernel reads.
    Y : array of M rows, optional
        The rows of the columns; without it the matrix is symmetric, and half of it is computed.
    kernel : str
        A name of the table `KERNELS`.
    out : path, optional
        A store to create, of kind "gram", with the kernel and its parameters in its attributes. It opens
        once it is complete.
    force : bool, default False
        Replace a store that exists.
    **params
        Parameters of the kernel, see `GramOperator`.

    Returns
    -------
    ndarray or zarr.Array of shape (N, M)
        A NumPy array without ``out``, however X is given.

    Examples
    --------
    >>> import numpy as np
    >>> gram(np.array([[0.0, 0.0], [1.0, 2.0]]), kernel="hal")
    array([[3., 3.],
           [3., 6.]])
    """
    KERNELS[choice(kernel, "kernel", list(KERNELS))].complete(params)  # refuses center= and scale= too
    operator = GramOperator(X, Y, kernel=kernel, **params)
    if out is None:
        return engine.tiles(operator.tile_map, *operator.sources)
    group = create_store(out, "gram", attrs={**described(operator), "complete": False}, force=force)
    array = create_array(group, "gram", operator.shape, operator.dtype, operator.tile_map.grids)
    engine.forget("gram")
    engine.write_tiles(operator.tile_map, array, *operator.sources, name="gram")
    finish_store(group)
    return array


def described(operator: GramOperator) -> dict[str, Any]:
    """The kernel and its parameters as JSON; arrays by shape and checksum."""

    def plain(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return {"shape": list(value.shape), "crc32c": checksum(value)}
        return value.item() if isinstance(value, np.generic) else value

    params = {name: plain(value) for name, value in operator.params.items()}
    return {"kernel": operator.kernel, "parameters": params}
