"""Leading eigenpairs of a Gram operator: dense, by block Krylov spaces, or by the Nyström method."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from gramian import engine
from gramian.blocks import Grid, Plan, Step
from gramian.errors import GramianWarning, InputError, InputTypeError
from gramian.gram import GramOperator
from gramian.moments import MomentPass, row_moments
from gramian.nystroem import NystroemFeatures, Rotation, signs_upright
from gramian.streams import Stream, draw_rows, generator, seed_of
from gramian.validation import choice, integer

Array = NDArray[Any]
Solver = Literal["auto", "dense", "randomized", "nystroem"]

DENSE_ROWS = 4096  # "auto" is dense up to here
AUTO_LANDMARKS = 1024  # "auto" landmarks, at least
SAMPLED_ROWS = (
    1024  # rows that the residuals of Nyström eigenpairs are estimated from, of more than DENSE_ROWS
)

TOLERANCE = 1e-13  # of the largest eigenvalue: a residual that needs no further product
USEFUL = 1e-8  # of the largest eigenvalue: a residual above it is worth a warning
PRODUCTS = 200  # products after which the iteration stops in any case
PATIENCE = 24  # products without a residual smaller by a tenth after which it stops
PLANNED_PRODUCTS = 10  # what a spectrum that decays takes


@dataclass(frozen=True)
class Eigenpairs:
    """Leading eigenpairs of a symmetric operator K of N rows.

    Attributes
    ----------
    values : (k,) float64
        Eigenvalues, descending.
    vectors : (N, k) float64
        Orthonormal; the entry of largest magnitude of each is positive.
    residuals : (k,) float64
        Norms ``||K u - d u||``. Exact for "dense". For "randomized" those of the Krylov relation, below
        rounding (about 1e-15 of the largest eigenvalue) not to be believed. For "nystroem" against K itself,
        not its approximation: exact up to 4,096 rows, estimated from 1,024 random rows beyond.
    solver : str
        "dense", "randomized" or "nystroem".
    """

    values: Array
    vectors: Array
    residuals: Array
    solver: str


def leading_eigenpairs(
    operator: GramOperator,
    k: int,
    *,
    solver: Solver = "auto",
    n_landmarks: int | Literal["auto"] = "auto",
    landmarks: Literal["uniform"] = "uniform",
    random_state: Any = None,
    name: str = "eigenpairs",
) -> Eigenpairs:
    """The k largest eigenvalues of a symmetric Gram operator, and their eigenvectors.

    Centring, scale and weights are those of the operator.

    Parameters
    ----------
    operator : GramOperator
        Symmetric. A stored matrix comes as ``GramOperator(K, kernel="precomputed")``.
    k : int
        From 1 to N.
    solver : {"auto", "dense", "randomized", "nystroem"}
        "dense" forms the matrix. "randomized" multiplies it with blocks of vectors and never forms it; it is
        as exact as "dense". "nystroem" approximates it by N x L of its entries. "auto": dense up to 4,096
        rows, beyond that randomized for a stored matrix and nystroem for a kernel.
    n_landmarks : int or "auto"
        L of "nystroem", from k to N; auto: ``min(N, max(1024, 4 k))``. With all rows it is exact.
    landmarks : {"uniform"}
        How the landmarks are chosen among the rows.
    random_state : int, generator or None
        Of the sketch and of the landmarks.
    name : str
        Under which a session's run remembers the products and sums; unique within a stage.

    Returns
    -------
    Eigenpairs

    Raises
    ------
    InputError, InputTypeError
        For an operator that is not symmetric, and parameters out of range.
    PlanError
        Where the vectors or, for "dense", the matrix do not fit the memory.

    Notes
    -----
    "randomized" is block Lanczos with full orthogonalisation and thick restarts, started from a Gaussian
    sketch. A block has ``k + max(16, k / 8)`` columns, the basis at most four blocks or 128 columns. It ends
    when all residuals are below 1e-13 of the largest eigenvalue or no longer shrink, and warns where one
    stays above 1e-8.

    References
    ----------
    Halko, Martinsson, Tropp (2011), SIAM Review 53(2), sections 4.5 and 5.5; Wu and Simon (2000), SIAM J.
    Matrix Anal. Appl. 22(2), thick restarts; Williams and Seeger (2001), NIPS 13, the Nyström method.

    Examples
    --------
    >>> import numpy as np
    >>> from gramian.gram import GramOperator
    >>> K = GramOperator(np.diag([3.0, 1.0, 2.0]), kernel="precomputed")
    >>> leading_eigenpairs(K, 2).values
    array([3., 2.])
    """
    rows = _symmetric_rows(operator)
    integer(k, "k", high=rows)
    choice(landmarks, "landmarks", ["uniform"])
    if not isinstance(n_landmarks, str) or n_landmarks != "auto":
        integer(n_landmarks, "n_landmarks")
    solver = choose_solver(operator, solver)
    seed = seed_of(random_state)
    with operator.staged() as staged:
        if solver == "dense":
            return _dense(staged, k)
        if solver == "randomized":
            return _randomized(staged, k, seed, name)
        return _nystroem(staged, k, count_landmarks(rows, k, n_landmarks), seed, name)


def choose_solver(operator: GramOperator, solver: Solver) -> Solver:
    """The solver that "auto" stands for; any other as it is."""
    choice(solver, "solver", ["auto", "dense", "randomized", "nystroem"])
    if solver != "auto":
        return solver
    if operator.shape[0] <= DENSE_ROWS:
        return "dense"
    return "randomized" if operator.stored else "nystroem"


def count_landmarks(rows: int, k: int, n_landmarks: int | Literal["auto"]) -> int:
    """The number of landmarks that "auto" stands for; any other, checked."""
    if n_landmarks == "auto":
        return min(rows, max(AUTO_LANDMARKS, 4 * k))
    return integer(n_landmarks, "n_landmarks", low=k, high=rows)


def plan_eigenpairs(
    operator: GramOperator,
    k: int,
    *,
    solver: Solver = "auto",
    n_landmarks: int | Literal["auto"] = "auto",
) -> Plan:
    """What `leading_eigenpairs` takes; of "randomized" an estimate for a spectrum that decays."""
    rows, solver = operator.shape[0], choose_solver(operator, solver)
    if solver == "dense":
        tiles = operator.tile_map.step("tiles", *operator.sources, stored=False)
        return Plan((replace(tiles, driver_bytes=tiles.driver_bytes + 8 * rows**2), _dense_step(rows, k)))
    if solver == "randomized":
        krylov = _krylov_step(rows, k)
        products = operator.tile_map.step("products", *operator.sources, stored=False, width=_width(rows, k))
        times = {field: PLANNED_PRODUCTS * getattr(products, field) for field in ("tasks", "read", "flops")}
        return Plan(
            (replace(products, driver_bytes=products.driver_bytes + krylov.driver_bytes, **times), krylov)
        )
    count = count_landmarks(rows, k, n_landmarks)
    flops = operator.column_map(count).flops
    features = _features_pass(operator, count).step(
        "features", operator.sources[0], flops=flops + 4.0 * rows * count**2
    )
    vectors = replace(operator.column_map(count), tail=(k,), flops=flops + 2.0 * rows * count * k)
    return Plan((features, _nystroem_step(rows, k, count), vectors.step("vectors", operator.sources[0])))


# ------------------------------------------------------------------------------------------------- dense


def _dense_step(rows: int, k: int) -> Step:
    return Step("eigenpairs", 1, flops=4.0 / 3.0 * rows**3, driver_bytes=8 * (3 * rows**2 + 3 * rows * k))


def _dense(operator: GramOperator, k: int) -> Eigenpairs:
    rows = operator.shape[0]
    engine.admit(_dense_step(rows, k))
    matrix = operator.toarray()
    with engine.pinned():
        if 4 * k > rows:  # divide and conquer finds all of them in less time
            values, vectors = scipy.linalg.eigh(matrix, driver="evd", check_finite=False)
        else:
            values, vectors = scipy.linalg.eigh(
                matrix, subset_by_index=(rows - k, rows - 1), driver="evr", check_finite=False
            )
        values, vectors = _leading(values, vectors, k)
        residuals = _norms(matrix @ vectors - vectors * values)
    return Eigenpairs(values, _signed(vectors), residuals, "dense")


# -------------------------------------------------------------------------------------------- randomized


def _width(rows: int, k: int) -> int:
    """Columns of a block: k and some more, so that the last pairs converge too."""
    return min(rows, k + max(16, k // 8))


def _most(rows: int, k: int) -> int:
    """Columns of the basis at which it is restarted; all rows where they are few."""
    return min(rows, max(4 * _width(rows, k), 128))


def _krylov_step(rows: int, k: int) -> Step:
    columns = _most(rows, k) + 5 * _width(rows, k)
    return Step("eigenpairs", 1, flops=8.0 * rows * _most(rows, k) ** 2, driver_bytes=8 * rows * columns)


class _Krylov:
    """An orthonormal basis Q of a block Krylov space and T = Q'KQ, with ``K Q = Q T + block coupling``."""

    def __init__(self, rows: int, most: int) -> None:
        self._space = np.empty((rows, most), order="F")
        self._used = 0
        self._T = np.empty((0, 0))
        self.norm = 0.0  # the largest eigenvalue in magnitude, as far as it is known
        self.values: Array = np.empty(0)  # descending, with their vectors within the basis
        self._vectors: Array = np.empty((0, 0))
        self.residuals: Array = np.empty(0)

    @property
    def basis(self) -> Array:
        return self._space[:, : self._used]

    def extend(self, block: Array, image: Array) -> Array:
        """Take up a block that is orthonormal to the basis, and its image K @ block; gives the next block."""
        width = block.shape[1]
        self._space[:, self._used : self._used + width] = block
        self._used += width
        overlap = self.basis.T @ image
        rest = image - self.basis @ overlap
        old = self._used - width
        overlap[old:] = (overlap[old:] + overlap[old:].T) / 2
        self._T = np.block([[self._T, overlap[:old]], [overlap[:old].T, overlap[old:]]])
        values, self._vectors = np.linalg.eigh(self._T)
        self.values, self._vectors = values[::-1], self._vectors[:, ::-1]
        self.norm = max(self.norm, float(np.abs(values).max()))
        following, coupling = np.linalg.qr(rest)
        self.residuals = _norms(coupling @ self._vectors[old:])
        return self._beside(following)

    def _beside(self, block: Array) -> Array:
        """The block orthonormal to the basis, cut to the room there is.

        Where the space is exhausted its columns are rounding, hence twice: they become random directions.
        """
        block = block[:, : self._space.shape[0] - self._used]
        for _ in range(2 if block.shape[1] else 0):
            block, _r = np.linalg.qr(block - self.basis @ (self.basis.T @ block))
        return block

    def ritz_vectors(self, count: int) -> Array:
        """The leading vectors of K within the space."""
        vectors: Array = self.basis @ self._vectors[:, :count]
        return vectors

    def restart(self, count: int) -> None:
        """Keep the leading Ritz vectors alone; the next block stays orthonormal to them."""
        self._space[:, :count] = self.ritz_vectors(count)
        self._used, self._T = count, np.diag(self.values[:count])


