"""Save and load every model and feature map: Zarr and JSON, never pickle.

Each estimator is one group. Its document (class, parameters, learned values) stands in the attributes under a
checksum; arrays are Zarr arrays beside it, each block with its checksum in the document; estimators within
an estimator are subgroups. Only classes of one table are ever made, so a store cannot run code.
"""

from __future__ import annotations

import importlib
import inspect
import json
import math
import os
import re
import warnings
from collections.abc import Iterator
from hashlib import sha256
from typing import Any, Protocol

import google_crc32c
import numpy as np
import zarr
from numpy.typing import NDArray

import gramian
from gramian.blocks import Grid
from gramian.errors import GramianWarning, InputError, InputTypeError, StoreError
from gramian.store.layout import FORMAT, create_array, create_store, open_store
from gramian.store.writer import block_grid, block_region, check_block, checksum, write_block
from gramian.validation import path_text

# Where each class that may be saved is found. A new estimator is one line.
CLASSES = {
    "BlockwiseRidge": "gramian.ridge",
    "BlockwiseRidgeClassifier": "gramian.ridge",
    "GrassmannianRandomFeatures": "gramian.features",
    "HALPrincipalComponents": "gramian.features",
    "NeighborhoodComponentsAnalysis": "gramian.nca",
    "PCHALRegressor": "gramian.regression",
    "PCHARRegressor": "gramian.regression",
    "Pipeline": "sklearn.pipeline",
}
# Parameters that are objects: scikit-learn's splitters, made anew from their own parameters.
SPLITTERS = (
    "GroupKFold",
    "KFold",
    "LeaveOneGroupOut",
    "LeaveOneOut",
    "ShuffleSplit",
    "StratifiedGroupKFold",
    "StratifiedKFold",
    "TimeSeriesSplit",
)

BLOCK_BYTES = 16 << 20  # of one chunk of a saved array
INLINE = 1024  # entries of the largest array that stands in the document, within a list or a dictionary

_LEARNED = re.compile(r"[A-Za-z][A-Za-z0-9_]*_")

Document = dict[str, Any]


def save_model(model: Any, path: str | os.PathLike[str], *, force: bool = False) -> None:
    """Save a fitted estimator of this package, or a Pipeline of them.

    Parameters
    ----------
    model : estimator
        Its parameters are saved, and all that it learned in attributes whose names end in ``_``. A
        ``random_state`` that is a generator becomes the seed that was drawn from it.
    path : str or path
        A folder, or a URL that fsspec opens for writing.
    force : bool, default False
        Replace a store of this package.

    Raises
    ------
    InputError
        If the model is not fitted.
    InputTypeError
        If its class or one of its learned values cannot be saved.
    StoreError
        If the path exists, or, with ``force``, is not a store of this package.

    Warns
    -----
    GramianWarning
        For a parameter that cannot be saved (a callback, say): the loaded model has its default.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import gramian
    >>> X = np.random.default_rng(0).random((50, 2))
    >>> model = gramian.BlockwiseRidge(alpha=1.0, random_state=0).fit(X, X[:, 0])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     gramian.save_model(model, f"{folder}/model.zarr")
    ...     again = gramian.load_model(f"{folder}/model.zarr")
    >>> bool((again.predict(X) == model.predict(X)).all())
    True
    """
    fingerprint = _check(model)  # before anything is replaced
    group = create_store(path, "model", attrs={"complete": False}, force=force)
    _save(model, group, fingerprint)


def load_model(path: str | os.PathLike[str]) -> Any:
    """Load what `save_model` saved. It predicts the same bits.

    Parameters
    ----------
    path : str or path
        A folder, or a URL that fsspec opens.

    Returns
    -------
    estimator
        Of the class that was saved; a model made of features is a Pipeline of its map and itself.

    Raises
    ------
    StoreError
        If there is no model, it is damaged or has another format, or its class is not known.
    """
    path = path_text(path, "the path")
    group = open_store(path)
    facts: Document = dict(group.attrs["gramian"])  # type: ignore[arg-type]
    if facts["kind"] != "model":
        raise StoreError(f"{path} holds {facts['kind']}, not a model", "open it with gramian.open_dataset")
    return _load(group, path)


