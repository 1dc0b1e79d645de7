"""A job from its words to its outputs, and back again after damage."""

from __future__ import annotations

import json
import shutil
import tracemalloc
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import zarr
from sklearn.metrics import r2_score

from gramian import (
    BlockwiseRidgeClassifier,
    cluster,
    engine,
    load_model,
    open_dataset,
    pipeline,
    save_model,
    sources,
)
from gramian.blocks import DRIVER_BASE, Plan, Step
from gramian.errors import InputError, PlanError, RunError, StoreError
from gramian.ingest import ingest
from gramian.job import Cluster, Job, JobError, Stage, command_job, parse_job
from gramian.selection import folds_bytes
from gramian.store.run import Run

HERE = Cluster(workers=0, threads=2)
ROWS = 120


@pytest.fixture(scope="module")
def master(tmp_path_factory):
    """A folder with covariates, a target and a split, and the finished run of `HAL_JOB`."""
    folder = tmp_path_factory.mktemp("master")
    random = np.random.default_rng(0)
    X = random.random((ROWS, 3))
    y = np.sin(3 * X[:, 0]) + X[:, 1] + 0.1 * random.standard_normal(ROWS)
    ingest({"covariates": X, "target": y}, folder / "data.zarr", split=0.25, random_state=0)
    pipeline.run(job_of(folder / "run", HAL_JOB, folder))
    return folder


@pytest.fixture
def data(master, tmp_path):
    """The data alone."""
    shutil.copytree(master / "data.zarr", tmp_path / "data.zarr")
    return tmp_path / "data.zarr"


@pytest.fixture
def classes(tmp_path):
    """Subspaces of two classes with a split."""
    random = np.random.default_rng(1)
    centres = random.standard_normal((2, 12, 2))
    labels = np.arange(60) % 2
    X = np.linalg.qr(centres[labels] + 0.3 * random.standard_normal((60, 12, 2)))[0]
    split = (np.arange(60) >= 40).astype(np.int8)
    ingest({"subspaces": X, "labels": labels, "split": split}, tmp_path / "classes.zarr")
    return tmp_path / "classes.zarr"


def job_of(root, stages, base):
    return replace(parse_job({"path": str(root), "stages": stages}, base=Path(base)), cluster=HERE)


def run_one(command, store, what, out=None, **more):
    stage = Stage(command, command, str(store), str(what), None if out is None else str(out), **more)
    return pipeline.run(command_job(stage, cluster=HERE))


HAL_JOB = {
    "scores": {
        "command": "featurize",
        "store": "data.zarr",
        "features": "hal",
        "set": {"n_components": 20, "random_state": 0},
    },
    "model": {
        "command": "fit",
        "store": "scores",
        "model": "ridge",
        "rows": "train",
        "set": {"random_state": 0},
    },
    "predictions": {"command": "predict", "model": "model", "store": "scores"},
    "test": {"command": "evaluate", "model": "model", "store": "scores", "rows": "test"},
}


@pytest.fixture
def hal_job(data):
    return job_of(data.parent / "run", HAL_JOB, data.parent)


@pytest.fixture
def done(hal_job, master):
    """The job after it has run; a run directory may be moved together with its inputs."""
    shutil.copytree(master / "run", hal_job.path)
    return hal_job


def bytes_of(root):
    """All files of the outputs, not of the records."""
    files = sorted(path for path in root.rglob("*") if path.is_file() and ".zarr/" in str(path))
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


def flip(path):
    content = bytearray(path.read_bytes())
    content[3] ^= 1
    path.write_bytes(bytes(content))


# ---------------------------------------------------------------- the way through


def test_a_job_leaves_the_outputs_of_its_stages_in_its_run_directory(done):
    names = {path.name for path in Path(done.path).iterdir()}
    assert {"scores.zarr", "model.zarr", "predictions.zarr", "test.json", "manifest", "journal"} <= names


def test_features_in_a_store_are_what_transform_returns(done, data):
    store = open_dataset(f"{done.path}/scores.zarr")
    found = load_model(f"{done.path}/model.zarr")[0].transform(open_dataset(data).covariates[:])
    np.testing.assert_array_equal(store.features[:], found)


