"""What a cluster does at its worst comes out as one line of cause and one of remedy."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import dask
import numpy as np
import pytest
import zarr

from gramian import cluster, engine
from gramian.blocks import Grid
from gramian.errors import ClusterError

GRID = Grid(400, 4)


@contextmanager
def processes(workers: int) -> Iterator[tuple[str, subprocess.Popen[bytes], list[subprocess.Popen[bytes]]]]:
    """A scheduler and workers as processes of their own, so that a test can kill them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"tcp://127.0.0.1:{port}"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", address, "--no-dashboard"]
    scheduler = subprocess.Popen(command, **quiet)
    command = [
        *(sys.executable, "-m", "distributed.cli.dask_worker", address, "--nthreads", "1", "--no-nanny"),
        *("--memory-limit", "1GiB", "--no-dashboard"),
    ]
    started = [subprocess.Popen(command, **quiet) for _ in range(workers)]
    try:
        wait_for(port)
        yield address, scheduler, started
    finally:
        for process in (scheduler, *started):
            process.kill()
            process.wait()


def wait_for(port: int, seconds: float = 60) -> None:
    """Until somebody listens at the port."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.1)


def later(seconds: float, process: subprocess.Popen[bytes]) -> str:
    """Kill a process after a while; gives the name of the sum that it interrupts."""
    threading.Timer(seconds, process.kill).start()
    return "interrupted"


@pytest.fixture
def stored(tmp_path: Path) -> zarr.Array:
    array = zarr.create_array(str(tmp_path / "x.zarr"), shape=(400, 3), dtype="f8", chunks=(50, 3))
    array[:] = np.random.default_rng(0).standard_normal((400, 3))
    return array


def slow_sum(block: np.ndarray) -> tuple[np.ndarray, ...]:
    time.sleep(0.05)
    return (block.sum(axis=0),)


def greedy_sum(block: np.ndarray) -> tuple[np.ndarray, ...]:
    held = [np.ones(8 << 17) for _ in range(200)]  # 1.6 GB, eight MB at a time
    time.sleep(2)
    return (block.sum(axis=0) + held[0][0],)


def test_a_dead_scheduler_is_explained(stored: zarr.Array) -> None:
    with (
        processes(1) as (address, scheduler, _),
        cluster.connect(address),
        pytest.raises(ClusterError, match=r"scheduler.*; .*--resume"),
    ):
        engine.row_sum(slow_sum, GRID, stored, name=later(1.0, scheduler))


def test_a_cluster_that_lost_all_its_workers_is_explained(stored: zarr.Array) -> None:
    with (
        processes(1) as (address, _, (worker,)),
        cluster.connect(address),
        dask.config.set({"gramian.patience": 2}),
        pytest.raises(ClusterError, match="has had no workers for"),
    ):
        engine.row_sum(slow_sum, GRID, stored, name=later(0.5, worker))


def test_a_worker_out_of_memory_is_explained(stored: zarr.Array) -> None:
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        cluster.local(1, 1, "500MiB"),
        pytest.raises(ClusterError, match="running out of memory looks like; raise the memory limit"),
    ):
        engine.row_sum(greedy_sum, GRID, stored)


def test_no_worker_at_all_is_explained() -> None:
    with (
        processes(0) as (address, _, _),
        pytest.raises(ClusterError, match="has no worker after"),
        cluster.connect(address, timeout=3),
    ):
        pass
