"""What estimators take: rows in memory (NumPy, lists, frames) or stored (Zarr, Dask), and arrays beside them.

Rows in memory go through scikit-learn's own checks, at once. Stored ones are checked by what is known
without reading them; their values are checked block by block, where they are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import assert_all_finite, column_or_1d
from sklearn.utils._set_output import _get_output_config
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import _check_feature_names, check_array, check_is_fitted, validate_data

from gramian.engine import as_array, spec_of
from gramian.errors import GramianError, InputError, InputTypeError
from gramian.sources import is_stored, loaded
from gramian.validation import finite, refuse_masked, refuse_no_weight, shown, weights_block

FLOATS = [np.float64, np.float32]
REMEDIES = {  # by words of scikit-learn's messages
    "Reshape your data": "Reshape your data to rows and columns: array.reshape(-1, 1) for a single column",
    "sample(s)": "give more rows",
    "feature(s)": "give at least one column",
    "NaN": "remove these rows or fill them in",
    "infinity": "remove these rows or fill them in",
    "Sparse": "give a dense array, for example array.toarray()",
    "features, but": "give the same columns, in the same order",
    "Feature names are only": "make all names strings: frame.columns = frame.columns.astype(str)",
    "inhomogeneous": "give rows of one length",
    "np.matrix": "give numpy.asarray(matrix)",
    "feature names": "give the same columns, in the same order",
    "inconsistent numbers": "give one value for each row of X",
}


@contextmanager
def one_line() -> Iterator[None]:
    """What scikit-learn's checks refuse within, as one line of cause and one of remedy."""
    try:
        yield
    except GramianError:
        raise
    except (ValueError, TypeError) as error:
        text = str(error)
        cause = " ".join(text.partition("\narray=")[0].partition("\n[")[0].split())
        if "should match" not in text:  # there the names follow; elsewhere advice
            cause = cause.partition(". ")[0]
        cause = cause.rstrip(":.")
        remedy = next(
            (remedy for word, remedy in REMEDIES.items() if word in text), "give real numbers, as NumPy does"
        )
        raise (InputTypeError if isinstance(error, TypeError) else InputError)(cause, remedy) from error


def check_rows(estimator: BaseEstimator, X: Any, *, minimum: int = 1) -> Any:
    """The rows (N, d) to fit to: an array of floats, or what is stored, as it is.

    Sets ``n_features_in_``, and ``feature_names_in_`` for a frame.
    """
    if not is_stored(X):
        return _validated(estimator, X, ensure_min_samples=minimum)
    X = as_array(X)
    n_rows, n_columns = _table_shape(X)
    if n_rows < minimum or n_columns < 1:
        raise InputError(
            f"X has shape {(n_rows, n_columns)}", f"give at least {minimum} row(s) and one column"
        )
    _check_feature_names(estimator, X, reset=True)
    estimator.n_features_in_ = n_columns
    return X


def check_rows_and_target(estimator: BaseEstimator, X: Any, y: Any, *, minimum: int = 2) -> tuple[Any, Any]:
    """The rows, and a target (N,) or (N, t) of numbers, in memory or stored."""
    if not is_stored(X) and not is_stored(y):
        refuse_unreadable(y, "y")
        return tuple(
            _validated(estimator, X, y, multi_output=True, y_numeric=True, ensure_min_samples=minimum)
        )
    X = check_rows(estimator, X, minimum=minimum)
    if y is None:
        raise InputError(
            f"{type(estimator).__name__} requires y to be passed, but the target y is None", "give y"
        )
    if is_stored(y):
        y = as_array(y, "y")
    else:
        refuse_unreadable(y, "y")
        with one_line():
            y = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y")
    spec = spec_of(y)
    if len(spec.shape) not in (1, 2) or spec.shape[0] != spec_of(X).shape[0] or spec.dtype.kind not in "fiub":
        raise InputError(
            f"y has shape {spec.shape} and type {spec.dtype} beside {spec_of(X).shape[0]} rows",
            "give one number, or one row of numbers, for each row of X",
        )
    return X, y