def test_features_carry_the_side_arrays_of_their_data(done, data):
    source, store = open_dataset(data), open_dataset(f"{done.path}/scores.zarr")
    np.testing.assert_array_equal(store.target[:], source.target[:])
    np.testing.assert_array_equal(store.split[:], source.split[:])


def test_scores_are_those_of_the_predictions(done, data):
    source, predictions = open_dataset(data), open_dataset(f"{done.path}/predictions.zarr").predictions[:]
    test = source.split[:] == 1
    expected = r2_score(source.target[:][test], predictions[test])
    assert Run.open(done.path, None).stages["test"]["results"]["r2"] == pytest.approx(expected, abs=1e-12)
    assert json.loads(Path(f"{done.path}/test.json").read_text())["r2"] == pytest.approx(expected, abs=1e-12)


def test_a_model_of_features_predicts_on_the_raw_data(done, data, tmp_path):
    run_one("predict", data, f"{done.path}/model.zarr", tmp_path / "raw.zarr")
    found = open_dataset(tmp_path / "raw.zarr").predictions[:]
    expected = open_dataset(f"{done.path}/predictions.zarr").predictions[:]
    np.testing.assert_allclose(found, expected, atol=1e-10)


def test_features_of_another_map_are_refused(done, data, tmp_path):
    run_one(
        "featurize",
        data,
        "hal",
        tmp_path / "other.zarr",
        set={"n_components": 20, "n_knots": 30, "random_state": 1},
    )
    with pytest.raises(InputError, match="features of another map"):
        run_one("predict", tmp_path / "other.zarr", f"{done.path}/model.zarr", tmp_path / "p.zarr")


def test_features_of_another_map_are_refused_within_a_job_too(data, tmp_path):
    stages = {
        name: {**HAL_JOB["scores"], "set": {"n_components": 5, "n_knots": 50, "random_state": seed}}
        for name, seed in (("scores", 0), ("others", 1))
    }
    stages |= {"model": HAL_JOB["model"], "test": {**HAL_JOB["test"], "store": "others"}}
    with pytest.raises(InputError, match="features of another map"):
        pipeline.run(job_of(tmp_path / "mixed", stages, data.parent))


def test_scores_of_a_target_that_does_not_vary(done, tmp_path):
    rows = {"X": np.random.default_rng(3).random((20, 3)), "y": np.full(20, 0.1)}
    ingest(rows, tmp_path / "constant.zarr")
    (record,) = run_one("evaluate", tmp_path / "constant.zarr", f"{done.path}/model.zarr").records
    assert np.isnan(record["results"]["r2"])
    ingest({**rows, "weights": np.zeros(20)}, tmp_path / "weightless.zarr")
    with pytest.raises(InputError, match="zero for every row"):
        run_one("evaluate", tmp_path / "weightless.zarr", f"{done.path}/model.zarr")


def test_the_map_of_a_model_makes_the_same_features_again(done, data, tmp_path):
    run_one("featurize", data, f"{done.path}/model.zarr", tmp_path / "again.zarr")
    found = open_dataset(tmp_path / "again.zarr").features[:]
    np.testing.assert_array_equal(found, open_dataset(f"{done.path}/scores.zarr").features[:])


def test_a_gram_matrix_is_that_of_the_kernel(data, tmp_path):
    from gramian.kernels import hal_kernel

    run_one("gram", data, "hal", tmp_path / "gram.zarr", set={"max_degree": 2})
    found = open_dataset(tmp_path / "gram.zarr").gram[:]
    np.testing.assert_array_equal(found, hal_kernel(open_dataset(data).covariates[:], max_degree=2))


def test_a_range_of_rows_is_that_slice(data, tmp_path):
    run_one("gram", data, "hal", tmp_path / "gram.zarr", rows="10:40")
    store = open_dataset(tmp_path / "gram.zarr")
    assert store.gram.shape == (30, 30)
    np.testing.assert_array_equal(store.target[:], open_dataset(data).target[10:40])


