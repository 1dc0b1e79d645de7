"""Groups of vectors as the subspaces that they span: a stable SVD, the rank, one choice of signs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gramian.errors import InputError
from gramian.ingest.arrays import Arrays
from gramian.ingest.coding import Codes
from gramian.ingest.rows import Batch, Field, Rows, check_finite


@dataclass(frozen=True)
class Span:
    """What is taken of the span of a group of vectors.

    Parameters
    ----------
    rank : int, optional
        Dimension; with `energy`, the largest. None: one dimension a vector (one less where centred).
    energy : float, optional
        The smallest dimension that holds this share of the sum of squared singular values.
    center : bool
        Subtract the mean vector of the group first.
    """

    rank: int | None = None
    energy: float | None = None
    center: bool = False

    def basis(self, vectors: NDArray[Any]) -> NDArray[np.float64]:
        """Orthonormal columns (n, k), by descending singular value; the group must not be deficient.

        The entry of largest magnitude in each column is positive.
        """
        left, values, _ = np.linalg.svd(self._prepared(vectors), full_matrices=False)
        basis = left[:, : self.dimension(values, vectors)]
        largest = np.take_along_axis(basis, np.abs(basis).argmax(axis=0)[None], axis=0)
        signed: NDArray[np.float64] = np.where(largest < 0, -basis, basis)
        return signed

    def singular_values(self, vectors: NDArray[Any]) -> NDArray[np.float64]:
        """Of the vectors, centred where that is wanted."""
        return np.asarray(np.linalg.svd(self._prepared(vectors), compute_uv=False), dtype=np.float64)

    def dimension(self, values: NDArray[np.float64], vectors: NDArray[Any]) -> int:
        """The wanted dimension, or 0 where the group does not have it."""
        full = self.rank_of(values, vectors)
        if self.energy is None:
            wanted = self.wanted(*vectors.shape)
            return wanted if wanted <= full else 0
        squares = values[:full] ** 2
        if not full:
            return 0
        share = np.cumsum(squares / squares[0])
        enough = int(np.searchsorted(share, self.energy * share[-1] * (1 - 1e-12))) + 1
        return min(enough, full if self.rank is None else self.rank)

    def wanted(self, n: int, count: int) -> int:
        """The dimension of ``count`` vectors of length n in general position, or the given rank."""
        return self.rank if self.rank is not None else max(1, min(n, count - self.center))

    @staticmethod
    def rank_of(values: NDArray[np.float64], vectors: NDArray[Any]) -> int:
        """Singular values above rounding: that of the SVD, and that of the vectors where they are float32."""
        if not values.size:
            return 0
        tolerance = max(vectors.shape) * np.finfo(np.float64).eps
        if vectors.dtype == np.float32:
            tolerance = max(tolerance, float(np.finfo(np.float32).eps))
        return int((values > tolerance * values[0]).sum())

    def _prepared(self, vectors: NDArray[Any]) -> NDArray[np.float64]:
        exact = np.asarray(vectors, dtype=np.float64)
        return exact - exact.mean(axis=1, keepdims=True) if self.center else exact


class Groups(Protocol):
    """Vectors in groups, in order.

    Attributes
    ----------
    where : str
        For messages.
    names : list of str
        One for each group.
    n : int
        Length of a vector.
    dtype : numpy.dtype
        float32 or float64: the type of the bases.
    sides : dict of str to ndarray
        One entry of labels, target and so on for each group.
    named : bool
        Whether the names say more than a number.
    """

    where: str
    names: list[str]
    n: int
    dtype: np.dtype[Any]
    sides: dict[str, NDArray[Any]]
    named: bool

    def count(self, index: int) -> int:
        """The number of vectors of a group."""
        ...

    def vectors(self, index: int) -> NDArray[Any]:
        """The vectors of a group as columns (n, count)."""
        ...


class Spans:
    """The spans of groups of vectors as rows of ``subspaces``.

    Parameters
    ----------
    groups : Groups
    span : Span
    drop : bool
        Leave groups out that have not the wanted rank, and count them; else they are an error.

    Attributes
    ----------
    kept : list of int
        The groups that the rows stand for.
    dropped : list of str
        The names of those that were left out.

    Raises
    ------
    InputError
        If a group is deficient; at once where the dimensions must be known first, else with its batch.
    """

    def __init__(self, groups: Groups, span: Span, *, drop: bool = False) -> None:
        if span.rank is not None and span.rank > groups.n:
            raise InputError(
                f"rank is {span.rank}, the vectors of {groups.where} have length {groups.n}",
                f"give a rank of at most {groups.n}",
            )
        self.where, self.groups, self.span = groups.where, groups, span
        self.dropped: list[str] = []
        self.kept = list(range(len(groups.names)))
        if drop or span.energy is not None:
            width = self._survey(drop)
        else:
            width = max((span.wanted(groups.n, groups.count(i)) for i in self.kept), default=1)
        sides = {name: Field(values.shape[1:], values.dtype) for name, values in groups.sides.items()}
        self.fields = {"subspaces": Field((groups.n, width), groups.dtype), **sides}
        self.attrs: dict[str, dict[str, Any]] = {}

    def batches(self, names: Collection[str]) -> Iterator[Batch]:
        """One group at a time."""
        for index in self.kept:
            batch = {
                name: values[index : index + 1] for name, values in self.groups.sides.items() if name in names
            }
            if "subspaces" in names:
                batch["subspaces"] = self._padded(index)[None]
            yield 1, batch

    def _padded(self, index: int) -> NDArray[Any]:
        vectors = self._vectors(index)
        basis = self.span.basis(vectors)
        if not basis.shape[1]:
            self._refuse(index, vectors)
        field = self.fields["subspaces"]
        out = np.zeros(field.tail, field.dtype)
        out[:, : basis.shape[1]] = basis
        return out

    def _survey(self, drop: bool) -> int:
        """Find the dimensions before anything is written; returns the largest."""
        dimensions = {}
        for index in self.kept:
            vectors = self._vectors(index)
            dimensions[index] = self.span.dimension(self.span.singular_values(vectors), vectors)
            if not dimensions[index] and not drop:
                self._refuse(index, vectors)
        self.kept = [index for index, dimension in dimensions.items() if dimension]
        self.dropped = [self.groups.names[index] for index, dimension in dimensions.items() if not dimension]
        if dimensions and not self.kept:
            raise InputError(
                f"every one of the {len(dimensions)} groups of {self.where} is rank-deficient",
                "give a lower rank, or more images or rows in each group",
            )
        return max(dimensions.values(), default=1)

    def _vectors(self, index: int) -> NDArray[Any]:
        vectors = self.groups.vectors(index)
        check_finite(vectors.T, f"group {self.groups.names[index]!r} of {self.where}")
        return vectors

    def _refuse(self, index: int, vectors: NDArray[Any]) -> None:
        name, (n, count) = self.groups.names[index], vectors.shape
        found = self.span.rank_of(self.span.singular_values(vectors), vectors)
        centred = ", centred," if self.span.center else ""
        raise InputError(
            f"group {name!r} of {self.where} is rank-deficient: its {count} vectors{centred} span "
            f"{found} dimensions, {self.span.wanted(n, count) if self.span.energy is None else 1} are needed",
            "give a lower --rank or an --energy, or leave such groups out with --on-deficient drop",
        )


class Matrices:
    """Each (n, images) matrix of a 3-D array is one group."""

    named = False

    def __init__(self, rows: Arrays) -> None:
        self._array, self.where = rows.arrays["subspaces"], rows.where
        count, self.n, self._images = (int(size) for size in self._array.shape)
        self.names = [str(index) for index in range(count)]
        self.dtype = rows.fields["subspaces"].dtype
        self.sides = _collected(rows, [name for name in rows.fields if name != "subspaces"])

    def count(self, index: int) -> int:  # noqa: ARG002 - the same for all
        """The number of vectors of a group."""
        return self._images

    def vectors(self, index: int) -> NDArray[Any]:
        """The vectors of a group as columns (n, count)."""
        matrix: NDArray[Any] = np.asarray(self._array[index : index + 1])[0]
        return matrix


def _collected(rows: Rows, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Arrays beside the data, whole: small beside the matrices."""
    batches = [batch for _, batch in rows.batches(names)]
    return {name: np.concatenate([batch[name] for batch in batches]) for name in names if batches}


