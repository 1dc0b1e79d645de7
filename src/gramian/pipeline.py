"""A job, from its words to its outputs: each stage plans, then runs; a run directory records both.

A command of the command line is a job of one stage. Here stores are opened by path; estimators and the
engine below receive arrays.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import dask
import dask.system
import psutil
import zarr

from gramian import cluster, engine
from gramian.blocks import Plan, size_text
from gramian.errors import PlanError, RunError, StoreError
from gramian.job import Cluster, Job, JobError, read_job, wrong_words
from gramian.sources import scratch_folder
from gramian.stages import STAGES, Action, Known, opens
from gramian.store.manifest import cpu, versions
from gramian.store.run import Run
from gramian.validation import boolean, path_text

SUMS = "sums"  # second part of the name of a partial sum; other names are arrays of the stage's output
SCRATCH = ".scratch"  # in the run directory, while a stage runs on a cluster that is not ours
SHARE = 0.8  # of the free memory that a local cluster may take where nothing is said


class Watch(Protocol):
    """Hears what a run tells while it goes."""

    def say(self, text: str) -> None:
        """One line about what happens now."""

    def progress(self, name: str, done: int, total: int) -> None:
        """Blocks of one operation."""


class Silent:
    """A `Watch` that tells nobody."""

    def say(self, text: str) -> None:
        pass

    def progress(self, name: str, done: int, total: int) -> None:
        pass


@dataclass(frozen=True)
class Outcome:
    """What a run leaves.

    Parameters
    ----------
    root : str or None
        The run directory.
    records : list of dict
        The facts of each stage, in order.
    computed : tuple of str
        The stages that were not complete before.
    planned : int
        Bytes of the planned peak, driver and workers together.
    measured : int or None
        Bytes of the measured one; None where the workers run elsewhere or nothing was computed.
    """

    root: str | None
    records: list[dict[str, Any]]
    computed: tuple[str, ...]
    planned: int
    measured: int | None


@dataclass(frozen=True)
class Place:
    """Workers, threads of each and bytes of each: where a plan must fit. Without workers: this process.

    ``whole`` is what driver and workers share, where no limit of a worker was given.
    """

    workers: int
    threads: int
    memory_limit: int | None
    scheduler: str | None = None
    whole: int | None = None

    @classmethod
    def of(cls, where: Cluster, max_memory: int | None, plan: Plan) -> Place:
        """The cluster that the words mean, the gaps of a local one filled from this machine.

        Of a running cluster nothing is known before it is joined; the engine then looks at its workers.
        """
        if where.scheduler is not None:
            return cls(where.workers or 1, where.threads or 1, where.memory_limit, where.scheduler)
        workers = dask.system.CPU_COUNT if where.workers is None else where.workers
        if workers == 0:
            return cls(0, where.threads or dask.system.CPU_COUNT, None)
        limit = where.memory_limit
        if limit is None:
            whole = max_memory if max_memory is not None else int(SHARE * psutil.virtual_memory().available)
            limit = max(1, (whole - plan.driver_bytes(workers * (where.threads or 1))) // workers)
            return cls(workers, where.threads or 1, limit, whole=whole)
        return cls(workers, where.threads or 1, limit)


@dataclass(frozen=True)
class Bad:
    """A recorded block that is not what was written.

    Parameters
    ----------
    name : str
        Of its array in the journal.
    index : tuple of int
    label : str
        The name for people: without its stage where the run has only one.
    key : str
        Of its chunk in the store, such as ``c/3/0``.
    state : {"damaged", "missing"}
    """

    name: str
    index: tuple[int, ...]
    label: str
    key: str
    state: str


# ---------------------------------------------------------------- plan


def prepare(job: Job, seeds: Mapping[str, int] | None = None) -> list[Action]:
    """The stages as actions on what is known of their inputs. Opens stores, reads no rows of X."""
    known = Known(seeds=dict(seeds or {}))
    for stage in job.stages:
        with wrong_words(stage.set):
            known.add(STAGES[stage.command](stage, known))
    return list(known.actions.values())


def total_plan(actions: list[Action]) -> Plan:
    """The sum of the plans of all stages, beside the rows that each has chosen."""
    total = Plan()
    for action in actions:
        with wrong_words(action.stage.set):
            total += action.plan().prefixed(action.stage.name)
    return total.holding(_held_bytes(actions))


def _held_bytes(actions: list[Action]) -> int:
    return sum(action.view.held_bytes for action in actions)


@dataclass(frozen=True)
class Outline:
    """A plan beside the place where it must fit."""

    plan: Plan
    place: Place
    max_memory: int | None

    def check(self) -> None:
        """Refuse what does not fit."""
        self.plan.check(
            workers=self.place.workers,
            threads=self.place.threads,
            max_memory=self.max_memory if self.place.whole is None else self.place.whole,
            worker_limit=self.place.memory_limit if self.place.whole is None else None,
        )

    def facts(self) -> dict[str, Any]:
        """The totals, in bytes and counts."""
        place = self.place
        return {
            "tasks": self.plan.tasks,
            "read_bytes": self.plan.read,
            "written_bytes": self.plan.written,
            "files": self.plan.files,
            "seconds": self.plan.seconds / (max(1, place.workers) * place.threads),
            "workers": place.workers,
            "threads": place.threads,
            "driver_bytes": self.plan.driver_bytes(max(1, place.workers) * place.threads),
            "worker_bytes": self.plan.worker_bytes(place.threads),
            "total_bytes": self.plan.total_bytes(place.workers, place.threads),
        }


def outline(job: Job) -> Outline:
    """What a job would take; nothing is submitted and nothing is written."""
    return _outline(job, prepare(job))


def _outline(job: Job, actions: list[Action]) -> Outline:
    plan = total_plan(actions)
    return Outline(plan, Place.of(job.cluster, job.max_memory, plan), job.max_memory)


# ---------------------------------------------------------------- run


def run(
    job: Job | str | Path,
    *,
    resume: bool = False,
    takeover: bool = False,
    allow_mixed: bool = False,
    force: bool = False,
    watch: Watch | None = None,
) -> Outcome:
    """Run every stage of a job, in order.

    Parameters
    ----------
    job : Job or path
        A job, or the path of its TOML file.
    resume : bool
        Check every recorded block, then compute what is missing or damaged; begin where nothing was begun.
    takeover, allow_mixed, force : bool
        See `gramian.store.run.Run.open`.
    watch : Watch, optional
        Hears what happens.

    Returns
    -------
    Outcome

    Raises
    ------
    JobError
        The words of the job are wrong.
    PlanError
        The plan does not fit; nothing was submitted.
    RunError
        The run exists already, is in use, or was begun with other inputs or parameters.
    StoreError
        An input is missing, or an output exists and ``force`` is not given.
    """
    for name, flag in (
        ("resume", resume),
        ("takeover", takeover),
        ("allow_mixed", allow_mixed),
        ("force", force),
    ):
        boolean(flag, name)
    if resume and force:
        raise JobError("both resume and force are given", "give --resume to go on or --force to start anew")
    if takeover and not (resume or force):
        raise JobError("takeover is given without resume", "add --resume to go on, or --force to start anew")
    job = job if isinstance(job, Job) else read_job(path_text(job, "job"))
    watch = watch or Silent()
    before = _manifest_before(job.path)
    if before is not None and not (resume or force):
        raise RunError(f"{job.path} holds a run already", "give --resume to go on or --force to start anew")
    before = before if resume else None
    actions = prepare(job, None if before is None else before.get("seeds"))
    planned = _outline(job, actions)
    planned.check()
    _check_apart(actions)
    _check_room(job, planned.plan.written, anew=before is None and not force)
    if before is None:
        for action in actions:
            action.check_free(force=force)
    opening = {"resume": resume, "takeover": takeover, "allow_mixed": allow_mixed, "force": force}
    manifest = None if job.path is None else _manifest(job, actions, planned)
    with ExitStack() as stack:
        if before is not None:  # its blocks are checked here; a complete run needs no cluster
            recorded = stack.enter_context(Run.open(str(job.path), manifest, **opening))
            mend(recorded, watch)
            if any(_is_open(action, recorded) for action in actions):
                stack.enter_context(_cluster(job, planned, allow_mixed, watch))
            return _run_stages(job, actions, planned, recorded, force=False, watch=watch)
        stack.enter_context(_cluster(job, planned, allow_mixed, watch))
        if manifest is None:
            return _run_stages(job, actions, planned, None, force=force, watch=watch)
        recorded = stack.enter_context(Run.open(str(job.path), manifest, **opening))
        return _run_stages(job, actions, planned, recorded, force=force, watch=watch)


def _check_apart(actions: list[Action]) -> None:
    """Refuse an output that would take the place of something that the job reads, or stand around it."""
    read = {
        (name, str(value))
        for action in actions
        for name, value in action.stage.words().items()
        if name in action.paths() and name != "out"
    }
    for action in actions:
        for name, path in sorted(read) if action.stage.out is not None else ():
            out, given = (os.path.realpath(place) for place in (str(action.stage.out), path))
            if out == given or given.startswith(f"{out}/"):
                raise StoreError(
                    f"the output {action.stage.out} would replace the {name} {path}", "choose another path"
                )


def _check_room(job: Job, written: int, *, anew: bool) -> None:
    """Refuse what the disk cannot take: all of it where something may have been written already."""
    places = [stage.out for stage in job.stages if stage.out is not None and "://" not in stage.out]
    if not places:
        return
    place = next(folder for folder in Path(places[0]).absolute().parents if folder.is_dir())
    usage = shutil.disk_usage(place)
    room = usage.free if anew else usage.total
    if written > room:
        raise PlanError(
            f"the plan writes {size_text(written)}, the disk of {place} has {size_text(room)}"
            f"{' free' if anew else ''}",
            "free space, choose another disk or write less",
        )


def _is_open(action: Action, recorded: Run | None) -> bool:
    """Whether something of a stage has yet to be made."""
    return recorded is None or not (recorded.is_complete(action.stage.name) and action.is_sound())


def _run_stages(
    job: Job, actions: list[Action], planned: Outline, recorded: Run | None, *, force: bool, watch: Watch
) -> Outcome:
    records, computed, peaks = [], [], [0]
    for action in actions:
        name = action.stage.name
        if recorded is not None and not _is_open(action, recorded):
            watch.say(f"{name}: complete")
            records.append({"stage": name, **recorded.stages[name]})
            continue
        with _shared_scratch(job):
            plan = action.plan().holding(_held_bytes(actions))
            facts = _run_stage(job, action, plan, planned.place, recorded, force=force, watch=watch)
        if recorded is not None:
            recorded.complete(name, facts)
        computed.append(name)
        peaks.append(facts["measured_bytes"] or 0)
        records.append({"stage": name, **facts})
    return Outcome(job.path, records, tuple(computed), planned.facts()["total_bytes"], max(peaks) or None)


@contextmanager
def _shared_scratch(job: Job) -> Iterator[None]:
    """Intermediate data within the run directory: workers elsewhere do not see this machine's own folder."""
    if job.path is None or job.cluster.scheduler is None or scratch_folder() is not None:
        yield
        return
    folder = Path(job.path).absolute() / SCRATCH
    shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed; the run is locked
    folder.mkdir()
    try:
        with dask.config.set({"gramian.scratch": str(folder)}):
            yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run_stage(
    job: Job, action: Action, plan: Plan, place: Place, recorded: Run | None, *, force: bool, watch: Watch
) -> dict[str, Any]:
    """One stage in a session of its own; its facts."""
    name = action.stage.name
    blocks = _Blocks(name, watch)
    began = time.monotonic()
    watch.say(f"{name}: {action.stage.command} {action.stage.what}")

    @contextmanager
    def session(prefix: str) -> Iterator[None]:
        with engine.session(
            recorded, max_memory=job.max_memory, on_progress=blocks, stage=f"{name}/{prefix}".rstrip("/")
        ):
            yield

    with cluster.PeakMemory() as peak:
        found = action.run(session, recorded, force=force)
    return {
        "command": action.stage.command,
        "output": None if action.stage.out is None else _beside(action.stage.out, job.path),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - began, 3),
        "blocks": blocks.computed,
        "planned_bytes": plan.total_bytes(place.workers, place.threads),
        "measured_bytes": None if job.cluster.scheduler else peak.total,
        **found,
    }