@pytest.mark.parametrize("kind", ["periodic", "sign", "linear"])
def test_random_features_of_subspaces_tell_classes(classes, kind):
    stages = {
        "features": {
            "command": "featurize",
            "store": "classes.zarr",
            "features": kind,
            "set": {"n_projections": 300, "random_state": 0},
        },
        "model": {
            "command": "fit",
            "store": "features",
            "model": "ridge-classifier",
            "rows": "train",
            "set": {"alpha": 0.1},
        },
        "test": {"command": "evaluate", "model": "model", "store": "features", "rows": "test"},
        "raw": {"command": "evaluate", "model": "model", "store": "classes.zarr", "rows": "test"},
    }
    outcome = pipeline.run(job_of(classes.parent / "run", stages, classes.parent))
    results = {record["stage"]: record.get("results") for record in outcome.records}
    assert results["test"]["accuracy"] >= 0.9
    assert results["raw"] == results["test"]


def test_classes_are_known_by_their_names(tmp_path):
    random = np.random.default_rng(2)
    codes = random.integers(0, 3, 90)
    X, names = (
        np.eye(3)[codes] + 0.1 * random.standard_normal((90, 3)),
        np.array(["ape", "bee", "cat"])[codes],
    )
    ingest({"X": X, "y": names}, tmp_path / "all.zarr")
    ingest({"X": X[codes > 0], "y": names[codes > 0]}, tmp_path / "some.zarr")
    run_one("fit", tmp_path / "all.zarr", "ridge-classifier", tmp_path / "m.zarr", set={"random_state": 0})
    for store in ("all", "some"):
        (record,) = run_one("evaluate", tmp_path / f"{store}.zarr", tmp_path / "m.zarr").records
        assert record["results"]["accuracy"] == 1
    run_one("predict", tmp_path / "some.zarr", tmp_path / "m.zarr", tmp_path / "p.zarr")
    predicted = open_dataset(tmp_path / "p.zarr").predictions
    found = np.array(predicted.attrs["classes"])[predicted[:]]
    np.testing.assert_array_equal(found, names[codes > 0])


NAMINGS = {  # what a classifier is fitted to in Python, and its name for each of the store's classes 3, 5, 7
    "numbers of the classes": (np.array([0, 1, 2]), [3, 5, 7]),
    "classes": (np.array([3, 5, 7]), [3, 5, 7]),
    "floats": (np.array([3.0, 5.0, 7.0]), [3, 5, 7]),
    "names": (np.array(["ape", "bee", "cat"]), ["ape", "bee", "cat"]),
}


def one_per_class(random, path, names):
    """Rows of three classes that a line tells apart, in a store, and the number of the class of each."""
    codes = random.integers(0, 3, 60)
    X = np.eye(3)[codes] + 0.1 * random.standard_normal((60, 3))
    ingest({"X": X, "labels": np.array(names)[codes]}, path)
    return X, codes


@pytest.mark.parametrize("naming", NAMINGS)
def test_a_classifier_fitted_in_python_knows_the_classes_of_a_store(naming, tmp_path):
    learned, names = NAMINGS[naming]
    X, codes = one_per_class(np.random.default_rng(3), tmp_path / "d.zarr", names)
    save_model(BlockwiseRidgeClassifier(alpha=1.0).fit(X, learned[codes]), tmp_path / "m.zarr")
    (record,) = run_one("evaluate", tmp_path / "d.zarr", tmp_path / "m.zarr").records
    assert record["results"]["accuracy"] == 1
    run_one("predict", tmp_path / "d.zarr", tmp_path / "m.zarr", tmp_path / "p.zarr")
    predicted = open_dataset(tmp_path / "p.zarr")
    found = predicted.predictions[:]
    np.testing.assert_array_equal(
        found if predicted.classes is None else np.array(predicted.classes)[found], learned[codes]
    )


def test_a_store_of_other_classes_is_not_scored(tmp_path):
    X, codes = one_per_class(np.random.default_rng(4), tmp_path / "d.zarr", ["ape", "bee", "cat"])
    model = BlockwiseRidgeClassifier(alpha=1.0).fit(X, np.array(["x", "y", "z"])[codes])
    save_model(model, tmp_path / "m.zarr")
    with pytest.raises(
        InputError, match=r"classes \['ape', 'bee', 'cat'\], .* knows \['x', 'y', 'z'\]; give"
    ):
        run_one("evaluate", tmp_path / "d.zarr", tmp_path / "m.zarr")


