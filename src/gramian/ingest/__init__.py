"""Data sets from NumPy, CSV, Parquet, folders of images and foreign Zarr; and what a store holds.

Each source is read in bounded batches by a module of its own (`arrays`, `tables`, `images`), vectors
become bases in `spans`, and `writing` brings all of them to a store in the same way.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from gramian.engine import Progress, pinned
from gramian.errors import GramianWarning, InputError, StoreError
from gramian.ingest.inspection import Inspection, inspect
from gramian.ingest.opening import Options, column_names, open_source
from gramian.ingest.spans import Spans
from gramian.ingest.writing import workspace, write_dataset
from gramian.store.layout import Dataset, open_dataset
from gramian.streams import seed_of
from gramian.validation import boolean, path_text, real

__all__ = ["Inspection", "ingest", "inspect"]


def ingest(
    source: Any,
    dest: str | os.PathLike[str],
    *,
    subspaces: bool = False,
    rank: int | None = None,
    energy: float | None = None,
    group_by: int | str | None = None,
    labels: int | str | None = None,
    target: str | Sequence[str] | None = None,
    drop: str | Sequence[str] = (),
    gray: bool | None = None,
    size: str | tuple[int, int] | None = None,
    center: bool = False,
    on_deficient: str = "error",
    split: float | None = None,
    random_state: Any = 0,
    force: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
) -> Dataset:
    """Write a data set: covariates (N, d) or subspaces (N, n, k), with what stands beside them.

    The memory that is needed does not grow with the number of rows. The store appears when it is complete:
    whatever fails leaves nothing under its name.

    Parameters
    ----------
    source : path, array, mapping of str to array, or frame
        - ``.npy``, ``.npz``, or arrays in memory: under the names of the store's arrays, or ``X`` (2-D:
          covariates, 3-D: subspaces) and ``y`` (floats: target; integers, strings: labels).
        - CSV with a header, or Parquet: a file, a folder or a glob, in sorted order; or a frame of
          pandas. Columns without a role are covariates, unless they are dropped.
        - A folder of images: one subspace for each group of images.
        - A Zarr array or group, v2 or v3, in any chunks, with names as above; also as a URL.
    dest : path
        A folder, or a URL that fsspec opens for writing.
    subspaces : bool, default False
        Turn vectors into the subspaces that they span: the rows of each group, or the columns of each
        matrix of a 3-D array. Without it a 3-D array must hold orthonormal bases. Images need no such word.
    rank : int, optional
        Dimension of each subspace; together with `energy`, the largest.
    energy : float, optional
        In (0, 1]: the smallest dimension that holds this share of the sum of squared singular values.
        Bases of fewer columns are padded with zero columns. With neither, every vector adds a dimension.
    group_by : int or str, optional
        What makes a group. Of images: the level of a folder (1 is the first below the source) or a regular
        expression over the path below the source, whose captured groups name the group; else the folder of
        the image. Of a table: a column; of arrays: an array. Without `subspaces` it is stored as ``groups``.
    labels : int or str, optional
        Of images: the level whose folder's name is the class, or an expression; of a table: a column; of
        arrays: an array.
    target : str or sequence of str, optional
        Of a table: the column(s) to predict; of arrays: an array.
    drop : str or sequence of str, default ()
        Of a table: the column(s) to leave out, such as ids, dates and text; whatever they hold is not read.
    gray : bool, optional
        Read images as gray (True) or in colour (False); None: as the first one is.
    size : str or (int, int), optional
        Scale images to this height and width, such as ``"32x32"``.
    center : bool, default False
        Subtract the mean vector of each group before its span is taken.
    on_deficient : {"error", "drop"}
        What happens to a group that has not the wanted rank.
    split : float, optional
        In (0, 1): the share of rows marked as test rows, by label where there are labels; groups stay whole.
    random_state : int, Generator or None, default 0
        Seed of the split.
    force : bool, default False
        Replace a data set at `dest`.
    on_progress : callable, optional
        Called with an `engine.Progress` for each block.

    Returns
    -------
    Dataset
        Open for reading. ``attrs["dropped"]`` counts the groups that were left out, and ``attrs["names"]``
        are the names of those that became subspaces.

    Raises
    ------
    InputError, InputTypeError
        If the source or an option cannot be used: what was found, and where.
    StoreError
        If `dest` exists already or cannot be written.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> rows = {"X": np.arange(12.0).reshape(6, 2), "y": np.array(["a", "b"] * 3)}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     data = ingest(rows, f"{folder}/rows.zarr", split=0.5)
    ...     print(data.rows, data.classes, data.labels[:], data.split[:].sum())
    6 ['a', 'b'] [0 1 0 1 0 1] 3
    """
    for name, flag in (("subspaces", subspaces), ("center", center), ("force", force)):
        boolean(flag, name)
    if gray is not None:
        boolean(gray, "gray")
    options = Options(
        subspaces,
        rank,
        energy,
        group_by,
        labels,
        target,
        column_names(drop, "drop"),
        gray,
        size,
        center,
        on_deficient,
    )
    if split is not None and not 0 < real(split, "split") < 1:
        raise InputError(f"split is {split}", "give a share between 0 and 1")
    dest = path_text(dest, "dest")
    try:
        _ingest(source, dest, options, split, seed_of(random_state), force, on_progress)
    except OSError as error:
        raise StoreError(
            f"{error.filename or dest}: {error.strerror or error}",
            "see that it can be read, and that the disk has room",
        ) from error
    return open_dataset(dest)


def _ingest(
    source: Any,
    dest: str,
    options: Options,
    split: float | None,
    seed: int,
    force: bool,
    on_progress: Callable[[Progress], None] | None,
) -> None:
    with workspace(dest, force=force) as scratch, pinned():
        rows, ignored = open_source(source, options, scratch)
        if ignored:
            _warn(f"made nothing of {', '.join(ignored)}; name arrays as the store does, or X and y")
        facts: dict[str, Any] = {} if split is None else {"split": {"fraction": split, "random_state": seed}}
        if isinstance(rows, Spans):
            facts |= _facts_of(rows)
            if rows.dropped:
                _warn(_dropped(rows))
        write_dataset(
            rows,
            dest,
            facts=facts,
            scratch=scratch,
            fraction=split,
            seed=seed,
            force=force,
            on_progress=on_progress,
        )


def _warn(message: str) -> None:
    warnings.warn(message, GramianWarning, stacklevel=4)  # the caller of ingest


def _facts_of(spans: Spans) -> dict[str, Any]:
    """What the store keeps of the groups that became subspaces."""
    names = [spans.groups.names[index] for index in spans.kept]
    return {"dropped": len(spans.dropped)} | ({"names": names} if spans.groups.named else {})


def _dropped(spans: Spans) -> str:
    dropped, total = len(spans.dropped), len(spans.groups.names)
    shown = ", ".join(spans.dropped[:5]) + (", ..." if dropped > 5 else "")
    return f"dropped {dropped} of {total} groups of {spans.where} as rank-deficient: {shown}"