class _Blocks:
    """Hears the engine's progress, counts what was computed and passes it on."""

    def __init__(self, stage: str, watch: Watch) -> None:
        self._stage, self._watch = stage, watch
        self._seen: dict[str, int] = {}
        self.computed = 0

    def __call__(self, progress: engine.Progress) -> None:
        self.computed += max(0, progress.done - self._seen.get(progress.name, progress.done))
        self._seen[progress.name] = progress.done
        self._watch.progress(f"{self._stage}: {progress.name}", progress.done, progress.total)


@contextmanager
def _cluster(job: Job, planned: Outline, allow_mixed: bool, watch: Watch) -> Iterator[None]:
    """The cluster that the words ask for, active within the block; refused where the plan does not fit it."""
    where, place = job.cluster, planned.place
    if where.scheduler is not None:
        context = cluster.connect(
            where.scheduler,
            tls_ca=where.tls_ca,
            tls_cert=where.tls_cert,
            tls_key=where.tls_key,
            allow_mixed=allow_mixed,
        )
    elif place.workers == 0:
        with dask.config.set(scheduler="threads", num_workers=place.threads):
            engine.admit_plan(planned.plan, job.max_memory)
            yield
        return
    else:
        assert place.memory_limit is not None
        watch.say(
            f"{place.workers} worker(s) of {place.threads} thread(s) and {size_text(place.memory_limit)} each"
        )
        context = cluster.local(place.workers, place.threads, place.memory_limit)
    with context as client:
        if client.dashboard_link:
            watch.say(f"dashboard: {client.dashboard_link}")
        engine.admit_plan(planned.plan, job.max_memory)
        yield