def test_sign_features_are_packed_unless_told_otherwise(classes, tmp_path):
    for out, more in (("packed", {}), ("plain", {"packed": False})):
        settings = {"n_projections": 20, "random_state": 0, **more}
        run_one("featurize", classes, "sign", tmp_path / f"{out}.zarr", set=settings)
    packed, plain = (open_dataset(tmp_path / f"{name}.zarr").features for name in ("packed", "plain"))
    assert (packed.dtype, packed.shape) == (np.uint8, (60, 3))
    bits = np.unpackbits(packed[:], axis=1, count=20, bitorder="little")
    np.testing.assert_array_equal(bits, plain[:] > 0)


def test_the_hamming_kernel_reads_packed_signs_and_some_of_their_rows(classes, tmp_path):
    stages = {
        "signs": {
            "command": "featurize",
            "store": "classes.zarr",
            "features": "sign",
            "set": {"n_projections": 20, "random_state": 0},
        },
        "whole": {"command": "gram", "store": "signs", "kernel": "hamming"},
        "part": {"command": "gram", "store": "signs", "kernel": "hamming", "rows": "10:30"},
    }
    job = job_of(classes.parent / "run", stages, classes.parent)
    pipeline.run(job)
    whole, part = (open_dataset(f"{job.path}/{name}.zarr").gram[:] for name in ("whole", "part"))
    bits = np.unpackbits(
        open_dataset(f"{job.path}/signs.zarr").features[:], axis=1, count=20, bitorder="little"
    )
    np.testing.assert_allclose(whole, 1 - 2 * (bits[:, None] != bits).mean(axis=2), atol=1e-6)
    np.testing.assert_array_equal(part, whole[10:30, 10:30])


def test_the_hamming_kernel_refuses_features_that_are_not_packed(classes, tmp_path):
    run_one("featurize", classes, "linear", tmp_path / "f.zarr", set={"n_projections": 8, "random_state": 0})
    with pytest.raises(InputError, match="features that are not packed"):
        run_one("gram", tmp_path / "f.zarr", "hamming", tmp_path / "g.zarr")


def test_scores_without_an_output_leave_nothing(done, data):
    before = sorted(data.parent.rglob("*"))
    outcome = run_one("evaluate", data, f"{done.path}/model.zarr", rows="test")
    assert sorted(data.parent.rglob("*")) == before
    assert outcome.records[0]["results"]["rows"] == 30


# ---------------------------------------------------------------- records


def test_the_same_job_elsewhere_gives_the_same_bytes(hal_job, master):
    pipeline.run(hal_job)
    assert bytes_of(Path(hal_job.path)) == bytes_of(master / "run")


def test_a_second_run_is_refused(done):
    with pytest.raises(RunError, match="holds a run already; give --resume to go on or --force"):
        pipeline.run(done)


def test_resume_where_nothing_was_begun_begins(hal_job):
    assert pipeline.run(hal_job, resume=True).computed == tuple(HAL_JOB)


def test_resume_of_a_complete_run_computes_nothing(done):
    before = Run.open(done.path, None).stages
    again = pipeline.run(done, resume=True)
    assert again.computed == ()
    assert {record.pop("stage"): record for record in again.records} == before


def test_force_begins_anew(done):
    assert pipeline.run(done, force=True).computed == tuple(HAL_JOB)


def test_changed_parameters_are_named(done, data):
    changed = json.loads(json.dumps(HAL_JOB))
    changed["scores"]["set"]["n_components"] = 10
    with pytest.raises(RunError, match="n_components: 20 -> 10"):
        pipeline.run(job_of(done.path, changed, data.parent), resume=True)


def test_changed_input_is_named(done, data):
    zarr.open_group(str(data))["covariates"][5] = 0.5
    with pytest.raises(RunError, match=r"input .*covariates"):
        pipeline.run(done, resume=True)


