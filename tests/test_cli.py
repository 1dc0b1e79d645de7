"""The command line: words, exit codes, two lines for an error, stdout for what was asked for."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pytest

from gramian import cli, console, open_dataset
from gramian.gram import KERNELS
from gramian.ingest import ingest
from gramian.kinds import FEATURES, MODELS

HERE = ("--workers", "0", "--threads", "2")


@pytest.fixture
def call(capsys, monkeypatch):
    """Run words; give the exit code, stdout and stderr."""
    monkeypatch.setenv("COLUMNS", "120")

    def run(*words):
        code = cli.exit_code([str(word) for word in words])
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Rows of three covariates; the current folder is theirs."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    X = random.random((80, 3))
    ingest({"covariates": X, "target": X @ [1.0, 2.0, 3.0]}, "data.zarr", split=0.25)
    return tmp_path


@pytest.fixture
def model(data, call):
    call("fit", "data.zarr", "--model", "ridge", "--set", "alpha=1e-3", "--out", "model.zarr", *HERE)
    return data / "model.zarr"


def commands():
    return [command.name or command.callback.__name__ for command in cli.app.registered_commands]


# ---------------------------------------------------------------- help

EXPECTED = "demo ingest inspect featurize gram fit predict evaluate plan run verify report health"


def test_the_commands_are_those_of_the_documents():
    assert sorted(commands()) == sorted(EXPECTED.split())


def test_help_lists_every_command(call):
    code, out, _ = call("--help")
    assert code == 0
    assert all(re.search(rf"\b{name}\b", out) for name in commands())


@pytest.mark.parametrize("name", EXPECTED.split())
def test_every_command_teaches_by_an_example(call, name):
    code, out, _ = call(name, "--help")
    assert code == 0
    assert re.search(rf"^\s*gramian {name} ", out, re.MULTILINE)


@pytest.mark.parametrize(("command", "table"), [("featurize", FEATURES), ("fit", MODELS), ("gram", KERNELS)])
def test_help_lists_every_kind(call, command, table):
    assert ", ".join(table) in " ".join(call(command, "--help")[1].replace("│", " ").split())


@pytest.mark.parametrize(("table", "word"), [(t, word) for t in (FEATURES, MODELS) for word in t])
def test_every_parameter_of_a_kind_is_known_without_its_class(table, word):
    kind = table[word]
    unsettable = {"callback", *(name for name, value in kind.preset.items() if isinstance(value, str))}
    assert set(kind.parameters) == set(kind.make({}).get_params()) - unsettable
    assert len(set(kind.parameters)) == len(kind.parameters)


@pytest.mark.parametrize(("command", "table"), [("featurize", FEATURES), ("fit", MODELS)])
def test_help_lists_what_can_be_set_of_every_kind(call, command, table):
    shown = " ".join(call(command, "--help")[1].partition("What --set takes, by KIND:")[2].split())
    for kind in table.values():
        assert ": " + ", ".join(kind.parameters) in shown


def test_no_words_are_a_question_for_help(call):
    code, out, _ = call()
    assert (code, "Usage" in out) == (0, True)


def test_version(call):
    assert call("--version")[1] == "gramian 0.1.0\n"


def test_every_command_that_computes_has_the_common_options(call):
    texts = [call(name, "--help")[1] for name in ("featurize", "gram", "fit", "predict", "evaluate", "run")]
    options = (
        "--workers --threads --memory-limit --scheduler --tls-ca --tls-cert --tls-key --max-memory --plan "
        "--resume --takeover --allow-mixed --force --progress --quiet --json --debug"
    )
    assert all(option in text for text in texts for option in options.split())


# ---------------------------------------------------------------- words that are wrong

WRONG = {
    "value": (
        ["fit", "data.zarr", "--model", "ridge", "--out", "m", "--set", "alpha=-1", *HERE],
        "alpha is -1",
    ),
    "no such command": (["fitt"], "no such command"),
    "no such option": (["fit", "data.zarr", "--modle", "pchar"], "no such option"),
    "missing argument": (["fit"], "missing argument"),
    "missing option": (["fit", "data.zarr", "--out", "m"], "missing option"),
    "not a number": (["fit", "d", "--model", "ridge", "--out", "m", "--workers", "two"], "invalid value"),
    "size": (
        ["fit", "d", "--model", "ridge", "--out", "m", "--max-memory", "lots"],
        "--max-memory is 'lots'",
    ),
    "set": (["fit", "d", "--model", "ridge", "--out", "m", "--set", "alpha"], "--set has 'alpha'"),
    "rows": (["fit", "d", "--model", "ridge", "--out", "m", "--rows", "some"], "rows are 'some'"),
    "model": (["fit", "data.zarr", "--model", "har", "--out", "m"], "model is 'har'"),
    "kernel": (["gram", "data.zarr", "--kernel", "gauss", "--out", "m"], "kernel is 'gauss'"),
    "features": (["featurize", "data.zarr", "--features", "polar", "--out", "m"], "features is 'polar'"),
    "parameter": (["fit", "data.zarr", "--model", "ridge", "--out", "m", "--set", "k=1"], "no parameter 'k'"),
    "job": (["run", "none.toml"], "none.toml cannot be read"),
    "plan": (["plan", "none.toml"], "none.toml cannot be read"),
    "role": (["health", "boss", "tcp://127.0.0.1:1"], "the role is 'boss'"),
    "flag": (["fit", "data.zarr", "--model", "pchar", "--out", "m", "--set", "center=7"], "center is 7"),
    "seed": (
        ["fit", "data.zarr", "--model", "ridge", "--out", "m", "--set", "random_state=-1"],
        "random_state",
    ),
    "choice": (
        ["fit", "data.zarr", "--model", "pchal", "--out", "m", "--set", "selection=x"],
        "selection is 'x'",
    ),
    "split": (["ingest", "data.zarr", "d.zarr", "--split", "2"], "split is 2.0"),
    "energy": (["ingest", "data.zarr", "d.zarr", "--subspaces", "--energy", "nan"], "energy is nan"),
    "deficient": (["ingest", "data.zarr", "d.zarr", "--on-deficient", "maybe"], "on_deficient is 'maybe'"),
    "certificates": (
        ["fit", "d", "--model", "ridge", "--out", "m", "--tls-ca", "a", "--tls-cert", "b", "--tls-key", "c"],
        "tls-ca is a with no scheduler",
    ),
    "one certificate": (
        ["fit", "d", "--model", "ridge", "--out", "m", "--tls-ca", "a", "--scheduler", "tls://a:1"],
        "--tls-cert and --tls-key not given",
    ),
    "address": (["fit", "d", "--model", "ridge", "--out", "m", "--scheduler", "here"], "scheduler is 'here'"),
    "two ways on": (
        ["fit", "data.zarr", "--model", "ridge", "--out", "m", "--resume", "--force"],
        "both resume",
    ),
    "takeover": (["fit", "data.zarr", "--model", "ridge", "--out", "m", "--takeover"], "without resume"),
    "scores at a URL": (["evaluate", "m", "d", "--out", "s3://b/s.json"], "out = 's3://b/s.json', a URL"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_words_are_two_lines_and_exit_2(data, call, name):
    words, expected = WRONG[name]
    code, out, err = call(*words)
    assert (code, out) == (2, "")
    assert re.fullmatch(r"error: .+\nremedy: .+\n", err)
    assert expected in err


FAILED = {
    "no store": (["fit", "none.zarr", "--model", "ridge", "--out", "m", *HERE], "none.zarr does not exist"),
    "no model": (["evaluate", "none.zarr", "data.zarr", *HERE], "none.zarr does not exist"),
    "not a store": (["inspect", "."], "holds no Zarr"),
    "no run": (["verify", "data.zarr"], "no run has made data.zarr"),
    "no report": (["report", "data.zarr"], "no run has made data.zarr"),
    "nobody there": (["health", "scheduler", "tcp://127.0.0.1:1"], "no scheduler answers"),
    "memory": (
        ["fit", "data.zarr", "--model", "ridge", "--out", "m", "--max-memory", "1MiB", *HERE],
        "the plan needs",
    ),
    "source": (["ingest", "none.csv", "d.zarr"], "none.csv"),
}


@pytest.mark.parametrize("name", FAILED)
def test_a_failed_job_is_two_lines_and_exit_1(data, call, name):
    words, expected = FAILED[name]
    code, out, err = call(*words)
    assert (code, out) == (1, "")
    error, _ = [line for line in err.splitlines() if line.startswith(("error: ", "remedy: "))]
    assert expected in error
    assert "Traceback" not in err


def test_debug_shows_the_traceback(data, call):
    _, _, err = call("inspect", "none.zarr", "--debug")
    assert "Traceback" in err


def test_an_unforeseen_error_is_two_lines_too(call, monkeypatch):
    monkeypatch.setattr(cli, "app", lambda *_, **__: {}["key"])
    assert call("plan") == (
        1,
        "",
        "error: KeyError: 'key'\nremedy: run the command again with --debug to see where it happened\n",
    )


def test_an_interruption_says_how_to_resume(call, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "app", stop)
    code, _, err = call("fit", "my data.zarr", "--model", "ridge", "--force")
    assert code == 130
    assert "remedy: gramian fit 'my data.zarr' --model ridge --resume goes on" in err
    assert "remedy: nothing is left of it" in call("ingest", "a.csv", "b.zarr")[2]


def test_an_interruption_within_a_command_says_how_to_resume(data, call, monkeypatch):
    from gramian import pipeline

    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "run", stop)
    code, out, err = call("fit", "data.zarr", "--model", "ridge", "--out", "m.zarr")
    assert (code, out) == (130, "")
    assert err.splitlines()[-2] == "error: interrupted"
    assert "--resume goes on where it stopped" in err


@pytest.mark.parametrize(
    ("error", "cause", "remedy"),
    [
        (PermissionError(13, "Permission denied", "x"), "x: Permission denied", "see that it can be read"),
        (
            OSError(28, "No space left on device"),
            "No space left on device",
            "free space; gramian fit --resume",
        ),
    ],
)
def test_what_the_system_refuses_is_two_lines(call, monkeypatch, error, cause, remedy):
    def stop(*_, **__):
        raise error

    monkeypatch.setattr(cli, "app", stop)
    code, _, err = call("fit")
    assert code == 1
    assert err.startswith(f"error: {cause}\nremedy: {remedy}")


# ---------------------------------------------------------------- what is shown


def test_fit_says_on_stderr_what_it_made_and_nothing_on_stdout(data, call):
    code, out, err = call("fit", "data.zarr", "--model", "ridge", "--out", "m.zarr", *HERE)
    assert (code, out) == (0, "")
    assert "m.zarr.run" in err
    assert "peak memory" in err


def test_evaluate_prints_the_scores_on_stdout(model, call):
    code, out, _ = call("evaluate", "model.zarr", "data.zarr", "--rows", "test", *HERE)
    assert code == 0
    assert re.fullmatch(r"r2 [\d.]+\nrmse [\d.e-]+\nrows 20\n", out)


@pytest.mark.parametrize("words", [["evaluate"], ["predict", "--out", "p.zarr"]])
def test_a_store_in_the_place_of_the_model_is_told_the_right_order(model, call, words):
    os.rename("data.zarr", "my data.zarr")
    command, *more = words
    code, out, err = call(command, "my data.zarr", "model.zarr", *more, *HERE)
    assert (code, out) == (2, "")
    assert err == (
        "error: the order of model and store is wrong: my data.zarr holds data, model.zarr a model\n"
        f"remedy: give the model first: gramian {command} model.zarr 'my data.zarr'\n"
    )
    assert call(command, "model.zarr", "my data.zarr", *more, *HERE)[0] == 0


def test_quiet_leaves_stderr_empty(model, call):
    assert call("predict", "model.zarr", "data.zarr", "--out", "p.zarr", "--quiet", *HERE) == (0, "", "")


def test_json_is_one_object_on_stdout(model, call):
    _, out, _ = call("evaluate", "model.zarr", "data.zarr", "--json", *HERE)
    assert json.loads(out)["stages"][0]["results"]["r2"] > 0.99


def test_a_plan_is_a_table_and_makes_nothing(data, call):
    before = sorted(data.rglob("*"))
    code, out, _ = call("fit", "data.zarr", "--model", "ridge", "--out", "m.zarr", "--plan", *HERE)
    assert code == 0
    assert "peak memory" in out
    assert sorted(data.rglob("*")) == before


def test_a_plan_as_json(data, call):
    _, out, _ = call("fit", "data.zarr", "--model", "ridge", "--out", "m.zarr", "--plan", "--json", *HERE)
    assert json.loads(out)["workers"] == 0


def test_a_plan_that_does_not_fit_is_shown_and_exits_1(data, call):
    (data / "job.toml").write_text(
        'path = "run"\nmax_memory = "1MiB"\n[stages.model]\ncommand = "fit"\nstore = "data.zarr"\n'
        'model = "ridge"\n'
    )
    code, out, err = call("plan", "job.toml")
    assert code == 1
    assert "peak memory" in out
    assert "error: " in err


def test_run_runs_a_job_file(data, call):
    (data / "job.toml").write_text(
        'path = "run"\n[stages.model]\ncommand = "fit"\nstore = "data.zarr"\nmodel = "ridge"\n'
        '[stages.test]\ncommand = "evaluate"\nstore = "data.zarr"\nmodel = "model"\nrows = "test"\n'
    )
    code, out, _ = call("run", "job.toml", *HERE)
    assert code == 0
    assert "test r2 " in out
    assert (data / "run/test.json").exists()


def test_verify_of_a_good_run_names_no_chunk(model, call):
    assert call("verify", "model.zarr") == (0, "", "every recorded block is as it was written\n")


def test_verify_prints_exactly_the_bad_chunks(model, call):
    chunk = model / "coef_/c/0"
    chunk.write_bytes(chunk.read_bytes()[::-1])
    assert call("verify", "model.zarr.run")[:2] == (1, "coef_ c/0 damaged\n")
    chunk.unlink()
    code, out, err = call("verify", "model.zarr")
    assert (code, out) == (1, "coef_ c/0 missing\n")
    assert re.fullmatch(r"error: 1 bad block\(s\) in model.zarr\nremedy: .*--resume.*\n", err)


def test_resume_mends_and_says_so(model, call):
    (model / "coef_/c/0").unlink()
    words = ("fit", "data.zarr", "--model", "ridge", "--set", "alpha=1e-3", "--out", "model.zarr", *HERE)
    code, _, err = call(*words, "--resume")
    assert code == 0
    assert "coef_ c/0 missing" in err
    assert call("verify", "model.zarr")[0] == 0


def test_a_second_run_needs_force(model, call):
    words = ("fit", "data.zarr", "--model", "ridge", "--set", "alpha=1e-3", "--out", "model.zarr", *HERE)
    assert call(*words)[0] == 1
    assert call(*words, "--force")[0] == 0


def test_report_prints_where_the_page_is(model, call):
    code, out, _ = call("report", "model.zarr")
    assert code == 0
    assert out.strip().endswith("model.zarr.run/report.html")


def test_inspect_prints_arrays_and_checks(data, call):
    code, out, _ = call("inspect", "data.zarr")
    assert code == 0
    assert all(word in out for word in ("covariates", "80 x 3", "finite"))


def test_inspect_names_the_estimators_of_a_model_and_cuts_nothing(data, call):
    call("featurize", "data.zarr", "--features", "hal", "--out", "features.zarr", *HERE)
    call("fit", "features.zarr", "--model", "ridge", "--out", "model.zarr", *HERE)
    code, out, _ = call("inspect", "model.zarr")
    assert code == 0
    assert out.startswith("model.zarr: model, estimator HALPrincipalComponents, BlockwiseRidge, bytes")
    assert len(re.findall(r"(?m)^param-steps-0-1/explained_variance_ratio_ +\S", out)) == 3


def test_what_a_fit_has_chosen_is_said(data, call):
    err = call("fit", "data.zarr", "--model", "ridge", "--set", "alpha=0.25", "--out", "model.zarr", *HERE)[2]
    assert re.search(r"(?m)^model.zarr: alpha 0.25, .* s$", err)


def test_predictions_count_rows(model, call):
    err = call("predict", "model.zarr", "data.zarr", "--out", "predictions.zarr", *HERE)[2]
    assert re.search(r"(?m)^predictions.zarr: 80 rows, .* s$", err)


def test_inspect_says_what_failed(data, call):
    (data / "data.zarr/target/c/0").unlink()
    code, out, err = call("inspect", "data.zarr")
    assert (code, "FAILED" in out) == (1, True)
    assert re.fullmatch(
        r"error: data.zarr fails 1 of \d checks, target chunks: c/0 missing\nremedy: .+\n", err
    )
    assert json.loads(call("inspect", "data.zarr", "--json")[1])["ok"] is False


def test_inspect_of_a_run_directory_points_to_what_reads_it(model, call):
    code, _, err = call("inspect", "model.zarr.run")
    assert code == 1
    assert "model.zarr.run is a run directory" in err
    assert "gramian report model.zarr.run" in err
    assert "gramian verify model.zarr.run" in err


def test_a_score_that_is_no_number_is_null(model, call):
    ingest({"X": np.random.default_rng(0).random((20, 3)), "y": np.ones(20)}, "constant.zarr")
    words = ("evaluate", "model.zarr", "constant.zarr", *HERE)
    (record,) = json.loads(call(*words, "--json")[1])["stages"]
    assert record["results"]["r2"] is None
    assert "r2 nan" in call(*words, "--out", "scores.json")[1]
    with open("scores.json") as file:
        assert json.load(file)["r2"] is None


def test_force_replaces_scores_alone(model, call):
    words = ("evaluate", "model.zarr", "data.zarr", "--force", *HERE)
    for name, content in (("note.txt", "hello"), ("n.json", '{"rows": 3}'), ("list.json", "[1]")):
        (model.parent / name).write_text(content)
        code, _, err = call(*words, "--out", name)
        assert (code, (model.parent / name).read_text()) == (1, content)
        assert f"{name} holds something else than scores" in err
    assert call(*words, "--out", "s.json")[0] == 0
    assert call(*words, "--out", "s.json")[0] == 0
    assert "lies within the store" in call(*words, "--out", "model.zarr/zarr.json")[2]


def test_a_word_is_not_contradicted(data, call):
    random = np.random.default_rng(0)
    ingest({"subspaces": np.linalg.qr(random.standard_normal((9, 4, 2)))[0]}, "u.zarr")
    words = ("featurize", "u.zarr", "--features", "periodic", "--out", "f.zarr", *HERE)
    code, _, err = call(*words, "--set", "nonlinearity=sign")
    assert code == 2
    assert "nonlinearity is 'sign' beside the word 'periodic'" in err


def test_ingest_brings_a_table_in(data, call):
    (data / "rows.csv").write_text("a,b,price\n1,2,3\n4,5,6\n7,8,9\n")
    code, _, _ = call("ingest", "rows.csv", "rows.zarr", "--target", "price")
    assert code == 0
    np.testing.assert_array_equal(open_dataset("rows.zarr").target[:], [3, 6, 9])


def test_ingest_leaves_columns_out(data, call):
    (data / "rows.csv").write_text("id,a,sold,price\nx1,1,2026-01-02,3\nx2,4,2026-01-03,6\n")
    words = ("ingest", "rows.csv", "rows.zarr", "--target", "price")
    assert call(*words, "--drop", "id", "--drop", "sold")[0] == 0
    assert open_dataset("rows.zarr").covariates[:].tolist() == [[1], [4]]
    code, _, err = call(*words, "--drop", "price")
    assert (code, err.splitlines()[0]) == (2, "error: drop has 'price', which is the target")


def test_ingest_takes_a_number_as_a_level_of_folders():
    assert cli._level("2") == 2
    assert cli._level("object") == "object"


def test_a_setting_reaches_the_estimator(data, call):
    from gramian import load_model

    call("fit", "data.zarr", "--model", "ridge", "--set", "alpha=[0.5, 2.0]", "--out", "m.zarr", *HERE)
    assert load_model("m.zarr").alpha == [0.5, 2.0]


def test_warnings_are_one_line_each(data, call):
    _, _, err = call(
        "fit", "data.zarr", "--model", "ridge", "--set", "alpha=[100.0, 200.0]", "--out", "m.zarr", *HERE
    )
    assert re.search(r"^warning: alpha = .*\n", err, re.MULTILINE)


# ---------------------------------------------------------------- progress


def test_without_a_terminal_progress_is_a_line_now_and_then(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    display = console.Display(quiet=False)
    with display.open():
        for done in range(101):
            display.progress("features: features", done, 100)
            now[0] += 1.0
    lines = capsys.readouterr().err.splitlines()
    assert 5 <= len(lines) <= 10
    assert lines[0] == "features: features: 11/100 blocks, 1.0 blocks/s, 89 s left"


def test_on_a_terminal_progress_is_bars(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(console, "stderr", console.Console(file=stream, force_terminal=True, width=100))
    display = console.Display(quiet=False)
    with display.open():
        display.progress("fit: sum", 0, 4)
        display.progress("fit: sum", 4, 4)
    assert "4/4" in stream.getvalue()


# ---------------------------------------------------------------- as a process


@contextmanager
def process(*words, cwd):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "gramian.cli", *words]
    with subprocess.Popen(
        command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        yield child


@pytest.mark.parametrize("words", [["--help"], ["fit", "--help"], ["featurize", "--help"]])
def test_help_imports_nothing_that_computes(tmp_path, words):
    code = (
        f"import sys; from gramian import cli; cli.exit_code({words}); "
        "print([n for n in ('dask', 'zarr', 'sklearn', 'distributed') if n in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert found.stdout.splitlines()[-1] == "[]"


def test_a_local_cluster_prints_its_dashboard_and_gives_the_same_bytes(model):
    words = ("fit", "data.zarr", "--model", "ridge", "--set", "alpha=1e-3", "--out", "other.zarr")
    with process(*words, "--workers", "1", "--memory-limit", "600MiB", cwd=model.parent) as child:
        _, err = child.communicate(timeout=120)
    assert child.returncode == 0, err
    assert re.search(r"^dashboard: http://127\.0\.0\.1:\d+/status", err, re.MULTILINE)
    first, second = (
        (model.parent / name / "coef_/c/0").read_bytes() for name in ("model.zarr", "other.zarr")
    )
    assert first == second
