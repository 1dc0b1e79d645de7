"""What would destroy an input or cannot end well is refused before anything is written."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import gramian as gm
from gramian import pipeline
from gramian.errors import InputError, PlanError, StoreError
from gramian.ingest import inspect
from gramian.job import Cluster, Stage, command_job, parse_job
from gramian.store.layout import copy_side_arrays, create_store

HERE = Cluster(workers=0, threads=1)


def run_one(command: str, store: str, what: str, out: str, *, force: bool = False, **settings) -> None:
    stage = Stage(command, command, store, what, out, set=settings)
    pipeline.run(command_job(stage, cluster=HERE), force=force)


@pytest.fixture
def stores(tmp_path, monkeypatch) -> Path:
    """A data set and features of it, in the working directory."""
    monkeypatch.chdir(tmp_path)
    bases = np.linalg.qr(np.random.default_rng(0).normal(size=(20, 6, 2))).Q
    gm.ingest({"subspaces": bases, "target": np.arange(20.0)}, "data.zarr")
    run_one("featurize", "data.zarr", "linear", "features.zarr", n_projections=8)
    run_one("fit", "features.zarr", "ridge", "model.zarr", alpha=1.0)
    return tmp_path


def everything(root: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in root.rglob("*") if file.is_file()}


@pytest.mark.parametrize(
    ("words", "place"),
    [
        (("predict", "model.zarr", "features.zarr"), "model.zarr"),
        (("predict", "model.zarr", "features.zarr"), "x/../model.zarr"),
        (("predict", "model.zarr", "features.zarr"), "link.zarr"),
        (("featurize", "features.zarr", "data.zarr"), "features.zarr"),
        (("featurize", "linear", "data.zarr"), "data.zarr"),
        (("evaluate", "model.zarr", "features.zarr"), "."),
    ],
)
def test_an_output_never_takes_the_place_of_an_input(stores, words, place):
    command, what, store = words
    (stores / "link.zarr").symlink_to("features.zarr")
    before = everything(stores)
    with pytest.raises(StoreError, match=r"the output .* would replace the .*; choose another path"):
        run_one(command, store, what, place, force=True)
    assert everything(stores) == before


def test_nor_that_of_an_input_of_another_stage(stores):
    first = {"command": "featurize", "store": "data.zarr", "features": "linear"}
    second = {"command": "predict", "store": "features.zarr", "model": "model.zarr", "out": "data.zarr"}
    job = parse_job({"path": "run", "stages": {"first": first, "second": second}}, base=stores)
    with pytest.raises(StoreError, match="would replace the store"):
        pipeline.run(job, force=True)


@pytest.mark.parametrize(
    "words",
    [
        ("featurize", "data.zarr", "linear", "data.zarr/x.zarr"),
        ("predict", "features.zarr", "model.zarr", "data.zarr/subspaces/x.zarr"),
    ],
)
def test_nothing_is_made_within_an_input(stores, words):
    before = everything(stores)
    with pytest.raises(StoreError, match=r"lies within the store .*data\.zarr"):
        run_one(*words)
    assert everything(stores) == before


def test_what_the_disk_cannot_take_is_refused(stores, monkeypatch):
    usage = type(shutil.disk_usage(stores))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(100, 0, 100))
    with pytest.raises(PlanError, match=r"the plan writes .* KiB, the disk of .* has 100 B free; free space"):
        run_one("featurize", "data.zarr", "linear", "huge.zarr")
    with pytest.raises(PlanError, match="the plan writes"):
        run_one("featurize", "data.zarr", "linear", "features.zarr", force=True)
    assert not (stores / "huge.zarr").exists()
    assert not (stores / "huge.zarr.run").exists()


@pytest.mark.parametrize("kernel", ["periodic", "projection-rbf"])
def test_a_frequency_whose_square_overflows(stores, kernel):
    with pytest.raises(InputError, match=r"omega is 1e\+300"):
        run_one("gram", "data.zarr", kernel, "gram.zarr", omega=1e300)
    with pytest.raises(InputError, match=r"omega is 1e\+300"):
        run_one("featurize", "data.zarr", "periodic", "more.zarr", omega=1e300)


def test_a_remote_source_whose_driver_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(InputError, match=r"needs a package that is not installed"):
        gm.ingest("s3://bucket/x.zarr", tmp_path / "x.zarr")


@pytest.mark.parametrize(
    ("damage", "cause"),
    [
        (Path.unlink, r"covariates has lost the chunk c/1/0 of .*; make the store again"),
        (lambda path: path.write_bytes(b"x"), r"covariates cannot be read: .*; find its damaged chunks"),
    ],
    ids=["lost", "damaged"],
)
@pytest.mark.parametrize("rows", [None, "700:1500"])
def test_a_lost_or_damaged_chunk_of_an_input_is_never_read_as_zeros(tmp_path, damage, cause, rows):
    X = np.random.default_rng(0).normal(size=(3000, 300))
    gm.ingest({"covariates": X, "target": X[:, 0]}, tmp_path / "data.zarr")
    chunks = sorted((tmp_path / "data.zarr" / "covariates" / "c").rglob("*/0"))
    damage(chunks[1])
    stage = Stage("fit", "fit", str(tmp_path / "data.zarr"), "ridge", str(tmp_path / "m.zarr"), rows)
    with pytest.raises(StoreError, match=cause):
        pipeline.run(command_job(replace(stage, set={"alpha": 1.0}), cluster=HERE))


@pytest.mark.parametrize("name", ["target", "labels", "split"])
def test_a_lost_chunk_of_an_array_that_is_copied_is_never_read_as_zeros(tmp_path, name):
    U = np.linalg.qr(np.random.default_rng(0).normal(size=(40, 12, 2))).Q
    sides = {"target": np.arange(40) + 0.5, "labels": np.arange(40) % 3 + 5}
    gm.ingest({"subspaces": U, **sides}, tmp_path / "data.zarr", split=0.5)
    (tmp_path / "data.zarr" / name / "c" / "0").unlink()
    stage = Stage("featurize", "featurize", str(tmp_path / "data.zarr"), "linear", str(tmp_path / "f.zarr"))
    with pytest.raises(StoreError, match=f"{name} has lost the chunk c/0 of .*; make the store again"):
        pipeline.run(command_job(stage, cluster=HERE))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.zarr"]
    with pytest.raises(StoreError, match=f"{name} has lost the chunk c/0"):
        gm.ingest(tmp_path / "data.zarr", tmp_path / "again.zarr")
    group = create_store(tmp_path / "copy.zarr", "dataset")
    with pytest.raises(StoreError, match=f"{name} has lost the chunk c/0"):
        copy_side_arrays(gm.open_dataset(tmp_path / "data.zarr"), group)


@pytest.mark.parametrize("words", ["{", '{"zarr_format": 3, "node_type": "array"}', "[]"])
def test_inspect_tells_of_broken_metadata_in_one_line(stores, words):
    (stores / "data.zarr" / "subspaces" / "zarr.json").write_text(words)
    with pytest.raises(StoreError, match="cannot be opened"):
        inspect("data.zarr")
