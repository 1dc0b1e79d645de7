"""Schema of stores: data sets, features, Gram matrices, predictions, models. All Zarr v3, no pickle.

A store is a group whose attributes hold ``{"gramian": {"format": 1, "kind": ...}}``. Its arrays have fixed
names and meanings, the same number of rows and the same chunks along the rows.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import zarr
import zarr.errors
import zarr.storage
from numpy.typing import DTypeLike, NDArray
from zarr.codecs import Crc32cCodec
from zarr.core.sync import sync

from gramian.blocks import Grid, size_text
from gramian.errors import GramianError, StoreError
from gramian.store.writer import block_shape, reading, refuse_lost, write_block
from gramian.validation import boolean, path_text

FORMAT = 1
KINDS = ("dataset", "features", "gram", "predictions", "model")
SIDE_ARRAYS = ("target", "labels", "groups", "weights", "split")


@dataclass(frozen=True)
class Rule:
    """What an array of a given name may be: its dimensions and the kinds of its dtype."""

    ndims: tuple[int, ...]
    dtypes: str


SCHEMA = {
    "subspaces": Rule((3,), "f"),
    "covariates": Rule((2,), "f"),
    "target": Rule((1, 2), "f"),
    "labels": Rule((1,), "iu"),
    "groups": Rule((1,), "iu"),
    "weights": Rule((1,), "f"),
    "split": Rule((1,), "iu"),
    "features": Rule((2,), "fu"),
    "gram": Rule((2,), "f"),
    "predictions": Rule((1, 2), "fiu"),
    "probabilities": Rule((2,), "f"),
}


@dataclass(repr=False)
class Dataset:
    """An open store: arrays under their names, None where the store has none.

    Attributes
    ----------
    path : str
    kind : str
        ``"dataset"``, ``"features"``, ``"gram"`` or ``"predictions"``.
    attrs : dict
        What the store says of itself.
    subspaces : (N, n, k) or None
        Orthonormal columns.
    covariates : (N, d) or None
    target : (N,) or (N, t) or None
    labels : (N,) or None
        Integers; their names are `classes`.
    groups, weights, split : (N,) or None
        ``split`` is 0 for training rows, 1 for test rows.
    features : (N, m) or None
    gram : (N, M) or None
    predictions : (N,) or (N, t) or None
        Of a classifier integers; their names are `classes`.
    probabilities : (N, classes) or None
    map : zarr.Group or None
        The fitted map behind ``features``.
    """

    path: str
    kind: str
    attrs: dict[str, Any]
    subspaces: zarr.Array[Any] | None = None
    covariates: zarr.Array[Any] | None = None
    target: zarr.Array[Any] | None = None
    labels: zarr.Array[Any] | None = None
    groups: zarr.Array[Any] | None = None
    weights: zarr.Array[Any] | None = None
    split: zarr.Array[Any] | None = None
    features: zarr.Array[Any] | None = None
    gram: zarr.Array[Any] | None = None
    predictions: zarr.Array[Any] | None = None
    probabilities: zarr.Array[Any] | None = None
    map: zarr.Group | None = None

    @property
    def arrays(self) -> dict[str, zarr.Array[Any]]:
        """The arrays that are there, by name."""
        found = {name: getattr(self, name) for name in SCHEMA}
        return {name: array for name, array in found.items() if array is not None}

    @property
    def rows(self) -> int:
        """The number of rows that all arrays share."""
        for array in self.arrays.values():
            return int(array.shape[0])
        raise StoreError(f"{self.path} holds no array", "write it again")

    @property
    def classes(self) -> list[Any] | None:
        """The names of the labels 0, 1, ... or of the predictions 0, 1, ..., or None."""
        named = self.predictions if self.labels is None else self.labels
        names = None if named is None else named.attrs.get("classes")
        return list(names) if isinstance(names, (list, tuple)) else None

    def __repr__(self) -> str:
        lines = [f"<{self.kind} {self.path}>"]
        for name, array in self.arrays.items():
            shape = " x ".join(f"{size:,}" for size in array.shape)
            named = name in ("labels", "predictions") and self.classes
            note = f", {len(self.classes)} classes" if named and self.classes else ""
            lines.append(
                f"  {name:<13} {shape} {array.dtype}, chunks {array.chunks}, {size_text(array.nbytes)}{note}"
            )
        if self.map is not None:
            lines.append("  map           the fitted map behind the features")
        return "\n".join(lines)


# ---------------------------------------------------------------- open


def open_dataset(path: str | os.PathLike[str], *, mode: Literal["r", "r+"] = "r") -> Dataset:
    """Open a store of data, features, a Gram matrix or predictions. No row is read.

    Parameters
    ----------
    path : str or path
        A folder, or a URL that fsspec opens.
    mode : {"r", "r+"}, default "r"
        For reading, or for writing too.

    Returns
    -------
    Dataset

    Raises
    ------
    StoreError
        If there is no store, it is not one of this package, it has a later format, or its arrays do not
        agree with each other.
    """
    path = path_text(path, "the path")
    group = open_store(path, mode=mode)
    attrs: dict[str, Any] = dict(group.attrs["gramian"])  # type: ignore[arg-type]
    if attrs["kind"] == "model":
        raise StoreError(f"{path} holds a model, not data", "open it with gramian.load_model")
    found = {name: _member(group, name, path) for name in (*SCHEMA, "map")}
    dataset = Dataset(path, attrs["kind"], attrs, **found)
    for name, array in dataset.arrays.items():
        _check_array(array, name, path)
    _check_rows(dataset)
    return dataset


def open_store(path: str | os.PathLike[str], *, mode: Literal["r", "r+"] = "r") -> zarr.Group:
    """The group of a store of any kind, its format checked.

    Raises
    ------
    StoreError
        If there is no store, it is not one of this package, or it has a later format.
    """
    path = path_text(path, "the path")
    local = _local(path)
    if local is not None:
        try:
            _check_folder(local, path)
        except OSError as error:
            raise StoreError(
                f"{path} cannot be opened: {error.strerror}", "see that it can be read"
            ) from error
    node = _open_node(path, mode)
    facts = node.attrs.get("gramian")
    if not isinstance(node, zarr.Group) or not isinstance(facts, dict):
        what = "group" if isinstance(node, zarr.Group) else "array"
        raise StoreError(
            f"{path} is a Zarr {what} that gramian did not write",
            f"bring it in with gramian ingest {path} DEST",
        )
    _check_format(facts, path)
    return node


def _check_folder(local: Path, path: str) -> None:
    if not local.exists():
        raise StoreError(
            f"{path} does not exist", "give the path of a store, or make one with gramian ingest"
        )
    if not local.is_dir():
        raise StoreError(f"{path} is a file, not a store", f"bring it in with gramian ingest {path} DEST")
    if (local / "manifest").is_file() and (local / "journal").is_dir():
        place = shlex.quote(path)
        raise StoreError(
            f"{path} is a run directory, not a store",
            f"see it with gramian report {place}, check it with gramian verify {place}",
        )


def _open_node(path: str, mode: Literal["r", "r+"]) -> zarr.Array[Any] | zarr.Group:
    try:
        return zarr.open(path, mode=mode)
    except FileNotFoundError:
        raise StoreError(
            f"{path} holds no Zarr array or group", f"bring it in with gramian ingest {path} DEST"
        ) from None
    except ImportError as error:
        raise StoreError(
            f"{path} needs a package that is not installed: {_line(error)}", "pip install 'gramian[remote]'"
        ) from error
    except Exception as error:  # drivers of remote stores raise whatever they like
        raise StoreError(
            f"{path} cannot be opened: {_line(error)}", "check the address and the files"
        ) from error


def _check_format(facts: Mapping[str, Any], path: str) -> None:
    number, kind = facts.get("format"), facts.get("kind")
    if number != FORMAT:
        raise StoreError(
            f"{path} has format {number}, this version reads format {FORMAT}",
            "update gramian, or write the store again",
        )
    if facts.get("complete") is False:
        raise StoreError(
            f"{path} was begun but not finished", "complete it with --resume, or write it again with --force"
        )
    if kind not in KINDS:
        raise StoreError(f"{path} is of kind {kind!r}, known are {', '.join(KINDS)}", "write the store again")


def _member(group: zarr.Group, name: str, path: str) -> Any:
    try:
        there = sync((group.store_path / name / "zarr.json").exists())
        return group[name] if there else None
    except Exception as error:  # broken metadata fails in many ways
        raise StoreError(
            f"{name} of {path} cannot be opened: {_line(error)}", "write the store again"
        ) from error


def _check_array(array: Any, name: str, path: str) -> None:
    rule = SCHEMA[name]
    if not isinstance(array, zarr.Array):
        raise StoreError(f"{name} of {path} is a group, not an array", "write the store again")
    if array.ndim not in rule.ndims:
        allowed = " or ".join(map(str, rule.ndims))
        raise StoreError(
            f"{name} of {path} has {array.ndim} dimensions, not {allowed}",
            "write it with its documented shape",
        )
    if array.dtype.kind not in rule.dtypes:
        raise StoreError(f"{name} of {path} has dtype {array.dtype}", "write it with its documented dtype")


def _check_rows(dataset: Dataset) -> None:
    """One number of rows, one height of chunks."""
    first: tuple[str, zarr.Array[Any]] | None = None
    for name, array in dataset.arrays.items():
        if first is None:
            first = name, array
        elif array.shape[0] != first[1].shape[0]:
            raise StoreError(
                f"{name} of {dataset.path} has {array.shape[0]} rows, {first[0]} has {first[1].shape[0]}",
                "write the store again with as many rows in each array",
            )
        elif block_shape(array)[0] != block_shape(first[1])[0]:
            raise StoreError(
                f"{name} of {dataset.path} has chunks of {block_shape(array)[0]} rows, "
                f"{first[0]} of {block_shape(first[1])[0]}",
                "write the store again with the same chunks along the rows",
            )


def _line(error: BaseException) -> str:
    """The first line of an error's text, or its type."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__


