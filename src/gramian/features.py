"""Feature maps: random features of subspaces, principal components of the HAL kernel."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin

from gramian import engine
from gramian.blocks import ArraySpec, Plan
from gramian.components import (
    HALKernel,
    Settings,
    components_plan,
    fit_components,
    keep_components,
    linear_map,
    refuse_too_many,
)
from gramian.engine import RowMap, spec_of
from gramian.errors import InputError
from gramian.inputs import check_columns, check_rows, check_weights, refuse_lazy_frame
from gramian.streams import seed_of


class HALPrincipalComponents(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
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
        weights = check_weights(sample_weight, n_rows)
        self.seed_ = seed_of(self.random_state)
        with engine.staged(X, weights) as (X, weights):
            components = fit_components(X, weights, settings, self.seed_)
        refuse_too_many(settings, len(components.eigenvalues))
        keep_components(self, components, settings)
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
        kernel = HALKernel(self.knots_, self.knot_weights_, self.max_degree_)
        return linear_map(
            X, kernel, self.landmarks_, self.projection_ / self.kernel_scale_, self.offset_, dtype
        )

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
