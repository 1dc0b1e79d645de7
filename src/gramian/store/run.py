"""A run directory: what is computed (the manifest) and what is done (a journal of records).

The journal consists of numbered segments. Each carries its own checksum and is created only if it does not
exist, so appending is the fence as well: a driver that was overtaken fails at its next append, and no clock
takes part in any decision. A segment that is lost or damaged means that its blocks are computed again.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import socket
import time
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import google_crc32c
import numpy as np
import zarr
from zarr.codecs import Crc32cCodec

from gramian.errors import InputError, RunError
from gramian.store.manifest import differences

Index = tuple[int, ...]

SEGMENT_RECORDS = 256  # records of a segment, unless a second has passed before
SEGMENT_SECONDS = 1.0

_HEADER = re.compile(rb"[0-9a-f]{8}\Z")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")


class Overtaken(RunError):  # noqa: N818 - a state of affairs more than an error
    """Another process took this run over; what it records counts from now on."""


# ---------------------------------------------------------------- files


def put_new(path: Path, data: bytes) -> bool:
    """Create a file with all its bytes, or return False because it exists.

    The one operation that a journal needs of its storage. On object stores it is a conditional put.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    temporary.write_bytes(data)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError:  # a file system without links: a half-written segment is then possible, and harmless
        return _put_exclusive(path, data)
    finally:
        temporary.unlink(missing_ok=True)
    return True


def _put_exclusive(path: Path, data: bytes) -> bool:
    try:
        with path.open("xb") as file:
            file.write(data)
    except FileExistsError:
        return False
    return True


def seal(entry: Mapping[str, Any]) -> bytes:
    """JSON under its own checksum."""
    body = json.dumps(entry, separators=(",", ":"), default=_plain).encode()
    return b"%08x\n" % google_crc32c.value(body) + body


def unseal(data: bytes) -> dict[str, Any] | None:
    """What was sealed, or None where it is damaged."""
    head, _, body = data.partition(b"\n")
    if head != b"%08x" % google_crc32c.value(body):
        return None
    entry = json.loads(body)
    return entry if isinstance(entry, dict) else None


