"""Tasks on the threads of this process or on the workers of a cluster: bounded in flight, failures explained.

The only module that talks to Dask's schedulers; what is computed is decided in `gramian.engine`.
"""

from __future__ import annotations

import functools
import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import dask
import dask.system
import threadpoolctl

from gramian.blocks import FLYING
from gramian.errors import ClusterError

PATIENCE = 60.0  # seconds that a cluster may be without workers


# ---------------------------------------------------------------------------------- BLAS threads


@functools.cache
def controller() -> threadpoolctl.ThreadpoolController:
    """The BLAS libraries of this process."""
    import scipy.linalg  # noqa: F401  its BLAS is another one than NumPy's and must be loaded to be limited

    return threadpoolctl.ThreadpoolController()


def _take_control() -> None:
    """Let this thread set the limit: threadpoolctl ignores all but the first that did."""
    clear = getattr(threadpoolctl.OpenBLASController, "clear_controlling_thread", None)
    if clear is not None:
        clear(force=True)


@functools.cache
def pin_worker() -> None:
    """One BLAS thread, once a worker process and for good: who leaves the limit later restores nothing."""
    one_thread.__enter__()


class _CountedLimit:
    """One BLAS thread while anybody is inside: set at the first entry, restored at the last exit."""

    def __init__(self) -> None:
        self._lock, self._inside, self._limit = threading.Lock(), 0, None

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                _take_control()
                self._limit = controller().limit(limits=1)

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0 and self._limit is not None:
                _take_control()
                self._limit.restore_original_limits()
                self._limit = None


one_thread = _CountedLimit()


def pinned() -> AbstractContextManager[None]:
    """One BLAS thread for the driver's own algebra: `eigh` gives other bits with another number."""
    return one_thread


# ------------------------------------------------------------------------------------ submitting


def _on_worker(function: Callable[..., Any], item: tuple[Any, ...]) -> Any:
    if active_client() is None:  # else the worker is a part of the user's own process
        pin_worker()
    with one_thread:
        return function(*item)


def _in_process(function: Callable[..., Any], item: tuple[Any, ...]) -> Any:
    with one_thread:
        return function(*item)


def active_client() -> Any:
    """The client that Dask itself would use; distributed is not imported when nobody has."""
    if (
        dask.config.get("scheduler", None) in (None, "distributed", "dask.distributed")
        and "distributed" in sys.modules
    ):
        with suppress(ValueError):
            return sys.modules["distributed"].default_client()
    return None


class Threads:
    """Dask's own settings (scheduler, pool, num_workers) in this process."""

    def __init__(self) -> None:
        count = count_threads(None)
        given = dask.config.get("pool", None)
        self._own = given is None
        self.pool = futures.ThreadPoolExecutor(count) if given is None else given
        self.threads = getattr(self.pool, "_max_workers", count)

    def refresh(self) -> None:
        """The number of threads does not change."""

    def submit(self, function: Callable[..., Any], items: list[tuple[Any, ...]]) -> list[Any]:
        return [self.pool.submit(_in_process, function, item) for item in items]

    def finished(self, flying: Iterable[Any]) -> list[tuple[Any, Any]]:
        done = futures.wait(list(flying), timeout=1.0, return_when=futures.FIRST_COMPLETED).done
        return [(future, future.result()) for future in done]

    def close(self, flying: Iterable[Any]) -> None:
        for future in flying:
            future.cancel()
        if self._own:
            self.pool.shutdown()


