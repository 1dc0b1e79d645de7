"""Labels and groups as integers: the values that occur, in order, and the code of each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gramian.errors import InputError
from gramian.validation import shown

BEYOND = 1 << 63  # of 64-bit integers
MOST_CLASSES = 1 << 16  # beyond, a column was taken for labels by mistake


def plain(values: NDArray[Any], where: str) -> NDArray[Any]:
    """Labels as integers or strings: whole floats and booleans become integers, bytes and text strings."""
    kind = values.dtype.kind
    if kind in "uf" and values.size and not (np.abs(values).max() < BEYOND or np.isnan(values).any()):
        raise InputError(
            f"{where} holds {shown(values[np.abs(values).argmax()])}, beyond 64-bit integers",
            "give smaller numbers, or strings",
        )
    if kind in "iub":
        return values.astype(np.int64)
    if kind == "f":
        whole = np.isfinite(values) & (values == np.floor(values))
        if not whole.all():
            raise InputError(
                f"{where} holds {shown(values[~whole][0])}, which names no class or group",
                "give whole numbers or strings, or take it as the target",
            )
        return values.astype(np.int64)
    if kind in "SUTO":
        return np.array(
            [v.decode() if isinstance(v, bytes) else str(v) for v in values.tolist()], dtype=np.str_
        )
    raise InputError(f"{where} holds {values.dtype}", "give whole numbers or strings")


class Codes:
    """The distinct values of a column, and an integer for each.

    Parameters
    ----------
    values : iterable of int or str
        All values that occur, in any order.

    Attributes
    ----------
    values : list of int or list of str
        Ascending; integers where every string is one as Python writes it.

    Examples
    --------
    >>> codes = Codes(["10", "9"])
    >>> codes.values, codes.encode(np.array(["10", "10", "9"]))
    ([9, 10], array([1, 1, 0]))
    """

    def __init__(self, values: Iterable[Any]) -> None:
        found = sorted(set(values))
        self._sorted = np.array(found)
        numbers = [_whole(value) for value in found]
        self.are_integers = None not in numbers
        self.values: list[Any] = sorted(n for n in numbers if n is not None) if self.are_integers else found
        place = {value: code for code, value in enumerate(self.values)}
        keys = numbers if self.are_integers else found
        self._codes = np.array([place[key] for key in keys], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.values)

    def encode(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """The position of each value among `values`."""
        codes: NDArray[np.int64] = self._codes[np.searchsorted(self._sorted, values)]
        return codes


def _whole(value: Any) -> int | None:
    """The integer that a value is or spells, None for other strings (``01`` among them)."""
    if not isinstance(value, str):
        return int(value)
    digits = value.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
        return None
    return int(value) if str(int(value)) == value and abs(int(value)) < BEYOND else None
