"""Models on disk: what is loaded is what was saved, and what is damaged is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import zarr
from sklearn.base import BaseEstimator, clone
from sklearn.linear_model import Ridge
from sklearn.model_selection import GroupKFold, KFold, ShuffleSplit, StratifiedKFold
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, RobustScaler, StandardScaler

from gramian import models, pipeline
from gramian.errors import GramianError, GramianWarning, InputError, InputTypeError, StoreError
from gramian.features import HALPrincipalComponents
from gramian.ingest import ingest, inspect
from gramian.job import Cluster, Stage, command_job
from gramian.models import fingerprint_of, load_map, load_model, save_map, save_model
from gramian.regression import PCHALRegressor, PCHARRegressor
from gramian.ridge import BlockwiseRidge, BlockwiseRidgeClassifier
from gramian.store.layout import create_store
from gramian.views import parts


class Dummy(BaseEstimator):
    """Whatever is given to it is what it has learned."""

    def __init__(self, a: Any = 1, callback: Any = None, random_state: Any = None) -> None:
        self.a = a
        self.callback = callback
        self.random_state = random_state

    def fit(self, **learned: Any) -> Dummy:
        for name, value in (learned or {"coef": np.arange(3.0)}).items():
            setattr(self, f"{name}_", value)
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        return X @ self.coef_

    def transform(self, X: np.ndarray) -> np.ndarray:
        return X * self.a


class Other(Dummy):
    """A second class."""


@pytest.fixture(autouse=True)
def known(monkeypatch):
    monkeypatch.setitem(models.CLASSES, "Dummy", __name__)
    monkeypatch.setitem(models.CLASSES, "Other", __name__)


def again(model: Any, path: Path) -> Any:
    save_model(model, path / "m.zarr")
    return load_model(path / "m.zarr")


def same(one: Any, other: Any) -> bool:
    """Equal in value, type, dtype and layout, down to the leaves."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ma.MaskedArray):
        return same(one.data, other.data) and np.array_equal(
            np.ma.getmaskarray(one), np.ma.getmaskarray(other)
        )
    if isinstance(one, np.ndarray):
        if (one.dtype, one.shape, one.flags.c_contiguous) != (
            other.dtype,
            other.shape,
            other.flags.c_contiguous,
        ):
            return False
        return (
            same(one.ravel().tolist(), other.ravel().tolist())
            if one.dtype == object
            else one.tobytes() == other.tobytes()
        )
    if isinstance(one, dict):
        return same(list(one.items()), list(other.items()))
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, BaseEstimator):
        return same(vars(one), vars(other))
    return repr(one) == repr(other)