class Cluster:
    """The active client.

    Only `wait` and `gather`, which raise on every future that is not well: as_completed with results
    hands out a CancelledError as if it were one.
    """

    def __init__(self, client: Any) -> None:
        self.client = client
        self._seen = time.monotonic()
        self.threads = 1
        self.refresh()

    def refresh(self) -> None:
        threads = sum(self.client.nthreads().values())
        if threads:
            self._seen = time.monotonic()
        elif time.monotonic() - self._seen > float(dask.config.get("gramian.patience", PATIENCE)):
            raise ClusterError(
                f"the cluster has had no workers for {time.monotonic() - self._seen:.0f} s",
                "start workers again, then use --resume",
            )
        self.threads = max(1, threads)

    def submit(self, function: Callable[..., Any], items: list[tuple[Any, ...]]) -> list[Any]:
        task = functools.partial(_on_worker, function)
        return list(self.client.map(task, items, pure=False, key="gramian"))

    def finished(self, flying: Iterable[Any]) -> list[tuple[Any, Any]]:
        from distributed import wait

        try:
            done = list(wait(list(flying), timeout=1.0, return_when="FIRST_COMPLETED").done)
        except TimeoutError:
            if self.client.status != "running":
                raise ClusterError(
                    "the connection to the scheduler was lost", "start it again, then use --resume"
                ) from None
            return []
        return list(zip(done, self.client.gather(done), strict=True))

    def close(self, flying: Iterable[Any]) -> None:
        waiting = list(flying)
        if waiting and self.client.status == "running":
            with suppress(Exception):  # a cluster that is going away cancels by itself
                self.client.cancel(waiting, force=True)


@contextmanager
def explained() -> Iterator[None]:
    """Failures of the cluster as one line of cause and one of remedy."""
    try:
        yield
    except MemoryError as error:
        raise ClusterError(
            f"a task ran out of memory: {str(error) or 'MemoryError'}",
            "give the workers more memory or fewer threads",
        ) from error
    except futures.CancelledError as error:
        raise ClusterError(
            "the scheduler lost this job (it stopped or was restarted)",
            "start the cluster again, then use --resume",
        ) from error
    except Exception as error:
        name = type(error).__name__
        if name == "KilledWorker":
            raise ClusterError(
                f"a block killed {getattr(error, 'allowed_failures', 3) + 1} workers one after the other, "
                "which is what running out of memory looks like",
                "raise the memory limit of the workers or give them fewer threads; their logs say more",
            ) from error
        if name in {"FutureCancelledError", "FuturesCancelledError", "CommClosedError"}:
            raise ClusterError(
                f"the connection to the scheduler was lost ({name})",
                "start the cluster again, then use --resume",
            ) from error
        raise


def completed(
    function: Callable[..., Any],
    items: Iterable[tuple[Any, ...]],
    *,
    client: Any = None,
    ordered: bool = False,
    idle: Callable[[], None] = lambda: None,
) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield (item, function(*item)) as tasks finish, or in the order of the items where that is asked for.

    At most 2 x threads are in flight; in order, those that wait for their turn among them. ``idle`` is
    called before each wait. Closing the generator cancels what is left.
    """
    backend: Threads | Cluster = Threads() if client is None else Cluster(client)
    remaining, looked = enumerate(items), time.monotonic()
    flying: dict[Any, tuple[int, tuple[Any, ...]]] = {}
    waiting: dict[int, tuple[tuple[Any, ...], Any]] = {}
    turn = 0
    with explained():
        try:
            while True:
                if time.monotonic() - looked > 5:  # workers come and go
                    backend.refresh()
                    looked = time.monotonic()
                limit = FLYING * backend.threads
                room = limit - len(flying) - len(waiting)
                if client is None or room >= limit // 2:  # one message for half a window
                    refill = list(itertools.islice(remaining, max(0, room)))
                    if refill:
                        started = backend.submit(function, [item for _, item in refill])
                        flying.update(zip(started, refill, strict=True))
                if not flying:
                    return
                idle()
                batch = backend.finished(flying)
                while batch:  # pop: a consumed result or future must not outlive its turn
                    future, result = batch.pop()
                    number, item = flying.pop(future)
                    del future
                    if ordered:
                        waiting[number] = item, result
                    else:
                        yield item, result
                    del result
                while turn in waiting:
                    yield waiting.pop(turn)
                    turn += 1
        finally:
            backend.close(flying)


def count_threads(client: Any) -> int:
    """Threads that compute at once: of the cluster, or of this process by Dask's own settings."""
    if client is not None:
        threads: int = max(1, sum(client.nthreads().values()))
        return threads
    if dask.config.get("scheduler", None) in ("synchronous", "sync", "single-threaded"):
        return 1
    count: int = dask.config.get("num_workers", None) or dask.system.CPU_COUNT
    return count