# ---------------------------------------------------------------- create


def create_store(
    path: str | os.PathLike[str], kind: str, *, attrs: Mapping[str, Any] | None = None, force: bool = False
) -> zarr.Group:
    """Create an empty store, and the folders above it.

    Parameters
    ----------
    path : str or path
        A folder, or a URL that fsspec opens for writing.
    kind : {"dataset", "features", "gram", "predictions", "model"}
    attrs : mapping, optional
        What the store says of itself beside its format and kind; JSON values. ``"complete": False`` marks it
        as begun: it cannot be opened before `finish_store`.
    force : bool, default False
        Replace a store of this package, or an empty folder. Nothing else is ever removed, and a data set
        gives way to a data set alone.

    Returns
    -------
    zarr.Group

    Raises
    ------
    StoreError
        If the path exists, or, with ``force``, holds something else than a store of this package.
    """
    path = path_text(path, "the path")
    if kind not in KINDS:
        raise StoreError(f"the kind of a store is {kind!r}", f"give one of {', '.join(KINDS)}")
    facts = {"format": FORMAT, "kind": kind, **(attrs or {})}
    with _writing(path):
        _make_way(path, kind, force)
        return zarr.create_group(path, zarr_format=3, attributes={"gramian": facts})


def finish_store(group: zarr.Group) -> None:
    """Take the mark ``"complete": False`` from a store that was created with it: now it may be read."""
    facts = dict(group.attrs["gramian"])  # type: ignore[arg-type]
    if not facts.pop("complete", True):
        group.attrs["gramian"] = facts