# ---------------------------------------------------------------- manifest


def _manifest(job: Job, actions: list[Action], planned: Outline) -> dict[str, Any]:
    return {
        "title": Path(str(job.path)).name.removesuffix(".run"),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "parameters": {"stages": {action.stage.name: _words(action, job.path) for action in actions}},
        "inputs": _inputs(job, actions),
        "versions": versions(),
        "cpu": cpu(),
        "seeds": {action.stage.name: action.seed for action in actions if action.seed is not None},
        "max_memory": job.max_memory,
        "plan": {"steps": planned.plan.rows(), **planned.facts()},
        "grids": {
            f"{action.stage.name}/{name}": {"shape": list(spec.shape), "chunks": list(spec.chunks or ())}
            for action in actions
            for name, spec in action.arrays().items()
        },
        "outputs": {
            stage.name: _beside(stage.out, job.path) for stage in job.stages if stage.out is not None
        },
    }


def _inputs(job: Job, actions: list[Action]) -> dict[str, dict[str, Any]]:
    """The fingerprints of all that the stages read, by path; stages may read other arrays of one store."""
    found: dict[str, dict[str, Any]] = {}
    for action in actions:
        for path, facts in action.inputs().items():
            found.setdefault(_beside(path, job.path), {}).update(facts)
    return found


