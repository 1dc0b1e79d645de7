"""What a stage knows of its inputs: stores and models, there already or promised by an earlier stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from sklearn.pipeline import Pipeline

from gramian import engine, models
from gramian.blocks import ArraySpec
from gramian.errors import InputError
from gramian.job import Rows
from gramian.kinds import FEATURES, MODELS
from gramian.sources import picked
from gramian.store.layout import (
    SIDE_ARRAYS,
    open_dataset,
    open_store,
)
from gramian.store.writer import reading, refuse_lost


@dataclass(frozen=True)
class Source:
    """A store, opened or promised by an earlier stage.

    Parameters
    ----------
    path : str
    specs : dict of ArraySpec
        Its arrays.
    split : (N,) int or None
        0 for training rows, 1 for test rows.
    map : estimator or None
        What the features were made with, fitted or still to be fitted.
    classes : tuple
        The names of the labels 0, 1, ..., empty where they have none.
    n_bits : int
        Of packed features, 0 where they are not packed.
    """

    path: str
    specs: Mapping[str, ArraySpec]
    split: NDArray[Any] | None = None
    map: Any = None
    classes: tuple[Any, ...] = ()
    n_bits: int = 0

    @classmethod
    def open(cls, path: str) -> Source:
        """What a store says of itself. Of its rows only the split is read."""
        data = open_dataset(path)
        return cls(
            path,
            {name: engine.spec_of(array) for name, array in data.arrays.items()},
            None if data.split is None else _whole(data.split, "split"),
            None if data.map is None else models.load_map(open_store(path)),
            tuple(data.classes or ()),
            _bits_of(data.features),
        )


def _whole(array: zarr.Array[Any], name: str) -> NDArray[Any]:
    refuse_lost(array, name)
    with reading(array):
        return np.asarray(array[:])


def _bits_of(features: zarr.Array[Any] | None) -> int:
    found: Any = 0 if features is None else features.attrs.get("n_bits", 0)
    return int(found)


class View:
    """Some rows of a source."""

    def __init__(self, source: Source, rows: str | None) -> None:
        self.source = source
        self.by_split = rows is not None and Rows.parse(rows).split is not None
        self.indices = None if rows is None else self._chosen(Rows.parse(rows), rows)

    def _chosen(self, rows: Rows, text: str) -> NDArray[np.intp]:
        path = self.source.path
        if rows.split is None:
            count = next(iter(self.source.specs.values())).shape[0]
            chosen = np.arange(count)[slice(rows.start, rows.stop)]
        elif self.source.split is None:
            raise InputError(
                f"{path} has no split", "give a range A:B, or a split when the data is brought in"
            )
        else:
            chosen = np.flatnonzero(self.source.split == (rows.split == "test"))
        if not len(chosen):
            raise InputError(f"{path} has no rows {text}", "choose other rows")
        return chosen

    @property
    def held_bytes(self) -> int:
        """Bytes of the split and of the indices of the chosen rows."""
        return sum(array.nbytes for array in (self.source.split, self.indices) if array is not None)

    def has(self, name: str) -> bool:
        """Whether the source has an array of this name."""
        return name in self.source.specs

    def first(self, names: tuple[str, ...], remedy: str) -> str:
        """The first of these arrays that the source has."""
        for name in names:
            if self.has(name):
                return name
        raise InputError(f"{self.source.path} has no {' or '.join(names)}", remedy)

    def spec(self, name: str) -> ArraySpec:
        """Shape, dtype and chunks of the chosen rows."""
        spec = self.source.specs[name]
        return spec if self.indices is None else picked(spec, self.indices)

    def array(self, name: str) -> Any:
        """The chosen rows of an array that exists by now."""
        array = open_dataset(self.source.path).arrays[name]
        refuse_lost(array, name)
        return array if self.indices is None else engine.Selected(array, self.indices)

    def side_specs(self) -> dict[str, ArraySpec]:
        """What `copy_side_arrays` will copy."""
        return {name: self.spec(name) for name in SIDE_ARRAYS if self.has(name)}

    def split(self) -> NDArray[Any] | None:
        """The split of the chosen rows."""
        split = self.source.split
        return split if split is None or self.indices is None else split[self.indices]


@dataclass(frozen=True)
class Fitted:
    """A model, loaded or promised by an earlier stage: an estimator and the map of its features, if any.

    Of a promised one, ``answer`` is what it learns: one row of it is what it predicts for a row.
    """

    path: str
    estimator: Any
    map: Any = None
    promised: bool = False
    answer: ArraySpec | None = None

    @classmethod
    def open(cls, path: str) -> Fitted:
        """A saved model; a classifier answers by number here, as the labels of a store do."""
        estimator, before = parts(models.load_model(path), path)
        learned = getattr(estimator, "classes_", None)
        if learned is not None and learned.dtype.kind not in "iu":
            estimator.class_names_, estimator.classes_ = learned, np.arange(len(learned))
        return cls(path, estimator, before)

    def ready(self) -> Fitted:
        """The same, fitted by now."""
        return Fitted.open(self.path) if self.promised else self


def parts(model: Any, path: str) -> tuple[Any, Any]:
    """The estimator of a model, and the map before it; a model that is more than that is refused."""
    *before, estimator = [step for _, step in model.steps] if isinstance(model, Pipeline) else [model]
    known = {kind.name for kind in (*FEATURES.values(), *MODELS.values())}
    names = [type(step).__name__ for step in (*before, estimator)]
    if len(before) > 1 or not known.issuperset(names) or not all(hasattr(s, "decoded_map") for s in before):
        raise InputError(
            f"{path} holds {', '.join(names)}, a command takes one model, or a map of features and a model",
            "use it in Python, with gramian.load_model",
        )
    return estimator, before[0] if before else None
