"""Feature maps: random features of subspaces, principal components of the HAL kernel.

Each offers three maps of blocks: `row_map`, what ``transform`` returns; `stored_map`, what a store holds,
with the attributes that decode it; `decoded_map`, what a reader of such a store sees. `expected` plans them.
"""

from __future__ import annotations

import warnings
from functools import partial
from math import sqrt
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin, clone
from sklearn.utils.validation import check_is_fitted

from gramian import engine
from gramian.blocks import TARGET, ArraySpec, Grid, Plan, Step
from gramian.components import (
    Components,
    HALKernel,
    Settings,
    components_plan,
    fit_components,
    linear_map,
    refuse_too_many,
    warn_unused,
)
from gramian.engine import RowMap, spec_of
from gramian.errors import GramianWarning, InputError
from gramian.inputs import check_columns, check_rows, check_weights, refuse_lazy_frame
from gramian.kernels.rank_one import (
    FEATURE_BLOCK,
    PROBE_CACHE_BYTES,
    checked_vectors,
    feature_block,
    projections_scratch,
)
from gramian.maps import bounded_step
from gramian.streams import Stream, draw_rows, seed_of
from gramian.validation import boolean, choice, frequency, integer, subspace_dimensions, subspaces

SAMPLE = 100  # subspaces whose pairs settle the frequency, fewer where they are large
NONLINEARITIES = ("periodic", "sign", "linear")
FREQUENCIES = (1e-6, 1e6)  # where the automatic one is looked for
MOST_PROJECTIONS = 1 << 30
DIGITS = 4  # of the automatic one: what rounding of the last bits cannot change