@pytest.mark.parametrize("name", ["split", "target", "weights"])
def test_a_change_of_any_array_that_a_stage_takes_is_named(name, data, tmp_path):
    arrays = {key: array[:] for key, array in open_dataset(data).arrays.items()}
    ingest({**arrays, "weights": np.ones(ROWS)}, tmp_path / "w")
    words = {"random_state": 0, "n_components": 4}
    stages = {
        "features": {"command": "featurize", "features": "hal", "store": "w", "set": words},
        "model": {
            "command": "fit",
            "model": "pchar",
            "store": "w",
            "rows": "train",
            "set": {**words, "alpha": 0.1},
        },
        "test": {"command": "predict", "model": "model", "store": "w"},
    }
    stages = stages if name == "target" else {key: stages[key] for key in ("model", "test")}
    pipeline.run(job_of(tmp_path / "run", stages, tmp_path))
    array = open_dataset(tmp_path / "w", mode="r+").arrays[name]
    array[:] = np.roll(array[:], 1) if name != "weights" else 2 * array[:]
    with pytest.raises(RunError, match=f"{name}: checksum of block 0 differs"):
        pipeline.run(job_of(tmp_path / "run", stages, tmp_path), resume=True)


def test_copied_arrays_are_inputs_of_features(data, tmp_path):
    words = {"set": {"random_state": 0, "n_components": 4}}
    run_one("featurize", data, "hal", tmp_path / "f.zarr", **words)
    target = open_dataset(data, mode="r+").target
    target[:] = 2 * target[:]
    stage = Stage("featurize", "featurize", str(data), "hal", str(tmp_path / "f.zarr"), **words)
    with pytest.raises(RunError, match="target: checksum of block 0 differs"):
        pipeline.run(command_job(stage, cluster=HERE), resume=True)


def test_a_seed_that_was_drawn_is_found_again(data, tmp_path):
    stage = Stage("featurize", "featurize", str(data), "hal", str(tmp_path / "h.zarr"), set={"n_knots": 30})
    job = command_job(stage, cluster=HERE)
    pipeline.run(job)
    before = bytes_of(tmp_path)
    Run.open(job.path, None)
    for path in (tmp_path / "h.zarr/features/c").rglob("*"):
        if path.is_file():
            path.unlink()
    pipeline.run(job, resume=True)
    assert bytes_of(tmp_path) == before


def test_an_output_is_never_overwritten(data, tmp_path):
    (tmp_path / "gram.zarr").mkdir()
    (tmp_path / "gram.zarr/mine").write_text("mine")
    with pytest.raises(StoreError, match="exists already"):
        run_one("gram", data, "hal", tmp_path / "gram.zarr")
    assert not (tmp_path / "gram.zarr.run").exists()


# ---------------------------------------------------------------- damage


@pytest.mark.parametrize(
    ("output", "array"),
    [("scores", "features"), ("scores", "target"), ("predictions", "predictions"), ("model", "coef_")],
)
def test_one_flipped_byte_is_found_and_mended(done, output, array):
    root = Path(done.path)
    before = bytes_of(root)
    folder = next((root / f"{output}.zarr").rglob(array))
    chunk = next(path for path in (folder / "c").rglob("*") if path.is_file())
    flip(chunk)
    label = f"{output}/{folder.relative_to(root / f'{output}.zarr')}"
    found = [(bad.label, bad.key, bad.state) for bad in pipeline.verify(root)]
    assert found == [(label, str(chunk.relative_to(folder)), "damaged")]
    pipeline.run(done, resume=True)
    assert bytes_of(root) == before


def test_one_deleted_chunk_is_found_and_mended(done):
    root = Path(done.path)
    before = bytes_of(root)
    chunk = next(path for path in (root / "scores.zarr/features/c").rglob("*") if path.is_file())
    chunk.unlink()
    assert [bad.state for bad in pipeline.verify(root)] == ["missing"]
    outcome = pipeline.run(done, resume=True)
    assert outcome.computed == ("scores",)
    assert bytes_of(root) == before


def test_damage_in_a_partial_sum_is_found_and_mended(done):
    root = Path(done.path)
    flip(next(path for path in (root / "sums").rglob("c/*/*") if path.is_file()))
    assert [bad.state for bad in pipeline.verify(root)] == ["damaged"]
    pipeline.run(done, resume=True)
    assert pipeline.verify(root) == []


def test_an_output_that_was_removed_is_made_again(done):
    root = Path(done.path)
    before = bytes_of(root)
    shutil.rmtree(root / "model.zarr")
    assert {bad.state for bad in pipeline.verify(root)} == {"missing"}
    pipeline.run(done, resume=True)
    assert bytes_of(root) == before


