"""Choosing a model by honest cross-validation: folds, scores, choices, and the table of results.

Candidates stand in order, from the simplest to the most complex: ties go to the earlier one, and
"one_se" takes the first within one standard error of the best.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gramian.errors import GramianError, GramianWarning, InputError, InputTypeError
from gramian.moments import Moments
from gramian.sources import loaded
from gramian.streams import Stream, generator
from gramian.validation import choice, integer, shown

SELECTIONS = ("best", "one_se")
MOST_SPLITS = 1 << 14  # two parts of rows each, numbered in int16
ROUNDING = 1e-12  # of a mean score, from sums: what differs by less is a tie


# ------------------------------------------------------------------------------------------- folds


@dataclass(frozen=True)
class Folds:
    """Splits of the rows into training and test rows, told by parts of which they are unions.

    One pass over the data sums what is wanted for each part; every split follows from these sums.

    Parameters
    ----------
    parts : (n,) int16, or (n, n_parts) bool
        The part of each row; the second form where the test sets of the splits overlap.
    train, test : tuple of tuples of int
        The parts that make up the training and the test rows of each split.
    n_parts : int
    """

    parts: NDArray[np.int16] | NDArray[np.bool_]
    train: tuple[tuple[int, ...], ...]
    test: tuple[tuple[int, ...], ...]
    n_parts: int

    def __len__(self) -> int:
        return len(self.train)

    def rows(self, parts: tuple[int, ...]) -> NDArray[np.intp]:
        """Sorted indices of the rows of these parts."""
        inside = (
            np.isin(self.parts, parts) if self.parts.ndim == 1 else self.parts[:, list(parts)].any(axis=1)
        )
        return np.flatnonzero(inside)

    @property
    def everything(self) -> tuple[int, ...]:
        """Parts that make up all rows, each once."""
        return tuple(range(self.n_parts)) if self.parts.ndim == 1 else (self.n_parts - 1,)


class FoldMoments:
    """Moments of the parts that the splits are made of, put together.

    Parameters
    ----------
    parts : list of Moments
        Of each part of the folds; of all rows where there are no folds.
    folds : Folds, optional
    """

    def __init__(self, parts: list[Moments], folds: Folds | None) -> None:
        self._parts, self.folds = parts, folds
        self.everything = parts[0] if folds is None else self._together(folds.everything)

    def split(self, f: int) -> tuple[Moments, Moments]:
        """Of the training and the test rows of a split."""
        assert self.folds is not None
        train, test = self._together(self.folds.train[f]), self._together(self.folds.test[f])
        refuse_empty(f, train.weight, test.weight)
        return train, test

    def variance(self, n_targets: int) -> NDArray[np.float64]:
        """Of the first targets, over all rows: (n_targets,)."""
        moments = self.everything.with_targets(n_targets)
        return variances(moments.target_squares, moments.weight, moments.target_mean)

    def _together(self, parts: tuple[int, ...]) -> Moments:
        return Moments.together([self._parts[part] for part in parts])


def make_folds(
    cv: Any,
    n_rows: int,
    *,
    seed: int,
    target: Any = None,
    classes: NDArray[np.integer] | None = None,
    groups: NDArray[Any] | None = None,
) -> Folds:
    """The folds that ``cv`` describes.

    Parameters
    ----------
    cv : int, splitter or iterable of (train, test)
        A number means shuffled folds drawn by row index from the seed: of whole groups where
        `groups` are given, otherwise stratified where `classes` are given.
    n_rows : int
    seed : int
    target : (n,) or (n, t) array, optional
        For splitters that look at it, in memory or stored: read for them alone.
    classes : (n,) integers, optional
    groups : (n,) array, optional

    Raises
    ------
    InputError
        For fewer rows or groups than folds, or a split without training or test rows.
    """
    check_choices(cv)
    if isinstance(cv, Integral):
        return _drawn_folds(int(cv), n_rows, seed, classes, groups)
    splits = cv
    if is_splitter(cv):
        seen = loaded(target) if classes is None else classes
        splits = _split(cv, np.zeros((n_rows, 1)), seen, groups)
    return _given_folds(_listed(splits), n_rows)


def _split(cv: Any, *rows: Any) -> Iterator[Any]:
    """The splits of a splitter, once it is known that there are not too many: each of them is large."""
    if callable(getattr(cv, "get_n_splits", None)):
        _refuse_many(cv.get_n_splits(*rows))
    yield from cv.split(*rows)


def check_choices(cv: Any, selection: str = "best") -> None:
    """Refuse what no choice could be made with, before it is known whether there is one to make."""
    choice(selection, "selection", SELECTIONS)
    if isinstance(cv, Integral) and not isinstance(cv, bool):
        integer(cv, "cv", low=2, high=MOST_SPLITS)
    elif not is_splitter(cv) and (
        not isinstance(cv, Iterable) or isinstance(cv, (str, bytes, dict)) or getattr(cv, "ndim", 1) == 0
    ):
        raise InputTypeError(
            f"cv is {shown(cv)}", "give a number of folds, a splitter or an iterable of splits"
        )


def _drawn_folds(
    cv: int, n_rows: int, seed: int, classes: NDArray[np.integer] | None, groups: NDArray[Any] | None
) -> Folds:
    random = generator(seed, Stream.FOLDS)
    if groups is not None:
        parts = _group_folds(cv, groups, random)
    else:
        if cv > n_rows:
            raise InputError(f"cv is {cv} for {n_rows} rows", f"give at most {n_rows} folds")
        parts = np.resize(np.arange(cv, dtype=np.int16), n_rows)
        if classes is None:
            random.shuffle(parts)
        else:  # the rows of a class stand together, in random order, and go round the folds
            order = random.permutation(n_rows)
            parts[order[np.argsort(classes[order], kind="stable")]] = parts.copy()
    every = range(cv)
    return Folds(
        parts, tuple(tuple(p for p in every if p != f) for f in every), tuple((f,) for f in every), cv
    )


def _group_folds(cv: int, groups: NDArray[Any], random: np.random.Generator) -> NDArray[np.int16]:
    """Largest groups first, each to the fold with the fewest rows; groups of equal size in random order."""
    try:
        names, member, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    except TypeError:
        raise InputTypeError("groups mixes types that have no order", "give integers or strings") from None
    if names.dtype.kind == "f" and np.isnan(names[-1]):
        raise InputError(f"groups has {int(sizes[-1])} NaN", "give each row a group")
    if cv > len(names):
        raise InputError(f"cv is {cv} for {len(names)} groups", f"give at most {len(names)} folds")
    order = random.permutation(len(names))
    fold, filled = np.empty(len(names), np.int16), np.zeros(cv)
    for group in order[np.argsort(-sizes[order], kind="stable")]:
        fold[group] = filled.argmin()
        filled[fold[group]] += sizes[group]
    return fold[member]


def _listed(splits: Iterable[Any]) -> list[Any]:
    """As many splits as there may be; what splits without end is not waited for."""
    try:
        found = list(islice(splits, MOST_SPLITS + 1))
    except GramianError:
        raise
    except (ValueError, TypeError) as error:
        kind = InputTypeError if isinstance(error, TypeError) else InputError
        cause = " ".join(str(error).split()).rstrip(".")
        raise kind(
            f"cv cannot split these rows, {cause}", "give another splitter, or what it asks for"
        ) from error
    _refuse_many(len(found))
    return found


def _refuse_many(count: int) -> None:
    if count > MOST_SPLITS:
        raise InputError(
            f"cv gives more than {MOST_SPLITS:,} splits", f"give at most {MOST_SPLITS:,}, for example cv=10"
        )


def _given_folds(splits: list[Any], n_rows: int) -> Folds:
    if not splits:
        raise InputError("cv holds no split", "give at least one pair of training and test rows")
    masks = np.zeros((n_rows, 2 * len(splits)), bool)
    for f, pair in enumerate(splits):
        if isinstance(pair, (str, bytes)) or not isinstance(pair, Sequence | np.ndarray) or len(pair) != 2:
            raise InputError(
                f"split {f} of cv is {shown(pair)}", "give pairs of training and test rows, as indices"
            )
        for side, rows in zip(("training", "test"), pair, strict=True):
            masks[_split_rows(rows, n_rows, f"the {side} rows of split {f}"), 2 * f + (side == "test")] = True
        if (masks[:, 2 * f] & masks[:, 2 * f + 1]).any():
            raise InputError(
                f"split {f} of cv tests rows that it trains on", "give disjoint training and test rows"
            )
    patterns, parts = np.unique(masks, axis=0, return_inverse=True)
    if len(patterns) <= masks.shape[1]:
        train, test = (
            tuple(tuple(np.flatnonzero(patterns[:, 2 * f + side]).tolist()) for f in range(len(splits)))
            for side in (0, 1)
        )
        return Folds(parts.ravel().astype(np.int16), train, test, len(patterns))
    train, test = (tuple((2 * f + side,) for f in range(len(splits))) for side in (0, 1))
    return Folds(np.hstack([masks, np.ones((n_rows, 1), bool)]), train, test, masks.shape[1] + 1)


def _split_rows(rows: Any, n_rows: int, name: str) -> NDArray[Any]:
    rows = np.asarray(rows)
    if rows.dtype == bool and rows.shape == (n_rows,):
        rows = np.flatnonzero(rows)
    if rows.ndim != 1 or not rows.size or rows.dtype.kind not in "iu":
        raise InputError(
            f"{name} are {rows.size} values of type {rows.dtype}", "give row indices, at least one"
        )
    if rows.min() < -n_rows or rows.max() >= n_rows:
        raise InputError(f"{name} reach index {rows.max()} of {n_rows} rows", "give indices of existing rows")
    if len(np.unique(rows % n_rows)) < len(rows):
        raise InputError(f"{name} hold a row twice", "name each row once; sample_weight counts rows")
    return np.asarray(rows % n_rows)


def is_splitter(cv: Any) -> bool:
    """Whether this splits by a method of its own, which may look at the target."""
    return callable(getattr(cv, "split", None)) and not isinstance(cv, (str, bytes, type))


def count_parts(cv: Any) -> int:
    """Parts that the splits of ``cv`` cut the rows into, for a plan; for an iterable a guess."""
    if isinstance(cv, Integral):
        return int(cv)
    count = getattr(cv, "n_splits", None)
    return 11 if count is None else 2 * int(count) + 1


def folds_bytes(cv: Any, n_rows: int, *, classes: bool = False) -> int:
    """Bytes that `make_folds` holds while it makes them, for a plan."""
    if isinstance(cv, Integral):
        return (36 if classes else 10) * n_rows  # the parts; orders of the rows and their classes, sorting
    return (40 + 8 * count_parts(cv)) * n_rows  # indices and marks of each side of each split; their order


# ---------------------------------------------------------------------------------------- choices


@dataclass(frozen=True)
class Choice:
    """The candidate that was chosen, and the table to show for it.

    Parameters
    ----------
    index : int
    results : dict
        The keys of scikit-learn's ``GridSearchCV.cv_results_``, without its times, which would make
        two equal fits differ.
    """

    index: int
    results: dict[str, Any]


def choose(params: Sequence[dict[str, Any]], scores: NDArray[np.float64], selection: str) -> Choice:
    """Choose among candidates that stand in order, from the simplest to the most complex.

    Parameters
    ----------
    params : sequence of dict, one for each candidate
    scores : (splits, candidates) float64
        Greater is better.
    selection : "best" or "one_se"
        The highest mean score; or the simplest whose mean is within one standard error of it.
    """
    choice(selection, "selection", SELECTIONS)
    mean = scores.mean(axis=0)
    index = int(np.argmax(mean >= mean.max() - ROUNDING))
    if selection == "one_se" and len(scores) > 1:
        error = scores[:, index].std(ddof=1) / np.sqrt(len(scores))
        index = int(np.argmax(mean >= mean[index] - error))
    return Choice(index, _table(params, scores, mean))


def _table(
    params: Sequence[dict[str, Any]], scores: NDArray[np.float64], mean: NDArray[np.float64]
) -> dict[str, Any]:
    table: dict[str, Any] = {f"param_{key}": np.array([entry[key] for entry in params]) for key in params[0]}
    table["params"] = [dict(entry) for entry in params]
    table.update({f"split{f}_test_score": split.copy() for f, split in enumerate(scores)})
    table["mean_test_score"] = mean
    table["std_test_score"] = scores.std(axis=0)
    table["rank_test_score"] = (np.searchsorted(np.sort(-mean), -mean, side="left") + 1).astype(np.int32)
    return table


def relative_scores(
    errors: NDArray[np.float64], weight: float, variance: NDArray[np.float64]
) -> NDArray[np.float64]:
    """1 - mean squared error / variance, averaged over the targets: R2 against the mean of all rows.

    Parameters
    ----------
    errors : (candidates, t) float64
        Weighted sums of squared errors on the test rows of a split.
    weight : float
        Sum of their weights.
    variance : (t,) float64
        Of each target over all rows, so that the score is also defined for a single test row, and
        no target counts more than another by its unit.
    """
    relative = np.divide(errors, weight * variance, out=np.zeros_like(errors), where=variance > 0)
    return np.asarray(1.0 - relative.mean(axis=1))


def refuse_empty(split: int, train: float, test: float) -> None:
    """Both sides of a split need a row with a weight; `train` and `test` are the sums of their weights."""
    for side, weight in (("training", train), ("test", test)):
        if not weight > 0:
            raise InputError(
                f"the {side} rows of split {split} all have weight zero", "give other folds or weights"
            )


def variances(squares: NDArray[np.float64], weight: float, mean: NDArray[np.float64]) -> NDArray[np.float64]:
    """(t,) variances from centred sums of squares, exactly 0 where nothing but rounding is left of them."""
    variance = squares / weight
    return np.where(variance <= (8 * np.finfo(float).eps * mean) ** 2, 0.0, variance)


def refuse_constant(variance: NDArray[np.float64]) -> None:
    """Without variance in any target all candidates are alike, and nothing can be chosen."""
    if not (variance > 0).any():
        raise InputError(
            "y is constant over the rows with a weight: one value, or one class",
            "give a target that varies, or a number for alpha",
        )


def warn_edge(
    name: str, value: float, grid: Sequence[float], *, lower: bool = True, upper: bool = True
) -> None:
    """Warn where the chosen value lies at an end of its grid beyond which something better may lie."""
    if len(set(grid)) < 2:
        return
    for active, edge, word in ((lower, min(grid), "lower"), (upper, max(grid), "upper")):
        if active and value == edge:
            warnings.warn(
                f"{name} = {value:g} is the {word} edge of its grid, {min(grid):g} to {max(grid):g}; "
                f"give {name} candidates that reach {'below' if word == 'lower' else 'above'} it",
                GramianWarning,
                stacklevel=5,
            )
