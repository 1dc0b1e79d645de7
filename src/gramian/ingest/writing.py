"""From a source to a store: a pass over the side arrays, then one over everything, block by block."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from gramian.blocks import Grid
from gramian.engine import Progress
from gramian.errors import InputError, StoreError
from gramian.ingest.coding import MOST_CLASSES, Codes
from gramian.ingest.rows import Field, Rows, check_finite, reblock
from gramian.ingest.splitting import GroupSplit, RowSplit, check_split, strata_of
from gramian.store.layout import check_free, create_array, create_store
from gramian.store.writer import write_block
from gramian.validation import orthonormal

# A chunk is an eighth of a block of the engine: operations whose rows need scratch read fewer rows at once
# than fill a block, and should not decode many that they do not use.
CHUNKS = 8


@dataclass
class Survey:
    """What must be known before the first block is written."""

    rows: int = 0
    codes: dict[str, Codes] = field(default_factory=dict)
    label_counts: dict[Any, int] = field(default_factory=dict)
    group_sizes: dict[Any, int] = field(default_factory=dict)
    group_labels: dict[Any, set[Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, source: Rows) -> Survey:
        """One pass over labels and groups; no other array is read."""
        survey = cls()
        for count, batch in source.batches([name for name in ("labels", "groups") if name in source.fields]):
            survey.rows += count
            survey._count(batch, source.where)
        if not survey.rows:
            raise InputError(f"{source.where} has no rows", "give a source with at least one row")
        if survey.label_counts:
            survey.codes["labels"] = Codes(survey.label_counts)
        if survey.group_sizes:
            survey.codes["groups"] = Codes(survey.group_sizes)
        return survey

    def _count(self, batch: Mapping[str, NDArray[Any]], where: str) -> None:
        if "labels" in batch:
            _add(self.label_counts, batch["labels"])
            if len(self.label_counts) > MOST_CLASSES:
                raise InputError(
                    f"the labels of {where} have more than {MOST_CLASSES} classes",
                    "take the column as the target",
                )
        if "groups" in batch:
            _add(self.group_sizes, batch["groups"])
        if "labels" in batch and "groups" in batch:
            for group, label in set(zip(batch["groups"].tolist(), batch["labels"].tolist(), strict=True)):
                self.group_labels.setdefault(group, set()).add(label)


def _add(counts: dict[Any, int], values: NDArray[Any]) -> None:
    for value, count in zip(*(part.tolist() for part in np.unique(values, return_counts=True)), strict=True):
        counts[value] = counts.get(value, 0) + count


class Splitter:
    """The split of a survey's rows, block by block."""

    def __init__(self, survey: Survey, fraction: float, seed: int) -> None:
        self._by_row: RowSplit | None = None
        if "groups" in survey.codes:
            sizes = {_group(survey, g): size for g, size in survey.group_sizes.items()}
            labels = {
                _group(survey, g): {_label(survey, v) for v in found}
                for g, found in survey.group_labels.items()
            }
            strata = strata_of(labels) or dict.fromkeys(sizes, 0)
            self._by_group = GroupSplit(sizes, strata, fraction, seed)
            test_rows = self._by_group.test_rows
        else:
            self._by_row = RowSplit(_class_counts(survey), fraction, seed)
            test_rows = self._by_row.test_rows
        check_split(test_rows, survey.rows, fraction)

    def assign(self, block: int, count: int, stored: Mapping[str, NDArray[Any]]) -> NDArray[np.int8]:
        """The next block, by its labels or groups as they are stored."""
        if self._by_row is None:
            return self._by_group.assign(stored["groups"])
        return self._by_row.assign(block, stored.get("labels", np.zeros(count, np.int64)))


def _encoded(codes: Codes, name: str, values: NDArray[Any]) -> NDArray[np.int64]:
    """Labels as positions among the classes; groups too, unless they are whole numbers already."""
    positions = codes.encode(values)
    if name == "groups" and codes.are_integers:
        return np.array(codes.values, dtype=np.int64)[positions]
    return positions


def _label(survey: Survey, value: Any) -> int:
    return int(_encoded(survey.codes["labels"], "labels", np.array([value]))[0])


def _group(survey: Survey, value: Any) -> int:
    return int(_encoded(survey.codes["groups"], "groups", np.array([value]))[0])


def _class_counts(survey: Survey) -> NDArray[np.int64]:
    if "labels" not in survey.codes:
        return np.array([survey.rows])
    counts = np.zeros(len(survey.codes["labels"]), np.int64)
    for value, count in survey.label_counts.items():
        counts[_label(survey, value)] += count
    return counts


