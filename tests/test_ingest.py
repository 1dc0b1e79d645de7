"""Sources become the same data set whatever their format, batches and chunks; bad ones leave nothing."""

from __future__ import annotations

import json
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from gramian.blocks import Grid
from gramian.errors import GramianError, GramianWarning, InputError, StoreError
from gramian.ingest import arrays, ingest, inspect, tables, writing
from gramian.ingest.coding import Codes
from gramian.ingest.rows import reblock
from gramian.ingest.spans import Span
from gramian.ingest.splitting import GroupSplit, RowSplit
from gramian.store.layout import create_array, create_store, open_dataset
from gramian.store.run import Run


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of a few rows, and chunks that do not agree with them."""
    monkeypatch.setattr(arrays, "BATCH", 200)
    monkeypatch.setattr(tables, "BATCH", 200)
    monkeypatch.setattr(writing, "CHUNKS", 1 << 17)


def regression(rows: int = 50) -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    return {"X": random.normal(size=(rows, 3)), "y": random.normal(size=rows)}


def frame(rows: int = 50) -> pd.DataFrame:
    data = regression(rows)
    table = pd.DataFrame(data["X"], columns=["a", "b", "c"])
    return table.assign(
        y=data["y"], kind=[f"k{i % 3}" for i in range(rows)], site=[i // 5 for i in range(rows)]
    )


def write_csv(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def write_images(root: Path, groups: dict[str, int], shape: tuple[int, ...] = (4, 5)) -> Path:
    random = np.random.default_rng(1)
    for group, count in groups.items():
        (root / group).mkdir(parents=True)
        for number in range(count):
            pixels = random.integers(0, 256, shape, dtype=np.uint8)
            Image.fromarray(pixels).save(root / group / f"view-{number:02d}.png")
    return root


def projectors(bases: np.ndarray) -> np.ndarray:
    return bases @ bases.transpose(0, 2, 1)


def literal_projector(vectors: np.ndarray) -> np.ndarray:
    """A (A'A)^-1 A' of independent columns."""
    return vectors @ np.linalg.solve(vectors.T @ vectors, vectors.T)


# ------------------------------------------------------------------------------------------- arrays


def test_arrays_are_stored_under_the_names_of_the_schema(tmp_path: Path) -> None:
    data = regression()
    found = ingest(data, tmp_path / "d.zarr")
    assert set(found.arrays) == {"covariates", "target"}
    np.testing.assert_array_equal(found.covariates[:], data["X"])
    np.testing.assert_array_equal(found.target[:], data["y"])


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("order", ["C", "F"])
def test_npz_gives_what_its_arrays_give(tmp_path: Path, save: Any, order: str, small_blocks: None) -> None:
    data = regression()
    save(tmp_path / "d.npz", X=np.asarray(data["X"], order=order), y=data["y"])
    found = ingest(tmp_path / "d.npz", tmp_path / "d.zarr")
    np.testing.assert_array_equal(found.covariates[:], data["X"])
    np.testing.assert_array_equal(found.target[:], data["y"])


def test_npy_of_two_dimensions_is_covariates(tmp_path: Path) -> None:
    rows = np.arange(12, dtype=np.uint8).reshape(4, 3)
    np.save(tmp_path / "d.npy", rows)
    found = ingest(str(tmp_path / "d.npy"), tmp_path / "d.zarr")
    assert found.covariates.dtype == np.float32
    np.testing.assert_array_equal(found.covariates[:], rows)


def test_float_y_is_the_target_and_other_y_labels(tmp_path: Path) -> None:
    X = np.eye(3)
    assert ingest({"X": X, "y": np.ones(3)}, tmp_path / "1").target is not None
    assert ingest({"X": X, "y": np.array([5, 3, 5])}, tmp_path / "2").classes == [3, 5]
    assert ingest({"X": X, "y": np.array(["b", "a", "b"])}, tmp_path / "3").classes == ["a", "b"]
    assert ingest({"X": X, "y": np.array([5, 3, 5])}, tmp_path / "4", target="y").target[:].tolist() == [
        5,
        3,
        5,
    ]
    assert ingest({"X": X, "y": np.array([5.0, 3.0, 5.0])}, tmp_path / "5", labels="y").classes == [3, 5]


def test_ignored_arrays_are_named(tmp_path: Path) -> None:
    with pytest.warns(GramianWarning, match="made nothing of Y") as record:
        ingest({"X": np.eye(3), "Y": np.ones(3)}, tmp_path / "d.zarr")
    assert record[0].filename == __file__


def test_given_side_arrays_are_kept(tmp_path: Path) -> None:
    sides = {
        "groups": np.array(["x", "y", "x"]),
        "weights": np.array([1.0, 0.0, 2.0]),
        "split": np.array([0, 1, 0]),
    }
    found = ingest({"covariates": np.eye(3), **sides}, tmp_path / "d.zarr")
    assert found.groups[:].tolist() == [0, 1, 0]
    assert found.groups.attrs["names"] == ["x", "y"]
    assert found.weights[:].tolist() == [1, 0, 2]
    assert found.split[:].tolist() == [0, 1, 0]
    assert found.split.dtype == np.int8


def test_row_chunks_agree_across_the_store(tmp_path: Path, small_blocks: None) -> None:
    found = ingest(regression() | {"weights": np.ones(50)}, tmp_path / "d.zarr", split=0.5)
    assert {array.chunks[0] for array in found.arrays.values()} == {found.covariates.chunks[0]}
    assert 1 < found.covariates.chunks[0] < 50


def test_bases_are_taken_as_they_are(tmp_path: Path) -> None:
    bases = np.linalg.qr(np.random.default_rng(0).normal(size=(6, 5, 2)))[0]
    bases[2, :, 1] = 0
    found = ingest(bases, tmp_path / "d.zarr")
    np.testing.assert_array_equal(found.subspaces[:], bases)


def test_a_store_of_this_package_is_a_source(tmp_path: Path) -> None:
    first = ingest({"X": np.eye(3), "y": np.array(["b", "a", "b"])}, tmp_path / "1.zarr")
    second = ingest(first.path, tmp_path / "2.zarr")
    assert second.classes == ["a", "b"]
    assert second.labels[:].tolist() == [1, 0, 1]


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 60), st.integers(1, 4), st.data())
def test_foreign_zarr_of_any_chunks_gives_its_values(rows: int, columns: int, data: st.DataObject) -> None:
    chunks = data.draw(st.tuples(st.integers(1, rows), st.integers(1, columns)))
    version = data.draw(st.sampled_from([2, 3]))
    values = np.random.default_rng(0).normal(size=(rows, columns))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "BATCH", data.draw(st.integers(8, 4000)))
        patch.setattr(writing, "CHUNKS", 1 << data.draw(st.integers(3, 20)))
        with writing.tempfile.TemporaryDirectory() as folder:
            source = zarr.create_array(
                f"{folder}/s", shape=values.shape, chunks=chunks, dtype="f8", zarr_format=version
            )
            source[:] = values
            found = ingest(f"{folder}/s", f"{folder}/d.zarr")
            np.testing.assert_array_equal(found.covariates[:], values)


def test_tall_chunks_are_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "BATCH", 800)
    values = np.random.default_rng(0).normal(size=(1000, 4))
    group = zarr.create_group(str(tmp_path / "s"))
    group.create_array("X", shape=(1000, 4), chunks=(1000, 1), dtype="f8", attributes={"names": list("abcd")})
    group["X"][:] = values
    group.create_array("y", shape=(1000,), chunks=(900,), dtype="f4")[:] = values[:, 0]
    reads: list[Any] = []
    read = zarr.Array.__getitem__
    monkeypatch.setattr(zarr.Array, "__getitem__", lambda self, part: reads.append(part) or read(self, part))
    found = ingest(tmp_path / "s", tmp_path / "d.zarr")
    assert len(reads) == 4 + 2
    np.testing.assert_array_equal(found.covariates[:], values)
    np.testing.assert_array_equal(found.target[:], values[:, 0].astype(np.float32))
    assert found.covariates.attrs["names"] == list("abcd")


def test_batches_are_whole_chunks_where_these_are_low(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrays, "BATCH", 8 * 3500)
    source = zarr.create_array(str(tmp_path / "s"), shape=(10000, 1), chunks=(1000, 1), dtype="f8")
    batches = arrays.Arrays("s", {"covariates": source}).batches(["covariates"])
    assert [count for count, _ in batches] == [3000, 3000, 3000, 1000]


# ------------------------------------------------------------------------------------------- tables


def test_csv_gives_its_columns(tmp_path: Path, small_blocks: None) -> None:
    table = frame()
    table.to_csv(tmp_path / "d.csv", index=False)
    found = ingest(tmp_path / "d.csv", tmp_path / "d.zarr", target="y", labels="kind", group_by="site")
    np.testing.assert_array_equal(found.covariates[:], table[["a", "b", "c"]])
    np.testing.assert_array_equal(found.target[:], table["y"])
    np.testing.assert_array_equal(found.groups[:], table["site"])
    assert found.covariates.attrs["names"] == ["a", "b", "c"]
    assert [found.classes[code] for code in found.labels[:]] == list(table["kind"])


def test_csv_files_of_a_glob_follow_each_other_in_order(tmp_path: Path) -> None:
    table = frame()
    for number in (1, 0):
        table[25 * number : 25 * number + 25].to_csv(tmp_path / f"part-{number}.csv", index=False)
    found = ingest(f"{tmp_path}/part-*.csv", tmp_path / "d.zarr", labels="kind")
    np.testing.assert_array_equal(found.covariates[:], table[["a", "b", "c", "y", "site"]])


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_csv_separator_is_read_off_the_header(tmp_path: Path, separator: str) -> None:
    text = 'a,"b"\n\n1,"2"\r\n3, 4 \n'.replace(",", separator)
    found = ingest(write_csv(tmp_path / "d.csv", "\ufeff" + text), tmp_path / "d.zarr")
    assert found.covariates[:].tolist() == [[1, 2], [3, 4]]
    assert found.covariates.attrs["names"] == ["a", "b"]


def test_several_targets_are_columns(tmp_path: Path) -> None:
    source = write_csv(tmp_path / "d.csv", "a,p,q\n1,2,3\n4,5,6\n")
    assert ingest(source, tmp_path / "d.zarr", target=["q", "p"]).target[:].tolist() == [[3, 2], [6, 5]]


def test_parquet_gives_what_csv_gives(tmp_path: Path, small_blocks: None) -> None:
    table = frame()
    table.to_csv(tmp_path / "d.csv", index=False)
    (tmp_path / "d").mkdir()
    table[:20].to_parquet(tmp_path / "d" / "0.parquet", row_group_size=7)
    table[20:].to_parquet(tmp_path / "d" / "1.parquet")  # keeps its index as a column of its own
    options: dict[str, Any] = {"target": "y", "labels": "kind", "group_by": "site", "split": 0.3}
    first = ingest(tmp_path / "d.csv", tmp_path / "1.zarr", **options)
    second = ingest(tmp_path / "d", tmp_path / "2.zarr", **options)
    for name, array in first.arrays.items():
        np.testing.assert_array_equal(second.arrays[name][:], array[:])
    assert second.classes == first.classes


NOTES = [f"{i}, {'x' * i}\nof {i}" for i in range(50)]


@pytest.mark.parametrize("kind", ["csv", "parquet", "frame"])
def test_a_dropped_column_may_hold_anything(tmp_path: Path, small_blocks: None, kind: str) -> None:
    table = frame()
    when = pd.date_range("2026-01-01", periods=len(table))
    more = table.assign(note=NOTES, when=when, void=np.nan)[["note", *table.columns, "when", "void"]]
    source: Any = more
    if kind == "csv":
        source = tmp_path / "d.csv"
        more.to_csv(source, index=False)
    if kind == "parquet":
        source = tmp_path / "d.parquet"
        more.to_parquet(source, row_group_size=7)
    roles: dict[str, Any] = {"target": "y", "labels": "kind"}
    found = ingest(source, tmp_path / "d.zarr", drop=("when", "note", "void", "site"), **roles)
    plain = ingest(table.drop(columns="site"), tmp_path / "plain.zarr", **roles)
    for name, array in plain.arrays.items():
        np.testing.assert_array_equal(found.arrays[name][:], array[:])


def test_a_dropped_column_need_not_have_a_name(tmp_path: Path) -> None:
    pd.DataFrame({"a": [1.0, 2.0]}).to_csv(tmp_path / "d.csv")
    assert ingest(tmp_path / "d.csv", tmp_path / "d.zarr", drop="").covariates[:].tolist() == [[1], [2]]


def test_dropped_columns_do_not_enter_subspaces(tmp_path: Path) -> None:
    source = write_csv(tmp_path / "d.csv", "id,a,b,g\nx,1,0,0\ny,0,2,1\n")
    found = ingest(source, tmp_path / "d.zarr", subspaces=True, group_by="g", drop="id")
    np.testing.assert_array_equal(found.subspaces[:], [[[1], [0]], [[0], [1]]])


def test_parquet_keeps_float32(tmp_path: Path) -> None:
    pd.DataFrame({"a": np.float32([1, 2]), "b": np.int16([3, 4])}).to_parquet(tmp_path / "d.parquet")
    assert ingest(tmp_path / "d.parquet", tmp_path / "d.zarr").covariates.dtype == np.float32


# ---------------------------------------------------------------------------------------- subspaces


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(0, 4), st.integers(0, 2**32 - 1))
def test_basis_spans_the_vectors(count: int, more: int, seed: int) -> None:
    vectors = np.random.default_rng(seed).normal(size=(count + more, count))
    basis = Span().basis(vectors)
    np.testing.assert_allclose(basis.T @ basis, np.eye(count), atol=1e-12)
    np.testing.assert_allclose(basis @ basis.T, literal_projector(vectors), atol=1e-8)
    assert (np.take_along_axis(basis, np.abs(basis).argmax(axis=0)[None], axis=0) > 0).all()


@settings(max_examples=40, deadline=None)
@given(hnp.arrays(np.float64, 4, elements=st.floats(0.01, 10)), st.floats(0.05, 1.0))
def test_energy_takes_the_smallest_rank_that_holds_its_share(values: np.ndarray, energy: float) -> None:
    values = np.sort(values)[::-1]
    rank = Span(energy=energy).dimension(values, np.empty((6, 4)))
    share = np.cumsum(values**2) / (values**2).sum()
    assert share[rank - 1] >= energy - 1e-9
    assert rank == 1 or share[rank - 2] < energy


def test_centred_span_is_that_of_the_differences(tmp_path: Path) -> None:
    matrices = np.random.default_rng(0).normal(size=(3, 6, 4)) + 10
    found = ingest(matrices, tmp_path / "d.zarr", subspaces=True, center=True)
    differences = matrices[:, :, 1:] - matrices[:, :, :1]
    np.testing.assert_allclose(
        projectors(found.subspaces[:]), [literal_projector(d) for d in differences], atol=1e-9
    )


def test_rows_of_a_group_span_one_subspace_wherever_they_stand(tmp_path: Path, small_blocks: None) -> None:
    random = np.random.default_rng(0)
    groups = random.permutation(np.repeat([7, 3, 5], [4, 3, 6]))
    rows = random.normal(size=(13, 8))
    source = {"X": rows, "unit": groups, "y": groups % 2}
    found = ingest(source, tmp_path / "d.zarr", subspaces=True, group_by="unit", rank=3)
    assert found.attrs["names"] == ["3", "5", "7"]
    assert found.groups is None
    assert found.labels[:].tolist() == [0, 0, 0]
    np.testing.assert_allclose(
        projectors(found.subspaces[:1]), [literal_projector(rows[groups == 3].T)], atol=1e-9
    )


def test_groups_of_fewer_vectors_are_padded_with_zero_columns(tmp_path: Path) -> None:
    source = {"X": np.random.default_rng(0).normal(size=(5, 8)), "groups": [0, 0, 1, 1, 1]}
    found = ingest(source, tmp_path / "d.zarr", subspaces=True)
    assert found.subspaces.shape == (2, 8, 3)
    assert not found.subspaces[0, :, 2].any()


def test_csv_rows_become_subspaces(tmp_path: Path) -> None:
    table = frame()[["a", "b", "c", "site"]]
    table.to_csv(tmp_path / "d.csv", index=False)
    found = ingest(tmp_path / "d.csv", tmp_path / "d.zarr", subspaces=True, group_by="site", rank=2)
    assert found.subspaces.shape == (10, 3, 2)
    assert inspect(found.path).ok


def test_deficient_groups_are_dropped_counted_and_named(tmp_path: Path) -> None:
    matrices = np.random.default_rng(0).normal(size=(4, 6, 3)).astype(np.float32)
    matrices[1, :, 2] = matrices[1, :, 0] * 3 - matrices[1, :, 1]
    matrices[3] = 0
    source = {"X": matrices, "y": np.arange(4.0)}
    with pytest.warns(GramianWarning, match="dropped 2 of 4 groups of the source as rank-deficient: 1, 3"):
        found = ingest(source, tmp_path / "d.zarr", subspaces=True, rank=3, on_deficient="drop")
    assert found.attrs["dropped"] == 2
    assert found.target[:].tolist() == [0, 2]


@pytest.mark.parametrize("options", [{}, {"rank": 3}, {"energy": 0.9}])
def test_a_deficient_group_is_named(tmp_path: Path, options: dict[str, Any]) -> None:
    matrices = np.random.default_rng(0).normal(size=(3, 6, 3))
    matrices[1] = 0
    with pytest.raises(InputError, match="group '1' of the source is rank-deficient: its 3 vectors span 0"):
        ingest(matrices, tmp_path / "d.zarr", subspaces=True, **options)


# ------------------------------------------------------------------------------------------- images


def test_images_of_a_folder_span_its_subspace(tmp_path: Path) -> None:
    root = write_images(tmp_path / "img", {"cat/tom": 3, "cat/kit": 2, "dog/rex": 3})
    found = ingest(root, tmp_path / "d.zarr", labels=1)
    assert found.subspaces.shape == (3, 20, 3)
    assert found.subspaces.dtype == np.float32
    assert found.attrs["names"] == ["cat/kit", "cat/tom", "dog/rex"]
    assert [found.classes[code] for code in found.labels[:]] == ["cat", "cat", "dog"]
    pixels = [
        np.asarray(Image.open(path), float).reshape(-1) for path in sorted((root / "cat/tom").iterdir())
    ]
    np.testing.assert_allclose(
        projectors(found.subspaces[1:2])[0], literal_projector(np.stack(pixels, axis=1)), atol=1e-5
    )


@pytest.mark.parametrize(
    ("group_by", "names"),
    [
        (1, ["cat", "dog"]),
        ("2", ["cat/kit", "cat/tom", "dog/rex"]),
        (r"^(\w)\w+/", ["c", "d"]),
        (r"(\w+)/(\w+)/view", ["cat/kit", "cat/tom", "dog/rex"]),
    ],
)
def test_groups_of_images_follow_level_or_pattern(tmp_path: Path, group_by: Any, names: list[str]) -> None:
    root = write_images(tmp_path / "img", {"cat/tom": 2, "cat/kit": 2, "dog/rex": 2})
    assert ingest(root, tmp_path / "d.zarr", group_by=group_by).attrs["names"] == names


@pytest.mark.parametrize(("gray", "n"), [(None, 60), (False, 60), (True, 20)])
def test_colour_and_gray(tmp_path: Path, gray: bool | None, n: int) -> None:
    root = write_images(tmp_path / "img", {"a": 2}, shape=(4, 5, 3))
    assert ingest(root, tmp_path / "d.zarr", gray=gray).subspaces.shape == (1, n, 2)


def test_size_is_height_by_width(tmp_path: Path) -> None:
    root = write_images(tmp_path / "img", {"a": 2})
    write_images(tmp_path / "img", {"b": 2}, shape=(8, 8))
    assert ingest(root, tmp_path / "d.zarr", size="3x2").subspaces.shape == (2, 6, 2)


# -------------------------------------------------------------------------------------------- split


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(0, 3), min_size=2, max_size=80),
    st.floats(0.05, 0.95),
    st.integers(1, 20),
    st.integers(0, 5),
)
def test_split_gives_each_class_its_share(labels: list[int], fraction: float, step: int, seed: int) -> None:
    classes = np.array(labels)
    counts = np.bincount(classes, minlength=4)
    split = RowSplit(counts, fraction, seed)
    blocks = [split.assign(i, classes[i * step : (i + 1) * step]) for i in range(-(-len(classes) // step))]
    drawn = np.concatenate(blocks)
    assert abs(drawn.sum() - fraction * len(classes)) <= 0.5 + 1e-9
    for value in range(4):
        assert abs(drawn[classes == value].sum() - fraction * counts[value]) <= 1 + 1e-9


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.integers(0, 50), st.integers(1, 9), min_size=1), st.floats(0.05, 0.95))
def test_whole_groups_come_close_to_the_share(sizes: dict[int, int], fraction: float) -> None:
    split = GroupSplit(sizes, dict.fromkeys(sizes, 0), fraction, 0)
    groups = np.repeat(list(sizes), list(sizes.values()))
    drawn = split.assign(groups)
    assert all(len(set(drawn[groups == group])) == 1 for group in sizes)
    assert drawn.sum() == split.test_rows
    assert abs(drawn.sum() - fraction * len(groups)) <= max(sizes.values()) / 2 + 1e-9


def test_split_keeps_groups_whole_within_their_classes(tmp_path: Path) -> None:
    table = frame(60).assign(kind=[f"k{i // 30}" for i in range(60)])
    table.to_csv(tmp_path / "d.csv", index=False)
    found = ingest(tmp_path / "d.csv", tmp_path / "d.zarr", labels="kind", group_by="site", split=1 / 3)
    split = found.split[:].reshape(12, 5)
    assert (split == split[:, :1]).all()
    assert split[:6, 0].sum() == split[6:, 0].sum() == 2


def test_split_follows_the_seed_and_not_the_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ingest(regression(), tmp_path / "1", split=0.4, random_state=1).split[:]
    other = ingest(regression(), tmp_path / "2", split=0.4, random_state=2).split[:]
    monkeypatch.setattr(arrays, "BATCH", 100)
    again = ingest(regression(), tmp_path / "3", split=0.4, random_state=1)
    np.testing.assert_array_equal(again.split[:], first)
    assert (first != other).any()
    assert first.sum() == other.sum() == 20
    assert again.attrs["split"] == {"fraction": 0.4, "random_state": 1}


# --------------------------------------------------------------------------------------------- dest


def test_an_existing_store_is_kept(tmp_path: Path) -> None:
    ingest(np.eye(3), tmp_path / "d.zarr")
    with pytest.raises(StoreError, match=r"d\.zarr exists already; .*--force"):
        ingest(np.eye(4), tmp_path / "d.zarr")
    assert open_dataset(tmp_path / "d.zarr").rows == 3


def test_a_taken_place_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    ingest(np.eye(3), tmp_path / "d.zarr")
    with pytest.raises(StoreError, match="exists already"):
        ingest(tmp_path / "missing.csv", tmp_path / "d.zarr")


def test_force_replaces_a_data_set_when_the_new_one_is_complete(tmp_path: Path) -> None:
    ingest(regression(), tmp_path / "d.zarr")
    with pytest.raises(InputError):
        ingest(np.full((3, 3), np.nan), tmp_path / "d.zarr", force=True)
    assert open_dataset(tmp_path / "d.zarr").rows == 50
    found = ingest(np.eye(4), tmp_path / "d.zarr", force=True)
    assert set(found.arrays) == {"covariates"}
    assert [path.name for path in tmp_path.iterdir()] == ["d.zarr"]


def test_force_replaces_nothing_else(tmp_path: Path) -> None:
    root = write_images(tmp_path / "img", {"a": 2})
    with pytest.raises(StoreError, match="not a store that gramian wrote"):
        ingest(np.eye(4), root, force=True)
    assert len(list((root / "a").iterdir())) == 2


def test_a_failed_ingest_leaves_nothing(tmp_path: Path, small_blocks: None) -> None:
    rows = np.ones((50, 3))
    rows[45, 1] = np.inf
    with pytest.raises(InputError, match=r"row 45, position \(1,\) of covariates of the source is inf"):
        ingest(rows, tmp_path / "d.zarr")
    assert not list(tmp_path.iterdir())


def test_a_move_that_is_interrupted_leaves_no_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[Any] = []
    replace = writing.os.replace

    def stop(old: Any, new: Any) -> None:
        into_place = Path(new).parent == tmp_path / "d.zarr" != Path(old).parent
        if into_place and moved:
            raise OSError(5, "Input/output error", str(new))
        moved.extend([new] if into_place else [])
        replace(old, new)

    monkeypatch.setattr(writing.os, "replace", stop)
    with pytest.raises(StoreError, match="Input/output error; see that it can be read"):
        ingest(regression(), tmp_path / "d.zarr")
    with pytest.raises(StoreError, match="was begun but not finished"):
        open_dataset(tmp_path / "d.zarr")


def test_a_url_is_marked_until_it_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any) -> None:
        raise InputError("stopped", "go on")

    with monkeypatch.context() as patch:
        patch.setattr(writing, "write_block", stop)
        with pytest.raises(InputError, match="stopped"):
            ingest(np.eye(3), "memory://ingest/d.zarr")
    with pytest.raises(StoreError, match="was begun but not finished"):
        open_dataset("memory://ingest/d.zarr")
    assert ingest(np.eye(3), "memory://ingest/d.zarr", force=True).rows == 3


def test_progress_counts_blocks(tmp_path: Path, small_blocks: None) -> None:
    seen: list[Any] = []
    found = ingest(regression(), tmp_path / "d.zarr", on_progress=seen.append)
    blocks = found.covariates.cdata_shape[0]
    assert [(event.done, event.total) for event in seen] == [(i + 1, blocks) for i in range(blocks)]


# ---------------------------------------------------------------------------------------- bad input

CSV_FAULTS = {
    "word": ("a,b\n1,2\n3,x\n", {}, r"d\.csv, row 3, column 'b': 'x' is not a number.* --drop b$"),
    "date": ("a,day sold\n1,2026-01-02\n", {}, r"'2026-01-02' is not a number.* --drop 'day sold'$"),
    "word after a break": ('a,b,c\n1,"u\nv",2\n3,w,x\n', {"labels": "b"}, r"row 4, column 'c': 'x' is not"),
    "ragged, short": ("a,b\n1,2\n3\n", {}, r"d\.csv, row 3: 1 fields, the header has 2"),
    "ragged, long": ("a,b\n1,2\n\n3,4,5\n", {}, r"d\.csv, row 4: 3 fields, the header has 2"),
    "empty field": ("a,b\n1,\n", {}, r"d\.csv, row 2, column 'b' is empty"),
    "empty label": ("a,b\n1, \n", {"labels": "b"}, r"d\.csv, row 2, column 'b' is empty"),
    "nan": ("a,b\n1,2\n3,NaN\n", {}, r"d\.csv, row 3, column 'b' is NaN"),
    "infinity": ("a,b\n1,inf\n", {"target": "a"}, r"d\.csv, row 2, column 'b' is inf"),
    "digits with a line between": ("a\n1_0\n", {}, r"d\.csv, row 2, column 'a': '1_0' is not a number"),
    "empty file": ("", {}, r"d\.csv is empty"),
    "no rows": ("a,b\n", {}, r"d\.csv has no rows"),
    "no header": ("1,2\n3,4\n", {}, r"d\.csv begins with numbers"),
    "two of a name": ("a,a\n1,2\n", {}, r"d\.csv has two columns named 'a'"),
    "column without a name": (",a\n0,1\n", {}, r"column 1 of .*d\.csv has no name"),
    "missing target": (
        "a,b\n1,2\n",
        {"target": "y"},
        r"d\.csv has no column 'y' for the target; give one of a, b",
    ),
    "missing labels": ("a,b\n1,2\n", {"labels": "y"}, r"d\.csv has no column 'y' for the labels"),
    "no covariates": ("a,b\n1,2\n", {"target": "a", "labels": "b"}, "no column left for the covariates"),
    "open quote": ('a,b\n1,u\n3,"u\n4,u\n', {"labels": "b"}, r"d\.csv cannot be read as CSV: unexpected end"),
    "subspaces of no groups": (
        "a,b\n1,2\n",
        {"subspaces": True},
        "no column says which rows belong together",
    ),
    "option for images": ("a,b\n1,2\n", {"gray": True}, "a table takes no gray"),
    "unknown name to drop": (
        "a,b\n1,2\n",
        {"drop": ("b", "id")},
        r"d\.csv has no column 'id' to drop; give one of a, b$",
    ),
    "target that is dropped": ("a,b\n1,2\n", {"target": "b", "drop": ("b",)}, "'b', which is the target"),
    "labels that are dropped": ("a,1\n1,2\n", {"labels": 1, "drop": ["1"]}, "'1', which is the labels"),
    "groups that are dropped": ("a,b\n1,2\n", {"group_by": "b", "drop": "b"}, "'b', which is the group_by"),
    "all dropped": ("a,b\n1,2\n", {"drop": ("a", "b")}, "no column left for the covariates"),
    "open quote in a dropped column": ('a,b\n1,u\n3,"u\n4,u\n', {"drop": "b"}, "unexpected end"),
    "open quote that another one ends": ('a,b\n1,"u\n3,"u"\n', {"drop": "b"}, "cannot be read as CSV"),
    "ragged beside a dropped column": ("a,b\n1,u\n3,u,v\n", {"drop": "b"}, "row 3: 3 fields"),
    "rank without subspaces": ("a,b\n1,2\n", {"rank": 2}, r"without subspaces takes no rank.*--subspaces"),
    "split of all": ("a,b\n1,2\n", {"split": 1.0}, "split is 1.0"),
    "split of too few": ("a,b\n1,2\n", {"split": 0.3}, "a split of 0.3 leaves no test row of 1"),
}


@pytest.mark.parametrize("fault", CSV_FAULTS)
def test_bad_csv(tmp_path: Path, fault: str) -> None:
    text, options, message = CSV_FAULTS[fault]
    source = write_csv(tmp_path / "d.csv", text)
    with pytest.raises(InputError, match=message) as caught:
        ingest(source, tmp_path / "d.zarr", **options)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "d.zarr").exists()


def test_csv_that_is_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_bytes("a,b\n1,2\n".encode("utf-16"))
    with pytest.raises(InputError, match="give CSV in UTF-8"):
        ingest(tmp_path / "d.csv", tmp_path / "d.zarr")


def test_files_of_a_glob_must_have_the_same_columns(tmp_path: Path) -> None:
    write_csv(tmp_path / "1.csv", "a,b\n1,2\n")
    write_csv(tmp_path / "2.csv", "b,a\n1,2\n")
    with pytest.raises(InputError, match=r"2\.csv has the columns b, a, .*1\.csv has a, b"):
        ingest(f"{tmp_path}/*.csv", tmp_path / "d.zarr")


PARQUET_FAULTS = {
    "words": (
        {"a": [1.0], "b": ["x"]},
        {},
        r"d\.parquet, column 'b' holds .*string, not numbers.* --drop b$",
    ),
    "date": ({"a": [1.0], "b": [pd.Timestamp(0)]}, {}, r"'b' holds timestamp.*, not numbers.* --drop b$"),
    "unknown name to drop": ({"a": [1.0]}, {"drop": ["b"]}, "no column 'b' to drop; give one of a$"),
    "null": ({"a": [1.0, None], "b": [1.0, 2.0]}, {}, r"d\.parquet, column 'a', row 1 is (empty|nan)"),
    "null label": ({"a": [1.0, 2.0], "b": ["x", None]}, {"labels": "b"}, r"column 'b', row 1 is empty"),
    "infinity": ({"a": [1.0, np.inf]}, {}, r"d\.parquet, column 'a', row 1 is inf"),
    "fractions as labels": ({"a": [1.0], "b": [0.5]}, {"labels": "b"}, r"column 'b' holds 0\.5"),
    "missing": ({"a": [1.0]}, {"target": "y"}, r"has no column 'y' for the target"),
}


@pytest.mark.parametrize("fault", PARQUET_FAULTS)
def test_bad_parquet(tmp_path: Path, fault: str) -> None:
    columns, options, message = PARQUET_FAULTS[fault]
    pd.DataFrame(columns).to_parquet(tmp_path / "d.parquet")
    with pytest.raises((InputError, TypeError), match=message):
        ingest(tmp_path / "d.parquet", tmp_path / "d.zarr", **options)


def test_a_file_that_is_not_parquet(tmp_path: Path) -> None:
    (tmp_path / "d.parquet").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match=r"d\.parquet is not a Parquet file"):
        ingest(tmp_path / "d.parquet", tmp_path / "d.zarr")


ARRAY_FAULTS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "objects": (np.array([[1, None]], dtype=object), {}, "holds Python objects"),
    "words": (np.array([["a"]]), {}, "not real numbers"),
    "complex": (np.ones((2, 2), dtype=complex), {}, "not real numbers"),
    "single basis of too many dimensions": (np.ones((1, 2, 2, 2)), {}, r"has shape \(1, 2, 2, 2\)"),
    "columns to drop": (np.ones((2, 2)), {"drop": "a"}, "a source of arrays takes no drop"),
    "no names to drop": (np.ones((2, 2)), {"drop": 1}, "drop is 1; give the names of columns"),
    "one dimension": (np.ones(3), {}, r"has shape \(3,\)"),
    "no rows": (np.ones((0, 3)), {}, "has no rows"),
    "no columns": (np.ones((3, 0)), {}, r"has shape \(3, 0\)"),
    "no bases": (np.ones((2, 3, 2)), {}, r"basis 0 of subspaces of the source is not orthonormal"),
    "zero basis": (np.zeros((1, 3, 2)), {}, "has no column that is not zero"),
    "nothing to read": ({"a": np.ones(3), "b": np.ones(3)}, {}, "none of them named X"),
    "lengths": ({"X": np.eye(3), "y": np.ones(2)}, {}, "differ in length: covariates 3, target 2"),
    "weights": ({"X": np.eye(2), "weights": np.array([1.0, -1.0])}, {}, "row 1 of weights .* is -1.0"),
    "split": ({"X": np.eye(2), "split": np.array([0, 2])}, {}, "split of the source holds 2"),
    "fractions as labels": ({"X": np.eye(2), "y": np.array([0.5, 1])}, {"labels": "y"}, "holds 0.5"),
    "missing": (np.eye(2), {"labels": "kind"}, "no array 'kind' for the labels"),
    "one group of two classes": (
        {"X": np.eye(3), "y": np.array([0, 1, 1]), "g": np.array([0, 0, 0])},
        {"subspaces": True, "group_by": "g"},
        "group 0 of the source has the labels 0 and 1",
    ),
    "rows without groups": (np.eye(3), {"subspaces": True}, "nothing says which rows belong together"),
    "rank beyond the space": (np.ones((1, 2, 3)), {"subspaces": True, "rank": 3}, "rank is 3, the vectors"),
    "rank of none": (np.ones((1, 2, 3)), {"subspaces": True, "rank": 0}, "rank is 0"),
    "energy": (np.ones((1, 2, 3)), {"subspaces": True, "energy": 1.5}, "energy is 1.5"),
    "deficient": (np.ones((1, 2, 3)), {"subspaces": True, "on_deficient": "skip"}, "on_deficient is 'skip'"),
    "nan in a group": (np.full((1, 2, 2), np.nan), {"subspaces": True}, "group '0' of the source is nan"),
}


@pytest.mark.parametrize("fault", ARRAY_FAULTS)
def test_bad_arrays(tmp_path: Path, fault: str) -> None:
    source, options, message = ARRAY_FAULTS[fault]
    with pytest.raises(GramianError, match=message) as caught:
        ingest(source, tmp_path / "d.zarr", **options)
    assert isinstance(caught.value, (ValueError, TypeError))
    assert not (tmp_path / "d.zarr").exists()


def test_pickled_objects_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "d.npy", np.array([[{}]], dtype=object), allow_pickle=True)
    with pytest.raises(TypeError, match=r"d\.npy holds pickled Python objects"):
        ingest(tmp_path / "d.npy", tmp_path / "d.zarr")


def test_truncated_npy_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "d.npy", np.ones((100, 3)))
    (tmp_path / "d.npy").write_bytes((tmp_path / "d.npy").read_bytes()[:-8])
    with pytest.raises(InputError, match=r"d\.npy ends before its \(100, 3\) values"):
        ingest(tmp_path / "d.npy", tmp_path / "d.zarr")


@pytest.mark.parametrize("name", ["d.npy", "d.npz", "d.zarr"])
def test_files_that_are_not_what_they_are_called(tmp_path: Path, name: str) -> None:
    if name == "d.zarr":
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).write_text("nothing")
    with pytest.raises(InputError, match=name):
        ingest(tmp_path / name, tmp_path / "out.zarr")


def test_npz_without_arrays(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "d.npz", "w") as archive:
        archive.writestr("readme.txt", "nothing")
    with pytest.raises(InputError, match="holds no array"):
        ingest(tmp_path / "d.npz", tmp_path / "d.zarr")


SOURCE_FAULTS = {
    "missing.csv": "missing.csv does not exist",
    "*.csv": "no file matches",
    "notes.txt": "is of no kind that is known",
    "empty": "empty holds nothing that can be read",
    "mixed": "mixed holds files of several kinds: csv, images",
    "photo.png": "is an image; give the folder",
}


@pytest.mark.parametrize("name", SOURCE_FAULTS)
def test_bad_sources(tmp_path: Path, name: str) -> None:
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "empty").mkdir()
    write_images(tmp_path / "mixed", {"a": 1})
    write_csv(tmp_path / "mixed" / "d.csv", "a\n1\n")
    Image.new("L", (2, 2)).save(tmp_path / "photo.png")
    with pytest.raises(InputError, match=SOURCE_FAULTS[name].replace("*", r"\*")):
        ingest(f"{tmp_path}/{name}", tmp_path / "d.zarr")


IMAGE_FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "level too deep": ({"group_by": 3}, r"--group-by is level 3, .*view-00\.png lies 2 folder"),
    "level of nothing": ({"labels": 0}, "--labels is level 0"),
    "no expression": ({"group_by": "("}, "no regular expression"),
    "no match": ({"group_by": "zebra"}, "'zebra' does not match cat/kit/view-00.png"),
    "classes within a group": ({"group_by": 1, "labels": 2}, "group 'cat' of .* the classes kit, tom"),
    "target": ({"target": "y"}, "a folder of images takes no target"),
    "size": ({"size": "32"}, "size is '32'"),
    "rank": ({"rank": 3}, "group 'cat/kit' of .* its 2 vectors span 2 dimensions, 3 are needed"),
}


@pytest.mark.parametrize("fault", IMAGE_FAULTS)
def test_bad_image_options(tmp_path: Path, fault: str) -> None:
    root = write_images(tmp_path / "img", {"cat/tom": 2, "cat/kit": 2})
    options, message = IMAGE_FAULTS[fault]
    with pytest.raises(InputError, match=message):
        ingest(root, tmp_path / "d.zarr", **options)


def test_images_of_several_sizes(tmp_path: Path) -> None:
    root = write_images(tmp_path / "img", {"a": 2})
    write_images(root, {"b": 2}, shape=(6, 5))
    with pytest.raises(
        InputError, match=r"b/view-00\.png has 6 x 5 pixels .*a/view-00\.png has 4 x 5; .*--size"
    ):
        ingest(root, tmp_path / "d.zarr")


def test_images_of_several_kinds(tmp_path: Path) -> None:
    root = write_images(tmp_path / "img", {"a": 2})
    write_images(root, {"b": 2}, shape=(4, 5, 3))
    with pytest.raises(InputError, match=r"b/view-00\.png has 3 colour channel.*--gray or all in --color"):
        ingest(root, tmp_path / "d.zarr")


def test_an_unreadable_image_is_named(tmp_path: Path) -> None:
    root = write_images(tmp_path / "img", {"a": 2})
    broken = root / "a" / "view-01.png"
    broken.write_bytes(broken.read_bytes()[:60])
    with pytest.raises(InputError, match=r"a/view-01\.png cannot be read as an image"):
        ingest(root, tmp_path / "d.zarr")


# ------------------------------------------------------------------------------------------- pieces


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 9), max_size=8), st.integers(1, 7))
def test_reblock_keeps_rows_in_order(lengths: list[int], step: int) -> None:
    total, batches = 0, []
    for length in lengths:
        batches.append((length, {"x": np.arange(total, total + length)}))
        total += length
    blocks = list(reblock(iter(batches), step))
    assert all(count == step for count, _ in blocks[:-1])
    joined = [int(value) for count, block in blocks for value in block["x"][:count]]
    assert joined == list(range(total))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["10", "9", "-1"], [-1, 9, 10]),
        (["01", "2"], ["01", "2"]),
        ([3, 1], [1, 3]),
        (["b", "10"], ["10", "b"]),
    ],
)
def test_codes_are_integers_where_all_are(values: list[Any], expected: list[Any]) -> None:
    codes = Codes(values)
    assert codes.values == expected
    assert [codes.values[code] for code in codes.encode(np.array(values))] == [
        type(expected[0])(value) for value in values
    ]


# ------------------------------------------------------------------------------------------ inspect


def test_inspect_counts_what_is_there(tmp_path: Path, small_blocks: None) -> None:
    bases = np.linalg.qr(np.random.default_rng(0).normal(size=(20, 5, 2)))[0]
    bases[3, :, 1] = 0
    source = {"X": bases, "y": np.arange(20) % 4, "target": np.arange(20.0), "groups": np.arange(20) // 2}
    found = inspect(ingest(source, tmp_path / "d.zarr", split=0.5).path)
    assert found.ok
    assert found.figures == found.figures | {
        "rows": 20,
        "ambient dimension": 5,
        "dimension": "1 to 2",
        "classes": 4,
        "groups": 10,
        "target mean": 9.5,
        "target deviation": 5.76628,
        "training rows": 10,
        "test rows": 10,
    }
    assert [facts.name for facts in found.arrays] == ["subspaces", "target", "labels", "groups", "split"]
    assert found.rows()[0]["codecs"] == "bytes, crc32c"
    assert found.arrays[0].stored_bytes > bases.nbytes


@pytest.mark.parametrize("state", ["damaged", "missing"])
def test_inspect_names_a_bad_chunk(tmp_path: Path, small_blocks: None, state: str) -> None:
    found = ingest(regression(), tmp_path / "d.zarr")
    chunk = tmp_path / "d.zarr" / "covariates" / "c" / "1" / "0"
    content = bytearray(chunk.read_bytes())
    content[5] ^= 1
    chunk.unlink()
    if state == "damaged":
        chunk.write_bytes(content)
    bad = [check for check in inspect(found.path).checks if not check.passed]
    assert [(check.array, check.name, check.found) for check in bad] == [
        ("covariates", "chunks", f"c/1/0 {state}")
    ]


BAD_VALUES: dict[str, tuple[str, Any, str]] = {
    "finite": ("covariates", np.nan, "1 values are not"),
    "classes": ("labels", 7, "1 labels beyond the 2 classes"),
    "0 or 1": ("split", 3, "1 values are neither 0 nor 1"),
    "not negative": ("weights", -1, "1 weights are negative"),
    "orthonormal": ("subspaces", 5, "1 bases are not to 1e-06"),
}


@pytest.mark.parametrize("check", BAD_VALUES)
def test_inspect_finds_bad_values(tmp_path: Path, check: str) -> None:
    source = {
        "covariates": np.eye(4),
        "subspaces": np.linalg.qr(np.random.default_rng(0).normal(size=(4, 5, 2)))[0],
        "labels": np.arange(4) % 2,
        "split": np.arange(4) % 2,
        "weights": np.ones(4),
    }
    path = ingest(source, tmp_path / "d.zarr").path
    name, value, message = BAD_VALUES[check]
    array = open_dataset(path, mode="r+").arrays[name]
    array[(2, *[0] * (array.ndim - 1))] = value
    bad = [found for found in inspect(path).checks if not found.passed]
    assert [(found.array, found.name, found.found) for found in bad] == [(name, check, message)]


def test_inspect_compares_an_output_with_its_records(tmp_path: Path) -> None:
    found = ingest(regression(), tmp_path / "d.zarr")
    with Run.open(tmp_path / "d.zarr.run", {"outputs": {"stage": "../d.zarr"}}) as run:
        run.record("stage/target", (0,), 1)
    assert inspect(found.path).checks[-1].row() == {
        "array": "target",
        "check": "records",
        "result": "ok",
        "found": "1 of 1 blocks",
    }


def table_of_two_sites() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "a": np.arange(6.0),
            "site": ["x", "y"] * 3,
            "b": np.arange(6) ** 2,
            "price": np.arange(6.0) + 1,
            "rent": np.arange(6.0) + 2,
        }
    )


def test_a_frame_gives_what_its_csv_gives(tmp_path: Path) -> None:
    table = table_of_two_sites()
    table.to_csv(tmp_path / "t.csv", index=False)
    for more in ({"labels": "site"}, {"group_by": "site"}):
        how = {"target": ["price", "rent"], "split": 0.5, **more}
        one, other = (
            ingest(source, tmp_path / f"{name}.zarr", force=True, **how)
            for name, source in (("frame", table), ("csv", tmp_path / "t.csv"))
        )
        assert list(one.arrays) == list(other.arrays)
        assert one.classes == other.classes
        for name, array in one.arrays.items():
            np.testing.assert_array_equal(array[:], other.arrays[name][:])


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (
            {"target": "cost", "labels": "site"},
            "no column 'cost' for the target; give one of a, site, b",
        ),
        ({"target": "price"}, "column 'site' holds .*, not numbers; encode it.* --drop site$"),
        ({"drop": ["site", "id"]}, "no column 'id' to drop; give one of a, site, b"),
        ({"drop": ["site"], "labels": "site"}, "drop has 'site', which is the labels"),
        ({"drop": ["a", "site", "b", "price", "rent"]}, "no column left"),
    ],
)
def test_a_frame_without_what_is_wanted(tmp_path: Path, how: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ingest(table_of_two_sites(), tmp_path / "d.zarr", **how)


@pytest.mark.parametrize("names", [["ape", "bee"], None])
def test_inspect_counts_the_classes_of_predictions(tmp_path: Path, names: list[str] | None) -> None:
    group = create_store(tmp_path / "p.zarr", "predictions")
    attrs = {} if names is None else {"classes": names}
    create_array(group, "predictions", (5,), np.int64, (Grid(5, 5),), attrs)[:] = [1, 0, 1, 1, 0]
    found = inspect(tmp_path / "p.zarr")
    counted = [check.found for check in found.checks if check.name == "classes"]
    assert counted == ([] if names is None else ["ape 2, bee 3"])
    assert open_dataset(tmp_path / "p.zarr").classes == names


@pytest.mark.parametrize("share", [0.0, 1.0, 20])
def test_a_split_is_a_share(tmp_path: Path, share: float) -> None:
    with pytest.raises(InputError, match=f"split is {share}; give a share between 0 and 1"):
        ingest(regression(), tmp_path / "d.zarr", split=share)


def test_inspect_facts_are_json(tmp_path: Path) -> None:
    facts = inspect(ingest(regression(), tmp_path / "d.zarr").path).facts()
    assert json.loads(json.dumps(facts)) == facts


def test_inspect_of_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="does not exist"):
        inspect(tmp_path / "d.zarr")


def test_ingest_warns_of_nothing_on_good_data(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ingest(regression(), tmp_path / "d.zarr", split=0.5)


@pytest.mark.parametrize("role", ["labels", "groups"])
@pytest.mark.parametrize("values", [np.array([1, 2**63], np.uint64), np.array([1.0, 1e300])])
def test_codes_beyond_64_bits_are_refused_rather_than_wrapped(
    tmp_path: Path, role: str, values: np.ndarray
) -> None:
    with pytest.raises(InputError, match=f"{role} of the source holds .*, beyond 64-bit integers"):
        ingest({"X": np.eye(2), role: values}, tmp_path / "d.zarr")


def test_strings_of_many_digits_stay_strings(tmp_path: Path) -> None:
    names = ["9" * 30, "8" * 30]
    found = ingest({"X": np.eye(2), "labels": np.array(names)}, tmp_path / "d.zarr")
    assert found.classes == sorted(names)
