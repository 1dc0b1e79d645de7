"""Named arrays: NumPy files, arrays in memory, and foreign Zarr of any version and layout."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import zarr
from numpy.typing import NDArray

from gramian.errors import InputError, InputTypeError
from gramian.ingest.coding import plain
from gramian.ingest.rows import BATCH, SIDES, Batch, Field, float_type
from gramian.sources import refuse_lost_of_ours

DATA = ("subspaces", "covariates")
CODED = ("labels", "groups")
STAGED = 4  # chunks of so many batches are decoded into a file first: in place each batch would decode one


@dataclass(frozen=True)
class NpyArray:
    """An array in a ``.npy`` file, or in one that stands uncompressed within another file.

    It is mapped anew for each part that is read, so that pages do not pile up in memory.
    """

    path: Path
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    order: Any

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        if 0 in self.shape:
            return np.empty(self.shape, self.dtype)[rows]
        return np.array(self.map("r")[rows], order="C")

    def map(self, mode: Any) -> NDArray[Any]:
        """The values as they stand in the file."""
        return np.memmap(self.path, self.dtype, mode, self.offset, self.shape, self.order)


def npy_array(path: Path, offset: int = 0, *, where: str | None = None) -> NpyArray:
    """Read the header of a ``.npy`` that starts at a byte of a file."""
    where = where or str(path)
    with path.open("rb") as file:
        file.seek(offset)
        shape, fortran, dtype = _header(file, where)
        start = file.tell()
    if dtype.hasobject:
        raise InputTypeError(
            f"{where} holds pickled Python objects", "save it with numbers or strings of a fixed type"
        )
    if start + prod(shape) * dtype.itemsize > path.stat().st_size:
        raise InputError(f"{where} ends before its {shape} values of {dtype}", "write or copy the file again")
    return NpyArray(path, start, shape, dtype, "F" if fortran else "C")


def _header(file: BinaryIO, where: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    try:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            return np.lib.format.read_array_header_1_0(file)
        return np.lib.format.read_array_header_2_0(file)
    except (ValueError, EOFError) as error:
        raise InputError(f"{where} is not a .npy array", "save it with numpy.save or numpy.savez") from error


def npz_arrays(path: Path, scratch: Path) -> dict[str, NpyArray]:
    """The members of a ``.npz``; compressed ones are unpacked into the scratch folder, not into memory."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {
                member.filename.removesuffix(".npy"): _npz_member(
                    archive, member, path, scratch / f"{number}.npy"
                )
                for number, member in enumerate(archive.infolist())
                if member.filename.endswith(".npy")
            }
    except zipfile.BadZipFile as error:
        raise InputError(f"{path} is not a .npz file, or is damaged", "save it with numpy.savez") from error


def _npz_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path, unpacked: Path) -> NpyArray:
    where = f"{member.filename.removesuffix('.npy')} of {path}"
    if member.compress_type != zipfile.ZIP_STORED:
        with archive.open(member) as packed, unpacked.open("wb") as out:
            shutil.copyfileobj(packed, out, BATCH)
        return npy_array(unpacked, where=where)
    with path.open("rb") as file:  # the local header says by itself how long its name and extra field are
        file.seek(member.header_offset + 26)
        lengths = np.frombuffer(file.read(4), "<u2")
    return npy_array(path, member.header_offset + 30 + int(lengths.sum()), where=where)


def staged(array: zarr.Array[Any], path: Path) -> NpyArray:
    """A copy in a ``.npy`` file in the order of columns, made chunk by chunk."""
    file = npy_array_like(path, array.shape, np.dtype(array.dtype))
    grid = [range(0, size, step) for size, step in zip(array.shape, array.chunks, strict=True)]
    with _one_chunk_at_a_time():
        for corner in product(*grid):
            part = tuple(slice(start, start + step) for start, step in zip(corner, array.chunks, strict=True))
            file.map("r+")[part] = array[part]
    return file


