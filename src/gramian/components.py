"""Principal components of the HAL kernel on training rows, whichever way they are computed.

All ways end in one form: ``scores(x) = (K(x, landmarks) / scale) @ projection - offset``.

Let w be the weights of the rows (1 each where none are given), K the kernel over the mean of its
diagonal, ``Kc = (I - 1 w'/sum w) K (I - w 1'/sum w)``, and ``W^1/2 Kc W^1/2 = U D U'``. Then the
scores of the training rows are ``Z = W^-1/2 U D^1/2`` and those of x are ``Kc(x, .) W^1/2 U D^-1/2``.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gramian import engine
from gramian.blocks import ArraySpec, Grid, Plan, Step
from gramian.engine import RowMap, spec_of
from gramian.errors import GramianWarning, InputError
from gramian.gram import GramOperator
from gramian.kernels.hal import hal_diagonal, hal_kernel, hal_scratch
from gramian.moments import MomentPass, Moments, above_rounding, row_moments
from gramian.nystroem import NystroemFeatures, Rotation, leading, signs_upright
from gramian.sources import loaded
from gramian.spectral import leading_eigenpairs, plan_eigenpairs
from gramian.streams import Stream, draw_rows
from gramian.validation import (
    boolean,
    candidates,
    choice,
    integer,
    matrix,
    refuse_no_weight,
    same_columns,
    weights_block,
)

Array = NDArray[np.float64]

DENSE_ROWS = 4096  # "auto": up to here the Gram matrix is formed
MANY_COMPONENTS = 512  # "auto": beyond it
MANY_KNOTS = 2048
MANY_LANDMARKS = 1024
LARGEST_DENSE = 1 << 15  # rows: 8 GiB a copy of the Gram matrix
LARGEST_VECTORS = 1 << 30  # bytes of N x (d + k) that a randomized model may keep
SAMPLE = 512  # rows whose kernel tells whether it is close to the identity
COSINE = 1e-3  # typical off-diagonal cosine below which nothing generalises


# ----------------------------------------------------------------------------------- what is asked for


@dataclass(frozen=True)
class Settings:
    """The parameters of an estimator, settled for N rows of d covariates.

    Parameters
    ----------
    n_rows, n_columns : int
    degrees : tuple
        Candidates for the highest degree of interaction; None: all.
    n_components : tuple of int, or None
        Candidates in ascending order; None: all that are positive, up to `limit`.
    limit : int
        The most components that are computed.
    most : int
        The most that there can be.
    solver : "dense", "randomized" or "nystroem"
    knots : (m, d) array or None
        Where they are given.
    n_knots, n_landmarks : int
    center : bool
    """

    n_rows: int
    n_columns: int
    degrees: tuple[int | None, ...]
    n_components: tuple[int, ...] | None
    limit: int
    most: int
    solver: str
    knots: Array | None
    n_knots: int
    n_landmarks: int
    center: bool

    @classmethod
    def of(cls, estimator: Any, n_rows: int, n_columns: int) -> Settings:
        """Check the parameters and replace each "auto" by its rule."""
        solver = choice(estimator.solver, "solver", ("auto", "dense", "randomized", "nystroem"))
        if solver == "auto":
            solver = "dense" if n_rows <= DENSE_ROWS else "nystroem"
        choice(estimator.landmarks, "landmarks", ("uniform",))
        center = boolean(estimator.center, "center")
        knots = _given_knots(estimator.knots, n_columns)
        if knots is not None:
            n_knots = len(knots)
            _count(estimator.n_knots, "n_knots", 0, sys.maxsize)
        else:
            n_knots = _count(estimator.n_knots, "n_knots", min(n_rows, MANY_KNOTS), n_rows)
        several = candidates(estimator.n_components, "n_components", integer)
        several = None if several is None else tuple(sorted(set(several)))
        wanted = several[-1] if several else (n_rows if n_rows <= DENSE_ROWS else MANY_COMPONENTS)
        n_landmarks = n_rows
        if solver == "nystroem":
            usual = min(n_rows, max(MANY_LANDMARKS, 4 * wanted))
            n_landmarks = _count(estimator.n_landmarks, "n_landmarks", usual, n_rows)
        else:
            _count(estimator.n_landmarks, "n_landmarks", 0, sys.maxsize)
        most = min(n_landmarks, n_rows - center)
        if several and several[-1] > most:
            raise InputError(
                f"n_components is {several[-1]}, {n_rows} rows, {n_landmarks} landmarks have at most {most}",
                f"give at most {most}, or 'auto'",
            )
        return cls(
            n_rows,
            n_columns,
            _degrees(estimator.max_degree, n_columns),
            several,
            min(most, wanted),
            most,
            solver,
            knots,
            n_knots,
            n_landmarks,
            center,
        )

    def of_fold(self, n_rows: int) -> Settings:
        """The same for fewer rows."""
        return replace(
            self, n_rows=n_rows, n_knots=min(self.n_knots, n_rows) if self.knots is None else self.n_knots
        )


def warn_unused(estimator: Any, settings: Settings) -> None:
    """Warn of a parameter that was set and plays no part beside the others."""
    reasons = {}
    if settings.solver != "nystroem":
        how = " (by 'auto')" if estimator.solver == "auto" else ""
        reasons["n_landmarks"] = f"the solver is {settings.solver!r}{how}; set 'nystroem' or leave it out"
    if settings.knots is not None:
        reasons["n_knots"] = "the knots are given; leave it out"
    for name, reason in reasons.items():
        value = getattr(estimator, name)
        if not isinstance(value, str):
            warnings.warn(f"{name} = {value} has no effect, {reason}", GramianWarning, stacklevel=3)


def _degrees(value: Any, n_columns: int) -> tuple[int | None, ...]:
    """Ascending, with None last."""
    usual = None if n_columns <= 10 else 3 if n_columns < 20 else 2
    given = candidates(value, "max_degree", lambda v, name: None if v is None else integer(v, name))
    found = {None if degree is None or degree >= n_columns else degree for degree in given or (usual,)}
    return tuple(sorted(found, key=lambda degree: degree or n_columns))


def _count(value: Any, name: str, usual: int, n_rows: int) -> int:
    if isinstance(value, str) and value == "auto":
        return usual
    count = integer(value, name)
    if count > n_rows:
        raise InputError(f"{name} is {count} for {n_rows} rows", f"give at most {n_rows}, or 'auto'")
    return count


def _given_knots(value: Any, n_columns: int) -> Array | None:
    if isinstance(value, str):
        if value != "rows":
            raise InputError(f"knots is {value!r}", "give 'rows' or an array (m, d)")
        return None
    return matrix(value, "knots", columns=n_columns)


def components_plan(
    spec: ArraySpec,
    settings: Settings,
    *,
    n_targets: int = 0,
    n_parts: int = 1,
    n_fits: int = 1,
    beside: int = 0,
) -> Plan:
    """What computing the components takes, from shapes alone.

    Parameters
    ----------
    spec : ArraySpec of the rows
    settings : Settings
    n_targets, n_parts : int
        Targets and parts of the rows that go through the one pass of "nystroem".
    n_fits : int
        Decompositions: of all rows, and of the training rows of each split.
    beside : int
        Bytes that the driver holds all the while.
    """
    n, d = settings.n_rows, settings.n_columns
    kernel = HALKernel(np.broadcast_to(np.float64(0), (settings.n_knots, d)), None, settings.degrees[0])
    square = 8 * settings.n_landmarks**2
    if settings.solver == "nystroem":
        figures = landmark_pass(spec, kernel, settings, n_targets, n_parts)
        flops = n * (kernel.flops(settings.n_landmarks) + 3.0 * _width(settings, n_targets) ** 2)
        drawn = (settings.n_landmarks, settings.n_knots)
        steps = [
            Step(
                "landmarks",
                tasks=1,
                read=sum(spec.picked_bytes(count) for count in drawn),
                flops=9.0 * settings.n_landmarks**3,
                driver_bytes=5 * square + max(spec.taken_bytes(count) for count in drawn) + 8 * n,
            )
        ]
        for degree in settings.degrees:
            step = figures.step(gram_name(settings, degree), spec, flops=flops)
            solve = (n_parts + 5) * figures.result // n_parts
            steps.append(replace(step, driver_bytes=max(step.driver_bytes, solve)))
        return Plan(tuple(steps)).holding(beside)
    count = n_fits * len(settings.degrees)
    if settings.solver == "dense":
        flops = count * (n * kernel.flops(n) + 9.0 * n**3)
        return Plan(
            (
                Step(
                    "components",
                    tasks=count,
                    read=spec.nbytes,
                    flops=flops,
                    driver_bytes=5 * square + spec.nbytes,
                ),
            )
        )
    operator = GramOperator(spec, kernel="hal", knots=kernel.knots, max_degree=kernel.max_degree)
    return Plan(count * plan_eigenpairs(operator, settings.limit, solver="randomized").steps)


def gram_name(settings: Settings, degree: int | None) -> str:
    """Name of the one pass in the records of a run; with several degrees there is one of each."""
    return "gram" if len(settings.degrees) == 1 else f"gram-degree-{'all' if degree is None else degree}"


# --------------------------------------------------------------------------------------- the kernel


@dataclass(frozen=True, eq=False)
class HALKernel:
    """The HAL kernel with its knots.

    Parameters
    ----------
    knots : (m, d) array
    knot_weights : (m,) float64, optional
    max_degree : int, optional
    """

    knots: NDArray[Any]
    knot_weights: Array | None
    max_degree: int | None

    def block(self, X: NDArray[Any], Y: NDArray[Any] | None = None) -> Array:
        """Kernel of rows X (n, d) with rows Y (p, d), or with themselves."""
        return hal_kernel(X, Y, knots=self.knots, knot_weights=self.knot_weights, max_degree=self.max_degree)

    def diagonal(self, X: NDArray[Any]) -> Array:
        """Kernel of each row with itself: (n,)."""
        return hal_diagonal(X, knots=self.knots, knot_weights=self.knot_weights, max_degree=self.max_degree)

    def scratch(self, n_landmarks: int) -> int:
        """Bytes a row of a block of kernel values with so many landmarks."""
        shape = self.knots.shape[1:]
        return (
            hal_scratch(shape, self.knots.dtype, knots=self.knots, knot_weights=self.knot_weights)
            + 8 * n_landmarks
        )

    def flops(self, n_landmarks: int) -> float:
        """Operations of a row with so many landmarks."""
        return float(self.knots.size) * n_landmarks


def draw_knots(X: Any, weights: Any, settings: Settings, max_degree: int | None, seed: int) -> HALKernel:
    """The kernel whose knots are those given, all rows (then weighted as they are), or some of them."""
    if settings.knots is not None:
        return HALKernel(settings.knots, None, max_degree)
    indices = draw_rows(settings.n_rows, settings.n_knots, seed, Stream.KNOTS)
    knots = matrix(engine.take(X, indices), "X")
    every = settings.n_knots >= settings.n_rows
    knot_weights = weights_block(engine.take(weights, indices)) if every and weights is not None else None
    if knot_weights is not None:
        refuse_no_weight(knot_weights.sum())
    return HALKernel(knots, knot_weights, max_degree)


def warn_of_kernel(kernel: HALKernel, rows: NDArray[Any]) -> None:
    """Warn of constant covariates, and of a kernel that is close to a diagonal matrix."""
    constant = np.flatnonzero((rows == rows[0]).all(axis=0)) if len(rows) > 1 else np.empty(0)
    if len(constant):
        warnings.warn(
            f"{len(constant)} of {rows.shape[1]} covariates are constant, the first is column {constant[0]}; "
            "drop them",
            GramianWarning,
            stacklevel=4,
        )
    sample = rows[:: -(-len(rows) // SAMPLE)]
    K = kernel.block(sample)
    root = np.sqrt(np.diagonal(K))
    pairs = np.triu_indices(len(K), 1)
    norms = (root[:, None] * root)[pairs]
    if (norms > 0).any():
        cosine = float(np.median(K[pairs][norms > 0] / norms[norms > 0]))
        if cosine < COSINE:
            degree = "all" if kernel.max_degree is None else kernel.max_degree
            warnings.warn(
                f"the kernel of {rows.shape[1]} covariates and max_degree={degree} is close to the identity, "
                f"its typical off-diagonal cosine is {cosine:.1g}; give a smaller max_degree",
                GramianWarning,
                stacklevel=4,
            )


def loaded_rows(X: Any, settings: Settings) -> NDArray[Any]:
    """All rows in memory, for "dense" and "randomized"; refused where what they keep would be too large.

    Raises
    ------
    InputError
        Above 32,768 rows for "dense"; above 1 GiB of N x (d + k) numbers for "randomized".
    """
    n, size = settings.n_rows, 8 * settings.n_rows * (settings.n_columns + settings.limit)
    if settings.solver == "dense" and n > LARGEST_DENSE:
        raise InputError(f"solver='dense' would form a {n} x {n} matrix", "give solver='nystroem'")
    if settings.solver == "randomized" and size > LARGEST_VECTORS:
        raise InputError(
            f"solver='randomized' would keep {size >> 20} MiB, {n} rows of {settings.n_columns} covariates "
            f"and {settings.limit} components",
            "give solver='nystroem', or fewer components",
        )
    return matrix(engine.take(X, np.arange(n)), "X")


def refuse_too_many(settings: Settings, rank: int) -> None:
    """A single number of components is kept as it is asked for, or not at all."""
    if not rank:
        raise InputError("the kernel has no positive eigenvalue: all rows are alike", "give rows that differ")
    several = settings.n_components
    if several is not None and len(several) == 1 and several[0] > rank:
        raise InputError(
            f"n_components is {several[0]}, the kernel has {rank} positive eigenvalues",
            f"give at most {rank}, or 'auto'",
        )


# ------------------------------------------------------------------------------------ the components


@dataclass(frozen=True, eq=False)
class Components:
    """``scores(x) = (K(x, landmarks) / scale) @ projection - offset``.

    Parameters
    ----------
    kernel : HALKernel
    landmarks : (L, d) array
    scale : float
        Mean of the kernel's diagonal over the training rows.
    eigenvalues : (k,) float64
        Descending.
    total : float
        Sum of all eigenvalues.
    projection : (L, k) float64
    offset : (k,) float64
    """

    kernel: HALKernel
    landmarks: NDArray[Any]
    scale: float
    eigenvalues: Array
    total: float
    projection: Array
    offset: Array

    def first(self, count: int) -> Components:
        """The leading ones alone."""
        return replace(
            self,
            eigenvalues=self.eigenvalues[:count],
            projection=self.projection[:, :count],
            offset=self.offset[:count],
        )

    def scores(self, rows: NDArray[Any]) -> Array:
        """Of rows (n, d) that are at hand: (n, k)."""
        return _score_rows(
            rows,
            kernel=self.kernel,
            landmarks=self.landmarks,
            projection=self.projection / self.scale,
            offset=self.offset,
        )


def _score_rows(
    rows: NDArray[Any],
    *,
    kernel: HALKernel,
    landmarks: NDArray[Any],
    projection: Array,
    offset: Array | float,
) -> Array:
    values = kernel.block(rows, landmarks) @ projection
    values -= offset
    return values


def _typed_rows(
    rows: NDArray[Any], *, score: Callable[[NDArray[Any]], Array], dtype: np.dtype[Any]
) -> NDArray[Any]:
    return score(rows).astype(dtype, copy=False)


def linear_map(
    X: Any,
    kernel: HALKernel,
    landmarks: NDArray[Any],
    coefficients: Array,
    constant: Array | float,
    dtype: np.dtype[Any],
) -> RowMap:
    """The map ``K(x, landmarks) @ coefficients - constant`` of rows of the shape and type of X."""
    spec = spec_of(X)
    same_columns(spec.shape, landmarks.shape[1])
    tail = coefficients.shape[1:]
    width = coefficients.size // len(coefficients)
    scratch = kernel.scratch(len(landmarks)) + 8 * width
    score = partial(_score_rows, kernel=kernel, landmarks=landmarks, projection=coefficients, offset=constant)
    return RowMap(
        partial(_typed_rows, score=score, dtype=dtype),
        Grid.for_rows(spec.shape[0], spec.row_bytes + scratch + dtype.itemsize * width),
        tail,
        dtype,
        scratch=scratch,
        constant=landmarks.nbytes + coefficients.nbytes + kernel.knots.nbytes,
        flops=spec.shape[0] * (kernel.flops(len(landmarks)) + 2.0 * coefficients.size),
    )


# ------------------------------------------------------------------- from the Gram matrix of all rows


def dense_components(
    kernel: HALKernel, rows: NDArray[Any], weights: Array | None, n_components: int, center: bool
) -> Components:
    """By an eigendecomposition of the Gram matrix: n^2 memory, n^3 operations.

    Parameters
    ----------
    kernel : HALKernel
    rows : (n, d) array
    weights : (n,) float64, optional
    n_components : int
        The most to keep.
    center : bool
    """
    n = len(rows)
    weights = np.ones(n) if weights is None else weights
    K = kernel.block(rows)
    scale = _positive_scale(float(np.average(np.diagonal(K), weights=weights)))
    K /= scale
    means = K @ weights / weights.sum() if center else np.zeros(n)
    if center:
        K -= means
        K -= means[:, None]
        K += weights @ means / weights.sum()
    root = np.sqrt(weights)
    K *= root
    K *= root[:, None]
    total = float(np.trace(K))
    values, vectors = leading(K, n_components)
    del K  # as large as each of the arrays that follow
    return _from_vectors(kernel, rows, scale, values, total, vectors, root, means, center)


def randomized_components(
    kernel: HALKernel,
    rows: NDArray[Any],
    weights: Array | None,
    n_components: int,
    center: bool,
    seed: int,
    block: int,
) -> Components:
    """By a randomized method on tiles of the Gram matrix, which is never formed: N x (d + k) memory."""
    operator = GramOperator(
        rows,
        kernel="hal",
        center=center,
        scale="mean_diagonal",
        sample_weight=weights,
        knots=kernel.knots,
        knot_weights=kernel.knot_weights,
        max_degree=kernel.max_degree,
    )
    degree = "all" if kernel.max_degree is None else kernel.max_degree
    name = f"eigenpairs-degree-{degree}-{block}"
    pairs = leading_eigenpairs(operator, n_components, solver="randomized", random_state=seed, name=name)
    kept = int(above_rounding(pairs.values, len(rows)).sum())
    root = np.ones(len(rows)) if weights is None else np.sqrt(weights)
    means = operator.means if center else np.zeros(len(rows))
    vectors = pairs.vectors[:, :kept]
    return _from_vectors(
        kernel, rows, operator.scale, pairs.values[:kept], operator.trace(), vectors, root, means, center
    )


def _from_vectors(
    kernel: HALKernel,
    rows: NDArray[Any],
    scale: float,
    values: Array,
    total: float,
    vectors: Array,
    root: Array,
    means: Array,
    center: bool,
) -> Components:
    """U and D to the common form; the landmarks are the training rows."""
    mean = root @ vectors / (root @ root) if center else np.zeros(len(values))
    projection = vectors - np.outer(root, mean)  # to the last digit: small eigenvalues amplify what is left
    scores = np.divide(projection, root[:, None], out=np.zeros_like(projection), where=root[:, None] > 0)
    projection *= signs_upright(scores)
    projection *= root[:, None]
    projection /= np.sqrt(values)
    return Components(kernel, rows, scale, values, total, projection, means @ projection)


def _positive_scale(scale: float) -> float:
    if not scale > 0:
        raise InputError("no row is above any knot in any covariate", "give knots below some of the rows")
    return scale


# ------------------------------------------------------------------------ from landmarks and one pass


def _width(settings: Settings, n_targets: int) -> int:
    """Columns (1, features, targets, diagonal) of the one pass."""
    return settings.n_landmarks + n_targets + 2


def landmark_pass(
    spec: ArraySpec, kernel: HALKernel, settings: Settings, n_targets: int, n_parts: int
) -> MomentPass:
    """What the one pass takes."""
    scratch = kernel.scratch(settings.n_landmarks)
    return MomentPass.over(spec, _width(settings, n_targets), n_parts, scratch)


class LandmarkMoments:
    """One pass over rows anywhere: moments of their Nyström features over each part of them.

    The last target is the kernel's own diagonal over the features' `unit`, whose mean is the scale.

    Parameters
    ----------
    kernel : HALKernel
    landmarks : (L, d) array
    settings : Settings
    X : array of N rows
    target : (N,) or (N, t) array, optional
    weights : (N,) array, optional
    parts : as `gramian.moments.part_grams` takes them
    n_parts : int
    """

    def __init__(
        self,
        kernel: HALKernel,
        landmarks: NDArray[Any],
        settings: Settings,
        X: Any,
        *,
        target: Any = None,
        weights: Any = None,
        parts: NDArray[Any] | None = None,
        n_parts: int = 1,
    ) -> None:
        self._kernel, self._landmarks, self._settings = kernel, landmarks, settings
        with engine.pinned():
            corner = kernel.block(landmarks)
            unit = _positive_scale(float(np.diagonal(corner).mean()))
            self._features = NystroemFeatures.of(partial(kernel.block, Y=landmarks), corner, unit=unit)
        shape = (0, 0) if target is None else (*spec_of(target).shape, 1)
        self.n_targets = shape[1]
        self.parts = row_moments(
            self._features,
            X,
            landmark_pass(spec_of(X), kernel, settings, self.n_targets, n_parts),
            target=target,
            diagonal=partial(_relative_diagonal, kernel=kernel, unit=unit),
            weights=weights,
            parts=parts,
            n_parts=n_parts,
            name=gram_name(settings, kernel.max_degree),
        )

    def rotation(self, moments: Moments) -> Rotation:
        """Principal axes of rows with these moments."""
        ratio = _positive_scale(float(moments.target_mean[-1]))
        return Rotation.of(moments, self._settings.limit, center=self._settings.center, ratio=ratio)

    def components(self, moments: Moments) -> tuple[Components, Rotation]:
        """The common form, for rows with these moments, and the rotation that it is made of."""
        rotation = self.rotation(moments).upright(self._features, self._landmarks)
        scale = self._features.unit * rotation.ratio
        total = moments.weight * (1.0 - float(rotation.mean @ rotation.mean) / rotation.ratio)
        found = rotation.coefficients(self._features)
        return Components(self._kernel, self._landmarks, scale, rotation.eigenvalues, total, *found), rotation


def _relative_diagonal(rows: NDArray[Any], *, kernel: HALKernel, unit: float) -> Array:
    return kernel.diagonal(rows) / unit


# --------------------------------------------------------------------------------------------- the fit


def draw_landmarks(X: Any, settings: Settings, seed: int) -> NDArray[Any]:
    """Rows drawn by their index alone: (L, d)."""
    return matrix(
        engine.take(X, draw_rows(settings.n_rows, settings.n_landmarks, seed, Stream.LANDMARKS)), "X"
    )


def matrix_components(
    kernel: HALKernel,
    rows: NDArray[Any],
    weights: Array | None,
    settings: Settings,
    n_components: int,
    seed: int,
    block: int = 0,
) -> Components:
    """From rows that are at hand, dense or randomized; ``block`` tells apart the fits of one estimator."""
    if settings.solver == "randomized":
        return randomized_components(kernel, rows, weights, n_components, settings.center, seed, block)
    with engine.pinned():
        return dense_components(kernel, rows, weights, n_components, settings.center)


def fit_components(X: Any, weights: Any, settings: Settings, seed: int) -> Components:
    """The components of rows that can be read several times."""
    kernel = draw_knots(X, weights, settings, settings.degrees[0], seed)
    if settings.solver != "nystroem":
        rows = loaded_rows(X, settings)
        warn_of_kernel(kernel, rows)
        if weights is not None:
            weights = weights_block(loaded(weights))
            refuse_no_weight(weights.sum())
        return matrix_components(kernel, rows, weights, settings, settings.limit, seed)
    landmarks = draw_landmarks(X, settings, seed)
    warn_of_kernel(kernel, landmarks)
    found = LandmarkMoments(kernel, landmarks, settings, X, weights=weights)
    with engine.pinned():
        refuse_no_weight(found.parts[0].weight)
        return found.components(found.parts[0])[0]
