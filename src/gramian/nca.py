"""Neighbourhood components analysis: the linear map that gathers each class, by gradients over all pairs.

Rows are touched by two passes an evaluation: to the points ``z = A (x - mean)``, and back from the derivative
by the points. All pairs are met in the reduced space, tile by tile, by `gramian.kernels.neighbours`.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import numpy as np
import scipy.linalg
from numpy.typing import NDArray
from scipy.optimize import minimize
from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_array, check_is_fitted

from gramian import engine
from gramian.blocks import ArraySpec, Grid, Plan
from gramian.engine import RowMap, Step, spec_of, sum_step
from gramian.errors import GramianWarning, InputError, InputTypeError
from gramian.inputs import (
    check_columns,
    check_rows_and_labels,
    count_classes,
    one_line,
    refuse_lazy_frame,
)
from gramian.kernels.all_pairs import neighbour_gradient
from gramian.kernels.linear import centred_products, mapped_rows
from gramian.kernels.neighbours import (
    BLOCK,
    OBJECTIVES,
    class_probabilities,
    class_scratch,
    left_out_probabilities,
    neighbour_flops,
    neighbour_log_sums,
    neighbour_scratch,
    neighbour_seconds,
    neighbour_terms,
    pack_points,
    shifted_laplacian,
)
from gramian.moments import MomentPass, Moments, PlainFeatures, refuse_overflow, row_moments
from gramian.streams import Stream, draw_rows, generator, seed_of
from gramian.validation import boolean, choice, integer, real, same_columns, shown

Array = NDArray[Any]
Float64 = NDArray[np.float64]
Indices = NDArray[np.intp]

INITS = ("auto", "pca", "lda", "identity", "random")
TRUNCATIONS = ("auto", "none")
SOLVERS = ("auto", "lbfgs", "cg", "minibatch")
EXACT_ROWS = 1 << 17  # "auto": all pairs in every evaluation up to here, mini-batches beyond
BATCH = 64, 1024  # rows of a mini-batch, at least and at most
STEPS = 64  # mini-batches of an epoch, where these bounds allow it
REFERENCES = 8192  # rows that a mini-batch is compared with
RATE = 0.05  # of a step of a mini-batch, relative to the entries of the map
DECAY = 0.9, 0.999  # of the first and the second moment of the gradient, Adam's own
PATIENCE = 3  # epochs without a gain above tol after which mini-batches end
LDA_RANK = 1e-4  # singular values of scikit-learn's discriminant analysis that count
FLAT = 1e-6  # relative gain, or part of the rows, that counts as none
USUAL = 0.1, 100.0  # norm of a row of the start for which iterates are those of scikit-learn
STUCK = 0.01  # mean of p (1 - p), relative to what p lacks of 1, below which few steps change anything
CONSTANT = 1e-15  # spread of a column relative to its mean that is no more than rounding
UNEVEN = 1e3  # ratio of the columns' spreads that is worth a warning


@dataclass(frozen=True)
class Evaluation:
    """The objective at one map.

    Parameters
    ----------
    value : float
    gradient : (c, d) float64
    accuracy : float
        Mean of p: the expected accuracy of the training rows, each left out.
    slack : float
        Mean of ``p (1 - p)``: 0 where every row is sure of its neighbours, and no small step changes that.
    n_underflow : int
        Rows whose sums underflow unshifted.
    kept : float
        Part of the pairs that were met.
    error : float
        Bound of what the others would have changed, relative to the value.
    """

    value: float
    gradient: Float64
    accuracy: float
    slack: float
    n_underflow: int
    kept: float
    error: float

    def packed(self) -> Float64:
        """As one vector, for the records of a run."""
        facts = [self.value, self.accuracy, self.slack, self.n_underflow, self.kept, self.error]
        return np.concatenate([facts, self.gradient.ravel()])

    @classmethod
    def of(cls, packed: Float64, n_columns: int) -> Evaluation:
        """The reverse."""
        value, accuracy, slack, underflow, kept, error = packed[:6].tolist()
        gradient = packed[6:].reshape(-1, n_columns)
        return cls(value, gradient, accuracy, slack, int(underflow), kept, error)


class _Problem:
    """Rows, their classes and an objective; everything that is evaluated."""

    def __init__(
        self, X: Any, codes: Indices, mean: Float64, objective: Any, *, truncate: bool = False
    ) -> None:
        self.X, self.codes, self.mean, self.objective = X, codes, mean, objective
        self._truncate = truncate
        spec = spec_of(X)
        self.n_rows, self.n_columns = spec.shape
        self.dtype = point_type(spec)

    def points(self, A: Float64) -> Array:
        """``A (x - mean)`` of all rows: (n, c)."""
        row_map = point_map(spec_of(self.X), self.mean, A, self.dtype)
        return engine.collect(row_map, self.X, name="points")

    def evaluate(self, A: Float64) -> Evaluation:
        """Objective and gradient over all pairs."""
        found = neighbour_gradient(
            self.points(A),
            self.codes,
            objective=self.objective,
            truncate=self._truncate,
            mapper=partial(self._in_order, len(A)),
        )
        slope = found.slope.astype(self.dtype)
        grid, scratch = product_grid(spec_of(self.X), len(A), self.dtype)
        (gradient,) = engine.row_sum(
            partial(centred_products, mean=self.mean),
            grid,
            self.X,
            slope,
            scratch=scratch,
            result=8 * len(A) * self.n_columns,
        )
        p = found.p
        return Evaluation(
            found.value,
            gradient,
            float(p.mean()),
            float((p * (1 - p)).mean()),
            found.n_shifted,
            found.kept,
            found.error,
        )

    def _in_order(self, c: int, function: Callable[[Any], Array], items: Iterable[Any]) -> Iterator[Array]:
        items = list(items)
        if len(items) < 2:
            return map(function, items)
        step = pair_step(self.n_rows, c, self.dtype, len(items))
        return engine.in_order(function, items, self.X, step=step)


def point_type(spec: ArraySpec) -> np.dtype[Any]:
    """float32 for float32 rows, else float64."""
    return np.dtype(np.float32 if spec.dtype == np.float32 else np.float64)


def point_map(spec: ArraySpec, mean: Float64 | None, A: Array, dtype: np.dtype[Any]) -> RowMap:
    """The map ``A (x - mean)`` of rows, or ``A x``."""
    n_rows, d = spec.shape
    scratch = d * (8 + dtype.itemsize)
    return RowMap(
        partial(mapped_rows, mean=mean, A=np.asarray(A, dtype)),
        Grid.for_rows(n_rows, spec.row_bytes + scratch + len(A) * dtype.itemsize),
        (len(A),),
        dtype,
        scratch=scratch,
        constant=A.nbytes,
        flops=2.0 * n_rows * A.size,
    )


def product_grid(spec: ArraySpec, c: int, dtype: np.dtype[Any]) -> tuple[Grid, int]:
    """Blocks of the pass ``slope' (x - mean)``, and bytes a row that it needs."""
    scratch = spec.shape[1] * (8 + dtype.itemsize)
    return Grid.for_rows(spec.shape[0], spec.row_bytes + scratch + c * dtype.itemsize), scratch