def _words(action: Action, root: str | None) -> dict[str, Any]:
    """The words of a stage, its paths as seen from the run directory: from everywhere the same."""
    paths = action.paths()
    words = action.stage.words().items()
    return {name: _beside(value, root) if name in paths else value for name, value in words}


def _manifest_before(root: str | None) -> dict[str, Any] | None:
    """The manifest of the run that is to be resumed, None where nothing was begun."""
    if root is None or not (Path(root) / "manifest").is_file():
        return None
    return Run.open(root, None).manifest


def _beside(path: str, root: str | None) -> str:
    """The path of an output as seen from the run directory, so that both can be moved together."""
    return path if root is None or "://" in path else os.path.relpath(path, root)


# ---------------------------------------------------------------- verify


def verify(target: str | Path, watch: Watch | None = None) -> list[Bad]:
    """Read every recorded block of a run, or of one of its outputs, again. Nothing is written.

    Parameters
    ----------
    target : path
        A run directory, or an output that a run has made.

    Returns
    -------
    list of Bad
        Empty where all is well.
    """
    root, stage = find_run(target)
    recorded = Run.open(root, None)
    names = [name for name in recorded.done if stage is None or name.partition("/")[0] == stage]
    return _check(recorded, names, watch or Silent())


def mend(recorded: Run, watch: Watch) -> None:
    """Drop the records of blocks that are damaged or missing; their stages are then open again."""
    for bad in _check(recorded, list(recorded.done), watch):
        watch.say(f"{bad.label} {bad.key} {bad.state}: to be computed again")
        if bad.index or bad.name in recorded.done:
            recorded.forget(bad.name, [bad.index])