RNG = np.random.default_rng(0)
VALUES = {
    "none": None,
    "true": True,
    "integer": 2**70,
    "float": 0.1,
    "minus zero": -0.0,
    "infinity": float("-inf"),
    "nan": float("nan"),
    "string": "päß\u2028\n",
    "list": [1, [2.5, None], "x"],
    "tuple": (1, (2.5,), []),
    "empty": ((), [], {}),
    "dict": {"b": 1, "a": (2, [3]), 4: "four", ("t", 1): None},
    "dict like a document": {"type": "array", "name": "x"},
    "numpy float": np.float64(0.1),
    "numpy float32": np.float32(0.1),
    "numpy integer": np.int8(-3),
    "numpy bool": np.bool_(True),
    "numpy string": np.str_("abc"),
    "numpy nan": np.float64("nan"),
    "array": RNG.normal(size=(7, 3)),
    "float32": RNG.normal(size=(7, 3)).astype("f4"),
    "fortran": np.asfortranarray(RNG.normal(size=(7, 3))),
    "fortran cube": np.asfortranarray(RNG.normal(size=(4, 3, 2))),
    "big endian": np.arange(3, dtype=">f8"),
    "bool array": np.array([True, False]),
    "bytes array": np.array([b"a", b"bcd"]),
    "text array": np.array(["a", "", "päß"]),
    "text matrix": np.array([["a", "bc"], ["d", "e"]]),
    "object array": np.array(["a", None, 1.5, (1, 2)], dtype=object),
    "no dimension": np.array(3.5),
    "no rows": np.zeros((0, 4)),
    "no columns": np.zeros((5, 0), "f4"),
    "no text": np.array([], dtype="U3"),
    "masked": np.ma.MaskedArray([1.0, 2.0], [True, False]),
    "masked objects": np.ma.MaskedArray(np.array([1, "x"], object), [False, True], fill_value="?"),
    "arrays within": {"x": np.arange(3), "y": [np.float32([np.nan, 1]), {"z": np.zeros((2, 2))}]},
    "large arrays within": {"x": (np.arange(5000), [np.full((40, 50), "ab")])},
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_a_learned_value_comes_back_with_its_type(tmp_path, value):
    assert same(again(Dummy().fit(value=value), tmp_path).value_, value)


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_a_parameter_comes_back_with_its_type(tmp_path, value):
    if type(value) is np.ndarray and not value.flags.c_contiguous:
        value = np.ascontiguousarray(value)  # a small array in a parameter has one layout
    assert same(again(Dummy(a=value).fit(), tmp_path).a, value)


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_a_fingerprint_is_the_same_before_and_after(tmp_path, value):
    model = Dummy(a=value).fit(value=value)
    assert fingerprint_of(again(model, tmp_path)) == fingerprint_of(model)


def test_cross_validation_results_come_back(tmp_path):
    results = {
        "param_alpha": np.ma.MaskedArray(np.array([0.1, "auto"], object), [False, True]),
        "params": [{"alpha": 0.1}, {}],
        "mean_test_score": np.array([0.5, np.nan]),
        "rank_test_score": np.array([1, 2], "i4"),
    }
    assert same(again(Dummy().fit(cv_results=results), tmp_path).cv_results_, results)


@pytest.mark.parametrize("layout", ["C", "F"])
def test_a_loaded_model_predicts_the_same_bits(tmp_path, layout):
    X = RNG.normal(size=(500, 37))
    model = Dummy().fit(coef=np.asarray(RNG.normal(size=(37, 11)), order=layout))
    assert again(model, tmp_path).predict(X).tobytes() == model.predict(X).tobytes()


def test_an_array_of_several_blocks_comes_back(tmp_path, monkeypatch):
    monkeypatch.setattr(models, "BLOCK_BYTES", 100)
    coef = RNG.normal(size=(33, 4))
    assert same(again(Dummy().fit(coef=coef), tmp_path).coef_, coef)


def test_a_stored_array_stays_on_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(models, "BLOCK_BYTES", 100)
    source = zarr.create_array({}, shape=(33, 4), dtype="f4", chunks=(10, 3), attributes={"scale": 0.5})
    source[...] = RNG.normal(size=(33, 4))
    loaded = again(Dummy().fit(rows=source), tmp_path).rows_
    assert isinstance(loaded, zarr.Array)
    assert np.array_equal(loaded[...], source[...])
    assert loaded.attrs["scale"] == 0.5


def test_estimators_within_estimators_come_back(tmp_path):
    model = Dummy(a=Other(a=2)).fit(
        map=Other(a=3).fit(coef=np.ones(2)), several=[Other().fit(), Dummy().fit()]
    )
    assert same(again(model, tmp_path), model)


def test_a_pipeline_comes_back_as_a_pipeline(tmp_path):
    model = Pipeline([("map", Dummy(a=2).fit()), ("model", Other().fit())])
    loaded = again(model, tmp_path)
    X = RNG.normal(size=(5, 3))
    assert type(loaded) is Pipeline
    assert [type(step) for _, step in loaded.steps] == [Dummy, Other]
    assert np.array_equal(loaded.predict(X), model.predict(X))


@pytest.mark.parametrize(
    "cv",
    [
        KFold(4, shuffle=True, random_state=3),
        StratifiedKFold(3),
        GroupKFold(2),
        ShuffleSplit(2, test_size=0.3),
    ],
)
def test_a_splitter_comes_back(tmp_path, cv):
    assert repr(again(Dummy(a=cv).fit(), tmp_path).a) == repr(cv)


def test_attributes_without_the_mark_of_learned_ones_are_left_out(tmp_path):
    model = Dummy().fit()
    model._cache = object()
    assert not hasattr(again(model, tmp_path), "_cache")


def test_equal_models_leave_equal_bytes(tmp_path):
    for name in "ab":
        save_model(
            Dummy().fit(coef=np.arange(6.0).reshape(2, 3), cv_results={"x": np.ones(3)}), tmp_path / name
        )
    files = [
        {p.relative_to(root): p.read_bytes() for p in root.rglob("*") if p.is_file()}
        for root in (tmp_path / "a", tmp_path / "b")
    ]
    assert files[0] == files[1]


def test_a_url_serves_as_a_path(tmp_path):
    path = f"memory://{tmp_path}/m.zarr"
    save_model(Dummy().fit(), path)
    assert same(load_model(path), Dummy().fit())


# ---------------------------------------------------------------- seeds and callbacks


def test_a_generator_is_saved_as_the_seed_that_was_drawn(tmp_path):
    model = Dummy(random_state=np.random.RandomState(0)).fit(seed=1234)
    loaded = again(model, tmp_path)
    assert loaded.random_state == 1234
    assert fingerprint_of(loaded) == fingerprint_of(model)


@pytest.mark.parametrize("random_state", [None, 7])
def test_other_random_states_stay(tmp_path, random_state):
    assert again(Dummy(random_state=random_state).fit(seed=7), tmp_path).random_state == random_state


def test_a_callback_is_dropped_with_a_warning(tmp_path):
    model = Dummy(callback=print).fit()
    with pytest.warns(
        GramianWarning, match="callback of Dummy is a builtin_function_or_method and is not saved"
    ):
        save_model(model, tmp_path / "m")
    assert load_model(tmp_path / "m").callback is None


# ---------------------------------------------------------------- fingerprints


def test_a_fingerprint_tells_models_apart():
    variants = [
        Dummy().fit(coef=np.arange(3.0)),
        Other().fit(coef=np.arange(3.0)),
        Dummy(a=2).fit(coef=np.arange(3.0)),
        Dummy().fit(coef=np.arange(3.0) + 1e-16 + 1),
        Dummy().fit(coef=np.arange(3)),
        Dummy().fit(coef=np.arange(3.0)[None]),
        Dummy().fit(coef=np.arange(3.0), seed=1),
        Dummy().fit(coef=[0.0, 1.0, 2.0]),
    ]
    assert len({fingerprint_of(model) for model in variants}) == len(variants)


@pytest.mark.parametrize("random_state", [None, np.random.default_rng(0)], ids=["none", "generator"])
def test_a_seed_counts_however_it_was_given(random_state):
    assert fingerprint_of(Dummy(random_state=random_state).fit(seed=5)) == fingerprint_of(
        Dummy(random_state=5).fit(seed=5)
    )


def test_the_fingerprint_stands_in_the_store(tmp_path):
    save_model(Dummy().fit(), tmp_path / "m")
    assert zarr.open_group(tmp_path / "m").attrs["gramian"]["fingerprint"] == fingerprint_of(Dummy().fit())


# ---------------------------------------------------------------- maps within stores of features


def test_a_map_within_features_comes_back(tmp_path):
    group = create_store(tmp_path / "f.zarr", "features")
    save_map(Dummy(a=1).fit(), group)
    save_map(Dummy(a=2).fit(), group)
    assert same(load_map(group), Dummy(a=2).fit())
    assert same(load_model(tmp_path / "f.zarr" / "map"), Dummy(a=2).fit())


def test_features_without_a_map_say_so(tmp_path):
    with pytest.raises(StoreError, match="holds no map of features"):
        load_map(create_store(tmp_path / "f.zarr", "features"))


# ---------------------------------------------------------------- refusals


SCALERS = (
    MaxAbsScaler(),
    MinMaxScaler((-1, 2), clip=True),
    RobustScaler(unit_variance=True),
    StandardScaler(),
    StandardScaler(with_mean=False, with_std=False),
)


@pytest.mark.parametrize("scaler", SCALERS, ids=repr)
def test_a_scaler_before_a_model_comes_back(tmp_path, scaler):
    X = pd.DataFrame(np.random.default_rng(0).normal(3, 9, (40, 2)), columns=["a", "b"])
    model = make_pipeline(clone(scaler), BlockwiseRidge(alpha=1.0)).fit(X, X["a"] ** 2)
    loaded = again(model, tmp_path)
    assert same(*(sorted(vars(found[0]).items()) for found in (loaded, model)))
    np.testing.assert_array_equal(loaded.predict(2 * X), model.predict(2 * X))


def test_a_step_that_passes_through_comes_back(tmp_path):
    assert again(Pipeline([("x", "passthrough"), ("y", Dummy().fit())]), tmp_path)[0] == "passthrough"


@pytest.mark.parametrize("name", ["evaluate", "predict", "featurize"])
def test_a_command_refuses_a_scaler_in_one_line(tmp_path, name):
    X = np.random.default_rng(0).normal(3, 9, (40, 2))
    ingest({"X": X, "y": X[:, 0]}, tmp_path / "d.zarr")
    model = make_pipeline(StandardScaler(), PCHARRegressor(alpha=1.0, random_state=0)).fit(X, X[:, 0])
    save_model(model, tmp_path / "m.zarr")
    stage = Stage(name, name, str(tmp_path / "d.zarr"), str(tmp_path / "m.zarr"), str(tmp_path / "out"))
    message = "m.zarr holds StandardScaler, PCHARRegressor, a command takes one model.*; use it in Python"
    with pytest.raises(InputError, match=message):
        pipeline.outline(command_job(stage, cluster=Cluster(workers=0)))
    assert inspect(tmp_path / "m.zarr").figures["estimator"] == "StandardScaler, PCHARRegressor"


@pytest.mark.parametrize("steps", [(StandardScaler(),), (StandardScaler(), HALPrincipalComponents())])
def test_a_command_refuses_what_is_no_model_behind_a_map(steps):
    with pytest.raises(InputError, match=r"m\.zarr holds StandardScaler"):
        parts(make_pipeline(*steps), "m.zarr")


def test_a_map_before_a_model_is_taken_apart():
    before, model = HALPrincipalComponents(), BlockwiseRidge()
    assert parts(make_pipeline(before, model), "m.zarr") == (model, before)
    assert parts(make_pipeline(model), "m.zarr") == parts(model, "m.zarr") == (model, None)
    with pytest.raises(InputError, match="takes one model"):
        parts(make_pipeline(before, before, model), "m.zarr")


def test_a_pipeline_of_which_a_part_is_not_fitted_is_refused(tmp_path):
    X = np.arange(8.0).reshape(4, 2)
    for steps in ([StandardScaler().fit(X), Dummy()], [Pipeline([("x", StandardScaler())]), Dummy().fit()]):
        with pytest.raises(InputError, match=r"(Dummy|StandardScaler) is not fitted"):
            save_model(make_pipeline(*steps), tmp_path / "m.zarr")


def test_an_unfitted_model_is_refused(tmp_path):
    with pytest.raises(InputError, match="Dummy is not fitted; call fit"):
        save_model(Dummy(), tmp_path / "m")


@pytest.mark.parametrize("model", [Ridge(), Pipeline([("x", Ridge())]), 3, "model.zarr"])
def test_a_class_that_is_not_in_the_table_is_refused(tmp_path, model):
    with pytest.raises(InputTypeError, match="cannot be saved; save one of"):
        save_model(model, tmp_path / "m")


def test_a_namesake_of_a_known_class_is_refused(tmp_path):
    with pytest.raises(InputTypeError, match="cannot be saved"):
        save_model(type("Dummy", (BaseEstimator,), {})(), tmp_path / "m")


@pytest.mark.parametrize("value", [print, object(), {1, 2}, np.longdouble(1), np.ones(2, complex), [open]])
def test_a_learned_value_without_a_form_is_named(tmp_path, value):
    with pytest.raises(InputTypeError, match="thing_ of Dummy holds a"):
        save_model(Dummy().fit(thing=value), tmp_path / "m")


def test_a_refused_model_replaces_nothing(tmp_path):
    save_model(Dummy().fit(), tmp_path / "m")
    with pytest.raises(GramianError):
        save_model(Dummy().fit(thing=print), tmp_path / "m", force=True)
    assert same(load_model(tmp_path / "m"), Dummy().fit())


def test_an_existing_model_needs_force(tmp_path):
    save_model(Dummy().fit(), tmp_path / "m")
    with pytest.raises(StoreError, match="exists already"):
        save_model(Dummy().fit(), tmp_path / "m")
    save_model(Other().fit(), tmp_path / "m", force=True)
    assert type(load_model(tmp_path / "m")) is Other


def test_a_missing_model_says_so(tmp_path):
    with pytest.raises(StoreError, match="does not exist"):
        load_model(tmp_path / "m")


def test_a_store_of_another_kind_is_refused(tmp_path):
    create_store(tmp_path / "d", "dataset")
    with pytest.raises(StoreError, match="holds dataset, not a model"):
        load_model(tmp_path / "d")


def test_a_model_whose_saving_was_interrupted_is_refused(tmp_path, monkeypatch):
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(models._Saver, "array", killed)
    with pytest.raises(KeyboardInterrupt):
        save_model(Dummy().fit(), tmp_path / "m")
    with pytest.raises(StoreError, match="begun but not finished"):
        load_model(tmp_path / "m")


# ---------------------------------------------------------------- damage


@pytest.fixture
def saved(tmp_path):
    model = Dummy(a=1).fit(
        coef=np.arange(1.0, 4.0), inner=Other(a=0).fit(coef=np.ones(2)), outer=Other(a=9).fit()
    )
    save_model(model, tmp_path / "m")
    return tmp_path / "m"


def edited(path: Path, change: Any) -> None:
    """Change the JSON of a group in place."""
    content = json.loads((path / "zarr.json").read_text())
    change(content["attributes"])
    (path / "zarr.json").write_text(json.dumps(content))


def test_an_edited_parameter_is_found(saved):
    edited(saved, lambda attrs: attrs["estimator"]["params"].update(a=2))
    with pytest.raises(StoreError, match="is damaged: its document has another checksum"):
        load_model(saved)


def test_an_edited_inner_estimator_is_found(saved):
    edited(saved / "inner_", lambda attrs: attrs["estimator"]["params"].update(a=2))
    with pytest.raises(StoreError, match="inner_ is damaged: its document has another checksum"):
        load_model(saved)


def test_swapped_inner_estimators_are_found(saved):
    (saved / "inner_").rename(saved / "x")
    (saved / "outer_").rename(saved / "inner_")
    (saved / "x").rename(saved / "outer_")
    with pytest.raises(StoreError, match="is damaged"):
        load_model(saved)


@pytest.mark.parametrize("size", [0, 1, 50, -1])
def test_truncated_json_is_found(saved, size):
    path = saved / "zarr.json"
    path.write_bytes(path.read_bytes()[: size if size >= 0 else -1])
    with pytest.raises(StoreError, match="cannot be opened"):
        load_model(saved)


@pytest.mark.parametrize("name", ["coef_", "inner_"])
def test_a_missing_part_is_named(saved, name):
    (saved / name).rename(saved.parent / "away")
    with pytest.raises(StoreError, match=f"is damaged: {name} is missing"):
        load_model(saved)


def test_a_missing_chunk_is_found(saved):
    (saved / "coef_" / "c" / "0").unlink()
    with pytest.raises(StoreError, match="is damaged: coef_"):
        load_model(saved)


@pytest.mark.parametrize("byte", [0, 9, -1])
def test_a_flipped_byte_of_an_array_is_found(saved, byte):
    path = saved / "coef_" / "c" / "0"
    data = bytearray(path.read_bytes())
    data[byte] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreError, match="is damaged: coef_ does not decode"):
        load_model(saved)