def pair_step(n_rows: int, c: int, dtype: np.dtype[Any], tasks: int) -> Step:
    """One pass over all pairs of rows, or over all columns for some rows."""
    points = n_rows * (c + 1) * dtype.itemsize
    result = 8 * n_rows * (c + 2)
    weights = 16 * n_rows
    pairs = n_rows * (n_rows - 1) / 2
    return Step(
        "pairs",
        tasks,
        seconds=pairs * neighbour_seconds((c,), dtype) / 2,
        flops=neighbour_flops((c,)) * n_rows * (n_rows - 1) / 4,
        # what all tasks read, a tile, and the result with its encoded copy
        task_bytes=points + weights + 2 * BLOCK * neighbour_scratch((c,), dtype) + 2 * result,
        # the points in two orders; sums, their logarithms, terms, weights, products and slopes in two orders
        driver_bytes=2 * points + 8 * n_rows * (20 + 4 * c),
        result_bytes=result,
    )


def _times(step: Step, count: int) -> Step:
    """So many of them, one after the other."""
    names = ("tasks", "read", "written", "files", "flops", "seconds")
    grown = {name: count * getattr(step, name) for name in names}
    return replace(step, **grown)


# ------------------------------------------------------------------------------------- where it starts


def moment_pass(spec: ArraySpec, n_classes: int) -> MomentPass:
    """Over the columns, and +-1 for each class against the rest (one for two classes)."""
    return MomentPass.over(spec, 1 + spec.shape[1] + (1 if n_classes == 2 else n_classes))


def principal_components(moments: Moments, count: int) -> Float64:
    """Leading eigenvectors of the covariance, each with its largest entry positive: (count, d)."""
    d = len(moments.gram)
    vectors = scipy.linalg.eigh(moments.gram, subset_by_index=(d - count, d - 1), check_finite=False)[1]
    return _upright(vectors.T[::-1])


def discriminants(moments: Moments, codes: Indices, count: int) -> Float64:
    """Directions of linear discriminant analysis as scikit-learn scales them, at most `count`: (k, d)."""
    sizes = np.bincount(codes).astype(np.float64)
    n, n_classes = moments.weight, len(sizes)
    cross = moments.cross if moments.cross.shape[1] > 1 else moments.cross * [[-1.0, 1.0]]
    centres = (cross / 2).T / sizes[:, None]  # of +-1, about their means: half of it is the class's own sum
    within = moments.gram - (centres * sizes[:, None]).T @ centres
    spread = np.sqrt(np.maximum(np.diagonal(within), 0.0) / n)
    spread[spread <= np.sqrt(np.finfo(float).eps * np.diagonal(moments.gram) / n)] = 1.0
    values, vectors = np.linalg.eigh(within / n / np.outer(spread, spread))
    kept = values > LDA_RANK**2
    scalings = vectors[:, kept][:, ::-1] / spread[:, None] / np.sqrt(values[kept][::-1])
    between = np.sqrt(sizes / (n_classes - 1))[:, None] * centres @ scalings
    _, singular, right = np.linalg.svd(between, full_matrices=False)
    rank = int((singular > LDA_RANK * singular[0]).sum()) if len(singular) else 0
    return _upright((scalings @ right[: min(rank, count)].T).T)