def _plain(value: Any) -> Any:
    """What JSON does not know, as what it knows."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    return str(value)


# ---------------------------------------------------------------- the run


class Run:
    """One run directory, opened for recording or for reading.

    Use `Run.open`. As a context manager it is closed at the end, also after an error.

    Attributes
    ----------
    root : Path
        The run directory.
    manifest : dict
        What is computed, as it stands on disk.
    done : dict
        For each name of an array the checksums of its recorded blocks: ``{name: {index: crc32c}}``.
    stages : dict
        The completed stages, each with the facts that were kept with it.
    """

    def __init__(self, root: Path, manifest: dict[str, Any], *, read_only: bool) -> None:
        self.root = root
        self.manifest = manifest
        self.done: dict[str, dict[Index, int]] = {}
        self.stages: dict[str, dict[str, Any]] = {}
        self.read_only = read_only
        self._owner: dict[str, Any] | None = None
        self._next = 0
        self._buffer: dict[str, list[list[int]]] = {}
        self._buffered = 0
        self._flushed = time.monotonic()
        self._lock: IO[bytes] | None = None

    @classmethod
    def open(
        cls,
        root: str | os.PathLike[str],
        manifest: Mapping[str, Any] | None,
        *,
        resume: bool = False,
        takeover: bool = False,
        allow_mixed: bool = False,
        force: bool = False,
    ) -> Run:
        """Begin, resume or read a run.

        Parameters
        ----------
        root : path
            The run directory; it is created where nothing is.
        manifest : mapping or None
            What is to be computed. ``parameters``, ``inputs``, ``versions`` and ``cpu`` are compared on
            resume, other keys are free. None opens an existing run for reading: nothing is locked or written.
        resume : bool
            Go on with what is there; begin where nothing was begun.
        takeover : bool
            Go on although another process has not closed the run. That process fails at its next append.
        allow_mixed : bool
            Go on with other versions or another CPU; the manifest then names both.
        force : bool
            Forget what is there and begin anew. Outputs are left to those who write them.

        Raises
        ------
        RunError
            If there is a run and neither ``resume`` nor ``force``; if it is in use; if the manifest
            differs (each difference is named); if the directory holds something else.
        """
        path = Path(root)
        if "://" in os.fspath(root):
            raise RunError(f"the run directory {root} is a URL", "name a folder on this machine")
        if resume and force:
            raise InputError(
                "both resume and force are given", "give --resume to go on or --force to start anew"
            )
        if manifest is None:
            return cls._read(path)
        given = json.loads(json.dumps(manifest, default=_plain))
        state = _state_of(path)
        if state == "foreign":
            raise RunError(
                f"{path} holds a manifest or a journal that is not one of a run",
                "choose another directory or remove it by hand",
            )
        if state == "run" and not (resume or force):
            raise RunError(f"{path} holds a run already", "give --resume to go on or --force to start anew")
        run = cls(path, given, read_only=False)
        run._acquire(takeover)
        try:
            if state == "none":
                run._begin()
            elif force:
                run._begin_anew()
            else:
                run._resume(allow_mixed)
        except BaseException:
            run._release()
            raise
        return run

    @classmethod
    def _read(cls, path: Path) -> Run:
        manifest = _manifest_of(path)
        if manifest is None:
            raise RunError(f"{path} is not a run directory", "name the directory of a run")
        run = cls(path, manifest, read_only=True)
        run._scan()
        return run

    # ------------------------------------------------------------ opening

    @property
    def _journal(self) -> Path:
        return self.root / "journal"

    def _acquire(self, takeover: bool) -> None:
        """Lock, look who owns the run, and refuse politely."""
        try:
            self._journal.mkdir(parents=True, exist_ok=True)
            locks = self._try_lock()
        except OSError as error:
            raise RunError(
                f"{self.root} cannot be written: {error.strerror}", "choose another directory"
            ) from None
        self._scan()
        if self._lock is None and not takeover and (locks or self._owner):
            owner = self._owner or {}
            who = f"process {owner.get('process', '?')} on {owner.get('host', 'an unknown host')}"
            raise RunError(
                f"{self.root} is in use by {who}" if locks else f"{self.root} was left open by {who}",
                "wait until it has ended, or give --takeover if it is dead or hangs",
            )

    def _try_lock(self) -> bool:
        """Take the lock if it is free; False where there are no locks: there the journal alone decides."""
        lock = (self.root / "lock").open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel drops it when the process dies
        except OSError as error:
            lock.close()
            return isinstance(error, BlockingIOError)
        self._lock = lock
        return True

    def _begin(self) -> None:
        if not put_new(self.root / "manifest", seal_manifest(self.manifest)):
            raise RunError(f"{self.root} was begun by another process just now", "wait until it has ended")
        self._own()

    def _begin_anew(self) -> None:
        """Begin within the numbers of the old journal, so that an old driver still meets the fence."""
        old = self._segments()
        self._own(anew=True)
        self._replace_manifest()
        for segment in old:
            segment.unlink(missing_ok=True)
        shutil.rmtree(self.root / "sums", ignore_errors=True)

    def _resume(self, allow_mixed: bool) -> None:
        stored = _manifest_of(self.root)
        if stored is None:
            raise RunError(f"the manifest of {self.root} is damaged", "start anew with --force")
        hard, soft = differences(stored, self.manifest)
        if hard:
            raise RunError(
                f"{self.root} was begun otherwise: {', '.join(hard + soft)}",
                "undo the change, name a new directory or start anew with --force",
            )
        if soft and not allow_mixed:
            raise RunError(
                f"{self.root} was begun elsewhere: {', '.join(soft)}",
                "start a new run, or give --allow-mixed and lose the promise of equal bits",
            )
        given, self.manifest = self.manifest, stored
        self._own()
        if soft:
            mixed = {key: given[key] for key in ("versions", "cpu") if key in given}
            if mixed not in stored.setdefault("mixed", []):
                stored["mixed"].append(mixed)
                self._replace_manifest()

    def _own(self, **more: Any) -> None:
        self._append({**more, "owner": {"host": socket.gethostname(), "process": os.getpid()}})

    def _replace_manifest(self) -> None:
        temporary = self.root / f".manifest.{uuid.uuid4().hex}"
        temporary.write_bytes(seal_manifest(self.manifest))
        temporary.replace(self.root / "manifest")

    def _segments(self) -> list[Path]:
        return sorted(path for path in self._journal.glob("[0-9]*") if path.name.isdecimal())

    def _scan(self) -> None:
        for path in self._segments():
            self._next = int(path.name) + 1
            entry = unseal(path.read_bytes())
            if entry is not None:
                self._apply(entry)

    def _apply(self, entry: dict[str, Any]) -> None:
        if entry.get("anew"):
            self.done.clear()
            self.stages.clear()
        if "owner" in entry:
            self._owner = entry["owner"]
        for name, records in entry.get("blocks", {}).items():
            self.done.setdefault(name, {}).update((tuple(index), crc) for *index, crc in records)
        for name, indices in entry.get("forgotten", {}).items():
            self._drop(name, [tuple(index) for index in indices])
        self.stages.update(entry.get("complete", {}))

    # ------------------------------------------------------------ records

    def missing(self, name: str, indices: Iterable[Index]) -> list[Index]:
        """The indices without a record, in their order."""
        known = self.done.get(name, {})
        return [index for index in indices if index not in known]

    def record(self, name: str, index: Index, crc: int) -> None:
        """Note that a block is stored. It lasts once its segment is written: see `flush`."""
        self._writable()
        index = tuple(map(int, index))
        self.done.setdefault(name, {})[index] = crc
        self._buffer.setdefault(name, []).append([*index, int(crc)])
        self._buffered += 1
        if self._buffered >= SEGMENT_RECORDS:
            self.flush()
        else:
            self.flush_if_due()

    def flush_if_due(self) -> None:
        """Write the records that have waited for a second. Call it before every short wait."""
        if time.monotonic() - self._flushed > SEGMENT_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write the records that wait. Call it before every wait that may be long."""
        self._flushed = time.monotonic()
        if self._buffered:
            blocks, self._buffer, self._buffered = self._buffer, {}, 0
            self._append({"blocks": blocks})

    def forget(self, name: str, indices: Iterable[Index]) -> None:
        """Drop records, because their blocks are damaged or missing; the stage is no longer complete."""
        dropped = [tuple(map(int, index)) for index in indices]
        if dropped:
            self.flush()
            self._append({"forgotten": {name: dropped}})
            self._drop(name, dropped)

    def _drop(self, name: str, indices: list[Index]) -> None:
        for index in indices:
            self.done.get(name, {}).pop(index, None)
        self.stages.pop(name.partition("/")[0], None)

    def complete(self, stage: str, facts: Mapping[str, Any] | None = None) -> None:
        """Note that every block of a stage is stored, with facts to keep (times, peaks, scores)."""
        self.flush()
        entry = json.loads(json.dumps({"complete": {stage: dict(facts or {})}}, default=_plain))
        self._append(entry)
        self._apply(entry)

    def is_complete(self, stage: str) -> bool:
        """Whether a stage was completed and none of its records was dropped since."""
        return stage in self.stages

    def find_partials(self, name: str) -> zarr.Array[Any] | None:
        """The array of a named sum, or None where there is none or its metadata is damaged."""
        try:
            return zarr.open_array(str(self._sum(name)), mode="r" if self.read_only else "r+")
        except (ValueError, KeyError, TypeError, OSError):
            return None

    def partials(
        self, name: str, nodes: int, length: int, attrs: Mapping[str, Any] | None = None
    ) -> zarr.Array[Any]:
        """The array in which a named sum keeps its partial results.

        Parameters
        ----------
        name : str
            Of the sum, for example ``"model/products"``.
        nodes : int
            Partial results, one a row.
        length : int
            Numbers of one partial result.
        attrs : mapping, optional
            Facts to keep beside a new array. An array of another ``"key"`` is replaced.

        Returns
        -------
        zarr.Array of shape (nodes, length), float64, one row a chunk
            The one that is there, or a new one.
        """
        self._writable()
        array = self.find_partials(name)
        if array is None or array.attrs.get("key") != (attrs or {}).get("key"):
            return self._new_partials(name, nodes, length, attrs)
        if array.shape != (nodes, length) or array.dtype != np.float64:
            raise RunError(
                f"the sum {name} of {self.root} has shape {array.shape}, not {(nodes, length)}",
                "name a new directory or start anew with --force",
            )
        return array

    def _new_partials(
        self, name: str, nodes: int, length: int, attrs: Mapping[str, Any] | None
    ) -> zarr.Array[Any]:
        """Records of an array that was lost, or gives way, go first: its parts may have been other ones."""
        self.forget(name, list(self.done.get(name, {})))
        return zarr.create_array(
            str(self._sum(name)),
            shape=(nodes, length),
            chunks=(1, max(1, length)),
            dtype="float64",
            compressors=[Crc32cCodec()],
            fill_value=0,
            attributes=dict(attrs or {}),
            overwrite=True,
        )

    def _sum(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise InputError(f"a sum is named {name!r}", "use letters, digits, '_', '-', '.' and '/'")
        return self.root / "sums" / name.replace("/", "+")  # flat: no sum lies within another's array

    # ------------------------------------------------------------ end

    def close(self) -> None:
        """Write what waits and give the run up. Closing twice does nothing."""
        if self.read_only or self._owner is None:
            return
        try:
            self.flush()
            self._append({"owner": None})
        finally:
            self._release()

    def _release(self) -> None:
        self._owner = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _writable(self) -> None:
        if self.read_only:
            raise RunError(f"{self.root} is open for reading only", "open it with its manifest and --resume")

    def _append(self, entry: dict[str, Any]) -> None:
        self._writable()
        if self._lock is None:  # who took over gets the lock once the other is gone
            self._try_lock()
        if not put_new(self._journal / f"{self._next:08d}", seal(entry)):
            self._release()
            raise Overtaken(
                f"another process took over {self.root} and this one stops", "let the other end, then resume"
            )
        self._next += 1
        if "owner" in entry:
            self._owner = entry["owner"]
        if entry.get("anew"):
            self._apply(entry)


def seal_manifest(manifest: Mapping[str, Any]) -> bytes:
    """A manifest under its checksum, laid out for people."""
    body = json.dumps(manifest, indent=1, default=_plain).encode()
    return b"%08x\n" % google_crc32c.value(body) + body


def _manifest_of(root: Path) -> dict[str, Any] | None:
    with suppress(OSError):
        return unseal((root / "manifest").read_bytes())
    return None


def _state_of(root: Path) -> str:
    """``none`` where nothing was begun, ``run`` where a run is (damaged or not), else ``foreign``."""
    manifest, journal = root / "manifest", root / "journal"
    if manifest.is_file() and journal.is_dir():
        with manifest.open("rb") as file:
            return "run" if _HEADER.match(file.readline(9).rstrip(b"\n")) else "foreign"
    started = manifest.exists() or (
        journal.exists() and (not journal.is_dir() or any(journal.glob("[0-9]*")))
    )
    return "foreign" if started else "none"
