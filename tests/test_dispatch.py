"""BLAS has one thread wherever the package computes, and no more is in flight than is planned."""

import threading

import dask
import distributed
import pytest
import threadpoolctl

from gramian import dispatch


def blas_threads():
    return {
        library["num_threads"] for library in threadpoolctl.threadpool_info() if library["user_api"] == "blas"
    }


@pytest.fixture
def two_threads():
    """A process whose BLAS would use two threads, set by the main thread as users do."""
    with threadpoolctl.threadpool_limits(2):
        yield


def in_thread(function):
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def threads_within():
    with dispatch.pinned():
        return blas_threads()


def test_the_limit_holds_in_a_thread_after_another_has_set_it(two_threads):
    with dispatch.pinned():
        pass
    assert in_thread(threads_within) == {1}


def test_the_limit_holds_in_a_thread_beside_the_user_s_own_limit(two_threads):
    assert in_thread(threads_within) == {1}


def test_the_limit_of_one_thread_may_end_in_another(two_threads):
    limit = dispatch.pinned()
    in_thread(limit.__enter__)
    assert blas_threads() == {1}
    limit.__exit__(None, None, None)
    assert blas_threads() == {2}


def test_the_user_s_limit_comes_back(two_threads):
    in_thread(threads_within)
    assert blas_threads() == {2}


def test_a_worker_within_this_process_gives_its_threads_back(two_threads):
    with (
        distributed.LocalCluster(
            1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        within = [result for _, result in dispatch.completed(blas_threads, [()], client=client)]
    assert (within, blas_threads()) == ([{1}], {2})


def test_results_in_order_hold_back_no_more_than_the_tasks_in_flight():
    """The first item ends last: what is started meanwhile, and waits for it, is bounded."""
    started, first_may_end = [], threading.Event()

    def work(index):
        started.append(index)
        if index == 0:
            first_may_end.wait(10)
        return index

    with dask.config.set(num_workers=2):
        found = dispatch.completed(work, ((index,) for index in range(50)), ordered=True)
        threading.Timer(0.5, first_may_end.set).start()
        first = next(found)
        most = len(started)
        rest = list(found)
    assert most <= 2 * 2 + 1
    assert [item for item, _ in [first, *rest]] == [(index,) for index in range(50)]
    assert [result for _, result in [first, *rest]] == list(range(50))