def _upright(rows: Float64) -> Float64:
    largest = rows[np.arange(len(rows)), np.abs(rows).argmax(axis=1)]
    return np.ascontiguousarray(rows * np.where(largest < 0, -1.0, 1.0)[:, None])


# --------------------------------------------------------------------------------------- mini-batches


@dataclass(frozen=True)
class _Adam:
    """A map, and the running moments of its gradient.

    Parameters
    ----------
    A, first, second : (c, d) float64
    steps : int
    objective : float
        Mean of the terms a row over the last epoch.
    accuracy, slack : float
        Mean of p and of ``p (1 - p)`` over it.
    """

    A: Float64
    first: Float64
    second: Float64
    steps: int = 0
    objective: float = -np.inf
    accuracy: float = 0.0
    slack: float = 0.0

    def packed(self) -> Float64:
        """As one vector, for the records of a run."""
        maps = [self.A.ravel(), self.first.ravel(), self.second.ravel()]
        return np.concatenate([[self.steps, self.objective, self.accuracy, self.slack], *maps])

    @classmethod
    def of(cls, packed: Float64, n_columns: int) -> _Adam:
        """The reverse."""
        steps, objective, accuracy, slack = packed[:4].tolist()
        A, first, second = packed[4:].reshape(3, -1, n_columns).copy()
        return cls(A, first, second, int(steps), objective, accuracy, slack)

    def step(self, gradient: Float64, rate: float) -> _Adam:
        """Uphill by the scaled gradient."""
        first = DECAY[0] * self.first + (1 - DECAY[0]) * gradient
        second = DECAY[1] * self.second + (1 - DECAY[1]) * gradient**2
        steps = self.steps + 1
        root = np.sqrt(second / (1 - DECAY[1] ** steps))
        ascent = np.divide(first / (1 - DECAY[0] ** steps), root, out=np.zeros_like(first), where=root > 0)
        return replace(self, A=self.A + rate * ascent, first=first, second=second, steps=steps)


class _Batches:
    """The objective on mini-batches of rows, each compared with the same random rows."""

    def __init__(self, problem: _Problem, seed: int, batch_size: int, n_references: int) -> None:
        self._problem, self._seed, self._size = problem, seed, batch_size
        self._references = draw_rows(problem.n_rows, n_references, seed, Stream.REFERENCES)
        self._rows = self._centred(engine.take(problem.X, self._references))
        self._codes = problem.codes[self._references]
        spec = spec_of(problem.X)
        self._grid = Grid.for_rows(problem.n_rows, spec.row_bytes + problem.n_columns * 16)

    def epoch(self, state: _Adam, number: int, rate: float) -> _Adam:
        """Every row once, in random order: blocks of rows, and rows within a block."""
        random = generator(self._seed, Stream.BATCHES, number)
        n, seen = self._problem.n_rows, np.zeros(3)
        for block in random.permutation(len(self._grid)):
            part = self._grid[int(block)]
            rows = self._centred(engine.take(self._problem.X, np.arange(part.start, part.stop)))
            order = random.permutation(len(rows))
            for start in range(0, len(rows), self._size):
                chosen = order[start : start + self._size]
                terms, p, gradient = self.gradient(state.A, rows[chosen], part.start + chosen)
                state = state.step(gradient / len(chosen), rate)
                seen += terms.sum(), p.sum(), (p * (1 - p)).sum()
        objective, accuracy, slack = (seen / n).tolist()
        return replace(state, objective=objective, accuracy=accuracy, slack=slack)

    def gradient(self, A: Float64, rows: Array, indices: Indices) -> tuple[Float64, Float64, Float64]:
        """Terms of the objective and p of some rows, and the gradient of the sum of their terms by A."""
        Z = np.asarray(A, rows.dtype)
        a = pack_points(rows @ Z.T, self._problem.codes[indices])
        b = pack_points(self._rows @ Z.T, self._codes)
        place = np.minimum(np.searchsorted(self._references, indices), len(self._references) - 1)
        skip = np.where(self._references[place] == indices, place, -1)
        logs = neighbour_log_sums(a, b, skip)
        terms, p, q = neighbour_terms(logs, self._problem.objective)
        own, across = shifted_laplacian(a, b, logs, q, skip)
        gradient = 2 * (own.astype(rows.dtype) @ rows + across.astype(rows.dtype) @ self._rows)
        return terms, p, gradient.astype(np.float64)

    def _centred(self, rows: Array) -> Array:
        return (rows - self._problem.mean).astype(self._problem.dtype)


