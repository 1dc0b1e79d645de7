"""A local cluster or the address of a scheduler: loopback by default, checked before any work."""

from __future__ import annotations

import os
import signal
import socket
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import dask
import psutil

from gramian.errors import ClusterError, GramianWarning, InputError
from gramian.sources import scratch_folder
from gramian.store.manifest import cpu, versions

LOOPBACK = "127.0.0.1"
DASHBOARD = 8787
# glibc gives freed memory back at once (distributed#5971), and BLAS has one thread: read when a worker starts
ENVIRONMENT = {
    "MALLOC_TRIM_THRESHOLD_": "65536",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}


@contextmanager
def local(workers: int = 2, threads: int = 1, memory_limit: int | str = "2GiB") -> Iterator[Any]:
    """A cluster of processes on this machine, on loopback ports only.

    Parameters
    ----------
    workers, threads : int
        Processes, and threads of each.
    memory_limit : int or str
        Bytes of one worker; never "auto", which can misread a container's limit.

    Yields
    ------
    distributed.Client
        Its ``dashboard_link`` is the page to look at.
    """
    from distributed import Client, LocalCluster

    if workers < 1 or threads < 1:
        raise InputError(f"{workers} workers of {threads} threads", "give at least one of each")
    limit = dask.utils.parse_bytes(memory_limit)
    with (
        _deaf(),
        _environment(),
        dask.config.set(
            {"distributed.nanny.environ": ENVIRONMENT, "distributed.nanny.pre-spawn-environ": ENVIRONMENT}
        ),
        warnings.catch_warnings(),  # another cluster may take the port between the look and the start
    ):
        warnings.filterwarnings("ignore", message="\\s*Port .* is already in use", category=UserWarning)
        cluster = LocalCluster(
            n_workers=workers,
            threads_per_worker=threads,
            memory_limit=limit,
            host=LOOPBACK,
            dashboard_address=f"{LOOPBACK}:{_free(DASHBOARD)}",
            processes=True,
        )
    with cluster, Client(cluster) as client:
        yield client


def _free(port: int) -> int:
    """The port, or 0 (any) where somebody listens there already."""
    with socket.socket() as probe:
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return 0
    return port


@contextmanager
def _deaf() -> Iterator[None]:
    """Let processes that are started within, and their successors, not hear Ctrl-C: the driver ends them.

    What starts them inherits the mask, a thread as much as a process. Ctrl-C within waits for the end.
    """
    resource_tracker.ensure_running()  # its start would lift the mask of the thread that needs it first
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _environment() -> Iterator[None]:
    """Undo what the nanny writes into this process's environment."""
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in set(os.environ) - set(before):
            del os.environ[name]
        os.environ.update(before)


@contextmanager
def connect(
    address: str,
    *,
    tls_ca: str | None = None,
    tls_cert: str | None = None,
    tls_key: str | None = None,
    timeout: float = 30.0,
    allow_mixed: bool = False,
) -> Iterator[Any]:
    """Join a running cluster, after a `preflight`.

    Parameters
    ----------
    address : str
        ``tcp://host:port`` or ``tls://host:port``.
    tls_ca, tls_cert, tls_key : str, optional
        Files of the certificate authority, of this client's certificate and of its key.
    timeout : float
        Seconds to wait for the scheduler and its first worker.
    allow_mixed : bool
        Accept workers of other versions or another CPU.

    Raises
    ------
    ClusterError
        If nothing answers, there is no worker, or workers differ.
    """
    from distributed import Client

    security = _security(address, tls_ca, tls_cert, tls_key)
    host = urlsplit(address if "://" in address else f"tcp://{address}").hostname or ""
    if security is None and not (host == "localhost" or host.startswith("127.") or host == "::1"):
        warnings.warn(
            f"the connection to {address} is not encrypted; use tls:// where a network is crossed",
            GramianWarning,
            stacklevel=3,
        )
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*Mismatched versions", category=UserWarning)
            client = Client(address, security=security, timeout=timeout)
    except (OSError, TimeoutError, ValueError, TypeError) as error:  # TypeError: a plain client at a TLS port
        raise ClusterError(
            f"no scheduler answers at {address} ({type(error).__name__})",
            "check the address and that it runs; a tls:// scheduler needs --tls-ca, --tls-cert and --tls-key",
        ) from error
    with client:
        preflight(client, timeout=timeout, allow_mixed=allow_mixed)
        yield client


