"""The only way a block reaches a store, and the check of one stored block.

A block is a whole chunk (a whole shard in sharded arrays), named by its index in the chunk grid. It is
encoded apart and put with one call, so nothing old is read, and a reader finds all of it or nothing.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import google_crc32c
import numpy as np
import zarr
from zarr.core.buffer import Buffer, default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import LocalStore, MemoryStore, StorePath

from gramian.errors import GramianError, StoreError


def checksum(block: Any) -> int:
    """The crc32c of the bytes of a block in C order.

    It is taken of the decoded values: what was meant, whatever codec, shard or store lies between.

    Parameters
    ----------
    block : array_like
        Any shape and dtype of fixed size.

    Returns
    -------
    int
        Between 0 and 2**32 - 1.

    Examples
    --------
    >>> import numpy as np
    >>> checksum(np.frombuffer(b"123456789", dtype=np.uint8)) == 0xE3069283
    True
    """
    return int(google_crc32c.value(np.ascontiguousarray(block).reshape(-1).view(np.uint8)))


def write_block(array: zarr.Array[Any], index: tuple[int, ...], block: Any) -> int:
    """Write one whole chunk.

    Parameters
    ----------
    array : zarr.Array
        Opened for writing.
    index : tuple of int
        The index of the chunk (of the shard, where there are shards) in the grid of the array.
    block : array_like
        The values of the chunk, with the array's dtype; shorter than a chunk only at the far edges.

    Returns
    -------
    int
        The `checksum` of the block, for its record.

    Raises
    ------
    StoreError
        If the index lies outside the grid, or the shape or the dtype is another than the chunk's, or
        the array is open for reading only, or this process does not see its files.
    """
    block = np.asarray(block)
    region = block_region(array, index)
    expected = tuple(part.stop - part.start for part in region)
    if block.shape != expected:
        raise StoreError(
            f"block {index} of {array.name} has shape {expected}, not {block.shape}",
            "write blocks on the grid that the array was created from",
        )
    if block.dtype != array.dtype:
        raise StoreError(
            f"{array.name} holds {array.dtype.str}, the block {block.dtype.str}",
            "convert the block or create the array with its dtype",
        )
    if array.read_only:
        raise StoreError(f"{array.name} is open for reading only", 'open its store with mode="r+"')
    _refuse_unseen(array)
    encoded: dict[str, Buffer] = {}
    _moved(array, encoded)[region] = block
    key = _key(array, index)
    sync(array.store.set(key, encoded[key]))
    return checksum(block)


def check_block(array: zarr.Array[Any], index: tuple[int, ...]) -> int | None:
    """The checksum of one stored block.

    Parameters
    ----------
    array : zarr.Array
        Of any dimension, with or without shards.
    index : tuple of int
        The index of the chunk (of the shard, where there are shards) in the grid of the array.

    Returns
    -------
    int or None
        None where the chunk is missing (a plain read gives the fill value) or does not decode. A store
        that cannot be read at all raises its own error: it says nothing about the chunk.
    """
    region = block_region(array, index)
    data = sync(array.store.get(_key(array, index), default_buffer_prototype()))
    if data is None or len(data) == 0:  # Zarr reads an emptied shard as the fill value
        return None
    try:
        return checksum(_moved(array, {_key(array, index): data})[region])
    except Exception:  # codecs fail in their own ways: ValueError, RuntimeError, zlib.error, struct.error
        return None


def block_exists(array: zarr.Array[Any], index: tuple[int, ...]) -> bool:
    """Whether something is stored for a block, damaged or not; a missing one reads as the fill value."""
    block_region(array, index)
    return bool(sync(array.store.exists(_key(array, index))))


@contextmanager
def reading(array: Any) -> Iterator[None]:
    """What codecs and stores raise within, each in its own way, as one line of cause and one of remedy.

    An array whose files this process does not see is refused: Zarr would give its fill value.
    """
    if isinstance(array, zarr.Array):
        _refuse_unseen(array)
    try:
        yield
    except GramianError:
        raise
    except Exception as error:
        place = getattr(array, "store_path", "an array")
        raise StoreError(
            f"{place} cannot be read: {' '.join(str(error).split()) or type(error).__name__}",
            "find its damaged chunks with gramian inspect, and make it again or resume its run",
        ) from error


def _refuse_unseen(array: zarr.Array[Any]) -> None:
    """Stop where the files of an array are not: only its path came here, from another machine."""
    if isinstance(array.store, LocalStore):
        folder = array.store.root / array.path
        if not any((folder / name).is_file() for name in ("zarr.json", ".zarray")):
            raise StoreError(
                f"{folder} is not to be seen on {socket.gethostname()}",
                "let the driver and all workers see the same paths, and set gramian.scratch of Dask's "
                "configuration (DASK_GRAMIAN__SCRATCH) to a folder that they share",
            )


def first_missing(array: zarr.Array[Any]) -> tuple[int, ...] | None:
    """A block for which nothing is stored, by one listing where all are there; None where none is missing."""
    stored = sync(_count(array))
    if stored >= prod(block_grid(array)):
        return None
    return next((index for index in np.ndindex(*block_grid(array)) if not block_exists(array, index)), None)


def refuse_lost(array: zarr.Array[Any], name: str) -> None:
    """Refuse an array from which a chunk is lost: it would be read as the fill value, without an error.

    Raises
    ------
    StoreError
        With the key of the first chunk that is lost.
    """
    lost = first_missing(array)
    if lost is not None:
        raise StoreError(
            f"{name} has lost the chunk {array.metadata.encode_chunk_key(lost)} of {array.store_path}",
            "make the store again, or resume the run that made it",
        )


async def _count(array: zarr.Array[Any]) -> int:
    prefix = f"{array.path}/c" if array.path else "c"
    keys = array.store.list_prefix(f"{prefix}/" if array.ndim else prefix)
    return sum([not key.endswith(".partial") async for key in keys])


def block_region(array: zarr.Array[Any], index: tuple[int, ...]) -> tuple[slice, ...]:
    """The part of the array that a chunk (a shard) covers, cut at the far edges."""
    unit, grid = block_shape(array), block_grid(array)
    if len(index) != len(grid) or not all(0 <= i < n for i, n in zip(index, grid, strict=True)):
        raise StoreError(
            f"block {index} lies outside the grid of {array.name}, {grid} blocks of {unit}",
            "write blocks on the grid that the array was created from",
        )
    sizes = zip(index, unit, array.shape, strict=True)
    return tuple(slice(i * step, min(size, (i + 1) * step)) for i, step, size in sizes)


def block_shape(array: zarr.Array[Any]) -> tuple[int, ...]:
    """The shape of what is written at once: a shard where there are shards, else a chunk."""
    return tuple(array.shards or array.chunks)


def block_grid(array: zarr.Array[Any]) -> tuple[int, ...]:
    """The number of blocks along each axis."""
    return tuple(-(-size // step) for size, step in zip(array.shape, block_shape(array), strict=True))


def _key(array: zarr.Array[Any], index: tuple[int, ...]) -> str:
    return str((array.store_path / array.metadata.encode_chunk_key(index)).path)


def _moved(array: zarr.Array[Any], encoded: dict[str, Buffer]) -> zarr.Array[Any]:
    """The same array over a dictionary of encoded chunks.

    Decoding there tells a damaged chunk from an unreachable store; encoding there reads no old shard, which
    may be damaged. Blocks of zeros are kept: a missing chunk could mean a lost one.
    """
    core = zarr.AsyncArray(  # type: ignore[call-overload]
        metadata=array.metadata,
        store_path=StorePath(MemoryStore(encoded), array.path),
        config={"order": "C", "write_empty_chunks": True},
    )
    return zarr.Array(core)