@contextmanager
def _writing(path: str) -> Iterator[None]:
    """Failures of a place that is to be written as one line of cause and one of remedy."""
    try:
        yield
    except GramianError:
        raise
    except ImportError as error:
        raise StoreError(
            f"{path} needs a package that is not installed: {_line(error)}", "pip install 'gramian[remote]'"
        ) from error
    except Exception as error:  # drivers of remote stores raise whatever they like
        cause = getattr(error, "strerror", None) or _line(error)
        raise StoreError(f"{path} cannot be written: {cause}", "choose another place") from error


def check_free(path: str | os.PathLike[str], kind: str, *, force: bool = False) -> None:
    """Refuse a path that `create_store` would refuse; nothing is removed.

    Raises
    ------
    StoreError
        If the path exists, or, with ``force``, holds something else than a store of this package.
    """
    path = path_text(path, "the path")
    boolean(force, "force")
    with _writing(path):
        local = _local(path)
        if local is not None:
            check_outside(local)
        if not (_remote_exists(path) if local is None else local.exists() or local.is_symlink()):
            return
        if not force:
            raise StoreError(
                f"{path} exists already",
                "choose another path or give --force to replace it, in Python force=True",
            )
        if local is None:
            _check_kind(_own_kind(path), path, kind)
        else:
            _check_replaceable(local, path, kind)