class GrassmannianRandomFeatures(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Random features of subspaces by rank-one projections ``u_i(U) = a_i' U U' b_i``.

    Inner products of the features estimate a Grassmannian kernel, with an error of about 1/sqrt(m)
    for m projections. The probes a_i, b_i are standard normal, drawn from the seed in blocks of 256:
    more projections leave the earlier ones as they are.

    Parameters
    ----------
    n_projections : int, default 1000
        m.
    nonlinearity : {"periodic", "sign", "linear"}, default "periodic"
        "periodic": ``(cos, sin)(omega u_i) / sqrt(m)``, interleaved, 2m columns, for the periodic kernel
        ``prod_j (1 + omega^2 sin^2 theta_j)^-1``. "sign": ``sign(u_i) / sqrt(m)``, for the sign kernel.
        "linear": ``u_i / sqrt(m)``, unbounded, for the projection kernel.
    projection : {"auto", "gaussian"}, default "auto"
        How the probes are made; "auto" is Gaussian.
    omega : float or "auto", default "auto"
        Frequency of the periodic map. "auto": the median of the kernel over pairs of a seeded sample of
        subspaces is one half.
    packed : bool, default False
        Signs as bits, eight to a byte of uint8, for `gramian.kernels.hamming_kernel`.
    random_state : int, Generator, RandomState or None, default None

    Attributes
    ----------
    omega_ : float or None
        None where the map has no frequency.
    projection_ : str
    ambient_dimension_ : int
        n, which later subspaces must share; their number of columns may differ.
    n_features_in_ : int
        Numbers of one basis, n k.
    seed_ : int

    References
    ----------
    Random features for Grassmannian kernels by bounded rank-one projections, OpenReview wq18dZJ2pA;
    Delogne and Jacques (2025), arXiv 2504.21533.

    Examples
    --------
    >>> import numpy as np
    >>> from gramian import GrassmannianRandomFeatures
    >>> from gramian.kernels import periodic_kernel
    >>> U = np.linalg.qr(np.random.default_rng(0).standard_normal((20, 10, 2)))[0]
    >>> features = GrassmannianRandomFeatures(20_000, omega=1.0, random_state=0).fit_transform(U)
    >>> bool(np.abs(features @ features.T - periodic_kernel(U, omega=1.0)).max() < 0.05)
    True
    """

    def __init__(
        self,
        n_projections: int = 1000,
        *,
        nonlinearity: str = "periodic",
        projection: str = "auto",
        omega: Any = "auto",
        packed: bool = False,
        random_state: Any = None,
    ) -> None:
        self.n_projections = n_projections
        self.nonlinearity = nonlinearity
        self.projection = projection
        self.omega = omega
        self.packed = packed
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: ARG002
        """Draw the seed and, for the periodic map, settle the frequency from a sample.

        Parameters
        ----------
        X : (N, n, k) array of orthonormal bases: NumPy, Zarr or Dask
        y : ignored
        """
        self._check_parameters()
        X = engine.as_array(X)
        n_rows, n, k = _bases_shape(X)
        self.seed_ = seed_of(self.random_state)
        self.projection_ = "gaussian"
        self.ambient_dimension_ = n
        self.n_features_in_ = n * k
        self.n_projections_ = int(self.n_projections)
        sample = draw_rows(n_rows, sample_size(spec_of(X)), self.seed_, Stream.SAMPLE)
        bases = subspaces(engine.take(X, sample), "X")
        self.omega_ = self._frequency(bases) if self.nonlinearity == "periodic" else None
        return self

    def transform(self, X: Any) -> Any:
        """Features (N, m) or (N, 2m), packed (N, ceil(m / 8)): NumPy for NumPy, lazy for Zarr and Dask."""
        check_is_fitted(self)
        X = engine.as_array(X)
        _bases_shape(X)
        refuse_lazy_frame(self, X)
        return engine.apply(self.row_map(X), X)

    def row_map(self, X: Any) -> RowMap:
        """The map of blocks behind `transform`, for subspaces of the shape and type of X."""
        return self._map(X, packed=self.packed, scaled=not self.packed)

    def stored_map(self, X: Any) -> tuple[RowMap, dict[str, Any]]:
        """What a store holds, unscaled, so that projections can be added; and what decodes it."""
        bits = {"n_bits": self.n_projections_} if self.packed else {}
        return self._map(X, packed=self.packed, scaled=False), {"scale": self._scale, **bits}

    def decoded_map(self, X: Any) -> RowMap:
        """What a reader of `stored_map` sees: scaled, and signs as float32 where they are packed."""
        return self._map(X, packed=False, scaled=True, dtype=np.float32 if self.packed else None)

    def expected(self, X: ArraySpec) -> tuple[Step, ArraySpec]:
        """The step that stores the features and what a reader will see, before the fit too."""
        known = self.as_fitted(X)
        decoded = known.decoded_map(X)
        step = known.stored_map(X)[0].step("features", X)
        return step, ArraySpec(decoded.shape, decoded.dtype, tuple(grid.step for grid in decoded.grids))

    def plan(self, X: ArraySpec, y: ArraySpec | None = None) -> Plan:  # noqa: ARG002
        """What `fit` takes: the reading of the sample."""
        return Plan((sample_step("sample", spec_of(X)),))

    def as_fitted(self, X: ArraySpec) -> Self:
        """The same as if it were fitted to such subspaces: its maps can be planned, not run."""
        self._check_parameters()
        known: Self = clone(self)
        known.seed_, known.omega_, known.ambient_dimension_ = 0, 1.0, _bases_shape(X)[1]
        known.n_projections_ = int(self.n_projections)
        return known

    @property
    def _scale(self) -> float:
        return 1 / sqrt(self.n_projections_)

    @property
    def _n_features_out(self) -> int:
        if self.packed:
            return -(-self.n_projections_ // 8)
        return self.n_projections_ * (2 if self.nonlinearity == "periodic" else 1)

    def _check_parameters(self) -> None:
        integer(self.n_projections, "n_projections", high=MOST_PROJECTIONS)
        choice(self.nonlinearity, "nonlinearity", NONLINEARITIES)
        choice(self.projection, "projection", ("auto", "gaussian"))
        boolean(self.packed, "packed")
        if self.packed and self.nonlinearity != "sign":
            raise InputError(
                f"packed is True with nonlinearity {self.nonlinearity!r}", "pack signs: nonlinearity='sign'"
            )
        if not (isinstance(self.omega, str) and self.omega == "auto"):
            frequency(self.omega)

    def _frequency(self, bases: NDArray[Any]) -> float:
        """The frequency that was given, or the one that makes the median kernel of the sample one half."""
        automatic = isinstance(self.omega, str)
        if len(bases) < 2:
            if automatic:
                raise InputError("omega is 'auto' with a single subspace", "give omega or more subspaces")
            return float(self.omega)
        sines, surplus = _pairs(bases)
        omega = _half_frequency(sines, surplus) if automatic else float(self.omega)
        median, noise = _median_kernel(sines, surplus, omega), 3 / sqrt(self.n_projections)
        if median < noise:
            warnings.warn(
                f"the median kernel of two subspaces is {median:.2g} at omega {omega:.3g}, below "
                f"3/sqrt(n_projections) = {noise:.2g}: most inner products are noise; "
                "lower omega or take more projections",
                GramianWarning,
                stacklevel=3,
            )
        return omega

    def _map(self, X: Any, *, packed: bool, scaled: bool, dtype: Any = None) -> RowMap:
        spec = spec_of(X)
        if len(spec.shape) != 3 or spec.shape[1] != self.ambient_dimension_:
            raise InputError(
                f"X has shape {spec.shape}, the map was fitted in dimension {self.ambient_dimension_}",
                "give bases (N, n, k) of the same ambient dimension",
            )
        n_rows, n, k = spec.shape
        given = np.dtype(np.float32 if spec.dtype == np.float32 else np.float64)
        wide = 2 if self.nonlinearity == "periodic" else 1
        total = -(-self.n_projections_ // 8) if packed else wide * self.n_projections_
        step = FEATURE_BLOCK // 8 if packed else wide * FEATURE_BLOCK
        out = np.dtype(np.uint8) if packed else np.dtype(dtype or given)
        scratch = projections_scratch((n, k), given) + 2 * wide * FEATURE_BLOCK * given.itemsize
        function = partial(
            feature_block,
            n_projections=self.n_projections_,
            nonlinearity=self.nonlinearity,
            omega=self.omega_,
            packed=packed,
            scale=self._scale if scaled else None,
            seed=self.seed_,
            dtype=out,
        )
        probes = 2 * given.itemsize * n * FEATURE_BLOCK
        return RowMap(
            function,
            Grid.for_rows(n_rows, spec.row_bytes + step * out.itemsize + scratch),
            (total,),
            out,
            columns=Grid(total, step),
            prepare=checked_vectors,
            scratch=scratch,
            constant=min(-(-self.n_projections_ // FEATURE_BLOCK) * probes, PROBE_CACHE_BYTES) + 2 * probes,
            flops=4.0 * n_rows * n * k * self.n_projections_,
        )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.three_d_array = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _bases_shape(X: Any) -> tuple[int, int, int]:
    """(N, n, k), or the error that says what was given instead; values are checked where blocks are read."""
    shape = spec_of(X).shape
    if len(shape) != 3 or 0 in shape or shape[2] > shape[1]:
        subspaces(np.empty(shape), "X")
    return shape[0], shape[1], shape[2]


def sample_size(spec: ArraySpec) -> int:
    """Rows of a sample of subspaces: at most a block's bytes of them, where that is more than a few."""
    return min(spec.shape[0], SAMPLE, max(SAMPLE // 8, TARGET // spec.row_bytes))


def sample_step(name: str, spec: ArraySpec) -> Step:
    """What reading such a sample takes, and two copies of it."""
    count = sample_size(spec)
    driver = spec.taken_bytes(count) + 2 * count * spec.row_bytes
    return Step(name, 1, read=spec.picked_bytes(count), driver_bytes=driver)


def _pairs(bases: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Squared sines (pairs, k) of all pairs, zero where there is no angle; how far dimensions differ."""
    bases, dimensions = bases.astype(np.float64), subspace_dimensions(bases)
    i, j = np.triu_indices(len(bases), 1)
    with engine.pinned():
        rows = (np.linalg.svd(U.T @ bases[r + 1 :], compute_uv=False) for r, U in enumerate(bases[:-1]))
        cosines = np.concatenate(list(rows))
    angles = np.arange(bases.shape[2]) < np.minimum(dimensions[i], dimensions[j])[:, None]
    return np.where(angles, np.maximum(1 - cosines**2, 0), 0), np.abs(dimensions[i] - dimensions[j])


def _median_kernel(sines: NDArray[np.float64], surplus: NDArray[np.intp], omega: float) -> float:
    logs = np.log1p(omega**2 * sines).sum(axis=1) + surplus / 2 * np.log1p(omega**2)
    return float(np.median(np.exp(-logs)))


def _half_frequency(sines: NDArray[np.float64], surplus: NDArray[np.intp]) -> float:
    """The frequency at which the median periodic kernel is one half; 1, with a warning, if there is none."""

    def excess(log_omega: float) -> float:
        return _median_kernel(sines, surplus, float(np.exp(log_omega))) - 0.5

    low, high = np.log(FREQUENCIES)
    if excess(high) > 0:
        warnings.warn(
            "most pairs of subspaces are equal, so no omega makes the median kernel 0.5; omega is 1",
            GramianWarning,
            stacklevel=4,
        )
        return 1.0
    return float(f"{np.exp(brentq(excess, low, high)):.{DIGITS}g}")


class HALEstimator(BaseEstimator):
    """What all estimators on components of the HAL kernel share: its parameters, and what they learn."""

    knots_: Any
    knot_weights_: Any
    max_degree_: int | None
    landmarks_: Any

    def __init__(
        self,
        n_components: Any = "auto",
        *,
        max_degree: Any = "auto",
        n_knots: Any = "auto",
        knots: Any = "rows",
        solver: str = "auto",
        n_landmarks: Any = "auto",
        landmarks: str = "uniform",
        center: bool = True,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.max_degree = max_degree
        self.n_knots = n_knots
        self.knots = knots
        self.solver = solver
        self.n_landmarks = n_landmarks
        self.landmarks = landmarks
        self.center = center
        self.random_state = random_state

    @property
    def _kernel(self) -> HALKernel:
        """With the knots of the fit."""
        return HALKernel(self.knots_, self.knot_weights_, self.max_degree_)

    def _keep(self, components: Components, settings: Settings) -> None:
        self.knots_ = components.kernel.knots
        self.knot_weights_ = components.kernel.knot_weights
        self.max_degree_ = components.kernel.max_degree
        self.landmarks_ = components.landmarks
        self.kernel_scale_ = components.scale
        self.eigenvalues_ = components.eigenvalues
        self.explained_variance_ratio_ = components.eigenvalues / components.total
        self.n_components_ = len(components.eigenvalues)
        self.solver_ = settings.solver


class HALPrincipalComponents(ClassNamePrefixFeaturesOutMixin, TransformerMixin, HALEstimator):
    """Principal components of the highly adaptive lasso's kernel.

    The kernel counts the knots below both rows, by the sets of covariates in which they are; its
    components are those of the basis of indicators that the highly adaptive lasso uses, without
    forming it. Training rows have the scores ``U_k D_k^1/2`` of the centred kernel ``Kc = U D U'``,
    divided by the mean of its uncentred diagonal; new rows come through the centred cross-kernel.

    Parameters
    ----------
    n_components : int or "auto", default "auto"
        "auto": all with a numerically positive eigenvalue up to 4,096 rows, 512 beyond.
    max_degree : int, None or "auto", default "auto"
        Highest degree of interaction; None: all. "auto": all up to 10 covariates, 3 below 20, 2 beyond.
    n_knots : int or "auto", default "auto"
        Rows that are knots, drawn by row index; "auto": all, at most 2,048.
    knots : "rows" or array (m, d), default "rows"
        Where the knots are, when not at rows.
    solver : {"auto", "dense", "randomized", "nystroem"}, default "auto"
        "dense" forms the Gram matrix of all rows; "randomized" never does, but keeps N x k numbers;
        "nystroem" takes one pass over any number of rows. "auto": dense up to 4,096 rows, then nystroem.
    n_landmarks : int or "auto", default "auto"
        Rows whose kernel spans the components of "nystroem"; "auto": max(1024, 4 n_components), at most all.
    landmarks : "uniform", default "uniform"
        How they are drawn.
    center : bool, default True
        Whether the kernel is centred by its mean over the training rows.
    random_state : int, Generator, RandomState or None, default None
        Seed of knots, landmarks and sketches.

    Attributes
    ----------
    eigenvalues_ : (k,) ndarray
        Descending, of the centred Gram matrix over its scale.
    explained_variance_ratio_ : (k,) ndarray
        Their share of the sum of all.
    n_components_ : int
        k.
    max_degree_ : int or None
    solver_ : str
    kernel_scale_ : float
        Mean of the kernel's diagonal over the training rows.
    knots_ : (m, d) ndarray
    knot_weights_ : (m,) ndarray or None
        The weights of the rows, where all of them are knots.
    landmarks_ : (L, d) ndarray
        All training rows, for "dense" and "randomized".
    projection_ : (L, k) ndarray
    offset_ : (k,) ndarray
        ``scores(x) = (K(x, landmarks_) / kernel_scale_) @ projection_ - offset_``.
    seed_ : int
    n_features_in_ : int

    References
    ----------
    Wang, Schuler, van der Laan and García Meixide (2026), Highly adaptive principal component
    regression, arXiv 2602.10613. (What its text calls singular values are eigenvalues.)

    Examples
    --------
    >>> import numpy as np
    >>> from gramian import HALPrincipalComponents
    >>> X = np.random.default_rng(0).random((100, 2))
    >>> components = HALPrincipalComponents(n_components=3, random_state=0).fit(X)
    >>> scores = components.transform(X)
    >>> bool(np.allclose(scores.T @ scores, np.diag(components.eigenvalues_)))
    True
    """

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:  # noqa: ARG002
        """Find the components of NumPy, Zarr or Dask rows.

        Parameters
        ----------
        X : (N, d) array
        y : ignored
        sample_weight : (N,) array, optional
            An integer weight is as good as so many equal rows, where all rows are knots.
        """
        X = check_rows(self, X, minimum=2)
        n_rows, d = spec_of(X).shape
        settings = _one_of_each(Settings.of(self, n_rows, d))
        warn_unused(self, settings)
        weights = check_weights(sample_weight, n_rows)
        self.seed_ = seed_of(self.random_state)
        with engine.staged(X, weights) as (X, weights):
            components = fit_components(X, weights, settings, self.seed_)
        refuse_too_many(settings, len(components.eigenvalues))
        self._keep(components, settings)
        self.projection_, self.offset_ = components.projection, components.offset
        return self

    def transform(self, X: Any) -> Any:
        """Scores (N, k): NumPy for rows in memory, a lazy Dask array for stored ones."""
        X = check_columns(self, X)
        refuse_lazy_frame(self, X)
        return engine.apply(self.row_map(X), X)

    def row_map(self, X: Any) -> RowMap:
        """The map of blocks behind `transform`, for rows of the shape and type of X."""
        dtype = np.dtype(np.float32 if spec_of(X).dtype == np.float32 else np.float64)
        coefficients = self.projection_ / self.kernel_scale_
        return linear_map(X, self._kernel, self.landmarks_, coefficients, self.offset_, dtype)

    def stored_map(self, X: Any) -> tuple[RowMap, dict[str, Any]]:
        """What a store holds: the scores as they are."""
        return self.row_map(X), {}

    def decoded_map(self, X: Any) -> RowMap:
        """What a reader of `stored_map` sees: the scores."""
        return self.row_map(X)

    def expected(self, X: ArraySpec) -> tuple[Step, ArraySpec]:
        """The step that stores the scores and what a reader will see; before the fit an upper bound."""
        if hasattr(self, "projection_"):
            row_map = self.row_map(X)
            grids = tuple(grid.step for grid in row_map.grids)
            return row_map.step("features", X), ArraySpec(row_map.shape, row_map.dtype, grids)
        spec = ArraySpec((X.shape[0], _one_of_each(Settings.of(self, *X.shape)).limit), X.dtype)
        return bounded_step("features", X, spec.row_bytes), spec

    def plan(self, X: ArraySpec, y: ArraySpec | None = None) -> Plan:  # noqa: ARG002
        """What `fit` takes, from the shape of X alone."""
        spec = spec_of(X)
        return components_plan(spec, _one_of_each(Settings.of(self, *spec.shape)))

    @property
    def _n_features_out(self) -> int:
        return int(self.n_components_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _one_of_each(settings: Settings) -> Settings:
    several = {"max_degree": len(settings.degrees), "n_components": len(settings.n_components or (1,))}
    for name, count in several.items():
        if count > 1:
            raise InputError(
                f"{name} has {count} candidates", "give one; PCHARRegressor chooses among several"
            )
    return settings