def check_rows_and_labels(
    estimator: BaseEstimator, X: Any, y: Any, *, minimum: int = 1
) -> tuple[Any, NDArray[Any], NDArray[np.intp]]:
    """The rows, the classes that occur, and the number of each row's class: (N,)."""
    X = check_rows(estimator, X, minimum=minimum)
    if y is None:
        raise InputError(
            f"{type(estimator).__name__} requires y to be passed, but the target y is None", "give y"
        )
    refuse_masked(y, "y")
    with one_line():
        y = column_or_1d(_in_memory(y), warn=True)
        assert_all_finite(y, input_name="y")
        check_classification_targets(y)
    if len(y) != spec_of(X).shape[0]:
        raise InputError(f"y has {len(y)} labels for {spec_of(X).shape[0]} rows", "give one for each")
    if type_of_target(y) not in ("binary", "multiclass"):
        raise InputError(f"y is of the type {type_of_target(y)}", "give one class label for each row")
    classes, codes = np.unique(y, return_inverse=True)
    if len(classes) < 2:
        raise InputError(f"y holds 1 class, {shown(classes[0])}", "give rows of at least two classes")
    return X, classes, codes


def check_columns(estimator: BaseEstimator, X: Any) -> Any:
    """The rows to transform or predict: as many columns as `fit` has seen."""
    check_is_fitted(estimator)
    if not is_stored(X):
        return _validated(estimator, X, reset=False)
    X = as_array(X)
    n_rows, columns = _table_shape(X)
    if not n_rows:
        raise InputError(f"X has shape {(n_rows, columns)}", "give at least one row")
    if columns != estimator.n_features_in_:
        raise InputError(
            f"X has {columns} features, but {type(estimator).__name__} is expecting "
            f"{estimator.n_features_in_} features as input",
            "give the same columns, in the same order",
        )
    return X


def check_side(array: Any, n_rows: int, name: str) -> Any:
    """A vector (N,) that stands beside the rows: weights or groups. None stays None."""
    if array is None:
        return None
    array = as_array(array, name)
    if spec_of(array).shape != (n_rows,):
        raise InputError(
            f"{name} has shape {spec_of(array).shape} beside {n_rows} rows",
            "give one value for each row of X",
        )
    return array


def check_weights(array: Any, n_rows: int) -> Any:
    """Weights of the rows: a vector (N,), or one number for all; None stays None."""
    if np.isscalar(array) and not isinstance(array, str):
        array = np.full(n_rows, array)
    array = check_side(array, n_rows, "sample_weight")
    if array is not None and not is_stored(array):
        array = weights_block(array)
        refuse_no_weight(array.sum())
    return array


def refuse_lazy_frame(estimator: BaseEstimator, X: Any) -> None:
    """A frame as output needs the values; the result for stored rows is lazy."""
    wanted = _get_output_config("transform", estimator)["dense"]
    if wanted != "default" and is_stored(X):
        raise InputTypeError(
            f"set_output(transform={wanted!r}) meets rows of type {type(X).__module__}, whose result is lazy",
            "use set_output(transform='default'), or pass rows in memory",
        )


def _validated(estimator: BaseEstimator, X: Any, *y: Any, **how: Any) -> Any:
    """What scikit-learn makes of rows in memory, and of a target where one is given."""
    refuse_unreadable(X, "X")
    with one_line():
        found = validate_data(estimator, X, *y, dtype=FLOATS, order="C", ensure_all_finite=False, **how)
    finite(found[0] if y else found, "X")  # says where
    return found


def refuse_unreadable(array: Any, name: str) -> None:
    """Refuse what scikit-learn would make numbers of: text, dates, and values behind a mask.

    Raises
    ------
    InputTypeError
        For these, and for a path.
    """
    if isinstance(array, (str, Path, zarr.Group)):
        as_array(array, name)  # says how to open it
    if getattr(getattr(array, "dtype", None), "kind", "f") in "SUTMm":
        raise InputTypeError(f"{name} has the type {array.dtype}", "give real numbers, as float32 or float64")
    refuse_masked(array, name)


def _table_shape(X: Any) -> tuple[int, int]:
    spec = spec_of(X)
    if len(spec.shape) != 2 or spec.dtype.kind not in "fiub":
        raise InputError(
            f"X has shape {spec.shape} and type {spec.dtype}", "give real numbers in rows and columns"
        )
    return spec.shape[0], spec.shape[1]


def _in_memory(y: Any) -> Any:
    """Labels that may be stored, one for each row."""
    if not is_stored(y):
        return y
    y = as_array(y, "y")
    if spec_of(y).shape[1:] != () or not spec_of(y).shape:
        raise InputError(f"y has shape {spec_of(y).shape}", "give one class label for each row")
    return loaded(y)