class GatheredRows:
    """The rows that share a value of ``groups``, wherever they stand in their source.

    They are sorted into a scratch file first, in two passes over the source, so that no more than one group
    is ever in memory.

    Parameters
    ----------
    rows : Rows
        With ``covariates`` and ``groups``; whatever else it has must be the same throughout a group.
    scratch : Path
        A folder with room for the rows.
    """

    named = True

    def __init__(self, rows: Rows, scratch: Path) -> None:
        self.where = rows.where
        field = rows.fields["covariates"]
        self.n, self.dtype = field.tail[0], field.dtype
        self._codes, self._counts, self.sides = _grouped(rows)
        self.names = [str(value) for value in self._codes.values]
        self._starts = np.concatenate([[0], np.cumsum(self._counts)])
        self._path = scratch / "rows"
        self._sort(rows)

    def count(self, index: int) -> int:
        """The number of vectors of a group."""
        return int(self._counts[index])

    def vectors(self, index: int) -> NDArray[Any]:
        """The vectors of a group as columns (n, count)."""
        offset = int(self._starts[index]) * self.n * self.dtype.itemsize
        flat = np.fromfile(self._path, self.dtype, self.count(index) * self.n, offset=offset)
        return flat.reshape(-1, self.n).T

    def _sort(self, rows: Rows) -> None:
        place = self._starts[:-1].copy()
        with self._path.open("wb") as file:
            for _, batch in rows.batches(["covariates", "groups"]):
                for code, part in _runs(self._codes.encode(batch["groups"])):
                    file.seek(int(place[code]) * self.n * self.dtype.itemsize)
                    file.write(np.ascontiguousarray(batch["covariates"][part], self.dtype).tobytes())
                    place[code] += len(part)


