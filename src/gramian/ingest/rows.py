"""What every source of a data set is: named, row-aligned arrays that arrive in bounded batches."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gramian.errors import InputError, InputTypeError

BATCH = 8 << 20  # bytes of one batch, about
SIDES = ("target", "labels", "groups", "weights", "split")  # what may stand beside the data

Batch = tuple[
    int, dict[str, NDArray[Any]]
]  # number of rows, and those rows of the arrays that were asked for


@dataclass(frozen=True)
class Field:
    """Shape of a row and type of one array of a source; floats as they are stored, others as found."""

    tail: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return max(1, prod(self.tail) * self.dtype.itemsize)


class Rows(Protocol):
    """A source: the rows of a data set, in order.

    Attributes
    ----------
    where : str
        Path or description, for messages.
    fields : dict of str to Field
        What there is, under the names of the store's arrays.
    attrs : dict of str to dict
        Attributes of these arrays, such as the names of the columns.
    """

    where: str
    fields: dict[str, Field]
    attrs: dict[str, dict[str, Any]]

    def batches(self, names: Collection[str]) -> Iterator[Batch]:
        """All rows from the first on, of the named arrays only; any number of passes."""
        ...


def reblock(batches: Iterator[Batch], step: int) -> Iterator[Batch]:
    """Cut batches of any length into blocks of ``step`` rows; only the last may be shorter."""
    parts: list[dict[str, NDArray[Any]]] = []
    held = 0
    for count, batch in batches:
        start = 0
        while start < count:
            stop = min(count, start + step - held)
            parts.append({name: values[start:stop] for name, values in batch.items()})
            held, start = held + stop - start, stop
            if held == step:
                yield step, _join(parts)
                parts, held = [], 0
    if held:
        yield held, _join(parts)


def _join(parts: list[dict[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def float_type(dtype: np.dtype[Any], where: str) -> np.dtype[Any]:
    """The float type that numbers of this type are stored in: float32 where it holds them exactly.

    Examples
    --------
    >>> import numpy as np
    >>> float_type(np.dtype("uint8"), "x"), float_type(np.dtype("int64"), "x")
    (dtype('float32'), dtype('float64'))
    """
    if dtype.kind not in "biuf":
        raise InputTypeError(f"{where} holds {dtype}, not real numbers", "convert it to float32 or float64")
    return np.dtype(np.float32) if np.result_type(dtype, np.float32) == np.float32 else np.dtype(np.float64)


def check_finite(block: NDArray[Any], where: str, first_row: int = 0) -> None:
    """Refuse NaN and infinity, naming the first row that holds one."""
    good = np.isfinite(block)
    if not good.all():
        row, *rest = (int(i) for i in np.argwhere(~good)[0])
        value = block[(row, *rest)]
        place = f", position {tuple(rest)}" if rest else ""
        raise InputError(
            f"row {first_row + row}{place} of {where} is {value}", "remove the row or fill in the value"
        )
