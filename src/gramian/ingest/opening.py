"""What a source is, from its name or type, and which options it takes."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from gramian.errors import InputError, InputTypeError
from gramian.ingest.arrays import Arrays, by_role, npy_array, npz_arrays, zarr_arrays
from gramian.ingest.images import SUFFIXES, ImageGroups, image_paths
from gramian.ingest.rows import Rows
from gramian.ingest.spans import GatheredRows, Matrices, Span, Spans
from gramian.ingest.tables import CsvFiles, ParquetFiles, Roles, check_dropped, remedy_for_words
from gramian.validation import choice, integer, real

CSV = (".csv", ".tsv")
PARQUET = (".parquet", ".pq")
KINDS = ".npy, .npz, .csv, .parquet, a folder of images, or Zarr"


@dataclass(frozen=True)
class Options:
    """How a source is read; None and False where nothing was said. Meanings stand with `ingest`."""

    subspaces: bool = False
    rank: int | None = None
    energy: float | None = None
    group_by: int | str | None = None
    labels: int | str | None = None
    target: str | Sequence[str] | None = None
    drop: tuple[str, ...] = ()
    gray: bool | None = None
    size: str | tuple[int, int] | None = None
    center: bool = False
    on_deficient: str = "error"

    def __post_init__(self) -> None:
        choice(self.on_deficient, "on_deficient", ["error", "drop"])
        if self.rank is not None:
            integer(self.rank, "rank")
        if self.energy is not None and real(self.energy, "energy", strict=True) > 1:
            raise InputError(f"energy is {self.energy}", "give a share above 0 and of at most 1")
        roles = {"target": self.targets, "labels": (self.labels,), "group_by": (self.group_by,)}
        for role, names in roles.items():
            used = {str(name) for name in names if name is not None}
            both = [name for name in self.drop if str(name) in used]
            if both:
                raise InputError(f"drop has {both[0]!r}, which is the {role}", "name it in one of them")

    @property
    def span(self) -> Span:
        """What is taken of each group of vectors."""
        return Span(self.rank, self.energy, self.center)

    @property
    def targets(self) -> tuple[str, ...]:
        """The names of the target's columns."""
        return () if self.target is None else column_names(self.target, "target")

    @property
    def pixels(self) -> tuple[int, int] | None:
        """Height and width of images."""
        if self.size is None:
            return None
        parts = self.size.lower().split("x") if isinstance(self.size, str) else list(self.size)
        if len(parts) != 2 or not all(str(part).isdigit() and int(part) > 0 for part in parts):
            raise InputError(f"size is {self.size!r}", "give height x width in pixels, such as 32x32")
        return int(parts[0]), int(parts[1])

    def refuse(self, source: str, names: Sequence[str]) -> None:
        """Refuse options that a source does not take, rather than pass over them."""
        defaults = {field.name: field.default for field in fields(self)}
        for name in names:
            value = getattr(self, name)
            if value != defaults[name]:
                option = name.replace("_", "-")
                raise InputError(
                    f"{source} takes no {option}, it is {value!r}", _BELONGS.get(name, f"leave {option} away")
                )


def column_names(given: str | Iterable[str], name: str) -> tuple[str, ...]:
    """One name or several as a tuple."""
    if isinstance(given, str):
        return (given,)
    if not isinstance(given, Iterable):
        raise InputTypeError(f"{name} is {given!r}", "give the names of columns")
    return tuple(given)


_BELONGS = {
    "drop": "leave it away: it is for the columns of tables",
    "gray": "leave it away: it is for folders of images",
    "size": "leave it away: it is for folders of images",
    "rank": "add --subspaces to turn groups of vectors into subspaces",
    "energy": "add --subspaces to turn groups of vectors into subspaces",
    "center": "add --subspaces to turn groups of vectors into subspaces",
    "on_deficient": "add --subspaces to turn groups of vectors into subspaces",
}


