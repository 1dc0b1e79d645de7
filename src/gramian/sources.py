"""Rows of any array, NumPy, Zarr or Dask, read block by block in one form: C-contiguous and decoded.

A stored array of features may carry ``scale`` and ``n_bits`` in its attributes; reading applies them,
so that everybody sees what ``transform`` returns.
"""

from __future__ import annotations

import io
import pickle
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import Any

import cloudpickle
import dask
import numpy as np
import zarr
import zarr.storage
from numpy.typing import NDArray

from gramian.blocks import ArraySpec, Grid
from gramian.errors import InputError, InputTypeError
from gramian.store.layout import Dataset, create_array
from gramian.store.writer import checksum, reading, refuse_lost, write_block
from gramian.validation import numpy_array, refuse_masked

CONSTANT = 256 << 10  # larger arrays within a function travel to remote workers as files
STAGED = 1 << 20  # larger constants travel to remote workers as files, not within the tasks


@dataclass(frozen=True)
class Raw:
    """An array as it is stored: neither scaled nor unpacked."""

    array: Any


@dataclass(frozen=True)
class Selected:
    """The rows of an array at the given indices, in their order.

    Parameters
    ----------
    array : NumPy or Zarr array
    indices : (M,) integers
        Sorted indices are read fastest.
    """

    array: Any
    indices: NDArray[np.integer[Any]]

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.indices), *spec_of(self.array).shape[1:])

    @property
    def dtype(self) -> np.dtype[Any]:
        return spec_of(self.array).dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)


def is_dask(array: Any) -> bool:
    """Whether this is a Dask array; Dask's array module is imported only when somebody has one."""
    return type(array).__module__.startswith("dask.array")


def is_stored(array: Any) -> bool:
    """Whether the rows are read block by block, instead of being at hand."""
    return isinstance(array, (zarr.Array, Raw, Selected)) or is_dask(array)


def in_memory(array: Any) -> bool:
    """Whether the rows are held by this process as NumPy."""
    if isinstance(array, (Raw, Selected)):
        return in_memory(array.array)
    return isinstance(array, np.ndarray)


def as_array(array: Any, name: str = "X") -> Any:
    """NumPy, Zarr, Dask, Raw and Selected as they are; lists and frames as NumPy.

    Raises
    ------
    InputTypeError
        For a path, an open store, a sparse matrix or an array of Python objects.
    InputError
        For a Dask array whose chunk sizes are unknown.
    """
    if isinstance(array, (str, Path)):
        raise InputTypeError(
            f"{name} is the path {str(array)!r}",
            "open it first: gramian.open_dataset(path) or zarr.open_array(path)",
        )
    if isinstance(array, zarr.Group):
        raise InputTypeError(
            f"{name} is a Zarr group, not an array", "name one of its arrays, such as group['covariates']"
        )
    if isinstance(array, Dataset):
        raise InputTypeError(
            f"{name} is a {array.kind} store of several arrays",
            f"name one of them, such as data.{next(iter(array.arrays), 'covariates')}",
        )
    refuse_masked(array, name)
    if isinstance(array, (np.ndarray, zarr.Array, Raw, Selected)):
        refuse_lost_of_ours(array, name)
        return array
    if is_dask(array):
        if any(np.isnan(size) for sizes in array.chunks for size in sizes):
            raise InputError(
                f"{name} is a Dask array of unknown chunk sizes", "call compute_chunk_sizes() on it first"
            )
        return array
    if hasattr(array, "tocsr"):
        raise InputTypeError(f"{name} is a sparse matrix", "give a dense array, for example array.toarray()")
    return numpy_array(array, name)


def refuse_lost_of_ours(array: Any, name: str) -> None:
    """Refuse an array of a store of this package from which a chunk is lost.

    Foreign arrays may leave out chunks of their fill value.
    """
    while isinstance(array, (Raw, Selected)):
        array = array.array
    if isinstance(array, zarr.Array) and _is_ours(array):
        refuse_lost(array, name)


def _is_ours(array: zarr.Array[Any]) -> bool:
    """Whether the group around an array is a store of this package."""
    try:
        if array.path:
            around = zarr.open_group(array.store, path=array.path.rpartition("/")[0], mode="r")
        elif isinstance(array.store, zarr.storage.LocalStore):
            around = zarr.open_group(array.store.root.resolve().parent, mode="r")
        else:
            return False
    except Exception:  # nothing that can be opened stands around it
        return False
    return "gramian" in around.attrs


def spec_of(array: Any) -> ArraySpec:
    """Shape, dtype and chunks as a reader sees them. Nothing is read."""
    if isinstance(array, ArraySpec):
        return array
    if isinstance(array, Raw):
        inner = array.array
        return _stored_spec(inner) if isinstance(inner, zarr.Array) else spec_of(inner)
    if isinstance(array, Selected):
        return picked(spec_of(array.array), array.indices)
    if isinstance(array, zarr.Array):
        spec = _stored_spec(array)
        bits: Any = array.attrs.get("n_bits")
        if bits is None:
            return spec
        chunks = None if spec.chunks is None else (spec.chunks[0], int(bits))
        return ArraySpec((spec.shape[0], int(bits)), np.dtype(np.float32), chunks)
    if is_dask(array):
        return ArraySpec(array.shape, array.dtype, array.chunksize)
    array = np.asarray(array)
    return ArraySpec(array.shape, array.dtype)


