"""Stores on disk: what is created, what is opened, and what is refused with one line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.codecs import Crc32cCodec

from gramian.blocks import Grid
from gramian.errors import StoreError
from gramian.store.layout import (
    SCHEMA,
    check_free,
    copy_side_arrays,
    create_array,
    create_store,
    open_dataset,
    open_store,
)
from gramian.store.writer import check_block


def data_set(path: Any, rows: int = 10, step: int = 4, **attrs: Any) -> zarr.Group:
    """Covariates, two targets, labels, groups, weights and a split, all drawn."""
    rng = np.random.default_rng(0)
    group = create_store(path, "dataset", attrs=attrs)
    values = {
        "covariates": rng.normal(size=(rows, 3)),
        "target": rng.normal(size=(rows, 2)),
        "labels": rng.integers(0, 3, rows),
        "groups": rng.integers(0, 5, rows),
        "weights": rng.uniform(size=rows).astype("f4"),
        "split": rng.integers(0, 2, rows).astype("i1"),
    }
    more = {"labels": {"classes": ["a", "b", "c"]}, "covariates": {"names": ["x", "y", "z"]}}
    for name, array in values.items():
        out = create_array(group, name, array.shape, array.dtype, (Grid(rows, step),), more.get(name))
        out.with_config({"write_empty_chunks": True})[...] = array
    return group


@pytest.fixture(params=["local", "url"])
def path(request, tmp_path):
    return str(tmp_path / "s.zarr") if request.param == "local" else f"memory://{tmp_path}/s.zarr"


# ---------------------------------------------------------------- create and open


def test_a_store_says_what_it_is(path):
    create_store(path, "features", attrs={"features": "sign"})
    assert open_store(path).attrs["gramian"] == {"format": 1, "kind": "features", "features": "sign"}


def test_a_data_set_is_opened_under_its_names(path):
    data_set(path, names=["a"])
    data = open_dataset(path)
    assert list(data.arrays) == ["covariates", "target", "labels", "groups", "weights", "split"]
    assert (data.kind, data.rows, data.classes, data.attrs["names"]) == (
        "dataset",
        10,
        ["a", "b", "c"],
        ["a"],
    )
    assert data.subspaces is data.features is data.gram is data.map is None


def test_opening_reads_no_row(path, monkeypatch):
    data_set(path)

    def read(*_: object, **__: object) -> None:
        raise AssertionError("a row was read")

    monkeypatch.setattr(zarr.AsyncArray, "getitem", read)
    monkeypatch.setattr(zarr.AsyncArray, "_get_selection", read)
    repr(open_dataset(path))


def test_parents_are_created(tmp_path):
    create_store(tmp_path / "a" / "b" / "s.zarr", "gram")
    assert open_dataset(tmp_path / "a" / "b" / "s.zarr").kind == "gram"


def test_reading_is_the_default(path):
    data_set(path)
    assert open_dataset(path).labels.read_only
    assert not open_dataset(path, mode="r+").labels.read_only


def test_a_map_is_a_group(path):
    group = create_store(path, "features")
    group.create_group("map")
    assert isinstance(open_dataset(path).map, zarr.Group)


def test_rows_of_an_empty_store_are_an_error(path):
    create_store(path, "dataset")
    with pytest.raises(StoreError, match="holds no array"):
        _ = open_dataset(path).rows


def test_labels_without_names_have_no_classes(path):
    create_array(create_store(path, "dataset"), "labels", (3,), "i8", (Grid(3, 3),))
    assert open_dataset(path).classes is None


def test_the_text_of_a_data_set_names_each_array(path):
    data_set(path)
    lines = repr(open_dataset(path)).splitlines()
    assert lines[0] == f"<dataset {path}>"
    assert lines[1].split() == ["covariates", "10", "x", "3", "float64,", "chunks", "(4,", "3),", "240", "B"]
    assert lines[3].endswith("3 classes")
    assert len(lines) == 7


def test_other_groups_and_files_beside_the_schema_are_left_alone(path):
    group = data_set(path)
    group.create_group("notes")
    assert len(open_dataset(path).arrays) == 6


# ---------------------------------------------------------------- arrays


@given(
    shape=st.lists(st.integers(0, 9), min_size=1, max_size=3).map(tuple),
    steps=st.lists(st.integers(1, 20), min_size=1, max_size=3),
)
def test_chunks_are_blocks_of_the_grids(shape, steps):
    grids = tuple(Grid(size, step) for size, step in zip(shape, steps, strict=False))
    array = create_array(zarr.create_group({}), "rows", shape, "f4", grids)
    for axis, grid in enumerate(grids):
        assert array.chunks[axis] == max(1, min(grid.step, grid.size))
        assert -(-shape[axis] // array.chunks[axis]) == len(grid)
    assert array.chunks[len(grids) :] == tuple(max(1, size) for size in shape[len(grids) :])


def test_each_chunk_has_a_checksum_and_no_compression(path):
    array = create_array(create_store(path, "gram"), "gram", (4, 4), "f8", (Grid(4, 2), Grid(4, 2)))
    assert array.compressors == (Crc32cCodec(),)
    assert array.fill_value == 0


def test_attributes_are_kept(path):
    array = create_array(
        create_store(path, "features"), "features", (4, 2), "u1", (Grid(4, 2),), {"n_bits": 13}
    )
    assert dict(array.attrs) == {"n_bits": 13}


def test_creating_again_gives_the_array_that_is_there(path):
    group = create_store(path, "gram")
    create_array(group, "gram", (4, 4), "f8", (Grid(4, 2),))[...] = 7
    assert (create_array(group, "gram", (4, 4), "f8", (Grid(4, 2),))[...] == 7).all()


@pytest.mark.parametrize(
    ("shape", "dtype", "step"),
    [((4, 5), "f8", 2), ((4, 4), "f4", 2), ((4, 4), "f8", 1)],
    ids=["shape", "dtype", "step"],
)
def test_creating_again_with_a_difference_is_refused(path, shape, dtype, step):
    group = create_store(path, "gram")
    create_array(group, "gram", (4, 4), "f8", (Grid(4, 2),))
    with pytest.raises(StoreError, match="gram exists already and differs"):
        create_array(group, "gram", shape, dtype, (Grid(4, step),))


def test_a_grid_of_another_size_is_refused(path):
    with pytest.raises(StoreError, match=r"rows of shape \(4, 2\) on grids of \(5,\)"):
        create_array(create_store(path, "gram"), "rows", (4, 2), "f8", (Grid(5, 2),))


@pytest.mark.parametrize("dtype", ["c16", "U3", "O", "M8[s]", np.longdouble])
def test_a_dtype_that_cannot_be_stored_is_refused(path, dtype):
    with pytest.raises(StoreError, match="give booleans, integers or floats"):
        create_array(create_store(path, "gram"), "rows", (4,), dtype, (Grid(4, 2),))


def test_big_endian_numbers_are_stored_in_native_order(path):
    array = create_array(create_store(path, "gram"), "rows", (4,), ">f8", (Grid(4, 2),))
    assert array.dtype == np.dtype("f8")


@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    [("subspaces", (4, 2), "f8"), ("labels", (4,), "f8"), ("target", (4,), "i8"), ("labels", (4, 1), "i8")],
)
def test_a_name_of_the_schema_has_its_shape_and_dtype(path, name, shape, dtype):
    with pytest.raises(StoreError, match="that its name stands for"):
        create_array(create_store(path, "dataset"), name, shape, dtype, (Grid(4, 2),))


# ---------------------------------------------------------------- what open refuses


def refused(path: Any, match: str) -> None:
    with pytest.raises(StoreError, match=match) as caught:
        open_dataset(path)
    assert "\n" not in str(caught.value)


def test_a_missing_path(tmp_path):
    refused(
        tmp_path / "none", "none does not exist; give the path of a store, or make one with gramian ingest"
    )


def test_a_missing_url():
    refused("memory://nowhere/none", "memory://nowhere/none holds no Zarr array or group")


def test_a_file(tmp_path):
    (tmp_path / "x.csv").write_text("1,2\n")
    refused(tmp_path / "x.csv", r"is a file, not a store; bring it in with gramian ingest .*x\.csv DEST")


def test_a_folder_without_zarr(tmp_path):
    refused(tmp_path, "holds no Zarr array or group; bring it in with gramian ingest")


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_foreign_array(path, zarr_format):
    zarr.create_array(path, shape=(3,), dtype="f8", zarr_format=zarr_format)
    refused(path, "is a Zarr array that gramian did not write; bring it in with gramian ingest")


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_foreign_group(path, zarr_format):
    zarr.create_group(path, zarr_format=zarr_format)
    refused(path, "is a Zarr group that gramian did not write; bring it in with gramian ingest")


@pytest.mark.parametrize("facts", [{"format": 2, "kind": "dataset"}, {"kind": "dataset"}, {"format": "1"}])
def test_another_format(path, facts):
    zarr.create_group(path, attributes={"gramian": facts})
    refused(path, "this version reads format 1; update gramian")


def test_an_unknown_kind(path):
    zarr.create_group(path, attributes={"gramian": {"format": 1, "kind": "soup"}})
    refused(path, "is of kind 'soup', known are dataset")


def test_a_store_that_was_not_finished(path):
    create_store(path, "dataset", attrs={"complete": False})
    refused(path, "was begun but not finished; complete it with --resume, or write it again with --force")


def test_a_model(path):
    create_store(path, "model")
    refused(path, "holds a model, not data; open it with gramian.load_model")


@pytest.mark.parametrize("content", ["", "{", "[]"])
def test_damaged_metadata_of_the_store(tmp_path, content):
    data_set(tmp_path / "s")
    (tmp_path / "s" / "zarr.json").write_text(content)
    refused(tmp_path / "s", "cannot be opened")


@pytest.mark.parametrize("content", ["", "{", '{"zarr_format": 3, "node_type": "array"}'])
def test_damaged_metadata_of_an_array(tmp_path, content):
    data_set(tmp_path / "s")
    (tmp_path / "s" / "labels" / "zarr.json").write_text(content)
    refused(tmp_path / "s", "labels of .* cannot be opened")


@pytest.mark.parametrize("name", SCHEMA)
def test_an_array_of_another_rank(path, name):
    dtype = "f8" if "f" in SCHEMA[name].dtypes else "i8"
    create_store(path, "dataset").create_array(name, shape=(2, 2, 2, 2), chunks=(1, 1, 1, 1), dtype=dtype)
    refused(path, f"{name} of .* has 4 dimensions, not ")


def test_an_array_of_another_dtype(path):
    create_store(path, "dataset").create_array("labels", shape=(4,), chunks=(2,), dtype="f8")
    refused(path, "labels of .* has dtype float64")


def test_a_group_in_the_place_of_an_array(path):
    create_store(path, "dataset").create_group("labels")
    refused(path, "labels of .* is a group, not an array")


def test_arrays_of_different_rows(path):
    group = data_set(path)
    group.create_array("features", shape=(12, 2), chunks=(4, 2), dtype="f8")
    refused(path, "features of .* has 12 rows, covariates has 10")


def test_arrays_of_different_chunks(path):
    group = data_set(path)
    group.create_array("features", shape=(10, 2), chunks=(5, 2), dtype="f8")
    refused(path, "features of .* has chunks of 5 rows, covariates of 4")


@pytest.mark.parametrize("address", ["soup://bucket/x", "soup://bucket/x::y"])
def test_an_unknown_protocol(address):
    refused(address, "cannot be opened: Protocol not known: soup")


@pytest.mark.parametrize("make", [False, True])
def test_a_driver_that_is_not_installed(monkeypatch, make):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(
        StoreError, match=r"needs a package that is not installed: .*; pip install 'gramian\[remote\]'"
    ):
        create_store("s3://bucket/x", "gram") if make else open_dataset("s3://bucket/x")


# ---------------------------------------------------------------- what create refuses and replaces


def kept(path: Path, match: str, kind: str = "features", *, force: bool = True) -> None:
    """Refused, and every file is still there; the early check refuses the same."""
    before = {file: file.read_bytes() for file in path.parent.rglob("*") if file.is_file()}
    for attempt in (create_store, check_free):
        with pytest.raises(StoreError, match=match):
            attempt(path, kind, force=force)
    assert {file: file.read_bytes() for file in path.parent.rglob("*") if file.is_file()} == before


def test_an_unknown_kind_is_not_created(tmp_path):
    with pytest.raises(StoreError, match="the kind of a store is 'soup'"):
        create_store(tmp_path / "s", "soup")


@pytest.mark.parametrize("make", [data_set, Path.mkdir, Path.touch], ids=["store", "folder", "file"])
def test_what_exists_needs_force(tmp_path, make):
    make(tmp_path / "s")
    kept(tmp_path / "s", "exists already; choose another path or give --force", force=False)


@pytest.mark.parametrize("inner", ["x.zarr", "covariates", "covariates/c/x.zarr"])
@pytest.mark.parametrize("force", [False, True])
def test_nothing_is_made_within_a_store(tmp_path, inner, force):
    data_set(tmp_path / "s")
    kept(tmp_path / "s" / inner, "lies within the store .*; choose a path outside of it", force=force)


def test_a_url_that_exists_needs_force():
    create_store("memory://urls/s.zarr", "features")
    with pytest.raises(StoreError, match="exists already"):
        create_store("memory://urls/s.zarr", "features")


def test_force_replaces_a_store(path):
    group = create_store(path, "features", attrs={"old": 1})
    create_array(group, "features", (4, 2), "f8", (Grid(4, 2),))[...] = 1
    create_store(path, "gram", force=True)
    data = open_dataset(path)
    assert (data.kind, data.arrays, data.attrs) == ("gram", {}, {"format": 1, "kind": "gram"})


def test_force_replaces_a_store_of_another_format(tmp_path):
    zarr.create_group(tmp_path / "s", attributes={"gramian": {"format": 9, "kind": "features"}})
    create_store(tmp_path / "s", "features", force=True)
    assert open_dataset(tmp_path / "s").kind == "features"


def test_force_takes_an_empty_folder(tmp_path):
    (tmp_path / "s").mkdir()
    create_store(tmp_path / "s", "features", force=True)
    assert open_dataset(tmp_path / "s").kind == "features"


def test_force_replaces_a_data_set_by_a_data_set(path):
    data_set(path)
    create_store(path, "dataset", force=True)
    assert open_dataset(path).arrays == {}


def test_force_keeps_a_data_set_from_other_kinds(tmp_path):
    data_set(tmp_path / "s")
    kept(tmp_path / "s", "holds a data set; choose another path or remove it by hand")


def test_force_keeps_a_folder_of_files(tmp_path):
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "thesis.tex").write_text("years of work")
    kept(tmp_path / "s", "is not a store that gramian wrote; choose another path or remove it by hand")


def test_force_keeps_a_file(tmp_path):
    (tmp_path / "s").write_text("years of work")
    kept(tmp_path / "s", "is not a store that gramian wrote")


def test_force_keeps_a_foreign_zarr(tmp_path):
    zarr.create_group(tmp_path / "s", attributes={"gramian": "about the author"})
    kept(tmp_path / "s", "is not a store that gramian wrote")


def test_force_keeps_a_store_with_other_files_in_it(tmp_path):
    create_store(tmp_path / "s", "features")
    (tmp_path / "s" / "thesis.tex").write_text("years of work")
    kept(tmp_path / "s", r"holds thesis\.tex, which is not part of a store; remove it by hand")


def test_force_on_a_link_replaces_what_it_points_to_and_keeps_the_link(tmp_path):
    create_store(tmp_path / "s", "features")
    (tmp_path / "link").symlink_to(tmp_path / "s")
    create_store(tmp_path / "link", "gram", force=True)
    assert (tmp_path / "link").is_symlink()
    assert open_dataset(tmp_path / "s").kind == "gram"


@pytest.mark.parametrize("moment", ["shutil.rmtree", "pathlib.Path.unlink"])
def test_a_kill_in_the_middle_of_force_leaves_a_store_that_force_replaces(tmp_path, monkeypatch, moment):
    group = create_store(tmp_path / "s", "features")
    create_array(group, "features", (4, 2), "f8", (Grid(4, 2),))

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(moment, killed)
        with pytest.raises(KeyboardInterrupt):
            create_store(tmp_path / "s", "features", force=True)
    create_store(tmp_path / "s", "features", force=True)
    assert open_dataset(tmp_path / "s").arrays == {}


def test_a_place_below_a_file_cannot_be_written(tmp_path):
    (tmp_path / "x").write_text("")
    with pytest.raises(StoreError, match="cannot be written: Not a directory; choose another place"):
        create_store(tmp_path / "x" / "s", "features")


# ---------------------------------------------------------------- side arrays


def features_of(path: Any, rows: int, step: int) -> zarr.Group:
    group = create_store(path, "features")
    create_array(group, "features", (rows, 2), "f4", (Grid(rows, step),))
    return group


@settings(max_examples=15)
@given(rows=st.integers(1, 12), steps=st.tuples(st.integers(1, 13), st.integers(1, 13)))
def test_side_arrays_are_copied_onto_the_chunks_of_the_features(tmp_path_factory, rows, steps):
    root = tmp_path_factory.mktemp("side")
    data_set(root / "a", rows, steps[0])
    source = open_dataset(root / "a")
    copy_side_arrays(source, features_of(root / "b", rows, steps[1]))
    copied = open_dataset(root / "b")
    assert set(copied.arrays) == {"features", "target", "labels", "groups", "weights", "split"}
    for name, array in source.arrays.items():
        if name != "covariates":
            assert np.array_equal(copied.arrays[name][...], array[...])
            assert copied.arrays[name].dtype == array.dtype
    assert copied.classes == ["a", "b", "c"]


def test_chosen_rows_are_copied_in_their_order(path):
    data_set(f"{path}-a")
    source, rows = open_dataset(f"{path}-a"), np.array([7, 2, 2, 9])
    copy_side_arrays(source, features_of(path, 4, 3), rows=rows)
    copied = open_dataset(path)
    assert np.array_equal(copied.target[...], source.target[...][rows])
    assert np.array_equal(copied.labels[...], source.labels[...][rows])


def test_without_other_arrays_the_chunks_of_the_source_are_kept(path):
    data_set(f"{path}-a")
    copy_side_arrays(open_dataset(f"{path}-a"), create_store(path, "predictions"))
    assert open_dataset(path).labels.chunks == (4,)


def test_copying_tells_the_checksum_of_each_block(path):
    data_set(f"{path}-a")
    group = features_of(path, 10, 3)
    written = copy_side_arrays(open_dataset(f"{path}-a"), group)
    assert set(written) == {"target", "labels", "groups", "weights", "split"}
    assert len(written["target"]) == 4
    assert all(
        check_block(group[name], index) == crc
        for name, blocks in written.items()
        for index, crc in blocks.items()
    )


def test_copying_again_mends_a_damaged_block(tmp_path):
    data_set(tmp_path / "a")
    source, group = open_dataset(tmp_path / "a"), features_of(tmp_path / "b", 10, 4)
    copy_side_arrays(source, group)
    (tmp_path / "b" / "labels" / "c" / "1").write_bytes(b"damaged")
    copy_side_arrays(source, group)
    assert np.array_equal(open_dataset(tmp_path / "b").labels[...], source.labels[...])


def test_the_metadata_of_a_store_is_json_that_others_read(tmp_path):
    data_set(tmp_path / "s")
    facts = json.loads((tmp_path / "s" / "labels" / "zarr.json").read_text())
    assert (facts["zarr_format"], facts["attributes"]) == (3, {"classes": ["a", "b", "c"]})
