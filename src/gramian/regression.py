"""Regression on principal components of the HAL kernel: closed forms on its scores, alpha by honest folds.

Each fold has knots, centring, scale and eigenvectors of its own training rows ("dense", "randomized"),
or knots and landmarks that were drawn by row index alone ("nystroem"), where one pass over the data
leaves all that the folds need.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import MultiOutputMixin, RegressorMixin

from gramian import engine
from gramian.blocks import ArraySpec, Plan
from gramian.components import (
    Components,
    HALKernel,
    LandmarkMoments,
    Settings,
    components_plan,
    draw_knots,
    draw_landmarks,
    linear_map,
    loaded_rows,
    matrix_components,
    refuse_too_many,
    warn_of_kernel,
    warn_unused,
)
from gramian.engine import RowMap, spec_of
from gramian.features import HALEstimator
from gramian.inputs import check_columns, check_rows_and_target, check_side, check_weights
from gramian.moments import Moments
from gramian.nystroem import Rotation
from gramian.selection import (
    FoldMoments,
    Folds,
    check_choices,
    choose,
    count_parts,
    folds_bytes,
    make_folds,
    refuse_constant,
    refuse_empty,
    relative_scores,
    variances,
    warn_edge,
)
from gramian.sources import loaded
from gramian.streams import seed_of
from gramian.validation import candidates, positive, refuse_no_weight, target_block, weights_block

Array = NDArray[np.float64]

RIDGE_GRID = np.logspace(2, -8, 41)  # n * alpha of PCHAR, on the scale of a kernel with unit mean diagonal
LASSO_GRID = np.logspace(0, -6, 31)  # n * alpha of PCHAL, times the largest |z_j'y|


# ------------------------------------------------------------------------------------- closed forms


def ridge_path(eigenvalues: Array, cross: Array, penalties: Array) -> Array:
    """Minimisers of ``||y - Z b||^2 + n alpha ||b||^2`` for scores with ``Z'Z = D``.

    Parameters
    ----------
    eigenvalues : (k,) float64
        The diagonal of D.
    cross : (k, t) float64
        ``Z'y`` of the centred targets.
    penalties : (a,) float64
        ``n alpha``.

    Returns
    -------
    (k, a, t) float64
        ``(D + n alpha I)^-1 Z'y``.
    """
    return np.asarray(cross[:, None] / (eigenvalues[:, None] + penalties)[:, :, None])


def lasso_path(eigenvalues: Array, cross: Array, penalties: Array) -> Array:
    """Minimisers of ``||y - Z b||^2 / 2 + n alpha ||b||_1``, as `ridge_path`: soft thresholds over D."""
    kept = np.maximum(np.abs(cross)[:, None] - penalties[:, None], 0.0)
    return np.asarray(np.sign(cross)[:, None] * kept / eigenvalues[:, None, None])


def truncated(coefficients: Array, counts: tuple[int, ...]) -> Array:
    """The path with only the first components, for each count: (k, a, t) to (k, counts * a, t)."""
    index = np.arange(len(coefficients))[:, None, None]
    return np.concatenate([np.where(index < count, coefficients, 0.0) for count in counts], axis=1)


# ------------------------------------------------------------------- what the closed forms are put on


@dataclass(frozen=True, eq=False)
class Fit:
    """Scores of training rows, reduced to what closed forms need.

    Parameters
    ----------
    eigenvalues : (k,) float64
    cross : (k, t) float64
        Weighted products of scores and centred targets.
    weight : float
        Sum of the weights of the rows: n.
    target_mean : (t,) float64
        0 where the model has no intercept.
    components : Components, optional
        For predictions; only of all rows.
    errors : callable, optional
        ``errors(coefficients (k, a, t)) -> (a, t)``, weighted sums of squared errors on the test rows.
    test_weight : float
    """

    eigenvalues: Array
    cross: Array
    weight: float
    target_mean: Array
    components: Components | None = None
    errors: Callable[[Array], Array] | None = None
    test_weight: float = 0.0


class _Problem(Protocol):
    """Rows, target and weights, reduced to closed forms: for all rows, and for each split."""

    @property
    def variance(self) -> Array: ...

    def full(self) -> Fit: ...

    def split(self, f: int) -> Fit: ...


class _Rows:
    """Training rows in memory: components of all of them, and of the training rows of each split."""

    def __init__(
        self,
        X: Any,
        y: Any,
        weights: Any,
        settings: Settings,
        degree: int | None,
        seed: int,
        folds: Folds | None,
    ) -> None:
        self._settings, self._degree, self._seed, self._folds = settings, degree, seed, folds
        self._rows = loaded_rows(X, settings)
        self._target = target_block(loaded(y))
        self._weights = np.ones(len(self._rows)) if weights is None else weights_block(loaded(weights))
        refuse_no_weight(self._weights.sum())
        self._weighted = weights is not None
        warn_of_kernel(self._kernel(np.arange(len(self._rows)), settings), self._rows)

    @property
    def variance(self) -> Array:
        """Of each target: (t,)."""
        mean = np.average(self._target, axis=0, weights=self._weights)
        return variances(self._weights @ (self._target - mean) ** 2, float(self._weights.sum()), mean)

    def full(self) -> Fit:
        """To all rows."""
        return self._fit(np.arange(len(self._rows)), self._settings, 0)

    def split(self, f: int) -> Fit:
        """To the training rows of a split, with errors on its test rows."""
        assert self._folds is not None
        train, test = self._folds.rows(self._folds.train[f]), self._folds.rows(self._folds.test[f])
        refuse_empty(f, self._weights[train].sum(), self._weights[test].sum())
        fit = self._fit(train, self._settings.of_fold(len(train)), f + 1)
        assert fit.components is not None
        weights, scores = self._weights[test], fit.components.scores(self._rows[test])
        errors = partial(
            _row_errors, scores=scores, residual=self._target[test] - fit.target_mean, weights=weights
        )
        return replace(fit, components=None, errors=errors, test_weight=float(weights.sum()))

    def _kernel(self, index: NDArray[np.intp], settings: Settings) -> HALKernel:
        weights = self._weights[index] if self._weighted else None
        return draw_knots(self._rows[index], weights, settings, self._degree, self._seed)

    def _fit(self, index: NDArray[np.intp], settings: Settings, block: int) -> Fit:
        rows, target, weights = self._rows[index], self._target[index], self._weights[index]
        kernel = self._kernel(index, settings)
        limit = min(settings.limit, len(rows) - settings.center)
        components = matrix_components(
            kernel, rows, weights if self._weighted else None, settings, limit, self._seed, block
        )
        mean = np.average(target, axis=0, weights=weights) if settings.center else np.zeros(target.shape[1])
        # the projection is W^1/2 U D^-1/2 and the scores are W^-1/2 U D^1/2
        cross = components.eigenvalues[:, None] * (components.projection.T @ (target - mean))
        return Fit(components.eigenvalues, cross, float(weights.sum()), mean, components)


def _row_errors(coefficients: Array, *, scores: Array, residual: Array, weights: Array) -> Array:
    """Weighted sums of squared errors of rows at hand: coefficients (k, a, t) to (a, t)."""
    k, a, t = coefficients.shape
    predicted = (scores @ coefficients.reshape(k, a * t)).reshape(-1, a, t)
    return np.asarray(np.einsum("n,nat->at", weights, (residual[:, None] - predicted) ** 2))


class _Moments:
    """Rows anywhere: one pass leaves the moments of landmark features over each part of them."""

    def __init__(
        self,
        X: Any,
        y: Any,
        weights: Any,
        settings: Settings,
        degree: int | None,
        seed: int,
        folds: Folds | None,
    ) -> None:
        self._center = settings.center
        kernel = draw_knots(X, weights, settings, degree, seed)
        landmarks = draw_landmarks(X, settings, seed)
        warn_of_kernel(kernel, landmarks)
        parts, n_parts = (None, 1) if folds is None else (folds.parts, folds.n_parts)
        self._pass = LandmarkMoments(
            kernel, landmarks, settings, X, target=y, weights=weights, parts=parts, n_parts=n_parts
        )
        self._moments = FoldMoments(self._pass.parts, folds)
        refuse_no_weight(self._moments.everything.weight)

    @property
    def variance(self) -> Array:
        """Of each target: (t,)."""
        return self._moments.variance(self._pass.n_targets)

    def full(self) -> Fit:
        """To all rows."""
        moments = self._moments.everything
        components, rotation = self._pass.components(moments)
        fit, _ = self._fit(rotation, moments)
        return replace(fit, components=components)

    def split(self, f: int) -> Fit:
        """To the training rows of a split, with errors on its test rows."""
        train, test = self._moments.split(f)
        rotation = self._pass.rotation(train)
        fit, centre = self._fit(rotation, train)
        scored = rotation.scored(test, self._pass.n_targets)
        return replace(fit, errors=partial(scored.squared_errors, centre=centre), test_weight=test.weight)

    def _fit(self, rotation: Rotation, moments: Moments) -> tuple[Fit, Array]:
        scored = rotation.scored(moments, self._pass.n_targets).about_mean(self._center)
        return Fit(rotation.eigenvalues, scored.cross, moments.weight, scored.target_mean), scored.mean


# ------------------------------------------------------------------------------------- the estimators


class _ComponentRegressor(MultiOutputMixin, RegressorMixin, HALEstimator):
    """Linear regression on the principal components of the HAL kernel; the penalty is the subclass's."""

    coef_: Any
    dual_coef_: Any
    intercept_: Any

    def __init__(
        self,
        alpha: Any = "auto",
        *,
        n_components: Any = "auto",
        max_degree: Any = "auto",
        n_knots: Any = "auto",
        knots: Any = "rows",
        solver: str = "auto",
        n_landmarks: Any = "auto",
        landmarks: str = "uniform",
        center: bool = True,
        cv: Any = 5,
        selection: str = "best",
        random_state: Any = None,
    ) -> None:
        super().__init__(
            n_components,
            max_degree=max_degree,
            n_knots=n_knots,
            knots=knots,
            solver=solver,
            n_landmarks=n_landmarks,
            landmarks=landmarks,
            center=center,
            random_state=random_state,
        )
        self.alpha = alpha
        self.cv = cv
        self.selection = selection

    @staticmethod
    @abstractmethod
    def _path(eigenvalues: Array, cross: Array, penalties: Array) -> Array:
        """Coefficients (k, a, t) for each penalty n * alpha."""

    @staticmethod
    @abstractmethod
    def _penalties(fits: list[Fit]) -> Array:
        """The automatic grid of n * alpha, descending, for fits to all rows, one for each degree."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> Self:
        """Fit to NumPy, Zarr or Dask rows.

        Parameters
        ----------
        X : (N, d) array
        y : (N,) or (N, t) array
        sample_weight : (N,) array, optional
            An integer weight is as good as so many equal rows, where all rows are knots.
        groups : (N,) array, optional
            Rows of one group stay on one side of every split.
        """
        X, y = check_rows_and_target(self, X, y)
        n_rows, d = spec_of(X).shape
        single = len(spec_of(y).shape) == 1
        settings = Settings.of(self, n_rows, d)
        alphas = candidates(self.alpha, "alpha", positive)
        check_choices(self.cv, self.selection)
        warn_unused(self, settings)
        weights = check_weights(sample_weight, n_rows)
        self.seed_ = seed_of(self.random_state)
        folds = None
        if _is_searched(settings, alphas):
            groups = loaded(check_side(groups, n_rows, "groups"))
            folds = make_folds(self.cv, n_rows, seed=self.seed_, target=y, groups=groups)
        with engine.staged(X, y, weights) as (X, y, weights):
            make = _Moments if settings.solver == "nystroem" else _Rows
            problems: list[_Problem] = [
                make(X, y, weights, settings, degree, self.seed_, folds) for degree in settings.degrees
            ]
            sources = [array for array in (X, y, weights) if array is not None]
            with engine.pinned():
                self._choose(problems, settings, alphas, folds, sources)
        if single:
            self.coef_, self.dual_coef_ = self.coef_[0], self.dual_coef_[:, 0]
            self.intercept_ = float(self.intercept_[0])
        return self

    def _choose(
        self,
        problems: list[_Problem],
        settings: Settings,
        alphas: tuple[float, ...] | None,
        folds: Folds | None,
        sources: list[Any],
    ) -> None:
        fits = [problem.full() for problem in problems]
        refuse_too_many(settings, max(len(fit.eigenvalues) for fit in fits))
        weight = fits[0].weight
        grid = (
            self._penalties(fits) / weight if alphas is None else np.array(sorted(set(alphas), reverse=True))
        )
        counts = settings.n_components or (settings.limit,)
        index, self.cv_results_ = 0, None
        if folds is not None:
            key = (type(self).__name__, settings, self.seed_, folds, grid, counts)
            scores = self._scores(problems, len(folds), grid, counts, key, sources)
            choice = choose(_params(settings, counts, grid), scores, self.selection)
            index, self.cv_results_ = choice.index, choice.results
        degree, count, alpha = np.unravel_index(index, (len(problems), len(counts), len(grid)))
        if folds is not None:
            self._warn_edges(settings, int(degree), counts, int(count), grid, int(alpha))
        self._settle(fits[degree], settings, counts[count], float(grid[alpha]))

    def _scores(
        self,
        problems: list[_Problem],
        n_splits: int,
        grid: Array,
        counts: tuple[int, ...],
        key: tuple[Any, ...],
        sources: list[Any],
    ) -> Array:
        """(splits, candidates), candidates by degree and count ascending, then alpha descending."""
        variance = problems[0].variance
        refuse_constant(variance)

        def scores(problem: _Problem, f: int) -> Array:
            fit = problem.split(f)
            assert fit.errors is not None
            path = truncated(self._path(fit.eigenvalues, fit.cross, grid * fit.weight), counts)
            return relative_scores(fit.errors(path), fit.test_weight, variance)

        every = [partial(scores, problem, f) for f in range(n_splits) for problem in problems]
        return np.reshape(engine.remember_each("folds", key, sources, every), (n_splits, -1))

    def _settle(self, fit: Fit, settings: Settings, count: int, alpha: float) -> None:
        """The learned attributes of a fit to all rows."""
        assert fit.components is not None
        components = fit.components.first(count)
        coefficients = self._path(fit.eigenvalues[:count], fit.cross[:count], np.array([alpha * fit.weight]))[
            :, 0
        ]
        self._keep(components, settings)
        self.alpha_ = alpha
        self.coef_ = coefficients.T.copy()
        self.dual_coef_ = components.projection @ coefficients / components.scale
        self.intercept_ = fit.target_mean - components.offset @ coefficients

    @staticmethod
    def _warn_edges(
        settings: Settings, degree: int, counts: tuple[int, ...], count: int, grid: Array, alpha: int
    ) -> None:
        warn_edge("alpha", grid[alpha], grid.tolist())
        warn_edge(
            "n_components", counts[count], counts, lower=counts[0] > 1, upper=counts[-1] < settings.most
        )
        degrees = [value or settings.n_columns for value in settings.degrees]
        warn_edge(
            "max_degree",
            degrees[degree],
            degrees,
            lower=degrees[0] > 1,
            upper=degrees[-1] < settings.n_columns,
        )

    def predict(self, X: Any) -> Any:
        """Predictions (N,) or (N, t): NumPy for rows in memory, a lazy Dask array for stored ones."""
        X = check_columns(self, X)
        return engine.apply(self.row_map(X), X)

    def row_map(self, X: Any) -> RowMap:
        """The map of blocks behind `predict`, for rows of the shape and type of X."""
        constant = -np.asarray(self.intercept_)
        return linear_map(X, self._kernel, self.landmarks_, self.dual_coef_, constant, np.dtype(np.float64))

    def plan(self, X: ArraySpec, y: ArraySpec | None = None) -> Plan:
        """What `fit` takes, from shapes alone.

        Parameters
        ----------
        X : ArraySpec or array (N, d)
        y : ArraySpec or array (N,) or (N, t), optional
        """
        spec = spec_of(X)
        settings = Settings.of(self, *spec.shape)
        check_choices(self.cv, self.selection)
        shape = (spec.shape[0],) if y is None else spec_of(y).shape
        searched = _is_searched(settings, candidates(self.alpha, "alpha", positive))
        return components_plan(
            spec,
            settings,
            n_targets=1 if len(shape) == 1 else shape[1],
            n_parts=count_parts(self.cv) if searched else 1,
            n_fits=1 + (count_parts(self.cv) if searched else 0),
            beside=folds_bytes(self.cv, spec.shape[0]) if searched else 0,
        )


def _is_searched(settings: Settings, alphas: tuple[float, ...] | None) -> bool:
    return alphas is None or len(alphas) * len(settings.degrees) * len(settings.n_components or (0,)) > 1


def _params(settings: Settings, counts: tuple[int, ...], grid: Array) -> list[dict[str, Any]]:
    """The candidates in order; of degree and number of components only where there are several."""
    several = {
        "max_degree": [degree or settings.n_columns for degree in settings.degrees],
        "n_components": list(counts),
        "alpha": grid.tolist(),
    }
    shown = [name for name, values in several.items() if name == "alpha" or len(values) > 1]
    return [
        {name: value for name, value in zip(several, values, strict=True) if name in shown}
        for values in product(*several.values())
    ]


class PCHARRegressor(_ComponentRegressor):
    """Highly adaptive ridge regression on principal components (PCHAR).

    For the scores Z of n training rows (`HALPrincipalComponents`) it minimises
    ``(1/n) ||y - Z b||^2 + alpha ||b||^2``, so that ``b = (D + n alpha I)^-1 D^1/2 U'y``. With all
    components it is kernel ridge regression (highly adaptive ridge). PCHAL's alpha, in the papers'
    convention, stands beside half the sum of squares: the two differ by a factor of 2.

    Parameters
    ----------
    alpha : float, sequence of float or "auto", default "auto"
        The papers' lambda, above 0. Several candidates are decided by honest cross-validation; "auto":
        41 values of ``n alpha`` from 1e-8 to 1e2.
    n_components : int, sequence of int or "auto", default "auto"
        "auto": all with a positive eigenvalue up to 4,096 rows, 512 beyond. Several: cross-validation.
    max_degree : int, None, sequence of these, or "auto", default "auto"
        Highest degree of interaction; several: cross-validation.
    n_knots : int or "auto", default "auto"
    knots : "rows" or array (m, d), default "rows"
    solver : {"auto", "dense", "randomized", "nystroem"}, default "auto"
    n_landmarks : int or "auto", default "auto"
    landmarks : "uniform", default "uniform"
    center : bool, default True
        These six as in `HALPrincipalComponents`. Without centring there is no intercept.
    cv : int, splitter or iterable of splits, default 5
        A number means shuffled folds, drawn by row index; of whole groups where `fit` gets groups.
    selection : {"best", "one_se"}, default "best"
        The best mean score, or the simplest candidate within one standard error of it: lower degree,
        then fewer components, then larger alpha.
    random_state : int, Generator, RandomState or None, default None
        Seed of folds, knots, landmarks and sketches.

    Attributes
    ----------
    alpha_, n_components_, max_degree_, solver_, kernel_scale_
        What was chosen, and the mean of the kernel's diagonal.
    cv_results_ : dict or None
        The keys of ``GridSearchCV.cv_results_`` without times; None where nothing was to choose. A score is
        1 - mean squared error / variance of the whole target, averaged over the targets.
    eigenvalues_, explained_variance_ratio_ : (k,) ndarray
    coef_ : (k,) or (t, k) ndarray
        b, on the scores.
    dual_coef_ : (L,) or (L, t) ndarray
        ``predict(x) = K(x, landmarks_) @ dual_coef_ + intercept_`` with the raw kernel K.
    intercept_ : float or (t,) ndarray
    landmarks_, knots_, knot_weights_, seed_, n_features_in_
        As in `HALPrincipalComponents`.

    References
    ----------
    Wang, Schuler, van der Laan and García Meixide (2026), Highly adaptive principal component
    regression, arXiv 2602.10613.

    Examples
    --------
    >>> import numpy as np
    >>> from gramian import PCHARRegressor
    >>> X = np.random.default_rng(0).random((200, 2))
    >>> y = np.where(X[:, 0] > 0.5, 1.0, 0.0) + X[:, 1]
    >>> model = PCHARRegressor(alpha=1e-4).fit(X, y)
    >>> bool(model.score(X, y) > 0.99)
    True
    """

    @staticmethod
    def _path(eigenvalues: Array, cross: Array, penalties: Array) -> Array:
        return ridge_path(eigenvalues, cross, penalties)

    @staticmethod
    def _penalties(fits: list[Fit]) -> Array:  # noqa: ARG004
        return RIDGE_GRID


class PCHALRegressor(_ComponentRegressor):
    """Highly adaptive lasso regression on principal components (PCHAL).

    For the scores Z of n training rows (`HALPrincipalComponents`) it minimises
    ``(1/(2n)) ||y - Z b||^2 + alpha ||b||_1``. The scores are orthogonal, so that
    ``b_j = sign(z_j'y) (|z_j'y| - n alpha)_+ / d_j``: scikit-learn's ``Lasso(alpha)`` on Z, in closed
    form. PCHAR's alpha stands beside the whole sum of squares: the two differ by a factor of 2.

    Parameters
    ----------
    alpha : float, sequence of float or "auto", default "auto"
        The papers' lambda, above 0; it scales with y. "auto": 31 values of ``n alpha`` from the largest
        ``|z_j'y|``, where no component is left, down to 1e-6 of it.
    n_components : int, sequence of int or "auto", default "auto"
    max_degree : int, None, sequence of these, or "auto", default "auto"
    n_knots : int or "auto", default "auto"
    knots : "rows" or array (m, d), default "rows"
    solver : {"auto", "dense", "randomized", "nystroem"}, default "auto"
    n_landmarks : int or "auto", default "auto"
    landmarks : "uniform", default "uniform"
    center : bool, default True
    cv : int, splitter or iterable of splits, default 5
    selection : {"best", "one_se"}, default "best"
    random_state : int, Generator, RandomState or None, default None
        All but alpha as in `PCHARRegressor`.

    Attributes
    ----------
    coef_ : (k,) or (t, k) ndarray
        b, on the scores; exactly 0 for components that are left out.
    alpha_, cv_results_, intercept_ and the others
        As in `PCHARRegressor`.

    References
    ----------
    Wang, Schuler, van der Laan and García Meixide (2026), Highly adaptive principal component
    regression, arXiv 2602.10613. Benkeser and van der Laan (2016), The highly adaptive lasso estimator.

    Examples
    --------
    >>> import numpy as np
    >>> from gramian import PCHALRegressor
    >>> X = np.random.default_rng(0).random((200, 2))
    >>> y = np.where(X[:, 0] > 0.5, 1.0, 0.0) + X[:, 1]
    >>> model = PCHALRegressor(random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.99)
    True
    """

    @staticmethod
    def _path(eigenvalues: Array, cross: Array, penalties: Array) -> Array:
        return lasso_path(eigenvalues, cross, penalties)

    @staticmethod
    def _penalties(fits: list[Fit]) -> Array:
        largest = max(float(np.abs(fit.cross).max()) for fit in fits)
        return LASSO_GRID * (largest if largest > 0 else 1.0)