def open_source(source: Any, options: Options, scratch: Path) -> tuple[Rows, list[str]]:
    """A source ready to be read.

    Parameters
    ----------
    source : path, glob, URL, array, mapping of arrays or frame
    options : Options
    scratch : Path
        A folder for intermediate files.

    Returns
    -------
    rows : Rows
    ignored : list of str
        Names of arrays that nothing was made of.
    """
    if isinstance(source, Path):
        source = str(source)
    if hasattr(source, "columns"):
        return _open_frame(source, options, scratch)
    if not isinstance(source, str):
        return _open_arrays("the source", _in_memory(source), options, scratch)
    if "://" in source:
        found, classes = zarr_arrays(source)
        return _open_arrays(source, found, options, scratch, classes)
    paths = _paths(source)
    kind = _kind(source, paths)
    if kind == "zarr":
        found, classes = zarr_arrays(source)
        return _open_arrays(source, found, options, scratch, classes)
    if kind == "npy":
        return _open_arrays(source, {"X": npy_array(paths[0])}, options, scratch)
    if kind == "npz":
        return _open_arrays(source, npz_arrays(paths[0], scratch), options, scratch)
    if kind == "images":
        return _open_images(Path(source), options), []
    return _open_table(kind, paths, options, scratch), []


def _in_memory(source: Any) -> Mapping[str, Any]:
    if isinstance(source, zarr.Group):
        return dict(source.arrays())
    return source if isinstance(source, Mapping) else {"X": source}


def _open_frame(frame: Any, options: Options, scratch: Path) -> tuple[Rows, list[str]]:
    """A frame of pandas: columns by their roles, the others are covariates."""
    roles: dict[str, Sequence[Any]] = {
        "target": options.targets,
        "labels": () if options.labels is None else (options.labels,),
        "groups": () if options.group_by is None else (options.group_by,),
    }
    for role, names in roles.items():
        missing = [name for name in names if name not in frame.columns]
        if missing:
            raise InputError(
                f"the frame has no column {missing[0]!r} for the {role}",
                f"give one of {', '.join(map(str, frame.columns))}",
            )
    check_dropped(options.drop, list(frame.columns), "the frame")
    named = {name for names in (*roles.values(), options.drop) for name in names}
    others = [name for name in frame.columns if name not in named]
    if not others:
        raise InputError(
            "the frame has no column left for the covariates", "give one with more columns, or drop fewer"
        )
    found = {
        "covariates": _numbers(frame, others),
        **({"target": _numbers(frame, options.targets)} if options.targets else {}),
        **{role: _words(frame, roles[role][0]) for role in ("labels", "groups") if roles[role]},
    }
    if len(options.targets) == 1:
        found["target"] = found["target"][:, 0]
    return _open_arrays(
        "the frame", found, replace(options, target=None, labels=None, group_by=None, drop=()), scratch
    )


def _numbers(frame: Any, names: Sequence[Any]) -> NDArray[Any]:
    """Columns side by side."""
    columns = [np.asarray(frame[name]) for name in names]
    for name, column in zip(names, columns, strict=True):
        if column.dtype.kind not in "fiub":
            raise InputError(
                f"the frame, column {name!r} holds {frame[name].dtype}, not numbers",
                remedy_for_words(name),
            )
    return np.column_stack(columns)


def _words(frame: Any, name: Any) -> NDArray[Any]:
    """A column; text of Python objects as NumPy's."""
    column = np.asarray(frame[name])
    return column.astype(np.str_) if all(isinstance(value, str) for value in column.tolist()) else column


def _paths(source: str) -> list[Path]:
    """The path, or the files of a glob, sorted."""
    if Path(source).exists():
        return [Path(source)]
    found = sorted(glob.glob(source, recursive=True))
    if found:
        return [Path(path) for path in found]
    if glob.has_magic(source):
        raise InputError(f"no file matches {source}", "check the pattern, and quote it against the shell")
    raise InputError(f"{source} does not exist", f"give {KINDS}")


def _kind(source: str, paths: list[Path]) -> str:
    """The kind of a source; a folder's files replace it in ``paths``."""
    first = paths[0]
    if len(paths) == 1 and first.is_dir():
        return _kind_of_folder(first, paths)
    kinds = sorted({_kind_of_file(path) for path in paths})
    if len(kinds) > 1:
        raise InputError(
            f"{source} matches files of several kinds: {', '.join(kinds)}", "give one kind at a time"
        )
    if len(paths) > 1 and kinds[0] not in ("csv", "parquet"):
        raise InputError(
            f"{source} matches {len(paths)} {kinds[0]} files", "give one file, or several of CSV or Parquet"
        )
    return kinds[0]


