"""What no estimator takes, said in one line by each of them; and what all of them take."""

from __future__ import annotations

import re
import shutil

import numpy as np
import pytest
import zarr

from gramian import (
    BlockwiseRidge,
    BlockwiseRidgeClassifier,
    GramOperator,
    GrassmannianRandomFeatures,
    HALPrincipalComponents,
    PCHALRegressor,
    PCHARRegressor,
    gram,
    leading_eigenpairs,
    load_model,
    open_dataset,
    run,
    save_model,
    session,
)
from gramian.errors import GramianWarning, InputError, InputTypeError, StoreError
from gramian.ingest import ingest
from gramian.kernels import hal_kernel, projection_kernel
from gramian.store.layout import Dataset

N = 40
X = np.random.default_rng(0).random((N, 3))
Y = X @ [1.0, 2.0, 3.0]
LABELS = (X[:, 0] > 0.5).astype(int)
BASES = np.linalg.qr(np.random.default_rng(1).standard_normal((N, 6, 2)))[0]

REGRESSORS = {
    "pchar": PCHARRegressor(alpha=1e-3),
    "pchar nystroem": PCHARRegressor(alpha=1e-3, solver="nystroem", random_state=0),
    "pchal": PCHALRegressor(alpha=1e-3),
    "ridge": BlockwiseRidge(alpha=1e-3),
}
TABLES = {**REGRESSORS, "hal": HALPrincipalComponents(2), "classifier": BlockwiseRidgeClassifier(alpha=1e-3)}


def fitted(model, rows=X, y=None, **more):
    if isinstance(model, HALPrincipalComponents):
        return model.fit(rows, **more)
    target = LABELS if isinstance(model, BlockwiseRidgeClassifier) else Y
    return model.fit(rows, target if y is None else y, **more)


def used(model, rows):
    return model.transform(rows) if hasattr(model, "transform") else model.predict(rows)


def with_value(value, dtype=float):
    rows = X.astype(dtype)
    rows[3, 1] = value
    return rows


def stored(rows, chunks=(7, 2)):
    array = zarr.create_array(
        zarr.storage.MemoryStore(), shape=rows.shape, dtype=rows.dtype, chunks=chunks[: rows.ndim]
    )
    array[...] = rows
    return array


def sparse():
    from scipy.sparse import csr_matrix

    return csr_matrix(X)


def names_of_two_types():
    import pandas as pd

    return pd.DataFrame(X).assign(s="a")


BAD_ROWS = {
    "NaN": (with_value(np.nan), InputError, "X has NaN at (3, 1), 1 such values"),
    "infinity": (with_value(-np.inf), InputError, "X has infinity at (3, 1)"),
    "one dimension": (X[:, 0], InputError, "Expected 2D array, got 1D"),
    "three dimensions": (X[..., None], InputError, "dim 3"),
    "no rows": (X[:0], InputError, "0 sample(s)"),
    "no columns": (X[:, :0], InputError, "0 feature(s)"),
    "text": (X.astype(str), InputTypeError, "X has the type <U"),
    "dates": (X.astype("M8[D]"), InputTypeError, "X has the type datetime64[D]"),
    "objects": (with_value("a", object), InputError, "could not convert string"),
    "complex": (X + 1j, InputError, "Complex data not supported"),
    "masked": (np.ma.masked_less(X, 0.5), InputTypeError, "X is a masked array"),
    "sparse": (sparse(), InputTypeError, "Sparse data"),
    "ragged": ([[1, 2], [3]], InputError, "setting an array element with a sequence"),
    "a path": ("rows.zarr", InputTypeError, "X is the path 'rows.zarr'"),
    "an open store": (
        Dataset("rows.zarr", "dataset", {}),
        InputTypeError,
        "X is a dataset store",
    ),
    "a group": (zarr.create_group(zarr.storage.MemoryStore()), InputTypeError, "X is a Zarr group"),
    "names of two types": (names_of_two_types(), InputTypeError, "Feature names are only supported"),
    "stored without rows": (stored(X[:0], (1, 3)), InputError, "X has shape (0, 3)"),
    "stored complex": (stored(X + 1j), InputError, "X has shape (40, 3) and type complex128"),
}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("fault", BAD_ROWS)
def test_rows_that_are_none_are_one_line(name, fault):
    rows, error, words = BAD_ROWS[fault]
    model = fitted(TABLES[name])
    for call in (lambda: used(model, rows), lambda: fitted(TABLES[name], rows, y=LABELS)):
        with pytest.raises(error) as caught:
            call()
        assert words in caught.value.cause
        assert "\n" not in str(caught.value)
        assert "np." not in caught.value.cause


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("dtype", ["f2", ">f8", "i8", "u1", "?", "O", "g"])
def test_numbers_of_every_type_are_taken(name, dtype):
    model = fitted(TABLES[name])
    rows = (4 * X).astype(dtype)
    np.testing.assert_array_equal(used(model, rows), used(model, rows.astype(float)))


