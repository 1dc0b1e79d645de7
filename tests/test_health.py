"""Health of a scheduler and a worker, asked by address."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from gramian import cluster, health
from gramian.errors import ClusterError, InputError


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with cluster.local(1, 1, "600MiB") as client:
        yield client


def test_health_of_scheduler_and_worker(client: Any) -> None:
    info = client.scheduler_info(n_workers=-1)
    (worker,) = info["workers"]
    health.check("scheduler", info["address"])
    health.check("worker", worker)
    health.check("scheduler", client.dashboard_link.removesuffix("/status"))


@pytest.mark.parametrize(
    ("role", "address", "words"),
    [
        ("scheduler", "tcp://127.0.0.1:9", "no scheduler answers"),
        ("worker", "http://127.0.0.1:9", "no worker answers"),
    ],
)
def test_health_of_nothing_fails(role: str, address: str, words: str) -> None:
    with pytest.raises(ClusterError, match=words):
        health.check(role, address, timeout=1)


def test_health_of_the_wrong_process_fails(client: Any) -> None:
    with pytest.raises(ClusterError, match="a scheduler answers"):
        health.check("worker", client.scheduler.address)


def test_unknown_role_is_refused() -> None:
    with pytest.raises(InputError, match="give scheduler or worker"):
        health.check("nanny", "tcp://127.0.0.1:9")


def test_asking_a_page_imports_no_dask() -> None:
    code = (
        "import sys, contextlib\n"
        "from gramian import cli\n"
        "with contextlib.suppress(SystemExit):\n"
        "    cli.main(['health', 'scheduler', 'http://127.0.0.1:9'])\n"
        "assert not {'dask', 'distributed', 'zarr'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
