"""What a store holds: its arrays, how they are stored, and whether their values are what they should be.

All figures are sums over blocks of rows, so that they are computed as everything else is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from gramian.blocks import Grid, size_text
from gramian.engine import Raw, row_sum
from gramian.errors import StoreError
from gramian.store.layout import open_dataset, open_store
from gramian.store.run import Run
from gramian.store.writer import block_exists, block_grid, block_shape, check_block
from gramian.validation import ORTHONORMAL, path_text, subspace_dimensions

SHOWN = 6  # classes, names or chunks that are listed before the rest is counted


@dataclass(frozen=True)
class ArrayFacts:
    """How one array is stored."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    chunks: tuple[int, ...]
    codecs: tuple[str, ...]
    stored_bytes: int

    def row(self) -> dict[str, str]:
        """For a table."""
        return {
            "array": self.name,
            "shape": " x ".join(f"{size:,}" for size in self.shape),
            "dtype": self.dtype,
            "chunks": " x ".join(f"{size:,}" for size in self.chunks),
            "codecs": ", ".join(self.codecs),
            "on disk": size_text(self.stored_bytes),
        }


@dataclass(frozen=True)
class Check:
    """Whether an array is what it should be, and what was found."""

    array: str
    name: str
    passed: bool
    found: str

    def row(self) -> dict[str, str]:
        """For a table."""
        return {
            "array": self.array,
            "check": self.name,
            "result": "ok" if self.passed else "FAILED",
            "found": self.found,
        }