def save_map(estimator: Any, group: zarr.Group) -> None:
    """Save a fitted feature map as the group ``map`` of a store of features; an earlier one is replaced."""
    fingerprint = _check(estimator)
    _save(estimator, group.create_group("map", overwrite=True), fingerprint)


def load_map(group: zarr.Group) -> Any:
    """The fitted feature map of a store of features.

    Raises
    ------
    StoreError
        If there is none, or it is damaged.
    """
    inner = group.get("map")
    if not isinstance(inner, zarr.Group):
        raise StoreError(f"{group.store_path} holds no map of features", "make the features again")
    return _load(inner, str(inner.store_path))


def fingerprint_of(estimator: Any) -> str:
    """What tells whether two maps or models are the same: a hash of class, parameters, seed and arrays.

    A saved estimator and the loaded one have the same; ``random_state`` counts as the seed drawn from it.
    """
    return _digest(_document(estimator, _Hasher()))


# ---------------------------------------------------------------- estimators as documents


class _Sink(Protocol):
    """Where arrays and inner estimators go; each call gives what the document says of them."""

    def array(self, name: str, values: NDArray[Any], /) -> Document: ...

    def stored(self, name: str, values: zarr.Array[Any], /) -> Document: ...

    def child(self, name: str, estimator: Any, /) -> Document: ...


class _UnsaveableError(Exception):
    """A value that has no form in the document."""


def _document(estimator: Any, sink: _Sink) -> Document:
    name = type(estimator).__name__
    if CLASSES.get(name) is None or _class_of(name) is not type(estimator):
        raise InputTypeError(f"a {name} cannot be saved", f"save one of {', '.join(sorted(CLASSES))}")
    params = {key: _parameter(estimator, key, value, sink) for key, value in _parameters(estimator)}
    learned = {key: _learned(estimator, key, value, sink) for key, value in _learned_values(estimator)}
    return {"class": name, "params": params, "learned": learned}


def _parameters(estimator: Any) -> Iterator[tuple[str, Any]]:
    """By name. Of a Pipeline only its steps: what else it has differs between versions."""
    given = estimator.get_params(deep=False)
    names = ["steps"] if type(estimator).__name__ == "Pipeline" else sorted(given)
    return ((name, given[name]) for name in names)


def _learned_values(estimator: Any) -> Iterator[tuple[str, Any]]:
    return ((name, value) for name, value in sorted(vars(estimator).items()) if _LEARNED.fullmatch(name))


def _parameter(estimator: Any, key: str, value: Any, sink: _Sink) -> Any:
    if (
        key == "random_state"
        and hasattr(estimator, "seed_")
        and (isinstance(sink, _Hasher) or not _is_seed(value))
    ):
        return int(estimator.seed_)
    try:
        return _encode(value, f"param-{key}", sink)
    except _UnsaveableError:
        return _encode(_default(estimator, key), f"param-{key}", sink)


def _is_seed(value: Any) -> bool:
    return value is None or isinstance(value, (int, np.integer))


def _default(estimator: Any, key: str) -> Any:
    default = inspect.signature(type(estimator).__init__).parameters[key].default
    return None if default is inspect.Parameter.empty else default


def _learned(estimator: Any, key: str, value: Any, sink: _Sink) -> Any:
    try:
        if type(value) is np.ndarray and _storable(value.dtype):
            return sink.array(key, value)
        return _encode(value, key, sink)
    except _UnsaveableError as error:
        raise InputTypeError(
            f"{key} of {type(estimator).__name__} holds a {error}",
            "keep numbers, strings, arrays and estimators there",
        ) from None


