"""A job in words: named stages with their options, from one TOML file or one command. Nothing is run."""

from __future__ import annotations

import json
import math
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from gramian.errors import InputError, InputTypeError

UNITS = {"": 1, "B": 1} | {
    prefix + unit: base**power
    for base, unit in ((1024, "iB"), (1000, "B"))
    for power, prefix in enumerate("KMGT", start=1)
}

# command: its argument of choice (the kind of thing that it makes or uses), None where it is a path
COMMANDS = {
    "featurize": "features",
    "gram": "kernel",
    "fit": "model",
    "predict": "model",
    "evaluate": "model",
}
WITHOUT_PARAMETERS = ("predict", "evaluate")  # a fitted model has nothing left to set


class JobError(InputError):
    """The words of a job or of a call are wrong; nothing was opened."""


@dataclass(frozen=True)
class Cluster:
    """Where the blocks are computed.

    Parameters
    ----------
    workers : int or None
        Processes of a local cluster; 0 computes on the threads of this process; None is one for each core.
    threads : int or None
        Threads of each worker.
    memory_limit : int or None
        Bytes of each worker.
    scheduler : str or None
        Address of a running scheduler, which takes the place of the local cluster.
    tls_ca, tls_cert, tls_key : str or None
        Paths of the certificates for a ``tls://`` scheduler.
    """

    workers: int | None = None
    threads: int | None = None
    memory_limit: int | None = None
    scheduler: str | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None


@dataclass(frozen=True)
class Rows:
    """A selection of rows: one side of the split, or a range.

    Examples
    --------
    >>> Rows.parse("train"), Rows.parse("10:20")
    (Rows(split='train', start=None, stop=None), Rows(split=None, start=10, stop=20))
    """

    split: str | None = None
    start: int | None = None
    stop: int | None = None

    @classmethod
    def parse(cls, text: str) -> Rows:
        """``train``, ``test`` or ``A:B``."""
        if text in ("train", "test"):
            return cls(split=text)
        match = re.fullmatch(r"(\d*):(\d*)", text)
        if not match:
            raise JobError(f"rows are {text!r}", "give train, test or a range A:B")
        start, stop = (int(part) if part else None for part in match.groups())
        if start is not None and stop is not None and start >= stop:
            raise JobError(f"rows are {text!r}, an empty range", "give A:B with A below B")
        return cls(start=start, stop=stop)


@dataclass(frozen=True)
class Stage:
    """One command of a job.

    Parameters
    ----------
    name : str
        How later stages call it.
    command : str
        One of `COMMANDS`.
    store : str
        A path, or the name of an earlier stage.
    what : str
        The kind of features, kernel or model; a path or an earlier stage where a fitted one is meant.
    out : str or None
        Where the output goes; None leaves no output (`evaluate`) or is filled in by the job.
    rows : str or None
        See `Rows`.
    set : dict
        Parameters of what is made.
    """

    name: str
    command: str
    store: str
    what: str
    out: str | None = None
    rows: str | None = None
    set: dict[str, Any] = field(default_factory=dict)

    def words(self) -> dict[str, Any]:
        """The stage under the names of the command line, for the manifest."""
        words: dict[str, Any] = {
            "command": self.command,
            "store": self.store,
            COMMANDS[self.command]: self.what,
            "out": self.out,
            "rows": self.rows,
            "set": dict(self.set),
        }
        return {name: value for name, value in words.items() if value not in (None, {})}


@dataclass(frozen=True)
class Job:
    """Named stages in order, and where they run.

    Parameters
    ----------
    path : str or None
        The run directory; None keeps no record (`evaluate` without an output).
    stages : tuple of Stage
    cluster : Cluster
    max_memory : int or None
        Bytes for the driver and all workers together.
    """

    path: str | None
    stages: tuple[Stage, ...]
    cluster: Cluster = field(default_factory=Cluster)
    max_memory: int | None = None

    def stage(self, name: str) -> Stage | None:
        """The stage of this name."""
        return next((stage for stage in self.stages if stage.name == name), None)