def _security(address: str, ca: str | None, cert: str | None, key: str | None) -> Any:
    from distributed.security import Security

    files = {"--tls-ca": ca, "--tls-cert": cert, "--tls-key": key}
    given = [name for name, path in files.items() if path]
    if not given:
        if address.startswith("tls://"):
            raise InputError(f"{address} needs certificates", "give --tls-ca, --tls-cert and --tls-key")
        return None
    if len(given) < 3:
        raise InputError(
            f"only {' and '.join(given)} is given", "give --tls-ca, --tls-cert and --tls-key together"
        )
    for name, path in files.items():
        if not Path(str(path)).is_file():
            raise InputError(f"{name} {path} does not exist", "name an existing file")
    return Security(tls_ca_file=ca, tls_client_cert=cert, tls_client_key=key, require_encryption=True)


def _facts() -> dict[str, Any]:
    return {"versions": versions(), "cpu": cpu()}


def preflight(client: Any, *, timeout: float = 30.0, allow_mixed: bool = False) -> None:
    """Refuse a cluster without workers, with other versions or another CPU, or that does not see the scratch.

    Raises
    ------
    ClusterError
        Naming the worker and the difference.
    """
    from distributed import TimeoutError as NoWorkers

    try:
        client.wait_for_workers(1, timeout=timeout)
    except (NoWorkers, TimeoutError) as error:
        raise ClusterError(
            f"the scheduler at {client.scheduler.address} has no worker after {timeout:.0f} s",
            "start workers and try again",
        ) from error
    try:
        seen = client.run(_facts)
    except ModuleNotFoundError as error:
        raise ClusterError(
            f"a worker cannot import {error.name}", "install gramian where the workers run"
        ) from error
    here = _facts()
    for address, facts in seen.items():
        different = _difference(here, facts)
        if different and not allow_mixed:
            raise ClusterError(
                f"worker {address} differs from this process: {different}",
                "use equal versions and CPUs, or --allow-mixed and lose the promise of equal bits",
            )
    folder = scratch_folder()
    if folder is not None and "://" not in folder:
        blind = [address for address, there in client.run(os.path.isdir, folder).items() if not there]
        if blind:
            raise ClusterError(
                f"worker {blind[0]} does not see the scratch folder {folder}",
                "set gramian.scratch to a folder that all workers share",
            )


def _difference(here: dict[str, Any], there: dict[str, Any]) -> str:
    """The first facts that differ, as `name here -> there`."""
    found = [
        f"{name} {here[group].get(name)} -> {value}"
        for group in ("versions", "cpu")
        for name, value in there[group].items()
        if here[group].get(name) != value
    ]
    return ", ".join(found[:3])


@dataclass
class PeakMemory:
    """Largest resident sizes seen of this process and of its children, in bytes.

    A context manager: it looks ten times a second until the end of the ``with`` block.
    """

    driver: int = 0
    worker: int = 0  # the largest single child
    total: int = 0
    _stop: threading.Event = field(default_factory=threading.Event, repr=False)

    def __enter__(self) -> PeakMemory:
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        this = psutil.Process()
        while True:
            with suppress(psutil.Error):
                driver = this.memory_info().rss
                children = [_resident(child) for child in this.children(recursive=True)]
                self.driver = max(self.driver, driver)
                self.worker = max([self.worker, *children])
                self.total = max(self.total, driver + sum(children))
            if self._stop.wait(0.1):
                return


def _resident(process: psutil.Process) -> int:
    with suppress(psutil.Error):
        return int(process.memory_info().rss)
    return 0