def test_an_array_that_was_written_anew_is_found(saved):
    zarr.open_array(saved / "coef_")[...] = 5
    with pytest.raises(StoreError, match="is damaged: coef_ has another checksum"):
        load_model(saved)


def test_an_array_that_was_resized_is_found(saved):
    zarr.open_array(saved / "coef_").resize((9,))
    with pytest.raises(StoreError, match="is damaged: coef_ has another shape"):
        load_model(saved)


def test_a_stored_array_is_checked_too(tmp_path):
    source = zarr.create_array({}, shape=(4,), dtype="f8")
    source[...] = 1
    save_model(Dummy().fit(rows=source), tmp_path / "m")
    (tmp_path / "m" / "rows_" / "c" / "0").unlink()
    with pytest.raises(StoreError, match="is damaged: rows_"):
        load_model(tmp_path / "m")


def test_another_format_is_named(saved):
    edited(saved, lambda attrs: attrs["gramian"].update(format=7))
    with pytest.raises(StoreError, match="has format 7, this version reads format 1"):
        load_model(saved)


def signed(path: Path, change: Any) -> None:
    """Edit a document and give it a right checksum: what another version would write."""
    edited(path, lambda attrs: change(attrs["estimator"]))
    edited(
        path,
        lambda attrs: attrs.update(
            checksum=models.google_crc32c.value(models._canonical(attrs["estimator"]))
        ),
    )


