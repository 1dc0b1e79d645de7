"""Whatever happens to the files of an output, the records find exactly the blocks that it touched."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec

from gramian.blocks import Grid
from gramian.store.layout import create_array, create_store
from gramian.store.run import Run
from gramian.store.writer import block_exists, block_grid, block_region, check_block, write_block

NAME = "features/features"
VALUES = np.random.default_rng(0).normal(size=(19, 10)).astype("f4")
VALUES[:4] = 0  # blocks that look like missing ones
LAYOUTS = {
    "crc32c": {"compressors": [Crc32cCodec()]},
    "zstd": {"compressors": [ZstdCodec(checksum=False)]},
    "gzip": {"compressors": [GzipCodec()]},
    "blosc": {"compressors": [BloscCodec()]},
    "bare": {"compressors": None},
    "shards": {"shards": (4, 4), "chunks": (2, 2), "compressors": [Crc32cCodec()]},
}
Index = tuple[int, ...]


@pytest.fixture(params=LAYOUTS.values(), ids=LAYOUTS)
def array(request, tmp_path):
    more = {"chunks": (4, 4), "shape": VALUES.shape, "dtype": "f4", "fill_value": 0, **request.param}
    return zarr.create_array(tmp_path / "out.zarr", **more)


@pytest.fixture
def run(tmp_path, array):
    """A run in which every block is recorded."""
    with Run.open(tmp_path / "out.run", {}) as run:
        for index in np.ndindex(block_grid(array)):
            run.record(NAME, index, write_block(array, index, VALUES[block_region(array, index)]))
        yield run


def file_of(array: zarr.Array, index: Index) -> Path:
    return Path(str(array.store_path).removeprefix("file://")) / "c" / "/".join(map(str, index))


def bad(run: Run, array: zarr.Array) -> list[Index]:
    return [index for index, crc in run.done[NAME].items() if check_block(array, index) != crc]


def flip(path: Path, at: float) -> None:
    data = bytearray(path.read_bytes())
    data[int(at * (len(data) - 1))] ^= 0x10
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "flipped in the middle": lambda path: flip(path, 0.5),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "truncated to half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "extended": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "emptied": lambda path: path.write_bytes(b""),
    "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "deleted": Path.unlink,
    "replaced by text": lambda path: path.write_text("not a chunk"),
}


def test_whole_outputs_are_found_whole(run, array):
    assert bad(run, array) == []


@pytest.mark.parametrize("index", [(0, 0), (2, 1), (4, 2)], ids=["zeros", "inner", "edge"])
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_block_is_found_and_no_other(run, array, damage, index):
    damage(file_of(array, index))
    assert bad(run, array) == ([] if _reads_right(array, index) else [index])


def _reads_right(array: zarr.Array, index: Index) -> bool:
    """Damage outside of what is decoded (padding, a longer file) harms nobody; an empty file never reads."""
    region, path = block_region(array, index), file_of(array, index)
    try:
        return path.exists() and path.stat().st_size > 0 and np.array_equal(array[region], VALUES[region])
    except Exception:  # codecs fail in their own ways
        return False


@pytest.mark.parametrize("index", [(2, 1), (4, 2)], ids=["inner", "edge"])
def test_each_flipped_byte_is_found_under_a_checksum(tmp_path, index):
    array = zarr.create_array(
        tmp_path / "a", shape=(19, 10), chunks=(4, 4), dtype="f4", compressors=[Crc32cCodec()]
    )
    crc = write_block(array, index, VALUES[block_region(array, index)])
    path = file_of(array, index)
    whole = path.read_bytes()
    for byte in range(len(whole)):
        path.write_bytes(whole[:byte] + bytes([whole[byte] ^ 1]) + whole[byte + 1 :])
        assert check_block(array, index) != crc


def test_swapped_blocks_are_both_found(run, array):
    one, other = file_of(array, (1, 0)), file_of(array, (2, 1))
    data = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(data)
    assert bad(run, array) == [(1, 0), (2, 1)]


def test_a_block_of_an_older_run_is_found(run, array):
    write_block(array, (3, 0), VALUES[block_region(array, (3, 0))] + 1)
    assert bad(run, array) == [(3, 0)]


def test_a_lost_folder_of_chunks_is_found(run, array):
    shutil.rmtree(file_of(array, (1, 0)).parent)
    assert bad(run, array) == [(1, 0), (1, 1), (1, 2)]
    assert not any(block_exists(array, index) for index in bad(run, array))


@pytest.mark.parametrize(
    "array", [LAYOUTS["crc32c"], LAYOUTS["shards"]], ids=["crc32c", "shards"], indirect=True
)
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_mending_leaves_the_bytes_of_an_undamaged_run(run, array, damage):
    path = file_of(array, (2, 1))
    whole = path.read_bytes()
    damage(path)
    run.forget(NAME, bad(run, array))
    for index in run.missing(NAME, np.ndindex(block_grid(array))):
        run.record(NAME, index, write_block(array, index, VALUES[block_region(array, index)]))
    assert path.read_bytes() == whole


# ---------------------------------------------------------------- killed writers

WRITER = """
import sys
import numpy as np
import zarr
from gramian.store.run import Run
from gramian.store.writer import block_grid, block_region, write_block

root, = sys.argv[1:]
array = zarr.open_array(root + "/out.zarr/features", mode="r+")
with Run.open(root + "/out.run", {}, resume=True) as run:
    print("begun", flush=True)
    for index in run.missing("features/features", list(np.ndindex(block_grid(array)))):
        region = block_region(array, index)
        block = np.full([part.stop - part.start for part in region], index[0] * 7 + index[1], "f4")
        run.record("features/features", index, write_block(array, index, block))
        if index[1] == 0:
            run.flush()
    run.complete("features")
"""


def features_of(root: Path) -> None:
    create_array(
        create_store(root / "out.zarr", "features"), "features", (1000, 9), "f4", (Grid(1000, 8), Grid(9, 4))
    )


def start(root: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(root)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def chunks(root: Path) -> dict[str, bytes]:
    files = (root / "out.zarr" / "features" / "c").rglob("*")
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in files
        if path.is_file() and path.suffix == ""
    }


def test_a_writer_killed_at_any_moment_ends_with_the_same_bytes(tmp_path):
    draws = random.Random(0)
    for name in ("whole", "killed"):
        features_of(tmp_path / name)
    for _ in range(3):
        process = start(tmp_path / "killed")
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(draws.uniform(0, 0.3))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        array = zarr.open_array(tmp_path / "killed" / "out.zarr" / "features", mode="r")
        done = Run.open(tmp_path / "killed" / "out.run", None).done.get(NAME, {})
        assert all(check_block(array, index) == crc for index, crc in done.items())
    for name in ("whole", "killed"):
        process = start(tmp_path / name)
        process.communicate()
        assert process.returncode == 0
        assert Run.open(tmp_path / name / "out.run", None).is_complete("features")
    assert chunks(tmp_path / "killed") == chunks(tmp_path / "whole")
    assert len(chunks(tmp_path / "whole")) == 375