def _randomized(operator: GramOperator, k: int, seed: int, name: str) -> Eigenpairs:
    rows = operator.shape[0]
    engine.admit(_krylov_step(rows, k))
    width, most = _width(rows, k), _most(rows, k)
    krylov, progress = _Krylov(rows, most), _Progress()
    with engine.pinned():
        block = np.linalg.qr(_sketch(seed, rows, width))[0]
    facts = (operator.kernel, operator.params, operator.center, operator.scale, operator.sample_weight)
    for step in range(PRODUCTS):
        image = engine.remember(
            f"{name}/product-{step}", (*facts, block), operator.sources, partial(operator.__matmul__, block)
        )
        with engine.pinned():
            block = krylov.extend(block, image)
            worst = float(krylov.residuals[:k].max())
            if not block.shape[1] or progress.is_over(worst, krylov.norm):
                break
            if krylov.basis.shape[1] + block.shape[1] > most:
                krylov.restart(max(width, most // 2))
    if worst > USEFUL * krylov.norm:
        warnings.warn(
            f"after {step + 1} products an eigenpair has a residual of {worst / krylov.norm:.1g} of the "
            "largest eigenvalue; ask for fewer pairs where the spectrum is flat",
            GramianWarning,
            stacklevel=3,
        )
    with engine.pinned():
        vectors = krylov.ritz_vectors(k)
    return Eigenpairs(krylov.values[:k].copy(), _signed(vectors), krylov.residuals[:k], "randomized")


class _Progress:
    """Whether another product is worth it."""

    def __init__(self) -> None:
        self._best, self._waited = np.inf, 0

    def is_over(self, residual: float, norm: float) -> bool:
        if residual < 0.9 * self._best:
            self._best, self._waited = residual, 0
        else:
            self._waited += 1
        return residual <= TOLERANCE * norm or self._waited >= PATIENCE


def _sketch(seed: int, rows: int, width: int) -> Array:
    """A Gaussian matrix, each block of rows from a stream of its own."""
    sketch = np.empty((rows, width))
    for index, part in enumerate(Grid.for_rows(rows, 8 * width)):
        sketch[part] = generator(seed, Stream.SKETCH, index).standard_normal((part.stop - part.start, width))
    return sketch


# ---------------------------------------------------------------------------------------------- Nyström


def _features_pass(operator: GramOperator, n_landmarks: int) -> MomentPass:
    spec = engine.spec_of(operator.sources[0])
    return MomentPass.over(spec, 1 + n_landmarks, scratch=operator.column_map(n_landmarks).scratch)


def _nystroem_step(rows: int, k: int, n_landmarks: int) -> Step:
    return Step(
        "eigenpairs",
        1,
        flops=9.0 * n_landmarks**3 + 2.0 * rows * k**2,
        driver_bytes=8 * (4 * rows * k + 4 * n_landmarks**2),
    )


def _scores(block: Array, *, columns: Callable[[Array], Array], projection: Array, offset: Array) -> Array:
    scores: Array = columns(block) @ projection - offset
    return scores


def _nystroem(operator: GramOperator, k: int, n_landmarks: int, seed: int, name: str) -> Eigenpairs:
    """Eigenpairs of ``C W^+ C'``, C the columns of K at uniform landmarks, W its rows there."""
    rows, X = operator.shape[0], operator.sources[0]
    engine.admit(_nystroem_step(rows, k, n_landmarks))
    landmarks = draw_rows(rows, n_landmarks, seed, Stream.LANDMARKS)
    columns, dtype = operator.columns(landmarks), np.result_type(operator.dtype, np.float32)
    with engine.pinned():
        corner = columns.function(engine.take(X, landmarks))
        features = NystroemFeatures.of(columns.function, corner, dtype=dtype)
    (moments,) = row_moments(
        features,
        X,
        _features_pass(operator, n_landmarks),
        weights=operator.sample_weight,
        name=f"{name}/features",
    )
    with engine.pinned():
        rotation = Rotation.of(moments, k, center=operator.center, dtype=dtype)
        projection, offset = rotation.coefficients(features)
    root = np.sqrt(rotation.eigenvalues)
    function = partial(_scores, columns=columns.function, projection=projection / root, offset=offset / root)
    vectors = engine.collect(replace(columns, function=function, tail=(len(root),)), X, name="vectors")
    if operator.sample_weight is not None:
        vectors = vectors * np.sqrt(operator.sample_weight)[:, None]
    values = np.concatenate([rotation.eigenvalues, np.zeros(k - len(root))])
    with engine.pinned():
        vectors = _completed(vectors, k, rotation.eigenvalues, seed)
    residuals = _sampled_residuals(operator, values, vectors, seed, name)
    return Eigenpairs(values, _signed(vectors), residuals, "nystroem")


def _completed(vectors: Array, k: int, values: Array, seed: int) -> Array:
    """Orthonormal to the last digits, and k of them: eigenvalues that are zero get vectors too."""
    missing = k - vectors.shape[1]
    if not missing and values[-1] > USEFUL * values[0]:  # rounding is amplified by the ratio
        return vectors
    more = _sketch(seed, len(vectors), missing)
    q, r = np.linalg.qr(np.hstack([vectors, more]))
    return q * np.where(np.diag(r) < 0, -1.0, 1.0)


def _sampled_residuals(operator: GramOperator, values: Array, vectors: Array, seed: int, name: str) -> Array:
    """Norms of ``K u - d u`` from all rows where they are few, else from the mean square of random ones."""
    rows = operator.shape[0]
    count = rows if rows <= DENSE_ROWS else SAMPLED_ROWS
    sample = draw_rows(rows, count, seed, Stream.SAMPLE)
    columns, weights = operator.columns(sample), operator.sample_weight
    result = 8 * count * vectors.shape[1]
    inner = operator.from_right(vectors)
    (images,) = engine.row_sum(
        partial(_image, columns=columns.function),
        columns.grid,
        operator.sources[0],
        inner,
        name=f"{name}/residuals",
        scratch=columns.scratch,
        result=result,
    )
    root = np.ones(count) if weights is None else np.sqrt(weights[sample])
    chosen = np.divide(
        vectors[sample], root[:, None], where=root[:, None] > 0, out=np.zeros((count, len(values)))
    )
    error = images - chosen * values
    if operator.center:
        # K J u - d u holds a constant that centring takes away: its mean, over the sample as over all rows
        error -= np.average(error, axis=0, weights=None if weights is None else weights[sample])
    norms: Array = _norms(root[:, None] * error) * np.sqrt(rows / count)
    return norms


def _image(block: Array, vectors: Array, *, columns: Callable[[Array], Array]) -> tuple[Array]:
    """What a block of rows adds to the sampled rows of K @ V."""
    return (columns(block).T @ vectors,)


# ----------------------------------------------------------------------------------------------- common


def _symmetric_rows(operator: Any) -> int:
    if not isinstance(operator, GramOperator):
        raise InputTypeError(
            f"the operator is a {type(operator).__name__}", 'give GramOperator(K, kernel="precomputed")'
        )
    if not operator.symmetric:
        raise InputError(
            f"the Gram matrix has shape {operator.shape}", "leave out Y, or give a square matrix"
        )
    return operator.shape[0]


def _leading(values: Array, vectors: Array, k: int) -> tuple[Array, Array]:
    """The last k of ascending eigenpairs, descending."""
    return values[: -k - 1 : -1].copy(), np.ascontiguousarray(vectors[:, : -k - 1 : -1])


def _signed(vectors: Array) -> Array:
    """Each column with the sign that makes its entry of largest magnitude (the first of equals) positive."""
    return np.ascontiguousarray(vectors * signs_upright(vectors))


def _norms(columns: Array) -> Array:
    """Norms of the columns, whatever their magnitude: squares of HAL's entries may pass the range."""
    size = np.abs(columns).max(initial=0.0)
    norms: Array = np.linalg.norm(columns / size, axis=0) * size if size else np.zeros(columns.shape[1])
    return norms