def test_an_unknown_class_is_named(saved):
    signed(saved, lambda document: document.update({"class": "os.system"}))
    with pytest.raises(StoreError, match=r"holds a os\.system, known are .*; update gramian"):
        load_model(saved)


def test_an_unknown_parameter_is_named(saved):
    signed(saved, lambda document: document["params"].update(later=1))
    with pytest.raises(StoreError, match=r"cannot be read: .*later"):
        load_model(saved)


@pytest.mark.parametrize(
    "value", [{"type": "pickle"}, {"type": "damaged"}, {}, {"type": "scalar", "dtype": "?!", "value": 1}]
)
def test_an_unknown_kind_of_value_is_refused(saved, value):
    signed(saved, lambda document: document["params"].update(a=value))
    with pytest.raises(StoreError, match="cannot be read"):
        load_model(saved)


@pytest.mark.parametrize("name", ["predict", "__class__", "_x_"])
def test_a_document_cannot_set_what_is_not_learned(saved, name):
    signed(saved, lambda document: document["learned"].update({name: 1}))
    with pytest.raises(StoreError, match="is damaged: it has a learned value"):
        load_model(saved)


# ---------------------------------------------------------------- the estimators themselves


def problem() -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(3).normal(size=(60, 3))
    return X, X[:, 0] + np.sin(X[:, 1])


