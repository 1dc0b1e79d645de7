"""What a command shows: results on stdout, as tables or as JSON; progress and remarks on stderr."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from gramian.blocks import duration_text, size_text
from gramian.job import Job, json_text

if TYPE_CHECKING:  # what computes is imported where it is used: help and health checks answer at once
    from gramian import pipeline

WIDEST = 1000  # columns of a table where no terminal ends its lines
SECONDS_BETWEEN_LINES = 10.0  # of progress where no terminal shows bars

stderr = Console(stderr=True, highlight=False)
stdout = Console(highlight=False, soft_wrap=True)


class Display:
    """A `pipeline.Watch` that shows progress on stderr: bars on a terminal, else a line now and then."""

    def __init__(self, *, quiet: bool) -> None:
        self.quiet = quiet
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._began: dict[str, float] = {}
        self._shown = 0.0

    @contextmanager
    def open(self) -> Iterator[Display]:
        """Bars live within this block."""
        if self.quiet or not stderr.is_terminal:
            yield self
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(compact=True),
        )
        with Progress(*columns, console=stderr) as self._bars:
            yield self

    def say(self, text: str) -> None:
        """One line."""
        if not self.quiet:
            stderr.print(escape(text), soft_wrap=True)

    def progress(self, name: str, done: int, total: int) -> None:
        now = time.monotonic()
        began = self._began.setdefault(name, now)
        rate = f"{done / (now - began):.1f} blocks/s" if now > began and done else ""
        if self._bars is not None:
            if name not in self._tasks:
                self._tasks[name] = self._bars.add_task(escape(name), total=total, rate="")
            self._bars.update(self._tasks[name], completed=done, total=total, rate=rate)
        elif done < total and now - max(self._shown, began) > SECONDS_BETWEEN_LINES:
            self._shown = now
            left = (now - began) / done * (total - done) if done else 0.0
            self.say(f"{name}: {done:,}/{total:,} blocks, {rate or 'no rate yet'}, {left:.0f} s left")


def print_json(facts: Any) -> None:
    """The result of a command, for programs."""
    print(json_text(facts))


def print_plan(found: pipeline.Outline, as_json: bool) -> None:
    """A plan: its steps, and what it needs in all."""
    steps, facts = found.plan.rows(), found.facts()
    if as_json:
        print_json({"steps": steps, **facts})
        return
    print_rows(steps)
    workers = (
        f"{facts['workers']} workers of {size_text(facts['worker_bytes'])}"
        if facts["workers"]
        else "no workers"
    )
    print(
        f"{facts['tasks']:,} tasks, {size_text(facts['read_bytes'])} read, "
        f"{size_text(facts['written_bytes'])} written in {facts['files']:,} files\n"
        f"peak memory {size_text(facts['total_bytes'])}: "
        f"{size_text(facts['driver_bytes'])} in the driver, {workers}"
    )
    if facts["seconds"]:
        time = duration_text(facts["seconds"])
        print(f"about {time} of computing with AVX-512, two to five times that without")


def print_outcome(outcome: pipeline.Outcome, job: Job, display: Display, as_json: bool) -> None:
    """What a job made, and where its run is."""
    if as_json:
        print_json(
            {
                "run": outcome.root,
                "planned_bytes": outcome.planned,
                "measured_bytes": outcome.measured,
                "stages": outcome.records,
            }
        )
    else:
        for record in outcome.records:
            _print_results(record, job, display)
    if outcome.measured:
        display.say(f"peak memory {size_text(outcome.measured)}, planned {size_text(outcome.planned)}")
    if outcome.root and not outcome.computed:
        display.say(f"{outcome.root} was complete: every recorded block is as it was written")
    elif outcome.root:
        display.say(f"run directory {outcome.root}; see it with: gramian report {shlex.quote(outcome.root)}")


def _print_results(record: dict[str, Any], job: Job, display: Display) -> None:
    """Scores on stdout, they are what was asked for; a summary of anything else on stderr."""
    shape = record.get("shape", ())
    results = [f"{shape[0]:,} rows" if len(shape) == 1 else " x ".join(f"{size:,}" for size in shape)]
    results = results if shape else []
    results += named_values({**record.get("choices", {}), **record.get("results", {})})
    prefix = f"{record['stage']} " if len(job.stages) > 1 else ""
    stage = job.stage(record["stage"])
    if record["command"] == "evaluate":
        print("\n".join(prefix + line for line in results))
    else:
        took = f"{record['seconds']:.1f} s"
        display.say(f"{prefix}{'' if stage is None else stage.out}: {', '.join([*results, took])}")


def named_values(facts: dict[str, Any]) -> list[str]:
    """Each name before its value: whole numbers in groups of three digits, others to six digits."""
    formats = {int: ",", float: ".6g"}
    return [f"{name} {format(value, formats.get(type(value), ''))}" for name, value in facts.items()]


def print_rows(rows: list[dict[str, str]]) -> None:
    """A table with the names of the first row as its head; nothing where there are no rows."""
    if rows:
        print_table({"title": "", "columns": list(rows[0]), "rows": [list(row.values()) for row in rows]})


def print_table(facts: dict[str, Any]) -> None:
    """A title, columns and rows; numbers to three decimals."""
    table = Table(title=facts["title"] or None, title_justify="left", box=None, pad_edge=False)
    for place, column in enumerate(facts["columns"]):
        table.add_column(column, justify="left" if place == 0 else "right", overflow="fold")
    for row in facts["rows"]:
        table.add_row(*(escape(f"{value:.3f}" if isinstance(value, float) else str(value)) for value in row))
    (stdout if stdout.is_terminal else Console(width=WIDEST)).print(table, soft_wrap=False)