BAD_WEIGHTS = {
    "negative": (-np.ones(N), "sample_weight holds -1"),
    "NaN": (np.full(N, np.nan), "sample_weight has NaN"),
    "zero": (np.zeros(N), "sample_weight is zero for every row"),
    "huge": (np.full(N, 1e308), "sample_weight holds 1e+308"),
    "short": (np.ones(N - 1), "sample_weight has shape (39,) beside 40 rows"),
}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("fault", BAD_WEIGHTS)
@pytest.mark.parametrize("form", [np.asarray, stored])
def test_weights_that_are_none_are_one_line(name, fault, form):
    weights, words = BAD_WEIGHTS[fault]
    with pytest.raises(InputError) as caught:
        fitted(TABLES[name], sample_weight=form(weights))
    assert words in caught.value.cause


ODD = {
    "hal": [("center", 7), ("center", "x"), ("n_landmarks", 0), ("n_landmarks", "x"), ("n_knots", 0)],
    "pchar": [("center", None), ("selection", "worst"), ("cv", 1), ("cv", "x"), ("n_landmarks", -1)],
    "pchal": [("selection", 3), ("cv", None), ("alpha", np.float32(-1)), ("n_components", np.float64(1.5))],
    "ridge": [("fit_intercept", 3), ("fit_intercept", "no"), ("cv", 1.5), ("alpha", 10**400)],
    "classifier": [("fit_intercept", 0), ("cv", 20_000)],
}


@pytest.mark.parametrize(("name", "parameter", "value"), [(k, *pair) for k, v in ODD.items() for pair in v])
def test_odd_parameters_are_refused_whatever_else_is_set(name, parameter, value):
    from sklearn.base import clone

    with pytest.raises((InputError, InputTypeError), match=rf"^{parameter} is ") as caught:
        fitted(clone(TABLES[name]).set_params(**{parameter: value}))
    assert "np." not in str(caught.value)


def test_parameters_without_effect_are_named():
    with pytest.warns(GramianWarning, match=r"n_landmarks = 9 has no effect, the solver is 'dense'"):
        HALPrincipalComponents(2, n_landmarks=9).fit(X)
    with pytest.warns(GramianWarning, match=r"n_knots = 9 has no effect, the knots are given"):
        PCHARRegressor(alpha=1.0, n_knots=9, knots=X[:5]).fit(X, Y)


def test_candidates_in_an_array_without_dimensions_are_one():
    assert BlockwiseRidge(alpha=np.array(2.0)).fit(X, Y).alpha_ == 2.0


def test_one_class_is_named_as_it_is():
    with pytest.raises(InputError, match="y holds 1 class, 0;"):
        BlockwiseRidgeClassifier(alpha=1.0).fit(X, np.zeros(N, int))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_overflows_is_refused():
    for model in REGRESSORS.values():
        with pytest.raises(InputError, match=r"y reaches 5\.\d*e\+200"):
            model.fit(X, Y * 1e200)
    for model, y in ((BlockwiseRidge(1.0), Y), (BlockwiseRidgeClassifier(1.0), LABELS)):
        with pytest.raises(InputError, match="overflow"):
            model.fit(X * 1e300, y)