def find_run(target: str | Path) -> tuple[Path, str | None]:
    """The run directory behind a path, and the stage whose output the path is.

    Raises
    ------
    RunError
        If no run has made it.
    """
    path = Path(target)
    if (path / "manifest").is_file():
        return path, None
    own = path.with_name(path.name + ".run")
    if (own / "manifest").is_file():
        return own, None
    for root in path.resolve().parents:
        if (root / "manifest").is_file():
            outputs = Run.open(root, None).manifest.get("outputs", {})
            for stage, place in outputs.items():
                if (root / place).resolve() == path.resolve():
                    return root, stage
    raise RunError(f"no run has made {path}", "name a run directory or an output of one")


def _check(recorded: Run, names: list[str], watch: Watch) -> list[Bad]:
    bad = []
    alone = len(recorded.manifest.get("outputs", {})) == 1
    total, done = sum(len(recorded.done[name]) for name in names), 0
    for name in names:
        watch.progress("verify", done, total)
        records = recorded.done[name]
        done += len(records)
        array = _locate(recorded, name)
        if array is None:
            states = dict.fromkeys(sorted(records), "missing")
        else:
            states = engine.check_blocks(array, records)
        label = name.partition("/")[2] if alone else name
        bad += [Bad(name, index, label, _chunk_key(array, index), state) for index, state in states.items()]
    bad += _unreadable(recorded, {name.partition("/")[0] for name in names}, bad)
    watch.progress("verify", done, total)
    return bad


def _unreadable(recorded: Run, stages: set[str], bad: list[Bad]) -> list[Bad]:
    """Outputs whose blocks are well but whose documents are not."""
    found = []
    commands = recorded.manifest.get("parameters", {}).get("stages", {})
    for stage in sorted(stages & set(recorded.stages) - {item.name.partition("/")[0] for item in bad}):
        kind = STAGES[commands[stage]["command"]].kind if stage in commands else "scores"
        if kind != "scores" and not opens(kind, _output(recorded, stage)):
            state = "damaged" if Path(_output(recorded, stage), "zarr.json").exists() else "missing"
            found.append(Bad(f"{stage}/zarr.json", (), stage, "zarr.json", state))
    return found


def _output(recorded: Run, stage: str) -> str:
    place = str(recorded.manifest["outputs"][stage])
    return place if "://" in place else os.path.normpath(recorded.root / place)


def _locate(recorded: Run, name: str) -> zarr.Array[Any] | None:
    """The array behind a name of the journal."""
    stage, _, inner = name.partition("/")
    if inner.partition("/")[0] == SUMS:
        return _opened(recorded.root / SUMS / name.replace("/", "+"))
    if stage not in recorded.manifest.get("outputs", {}):
        return None
    return _opened(f"{_output(recorded, stage)}/{inner}")


def _opened(path: str | Path) -> zarr.Array[Any] | None:
    try:
        return zarr.open_array(str(path), mode="r")
    except (OSError, ValueError, KeyError, TypeError):  # metadata gone or damaged
        return None


def _chunk_key(array: zarr.Array[Any] | None, index: tuple[int, ...]) -> str:
    return "/".join(["c", *map(str, index)]) if array is None else array.metadata.encode_chunk_key(index)
