"""Clusters are loopback by default, checked before work, and their failures are one line."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest

from gramian import cluster
from gramian.errors import ClusterError, GramianError


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with cluster.local(1, 2, "600MiB") as client:
        yield client


def test_local_cluster_listens_on_loopback_alone(client: Any) -> None:
    info = client.scheduler_info(n_workers=-1)
    addresses = [info["address"], *info["workers"]]
    assert all("127.0.0.1" in address for address in addresses)
    assert "127.0.0.1" in client.dashboard_link


def test_workers_have_the_threads_memory_and_environment_asked_for(client: Any) -> None:
    (worker,) = client.scheduler_info(n_workers=-1)["workers"].values()
    assert (worker["nthreads"], worker["memory_limit"]) == (2, 600 << 20)
    (environment,) = client.run(lambda: dict(os.environ)).values()
    assert cluster.ENVIRONMENT.items() <= environment.items()


def test_workers_leave_ctrl_c_to_the_driver(client: Any) -> None:
    client.run(lambda: os.kill(os.getpid(), signal.SIGINT))
    assert client.submit(np.add, 1, 2).result() == 3
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_environment_of_this_process_is_left_alone() -> None:
    before = dict(os.environ)
    with cluster.local(1, 1, "600MiB"):
        pass
    assert dict(os.environ) == before


def test_connecting_passes_the_preflight(client: Any) -> None:
    with cluster.connect(client.scheduler.address) as joined:
        assert joined.submit(np.add, 1, 2).result() == 3


def test_worker_with_other_versions_is_refused(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    here = cluster._facts()
    changed = {**here, "versions": {**here["versions"], "numpy": "0.9"}}
    monkeypatch.setattr(cluster, "_facts", Facts(changed))
    with pytest.raises(ClusterError, match=r"numpy 0\.9 -> .*--allow-mixed"):
        cluster.preflight(client)
    cluster.preflight(client, allow_mixed=True)


class Facts:
    """What the driver says of itself; on a worker, the worker's own facts."""

    def __init__(self, here: dict[str, Any]) -> None:
        self.here = here

    def __call__(self) -> dict[str, Any]:
        return self.here

    def __reduce__(self) -> Any:
        return (_worker_facts, ())


def _worker_facts() -> Any:
    return cluster._facts


def test_scratch_that_workers_do_not_see_is_refused(client: Any, tmp_path: Path) -> None:
    with (
        dask.config.set({"gramian.scratch": str(tmp_path / "nowhere")}),
        pytest.raises(ClusterError, match="does not see the scratch folder"),
    ):
        cluster.preflight(client)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: cluster.local(0, 1), "0 workers of 1 threads; give at least one"),
        (
            lambda: cluster.connect("tcp://127.0.0.1:9", timeout=1),
            "no scheduler answers at tcp://127.0.0.1:9",
        ),
        (lambda: cluster.connect("tls://127.0.0.1:9"), "needs certificates"),
        (lambda: cluster.connect("tls://127.0.0.1:9", tls_ca="ca.pem"), "only --tls-ca is given"),
        (
            lambda: cluster.connect("tls://127.0.0.1:9", tls_ca="nowhere.pem", tls_cert="b", tls_key="c"),
            "--tls-ca nowhere.pem does not exist",
        ),
    ],
)
def test_bad_clusters_are_one_line(call: Any, words: str) -> None:
    with pytest.raises(GramianError) as error, call():
        pass
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_peak_memory_sees_what_was_taken() -> None:
    with cluster.PeakMemory() as before:
        _wait()
    with cluster.PeakMemory() as peak:
        block = np.ones(100 << 17)
        _wait()
    assert peak.driver - before.driver > 90 << 20
    assert block[0] == 1


def _wait() -> None:
    import time

    time.sleep(0.4)
