"""Which rows are for testing: seeded, by label where there are labels, groups kept whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gramian.errors import InputError
from gramian.streams import Stream, generator


class RowSplit:
    """Rows drawn block by block; each class gives its share of the test rows, to within one row.

    Parameters
    ----------
    counts : (C,) integers
        Rows of each class.
    fraction : float
        Share of the test rows.
    seed : int
    """

    def __init__(self, counts: NDArray[np.int64], fraction: float, seed: int) -> None:
        cumulative = np.rint(np.cumsum(counts) * fraction).astype(np.int64)
        self.test_rows = int(cumulative[-1])
        self._needed = np.diff(cumulative, prepend=0)
        self._left = counts.copy()
        self._seed = seed

    def assign(self, block: int, classes: NDArray[np.int64]) -> NDArray[np.int8]:
        """The next block of rows by their classes: 1 for test rows."""
        random = generator(self._seed, Stream.SPLIT, block)
        split = np.zeros(len(classes), np.int8)
        for value in np.unique(classes):
            rows = np.flatnonzero(classes == value)
            # in proportion to the rows that are left, rounded at random: the last block meets the total
            share = self._needed[value] * len(rows) / self._left[value]
            count = int(share + random.random()) if share != int(share) else int(share)
            split[random.permutation(rows)[:count]] = 1
            self._needed[value] -= count
            self._left[value] -= len(rows)
        return split


class GroupSplit:
    """Whole groups drawn for testing, class by class, until they hold the wanted share of rows.

    Parameters
    ----------
    sizes : mapping of int to int
        Rows of each group.
    strata : mapping of int to int
        The class of each group, -1 where it has several.
    fraction : float
        Share of the test rows.
    seed : int
    """

    def __init__(
        self, sizes: Mapping[int, int], strata: Mapping[int, int], fraction: float, seed: int
    ) -> None:
        groups = np.array(sorted(sizes))
        rows = np.array([sizes[group] for group in groups.tolist()])
        classes = np.array([strata[group] for group in groups.tolist()])
        random = generator(seed, Stream.SPLIT)
        test: list[int] = []
        seen = taken = 0
        for value in np.unique(classes):
            members = random.permutation(np.flatnonzero(classes == value))
            seen += int(rows[members].sum())
            reached = np.concatenate([[0], np.cumsum(rows[members])])
            count = int(np.abs(reached + taken - fraction * seen).argmin())
            taken += int(reached[count])
            test += groups[members[:count]].tolist()
        self.test_rows = taken
        self._test = np.array(test, dtype=np.int64)

    def assign(self, groups: NDArray[np.int64]) -> NDArray[np.int8]:
        """A block of rows by their groups: 1 for test rows."""
        return np.isin(groups, self._test).astype(np.int8)


def check_split(test_rows: int, rows: int, fraction: float) -> None:
    """Refuse a split with nothing on one side."""
    if not 0 < test_rows < rows:
        side = "test" if not test_rows else "training"
        raise InputError(
            f"a split of {fraction:g} leaves no {side} row of {rows}",
            "give another fraction, or more rows or groups",
        )


def strata_of(pairs: Mapping[Any, set[int]]) -> dict[Any, int]:
    """The class of each group, -1 where it has several."""
    return {group: next(iter(classes)) if len(classes) == 1 else -1 for group, classes in pairs.items()}