def test_groups_without_order_or_value_are_refused():
    with pytest.raises(InputTypeError, match="groups mixes types"):
        BlockwiseRidge().fit(X, Y, groups=np.array([1, "a"] * (N // 2), dtype=object))
    with pytest.raises(InputError, match="groups has 1 NaN"):
        BlockwiseRidge().fit(X, Y, groups=np.where(np.arange(N) == 3, np.nan, np.arange(N) % 7))


def test_random_features_refuse_too_many_projections_and_odd_flags():
    for parameter, value in (("n_projections", 10**30), ("packed", 1)):
        model = GrassmannianRandomFeatures(omega=1.0, nonlinearity="sign").set_params(**{parameter: value})
        with pytest.raises((InputError, InputTypeError), match=f"{parameter} is"):
            model.fit(BASES)


CALLS = {
    "center": lambda: GramOperator(X, kernel="hal", center=7),
    "normalize": lambda: gram(BASES, kernel="projection", normalize="x"),
    "normalize of the kernel": lambda: projection_kernel(BASES, normalize=3),
    "complex factor": lambda: GramOperator(X, kernel="hal") @ (np.ones(N) + 1j),
    "landmarks": lambda: leading_eigenpairs(GramOperator(X, kernel="hal"), 2, n_landmarks=0),
    "several landmarks": lambda: leading_eigenpairs(
        GramOperator(X, kernel="hal"), 2, n_landmarks=np.array([3, 4])
    ),
    "out": lambda: hal_kernel(X, out=3),
    "weights": lambda: hal_kernel(X, knots=X, knot_weights=np.full(N, 1e308)),
    "ragged": lambda: hal_kernel([[1, 2], [3]]),
}


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
@pytest.mark.parametrize("name", CALLS)
def test_functions_refuse_odd_values(name):
    with pytest.raises((InputError, InputTypeError)) as caught:
        CALLS[name]()
    assert "\n" not in str(caught.value)


PLACES = {
    "open_dataset": open_dataset,
    "load_model": load_model,
    "save_model": lambda path: save_model(BlockwiseRidge(1.0).fit(X, Y), path),
    "ingest": lambda path: ingest({"X": X}, path),
    "gram": lambda path: gram(X, kernel="hal", out=path),
    "run": run,
    "session": lambda path: session(run=path).__enter__(),
}


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("path", [3, b"bytes", ""])
def test_what_is_no_path_is_one_line(name, path):
    with pytest.raises(InputTypeError, match=r" is (3|b'bytes'|''); give a path"):
        PLACES[name](path)


def test_force_is_true_or_false(tmp_path):
    model = BlockwiseRidge(1.0).fit(X, Y)
    save_model(model, tmp_path / "m.zarr")
    for call in (
        lambda: save_model(model, tmp_path / "m.zarr", force="no"),
        lambda: ingest({"X": X}, tmp_path / "d.zarr", force="no"),
        lambda: gram(X, kernel="hal", out=tmp_path / "m.zarr", force="no"),
    ):
        with pytest.raises(InputTypeError, match="force is 'no'"):
            call()


# ---------------------------------------------------------------- chunks that are lost


@pytest.fixture
def lost(tmp_path):
    """A data set of ours whose covariates have lost a chunk."""
    ingest({"X": X, "y": Y}, tmp_path / "d.zarr")
    shutil.rmtree(tmp_path / "d.zarr" / "covariates" / "c" / "0")
    return tmp_path / "d.zarr"


OPENED = {
    "by the store": lambda path: open_dataset(path).covariates,
    "by itself": lambda path: zarr.open_array(path / "covariates", mode="r"),
    "by its group": lambda path: zarr.open_group(path, mode="r")["covariates"],
}


@pytest.mark.parametrize("how", OPENED)
@pytest.mark.parametrize("name", TABLES)
def test_a_lost_chunk_of_a_store_is_not_read_as_zeros(lost, name, how):
    rows = OPENED[how](lost)
    for call in (lambda: fitted(TABLES[name], rows), lambda: used(fitted(TABLES[name]), rows)):
        with pytest.raises(StoreError, match=re.escape("X has lost the chunk c/0/0")):
            call()
    with pytest.raises(StoreError, match="lost the chunk"):
        GramOperator(rows, kernel="hal")


def test_a_lost_chunk_of_a_target_is_not_read_as_zeros(lost):
    shutil.rmtree(lost / "target" / "c")
    with pytest.raises(StoreError, match="y has lost the chunk c/0"):
        BlockwiseRidge(1.0).fit(X, open_dataset(lost).target)


def test_foreign_arrays_may_leave_out_chunks_of_their_fill_value(tmp_path):
    array = zarr.create_array(tmp_path / "x.zarr", shape=X.shape, dtype="f8", chunks=(10, 3), fill_value=0)
    array[:30] = X[:30]
    expected = BlockwiseRidge(1.0).fit(np.asarray(array[:]), Y)
    np.testing.assert_array_equal(BlockwiseRidge(1.0).fit(array, Y).coef_, expected.coef_)