def _encode(value: Any, name: str, sink: _Sink) -> Any:
    """JSON of one value: plain where JSON has it, else an object with a ``type``."""
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"type": "float", "value": str(value)}
    if isinstance(value, (np.generic, np.ndarray)):
        return _encode_numpy(value, name, sink)
    if type(value) is list:
        return [_encode(item, f"{name}-{i}", sink) for i, item in enumerate(value)]
    if type(value) is tuple:
        return {"type": "tuple", "items": _encode(list(value), name, sink)}
    if type(value) is dict:
        return {"type": "dict", "items": _encode([list(pair) for pair in value.items()], name, sink)}
    return _encode_object(value, name, sink)


def _encode_numpy(value: Any, name: str, sink: _Sink) -> Document:
    if isinstance(value, np.ma.MaskedArray):
        parts = [np.ma.getdata(value), np.ma.getmaskarray(value), value.fill_value]
        return {"type": "masked", "parts": _encode(parts, name, sink)}
    dtype = value.dtype
    if isinstance(value, np.generic):
        if not _storable(dtype) or dtype.kind == "S":
            raise _UnsaveableError(f"scalar of {dtype}")
        return {"type": "scalar", "dtype": dtype.str, "value": _encode(value.item(), name, sink)}
    if not (_storable(dtype) or dtype.kind == "O"):
        raise _UnsaveableError(f"array of {dtype}")
    if dtype.kind == "O" or (value.size <= INLINE and dtype.kind != "S"):
        items = _encode(value.ravel().tolist(), name, sink)
        return {"type": "inline", "dtype": dtype.str, "shape": list(value.shape), "items": items}
    return sink.array(name, value)


def _storable(dtype: np.dtype[Any]) -> bool:
    """Booleans, integers, floats of at most 64 bits, text and bytes."""
    return dtype.kind in "USb" or (dtype.kind in "iuf" and dtype.itemsize <= 8)


def _encode_object(value: Any, name: str, sink: _Sink) -> Document:
    if isinstance(value, zarr.Array):
        return sink.stored(name, value)
    if type(value).__module__.startswith("sklearn.model_selection") and type(value).__name__ in SPLITTERS:
        names = [key for key in inspect.signature(type(value).__init__).parameters if key != "self"]
        params = {key: getattr(value, key) for key in names if hasattr(value, key)}
        return {"type": "splitter", "class": type(value).__name__, "params": _encode(params, name, sink)}
    if hasattr(value, "get_params") and not isinstance(value, type):
        return sink.child(name, value)
    raise _UnsaveableError(type(value).__name__)


def _digest(document: Document) -> str:
    return sha256(_canonical(document)).hexdigest()


def _canonical(document: Any) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _class_of(name: str) -> Any:
    return getattr(importlib.import_module(CLASSES[name]), name)


class _Hasher:
    """Arrays as hashes: the document of a fingerprint."""

    def array(self, _name: str, values: NDArray[Any]) -> Document:
        data = np.ascontiguousarray(values)
        return {
            "dtype": data.dtype.str,
            "shape": list(data.shape),
            "sha256": sha256(data.tobytes()).hexdigest(),
        }

    def stored(self, _name: str, values: zarr.Array[Any]) -> Document:
        digest = sha256()
        for rows in _rows_of(values):
            digest.update(np.asarray(values[rows]).tobytes())
        return {"dtype": values.dtype.str, "shape": list(values.shape), "sha256": digest.hexdigest()}

    def child(self, _name: str, estimator: Any) -> Document:
        return _document(estimator, self)


# ---------------------------------------------------------------- save


def _check(model: Any) -> str:
    """The fingerprint of what can be saved; a warning for each parameter that cannot."""
    fingerprint = fingerprint_of(model)
    if not any(_is_fitted(part) for part in _parts(model)):
        raise InputError(f"{type(model).__name__} is not fitted", "call fit before saving it")
    for part in _parts(model):
        for key, value in _parameters(part):
            if key != "random_state" and not _saveable(value):
                warnings.warn(
                    f"{key} of {type(part).__name__} is a {type(value).__name__} and is not saved; "
                    "the loaded model has its default",
                    GramianWarning,
                    stacklevel=3,
                )
    return fingerprint


