"""Linear models of many rows from one pass: Gram products of every fold, streamed block by block."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Self

import numpy as np
import scipy.linalg
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin

from gramian import engine
from gramian.blocks import ArraySpec, Grid, Plan
from gramian.engine import RowMap, spec_of
from gramian.errors import InputError
from gramian.inputs import (
    check_columns,
    check_rows_and_labels,
    check_rows_and_target,
    check_side,
    check_weights,
)
from gramian.kernels.linear import class_rows, linear_rows
from gramian.moments import MomentPass, Moments, PlainFeatures, above_rounding, row_moments
from gramian.selection import (
    Choice,
    FoldMoments,
    check_choices,
    choose,
    count_parts,
    folds_bytes,
    make_folds,
    refuse_constant,
    relative_scores,
    warn_edge,
)
from gramian.sources import loaded
from gramian.streams import seed_of
from gramian.validation import (
    boolean,
    candidates,
    not_negative,
    refuse_no_weight,
    same_columns,
)

Array = NDArray[np.float64]

LABEL_BYTES = 16  # of a row: its label and the code of it
RELATIVE_GRID = np.logspace(-8, 3, 23)  # of alpha="auto", times the mean eigenvalue of the Gram matrix


# ------------------------------------------------------------------------- closed forms on moments


def ridge_coefficients(moments: Moments, alphas: Array) -> Array:
    """Minimisers of ``sum_i w_i (y_i - z_i'b)^2 + alpha ||b||^2`` about the means, for each alpha.

    Parameters
    ----------
    moments : Moments of p features and t targets
    alphas : (a,) float64, at least 0

    Returns
    -------
    (p, a, t) float64
    """
    cross = moments.cross
    out = np.empty((len(cross), len(alphas), cross.shape[1]))
    for i, alpha in enumerate(alphas):
        out[:, i] = _solve(moments.gram, cross, alpha)
    return out


def _solve(gram: Array, cross: Array, alpha: float) -> Array:
    shifted = gram.copy()
    shifted.flat[:: len(gram) + 1] += alpha
    try:
        if alpha > 0:
            factor = scipy.linalg.cho_factor(shifted, overwrite_a=True, check_finite=False)
            return np.asarray(scipy.linalg.cho_solve(factor, cross, check_finite=False))
    except scipy.linalg.LinAlgError:
        pass  # alpha is below the rounding of the Gram matrix
    values, vectors = scipy.linalg.eigh(gram, check_finite=False)
    kept = above_rounding(values, len(gram))
    return np.asarray(vectors[:, kept] @ ((vectors[:, kept].T @ cross) / (values[kept, None] + alpha)))


def alpha_grid(moments: Moments) -> Array:
    """Candidates for alpha, descending: from 1e3 down to 1e-8 of the Gram matrix's mean eigenvalue."""
    scale = np.trace(moments.gram) / moments.n_features
    return np.asarray(RELATIVE_GRID[::-1] * (scale if scale > 0 else 1.0))


def select_alpha(moments: FoldMoments, n_splits: int, alphas: Array, fit_intercept: bool) -> Choice:
    """The alpha with the best mean score over the splits; `alphas` stand in descending order."""
    variance = moments.variance(len(moments.everything.target_mean))
    refuse_constant(variance)
    scores = np.empty((n_splits, len(alphas)))
    for f in range(n_splits):
        train, test = moments.split(f)
        train = train.about_mean(fit_intercept)
        errors = test.squared_errors(ridge_coefficients(train, alphas), train.mean)
        scores[f] = relative_scores(errors, test.weight, variance)
    return choose([{"alpha": float(alpha)} for alpha in alphas], scores, "best")


# ------------------------------------------------------------------------------------- the estimators


def _pass(spec: ArraySpec, n_targets: int, n_parts: int) -> MomentPass:
    return MomentPass.over(spec, 1 + spec.shape[1] + n_targets, n_parts)


class _BlockwiseLinear(BaseEstimator):
    """What both models share: one pass over the rows, then algebra of the size of the features."""

    coef_: Any
    intercept_: Any

    def __init__(
        self, alpha: Any = "auto", *, fit_intercept: bool = True, cv: Any = 5, random_state: Any = None
    ) -> None:
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.cv = cv
        self.random_state = random_state

    def _fit(
        self, X: Any, target: Any, sample_weight: Any, groups: Any, *, n_targets: int, n_classes: int = 0
    ) -> None:
        alphas, n_rows = self._check_parameters(), spec_of(X).shape[0]
        weights = check_weights(sample_weight, n_rows)
        groups = loaded(check_side(groups, n_rows, "groups"))
        self.seed_ = seed_of(self.random_state)
        folds = None
        if alphas is None or len(alphas) > 1:
            folds = make_folds(
                self.cv,
                n_rows,
                seed=self.seed_,
                target=target,
                classes=target if n_classes else None,
                groups=groups,
            )
        parts, n_parts = (None, 1) if folds is None else (folds.parts, folds.n_parts)
        with engine.staged(X, target, weights) as (X, target, weights):
            moments = row_moments(
                PlainFeatures.of(X),
                X,
                _pass(spec_of(X), n_targets, n_parts),
                target=target,
                n_classes=n_classes,
                weights=weights,
                parts=parts,
                n_parts=n_parts,
            )
        with engine.pinned():
            self._solve(FoldMoments(moments, folds), alphas)

    def _check_parameters(self) -> tuple[float, ...] | None:
        """What can be said without data; the candidates for alpha."""
        boolean(self.fit_intercept, "fit_intercept")
        check_choices(self.cv)
        return candidates(self.alpha, "alpha", not_negative)

    def _solve(self, moments: FoldMoments, alphas: tuple[float, ...] | None) -> None:
        self.cv_results_, total = None, moments.everything
        refuse_no_weight(total.weight)
        if not np.isfinite(total.scatter).all():
            raise InputError(
                "products of the columns of X and y overflow float64",
                "divide each column by its largest value",
            )
        grid = alpha_grid(total) if alphas is None else np.array(sorted(alphas, reverse=True))
        chosen = 0
        if moments.folds is not None:
            choice = select_alpha(moments, len(moments.folds), grid, self.fit_intercept)
            chosen, self.cv_results_ = choice.index, choice.results
            warn_edge("alpha", grid[chosen], grid.tolist())
        self.alpha_ = float(grid[chosen])
        about = total.about_mean(self.fit_intercept)
        self.coef_ = ridge_coefficients(about, grid[chosen : chosen + 1])[:, 0].T.copy()
        self.intercept_ = about.target_mean - self.coef_ @ about.feature_mean

    def plan(self, X: ArraySpec, y: ArraySpec | None = None) -> Plan:
        """What `fit` takes, from shapes alone.

        Parameters
        ----------
        X : ArraySpec or array (N, m)
        y : ArraySpec or array (N,) or (N, t), optional
        """
        t = 1 if y is None or len(spec_of(y).shape) == 1 else spec_of(y).shape[1]
        return self._plan(spec_of(X), [] if y is None else [spec_of(y)], t)

    def _plan(self, spec: ArraySpec, beside: list[ArraySpec], t: int, *, labels: int = 0) -> Plan:
        """The plan for t targets; ``labels`` bytes a row are held in memory where they are classes."""
        n_rows, m = spec.shape
        alphas, n_parts, held = self._check_parameters(), 1, labels * n_rows
        if alphas is None or len(alphas) > 1:
            n_parts = count_parts(self.cv)
            held += folds_bytes(self.cv, n_rows, classes=labels > 0)
        figures = _pass(spec, t, n_parts)
        step = figures.step("gram", spec, *beside, flops=float(n_rows) * (1 + m + t) ** 2)
        solve = 2 * figures.result + 4 * 8 * (1 + m + t) ** 2
        return Plan((replace(step, driver_bytes=max(step.driver_bytes, solve) + held),))

    def _linear_map(self, X: Any, function: Any, dtype: Any, width: int | None) -> RowMap:
        spec = spec_of(X)
        same_columns(spec.shape, self.n_features_in_)
        n_rows, m = spec.shape
        t = len(self.coef_)
        scratch = 8 * (m + 2 * t)
        return RowMap(
            partial(function, coef=self.coef_.reshape(-1, m), intercept=np.atleast_1d(self.intercept_)),
            Grid.for_rows(n_rows, spec.row_bytes + scratch),
            () if width is None else (width,),
            np.dtype(dtype),
            scratch=scratch,
            constant=self.coef_.nbytes,
            flops=2.0 * n_rows * m * t,
        )


class BlockwiseRidge(MultiOutputMixin, RegressorMixin, _BlockwiseLinear):
    """Ridge regression of any number of rows, from Gram products that are summed block by block.

    Minimises ``sum_i w_i (y_i - intercept - x_i'b)^2 + alpha ||b||^2``, as scikit-learn's ``Ridge``
    does. One pass over the data sums the products of every fold; the choice of alpha by
    cross-validation then needs nothing but these.

    Parameters
    ----------
    alpha : float, sequence of float or "auto", default "auto"
        Strength of the penalty, at least 0; several candidates, or "auto", are decided by
        cross-validation. "auto": 23 values from 1e-8 to 1e3 times the mean eigenvalue of the
        centred Gram matrix.
    fit_intercept : bool, default True
        Whether the model has an intercept, which is not penalised.
    cv : int, splitter or iterable of splits, default 5
        A number means shuffled folds, drawn by row index; of whole groups where `fit` gets groups.
    random_state : int, Generator, RandomState or None, default None
        Seed of the folds.

    Attributes
    ----------
    coef_ : (m,) or (t, m) ndarray
    intercept_ : float or (t,) ndarray
    alpha_ : float
    cv_results_ : dict or None
        The keys of ``GridSearchCV.cv_results_`` without times; None where alpha was given. A score is
        1 - mean squared error / variance of the whole target, averaged over the targets.
    seed_ : int
    n_features_in_ : int

    Examples
    --------
    >>> import numpy as np
    >>> from gramian import BlockwiseRidge
    >>> X = np.random.default_rng(0).standard_normal((200, 3))
    >>> y = X @ [1.0, -2.0, 0.0] + 5
    >>> model = BlockwiseRidge(alpha=1e-6).fit(X, y)
    >>> model.coef_.round(3) + 0.0, round(float(model.intercept_), 3)
    (array([ 1., -2.,  0.]), 5.0)
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> Self:
        """Fit to NumPy, Zarr or Dask rows.

        Parameters
        ----------
        X : (N, m) array
        y : (N,) or (N, t) array
        sample_weight : (N,) array, optional
            An integer weight is as good as so many equal rows.
        groups : (N,) array, optional
            Rows of one group stay on one side of every split.
        """
        X, y = check_rows_and_target(self, X, y)
        shape = spec_of(y).shape
        self._fit(X, y, sample_weight, groups, n_targets=1 if len(shape) == 1 else shape[1])
        if len(shape) == 1:
            self.coef_, self.intercept_ = self.coef_[0], float(self.intercept_[0])
        return self

    def row_map(self, X: Any) -> RowMap:
        """The map of blocks behind `predict`, for rows of the shape and type of X."""
        single = np.ndim(self.intercept_) == 0
        function = partial(linear_rows, single=single)
        return self._linear_map(X, function, np.float64, None if single else len(self.coef_))

    def predict(self, X: Any) -> Any:
        """Predictions (N,) or (N, t): NumPy for rows in memory, a lazy Dask array for stored ones."""
        X = check_columns(self, X)
        return engine.apply(self.row_map(X), X)


class BlockwiseRidgeClassifier(ClassifierMixin, _BlockwiseLinear):
    """Ridge regression on the signs of class membership, of any number of rows.

    Each class against the rest has the target +1 or -1 (two classes share one target), and the class
    with the largest prediction wins, as in scikit-learn's ``RidgeClassifier``. Alpha is chosen by
    squared error, from sums: one pass.

    Parameters
    ----------
    alpha : float, sequence of float or "auto", default "auto"
    fit_intercept : bool, default True
    cv : int, splitter or iterable of splits, default 5
        A number means shuffled folds with the classes in equal shares; of whole groups where `fit` gets
        groups.
    random_state : int, Generator, RandomState or None, default None
        All but cv as in `BlockwiseRidge`.

    Attributes
    ----------
    classes_ : (c,) ndarray
    coef_ : (c, m) ndarray, (1, m) for two classes
    intercept_ : (c,) or (1,) ndarray
    alpha_, cv_results_, seed_, n_features_in_
        As in `BlockwiseRidge`.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from gramian import BlockwiseRidgeClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = BlockwiseRidgeClassifier(alpha=1.0).fit(X, y)
    >>> model.predict(X[:2])
    array([0, 0])
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> Self:
        """Fit to NumPy, Zarr or Dask rows and labels of any type.

        Parameters
        ----------
        X : (N, m) array
        y : (N,) array of labels
        sample_weight, groups : (N,) arrays, optional
        """
        X, self.classes_, codes = check_rows_and_labels(self, X, y)
        n_classes = len(self.classes_)
        n_targets = 1 if n_classes == 2 else n_classes
        self._fit(X, codes, sample_weight, groups, n_targets=n_targets, n_classes=n_classes)
        return self

    def plan(self, X: ArraySpec, y: Any = None) -> Plan:
        """What `fit` takes.

        Parameters
        ----------
        X : ArraySpec or array (N, m)
        y : (N,) array of labels, or ArraySpec (N, c) of c classes; None: two classes
            Labels are read, to count their classes.
        """
        if isinstance(y, ArraySpec) and len(y.shape) != 2:
            raise InputError(
                f"y is an ArraySpec of shape {y.shape}, which does not tell the number of classes",
                "give the labels, or an ArraySpec (N, c) of c classes",
            )
        count = 2 if y is None else y.shape[1] if isinstance(y, ArraySpec) else len(np.unique(loaded(y)))
        labels = ArraySpec((spec_of(X).shape[0],), np.dtype(np.intp))
        targets = 1 if count == 2 else count
        return self._plan(spec_of(X), [] if y is None else [labels], targets, labels=LABEL_BYTES)

    def row_map(self, X: Any, response: str = "predict") -> RowMap:
        """The map of blocks behind `predict` or `decision_function`."""
        if response == "decision_function":
            single = len(self.classes_) == 2
            function = partial(linear_rows, single=single)
            return self._linear_map(X, function, np.float64, None if single else len(self.classes_))
        if response != "predict":
            raise InputError(f"response is {response!r}", "give 'predict' or 'decision_function'")
        return self._linear_map(X, partial(class_rows, classes=self.classes_), self.classes_.dtype, None)

    def decision_function(self, X: Any) -> Any:
        """Predicted signs: (N, c), or (N,) of the second of two classes."""
        X = check_columns(self, X)
        return engine.apply(self.row_map(X, "decision_function"), X)

    def predict(self, X: Any) -> Any:
        """The class of the largest predicted sign: (N,)."""
        X = check_columns(self, X)
        return engine.apply(self.row_map(X), X)
