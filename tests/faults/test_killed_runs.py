"""A run that is killed with all of its workers goes on where its records end, to the same bytes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gramian as gm
from gramian import pipeline
from gramian.store.run import Run, unseal

# The command line as it is, with smaller blocks: a small job then has as many of them as a large one.
PROGRAM = """
import sys
from gramian import blocks
blocks.TARGET = int(sys.argv.pop(1))
from gramian.cli import main
main()
"""
RUNNING = 240.0  # seconds that a run may take on a loaded machine


@dataclass(frozen=True)
class Task:
    """A command, and how the names of the arrays begin in which its blocks are recorded."""

    words: tuple[str, ...]
    name: str
    target: int  # bytes of a block
    rows: Callable[[bool], int]  # more of them in the slow tests


TASKS = {
    "featurize": Task(
        ("--features", "periodic", "--set", "n_projections=2048", "--set", "omega=0.5"),
        "featurize/features",
        1 << 20,
        lambda slow: 6000 if slow else 1600,
    ),
    "fit": Task(
        ("--model", "pchar", "--set", "solver=nystroem", "--set", "n_landmarks=128", "--set", "n_knots=128"),
        "fit/sums/gram",
        1 << 18,
        lambda slow: 40_000 if slow else 12_000,
    ),
    "nca": Task(
        ("--model", "nca", "--set", "n_components=3", "--set", "init=pca", "--set", "max_iter=12"),
        "fit/sums/evaluation-",
        1 << 18,
        lambda slow: 20_000 if slow else 5_000,
    ),
}


Place = tuple[Any, ...]  # name of an array, and index of a block in it


class Case:
    """One command on data of its own, begun as often as needed; what an uninterrupted run has made."""

    def __init__(self, command: str, slow: bool, folder: Path) -> None:
        self.command, self.task, self.folder = command, TASKS[command], folder
        self.word = "featurize" if command == "featurize" else "fit"
        draw = np.random.default_rng(0)
        rows = self.task.rows(slow)
        if command == "featurize":
            self.source = {"subspaces": np.linalg.qr(draw.normal(size=(rows, 48, 4))).Q}
        else:
            X = draw.normal(size=(rows, 4))
            y = X[:, 0] * X[:, 1] + draw.normal(size=rows)
            self.source = {"covariates": X, **({"labels": y > 0} if command == "nca" else {"target": y})}
        gm.ingest(self.source, folder / "data.zarr")
        self.finish("whole.zarr", workers=0)  # the same bytes without a cluster
        self.whole = contents(folder / "whole.zarr")
        self.total = len(self.recorded("whole.zarr"))

    def start(self, out: str, *more: str, workers: int = 2) -> subprocess.Popen[str]:
        words = [self.word, "data.zarr", *self.task.words, "--set", "random_state=0", "--out", out]
        where = ["--workers", str(workers), "--threads", "1"]
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(self.task.target), *words, *where, *more],
            cwd=self.folder,
            start_new_session=True,  # a group of its own: driver, nannies and workers
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def finish(self, out: str, *more: str, workers: int = 2) -> str:
        process = self.start(out, *more, workers=workers)
        try:
            text, _ = process.communicate(timeout=RUNNING)
        finally:
            kill(process)
        assert process.returncode == 0, text
        return text

    def killed(self, out: str, moment: random.Random) -> dict[Place, int]:
        """Kill everything when a random part of the blocks is recorded; the records that are left."""
        part, wait = moment.uniform(0, 0.6), moment.uniform(0, 0.3)
        process = self.start(out)
        try:
            until(lambda: len(self.recorded(out)) > part * self.total or process.poll() is not None)
            time.sleep(wait)
            assert process.poll() is None, (
                f"it ended before it was killed: {process.stdout and process.stdout.read()}"
            )
        finally:
            kill(process)
        return self.recorded(out)

    def recorded(self, out: str) -> dict[Place, int]:
        root = self.folder / f"{out}.run"
        if not (root / "manifest").exists():
            return {}
        done = Run.open(root, None).done
        names = [name for name in done if name.startswith(self.task.name)]
        return {(name, *index): crc for name in names for index, crc in done[name].items()}

    def path_of(self, out: str, place: Place) -> Path:
        """The file of a block."""
        name, *index = place
        inner = name.partition("/")[2]
        if inner.startswith("sums/"):
            folder = self.folder / f"{out}.run" / "sums" / name.replace("/", "+")
        else:
            folder = self.folder / out / inner
        return folder.joinpath("c", *map(str, index))

    def verify(self, out: str) -> list[str]:
        return [f"{bad.label} {bad.key} {bad.state}" for bad in pipeline.verify(self.folder / out)]


def contents(root: Path) -> dict[str, bytes]:
    """Every file of a store."""
    return {str(file.relative_to(root)): file.read_bytes() for file in root.rglob("*") if file.is_file()}


def records_since(run: Path, segment: int, start: str) -> list[Place]:
    """The blocks of arrays whose names so begin that were recorded in the journal from a segment on."""
    entries = [unseal(file.read_bytes()) for file in sorted((run / "journal").glob("[0-9]*"))[segment:]]
    return [
        (name, *index)
        for entry in entries
        if entry
        for name, blocks in entry.get("blocks", {}).items()
        if name.startswith(start)
        for *index, _ in blocks
    ]


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + RUNNING
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def kill(process: subprocess.Popen[str]) -> None:
    """The whole group, as if the power had failed."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.fixture(scope="module", params=TASKS)