def fitted() -> dict[str, Any]:
    X, y = problem()
    return {
        "components": HALPrincipalComponents(random_state=0).fit(X),
        "landmarks": HALPrincipalComponents(solver="nystroem", n_landmarks=20).fit(X),
        "pchar": PCHARRegressor(n_components=(5, 10), random_state=0).fit(X, y),
        "pchal": PCHALRegressor(cv=KFold(3)).fit(X, np.column_stack([y, -y])),
        "ridge": BlockwiseRidge(alpha=[0.1, 1.0]).fit(X, y),
        "classifier": BlockwiseRidgeClassifier(random_state=np.random.RandomState(0)).fit(
            X, np.where(y > 0, "a", "bc")
        ),
        "pipeline": Pipeline([("map", HALPrincipalComponents()), ("model", BlockwiseRidge())]).fit(X, y),
    }


@pytest.mark.filterwarnings("ignore::gramian.errors.GramianWarning")
def test_every_estimator_gives_the_same_bits_after_loading(tmp_path):
    X, _ = problem()
    for name, model in fitted().items():
        save_model(model, tmp_path / name)
        loaded = load_model(tmp_path / name)
        method = "predict" if hasattr(model, "predict") else "transform"
        assert getattr(loaded, method)(X).tobytes() == getattr(model, method)(X).tobytes(), name
        assert fingerprint_of(loaded) == fingerprint_of(model), name
        if name != "pipeline":
            assert set(vars(loaded)) == set(vars(model)), name


@pytest.mark.filterwarnings("ignore::gramian.errors.GramianWarning")
def test_a_fit_with_the_same_seed_has_the_same_fingerprint():
    X, _ = problem()
    one, other = (HALPrincipalComponents(random_state=5).fit(X) for _ in range(2))
    assert (
        fingerprint_of(one)
        == fingerprint_of(other)
        != fingerprint_of(HALPrincipalComponents(random_state=6).fit(X))
    )
