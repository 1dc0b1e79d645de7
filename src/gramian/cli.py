"""The command line: options, commands, exit codes; no arithmetic.

Exit codes: 0 done, 1 the job or the check failed, 2 the words of the call are wrong, 130 interrupted.
"""

from __future__ import annotations

import errno
import inspect
import os
import shlex
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from rich.markup import escape

from gramian import __version__
from gramian.console import (
    Display,
    named_values,
    print_json,
    print_outcome,
    print_plan,
    print_rows,
    print_table,
    stderr,
)
from gramian.errors import GramianError, GramianWarning, StoreError
from gramian.job import (
    COMMANDS,
    Cluster,
    Job,
    JobError,
    Stage,
    command_job,
    parse_settings,
    parse_size,
    read_job,
    wrong_words,
)
from gramian.kinds import FEATURES, MODELS, Kind, parameter_lines

DONE, FAILED, WRONG_WORDS, INTERRUPTED = 0, 1, 2, 130

UsageError: Any = typer.BadParameter.__base__  # whichever click typer brings along

app = typer.Typer(
    name="gramian",
    help="Kernel learning on data larger than memory: subspaces and covariates, in Zarr, on a Dask cluster.",
    epilog="Start with `gramian demo`. Each command explains itself: `gramian featurize --help`.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


# ---------------------------------------------------------------- options

WHERE, LIMITS, RUN, SHOW = "Where it runs", "Plan", "The run", "What is shown"


def _option(text: str, panel: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, **more)


Rows = Annotated[
    str | None,
    _option("Use some rows only: train, test (by the split) or A:B.", "Data", metavar="train|test|A:B"),
]
Settings = Annotated[
    list[str] | None,
    _option(
        "A parameter of what is made, as in TOML; none for None. Repeat as needed. "
        "An unknown name is answered with the known ones.",
        "Data",
        "--set",
        metavar="NAME=VALUE",
    ),
]
Json = Annotated[bool, _option("Print the result as JSON on stdout.", SHOW, "--json")]
Debug = Annotated[bool, _option("Show the traceback of an error.", SHOW, "--debug")]
Out = Annotated[
    str,
    _option(
        "Where the output goes; its run directory is this path with .run appended.",
        "Data",
        "--out",
        metavar="PATH",
    ),
]


@dataclass(frozen=True)
class Options:
    """The options of every command that computes."""

    workers: Annotated[
        int | None,
        _option(
            "Processes of a local cluster; 0: threads of this process. Default: one a core.", WHERE, min=0
        ),
    ] = None
    threads: Annotated[int | None, _option("Threads of each worker.", WHERE, min=1)] = None
    memory_limit: Annotated[
        str | None, _option("Memory of each worker, such as 700MiB.", WHERE, metavar="SIZE")
    ] = None
    scheduler: Annotated[
        str | None,
        _option("Address of a running scheduler, such as tcp://host:8786.", WHERE, metavar="ADDRESS"),
    ] = None
    tls_ca: Annotated[
        str | None, _option("Certificate of the authority, for tls:// addresses.", WHERE, metavar="FILE")
    ] = None
    tls_cert: Annotated[str | None, _option("This client's certificate.", WHERE, metavar="FILE")] = None
    tls_key: Annotated[str | None, _option("This client's key.", WHERE, metavar="FILE")] = None
    max_memory: Annotated[
        str | None,
        _option("Refuse a plan that needs more, driver and workers together.", LIMITS, metavar="SIZE"),
    ] = None
    plan: Annotated[bool, _option("Print the plan and stop: nothing is submitted.", LIMITS, "--plan")] = False
    resume: Annotated[
        bool,
        _option(
            "Continue the run: check what is recorded, compute what is missing or damaged.", RUN, "--resume"
        ),
    ] = False
    takeover: Annotated[
        bool, _option("With --resume: the process that left the run open is dead.", RUN, "--takeover")
    ] = False
    allow_mixed: Annotated[
        bool, _option("With --resume: accept other versions or another processor.", RUN, "--allow-mixed")
    ] = False
    force: Annotated[bool, _option("Replace an existing output and its run.", RUN, "--force")] = False
    progress: Annotated[bool, _option("Show progress, or be quiet.", SHOW, "--progress/--quiet")] = True
    json: Json = False
    debug: Debug = False

    def cluster(self) -> Cluster:
        """Where the blocks are computed, as far as the call says."""
        limit = None if self.memory_limit is None else parse_size(self.memory_limit, "--memory-limit")
        return Cluster(
            self.workers, self.threads, limit, self.scheduler, self.tls_ca, self.tls_cert, self.tls_key
        )

    def limit(self) -> int | None:
        """The plan's limit in bytes."""
        return None if self.max_memory is None else parse_size(self.max_memory, "--max-memory")


def computes(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of every command that computes; it receives them as one `Options`."""
    hints = get_type_hints(Options, include_extras=True)
    shared = [
        inspect.Parameter(
            item.name, inspect.Parameter.KEYWORD_ONLY, default=item.default, annotation=hints[item.name]
        )
        for item in fields(Options)
    ]

    def called(**words: Any) -> None:
        options = Options(**{item.name: words.pop(item.name) for item in fields(Options)})
        command(**words, options=options)

    own_hints = get_type_hints(command, include_extras=True)
    own = [
        parameter.replace(annotation=own_hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(command).parameters.items()
        if name != "options"
    ]
    called.__name__, called.__doc__ = command.__name__, command.__doc__
    called.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in [*own, *shared]}
    return called


# ---------------------------------------------------------------- jobs


def _execute(job: Job, options: Options) -> None:
    from gramian import pipeline

    if options.plan:
        found = pipeline.outline(job)
        print_plan(found, options.json)
        found.check()
        return
    display = Display(quiet=not options.progress)
    with display.open():
        outcome = pipeline.run(
            job,
            resume=options.resume,
            takeover=options.takeover,
            allow_mixed=options.allow_mixed,
            force=options.force,
            watch=display,
        )
    print_outcome(outcome, job, display, options.json)


def _run_stage(options: Options, **words: Any) -> None:
    settings = parse_settings(words.pop("settings", None) or ())
    stage = Stage(name=words["command"], set=settings, **words)
    _execute(command_job(stage, cluster=options.cluster(), max_memory=options.limit()), options)


# ---------------------------------------------------------------- commands

MAKE, USE, LOOK = "Make", "Use and test", "Look and check"


def _settable(table: Mapping[str, Kind]) -> str:
    """What `--set` takes, as the end of a help."""
    return "\n".join(["What `--set` takes, by KIND:\n", *(f"- {line}" for line in parameter_lines(table))])


Store = Annotated[str, typer.Argument(help="A data set or a store of features.", metavar="STORE")]
Fitted = Annotated[str, typer.Argument(help="A model made by `gramian fit`.", metavar="MODEL")]


@app.callback(invoke_without_command=True)
def _main(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        print(f"gramian {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


@app.command(rich_help_panel=MAKE)
def demo(
    out: Annotated[Path, _option("The run directory.", "Data", "--out", metavar="DIR")] = Path("runs/demo"),
    scheduler: Annotated[
        str | None,
        _option(
            "Address of a running scheduler; it must see the run directory.",
            WHERE,
            "--scheduler",
            metavar="ADDRESS",
        ),
    ] = None,
    progress: Annotated[bool, _option("Show progress, or be quiet.", SHOW, "--progress/--quiet")] = True,
    debug: Debug = False,
) -> None:
    """Run the main job on real data that scikit-learn ships, with a report at the end: under two minutes.

    gramian demo

    Digits as subspaces: random features beside the exact kernel. Diabetes: HAL regression beside ridge.
    Run it again: it resumes, or says that it is complete.
    """
    del debug
    from gramian.demo import run_demo

    display = Display(quiet=not progress)
    with display.open():
        result = run_demo(out, scheduler=scheduler, watch=display)
    for rows in result.tables:
        print_table(rows)
    print(f"report: {result.page}")
    display.say(result.advice)


@app.command(rich_help_panel=MAKE)
def ingest(
    source: Annotated[
        str,
        typer.Argument(
            help="npy, npz, CSV (a file or a glob), Parquet, a folder of images, Zarr.", metavar="SOURCE"
        ),
    ],
    dest: Annotated[str, typer.Argument(help="The data set to make.", metavar="DEST")],
    subspaces: Annotated[
        bool, _option("Turn each group of rows or images into one subspace.", "Subspaces", "--subspaces")
    ] = False,
    rank: Annotated[
        int | None, _option("Dimension of each subspace.", "Subspaces", "--rank", metavar="K", min=1)
    ] = None,
    energy: Annotated[
        float | None,
        _option("Or: as many dimensions as hold this part of the energy.", "Subspaces", "--energy"),
    ] = None,
    group_by: Annotated[
        str | None,
        _option(
            "What makes a group: a folder level, a pattern or a column.",
            "Subspaces",
            "--group-by",
            metavar="LEVEL|PATTERN|COL",
        ),
    ] = None,
    center: Annotated[
        bool, _option("Subtract the mean of each group first.", "Subspaces", "--center")
    ] = False,
    on_deficient: Annotated[
        str,
        _option(
            "A group of lower rank is an error, or is dropped and counted.",
            "Subspaces",
            "--on-deficient",
            metavar="error|drop",
        ),
    ] = "error",
    labels: Annotated[
        str | None,
        _option(
            "Where the classes are: a folder level or a column.", "Data", "--labels", metavar="LEVEL|COL"
        ),
    ] = None,
    target: Annotated[
        str | None, _option("The column to predict.", "Data", "--target", metavar="COL")
    ] = None,
    drop: Annotated[
        list[str] | None,
        _option("A column to leave out, such as an id. Repeat as needed.", "Data", "--drop", metavar="COL"),
    ] = None,
    split: Annotated[
        float | None,
        _option(
            "Part of the rows for testing; groups stay whole.",
            "Data",
            "--split",
            metavar="FRACTION",
        ),
    ] = None,
    random_state: Annotated[int, _option("Seed of the split.", "Data", "--random-state")] = 0,
    gray: Annotated[
        bool | None, _option("Read images as gray or in colour.", "Images", "--gray/--color")
    ] = None,
    size: Annotated[
        str | None, _option("Scale images to this size.", "Images", "--size", metavar="HxW")
    ] = None,
    force: Annotated[bool, _option("Replace an existing data set.", RUN, "--force")] = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Bring data into a store: subspaces or covariates, with targets, classes, groups and a split.

    gramian ingest "data/part-*.csv" houses.zarr --target price --drop id --split 0.2

    gramian ingest photos/ objects.zarr --rank 10 --group-by 2 --labels 1 --gray --size 32x32 --split 0.2

    Columns without a role are covariates: --drop leaves ids, dates and text out. Level 1 is the first folder
    below SOURCE: of photos/cat/felix/1.png the class is cat and the group felix. Images are always turned
    into subspaces.
    """
    del debug
    from gramian.ingest import ingest as bring_in

    display = Display(quiet=json)
    options = (
        "split",
        "energy",
        "rank",
        "size",
        "on_deficient",
        "random_state",
        "group_by",
        "labels",
        "drop",
    )
    with display.open(), wrong_words(options):
        data = bring_in(
            source,
            dest,
            subspaces=subspaces,
            rank=rank,
            energy=energy,
            group_by=_level(group_by),
            labels=_level(labels),
            target=target,
            drop=drop or (),
            gray=gray,
            size=size,
            center=center,
            on_deficient=on_deficient,
            split=split,
            random_state=random_state,
            force=force,
            on_progress=lambda seen: display.progress(seen.name, seen.done, seen.total),
        )
    if json:
        print_json({"store": dest, "kind": data.kind, "rows": data.rows, "arrays": list(data.arrays)})
    else:
        stderr.print(escape(repr(data)), soft_wrap=True)


def _level(text: str | None) -> int | str | None:
    """A number counts folders; anything else is a pattern or a column."""
    return int(text) if text is not None and text.isdecimal() else text


@app.command(rich_help_panel=MAKE, epilog=_settable(FEATURES))
@computes
def featurize(
    store: Store,
    features: Annotated[
        str,
        _option(
            "periodic, sign, linear, hal, nca; or a store of features or a model, whose map is used again.",
            "Data",
            "--features",
            metavar="KIND|PATH",
        ),
    ],
    out: Out,
    rows: Rows = None,
    settings: Settings = None,
    *,
    options: Options,
) -> None:
    """Make features: random ones of subspaces; components of the HAL kernel; a map that gathers classes.

    gramian featurize objects.zarr --features periodic --set n_projections=4096 --out features.zarr

    The inner products of the features estimate the kernel. The fitted map is kept with them, so that a
    model made of them predicts on a raw data set. sign features are packed, one bit each, unless
    --set packed=false.
    """
    _run_stage(
        options, command="featurize", store=store, what=features, out=out, rows=rows, settings=settings
    )


@app.command(rich_help_panel=MAKE)
@computes
def gram(
    store: Store,
    kernel: Annotated[
        str,
        _option("hal, projection, periodic, projection-rbf, hamming.", "Data", "--kernel", metavar="KIND"),
    ],
    out: Out,
    rows: Rows = None,
    settings: Settings = None,
    *,
    options: Options,
) -> None:
    """Compute a Gram matrix tile by tile; it is never held in memory.

    gramian gram objects.zarr --kernel periodic --set omega=0.3 --out gram.zarr
    """
    _run_stage(options, command="gram", store=store, what=kernel, out=out, rows=rows, settings=settings)


@app.command(rich_help_panel=MAKE, epilog=_settable(MODELS))
@computes
def fit(
    store: Store,
    model: Annotated[
        str,
        _option("pchar, pchal, ridge, ridge-classifier, nca.", "Data", "--model", metavar="KIND"),
    ],
    out: Out,
    rows: Rows = None,
    settings: Settings = None,
    *,
    options: Options,
) -> None:
    """Fit a model to covariates or to features, and keep it as Zarr and JSON.

    gramian fit diabetes.zarr --model pchar --rows train --out model.zarr

    What is not set is chosen by cross-validation. HAL models and nca read the covariates, nca and
    ridge-classifier the labels; linear models read the features, else the covariates. A model made of
    features keeps their map.
    """
    _run_stage(options, command="fit", store=store, what=model, out=out, rows=rows, settings=settings)


@app.command(rich_help_panel=USE)
@computes
def predict(model: Fitted, store: Store, out: Out, rows: Rows = None, *, options: Options) -> None:
    """Predict for every row of a store, block by block.

    gramian predict model.zarr new.zarr --out predictions.zarr

    A model made of features takes features of the same map, or a raw data set, which goes through the map.
    """
    _run_stage(options, command="predict", store=store, what=model, out=out, rows=rows)


@app.command(rich_help_panel=USE)
@computes
def evaluate(
    model: Fitted,
    store: Store,
    out: Annotated[
        str | None,
        _option("Keep the scores as JSON; without it nothing is left.", "Data", "--out", metavar="JSON"),
    ] = None,
    rows: Rows = None,
    *,
    options: Options,
) -> None:
    """Score a model: R2 and RMSE, or accuracy and log loss; streamed, never whole in memory.

    gramian evaluate model.zarr diabetes.zarr --rows test
    """
    _run_stage(options, command="evaluate", store=store, what=model, out=out, rows=rows)


@app.command(rich_help_panel=USE)
@computes
def run(
    job: Annotated[Path, typer.Argument(help="A job file.", metavar="JOB.toml")], *, options: Options
) -> None:
    """Run every stage of a job, in order.

    gramian run job.toml --resume

    A job file has the path of the run directory, and a table for each stage, named [stages.NAME]: its command
    (featurize, gram, fit, predict, evaluate), its store, and its options under the names of the command line;
    the parameters are set = { NAME = VALUE }. A store or a model is a path or an earlier stage. max_memory
    and a table [cluster] are optional. The README shows one.
    """
    _execute(read_job(job, cluster=options.cluster(), max_memory=options.limit()), options)


@app.command(rich_help_panel=LOOK)
def plan(
    job: Annotated[Path, typer.Argument(help="A job file.", metavar="JOB.toml")],
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show what a job would take: tasks, bytes, files, peak memory. Exit code 1 if it does not fit.

    gramian plan job.toml

    What a job file holds: gramian run --help.
    """
    _execute(read_job(job), Options(plan=True, json=json, debug=debug))


@app.command("inspect", rich_help_panel=LOOK)
def inspect_(
    store: Annotated[str, typer.Argument(help="A data set, or what a command has made.", metavar="STORE")],
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show the arrays of a store, their chunks, codecs and sizes, and check them block by block.

    gramian inspect objects.zarr
    """
    del debug
    from gramian.ingest import inspect as look

    found = look(store)
    if json:
        print_json(found.facts())
    else:
        print(f"{found.path}: {found.kind}, {', '.join(named_values(found.figures))}")
        print_rows(found.rows())
        print_rows(found.check_rows())
    failed = [check for check in found.checks if not check.passed]
    if failed:
        first = f"{failed[0].array} {failed[0].name}: {failed[0].found}"
        raise StoreError(
            f"{store} fails {len(failed)} of {len(found.checks)} checks, {first}",
            "make the store again, or resume the run that made it",
        )


@app.command(rich_help_panel=LOOK)
def verify(
    target: Annotated[
        str, typer.Argument(help="A run directory, or an output of one.", metavar="RUN|OUTPUT")
    ],
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Read every recorded block again: a line for each bad one on stdout, exit code 1 if there is any.

    gramian verify features.zarr
    """
    del debug
    from gramian.pipeline import verify as check

    display = Display(quiet=json)
    with display.open():
        bad = check(target, display)
    if json:
        print_json([{"array": item.label, "chunk": item.key, "state": item.state} for item in bad])
    else:
        for item in bad:
            print(f"{item.label} {item.key} {item.state}")
    if bad:
        raise StoreError(
            f"{len(bad)} bad block(s) in {target}", "give --resume to the command that made it: it mends them"
        )
    if not json:
        stderr.print("every recorded block is as it was written")


@app.command(rich_help_panel=LOOK)
def report(
    target: Annotated[
        str, typer.Argument(help="A run directory, or an output of one.", metavar="RUN|OUTPUT")
    ],
    debug: Debug = False,
) -> None:
    """Write figures and tables of a run as one HTML page.

    gramian report runs/demo
    """
    del debug
    from gramian.pipeline import find_run
    from gramian.report import write_report

    root, _ = find_run(target)
    print(write_report(root))


@app.command(rich_help_panel=LOOK)
def health(
    role: Annotated[str, typer.Argument(help="scheduler or worker.", metavar="scheduler|worker")],
    address: Annotated[
        str, typer.Argument(help="tcp://, tls:// or http:// address of the process.", metavar="ADDRESS")
    ],
    debug: Debug = False,
) -> None:
    """Ask a scheduler or a worker whether it is well: exit code 0 or 1, for health checks.

    gramian health scheduler http://127.0.0.1:8787
    """
    del debug
    from gramian.health import check

    if role not in ("scheduler", "worker"):
        raise typer.BadParameter(f"the role is {role!r}, give scheduler or worker")
    check(role, address)


# ---------------------------------------------------------------- errors and exit codes


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit; the boundary where every error becomes two lines."""
    words = sys.argv[1:] if arguments is None else arguments
    if "--debug" not in words:  # what goes wrong in a cluster is said once, by us
        os.environ.setdefault("DASK_LOGGING__DISTRIBUTED", "critical")
    sys.exit(exit_code(words))


def exit_code(words: list[str]) -> int:
    """Run, and turn what happened into an exit code."""
    try:
        with _warnings_in_lines():
            found = app(words, prog_name="gramian", standalone_mode=False)
        sys.stdout.flush()
        if found == INTERRUPTED:  # what the parser makes of KeyboardInterrupt
            raise KeyboardInterrupt
        return found if isinstance(found, int) else DONE
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has seen enough
        return FAILED
    except (KeyboardInterrupt, typer.Abort):
        return _complain("interrupted", _how_to_resume(words), INTERRUPTED)
    except UsageError as error:
        return _complain(
            _sentence(error.format_message()), f"see gramian {_command(words)}--help", WRONG_WORDS
        )
    except Exception as error:
        if "--debug" in words:
            traceback.print_exc()
        if isinstance(error, GramianError):
            code = WRONG_WORDS if isinstance(error, JobError) else FAILED
            return _complain(error.cause, error.remedy, code)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return _complain(str(error.strerror), f"free space; {_how_to_resume(words)}", FAILED)
        if isinstance(error, OSError) and error.filename is not None and error.strerror:
            remedy = "see that it can be read and written"
            return _complain(f"{error.filename}: {error.strerror}", remedy, FAILED)
        cause = " ".join(f"{type(error).__name__}: {error}".split())
        return _complain(cause, "run the command again with --debug to see where it happened", FAILED)


def _complain(cause: str, remedy: str, code: int) -> int:
    """One line of cause and one of remedy, on stderr."""
    for name, text in (("error", cause), ("remedy", remedy)):
        print(f"{name}: {' '.join(text.split())}", file=sys.stderr)
    return code


def _sentence(text: str) -> str:
    """The first line of a message of the parser, in the form of our own."""
    line = " ".join(text.split()).rstrip(".")
    return line[:1].lower() + line[1:]


def _command(words: list[str]) -> str:
    """The command of the call, where it is one."""
    names = {
        command.name or command.callback.__name__ for command in app.registered_commands if command.callback
    }
    return f"{words[0]} " if words and words[0] in names else ""


def _how_to_resume(words: list[str]) -> str:
    if words and words[0] == "demo":
        return "the same command again goes on where it stopped"
    if not words or words[0] not in (*COMMANDS, "run") or (words[0] == "evaluate" and "--out" not in words):
        return "nothing is left of it; give the same command again"
    kept = [word for word in words if word not in ("--resume", "--force")]
    return f"gramian {shlex.join(kept)} --resume goes on where it stopped"


@contextmanager
def _warnings_in_lines() -> Iterator[None]:
    """What the package warns of as one line each; what libraries warn of is for developers."""

    def show(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        if issubclass(category, GramianWarning):
            print(f"warning: {' '.join(str(message).split())}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", GramianWarning)
        warnings.showwarning = show
        yield


if __name__ == "__main__":
    main()