def json_text(facts: Any) -> str:
    """JSON for people and programs; what is not a number there, such as R2 without a variance, is null.

    Examples
    --------
    >>> print(json_text({"r2": float("nan")}))
    {
      "r2": null
    }
    """

    def clean(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: clean(entry) for name, entry in value.items()}
        if isinstance(value, (list, tuple)):
            return [clean(entry) for entry in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(clean(facts), indent=2, allow_nan=False)


def parse_size(text: Any, name: str) -> int:
    """Bytes from a number or from text with a unit.

    Examples
    --------
    >>> parse_size("700MiB", "memory_limit")
    734003200
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(text))
    unit = {key.lower(): value for key, value in UNITS.items()}
    if isinstance(text, bool) or not match or match[2].lower() not in unit or float(match[1]) <= 0:
        raise JobError(f"{name} is {text!r}", "give a size such as 700MiB or 2GiB")
    return int(float(match[1]) * unit[match[2].lower()])


def parse_value(text: str) -> Any:
    """A value as TOML writes it, else the text itself; ``none`` is None.

    Examples
    --------
    >>> [parse_value(text) for text in ("0.5", "[1, 2]", "true", "none", "sign")]
    [0.5, [1, 2], True, None, 'sign']
    """
    if text.lower() == "none":
        return None
    try:
        found = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return found["value"] if list(found) == ["value"] else text


def parse_settings(texts: Iterable[str]) -> dict[str, Any]:
    """``NAME=VALUE`` pairs as a dictionary."""
    settings: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise JobError(f"--set has {text!r}", "give NAME=VALUE, for example --set n_projections=4096")
        if name in settings:
            raise JobError(f"--set has {name} twice", "give each parameter once")
        settings[name] = parse_value(value)
    return settings


@contextmanager
def wrong_words(names: Iterable[str]) -> Iterator[None]:
    """What a check within says of a parameter of one of these names: the words of the call are wrong."""
    try:
        yield
    except (InputError, InputTypeError) as error:
        if isinstance(error, JobError) or error.cause.partition(" ")[0] not in names:
            raise
        raise JobError(error.cause, error.remedy) from error


def command_job(stage: Stage, *, cluster: Cluster, max_memory: int | None = None) -> Job:
    """The job of one command; its run directory stands beside its output."""
    path = None if stage.out is None else stage.out.rstrip("/") + ".run"
    _check_cluster(cluster)
    return Job(path=path, stages=(_checked(stage),), cluster=cluster, max_memory=max_memory)


def read_job(path: str | Path, *, cluster: Cluster | None = None, max_memory: int | None = None) -> Job:
    """A job from a TOML file; all paths in it are relative to the file.

    Raises
    ------
    JobError
        One line that names the stage and the key.
    """
    file = Path(path)
    try:
        with file.open("rb") as stream:
            words = tomllib.load(stream)
    except OSError as error:
        raise JobError(f"{file} cannot be read, {error.strerror}", "give the path of a job file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise JobError(f"{file} is not TOML, {_one_line(error)}", "correct the file at that place") from None
    job = parse_job(words, base=file.parent)
    where = merge_clusters(job.cluster, cluster)
    _check_cluster(where)
    return replace(
        job,
        cluster=where,
        max_memory=job.max_memory if max_memory is None else max_memory,
    )


def merge_clusters(job: Cluster, call: Cluster | None) -> Cluster:
    """What the call says takes the place of what the job says; a scheduler that of a local cluster."""
    given = {name: value for name, value in asdict(call or Cluster()).items() if value is not None}
    if "scheduler" in given:
        return Cluster(**given)
    if {"workers", "threads", "memory_limit"} & set(given):
        job = replace(job, scheduler=None, tls_ca=None, tls_cert=None, tls_key=None)
    return replace(job, **given)


def _check_cluster(where: Cluster) -> None:
    """A scheduler's address has a host and a port, and certificates are for one of ``tls://``."""
    if where.scheduler is not None and not re.fullmatch(r"(\w+://)?[^/\s]+:\d+/?", where.scheduler):
        raise JobError(f"scheduler is {where.scheduler!r}", "give an address such as tcp://host:8786")
    given = {name: getattr(where, name) for name in ("tls_ca", "tls_cert", "tls_key")}
    lacking = [f"--{name.replace('_', '-')}" for name, value in given.items() if value is None]
    if 0 < len(lacking) < len(given):
        raise JobError(
            f"{' and '.join(lacking)} not given", "give --tls-ca, --tls-cert and --tls-key together"
        )
    for name, value in given.items():
        if value is not None and not (where.scheduler or "").startswith("tls://"):
            place = "no scheduler" if where.scheduler is None else f"the scheduler {where.scheduler}"
            raise JobError(
                f"{name.replace('_', '-')} is {value} with {place}",
                "give the scheduler's tls:// address, or leave the certificates out",
            )


def parse_job(words: Mapping[str, Any], *, base: Path) -> Job:
    """A job from the dictionary of a TOML file."""
    _known(words, ("path", "max_memory", "cluster", "stages"), "the job")
    root = _resolve(_text(words, "path", "the job"), base)
    stages = words.get("stages")
    if not isinstance(stages, Mapping) or not stages:
        raise JobError("the job has no stages", "add a table [stages.NAME] with a command")
    done: dict[str, Stage] = {}
    for name, table in stages.items():
        done[name] = _parse_stage(name, table, set(stages), done, root, base)
    limit = words.get("max_memory")
    return Job(
        path=root,
        stages=tuple(done.values()),
        cluster=_parse_cluster(words.get("cluster", {}), base),
        max_memory=None if limit is None else parse_size(limit, "max_memory"),
    )


def _parse_cluster(table: Any, base: Path) -> Cluster:
    place = "[cluster]"
    if not isinstance(table, Mapping):
        raise JobError(f"cluster is {table!r}", "write it as a table [cluster]")
    _known(table, tuple(asdict(Cluster())), place)
    words = dict(table)
    for name in ("workers", "threads"):
        if name in words and (type(words[name]) is not int or words[name] < (name == "threads")):
            raise JobError(f"{place} has {name} = {words[name]!r}", "give a whole number")
    for name in ("scheduler", "tls_ca", "tls_cert", "tls_key"):
        if name in words and not isinstance(words[name], str):
            raise JobError(f"{place} has {name} = {words[name]!r}", "give text in quotes")
        if name in words and name != "scheduler":
            words[name] = _resolve(words[name], base)
    if "memory_limit" in words:
        words["memory_limit"] = parse_size(words["memory_limit"], f"{place} memory_limit")
    return Cluster(**words)


def _parse_stage(
    name: str, table: Any, names: set[str], done: dict[str, Stage], root: str, base: Path
) -> Stage:
    place = f"stage {name}"
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise JobError(f"{place} has a name that cannot be a file's", "use letters, digits, - and _")
    if not isinstance(table, Mapping):
        raise JobError(f"{place} is {table!r}", f"write it as a table [stages.{name}]")
    command = _text(table, "command", place)
    if command not in COMMANDS:
        raise JobError(f"{place} has command = {command!r}", f"give one of {', '.join(COMMANDS)}")
    kind = COMMANDS[command]
    _known(table, ("command", "store", kind, "out", "rows", "set"), place)

    def path_of(key: str, value: str) -> str:
        if value in names and value not in done:
            raise JobError(f"{place} has {key} = {value!r}, a stage that comes later", "put that stage first")
        return value if value in done else _resolve(value, base)

    what = _text(table, kind, place)
    if command in WITHOUT_PARAMETERS or (command == "featurize" and ("/" in what or what.endswith(".zarr"))):
        what = path_of(kind, what)  # elsewhere it is a word
    suffix = "json" if command == "evaluate" else "zarr"
    out = _text(table, "out", place) if "out" in table else None
    stage = Stage(
        name=name,
        command=command,
        store=path_of("store", _text(table, "store", place)),
        what=what,
        out=f"{root}/{name}.{suffix}" if out is None else _resolve(out, base),
        rows=_text(table, "rows", place) if "rows" in table else None,
        set=_settings(table.get("set", {}), place),
    )
    _check_out(stage, done, root, place)
    return _checked(stage, place)


def _check_out(stage: Stage, done: Mapping[str, Stage], root: str, place: str) -> None:
    """Refuse an output within, around or in place of another one, or of the records of the run."""
    out = str(stage.out)
    for other in done.values():
        if _around(str(other.out), out) and _around(out, str(other.out)):
            raise JobError(
                f"{place} has the output of stage {other.name}", "give each stage an out of its own"
            )
        if _around(str(other.out), out) or _around(out, str(other.out)):
            raise JobError(
                f"{place} has out = {out!r}, one of it and the output of stage {other.name} within the other",
                "give each stage an out of its own",
            )
    kept = [f"{root}/{name}" for name in ("journal", "sums", "manifest", "lock")]
    if _around(out, root) or any(_around(record, out) for record in kept):
        raise JobError(
            f"{place} has out = {out!r}, where the run directory keeps its records", "give another out"
        )


def _around(folder: str, path: str) -> bool:
    """Whether a path is a folder or lies within it."""
    if "://" in folder or "://" in path:
        return path == folder or path.startswith(folder.rstrip("/") + "/")
    folder, path = os.path.realpath(folder), os.path.realpath(path)
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _checked(stage: Stage, place: str = "the call") -> Stage:
    if stage.rows is not None:
        try:
            Rows.parse(stage.rows)
        except JobError as error:
            raise JobError(f"{place}: {error.cause}", error.remedy) from None
    if stage.command == "evaluate" and "://" in (stage.out or ""):
        raise JobError(f"{place} has out = {stage.out!r}, a URL", "give the path of a file for the scores")
    if stage.set and stage.command in WITHOUT_PARAMETERS:
        raise JobError(
            f"{place} sets {', '.join(stage.set)} of a fitted model", f"set it where {stage.what} is fitted"
        )
    return stage


def _settings(table: Any, place: str) -> dict[str, Any]:
    if not isinstance(table, Mapping):
        raise JobError(f"{place} has set = {table!r}", "write it as set = { NAME = VALUE }")
    return {
        name: None if isinstance(value, str) and value.lower() == "none" else value
        for name, value in table.items()
    }


def _known(table: Mapping[str, Any], allowed: tuple[str, ...], place: str) -> None:
    unknown = next((key for key in table if key not in allowed), None)
    if unknown is not None:
        raise JobError(f"{place} has the key {unknown!r}", f"use {', '.join(allowed)}")


def _text(table: Mapping[str, Any], key: str, place: str) -> str:
    value = table.get(key)
    if value is None:
        raise JobError(f"{place} has no {key}", f"add {key} = ...")
    if not isinstance(value, str) or not value:
        raise JobError(f"{place} has {key} = {value!r}", "give text in quotes")
    return value


def _resolve(path: str, base: Path) -> str:
    """Relative to the job file; absolute paths and URLs as they are."""
    return path if "://" in path else str(base / path)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
