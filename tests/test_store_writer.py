"""The block writer: whole chunks, checksums of what was meant, and the check of one stored block."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
import zarr
import zarr.storage
from hypothesis import given
from hypothesis import strategies as st
from zarr.codecs import Crc32cCodec

from gramian.errors import StoreError
from gramian.store.writer import (
    block_exists,
    block_grid,
    block_region,
    check_block,
    checksum,
    reading,
    write_block,
)

CRC = [Crc32cCodec()]


def array(store: object, shape: tuple[int, ...] = (10, 6), dtype: str = "f8", **more: object) -> zarr.Array:
    given = {"chunks": (4, 3), "compressors": CRC, "fill_value": 0, **more}
    return zarr.create_array(store, name="x", shape=shape, dtype=dtype, **given)


def written(store: object, **more: object) -> tuple[zarr.Array, dict[tuple[int, ...], int]]:
    """An array filled with drawn numbers, the first block with zeros, and its checksums."""
    out = array(store, **more)
    values = np.random.default_rng(0).normal(size=out.shape).astype(out.dtype)
    values[block_region(out, (0,) * out.ndim)] = 0
    return out, {index: write_block(out, index, values[block_region(out, index)]) for index in indices(out)}


def indices(out: zarr.Array) -> list[tuple[int, ...]]:
    return list(np.ndindex(block_grid(out)))


def file_of(root: Path, index: tuple[int, ...]) -> Path:
    return root / "x" / "c" / "/".join(map(str, index))


def test_checksum_is_the_crc32c_of_the_bytes_in_c_order():
    block = np.arange(12.0).reshape(3, 4)
    assert checksum(np.asfortranarray(block)) == google_crc32c.value(block.tobytes())


def test_checksum_of_a_strided_view_is_that_of_its_copy():
    block = np.arange(24.0).reshape(4, 6)
    assert checksum(block[::2, 1::2]) == checksum(block[::2, 1::2].copy())


@pytest.mark.parametrize("value", [np.float64(3), np.zeros((0, 4)), np.array([True, False]), [1, 2, 3]])
def test_checksum_takes_scalars_empty_blocks_booleans_and_lists(value):
    assert checksum(value) == google_crc32c.value(np.asarray(value).tobytes())


@given(data=st.data())
def test_what_is_written_block_by_block_is_what_is_read(data):
    ndim = data.draw(st.integers(1, 3))
    shape = tuple(data.draw(st.lists(st.integers(0, 9), min_size=ndim, max_size=ndim)))
    chunks = tuple(data.draw(st.lists(st.integers(1, 4), min_size=ndim, max_size=ndim)))
    dtype = data.draw(st.sampled_from(["f4", "f8", "i8", "u1", "bool"]))
    shards = tuple(2 * step for step in chunks) if data.draw(st.booleans()) else None
    out = array(zarr.storage.MemoryStore(), shape, dtype, chunks=chunks, shards=shards)
    values = np.random.default_rng(1).integers(0, 2, shape).astype(dtype)
    records = {index: write_block(out, index, values[block_region(out, index)]) for index in indices(out)}
    assert np.array_equal(out[...], values)
    assert {index: check_block(out, index) for index in indices(out)} == records


@pytest.mark.parametrize("compressors", [CRC, None, "auto"], ids=["crc32c", "none", "zstd"])
@pytest.mark.parametrize("shards", [None, (4, 6)], ids=["chunks", "shards"])
@pytest.mark.parametrize("remote", [False, True], ids=["local", "fsspec"])
def test_every_kind_of_store_gives_back_the_checksums(tmp_path, compressors, shards, remote):
    store = f"memory://{tmp_path}" if remote else tmp_path
    out, records = written(store, compressors=compressors, shards=shards)
    assert {index: check_block(out, index) for index in indices(out)} == records


def test_an_array_without_dimensions_is_one_block(tmp_path):
    out = array(tmp_path, (), chunks=())
    assert check_block(out, ()) is None
    assert write_block(out, (), np.float64(3)) == check_block(out, ())


def test_a_block_of_zeros_is_stored(tmp_path):
    out = array(tmp_path)
    write_block(out, (0, 0), np.zeros((4, 3)))
    assert file_of(tmp_path, (0, 0)).exists()


def test_a_block_of_zeros_is_stored_within_shards(tmp_path):
    out = array(tmp_path, shards=(8, 6))
    assert write_block(out, (0, 0), np.zeros((8, 6))) == check_block(out, (0, 0))


def test_the_last_blocks_are_cut_at_the_edges(tmp_path):
    out, _ = written(tmp_path)
    assert block_region(out, (2, 1)) == (slice(8, 10), slice(3, 6))


def test_the_sign_of_zero_and_nan_payloads_are_kept(tmp_path):
    out = array(tmp_path, (4,), chunks=(4,))
    block = np.array([-0.0, 0.0, np.nan, -np.inf])
    assert write_block(out, (0,), block) == checksum(out[...]) == google_crc32c.value(block.tobytes())


@pytest.mark.parametrize("index", [(3, 0), (0, 2), (-1, 0), (0,), (0, 0, 0)])
def test_an_index_outside_the_grid_is_refused(tmp_path, index):
    with pytest.raises(StoreError, match="lies outside the grid"):
        write_block(array(tmp_path), index, np.zeros((4, 3)))


@pytest.mark.parametrize(
    ("index", "shape"),
    [((0, 0), (3, 3)), ((0, 0), (4, 6)), ((0, 0), (12,)), ((2, 0), (4, 3)), ((0, 0), (8, 6))],
)
def test_a_block_that_is_not_exactly_one_chunk_is_refused(tmp_path, index, shape):
    with pytest.raises(StoreError, match=r"has shape \(.*\), not"):
        write_block(array(tmp_path), index, np.zeros(shape))


def test_a_chunk_of_a_shard_is_refused(tmp_path):
    with pytest.raises(StoreError, match=r"has shape \(8, 6\), not \(4, 3\)"):
        write_block(array(tmp_path, shards=(8, 6)), (0, 0), np.zeros((4, 3)))


@pytest.mark.parametrize("dtype", ["f4", ">f8", "i8", "c16"])
def test_another_dtype_is_refused(tmp_path, dtype):
    with pytest.raises(StoreError, match="holds <f8, the block"):
        write_block(array(tmp_path), (0, 0), np.zeros((4, 3), dtype))


def test_a_refused_block_leaves_nothing(tmp_path):
    out = array(tmp_path)
    with pytest.raises(StoreError):
        write_block(out, (0, 0), np.zeros((5, 3)))
    assert not (tmp_path / "x" / "c").exists()


def test_an_array_open_for_reading_is_refused(tmp_path):
    array(tmp_path)
    with pytest.raises(StoreError, match="open for reading only"):
        write_block(zarr.open_array(tmp_path / "x", mode="r"), (0, 0), np.zeros((4, 3)))


@pytest.mark.parametrize("shards", [None, (4, 3)], ids=["chunks", "shards"])
def test_a_missing_block_has_no_checksum(tmp_path, shards):
    out, _ = written(tmp_path, shards=shards)
    file_of(tmp_path, (1, 1)).unlink()
    assert check_block(out, (1, 1)) is None
    assert not block_exists(out, (1, 1))


@pytest.mark.parametrize("shards", [None, (4, 3)], ids=["chunks", "shards"])
@pytest.mark.parametrize("compressors", [CRC, "auto"], ids=["crc32c", "zstd"])
@pytest.mark.parametrize("keep", [0, 1, 7, -1])
def test_a_truncated_block_has_no_checksum_but_exists(tmp_path, shards, compressors, keep):
    out, _ = written(tmp_path, shards=shards, compressors=compressors)
    file = file_of(tmp_path, (1, 1))
    file.write_bytes(file.read_bytes()[:keep])
    assert check_block(out, (1, 1)) is None
    assert block_exists(out, (1, 1))


@pytest.mark.parametrize("index", [(0, 0), (2, 1)], ids=["whole", "edge"])
@pytest.mark.parametrize("shards", [None, (4, 3)], ids=["chunks", "shards"])
def test_a_damaged_block_is_mended_by_writing_it_again(tmp_path, shards, index):
    out, records = written(tmp_path, shards=shards)
    values = out[block_region(out, index)]
    file_of(tmp_path, index).write_bytes(b"not a chunk")
    assert write_block(out, index, values) == records[index] == check_block(out, index)


def test_a_store_that_cannot_be_read_is_not_taken_for_damage(tmp_path):
    class Unreachable(zarr.storage.MemoryStore):
        async def get(self, *_: object) -> None:
            raise ConnectionError("the network is down")

    out = array(zarr.storage.MemoryStore())
    core = zarr.AsyncArray(out.metadata, zarr.storage.StorePath(Unreachable(), "x"))
    with pytest.raises(ConnectionError):
        check_block(zarr.Array(core), (0, 0))


def test_threads_write_neighbouring_blocks_without_harm(tmp_path):
    out = array(tmp_path, (64, 8), chunks=(2, 8))
    values = np.random.default_rng(2).normal(size=out.shape)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda index: write_block(out, index, values[block_region(out, index)]), indices(out)))
    assert np.array_equal(out[...], values)


def test_a_pickled_array_writes_to_the_same_store(tmp_path):
    out, _ = written(tmp_path)
    crc = write_block(pickle.loads(pickle.dumps(out)), (0, 0), np.ones((4, 3)))
    assert check_block(out, (0, 0)) == crc


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_folder_that_is_not_there_is_neither_read_as_zeros_nor_written(tmp_path, zarr_format):
    compressors = None if zarr_format == 2 else CRC
    out = array(tmp_path / "here", zarr_format=zarr_format, compressors=compressors)
    write_block(out, (0, 0), np.ones((4, 3)))
    with reading(out):
        assert out[:4, :3].all()
    (tmp_path / "here").rename(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match=r"not to be seen on .*DASK_GRAMIAN__SCRATCH"), reading(out):
        pass
    with pytest.raises(StoreError, match="not to be seen"):
        write_block(out, (0, 0), np.ones((4, 3)))
    assert not (tmp_path / "here").exists()


def test_writing_again_gives_the_same_bytes(tmp_path):
    written(tmp_path / "a")
    written(tmp_path / "b")
    for index in indices(array(zarr.storage.MemoryStore())):
        assert file_of(tmp_path / "a", index).read_bytes() == file_of(tmp_path / "b", index).read_bytes()