def _kind_of_file(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix in (".npy", ".npz"):
        return suffix[1:]
    if suffix in CSV:
        return "csv"
    if suffix in PARQUET:
        return "parquet"
    if suffix in SUFFIXES:
        raise InputError(f"{path} is an image", "give the folder that holds the groups of images")
    raise InputError(f"{path} is of no kind that is known", f"give {KINDS}")


def _kind_of_folder(folder: Path, paths: list[Path]) -> str:
    if folder.suffix == ".zarr" or any(
        (folder / name).exists() for name in ("zarr.json", ".zarray", ".zgroup")
    ):
        return "zarr"
    tables = {
        "parquet": [path for path in sorted(folder.rglob("*")) if path.suffix.lower() in PARQUET],
        "csv": [path for path in sorted(folder.rglob("*")) if path.suffix.lower() in CSV],
    }
    found = [kind for kind, files in tables.items() if files] + (["images"] if image_paths(folder) else [])
    if len(found) != 1:
        what = f"files of several kinds: {', '.join(found)}" if found else "nothing that can be read"
        raise InputError(f"{folder} holds {what}", f"give {KINDS}")
    if found[0] in tables:
        paths[:] = tables[found[0]]
    return found[0]


def _open_images(folder: Path, options: Options) -> Rows:
    options.refuse("a folder of images", ["target", "drop"])
    groups = ImageGroups(
        folder, group_by=options.group_by, labels=options.labels, gray=options.gray, size=options.pixels
    )
    return Spans(groups, options.span, drop=options.on_deficient == "drop")


def _open_table(kind: str, paths: list[Path], options: Options, scratch: Path) -> Rows:
    options.refuse("a table", ["gray", "size"])
    roles = Roles(options.targets, _name(options.labels), _name(options.group_by), options.drop)
    table = (CsvFiles if kind == "csv" else ParquetFiles)(paths, roles)
    if not options.subspaces:
        _refuse_spans(table.where, options)
        return table
    if options.group_by is None:
        raise InputError(
            f"{table.where} is to give subspaces, but no column says which rows belong together",
            "name the column with --group-by",
        )
    return Spans(GatheredRows(table, scratch), options.span, drop=options.on_deficient == "drop")


def _open_arrays(
    where: str, found: Mapping[str, Any], options: Options, scratch: Path, classes: list[Any] | None = None
) -> tuple[Rows, list[str]]:
    options.refuse("a source of arrays", ["gray", "size", "drop"])
    if len(options.targets) > 1:
        raise InputError(
            f"target names {len(options.targets)} arrays", "give one array with a column for each"
        )
    roles, ignored = by_role(
        {name: array if hasattr(array, "shape") else np.asarray(array) for name, array in found.items()},
        where,
        target=next(iter(options.targets), None),
        labels=_name(options.labels),
        groups=_name(options.group_by),
    )
    if not options.subspaces:
        _refuse_spans(where, options)
        return Arrays(where, roles, classes=classes, scratch=scratch), ignored
    drop = options.on_deficient == "drop"
    if options.group_by is not None or ("groups" in roles and "subspaces" not in roles):
        roles["covariates"] = roles.pop("subspaces" if "subspaces" in roles else "covariates")
        return Spans(
            GatheredRows(Arrays(where, roles, classes=classes, flat=True, scratch=scratch), scratch),
            options.span,
            drop=drop,
        ), ignored
    if "subspaces" not in roles:
        raise InputError(
            f"the data of {where} has shape {roles['covariates'].shape}, and nothing says which rows belong "
            "together",
            "name an array of groups with --group-by, or give matrices (N, n, vectors)",
        )
    return Spans(Matrices(Arrays(where, roles, classes=classes)), options.span, drop=drop), ignored


def _refuse_spans(where: str, options: Options) -> None:
    options.refuse(f"{where} without subspaces", ["rank", "energy", "center", "on_deficient"])


def _name(value: int | str | None) -> str | None:
    return None if value is None else str(value)
