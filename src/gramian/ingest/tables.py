"""Tables of rows and named columns: CSV and Parquet files, streamed."""

from __future__ import annotations

import csv
import shlex
import warnings
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn, TextIO

import numpy as np
from numpy.typing import NDArray

from gramian.errors import InputError, InputTypeError
from gramian.ingest.coding import plain
from gramian.ingest.rows import BATCH, Batch, Field, float_type

PANDAS_INDEX = "__index_level_"  # how pandas stores an index without a name: no column of the data


@dataclass(frozen=True)
class Roles:
    """Which columns are target, labels and groups, and which are left out; the others are covariates."""

    target: tuple[str, ...] = ()
    labels: str | None = None
    groups: str | None = None
    drop: tuple[str, ...] = ()

    def columns(self, names: Sequence[str], where: str) -> dict[str, list[str]]:
        """The names of the columns of each array of the store."""
        check_dropped(self.drop, names, where)
        _check_names(names, where, self.drop)
        columns = {"target": list(self.target)}
        columns |= {
            "labels": [self.labels] if self.labels else [],
            "groups": [self.groups] if self.groups else [],
        }
        for role, chosen in columns.items():
            for name in chosen:
                if name not in names:
                    raise InputError(
                        f"{where} has no column {name!r} for the {role}", f"give one of {', '.join(names)}"
                    )
        used = {*chain.from_iterable(columns.values()), *self.drop}
        columns["covariates"] = [name for name in names if name not in used]
        if not columns["covariates"]:
            raise InputError(
                f"{where} has no column left for the covariates",
                "give a file with more columns, or drop fewer",
            )
        return {role: chosen for role, chosen in columns.items() if chosen}


def check_dropped(drop: Sequence[Any], names: Sequence[Any], where: str) -> None:
    """Refuse a column to leave out that is not there."""
    for name in drop:
        if name not in names:
            raise InputError(
                f"{where} has no column {name!r} to drop", f"give one of {', '.join(map(str, names))}"
            )


def remedy_for_words(name: Any) -> str:
    """What can be done about a column that holds text or dates."""
    return f"encode it, take it as labels or groups, or leave it out with --drop {shlex.quote(str(name))}"


def _check_names(names: Sequence[str], where: str, drop: Sequence[str]) -> None:
    seen: set[str] = set()
    for position, name in enumerate(names, start=1):
        if not name and name not in drop:
            raise InputError(
                f"column {position} of {where} has no name",
                "name it, or leave it out with --drop ''",
            )
        if name in seen:
            raise InputError(f"{where} has two columns named {name!r}", "rename or remove one of them")
        seen.add(name)


class Table(ABC):
    """What CSV and Parquet share: the columns' roles, and one file after the other.

    Parameters
    ----------
    paths : sequence of Path
        In the order of their rows.
    roles : Roles
        Every column must hold numbers, but those for labels and groups and those that are left out.
    """

    def __init__(self, paths: Sequence[Path], roles: Roles) -> None:
        self.paths = list(paths)
        self.where = str(paths[0]) if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
        self.names, types = self._columns_of(self.paths[0])
        self.drop = frozenset(roles.drop)
        self.columns = roles.columns(self.names, str(self.paths[0]))
        self.fields = {
            role: _field(role, [types[n] for n in chosen]) for role, chosen in self.columns.items()
        }
        self.attrs: dict[str, dict[str, Any]] = {"covariates": {"names": self.columns["covariates"]}}
        if len(roles.target) > 1:
            self.attrs["target"] = {"names": list(roles.target)}

    def batches(self, names: Collection[str]) -> Iterator[Batch]:
        """All rows of all files, of the named arrays only."""
        wanted = {role: self.columns[role] for role in self.columns if role in names}
        for path in self.paths:
            found = self._columns_of(path)[0]
            if found != self.names:
                raise InputError(
                    f"{path} has the columns {', '.join(found)}, {self.paths[0]} has {', '.join(self.names)}",
                    "give files with the same columns in the same order",
                )
            yield from self._read(path, wanted)

    def _shaped(self, role: str, columns: list[NDArray[Any]]) -> NDArray[Any]:
        field = self.fields[role]
        block = np.stack(columns, axis=1).astype(field.dtype, copy=False)
        return block if field.tail else block[:, 0]

    @abstractmethod
    def _columns_of(self, path: Path) -> tuple[list[str], dict[str, np.dtype[Any]]]:
        """Names and types of the columns of a file."""

    @abstractmethod
    def _read(self, path: Path, wanted: dict[str, list[str]]) -> Iterator[Batch]:
        """The rows of one file."""