def case(request, tmp_path_factory) -> Case:
    return Case(request.param, False, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module", params=TASKS)
def large(request, tmp_path_factory) -> Iterator[Case]:
    return Case(request.param, True, tmp_path_factory.mktemp(f"large-{request.param}"))


def check_killed(case: Case, seed: int) -> None:
    out = f"killed-{seed}.zarr"
    run = case.folder / f"{out}.run"
    kept = case.killed(out, random.Random(f"{case.command} {seed}"))
    segments = len(list((run / "journal").glob("[0-9]*")))
    ages = {index: case.path_of(out, index).stat().st_mtime_ns for index in kept}
    case.finish(out, "--resume")
    assert contents(case.folder / out) == case.whole
    again = records_since(run, segments, case.task.name)
    assert sorted([*kept, *again]) == sorted(case.recorded("whole.zarr"))  # each block once, in one of them
    assert {index: case.path_of(out, index).stat().st_mtime_ns for index in kept} == ages
    assert case.recorded(out) == case.recorded("whole.zarr")
    assert case.verify(out) == []


@pytest.mark.parametrize("seed", range(2))
def test_a_killed_run_goes_on_to_the_same_bytes(case, seed):
    check_killed(case, seed)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(5))
def test_a_large_killed_run_goes_on_to_the_same_bytes(large, seed):
    check_killed(large, seed)


def test_damage_is_named_and_mended_block_by_block(case):
    """One flipped byte and one deleted chunk: `verify` names these two, `--resume` mends these two."""
    out = "whole.zarr"
    flipped, deleted = random.Random(0).sample(sorted(case.recorded(out)), 2)
    path = case.path_of(out, flipped)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    case.path_of(out, deleted).unlink()
    damaged = {
        f"{name.partition('/')[2]} c/{'/'.join(map(str, index))}" for name, *index in (flipped, deleted)
    }
    lines = [line.rpartition(" ") for line in case.verify(out)]
    assert {place for place, _, _ in lines} == damaged
    assert sorted(state for _, _, state in lines) == ["damaged", "missing"]
    run = case.folder / f"{out}.run"
    segments = len(list((run / "journal").glob("[0-9]*")))
    case.finish(out, "--resume", workers=0)
    assert sorted(records_since(run, segments, case.task.name)) == sorted([flipped, deleted])
    assert case.verify(out) == []
    assert contents(case.folder / out) == case.whole
