"""What a manifest says: fingerprints of inputs, versions, the CPU; and what two manifests differ in."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import threadpoolctl
import zarr

from gramian.blocks import Grid
from gramian.store.writer import checksum, reading

SAMPLED_BLOCKS = 16  # blocks of an input whose checksums are in its fingerprint
SAMPLED_BYTES = 4 << 20  # rows of one such block

_ABSENT = "absent"


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """What two manifests differ in, one short text each.

    Returns
    -------
    hard : list of str
        Parameters and inputs: another result.
    soft : list of str
        Versions and CPU: perhaps other bits.
    """
    hard = [f"parameter {text}" for text in _changes(old.get("parameters", {}), new.get("parameters", {}))]
    hard += _input_changes(old.get("inputs", {}), new.get("inputs", {}))
    soft = list(_changes(old.get("versions", {}), new.get("versions", {}), arrow=" "))
    soft += [f"cpu {text}" for text in _changes(old.get("cpu", {}), new.get("cpu", {}))]
    return hard, soft


def _changes(old: Any, new: Any, prefix: str = "", arrow: str = ": ") -> Iterator[str]:
    """Differences of nested mappings, named by dotted keys."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in [*old, *(key for key in new if key not in old)]:
            name = f"{prefix}.{key}" if prefix else str(key)
            yield from _changes(old.get(key, _ABSENT), new.get(key, _ABSENT), name, arrow)
    elif old != new:
        yield f"{prefix}{arrow}{_short(old)} -> {_short(new)}"


def _input_changes(old: Any, new: Any, prefix: str = "") -> Iterator[str]:
    if not (isinstance(old, Mapping) and isinstance(new, Mapping)):
        yield from (f"input {text}" for text in _changes(old, new, prefix))
    elif "checksums" in old and "checksums" in new:
        yield from _fingerprint_changes(old, new, prefix)
    else:
        for key in [*old, *(key for key in new if key not in old)]:
            name = f"{prefix}.{key}" if prefix else str(key)
            yield from _input_changes(old.get(key, _ABSENT), new.get(key, _ABSENT), name)


def _fingerprint_changes(old: Mapping[str, Any], new: Mapping[str, Any], name: str) -> Iterator[str]:
    """Metadata first; checksums say something only where that agrees."""
    facts = list(_changes({**old, "checksums": None}, {**new, "checksums": None}, arrow=" "))
    if facts:
        yield from (f"input {name}: {text}" for text in facts)
        return
    before, after = old["checksums"], new["checksums"]
    blocks = [block for block in before if before[block] != after.get(block)]
    if len(blocks) == 1:
        yield f"input {name}: checksum of block {blocks[0]} differs"
    elif blocks:
        yield f"input {name}: checksums of blocks {', '.join(blocks)} differ"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def fingerprint(array: Any) -> dict[str, Any]:
    """What tells whether an input is still the same: its metadata and sixteen evenly spread checksums.

    Blocks are rows of at most 4 MiB, on a grid that follows from shape and dtype: the same values in other
    chunks, or in memory, have the same fingerprint.

    Parameters
    ----------
    array : NumPy, Zarr or Dask array

    Returns
    -------
    dict of JSON values
    """
    attrs = dict(array.attrs) if isinstance(array, zarr.Array) else {}
    rows, *tail = map(int, array.shape)
    row_bytes = int(np.prod(tail, dtype=np.int64)) * array.dtype.itemsize
    grid = Grid(rows, max(1, SAMPLED_BYTES // max(1, row_bytes)))
    spread = np.linspace(0, len(grid) - 1, SAMPLED_BLOCKS) if len(grid) else np.empty(0)
    with reading(array):
        checksums = {
            str(block): _checksum_of(array[grid[int(block)]])
            for block in np.unique(spread.round().astype(int))
        }
    return {
        "shape": [rows, *tail],
        "dtype": array.dtype.str,
        **{key: attrs[key] for key in ("scale", "n_bits", "classes") if key in attrs},
        "checksums": checksums,
    }


def _checksum_of(block: Any) -> int:
    values = np.asarray(block)
    return checksum(values.astype(str) if values.dtype.hasobject else values)


def versions() -> dict[str, str]:
    """The versions on which the bits of a result may depend."""
    import gramian

    names = ("numpy", "scipy", "numba", "scikit-learn", "zarr", "dask", "distributed")
    return {
        "python": platform.python_version(),
        "gramian": gramian.__version__,
        **{name: importlib.metadata.version(name) for name in names},
    }


def cpu() -> dict[str, str]:
    """The machine as the bits of a result may depend on it: never its name."""
    libraries = threadpoolctl.threadpool_info()
    chosen = sorted({library["architecture"] for library in libraries if library.get("architecture")})
    return {
        "machine": platform.machine(),
        "system": sys.platform,
        **_processor(),
        "blas": ", ".join(chosen) or "unknown",
    }


def _processor() -> dict[str, str]:
    """Family and model name from the system, as far as it says so."""
    facts: dict[str, str] = {}
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            facts.setdefault(key.strip(), value.strip())
            if not line:
                break
    vendor, family, model = (facts.get(key, "") for key in ("vendor_id", "cpu family", "model"))
    name = facts.get("model name") or platform.processor() or "unknown"
    return {"family": f"{vendor} {family}/{model}".strip(" /") or "unknown", "model": name}
