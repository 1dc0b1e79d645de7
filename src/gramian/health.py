"""Whether a scheduler or a worker is well.

It stands alone because containers ask again and again: of a page, without importing Dask or Zarr.
"""

from __future__ import annotations

from gramian.errors import ClusterError, InputError


def check(role: str, address: str, timeout: float = 5.0) -> None:
    """Return if a scheduler or worker answers at the address.

    Parameters
    ----------
    role : {"scheduler", "worker"}
    address : str
        ``http://`` of its dashboard, which costs least; or ``tcp://`` or ``tls://`` of the process itself.

    Raises
    ------
    ClusterError
        If it does not, or is something else.
    """
    if role not in ("scheduler", "worker"):
        raise InputError(f"the role is {role!r}", "give scheduler or worker")
    try:
        if address.startswith(("http://", "https://")):
            _ask_page(address, timeout)
            return
        kind = _ask_process(address, timeout)
    except (OSError, TimeoutError, ValueError, TypeError) as error:
        raise ClusterError(
            f"no {role} answers at {address} ({type(error).__name__})", "start it or check the address"
        ) from error
    if kind.lower() != role:
        raise ClusterError(
            f"a {kind.lower()} answers at {address}, not a {role}", f"give the address of the {role}"
        )


def _ask_page(address: str, timeout: float) -> None:
    from urllib.request import urlopen

    with urlopen(address.rstrip("/") + "/health", timeout=timeout) as answer:  # noqa: S310  http(s) only, see the caller
        if answer.status != 200:
            raise OSError(f"status {answer.status}")


def _ask_process(address: str, timeout: float) -> str:
    import asyncio

    from distributed.core import rpc

    async def ask() -> str:
        async with rpc(address, timeout=timeout) as process:
            return str((await asyncio.wait_for(process.identity(), timeout))["type"])

    return asyncio.run(ask())