def _runs(codes: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.intp]]]:
    """Each code with the positions at which it stands, in order."""
    order = np.argsort(codes, kind="stable")
    edges = np.flatnonzero(np.diff(codes[order])) + 1
    for part in np.split(order, edges) if len(codes) else []:
        yield int(codes[part[0]]), part


def _grouped(rows: Rows) -> tuple[Codes, NDArray[np.int64], dict[str, NDArray[Any]]]:
    """The groups, their sizes, and the one value of each side array in each group."""
    names = [name for name in rows.fields if name not in ("covariates", "groups")]
    sizes: dict[Any, int] = {}
    first: dict[Any, dict[str, Any]] = {}
    for _, batch in rows.batches([*names, "groups"]):
        found, codes = np.unique(batch["groups"], return_inverse=True)
        for code, part in _runs(codes):
            group = found[code].item()
            sizes[group] = sizes.get(group, 0) + len(part)
            known = first.setdefault(group, {name: batch[name][part[0]] for name in names})
            for name in names:
                _check_constant(batch[name][part], known[name], f"group {group!r} of {rows.where}", name)
    order = Codes(sizes)
    keys = sorted(sizes, key=lambda group: int(order.encode(np.array([group]))[0]))
    counts = np.array([sizes[key] for key in keys], dtype=np.int64)
    return order, counts, {name: np.array([first[key][name] for key in keys]) for name in names}


def _check_constant(values: NDArray[Any], known: Any, where: str, name: str) -> None:
    if not np.array_equal(values, np.broadcast_to(known, values.shape)):
        other = values[(values != known).reshape(len(values), -1).any(axis=1)][0]
        raise InputError(
            f"{where} has the {name} {known} and {other}",
            "group by something that lies within one value of them",
        )