def _parts(model: Any) -> list[Any]:
    return [step for _, step in model.steps] if type(model).__name__ == "Pipeline" else [model]


def _is_fitted(estimator: Any) -> bool:
    return next(_learned_values(estimator), None) is not None


def _saveable(value: Any) -> bool:
    try:
        _encode(value, "", _Hasher())
    except _UnsaveableError:
        return False
    return True


def _save(estimator: Any, group: zarr.Group, fingerprint: str) -> None:
    _Saver(group).document(estimator)
    facts: Document = {
        "format": FORMAT,
        "kind": "model",
        "version": gramian.__version__,
        "fingerprint": fingerprint,
    }
    group.attrs.update({"gramian": facts})


class _Saver:
    """Arrays and estimators into one group."""

    def __init__(self, group: zarr.Group) -> None:
        self._group = group

    def document(self, estimator: Any) -> int:
        """Write all of the estimator, its document last; give the checksum of that."""
        document = _document(estimator, self)
        crc = int(google_crc32c.value(_canonical(document)))
        self._group.attrs.update({"estimator": document, "checksum": crc})
        return crc

    def array(self, name: str, values: NDArray[Any]) -> Document:
        order = "F" if values.flags.f_contiguous and not values.flags.c_contiguous else "C"
        data = _as_numbers(np.ascontiguousarray(values.T if order == "F" else values))
        return {
            "type": "array",
            "name": name,
            "dtype": values.dtype.str,
            "shape": list(values.shape),
            "order": order,
            "checksums": self._write(name, data, {}),
        }

    def stored(self, name: str, values: zarr.Array[Any]) -> Document:
        return {"type": "stored", "name": name, "checksums": self._write(name, values, dict(values.attrs))}

    def _write(self, name: str, data: Any, attrs: Document) -> list[int]:
        grid = _rows_of(data)
        out = create_array(self._group, name, data.shape, data.dtype, (grid,), attrs)
        blocks = ((index, data[block_region(out, index)]) for index in np.ndindex(*block_grid(out)))
        return [write_block(out, index, np.asarray(block)) for index, block in blocks]

    def child(self, name: str, estimator: Any) -> Document:
        group = self._group.create_group(name)
        return {"type": "estimator", "name": name, "checksum": _Saver(group).document(estimator)}