def npy_array_like(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NpyArray:
    """A new file of zeros in the order of columns."""
    np.lib.format.open_memmap(path, "w+", dtype, shape, fortran_order=True)
    return npy_array(path)


def _stageable(array: zarr.Array[Any]) -> bool:
    return array.ndim <= 2 and array.dtype.kind in "biufSU"


def zarr_arrays(path: str) -> tuple[dict[str, Any], list[Any] | None]:
    """The arrays of a Zarr group, or one array as ``X``; and the classes of a store of this package."""
    try:
        node = zarr.open(path, mode="r")
    except ImportError as error:
        raise InputError(
            f"{path} needs a package that is not installed: {error}", "pip install 'gramian[remote]'"
        ) from error
    except Exception as error:  # drivers of remote stores raise whatever they like
        raise InputError(f"{path} cannot be opened as Zarr: {error}", "give a Zarr array or group") from error
    if isinstance(node, zarr.Array):
        return {"X": node}, None
    arrays = dict(node.arrays())
    if not arrays:
        raise InputError(
            f"{path} is a Zarr group without arrays", "give the group or the array that holds the data"
        )
    kept = arrays["labels"].attrs.get("classes") if "labels" in arrays else None
    return arrays, list(kept) if isinstance(kept, list) else None


class Arrays:
    """Arrays that agree in their rows, under the names of the store.

    Parameters
    ----------
    where : str
        Path or description, for messages.
    arrays : mapping of str to array
        NumPy, Zarr, Dask arrays or files; all that has a shape, a dtype and slices of rows.
    classes : list, optional
        What the integers of ``labels`` stand for.
    flat : bool, default False
        Take each row of the data, of whatever shape, as one vector.
    scratch : Path, optional
        A folder for Zarr arrays whose chunks are much higher than a batch: read there, each is decoded once.

    Raises
    ------
    InputError, InputTypeError
        For arrays that differ in length, or hold what no store takes.
    StoreError
        For an array of a store of this package that has lost a chunk.
    """

    def __init__(
        self,
        where: str,
        arrays: Mapping[str, Any],
        *,
        classes: list[Any] | None = None,
        flat: bool = False,
        scratch: Path | None = None,
    ) -> None:
        self.where = where
        for name, array in arrays.items():
            refuse_lost_of_ours(array, name)
        self.arrays = {name: _sliceable(array, f"{name} of {where}") for name, array in arrays.items()}
        self._classes = None if classes is None else np.array(classes)
        lengths = {name: int(array.shape[0]) for name, array in self.arrays.items()}
        self.rows = next(iter(lengths.values()))
        if set(lengths.values()) != {self.rows}:
            found = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise InputError(
                f"the arrays of {where} differ in length: {found}", "give one entry for each row"
            )
        self.fields = {name: _field(name, array, where, flat) for name, array in self.arrays.items()}
        names = {name: getattr(array, "attrs", {}).get("names") for name, array in self.arrays.items()}
        self.attrs: dict[str, dict[str, Any]] = {
            name: {"names": list(known)}
            for name, known in names.items()
            if isinstance(known, (list, tuple)) and self.fields[name].tail == (len(known),)
        }

        if scratch is not None:
            self._stage(scratch)

    def _stage(self, scratch: Path) -> None:
        step = self._step(self.arrays)
        for name, array in self.arrays.items():
            if isinstance(array, zarr.Array) and array.chunks[0] >= STAGED * step and _stageable(array):
                self.arrays[name] = staged(array, scratch / f"{name}.npy")

    def batches(self, names: Collection[str]) -> Iterator[Batch]:
        """All rows, of the named arrays only."""
        chosen = {name: array for name, array in self.arrays.items() if name in names}
        step = self._step(chosen)
        with _one_chunk_at_a_time() if self._tall_chunks(chosen, step) else nullcontext():
            for first in range(0, self.rows, step):
                count = min(step, self.rows - first)
                yield count, {name: self._part(name, slice(first, first + count)) for name in chosen}

    def _part(self, name: str, rows: slice) -> NDArray[Any]:
        values = np.asarray(self.arrays[name][rows])
        if name in CODED:
            values = plain(values, f"{name} of {self.where}")
            return self._decoded(values) if name == "labels" else values
        if name == "split":
            return values
        field = self.fields[name]
        return np.ascontiguousarray(values, dtype=field.dtype).reshape(len(values), *field.tail)

    def _decoded(self, codes: NDArray[Any]) -> NDArray[Any]:
        if self._classes is None:
            return codes
        if codes.dtype.kind != "i" or codes.min() < 0 or codes.max() >= len(self._classes):
            raise InputError(
                f"labels of {self.where} go beyond its {len(self._classes)} classes",
                "mend the labels or the classes",
            )
        names: NDArray[Any] = self._classes[codes]
        return names

    def _step(self, chosen: Mapping[str, Any]) -> int:
        """Rows of a batch: of about `BATCH` bytes, and whole chunks where these are not higher."""
        row = sum(self.fields[name].row_bytes for name in chosen)
        step = max(1, BATCH // max(8, row))
        heights = [array.chunks[0] for array in chosen.values() if isinstance(array, zarr.Array)]
        height = max(heights, default=1)
        return step - step % height if step >= height else step

    def _tall_chunks(self, chosen: Mapping[str, Any], step: int) -> bool:
        return any(isinstance(array, zarr.Array) and array.chunks[0] > step for array in chosen.values())


def _one_chunk_at_a_time() -> Any:
    """Chunks that are higher than a batch may be large: decode them one after the other."""
    return zarr.config.set({"async.concurrency": 1, "threading.max_workers": 1})


def _sliceable(array: Any, where: str) -> Any:
    if hasattr(array, "tocsr"):
        raise InputTypeError(f"{where} is a sparse matrix", "give a dense array, for example array.toarray()")
    if not all(hasattr(array, name) for name in ("shape", "dtype", "__getitem__")) or hasattr(array, "iloc"):
        array = np.asarray(array)
    if not array.shape:
        raise InputError(f"{where} is a single value", "give one entry for each row")
    if array.dtype.kind == "O":
        raise InputTypeError(f"{where} holds Python objects", "give numbers or strings of a fixed type")
    return array


def _field(name: str, array: Any, where: str, flat: bool) -> Field:
    tail, dtype = tuple(int(n) for n in array.shape[1:]), np.dtype(array.dtype)
    dimensions = {"subspaces": (2,), "covariates": (1,), "target": (0, 1)}.get(name, (0,))
    if name == "covariates" and flat:
        tail = (prod(tail),)
    if len(tail) not in dimensions or 0 in tail:
        raise InputError(
            f"{name} of {where} has shape {array.shape}", f"give {_WANTED.get(name, 'one value a row')}"
        )
    if name not in (*CODED, "split"):
        dtype = float_type(dtype, f"{name} of {where}")
    return Field(tail, dtype)


_WANTED = {
    "subspaces": "bases as an array (N, n, k)",
    "covariates": "an array (N, d) of rows and columns",
    "target": "one value or one row of values for each row",
}


def by_role(
    found: Mapping[str, Any],
    where: str,
    *,
    target: str | None = None,
    labels: str | None = None,
    groups: str | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """Give the arrays of a source the names of the store.

    Parameters
    ----------
    found : mapping of str to array
        Under the names of the store, or ``X`` and ``y``, or any names that the next three say.
    where : str
        For messages.
    target, labels, groups : str, optional
        The arrays that are these, whatever their names.

    Returns
    -------
    roles : dict of str to array
    ignored : list of str
        Names that nothing was made of.
    """
    rest = dict(found)
    roles: dict[str, Any] = {}
    for role, name in (("target", target), ("labels", labels), ("groups", groups)):
        if name is not None:
            if name not in found:
                raise InputError(
                    f"{where} has no array {name!r} for the {role}", f"give one of {', '.join(found)}"
                )
            roles[role] = rest.pop(name, found[name])
    for role in (*DATA, *SIDES):
        if role in rest and role not in roles:
            roles[role] = rest.pop(role)
    if not roles.keys() & set(DATA):
        name = _data_name(rest, where)
        array = rest.pop(name)
        roles["subspaces" if len(array.shape) == 3 else "covariates"] = array
    if "y" in rest:
        role = "target" if np.dtype(rest["y"].dtype).kind in "fc" or len(rest["y"].shape) > 1 else "labels"
        if role not in roles:
            roles[role] = rest.pop("y")
    return roles, list(rest)


def _data_name(rest: Mapping[str, Any], where: str) -> str:
    """``X``, or the only array that has more than one dimension."""
    if "X" in rest:
        return "X"
    several = [name for name, array in rest.items() if len(array.shape) > 1 and name != "y"]
    if len(several) != 1:
        raise InputError(
            f"{where} holds {', '.join(rest) or 'no array'}, none of them named X, covariates or subspaces",
            "name the data X, covariates or subspaces",
        )
    return several[0]