def picked(spec: ArraySpec, indices: NDArray[np.integer[Any]]) -> ArraySpec:
    """What a reader sees of the rows at the indices."""
    span = int(np.ptp(indices)) + 1 if len(indices) else 0
    return replace(spec, shape=(len(indices), *spec.shape[1:]), span=span)


def _stored_spec(array: zarr.Array[Any]) -> ArraySpec:
    return ArraySpec(array.shape, np.dtype(array.dtype), array.chunks)


@dataclass(frozen=True)
class Memory:
    """Rows of a NumPy array; a task on another machine takes its own rows along."""

    array: NDArray[Any]
    first: int = 0

    def read(self, rows: slice) -> NDArray[Any]:
        return np.ascontiguousarray(self.array[rows.start - self.first : rows.stop - self.first])

    def alone(self, rows: slice) -> Memory:
        return Memory(self.array[rows.start - self.first : rows.stop - self.first].copy(), rows.start)


@dataclass(frozen=True)
class Stored:
    """Rows of a Zarr array; it travels as a path with its metadata, and the task reads."""

    array: zarr.Array[Any]
    raw: bool = False
    indices: NDArray[np.integer[Any]] | None = None
    first: int = 0

    def read(self, rows: slice) -> NDArray[Any]:
        with reading(self.array):
            if self.indices is None:
                block = np.asarray(self.array[rows])
            else:
                block = _pick(self.array, self.indices[rows.start - self.first : rows.stop - self.first])
        return np.ascontiguousarray(block if self.raw else decode(block, self.array.attrs))

    def alone(self, rows: slice) -> Stored:
        if self.indices is None:
            return self
        return Stored(
            self.array, self.raw, self.indices[rows.start - self.first : rows.stop - self.first], rows.start
        )


RowSource = Memory | Stored


def _pick(array: zarr.Array[Any], indices: NDArray[np.integer[Any]]) -> NDArray[Any]:
    """Rows at the indices, one stored chunk after the other: never more than a chunk beside the result."""
    out = np.empty((len(indices), *array.shape[1:]), array.dtype)
    height = array.chunks[0]
    order = np.argsort(indices, kind="stable")
    chunk = indices[order] // height
    for start, stop in _runs(chunk):
        wanted = order[start:stop]
        first, last = int(indices[wanted[0]]), int(indices[wanted[-1]])
        block = np.asarray(array[first : last + 1])
        out[wanted] = block[indices[wanted] - first]
        del block  # before the next chunk is read
    return out


def _runs(values: NDArray[Any]) -> Iterator[tuple[int, int]]:
    """Start and stop of each run of equal values."""
    if not len(values):
        return
    edges = np.flatnonzero(np.diff(values)) + 1
    yield from zip([0, *edges.tolist()], [*edges.tolist(), len(values)], strict=True)


def decode(block: NDArray[Any], attrs: Any) -> NDArray[Any]:
    """What ``transform`` returns, from what is stored: bits to signs, then the factor 1/sqrt(m), in place."""
    bits, scale = attrs.get("n_bits"), attrs.get("scale")
    if bits is not None:
        unpacked = np.unpackbits(block, axis=1, count=int(bits), bitorder="little")
        block = unpacked.astype(np.float32)
        block *= 2
        block -= 1
    if scale is not None:
        block *= block.dtype.type(scale)
    return block


def row_source(array: Any) -> RowSource:
    """The reader of an array that is NumPy or Zarr, perhaps within Raw or Selected."""
    if isinstance(array, Raw):
        inner = array.array
        return Stored(inner, raw=True) if isinstance(inner, zarr.Array) else row_source(inner)
    if isinstance(array, Selected):
        source = row_source(array.array)
        if isinstance(source, Stored):
            return Stored(source.array, source.raw, np.asarray(array.indices))
        return Memory(source.array[array.indices])
    if isinstance(array, zarr.Array):
        return Stored(array)
    return Memory(np.asarray(array))


def take(array: Any, indices: Any) -> NDArray[Any]:
    """Rows of any array at the given indices, in their order, within bounded memory.

    Parameters
    ----------
    array : NumPy, Zarr or Dask array, Raw or Selected
    indices : (M,) integers

    Returns
    -------
    ndarray of M rows
    """
    indices = np.asarray(indices, dtype=np.intp)
    if is_dask(array):
        return np.ascontiguousarray(array[indices].compute())
    source = row_source(array)
    if isinstance(source, Memory):
        return np.ascontiguousarray(source.array[indices])
    if source.indices is not None:
        indices = source.indices[indices]
    with reading(source.array):
        block = _pick(source.array, indices)
    return block if source.raw else decode(block, source.array.attrs)