@pytest.mark.parametrize("output", ["scores", "model", "predictions"])
def test_a_lost_document_is_found_and_mended(done, output):
    root = Path(done.path)
    before = bytes_of(root)
    (root / f"{output}.zarr/zarr.json").unlink()
    assert [(bad.label, bad.key, bad.state) for bad in pipeline.verify(root)] == [
        (output, "zarr.json", "missing")
    ]
    assert pipeline.run(done, resume=True).computed == (output,)
    assert bytes_of(root) == before


def test_scores_that_were_removed_are_written_again(done):
    path = Path(done.path) / "test.json"
    before = path.read_text()
    path.unlink()
    assert pipeline.run(done, resume=True).computed == ("test",)
    assert path.read_text() == before


def test_verify_of_one_output_looks_at_it_alone(done):
    root = Path(done.path)
    flip(next(path for path in (root / "predictions.zarr").rglob("c/*") if path.is_file()))
    assert pipeline.verify(root / "scores.zarr") == []
    assert len(pipeline.verify(root / "predictions.zarr")) == 1


def test_verify_writes_nothing(done):
    root = Path(done.path)
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    pipeline.verify(root)
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


def test_verify_of_what_no_run_has_made(data):
    with pytest.raises(RunError, match="no run has made"):
        pipeline.verify(data)


def test_what_a_killed_write_left_is_cleared_away(done):
    root = Path(done.path)
    before = bytes_of(root)
    chunk = next(path for path in (root / "scores.zarr/features/c").rglob("*") if path.is_file())
    chunk.rename(chunk.with_name("0.1234.partial"))
    pipeline.run(done, resume=True)
    assert bytes_of(root) == before


