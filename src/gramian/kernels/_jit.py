"""How kernels are compiled: the flags, the compile cache and the switch to the plain twins. Only here.

Nothing in this file imports numba before a compiled module is asked for.
"""

from __future__ import annotations

import fcntl
import functools
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from gramian.errors import GramianWarning, InputError

SWITCH = "GRAMIAN_KERNELS"  # "plain" selects the twins without hand-written vector code


def plain() -> bool:
    """Whether the environment asks for the plain twins (``GRAMIAN_KERNELS=plain``)."""
    value = os.environ.get(SWITCH, "")
    if value not in ("", "plain"):
        raise InputError(f"{SWITCH} is {value!r}", "set it to 'plain' or remove it")
    return value == "plain"


class Kernel:
    """A compiled function whose first call of each signature is compiled, or loaded, under a file lock.

    Two processes that fill an empty cache at once can lose an entry. Threads may call it freely: the GIL
    is released, and nothing in it is parallel (threads come from the engine).

    Parameters
    ----------
    function : callable
        A function of a module file, in the subset of Python that numba compiles.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.dispatcher = _cached(function)

    def __call__(self, *args: Any) -> Any:
        from numba import typeof

        signature = tuple(typeof(arg) for arg in args)
        if signature not in self.dispatcher.overloads:
            self._compile(signature)
        return self.dispatcher(*args)

    def _compile(self, signature: tuple[Any, ...]) -> None:
        with _lock(self.dispatcher.stats.cache_path):
            try:
                self.dispatcher.compile(signature)
            except OSError as error:  # the cache cannot be written any more: a full disk, a lost mount
                _warn_uncached(str(error))
                self.dispatcher = _uncached(self.function)
                self.dispatcher.compile(signature)


def kernel(function: Callable[..., Any]) -> Kernel:
    """Decorate the entry of a compiled module: cached, nogil, never parallel."""
    return Kernel(function)


def helper(function: Callable[..., Any]) -> Any:
    """Decorate a function that kernels of the same file call."""
    from numba import njit

    return njit(nogil=True, inline="always")(function)


def emitter(function: Callable[..., Any]) -> Any:
    """Decorate a function that emits LLVM code for a compiled one.

    It selects by the types of its arguments and closes over no value: the cache's key knows types alone.
    """
    from numba.extending import intrinsic

    return intrinsic(function)


def supports(feature: str) -> bool:
    """Whether kernels are compiled for processors with a feature, in LLVM's words; the cache knows it."""
    from numba.core.registry import cpu_target

    features = str(cpu_target.target_context.codegen().magic_tuple()[2])
    return f"+{feature}" in features.split(",")


def _cached(function: Callable[..., Any]) -> Any:
    from numba import njit

    try:
        return njit(nogil=True, cache=True)(function)
    except RuntimeError as error:  # numba found no folder that it may write to
        _warn_uncached(str(error))
        return _uncached(function)


def _uncached(function: Callable[..., Any]) -> Any:
    from numba import njit

    return njit(nogil=True)(function)


_warned: list[str] = []  # why kernels were not kept, in this process


def _warn_uncached(reason: str) -> None:
    """Warn once a process."""
    if not _warned:
        warnings.warn(
            f"compiled kernels cannot be kept ({reason}); set NUMBA_CACHE_DIR to a writable folder",
            GramianWarning,
            stacklevel=2,
        )
    _warned.append(reason)


@contextmanager
def _lock(folder: str | None) -> Iterator[None]:
    """Hold the lock of a cache folder; go without where there is no folder or no locking."""
    with ExitStack() as stack:
        with suppress(OSError):
            file = stack.enter_context(open(os.path.join(folder or os.devnull, "gramian.lock"), "a"))
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