@dataclass(frozen=True)
class Inspection:
    """What `inspect` found.

    Attributes
    ----------
    path, kind : str
    figures : dict
        A row of figures: rows, dimensions, classes, test rows, bytes.
    arrays : tuple of ArrayFacts
    checks : tuple of Check
    """

    path: str
    kind: str
    figures: dict[str, Any]
    arrays: tuple[ArrayFacts, ...]
    checks: tuple[Check, ...] = field(default=())

    @property
    def ok(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)

    def rows(self) -> list[dict[str, str]]:
        """The arrays as rows of a table."""
        return [facts.row() for facts in self.arrays]

    def check_rows(self) -> list[dict[str, str]]:
        """The checks as rows of a table."""
        return [check.row() for check in self.checks]

    def facts(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return {
            "path": self.path,
            "kind": self.kind,
            "ok": self.ok,
            "figures": self.figures,
            "arrays": [
                {
                    "name": a.name,
                    "shape": list(a.shape),
                    "dtype": a.dtype,
                    "chunks": list(a.chunks),
                    "codecs": list(a.codecs),
                    "stored_bytes": a.stored_bytes,
                }
                for a in self.arrays
            ],
            "checks": [
                {"array": c.array, "name": c.name, "passed": c.passed, "found": c.found} for c in self.checks
            ],
        }


def inspect(path: str | os.PathLike[str]) -> Inspection:
    """Describe a store of any kind and check its values, block by block. Nothing is written.

    Parameters
    ----------
    path : path
        A folder, or a URL that fsspec opens.

    Returns
    -------
    Inspection

    Raises
    ------
    StoreError
        If there is no store of this package.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> from gramian.ingest import ingest
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     data = ingest({"X": np.eye(4)[:, :3], "y": np.arange(4.0)}, f"{folder}/x.zarr")
    ...     found = inspect(data.path)
    >>> found.ok, found.figures["rows"], found.figures["covariates"]
    (True, 4, 3)
    """
    path = path_text(path, "the path")
    group = open_store(path)
    facts: Any = group.attrs["gramian"]
    try:
        arrays = dict(sorted(_arrays(group)))
    except Exception as error:  # broken metadata fails in many ways
        raise StoreError(f"an array of {path} cannot be opened: {error}", "write the store again") from error
    checks: list[Check] = []
    figures: dict[str, Any] = {}
    if facts["kind"] == "model":
        figures["estimator"] = ", ".join(_estimators(group))
    else:
        dataset = open_dataset(path)
        figures["rows"] = dataset.rows
        arrays = {**dataset.arrays, **{name: a for name, a in arrays.items() if name not in dataset.arrays}}
    for name, array in arrays.items():
        found, shown = _checked(name, array)
        checks += found
        figures |= shown
    checks += _records(path, arrays)
    stored = tuple(_facts(name, array) for name, array in arrays.items())
    figures["bytes on disk"] = sum(a.stored_bytes for a in stored)
    return Inspection(path, facts["kind"], figures, stored, tuple(checks))


def _arrays(group: zarr.Group) -> Iterator[tuple[str, zarr.Array[Any]]]:
    for name, member in group.members(max_depth=None):
        if isinstance(member, zarr.Array):
            yield name, member


def _estimators(group: zarr.Group) -> Iterator[str]:
    """The class of a model, of a pipeline those of its steps."""
    document: Any = group.attrs.get("estimator", {})
    name = str(document.get("class", "unknown"))
    if name != "Pipeline":
        yield name
        return
    for _, step in sorted(group.groups()):
        yield from _estimators(step)


def _facts(name: str, array: zarr.Array[Any]) -> ArrayFacts:
    codecs = tuple(_codec_name(codec) for codec in (*array.filters, array.serializer, *array.compressors))
    return ArrayFacts(
        name,
        tuple(array.shape),
        str(array.dtype),
        tuple(block_shape(array)),
        codecs,
        int(array.nbytes_stored()),
    )


def _codec_name(codec: Any) -> str:
    return type(codec).__name__.removesuffix("Codec").lower()


# ------------------------------------------------------------------------------------------- checks


def _checked(name: str, array: zarr.Array[Any]) -> tuple[list[Check], dict[str, Any]]:
    """Checks and figures of one array; only that of its chunks where these cannot be read."""
    missing = [index for index in _indices(array) if not block_exists(array, index)]
    if missing:
        return [Check(name, "chunks", False, _chunks(array, missing, "missing"))], {}
    try:
        return _values_checked(name, array)
    except Exception:
        # a chunk that does not decode raises what its codec likes: ask each of them before giving up
        damaged = [index for index in _indices(array) if check_block(array, index) is None]
        if not damaged:
            raise
        return [Check(name, "chunks", False, _chunks(array, damaged, "damaged"))], {}


def _indices(array: zarr.Array[Any]) -> Iterator[tuple[int, ...]]:
    return product(*map(range, block_grid(array)))


def _chunks(array: zarr.Array[Any], indices: list[tuple[int, ...]], state: str) -> str:
    keys = [array.metadata.encode_chunk_key(index) for index in indices[:SHOWN]]
    rest = f" and {len(indices) - SHOWN} more" if len(indices) > SHOWN else ""
    return f"{', '.join(keys)}{rest} {state}"


def _values_checked(name: str, array: zarr.Array[Any]) -> tuple[list[Check], dict[str, Any]]:
    sums = _sum(_bad_values, array)
    bad = int(sums[0])
    checks = [Check(name, "finite", not bad, f"{bad:,} values are not" if bad else f"{array.size:,} values")]
    special = _CHECKS.get(name)
    if special is None or bad:
        return checks, {}
    found, figures = special(array)
    return checks + found, figures


def _sum(function: Any, array: zarr.Array[Any], *others: Any) -> tuple[NDArray[Any], ...]:
    row_bytes = max(1, array.nbytes // max(1, array.shape[0])) if array.ndim else 1
    return row_sum(function, Grid.for_rows(array.shape[0], 3 * row_bytes), Raw(array), *others)


def _bad_values(block: NDArray[Any]) -> tuple[NDArray[np.float64]]:
    return (np.array(float(block.size - np.isfinite(block).sum())),)


def _subspaces(array: zarr.Array[Any]) -> tuple[list[Check], dict[str, Any]]:
    limit = ORTHONORMAL[array.dtype.itemsize]
    off, counts = _sum(partial(_orthonormality, limit=limit), array)
    wrong = int(off)
    dimensions = [k for k, count in enumerate(counts.tolist()) if count]
    dimension: Any = dimensions[0] if len(dimensions) == 1 else f"{dimensions[0]} to {dimensions[-1]}"
    found = f"{wrong:,} bases are not to {limit:.0e}" if wrong else f"{array.shape[0]:,} bases to {limit:.0e}"
    figures = {"ambient dimension": array.shape[1], "dimension": dimension}
    return [Check("subspaces", "orthonormal", not wrong, found)], figures


def _orthonormality(block: NDArray[Any], *, limit: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Bases that are not orthonormal, and how many there are of each dimension 0 to k."""
    k = block.shape[2]
    dimensions = subspace_dimensions(block)
    gram = np.matmul(block.transpose(0, 2, 1), block)
    wanted = np.eye(k, dtype=bool) & (np.arange(k) < dimensions[:, None, None])
    off = (np.abs(gram - wanted).max(axis=(1, 2)) > limit) | (dimensions == 0)
    return np.array(float(off.sum())), np.bincount(dimensions, minlength=k + 1).astype(np.float64)


def _covariates(array: zarr.Array[Any]) -> tuple[list[Check], dict[str, Any]]:
    return [], {"covariates": array.shape[1]}


def _target(array: zarr.Array[Any]) -> tuple[list[Check], dict[str, Any]]:
    shift = np.asarray(array[:1], dtype=np.float64)
    total, squares = _sum(partial(_moments, shift=shift), array)
    mean = total / array.shape[0]
    deviation = np.sqrt(np.maximum(0.0, squares / array.shape[0] - mean**2))
    mean = np.atleast_1d(mean + shift[0])
    figures: dict[str, Any] = {
        "target mean": _short(mean),
        "target deviation": _short(np.atleast_1d(deviation)),
    }
    return [], figures


def _moments(
    block: NDArray[Any], *, shift: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Sums of values and squares about the first row: about 0 they would lose the digits of the deviation."""
    centred = block - shift
    return centred.sum(axis=0), (centred**2).sum(axis=0)


def _short(values: NDArray[np.float64]) -> Any:
    return (
        float(f"{values[0]:.6g}") if len(values) == 1 else [float(f"{value:.6g}") for value in values[:SHOWN]]
    )


def _labels(array: zarr.Array[Any]) -> tuple[list[Check], dict[str, Any]]:
    classes = list(array.attrs.get("classes") or [])  # type: ignore[arg-type]
    if not classes:
        return [Check(array.basename, "classes", False, "the array names none")], {}
    (counts,) = _sum(partial(_class_counts, classes=len(classes)), array)
    wrong = int(counts[-1])
    shown = [f"{name} {int(count):,}" for name, count in zip(classes, counts.tolist(), strict=False)]
    listed = ", ".join(shown[:SHOWN]) + (f", and {len(shown) - SHOWN} more" if len(shown) > SHOWN else "")
    found = f"{wrong:,} labels beyond the {len(classes)} classes" if wrong else listed
    return [Check(array.basename, "classes", not wrong, found)], {"classes": len(classes)}


def _predictions(array: zarr.Array[Any]) -> tuple[list[Check], dict[str, Any]]:
    return _labels(array) if "classes" in array.attrs else ([], {})


def _class_counts(block: NDArray[Any], *, classes: int) -> tuple[NDArray[np.float64]]:
    """Rows of each class, and last those of none."""
    inside = np.where((block >= 0) & (block < classes), block, classes)
    return (np.bincount(inside, minlength=classes + 1).astype(np.float64),)


def _split(array: zarr.Array[Any]) -> tuple[list[Check], dict[str, Any]]:
    (counts,) = _sum(partial(_class_counts, classes=2), array)
    train, test, wrong = (int(count) for count in counts)
    found = f"{wrong:,} values are neither 0 nor 1" if wrong else f"{train:,} training and {test:,} test rows"
    return [Check("split", "0 or 1", not wrong, found)], {"training rows": train, "test rows": test}


def _weights(array: zarr.Array[Any]) -> tuple[list[Check], dict[str, Any]]:
    negative, total = (float(value) for value in _sum(_weight_sums, array))
    found = f"{int(negative):,} weights are negative" if negative else f"sum {total:.6g}"
    return [Check("weights", "not negative", not negative, found)], {}


def _weight_sums(block: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return np.array(float((block < 0).sum())), np.array(block.sum(dtype=np.float64))


def _groups(array: zarr.Array[Any]) -> tuple[list[Check], dict[str, Any]]:
    groups: set[int] = set()
    for part in Grid.for_rows(array.shape[0], 3 * array.dtype.itemsize):
        groups.update(np.unique(np.asarray(array[part])).tolist())
    return [], {"groups": len(groups)}


_CHECKS = {
    "subspaces": _subspaces,
    "covariates": _covariates,
    "target": _target,
    "labels": _labels,
    "predictions": _predictions,
    "split": _split,
    "weights": _weights,
    "groups": _groups,
}


# ------------------------------------------------------------------------------------------ records


def _records(path: str, arrays: Mapping[str, zarr.Array[Any]]) -> list[Check]:
    """For an output of a run: how many of its blocks have a record."""
    found = _run_of(path)
    if found is None:
        return []
    run, stage = found
    checks = []
    for name, array in arrays.items():
        recorded = run.done.get(f"{stage}/{name}")
        if recorded is not None:
            total = len(list(_indices(array)))
            checks.append(
                Check(name, "records", len(recorded) == total, f"{len(recorded):,} of {total:,} blocks")
            )
    return checks


def _run_of(path: str) -> tuple[Run, str] | None:
    """The run that made a store, and the name of its stage."""
    if "://" in path:
        return None
    place = Path(path).resolve()
    for root in (place.with_name(place.name + ".run"), place.parent):
        if (root / "manifest").is_file():
            run = Run.open(root, None)
            for stage, output in run.manifest.get("outputs", {}).items():
                if (root / output).resolve() == place:
                    return run, stage
    return None