def write_dataset(
    source: Rows,
    dest: str,
    *,
    facts: Mapping[str, Any],
    scratch: Path,
    fraction: float | None = None,
    seed: int = 0,
    force: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
) -> None:
    """Write all rows of a source; the store appears when it is complete.

    Parameters
    ----------
    source : Rows
    dest : str
        Path or URL.
    facts : mapping
        What the store says of itself.
    scratch : Path
        A folder beside a local ``dest``, where the store stands until it is complete.
    fraction : float, optional
        Share of the rows for testing.
    seed : int
        Of the split.
    force : bool
        Replace an existing data set.
    on_progress : callable, optional
        Called with the blocks done and their number.
    """
    survey = Survey.of(source)
    splitter = None if fraction is None else Splitter(survey, fraction, seed)
    fields = _stored_fields(source, split=splitter is not None)
    data = fields.get("subspaces") or fields["covariates"]
    grid = Grid.for_rows(survey.rows, CHUNKS * data.row_bytes)
    with _appearing(dest, facts, scratch, force=force) as group:
        arrays = {
            name: create_array(
                group, name, (survey.rows, *f.tail), f.dtype, (grid,), _attrs(name, source, survey)
            )
            for name, f in fields.items()
        }
        names = [name for name in fields if name in source.fields]
        for block, (count, values) in enumerate(reblock(source.batches(names), grid.step)):
            stored = {
                name: _stored(name, part, source, survey, block * grid.step) for name, part in values.items()
            }
            if splitter is not None:
                stored["split"] = splitter.assign(block, count, stored)
            for name, part in stored.items():
                part = np.ascontiguousarray(part, fields[name].dtype)
                write_block(arrays[name], (block, *[0] * len(fields[name].tail)), part)
            if on_progress is not None:
                on_progress(Progress("ingest", block + 1, len(grid)))


def _stored_fields(source: Rows, *, split: bool) -> dict[str, Field]:
    types: dict[str, np.dtype[Any]] = {
        "labels": np.dtype(np.int64),
        "groups": np.dtype(np.int64),
        "split": np.dtype(np.int8),
    }
    fields = {name: Field(f.tail, types.get(name, f.dtype)) for name, f in source.fields.items()}
    if split:
        fields["split"] = Field((), types["split"])
    return fields


def _attrs(name: str, source: Rows, survey: Survey) -> dict[str, Any]:
    attrs = dict(source.attrs.get(name, {}))
    if name == "labels":
        attrs["classes"] = survey.codes["labels"].values
    if name == "groups" and not survey.codes["groups"].are_integers:
        attrs["names"] = survey.codes["groups"].values
    return attrs


def _stored(name: str, values: NDArray[Any], source: Rows, survey: Survey, first: int) -> NDArray[Any]:
    """A block as it is written, checked."""
    where = f"{name} of {source.where}"
    if name in survey.codes:
        return _encoded(survey.codes[name], name, values)
    check_finite(values, where, first)
    if name == "subspaces":
        orthonormal(values, where, first_row=first)
    if name == "weights" and (values < 0).any():
        row = int((values < 0).argmax())
        raise InputError(f"row {first + row} of {where} is {values[row]}", "give weights of at least 0")
    if name == "split" and not np.isin(values, (0, 1)).all():
        raise InputError(
            f"{where} holds {np.setdiff1d(values, (0, 1))[0]}", "give 0 for training and 1 for test rows"
        )
    return values


@contextmanager
def workspace(dest: str, *, force: bool) -> Iterator[Path]:
    """A hidden folder for intermediate files, beside a local ``dest`` so that it can move there.

    Raises
    ------
    StoreError
        If ``dest`` is taken: before any work is done.
    """
    check_free(dest, "dataset", force=force)
    if _is_url(dest):
        with tempfile.TemporaryDirectory(prefix="gramian-") as folder:
            yield Path(folder)
        return
    place = Path(dest.removeprefix("file://")).absolute()
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        folder = tempfile.mkdtemp(prefix=f".{place.name}.", suffix=".partial", dir=place.parent)
    except OSError as error:
        raise StoreError(f"{dest} cannot be written: {error.strerror}", "choose another place") from error
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _appearing(dest: str, facts: Mapping[str, Any], scratch: Path, *, force: bool) -> Iterator[zarr.Group]:
    """A store to fill that can be opened under its name only once it is complete."""
    if _is_url(dest):
        group = create_store(dest, "dataset", attrs={**facts, "complete": False}, force=force)
        yield group
        group.attrs["gramian"] = {k: v for k, v in group.attrs["gramian"].items() if k != "complete"}  # type: ignore[union-attr]
        return
    store = scratch / "store"
    yield create_store(store, "dataset", attrs=facts)
    create_store(dest, "dataset", attrs={"complete": False}, force=force)  # makes way for it
    place = Path(dest.removeprefix("file://"))
    for entry in sorted(store.iterdir(), key=lambda entry: entry.name == "zarr.json"):
        os.replace(entry, place / entry.name)


def _is_url(path: str) -> bool:
    return "://" in path.removeprefix("file://") or "::" in path