def _field(role: str, types: list[np.dtype[Any]]) -> Field:
    if role in ("labels", "groups"):
        return Field((), types[0])
    tail = (len(types),) if role == "covariates" or len(types) > 1 else ()
    return Field(tail, np.result_type(*types))


class CsvFiles(Table):
    """CSV with a header; separated by the comma, semicolon or tab that the header has most of.

    Rows are counted as an editor does, the header being row 1.
    """

    def __init__(self, paths: Sequence[Path], roles: Roles) -> None:
        super().__init__(paths, roles)
        self._words = {*self.columns.get("labels", []), *self.columns.get("groups", [])}
        self._sound: set[Path] = set()  # files whose fields of several lines are known to end

    def _columns_of(self, path: Path) -> tuple[list[str], dict[str, np.dtype[Any]]]:
        with _opened(path) as (_, reader):
            names = [name.strip() for name in next(reader, [])]
        if not names:
            raise InputError(f"{path} is empty", "give a CSV file with a header and rows")
        if all(_is_number(name) for name in names):
            raise InputError(
                f"{path} begins with numbers, not with names", "add a header with the columns' names"
            )
        return names, dict.fromkeys(names, np.dtype(np.float64))

    def _read(self, path: Path, wanted: dict[str, list[str]]) -> Iterator[Batch]:
        for part in self._parsed(path):
            yield len(part), {role: self._taken(part, role, chosen, path) for role, chosen in wanted.items()}

    def _parsed(self, path: Path) -> Iterator[NDArray[Any]]:
        """Every field of every row, floats and strings, as structured arrays of bounded length.

        Of a column that is left out: whether the field has several lines.
        """
        dtype = np.dtype([(f"{j}", self._type_of(name)) for j, name in enumerate(self.names)])
        dropped = [j for j, name in enumerate(self.names) if name in self.drop]
        most = max(1, BATCH // dtype.itemsize)
        with _opened(path) as (file, reader):
            next(reader)
            while True:
                how = {"dtype": dtype, "max_rows": most, "converters": dict.fromkeys(dropped, _is_long)}
                part = self._next(file, reader.dialect.delimiter, how, path)
                if path not in self._sound and any(part[str(j)].any() for j in dropped):
                    self._find_fault(path)  # an open quote takes in what follows
                    self._sound.add(path)
                yield part
                if len(part) < most:
                    return

    def _type_of(self, name: str) -> str:
        if name in self.drop:
            return "?"
        return "O" if name in self._words else "f8"

    def _next(self, file: TextIO, delimiter: str, how: dict[str, Any], path: Path) -> NDArray[Any]:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # about blank lines and the end of the file
                part: NDArray[Any] = np.loadtxt(
                    file, comments=None, delimiter=delimiter, quotechar='"', ndmin=1, **how
                )
        except UnicodeDecodeError:
            raise
        except ValueError as error:
            self._explain(path, str(error))
        dtype: Any = part.dtype
        if not all(np.isfinite(part[name]).all() for name in dtype.names if dtype[name] == np.float64):
            self._explain(path, "a value is not finite")
        return part

    def _taken(self, part: NDArray[Any], role: str, chosen: list[str], path: Path) -> NDArray[Any]:
        columns = [part[str(self.names.index(name))] for name in chosen]
        if role not in ("labels", "groups"):
            return self._shaped(role, columns)
        words = np.array([word.strip() for word in columns[0].tolist()], dtype=np.str_)
        if (words == "").any() or (
            np.char.find(words, "\n") >= 0
        ).any():  # an open quote takes in what follows
            self._explain(path, f"column {chosen[0]!r} has a field that is empty or several lines long")
        return words

    def _explain(self, path: Path, otherwise: str) -> NoReturn:
        """Say where the first fault of a file is."""
        self._find_fault(path)
        raise InputError(f"{path} cannot be read as CSV: {otherwise}", "write it with plain rows of fields")

    def _find_fault(self, path: Path) -> None:
        """Look for the first fault of a file, slowly."""
        with _opened(path) as (_, reader):
            next(reader)
            for row in filter(None, reader):
                if len(row) != len(self.names):
                    raise InputError(
                        f"{path}, row {reader.line_num}: {len(row)} fields, the header has {len(self.names)}",
                        "mend the row, or quote fields that hold the separator",
                    )
                place = f"{path}, row {reader.line_num}"
                for name, text in zip(self.names, map(str.strip, row), strict=True):
                    if name not in self.drop:
                        _check_field(text, place, name, word=name in self._words)


def _is_long(text: str) -> bool:
    return "\n" in text or "\r" in text


def _check_field(text: str, place: str, name: str, *, word: bool) -> None:
    where = f"{place}, column {name!r}"
    if not text:
        raise InputError(f"{where} is empty", "remove the row or fill in the value")
    if word:
        return
    if not _is_number(text):
        raise InputError(f"{where}: {text!r} is not a number", remedy_for_words(name))
    if not np.isfinite(float(text)):
        raise InputError(f"{where} is {text}", "remove the row or fill in the value")


@contextmanager
def _opened(path: Path) -> Iterator[tuple[TextIO, Any]]:
    """A file and a reader with the separator of its header; what it cannot read as one line of cause."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        try:
            header = file.readline()
            file.seek(0)
            yield file, csv.reader(file, delimiter=max(",;\t", key=header.count), strict=True)
        except (csv.Error, UnicodeDecodeError) as error:
            raise InputError(f"{path} cannot be read as CSV: {error}", "give CSV in UTF-8") from error


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


class ParquetFiles(Table):
    """Parquet, by row group.

    Rows are counted from 0 in each file, as pandas and Arrow do.
    """

    def __init__(self, paths: Sequence[Path], roles: Roles) -> None:
        super().__init__(paths, roles)
        self._check_types(self.paths[0])

    def _check_types(self, path: Path) -> None:
        schema = self._file(path).schema_arrow
        for role in self.columns.keys() - {"labels", "groups"}:
            for name in self.columns[role]:
                held = schema.field(name).type
                if _numpy_type(held).kind != "f":
                    raise InputTypeError(
                        f"{path}, column {name!r} holds {held}, not numbers", remedy_for_words(name)
                    )

    def _columns_of(self, path: Path) -> tuple[list[str], dict[str, np.dtype[Any]]]:
        schema = self._file(path).schema_arrow
        fields = [field for field in schema if not field.name.startswith(PANDAS_INDEX)]
        return [f.name for f in fields], {f.name: _numpy_type(f.type) for f in fields}

    def _read(self, path: Path, wanted: dict[str, list[str]]) -> Iterator[Batch]:
        file = self._file(path)
        self._check_types(path)
        if not wanted:
            yield file.metadata.num_rows, {}
            return
        names = list(dict.fromkeys(chain.from_iterable(wanted.values())))
        first = 0
        for part in file.iter_batches(batch_size=max(1, BATCH // (8 * len(self.names))), columns=names):
            columns = {name: _values(part.column(name), f"{path}, column {name!r}", first) for name in names}
            batch = {}
            for role, chosen in wanted.items():
                if role in ("labels", "groups"):
                    batch[role] = plain(columns[chosen[0]], f"{path}, column {chosen[0]!r}")
                else:
                    numbers = [_finite(columns[name], f"{path}, column {name!r}", first) for name in chosen]
                    batch[role] = self._shaped(role, numbers)
            yield part.num_rows, batch
            first += part.num_rows

    @staticmethod
    def _file(path: Path) -> Any:
        try:
            import pyarrow
            from pyarrow import parquet
        except ImportError as error:
            raise InputError(
                f"{path} needs pyarrow, which is not installed", "pip install 'gramian[parquet]'"
            ) from error
        try:
            return parquet.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20)  # half the memory
        except pyarrow.ArrowInvalid as error:
            raise InputError(
                f"{path} is not a Parquet file", "give files that end with a Parquet footer"
            ) from error


def _numpy_type(arrow: Any) -> np.dtype[Any]:
    from pyarrow import types

    if types.is_boolean(arrow) or types.is_integer(arrow) or types.is_floating(arrow):
        return float_type(np.dtype(arrow.to_pandas_dtype()), "a column")
    return np.dtype(np.float64 if types.is_decimal(arrow) else np.str_)


def _values(column: Any, where: str, first: int) -> NDArray[Any]:
    from pyarrow import types

    if column.null_count:
        row = first + column.is_null().to_pylist().index(True)
        raise InputError(f"{where}, row {row} is empty", "remove the row or fill in the value")
    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if types.is_decimal(column.type):
        column = column.cast("float64")
    values: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return values


def _finite(values: NDArray[Any], where: str, first: int) -> NDArray[Any]:
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        raise InputError(
            f"{where}, row {first + int(bad[0])} is {values[bad[0]]}", "remove the row or fill in the value"
        )
    return values