def check_outside(local: Path) -> None:
    """Refuse a path within the folder of a Zarr array or group."""
    around = _store_around(local)
    if around is not None:
        raise StoreError(f"{local} lies within the store {around}", "choose a path outside of it")


def _store_around(local: Path) -> Path | None:
    """The Zarr array or group in whose folder the path lies."""
    return next((folder for folder in local.absolute().parents if (folder / "zarr.json").is_file()), None)


def _remote_exists(path: str) -> bool:
    return not sync(zarr.storage.FsspecStore.from_url(path).is_empty(""))


def _make_way(path: str, kind: str, force: bool) -> None:
    check_free(path, kind, force=force)
    local = _local(path)
    if local is None:
        sync(zarr.storage.FsspecStore.from_url(path).delete_dir(""))
    elif local.exists():
        _empty(local)


def _check_replaceable(local: Path, path: str, kind: str) -> None:
    """An empty folder, or a store of ours with nothing else in it."""
    if local.is_dir() and not any(local.iterdir()):
        return
    _check_kind(_own_kind(path) if local.is_dir() else None, path, kind)
    for entry in local.iterdir():
        ours = entry.name in ("zarr.json", "map", *SCHEMA) or (entry / "zarr.json").is_file()
        if not (ours or entry.name.endswith(".partial")):
            raise StoreError(f"{path} holds {entry.name}, which is not part of a store", "remove it by hand")


def _check_kind(old: str | None, path: str, kind: str) -> None:
    if old is None:
        raise StoreError(
            f"{path} is not a store that gramian wrote", "choose another path or remove it by hand"
        )
    if old == "dataset" and kind != "dataset":
        raise StoreError(f"{path} holds a data set", "choose another path or remove it by hand")


def _own_kind(path: str) -> str | None:
    """The kind of a store of this package, of any format; None for anything else."""
    try:
        facts = zarr.open_group(path, mode="r").attrs.get("gramian")
    except Exception:  # whatever cannot be opened is not recognised
        return None
    return str(facts.get("kind")) if isinstance(facts, dict) and "format" in facts else None


def _empty(folder: Path) -> None:
    """Remove what is in a folder; what makes it recognisable goes last."""
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name == "zarr.json"):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _local(path: str) -> Path | None:
    """The path on this machine, or None for a URL."""
    path = path.removeprefix("file://")
    return None if "://" in path or "::" in path else Path(path)