def test_an_interrupted_stage_resumes_with_what_is_missing(hal_job, monkeypatch):
    from gramian import engine

    def broken(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(engine, "write", broken)
        with pytest.raises(KeyboardInterrupt):
            pipeline.run(hal_job)
    with pytest.raises(StoreError, match="begun but not finished"):
        open_dataset(f"{hal_job.path}/scores.zarr")
    pipeline.run(hal_job, resume=True)
    assert pipeline.verify(hal_job.path) == []


# ---------------------------------------------------------------- plans


def test_a_plan_that_does_not_fit_is_refused_before_anything_is_made(hal_job):
    with pytest.raises(PlanError, match="the plan needs"):
        pipeline.run(replace(hal_job, max_memory=1 << 20))
    assert not Path(hal_job.path).exists()


def test_a_plan_above_a_worker_of_a_running_cluster_leaves_nothing(hal_job):
    with cluster.local(1, 1, "280MiB") as client:
        here = Cluster(scheduler=client.scheduler.address)
        with pytest.raises(PlanError, match=r"a worker needs .* its limit is 280 MiB"):
            pipeline.run(replace(hal_job, cluster=here))
    assert not Path(hal_job.path).exists()
    pipeline.run(hal_job)


def test_a_plan_above_the_free_memory_leaves_nothing(hal_job, monkeypatch):
    monkeypatch.setattr(engine.psutil, "virtual_memory", lambda: SimpleNamespace(available=1 << 20))
    with pytest.raises(PlanError, match=r"the plan needs .* are free"):
        pipeline.run(hal_job)
    assert not Path(hal_job.path).exists()


OBJECTS = 2 << 20  # of Python, which the base of a process holds
WIDE = {
    "random features": ("featurize", "periodic", {"n_projections": 6000, "omega": 0.1}, None),
    "components of all rows": ("fit", "pchar", {"cv": 2}, None),
    "components of some rows": ("fit", "pchar", {"cv": 2, "solver": "nystroem", "n_landmarks": 300}, "train"),
    "products of some rows": ("fit", "ridge", {"cv": 2}, "train"),
}


@pytest.mark.parametrize("name", WIDE)
def test_what_a_job_allocates_stays_within_its_plan(tmp_path, name):
    command, what, settings, rows = WIDE[name]

    def job(count):
        random, data = np.random.default_rng(0), tmp_path / f"{count}.zarr"
        X = random.random((count, 4))
        y = np.sin(5 * X[:, 0]) + X[:, 1] + 0.1 * random.standard_normal(count)
        bases = {"subspaces": np.linalg.qr(random.standard_normal((count, 20, 2)))[0]}
        ingest({"covariates": X, "target": y} if command == "fit" else bases, data, split=0.2)
        stage = Stage(command, command, str(data), what, f"{data}.out", rows, {**settings, "random_state": 0})
        return command_job(stage, cluster=Cluster(workers=0, threads=1))

    small, large = job(400), job(1000)
    pipeline.run(small)  # what is imported and compiled is counted once, in every process
    tracemalloc.start()
    outcome = pipeline.run(large)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak - OBJECTS < outcome.planned - DRIVER_BASE


def test_a_plan_holds_the_rows_that_are_chosen(data):
    def driver(rows):
        stage = Stage("fit", "fit", str(data), "ridge", str(data.parent / "m.zarr"), rows)
        return pipeline.outline(command_job(stage, cluster=HERE)).plan.steps[0].driver_bytes

    chosen = int((open_dataset(data).split[:] == 0).sum())
    spared = (ROWS - chosen) * folds_bytes(5, 1)
    assert driver("train") - driver(None) == 8 * chosen - spared


@pytest.mark.parametrize("named", [True, False])
def test_the_plan_of_a_classifier_counts_the_classes_of_a_store(tmp_path, named):
    X, labels = np.random.default_rng(0).random((60, 3)), np.arange(60) % 7
    ingest({"covariates": X, "labels": labels}, tmp_path / "rows.zarr")
    if not named:
        del zarr.open_array(str(tmp_path / "rows.zarr/labels"), mode="r+").attrs["classes"]
    stage = Stage("fit", "fit", str(tmp_path / "rows.zarr"), "ridge-classifier", str(tmp_path / "m.zarr"))
    (step,) = pipeline.outline(command_job(stage, cluster=HERE)).plan.steps
    assert step.result_bytes == 8 * 5 * (1 + 3 + 7) ** 2


def test_a_plan_covers_every_stage(hal_job):
    names = [step.name.partition("/")[0] for step in pipeline.outline(hal_job).plan.steps]
    assert list(dict.fromkeys(names)) == list(HAL_JOB)


def test_a_plan_of_a_made_model_counts_the_blocks_of_its_rows(done, data):
    stage = Stage("predict", "predict", str(data), f"{done.path}/model.zarr", str(data.parent / "p.zarr"))
    (step,) = pipeline.outline(command_job(stage, cluster=HERE)).plan.steps
    assert (step.tasks, step.written) == (1, 8 * ROWS)


def test_predictions_are_planned_as_the_model_gives_them(tmp_path):
    random = np.random.default_rng(0)
    rows = {
        "covariates": random.random((30, 3)),
        "target": random.random((30, 2)),
        "labels": np.arange(30) % 3,
    }
    ingest(rows, tmp_path / "d.zarr")
    for model, shape, dtype in (("ridge", (30, 2), "f8"), ("ridge-classifier", (30,), "i8")):
        stages = {
            "model": {"command": "fit", "store": "d.zarr", "model": model, "set": {"alpha": 1.0}},
            "out": {"command": "predict", "store": "d.zarr", "model": "model"},
        }
        job = job_of(tmp_path / model, stages, tmp_path)
        (promised,) = pipeline.prepare(job)[1].promise().specs.values()
        planned = pipeline.outline(job).plan.steps[-1]
        pipeline.run(job)
        made = open_dataset(tmp_path / model / "out.zarr").predictions
        assert (made.shape, made.dtype) == (promised.shape, promised.dtype) == (shape, np.dtype(dtype))
        assert planned.written == made.nbytes


def test_a_small_limit_is_said_to_be_too_small_for_all(hal_job):
    small = replace(hal_job, cluster=Cluster(workers=2), max_memory=1 << 20)
    with pytest.raises(PlanError, match=r"the plan needs .* 2 workers of .*, allowed are 1 MiB"):
        pipeline.outline(small).check()


def test_a_local_cluster_shares_what_the_limit_leaves_beside_the_driver():
    plan = Plan((Step("sum", 8, driver_bytes=200, result_bytes=50),))
    place = pipeline.Place.of(Cluster(workers=2), DRIVER_BASE + 1200, plan)
    assert (place.workers, place.threads, place.memory_limit) == (2, 1, (1200 - 200 - 2 * 2 * 50) // 2)


def test_a_running_cluster_is_not_measured_by_this_machine():
    assert pipeline.Place.of(Cluster(scheduler="tcp://a:1"), None, Plan()).memory_limit is None


# ---------------------------------------------------------------- words that are wrong

FAULTS = {
    "model": (("fit", "data.zarr", "har"), "model is 'har'"),
    "features": (("featurize", "data.zarr", "polar"), "features is 'polar'"),
    "kernel": (("gram", "data.zarr", "gauss"), "kernel is 'gauss'"),
    "parameter": (("fit", "data.zarr", "pchar", {"colour": 1}), "no parameter 'colour'"),
    "kernel parameter": (("gram", "data.zarr", "hal", {"omega": 1}), "no parameter 'omega'"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_wrong_words_are_named(data, name):
    (command, _, what, *more), expected = FAULTS[name]
    with pytest.raises(JobError, match=expected):
        run_one(command, data, what, data.parent / "out.zarr", set=more[0] if more else {})


def test_a_store_without_what_a_model_reads(classes, tmp_path):
    with pytest.raises(InputError, match="has no features or covariates"):
        run_one("fit", classes, "ridge-classifier", tmp_path / "m.zarr")


def test_a_store_without_a_target(classes, tmp_path):
    with pytest.raises(InputError, match="has no covariates"):
        run_one("fit", classes, "pchar", tmp_path / "m.zarr")


def test_rows_of_a_split_that_is_not_there(tmp_path):
    ingest({"covariates": np.eye(4), "target": np.arange(4.0)}, tmp_path / "plain.zarr")
    with pytest.raises(InputError, match="has no split"):
        run_one("fit", tmp_path / "plain.zarr", "ridge", tmp_path / "m.zarr", rows="train")


def test_rows_beyond_the_end(data, tmp_path):
    with pytest.raises(InputError, match="has no rows 500:"):
        run_one("fit", data, "ridge", tmp_path / "m.zarr", rows="500:")


def test_a_stage_that_makes_no_model_is_not_one(data):
    stages = {**HAL_JOB, "test": {"command": "evaluate", "model": "scores", "store": "data.zarr"}}
    with pytest.raises(JobError, match="makes no model"):
        pipeline.outline(job_of(data.parent / "run", stages, data.parent))


def test_a_job_runs_from_its_file(data):
    path = data.parent / "job.toml"
    path.write_text(
        f'path = "run"\n[cluster]\nworkers = 0\n[stages.model]\ncommand = "fit"\nstore = "{data.name}"\n'
        'model = "ridge"\nset = { alpha = 1.0 }\n'
    )
    pipeline.run(path)
    assert load_model(data.parent / "run/model.zarr").alpha_ == 1.0


def test_an_empty_job_is_nothing_to_do():
    assert pipeline.run(Job(None, (), HERE)).records == []


def test_a_cluster_reads_intermediate_data_in_the_run_directory(hal_job, master, monkeypatch):
    seen, create = set(), sources.Scratch.create

    def watched(place, *arguments):
        array = create(place, *arguments)
        seen.add(array.store.root.parents[1])
        return array

    monkeypatch.setattr(sources, "CONSTANT", 0)  # the least array travels as a file
    monkeypatch.setattr(sources.Scratch, "create", watched)
    root = Path(hal_job.path)
    with cluster.local(1, 1, "600MiB") as client:
        pipeline.run(replace(hal_job, cluster=Cluster(scheduler=client.scheduler.address)))
    assert seen == {root / ".scratch"}
    assert not (root / ".scratch").exists()
    assert bytes_of(root) == bytes_of(master / "run")


def test_intermediate_data_of_a_killed_process_is_removed(hal_job):
    left = Path(hal_job.path) / ".scratch"
    left.mkdir(parents=True)
    (left / "data").touch()
    with pipeline._shared_scratch(replace(hal_job, cluster=Cluster(scheduler="tcp://a:1"))):
        assert left.is_dir()
        assert not (left / "data").exists()