def _packed_epoch(batches: _Batches, state: _Adam, number: int, rate: float) -> Float64:
    return batches.epoch(state, number, rate).packed()


# ----------------------------------------------------------------------------------------- the estimator


@dataclass(frozen=True)
class _Settings:
    """The parameters, settled for N rows of d columns and C classes."""

    n_components: int
    n_columns: int
    objective: str
    init: Any
    solver: str
    truncate: bool
    batch_size: int
    n_references: int
    max_iter: int

    @classmethod
    def of(
        cls, model: NeighborhoodComponentsAnalysis, n_rows: int, d: int, n_classes: int | None
    ) -> _Settings:
        """Check them and replace each "auto" by its rule; a plan may not know the number of classes."""
        n_classes = d + 1 if n_classes is None else n_classes
        objective = choice(model.objective, "objective", OBJECTIVES)
        solver = choice(model.solver, "solver", SOLVERS)
        if solver == "auto":
            solver = "lbfgs" if n_rows <= EXACT_ROWS else "minibatch"
        integer(int(model.verbose) if isinstance(model.verbose, bool) else model.verbose, "verbose", low=0)
        real(model.tol, "tol")
        boolean(model.warm_start, "warm_start")
        if model.callback is not None and not callable(model.callback):
            raise InputTypeError(
                f"callback is {shown(model.callback)}", "give a function of the map and of the iteration"
            )
        max_iter = integer(model.max_iter, "max_iter")
        usual = min(BATCH[1], max(BATCH[0], n_rows // STEPS))
        batch_size = _some_rows(model.batch_size, "batch_size", usual, n_rows)
        n_references = _some_rows(model.n_references, "n_references", REFERENCES, n_rows)
        init, c = model.init, model.n_components
        if c is not None:
            integer(c, "n_components")
        if isinstance(init, str) or np.ndim(init) == 0:
            c = d if c is None else c
            init = choice(init, "init", INITS)
            if init == "auto":
                init = "lda" if c <= min(d, n_classes - 1) else "pca" if c < min(d, n_rows) else "identity"
        else:
            with one_line():
                init = check_array(init, dtype=np.float64, input_name="init")
            c = len(init) if c is None else c
            if init.shape != (c, d):
                raise InputError(
                    f"init has shape {init.shape} for n_components={c} and {d} columns", f"give ({c}, {d})"
                )
        if c > d:
            raise InputError(f"n_components is {c} for {d} columns", f"give at most {d}")
        if isinstance(init, str) and init == "pca" and c > min(n_rows, d):
            raise InputError(
                f"init='pca' has at most {min(n_rows, d)} components, n_components is {c}",
                "give fewer, or init='identity'",
            )
        if isinstance(init, str) and init == "lda" and c > n_classes - 1:
            raise InputError(
                f"init='lda' has at most {n_classes - 1} components, n_components is {c}",
                "give fewer, or init='pca'",
            )
        truncate = choice(model.truncation, "truncation", TRUNCATIONS) == "auto"
        return cls(c, d, objective, init, solver, truncate, batch_size, n_references, max_iter)


def _some_rows(value: Any, name: str, usual: int, n_rows: int) -> int:
    return min(n_rows, usual) if value is None else integer(value, name, high=n_rows)


class _Teller:
    """Tells of iterations: to the session, to the callback, and to whoever asked for words."""

    def __init__(self, model: NeighborhoodComponentsAnalysis, most: int) -> None:
        self._model, self._most, self._done, self._began = model, most, -1, time.monotonic()
        if model.solver_ == "minibatch":
            self._done = 0

    def __call__(self, A: Float64, value: float) -> None:
        """Raises StopIteration where the callback asks for the end so, as SciPy's solvers take it."""
        self._done += 1
        engine.tell("iterations", self._done, self._most)
        if self._model.verbose:
            seconds = time.monotonic() - self._began
            line = f"[{type(self._model).__name__}] {self._done:>6} {value:>20.6e} {seconds:>9.2f} s"
            print(line, flush=True)  # noqa: T201  what verbose asks for
        if self._done and self._model.callback is not None:
            self._model.callback(A.ravel().copy(), self._done)


def _typical(A: Float64) -> float:
    """Root of the mean square of the entries; no square overflows."""
    largest = float(np.abs(A).max()) or 1.0
    return largest * float(np.sqrt(np.mean((A / largest) ** 2)))


def _unit(start: Float64) -> float:
    """A power of two in which entries of the map are measured: the optimiser's first step and tol fit 1."""
    norm = _typical(start) * np.sqrt(start.shape[1])
    if USUAL[0] <= norm <= USUAL[1] or not norm:
        return 1.0
    return float(2.0 ** np.round(np.log2(norm)))


def _warn_of_columns(moments: Moments) -> None:
    """Constant columns, and columns of very different spread."""
    spread = np.sqrt(np.maximum(np.diagonal(moments.gram), 0.0) / moments.weight)
    size = np.abs(moments.feature_mean)
    constant = spread <= CONSTANT * size
    if constant.any():
        warnings.warn(
            f"{int(constant.sum())} of {len(spread)} columns are constant, the first is column "
            f"{int(np.flatnonzero(constant)[0])}; they add nothing to any distance",
            GramianWarning,
            stacklevel=3,
        )
    some = spread[~constant]
    if len(some) and some.max() > UNEVEN * some.min():
        warnings.warn(
            f"the columns' standard deviations go from {some.min():.3g} to {some.max():.3g}; scale the "
            "columns, for example by StandardScaler",
            GramianWarning,
            stacklevel=3,
        )


class NeighborhoodComponentsAnalysis(
    ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClassifierMixin, BaseEstimator
):
    """Neighbourhood components analysis of any number of rows: a linear map, and the classifier it implies.

    Row i picks a neighbour j with probability ``p_ij ~ exp(-||A x_i - A x_j||^2)``; p_i is the probability
    that it has the class of i. "accuracy" maximises ``sum p_i``, the expected number of training rows that
    are classified rightly, each left out; "kl" maximises ``sum log p_i``. Sums and gradients are exact, over
    all pairs, in memory of the order of the points ``A x``; with "minibatch" they are estimates.

    Parameters
    ----------
    n_components : int or None, default None
        c; None: as many as the columns, or as the rows of `init`.
    objective : {"accuracy", "kl"}, default "accuracy"
    init : {"auto", "pca", "lda", "identity", "random"} or (c, d) array, default "auto"
        Where A starts. "auto": "lda" for fewer components than classes, else "pca" for fewer than columns and
        rows, else "identity".
    solver : {"auto", "lbfgs", "cg", "minibatch"}, default "auto"
        "auto": "lbfgs" up to 131,072 rows, "minibatch" beyond.
    truncation : {"auto", "none"}, default "auto"
        "auto": where it pays, pairs are left out whose part of the objective is below 1e-8, with proof: boxes
        around the leaves of a k-d tree bound them, relative to the sums of their rows.
    batch_size : int or None, default None
        Rows of a batch of "minibatch"; None: N / 64, but at least 64 and at most 1,024.
    n_references : int or None, default None
        Random rows that each batch of "minibatch" is compared with; None: 8,192, or N.
    warm_start : bool, default False
        Start from the ``components_`` of the last fit.
    max_iter : int, default 50
        Iterations, or epochs of "minibatch".
    tol : float, default 1e-5
        Relative gain and, for exact solvers, largest entry of the gradient at which it ends; where the rows
        of the start have norms below 0.1 or above 100, entries are measured in units of these.
    callback : callable or None, default None
        ``callback(A.ravel(), n_iter)`` after each iteration; it ends the fit by raising StopIteration.
    verbose : int, default 0
        Above 0: a line for each iteration on standard output.
    random_state : int, Generator, RandomState or None, default None

    Attributes
    ----------
    components_ : (c, d) ndarray
        A, of the type of X.
    classes_ : (C,) ndarray
    mean_ : (d,) float64 ndarray
    points_ : (N, c) ndarray
        ``A (x - mean)`` of the training rows, and their classes as numbers ``codes_`` (N,): what predictions
        are made from.
    n_iter_ : int
    objective_ : float
        At the end; of "minibatch" the estimate over its last epoch, times N.
    objective_history_ : (n_iter_ + 1,) float64 ndarray
        At the start and after each iteration; without the start for "minibatch".
    expected_accuracy_ : float
        Mean of p over the training rows.
    underflow_rows_ : int
        Training rows whose neighbours are so far away that their sums underflow (they are counted exactly).
    kept_pairs_, truncation_error_ : float
        Part of the pairs that the last evaluation met, and the bound of what the others would have changed,
        relative to the objective; 1 and 0 where nothing was left out. For "minibatch" the part of the rows
        that its references are, and 0.
    singleton_rows_ : int
        Rows that are alone in their class: p is 0, and "kl" leaves them out.
    solver_, init_ : str
    start_ : (c, d) float64 ndarray
        A at the start.
    seed_, n_features_in_ : int

    References
    ----------
    Goldberger, Roweis, Hinton and Salakhutdinov (2005), Neighbourhood components analysis, NIPS 17; the
    objectives are its (3) and (6), the gradient (5).

    Examples
    --------
    >>> from gramian import NeighborhoodComponentsAnalysis
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = NeighborhoodComponentsAnalysis(2, random_state=0).fit(X, y)
    >>> model.transform(X).shape, bool(model.score(X, y) > 0.95)
    ((150, 2), True)
    """

    def __init__(
        self,
        n_components: int | None = None,
        *,
        objective: str = "accuracy",
        init: Any = "auto",
        solver: str = "auto",
        truncation: str = "auto",
        batch_size: int | None = None,
        n_references: int | None = None,
        warm_start: bool = False,
        max_iter: int = 50,
        tol: float = 1e-5,
        callback: Callable[[Float64, int], Any] | None = None,
        verbose: int = 0,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.objective = objective
        self.init = init
        self.solver = solver
        self.truncation = truncation
        self.batch_size = batch_size
        self.n_references = n_references
        self.warm_start = warm_start
        self.max_iter = max_iter
        self.tol = tol
        self.callback = callback
        self.verbose = verbose
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Learn the map from NumPy, Zarr or Dask rows and labels of any type.

        Parameters
        ----------
        X : (N, d) array
        y : (N,) array of labels
        """
        X, classes, codes = check_rows_and_labels(self, X, y, minimum=2)
        n_rows, d = spec_of(X).shape
        settings = _Settings.of(self, n_rows, d, len(classes))
        sizes = np.bincount(codes)
        if sizes.max() < 2:
            raise InputError(
                f"y holds {len(classes)} classes of one row each", "give classes of two rows or more"
            )
        self.classes_ = classes
        self.codes_ = codes.astype(np.int64)
        self.singleton_rows_ = int((sizes == 1).sum())
        self.seed_ = seed_of(self.random_state)
        with engine.staged(X) as (X,):
            (moments,) = row_moments(
                PlainFeatures.of(X),
                X,
                moment_pass(spec_of(X), len(classes)),
                target=codes,
                n_classes=len(classes),
                name="moments",
            )
            refuse_overflow(moments)
            _warn_of_columns(moments)
            with engine.pinned():
                self.start_, self.init_ = self._start(settings, moments, codes)
            start = self.start_
            problem = _Problem(X, codes, moments.feature_mean, settings.objective, truncate=settings.truncate)
            key = (settings, self.seed_, moments.feature_mean, codes)
            self.solver_ = settings.solver
            if settings.solver == "minibatch":
                A = self._descend(problem, start, settings, key)
            else:
                A = self._optimise(problem, start, settings, key)
            self.components_ = A.astype(problem.dtype)
            self.mean_ = moments.feature_mean
            self.points_ = problem.points(A)
        return self

    def _start(self, settings: _Settings, moments: Moments, codes: Indices) -> tuple[Float64, str]:
        """A to start from, and its name."""
        c, d = settings.n_components, settings.n_columns
        if self.warm_start and hasattr(self, "components_"):
            A = np.asarray(self.components_, np.float64)
            if A.shape != (c, d):
                raise InputError(
                    f"warm_start finds a map of shape {A.shape} for {(c, d)}",
                    "fit once with warm_start=False, or keep the shape",
                )
            return A, "warm_start"
        if not isinstance(settings.init, str):
            return settings.init, "array"
        if settings.init == "lda":
            A = discriminants(moments, codes, c)
            if len(A) == c:
                return A, "lda"
            warnings.warn(
                f"the classes differ in {len(A)} of {c} directions; init is 'pca' in place of 'lda'",
                GramianWarning,
                stacklevel=3,
            )
        if settings.init in ("lda", "pca"):
            return principal_components(moments, c), "pca"
        if settings.init == "random":
            return generator(self.seed_, Stream.START).standard_normal((c, d)), "random"
        return np.eye(c, d), "identity"

    def _optimise(
        self, problem: _Problem, start: Float64, settings: _Settings, key: tuple[Any, ...]
    ) -> Float64:
        """By SciPy's minimiser; every evaluation is remembered, so that a run goes on with the same bits."""
        shape, unit, seen, history = start.shape, _unit(start), dict[bytes, Evaluation](), list[float]()
        tell = _Teller(self, settings.max_iter)

        def negative(flat: Float64) -> tuple[float, Float64]:
            A = unit * flat.reshape(shape)
            packed = engine.remember(
                f"evaluation-{len(seen)}", (*key, A), [problem.X], lambda: problem.evaluate(A).packed()
            )
            found = seen[flat.tobytes()] = Evaluation.of(packed, shape[1])
            if not np.isfinite(found.value) or not np.isfinite(found.gradient).all():
                raise InputError(
                    f"the objective is {found.value} at a map of entries up to {np.abs(A).max():.3g}",
                    "scale the columns, for example by StandardScaler",
                )
            if not history:
                history.append(found.value)
                tell(A, found.value)
            return -found.value, -unit * found.gradient.ravel()

        def after(intermediate_result: Any) -> None:
            history.append(-float(intermediate_result.fun))
            tell(unit * intermediate_result.x.reshape(shape), history[-1])

        result = minimize(
            negative,
            start.ravel() / unit,
            method="L-BFGS-B" if settings.solver == "lbfgs" else "CG",
            jac=True,
            tol=self.tol,
            callback=after,
            options={"maxiter": settings.max_iter},
        )
        last = seen[result.x.tobytes()]
        A: Float64 = unit * result.x.reshape(shape)
        self.n_iter_ = max(1, int(result.nit))
        self.objective_, self.objective_history_ = last.value, np.array(history)
        self.expected_accuracy_, self.underflow_rows_ = last.accuracy, last.n_underflow
        self.kept_pairs_, self.truncation_error_ = last.kept, last.error
        if not self._saturated(next(iter(seen.values())), last):
            self._judge(last, history, str(result.message))
        if result.nit >= settings.max_iter and self.verbose:
            warnings.warn(
                f"{result.nit} iterations were not enough; raise max_iter", ConvergenceWarning, stacklevel=3
            )
        return A

    def _saturated(self, first: Evaluation | _Adam, last: Evaluation | _Adam) -> bool:
        """Warn where most rows were sure of their neighbours at the start, and few came to be right."""
        n = len(self.codes_)
        lacking = 1 - self.singleton_rows_ / n - first.accuracy
        gained = last.accuracy - first.accuracy
        found = lacking > FLAT and first.slack < STUCK * lacking and gained < lacking / 2
        if found and self.init_ != "warm_start":
            warnings.warn(
                f"the objective is saturated at its start: {n} rows are sure of their neighbours, right or "
                f"wrong (p (1 - p) is {first.slack:.1e} on average), and the expected accuracy went from "
                f"{first.accuracy:.3f} to {last.accuracy:.3f}; scale the columns (StandardScaler), or give a "
                "smaller init",
                GramianWarning,
                stacklevel=4,
            )
        return found

    def _judge(self, last: Evaluation, history: list[float], message: str) -> None:
        """Warn where the optimiser ended at its start, and not for want of anything to gain."""
        steps, gain = len(history) - 1, history[-1] - history[0]
        lacking = 1 - self.singleton_rows_ / len(self.codes_) - last.accuracy
        if lacking > FLAT and steps <= 1 and gain <= abs(history[0]) * FLAT:
            warnings.warn(
                f"the optimiser ended near its start after {steps} iteration(s) ({message}); scale the "
                "columns (StandardScaler), or give another init or a smaller tol",
                GramianWarning,
                stacklevel=4,
            )

    def _descend(
        self, problem: _Problem, start: Float64, settings: _Settings, key: tuple[Any, ...]
    ) -> Float64:
        """By mini-batches; every epoch is remembered."""
        batches = _Batches(problem, self.seed_, settings.batch_size, settings.n_references)
        state = _Adam(start, np.zeros_like(start), np.zeros_like(start))
        size = _typical(start)
        tell, history, waited, earliest = _Teller(self, settings.max_iter), list[float](), 0, state
        for epoch in range(settings.max_iter):
            rate = RATE * size / np.sqrt(1 + epoch)
            packed = engine.remember(
                f"epoch-{epoch}",
                (*key, start),
                [problem.X],
                partial(_packed_epoch, batches, state, epoch, rate),
            )
            state = _Adam.of(packed, settings.n_columns)
            earliest = earliest if epoch else state
            history.append(state.objective * problem.n_rows)
            try:
                tell(state.A, history[-1])
            except StopIteration:
                break
            best = max(history[:-1], default=-np.inf)
            waited = 0 if history[-1] > best + self.tol * abs(history[-1]) else waited + 1
            if waited >= PATIENCE:
                break
        self.n_iter_ = len(history)
        self.objective_, self.objective_history_ = history[-1], np.array(history)
        self.expected_accuracy_, self.underflow_rows_ = state.accuracy, 0
        self.kept_pairs_ = min(1.0, settings.n_references / problem.n_rows)
        self.truncation_error_ = 0.0
        self._saturated(earliest, state)
        return state.A

    # -------------------------------------------------------------------------------- what it is for

    def row_map(self, X: Any, response: str = "predict") -> RowMap:
        """The map of blocks behind `predict` or `predict_proba`, for rows of the shape and type of X."""
        spec = spec_of(X)
        same_columns(spec.shape, self.n_features_in_)
        choice(response, "response", ("predict", "predict_proba"))
        order = np.argsort(self.codes_, kind="stable")
        z = pack_points(self.points_[order], self.codes_[order])
        n, n_classes, c = spec.shape[0], len(self.classes_), len(self.components_)
        scratch = class_scratch((c,), z.dtype, n_classes=n_classes) + spec.shape[1] * 16
        classes = self.classes_ if response == "predict" else None
        return RowMap(
            partial(
                class_probabilities,
                mean=self.mean_,
                A=self.components_,
                z=z,
                n_classes=n_classes,
                classes=classes,
            ),
            Grid(n, min(Grid.for_rows(n, spec.row_bytes + scratch).step, BLOCK)),
            () if classes is not None else (n_classes,),
            np.dtype(np.float64) if classes is None else classes.dtype,
            scratch=scratch,
            constant=z.nbytes + BLOCK * scratch,
            flops=neighbour_flops((c,)) * n * len(self.points_) / 2,
        )

    def transform(self, X: Any) -> Any:
        """``A x``: (N, c), NumPy for rows in memory, a lazy Dask array for stored ones."""
        X = check_columns(self, X)
        refuse_lazy_frame(self, X)
        return engine.apply(self.decoded_map(X), X)

    def stored_map(self, X: Any) -> tuple[RowMap, dict[str, Any]]:
        """What a store of features holds: the points ``A x`` as they are."""
        return self.decoded_map(X), {}

    def decoded_map(self, X: Any) -> RowMap:
        """What `transform` returns, and what a reader of `stored_map` sees."""
        spec = spec_of(X)
        same_columns(spec.shape, self.n_features_in_)
        return point_map(spec, None, self.components_, np.result_type(point_type(spec), self.components_))

    def expected(self, X: ArraySpec) -> tuple[Step, ArraySpec]:
        """The step that stores the points, and what a reader will see, before and after the fit."""
        n_rows, d = X.shape
        fitted = hasattr(self, "components_")
        c = len(self.components_) if fitted else _Settings.of(self, n_rows, d, None).n_components
        row_map = point_map(X, None, np.zeros((c, d)), point_type(X))
        grids = tuple(grid.step for grid in row_map.grids)
        return row_map.step("features", X), ArraySpec(row_map.shape, row_map.dtype, grids)

    def predict_proba(self, X: Any) -> Any:
        """Probability that a row's neighbour among the training rows is of each class: (N, C)."""
        X = check_columns(self, X)
        return engine.apply(self.row_map(X, "predict_proba"), X)

    def predict(self, X: Any) -> Any:
        """The most probable class: (N,)."""
        X = check_columns(self, X)
        return engine.apply(self.row_map(X), X)

    def plan(self, X: ArraySpec, y: Any = None) -> Plan:
        """What `fit` takes, from shapes alone; for exact solvers at one evaluation and a half an iteration.

        Parameters
        ----------
        X : ArraySpec or array (N, d)
        y : (N,) array of labels, or ArraySpec (N, C) of C classes; None: two classes
            Labels are read, to count their classes.
        """
        spec = spec_of(X)
        n_rows, d = spec.shape
        n_classes = count_classes(y)
        settings = _Settings.of(self, n_rows, d, None if y is None else n_classes)
        dtype, c = point_type(spec), settings.n_components
        start = moment_pass(spec, n_classes).step("moments", spec, flops=2.0 * n_rows * d**2)
        points = point_map(spec, np.zeros(d), np.zeros((c, d)), dtype).collect_step("points", spec)
        if settings.solver == "minibatch":
            kept = 4 * settings.n_references * d * dtype.itemsize + 2 * n_rows * (c + 1) * 8
            flops = n_rows * settings.n_references * neighbour_flops((c,)) + 2.0 * n_rows * c * d
            rate = neighbour_seconds((c,), dtype)
            batches = Step(
                "epochs",
                settings.max_iter,
                read=settings.max_iter * spec.nbytes,
                flops=settings.max_iter * flops,
                seconds=3.0 * settings.max_iter * n_rows * settings.n_references * rate,
                driver_bytes=kept + 64 * settings.batch_size * d,
            )
            return Plan((start, batches, points))
        count = settings.max_iter + settings.max_iter // 2
        tasks = len(Grid(n_rows, BLOCK))
        pairs = pair_step(n_rows, c, dtype, tasks)
        grid, scratch = product_grid(spec, c, dtype)
        back = sum_step("gradient", grid, spec, scratch=scratch, result=8 * c * d, flops=2.0 * n_rows * c * d)
        return Plan((start, _times(points, count), _times(pairs, 2 * count), _times(back, count)))

    def leave_one_out_proba(self) -> Float64:
        """Probabilities of the classes for each training row from all others: (N, C)."""
        check_is_fitted(self)
        order = np.argsort(self.codes_, kind="stable")
        z, n_classes = pack_points(self.points_[order], self.codes_[order]), len(self.classes_)
        n, c = self.points_.shape
        grid, result = Grid(n, BLOCK), BLOCK * n_classes * 8
        step = Step(
            "left out",
            len(grid),
            flops=neighbour_flops((c,)) * n * n / 2,
            task_bytes=z.nbytes + 2 * BLOCK * class_scratch((c,), z.dtype, n_classes=n_classes) + result,
            driver_bytes=n * n_classes * 8,
            result_bytes=result,
        )
        out = np.empty((n, n_classes))
        one = partial(left_out_probabilities, z=z, n_classes=n_classes, block=BLOCK)
        for rows, part in zip(grid, engine.in_order(one, range(0, n, BLOCK), step=step), strict=True):
            out[order[rows]] = part
        return out

    def leave_one_out_accuracy(self) -> float:
        """Part of the training rows whose most probable class, from all others, is their own."""
        return float((self.leave_one_out_proba().argmax(axis=1) == self.codes_).mean())

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