def _rows_of(array: Any) -> Grid:
    rows = array.shape[0]
    return Grid(rows, max(1, BLOCK_BYTES * rows // max(1, array.nbytes)))


def _as_numbers(values: NDArray[Any]) -> NDArray[Any]:
    """What Zarr stores without extensions: at least one axis, native order, text as code points."""
    values = np.atleast_1d(values).astype(values.dtype.newbyteorder("="), copy=False)
    if values.dtype.kind in "US":
        unit = np.dtype(np.uint32 if values.dtype.kind == "U" else np.uint8)
        return values.view(unit).reshape(*values.shape, values.dtype.itemsize // unit.itemsize)
    return values


# ---------------------------------------------------------------- load


def _load(group: zarr.Group, path: str) -> Any:
    """Every failure as one line of cause and one of remedy."""
    try:
        return _Loader(group, path).estimator(None)
    except StoreError:
        raise
    except Exception as error:  # a document that is whole but of another version fails in many ways
        cause = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise StoreError(f"the model {path} cannot be read: {cause}", "fit and save it again") from error


class _Loader:
    """The reverse of `_Saver`, every checksum compared."""

    def __init__(self, group: zarr.Group, path: str) -> None:
        self._group, self._path = group, path

    def estimator(self, expected: int | None) -> Any:
        document, crc = self._group.attrs.get("estimator"), self._group.attrs.get("checksum")
        if not isinstance(document, dict):
            raise self._damaged("its document is missing")
        if google_crc32c.value(_canonical(document)) != crc or expected not in (None, crc):
            raise self._damaged("its document has another checksum")
        return self._made(document)

    def _made(self, document: Document) -> Any:
        name = document["class"]
        if name not in CLASSES:
            raise StoreError(
                f"{self._path} holds a {name}, known are {', '.join(sorted(CLASSES))}", "update gramian"
            )
        params = {key: self._decode(value) for key, value in document["params"].items()}
        estimator = _class_of(name)(**params)
        for key, value in document["learned"].items():
            if not _LEARNED.fullmatch(key):
                raise self._damaged(f"it has a learned value {key!r}")
            setattr(estimator, key, self._decode(value))
        return estimator

    def _decode(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._decode(item) for item in value]
        if not isinstance(value, dict):
            return value
        return getattr(self, f"_{_TYPES[value['type']]}")(value)

    def _float(self, value: Document) -> float:
        return float(value["value"])

    def _tuple(self, value: Document) -> tuple[Any, ...]:
        return tuple(self._decode(value["items"]))

    def _dict(self, value: Document) -> dict[Any, Any]:
        return dict(self._decode(value["items"]))

    def _scalar(self, value: Document) -> Any:
        return np.dtype(value["dtype"]).type(self._decode(value["value"]))

    def _inline(self, value: Document) -> NDArray[Any]:
        items = self._decode(value["items"])
        flat = np.empty(len(items), value["dtype"])
        for i, item in enumerate(items):  # one by one: a list in an array of objects stays a list
            flat[i] = item
        return flat.reshape(value["shape"])

    def _masked(self, value: Document) -> NDArray[Any]:
        data, mask, fill = self._decode(value["parts"])
        return np.ma.MaskedArray(data, mask, fill_value=fill)

    def _splitter(self, value: Document) -> Any:
        from sklearn import model_selection

        if value["class"] not in SPLITTERS:
            raise self._damaged(f"it has a splitter {value['class']!r}")
        return getattr(model_selection, value["class"])(**self._decode(value["params"]))

    def _estimator(self, value: Document) -> Any:
        name = value["name"]
        inner = self._group.get(name)
        if not isinstance(inner, zarr.Group):
            raise self._damaged(f"{name} is missing")
        return _Loader(inner, f"{self._path}/{name}").estimator(value["checksum"])

    def _array(self, value: Document) -> NDArray[Any]:
        source = self._open(value)
        data = np.empty(source.shape, source.dtype)
        for index, crc in zip(np.ndindex(*block_grid(source)), value["checksums"], strict=True):
            region = block_region(source, index)
            block = self._read(source, region, value["name"])
            if checksum(block) != crc:
                raise self._damaged(f"{value['name']} has another checksum")
            data[region] = block
        dtype, shape = np.dtype(value["dtype"]), tuple(value["shape"])
        data = data.view(dtype) if dtype.kind in "US" else data.astype(dtype, copy=False)
        return data.reshape(shape[::-1]).T if value["order"] == "F" else data.reshape(shape)

    def _stored(self, value: Document) -> zarr.Array[Any]:
        source = self._open(value)
        for index, crc in zip(np.ndindex(*block_grid(source)), value["checksums"], strict=True):
            if check_block(source, index) != crc:
                raise self._damaged(f"{value['name']} has another checksum")
        return source

    def _open(self, value: Document) -> zarr.Array[Any]:
        name = value["name"]
        array = self._group.get(name)
        if not isinstance(array, zarr.Array):
            raise self._damaged(f"{name} is missing")
        if int(np.prod(block_grid(array))) != len(value["checksums"]):
            raise self._damaged(f"{name} has another shape")
        return array

    def _read(self, source: zarr.Array[Any], region: tuple[slice, ...], name: str) -> NDArray[Any]:
        try:
            return np.asarray(source[region])
        except Exception as error:  # codecs fail in their own ways
            raise self._damaged(f"{name} does not decode") from error

    def _damaged(self, what: str) -> StoreError:
        return StoreError(f"the model {self._path} is damaged: {what}", "fit and save it again")


_TYPES = {
    name: name
    for name in (
        "float",
        "tuple",
        "dict",
        "scalar",
        "inline",
        "masked",
        "splitter",
        "estimator",
        "array",
        "stored",
    )
}