def create_array(
    group: zarr.Group,
    name: str,
    shape: tuple[int, ...],
    dtype: DTypeLike,
    grids: tuple[Grid, ...],
    attrs: Mapping[str, Any] | None = None,
) -> zarr.Array[Any]:
    """Create an array whose chunks are the blocks of its grids; one that is there already is returned.

    Parameters
    ----------
    group : zarr.Group
    name : str
    shape : tuple of int
    dtype : dtype
        Booleans, integers or floats of at most 64 bits.
    grids : tuple of Grid
        One for each leading axis; the other axes are not cut.
    attrs : mapping, optional
        Attributes of the array; ``scale`` and ``n_bits`` are applied by every reader of features.

    Returns
    -------
    zarr.Array
        Without compression, each chunk under a crc32c.

    Raises
    ------
    StoreError
        If grids and shape disagree, the dtype cannot be stored or the schema has another for this name,
        or an array of this name differs.
    """
    dtype = np.dtype(dtype)
    dtype = dtype.newbyteorder("=") if dtype.kind in "biuf" and dtype.itemsize <= 8 else dtype
    _check_new(name, shape, dtype, grids)
    steps = [grid.step for grid in grids] + list(shape[len(grids) :])
    chunks = tuple(max(1, min(step, size)) for step, size in zip(steps, shape, strict=True))
    if name in group:
        return _same_array(group, name, shape, dtype, chunks)
    return group.create_array(
        name,
        shape=shape,
        dtype=dtype,
        chunks=chunks,
        compressors=[Crc32cCodec()],
        fill_value=0,
        attributes=dict(attrs or {}),
    )


def _check_new(name: str, shape: tuple[int, ...], dtype: np.dtype[Any], grids: tuple[Grid, ...]) -> None:
    sizes = tuple(grid.size for grid in grids)
    if sizes != shape[: len(grids)]:
        raise StoreError(
            f"{name} of shape {shape} on grids of {sizes}", "give a grid of the size of each axis"
        )
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise StoreError(f"{name} has dtype {dtype}", "give booleans, integers or floats of at most 64 bits")
    rule = SCHEMA.get(name)
    if rule is not None and (len(shape) not in rule.ndims or dtype.kind not in rule.dtypes):
        raise StoreError(
            f"{name} has shape {shape} and dtype {dtype}",
            "give it the shape and the dtype that its name stands for",
        )


def _same_array(
    group: zarr.Group, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], chunks: tuple[int, ...]
) -> zarr.Array[Any]:
    array = group[name]
    if not isinstance(array, zarr.Array) or (array.shape, array.dtype, array.chunks) != (
        shape,
        dtype,
        chunks,
    ):
        raise StoreError(
            f"{name} exists already and differs", "choose another path or give --force to replace it"
        )
    return array


# ---------------------------------------------------------------- side arrays


def copy_side_arrays(
    source: Dataset, group: zarr.Group, *, rows: NDArray[np.integer[Any]] | None = None
) -> dict[str, dict[tuple[int, ...], int]]:
    """Copy target, labels, groups, weights and split, block by block, with their attributes.

    The chunks follow the arrays that the group has; where it has none, those of the source.

    Parameters
    ----------
    source : Dataset
    group : zarr.Group
    rows : (M,) integers, optional
        The rows to copy, in this order; all by default.

    Returns
    -------
    dict
        The checksums of the blocks that were written: ``{name: {index: crc32c}}``.
    """
    written: dict[str, dict[tuple[int, ...], int]] = {}
    present = list(_schema_arrays(group))
    for name in SIDE_ARRAYS:
        array = source.arrays.get(name)
        if array is not None:
            refuse_lost(array, name)
            count = array.shape[0] if rows is None else len(rows)
            step = block_shape(present[0] if present else array)[0]
            written[name] = _copy_rows(array, group, name, Grid(count, step), rows)
    return written


def _schema_arrays(group: zarr.Group) -> Iterator[zarr.Array[Any]]:
    for name in SCHEMA:
        if name in group and isinstance(array := group[name], zarr.Array):
            yield array


def _copy_rows(
    array: zarr.Array[Any], group: zarr.Group, name: str, grid: Grid, rows: NDArray[np.integer[Any]] | None
) -> dict[tuple[int, ...], int]:
    tail = array.shape[1:]
    out = create_array(group, name, (grid.size, *tail), array.dtype, (grid,), dict(array.attrs))
    written = {}
    for block, part in enumerate(grid):
        with reading(array):
            values = array[part] if rows is None else array.oindex[np.asarray(rows[part], dtype=np.intp)]
        index = (block, *(0 for _ in tail))
        written[index] = write_block(out, index, np.asarray(values))
    return written