def loaded(array: Any) -> Any:
    """The values of an array that may be stored; None stays None."""
    return take(array, np.arange(array.shape[0])) if is_stored(array) else array


def scratch_folder() -> str | None:
    """Where intermediate data goes: a folder that every worker sees; None: this machine's own."""
    folder: str | None = dask.config.get("gramian.scratch", None) or dask.config.get(
        "temporary-directory", None
    )
    return folder


class Scratch:
    """Intermediate arrays on disk, removed when the operation that needed them ends."""

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._count = 0

    def create(self, shape: tuple[int, ...], dtype: Any, step: int) -> zarr.Array[Any]:
        """An array in chunks of ``step`` rows."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="gramian-", dir=scratch_folder())
        self._count += 1
        group = zarr.open_group(str(Path(self._folder.name) / f"{self._count}.zarr"), mode="w", zarr_format=3)
        grids = (Grid(shape[0], step), *(Grid(n, max(1, n)) for n in shape[1:]))
        return create_array(group, "rows", shape, np.dtype(dtype), grids)

    def keep(self, array: Any, step: int) -> zarr.Array[Any]:
        """A NumPy or Zarr array as a file that every worker can read."""
        out = self.create(array.shape, array.dtype, step)
        for index, rows in enumerate(Grid(array.shape[0], step)):
            write_block(out, (index, *([0] * (array.ndim - 1))), np.ascontiguousarray(array[rows]))
        return out

    def close(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


@contextmanager
def scratch() -> Iterator[Scratch]:
    """A place for intermediate arrays that lives as long as the ``with`` block."""
    place = Scratch()
    try:
        yield place
    finally:
        place.close()


def lives_in_memory(array: zarr.Array[Any]) -> bool:
    """Whether a Zarr array's store exists in this process only."""
    return isinstance(array.store, zarr.storage.MemoryStore)


def rows_of_size(spec: ArraySpec, target: int) -> int:
    """Rows of about ``target`` bytes, at least one."""
    return max(1, target // max(1, prod(spec.shape[1:]) * spec.dtype.itemsize))


# ------------------------------------------------------------------ large constants within functions


class _Packer(cloudpickle.Pickler):
    """Pickles a function for its way to the workers, its large arrays left in files beside it."""

    def __init__(self, file: io.BytesIO, place: Scratch) -> None:
        super().__init__(file)
        self._place = place
        self._kept: dict[int, tuple[Any, ...]] = {}

    def persistent_id(self, value: Any) -> tuple[Any, ...] | None:
        if type(value) is not np.ndarray or value.nbytes <= CONSTANT or value.dtype.kind not in "fiub":
            return None
        if id(value) not in self._kept:
            turned = value.flags.f_contiguous and not value.flags.c_contiguous  # BLAS sees the difference
            rows = value.T if turned else value
            kept = self._place.keep(rows, max(1, (8 << 20) * len(rows) // rows.nbytes))
            self._kept[id(value)] = (kept, turned, value)  # the value too: its id must stay its own
        return self._kept[id(value)][:2]

    @property
    def count(self) -> int:
        """Arrays left in files."""
        return len(self._kept)


class _Unpacker(pickle.Unpickler):
    def persistent_load(self, pid: Any) -> NDArray[Any]:
        array, turned = pid
        with reading(array):
            values = np.asarray(array[:])
        return values.T if turned else values


class _Latest:
    """The function that this process unpacked last, once for all its threads; the one before goes first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._token, self._function = "", None

    def unpacked(self, token: str, packed: bytes) -> Any:
        with self._lock:
            if token != self._token:
                self._token, self._function = "", None
                self._function = _Unpacker(io.BytesIO(packed)).load()
                self._token = token
            return self._function


_LATEST = _Latest()


@dataclass(frozen=True)
class Shipped:
    """A function whose large arrays a worker reads once, from the files they were left in."""

    token: str
    packed: bytes

    def __call__(self, *arguments: Any) -> Any:
        return _LATEST.unpacked(self.token, self.packed)(*arguments)


def ship(function: Callable[..., Any], place: Scratch) -> Callable[..., Any]:
    """The function as it travels in every task: itself, or without its large arrays."""
    file = io.BytesIO()
    packer = _Packer(file, place)
    packer.dump(function)
    return Shipped(uuid.uuid4().hex, file.getvalue()) if packer.count else function


class _Digester(cloudpickle.Pickler):
    """Pickles a value with checksums in place of its arrays."""

    def persistent_id(self, value: Any) -> tuple[Any, ...] | None:
        if type(value) is not np.ndarray or value.dtype.kind not in "fiubSU":
            return None
        return value.dtype.str, value.shape, checksum(value)


def digest(value: Any) -> str:
    """What tells whether two values, with all arrays and functions in them, are the same."""
    file = io.BytesIO()
    _Digester(file).dump(value)
    return sha256(file.getvalue()).hexdigest()
