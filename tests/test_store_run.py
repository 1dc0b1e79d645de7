"""The run directory: what is done survives kills and damage, and two drivers never mix their records."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gramian.errors import InputError, RunError
from gramian.store import run as run_module
from gramian.store.run import Overtaken, Run, put_new, seal, unseal
from gramian.store.writer import check_block, write_block

MANIFEST: dict[str, Any] = {
    "parameters": {"features": {"n_projections": 8, "omega": None}, "a": 1},
    "inputs": {"X": {"shape": [10], "dtype": "<f8", "checksums": {"0": 1, "3": 2, "7": 5}}},
    "versions": {"numpy": "2.4.6"},
    "cpu": {"machine": "x86_64"},
    "plan": ["free"],
}


def changed(**parts: Any) -> dict[str, Any]:
    return {**MANIFEST, **parts}


def begun(root: Path, blocks: int = 3) -> Path:
    """A closed run in which the first blocks of one array are recorded."""
    with Run.open(root, MANIFEST) as run:
        for i in range(blocks):
            run.record("features/features", (i, 0), 100 + i)
    return root


def segments(root: Path) -> list[Path]:
    return sorted((root / "journal").iterdir())


def started_elsewhere(root: Path, body: str) -> subprocess.Popen[str]:
    """Another process with the run open; it says so, and waits."""
    program = (
        "import sys\nfrom gramian.store.run import Run\n"
        f"run = Run.open({str(root)!r}, {MANIFEST!r}, resume=True)\n{body}\n"
        "print('open', flush=True)\nsys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    return process


# ---------------------------------------------------------------- begin and resume


def test_records_are_there_after_resuming(tmp_path):
    begun(tmp_path / "r")
    with Run.open(tmp_path / "r", MANIFEST, resume=True) as run:
        assert run.done == {"features/features": {(0, 0): 100, (1, 0): 101, (2, 0): 102}}


def test_missing_keeps_the_order_of_what_is_asked(tmp_path):
    with Run.open(begun(tmp_path / "r"), MANIFEST, resume=True) as run:
        assert run.missing("features/features", [(4, 0), (1, 0), (3, 0)]) == [(4, 0), (3, 0)]


def test_missing_of_an_unknown_name_is_everything(tmp_path):
    with Run.open(tmp_path, MANIFEST) as run:
        assert run.missing("other", [(0,), (1,)]) == [(0,), (1,)]


def test_parents_are_created(tmp_path):
    Run.open(tmp_path / "a" / "b" / "r", MANIFEST).close()
    assert (tmp_path / "a" / "b" / "r" / "manifest").exists()


def test_resume_where_nothing_was_begun_begins(tmp_path):
    with Run.open(tmp_path / "r", MANIFEST, resume=True) as run:
        assert run.done == {}


def test_a_folder_with_other_files_can_hold_a_run(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    Run.open(tmp_path, MANIFEST).close()
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_an_existing_run_needs_resume_or_force(tmp_path):
    begun(tmp_path / "r")
    with pytest.raises(RunError, match="holds a run already; give --resume to go on or --force"):
        Run.open(tmp_path / "r", MANIFEST)


def test_resume_and_force_exclude_each_other(tmp_path):
    with pytest.raises(InputError, match="both resume and force"):
        Run.open(tmp_path / "r", MANIFEST, resume=True, force=True)


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "r").write_text("")
    with pytest.raises(RunError, match="cannot be written"):
        Run.open(tmp_path / "r", MANIFEST)


@pytest.mark.parametrize("manifest", [MANIFEST, None])
def test_a_url_is_refused(manifest):
    with pytest.raises(RunError, match="is a URL; name a folder on this machine"):
        Run.open("memory://bucket/r", manifest)


def test_the_manifest_reads_as_json_under_its_checksum(tmp_path):
    text = (begun(tmp_path / "r") / "manifest").read_text()
    assert json.loads(text.partition("\n")[2]) == MANIFEST


def test_a_manifest_takes_numpy_values(tmp_path):
    with Run.open(tmp_path, {"parameters": {"alpha": np.float64(0.5), "grid": np.arange(3)}}) as run:
        assert run.manifest == {"parameters": {"alpha": 0.5, "grid": [0, 1, 2]}}


def test_the_stored_manifest_wins_in_its_free_parts(tmp_path):
    begun(tmp_path / "r")
    with Run.open(tmp_path / "r", changed(plan=["another"]), resume=True) as run:
        assert run.manifest["plan"] == ["free"]


def test_closing_twice_does_nothing(tmp_path):
    run = Run.open(tmp_path, MANIFEST)
    run.close()
    run.close()
    assert len(segments(tmp_path)) == 2


# ---------------------------------------------------------------- the journal


def test_a_segment_is_written_after_256_records(tmp_path, monkeypatch):
    monkeypatch.setattr(run_module, "SEGMENT_SECONDS", 1e9)
    with Run.open(tmp_path, MANIFEST) as run:
        for i in range(255):
            run.record("x", (i,), i)
        before = len(segments(tmp_path))
        run.record("x", (255,), 255)
        assert len(segments(tmp_path)) == before + 1


def test_a_segment_is_written_after_its_time(tmp_path, monkeypatch):
    with Run.open(tmp_path, MANIFEST) as run:
        before = len(segments(tmp_path))
        monkeypatch.setattr(run_module, "SEGMENT_SECONDS", -1.0)
        run.record("x", (0,), 1)
        assert len(segments(tmp_path)) == before + 1


def test_flush_if_due_waits_for_its_time(tmp_path, monkeypatch):
    monkeypatch.setattr(run_module, "SEGMENT_SECONDS", 1e9)
    with Run.open(tmp_path, MANIFEST) as run:
        run.record("x", (0,), 1)
        before = len(segments(tmp_path))
        run.flush_if_due()
        assert len(segments(tmp_path)) == before


def test_flush_without_records_writes_nothing(tmp_path):
    with Run.open(tmp_path, MANIFEST) as run:
        before = len(segments(tmp_path))
        run.flush()
        assert len(segments(tmp_path)) == before


def test_indices_of_numpy_integers_are_recorded(tmp_path):
    with Run.open(tmp_path / "r", MANIFEST) as run:
        run.record("x", (np.int64(3), np.int32(1)), 5)
    assert Run.open(tmp_path / "r", None).done == {"x": {(3, 1): 5}}


@pytest.mark.parametrize("damage", ["empty", "flip", "delete", "truncate"])
def test_a_damaged_segment_means_that_its_blocks_are_missing(tmp_path, damage):
    with Run.open(tmp_path / "r", MANIFEST) as run:
        for i in range(3):
            run.record("x", (i,), i)
            run.flush()
    path = segments(tmp_path / "r")[2]  # owner, block 0, block 1, ...
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    {
        "empty": lambda: path.write_bytes(b""),
        "flip": lambda: path.write_bytes(data),
        "delete": path.unlink,
        "truncate": lambda: path.write_bytes(data[:-1]),
    }[damage]()
    with Run.open(tmp_path / "r", MANIFEST, resume=True) as run:
        assert run.missing("x", [(0,), (1,), (2,)]) == [(1,)]


def test_half_written_temporaries_and_strange_names_are_ignored(tmp_path):
    begun(tmp_path / "r")
    (tmp_path / "r" / "journal" / ".00000009.abc").write_bytes(b"half")
    (tmp_path / "r" / "journal" / "12.txt").write_bytes(b"?")
    with Run.open(tmp_path / "r", MANIFEST, resume=True) as run:
        assert len(run.done["features/features"]) == 3


def test_put_new_leaves_an_existing_file_and_no_temporary(tmp_path):
    assert put_new(tmp_path / "a", b"first")
    assert not put_new(tmp_path / "a", b"second")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a", b"first")]


def test_put_new_does_without_links(tmp_path, monkeypatch):
    def refused(*_: object) -> None:
        raise PermissionError("this file system has no links")

    monkeypatch.setattr(os, "link", refused)
    assert put_new(tmp_path / "a", b"first")
    assert not put_new(tmp_path / "a", b"second")
    assert (tmp_path / "a").read_bytes() == b"first"


def test_unsealing_finds_each_flipped_bit():
    data = seal({"a": 1})
    flipped = [
        bytes(data[:i]) + bytes([data[i] ^ 1 << bit]) + data[i + 1 :]
        for i in range(len(data))
        for bit in range(8)
    ]
    assert all(unseal(other) is None for other in flipped)


# ---------------------------------------------------------------- forget and complete


def test_forgotten_blocks_are_missing_now_and_later(tmp_path):
    with Run.open(begun(tmp_path / "r"), MANIFEST, resume=True) as run:
        run.forget("features/features", [(1, 0)])
        assert run.missing("features/features", [(0, 0), (1, 0)]) == [(1, 0)]
    assert set(Run.open(tmp_path / "r", None).done["features/features"]) == {(0, 0), (2, 0)}


def test_a_block_recorded_again_counts(tmp_path):
    with Run.open(begun(tmp_path / "r"), MANIFEST, resume=True) as run:
        run.forget("features/features", [(1, 0)])
        run.record("features/features", (1, 0), 7)
    assert Run.open(tmp_path / "r", None).done["features/features"][1, 0] == 7


def test_forgetting_what_was_just_recorded_holds(tmp_path):
    with Run.open(tmp_path / "r", MANIFEST) as run:
        run.record("x", (0,), 1)
        run.forget("x", [(0,)])
    assert Run.open(tmp_path / "r", None).done == {"x": {}}


def test_a_completed_stage_keeps_its_facts(tmp_path):
    with Run.open(tmp_path / "r", MANIFEST) as run:
        run.complete("features", {"peak": np.int64(3), "seconds": 1.5})
        assert run.is_complete("features")
    later = Run.open(tmp_path / "r", None)
    assert later.is_complete("features")
    assert later.stages == {"features": {"peak": 3, "seconds": 1.5}}


def test_forgetting_a_block_ends_the_completeness_of_its_stage_alone(tmp_path):
    with Run.open(begun(tmp_path / "r"), MANIFEST, resume=True) as run:
        run.complete("features")
        run.complete("model")
        run.forget("features/features", [(0, 0)])
    assert set(Run.open(tmp_path / "r", None).stages) == {"model"}


# ---------------------------------------------------------------- reading


def test_reading_locks_and_writes_nothing(tmp_path):
    begun(tmp_path / "r")
    before = [path.name for path in segments(tmp_path / "r")]
    with Run.open(tmp_path / "r", MANIFEST, resume=True), Run.open(tmp_path / "r", None) as reader:
        assert len(reader.done["features/features"]) == 3
    assert [path.name for path in segments(tmp_path / "r")][: len(before)] == before
    assert len(segments(tmp_path / "r")) == len(before) + 2  # the writer's two owner entries


@pytest.mark.parametrize("name", ["record", "forget", "complete", "partials"])
def test_a_reader_cannot_write(tmp_path, name):
    arguments = {
        "record": ("x", (0,), 1),
        "forget": ("x", [(0,)]),
        "complete": ("x",),
        "partials": ("x", 1, 1),
    }
    run = Run.open(begun(tmp_path / "r"), None)
    with pytest.raises(RunError, match="open for reading only"):
        getattr(run, name)(*arguments[name])


def test_reading_what_is_no_run_says_so(tmp_path):
    with pytest.raises(RunError, match="is not a run directory"):
        Run.open(tmp_path, None)


# ---------------------------------------------------------------- owners and the fence


def test_a_second_process_is_refused_with_host_and_process(tmp_path):
    process = started_elsewhere(tmp_path / "r", "")
    try:
        with pytest.raises(RunError, match=f"in use by process {process.pid} on {socket.gethostname()}"):
            Run.open(tmp_path / "r", MANIFEST, resume=True)
    finally:
        process.communicate()


def test_a_killed_process_leaves_a_run_that_can_be_resumed(tmp_path):
    process = started_elsewhere(
        tmp_path / "r", "run.record('x', (0,), 1)\nrun.flush()\nrun.record('x', (1,), 2)"
    )
    process.send_signal(signal.SIGKILL)
    process.communicate()
    with Run.open(tmp_path / "r", MANIFEST, resume=True) as run:
        assert run.done == {"x": {(0,): 1}}


def test_who_was_overtaken_learns_it_at_the_next_append(tmp_path):
    first = Run.open(tmp_path, MANIFEST)
    with Run.open(tmp_path, MANIFEST, resume=True, takeover=True):
        first.record("x", (0,), 1)
        with pytest.raises(Overtaken, match="another process took over"):
            first.flush()
    assert Run.open(tmp_path, None).done == {}


def test_leaving_the_context_after_overtaken_appends_nothing(tmp_path):
    with Run.open(tmp_path, MANIFEST) as first, Run.open(tmp_path, MANIFEST, resume=True, takeover=True):
        with pytest.raises(Overtaken):
            first.complete("features")
        before = len(segments(tmp_path))
        first.close()
        assert len(segments(tmp_path)) == before


def test_an_error_inside_the_context_keeps_what_was_recorded(tmp_path):
    def interrupted() -> None:
        with Run.open(tmp_path, MANIFEST) as run:
            run.record("x", (0,), 1)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert Run.open(tmp_path, None).done == {"x": {(0,): 1}}


def test_who_took_over_gets_the_lock_when_the_other_is_gone(tmp_path):
    first = Run.open(tmp_path, MANIFEST)
    with Run.open(tmp_path, MANIFEST, resume=True, takeover=True) as second:
        first._release()
        second.complete("features")
        with pytest.raises(RunError, match="is in use by process"):
            Run.open(tmp_path, MANIFEST, resume=True)


def test_a_new_driver_starts_at_once_after_the_overtaken_one(tmp_path):
    first = Run.open(tmp_path, MANIFEST)
    Run.open(tmp_path, MANIFEST, resume=True, takeover=True).close()
    first._release()
    Run.open(tmp_path, MANIFEST, resume=True).close()


def _no_locks(*_: object) -> None:
    raise OSError("no locks available")


def test_without_locks_an_open_run_is_refused_until_takeover(tmp_path, monkeypatch):
    monkeypatch.setattr(run_module.fcntl, "flock", _no_locks)
    Run.open(tmp_path, MANIFEST)
    who = f"process {os.getpid()} on {socket.gethostname()}"
    with pytest.raises(RunError, match=f"was left open by {who}; .*--takeover"):
        Run.open(tmp_path, MANIFEST, resume=True)
    Run.open(tmp_path, MANIFEST, resume=True, takeover=True).close()


def test_without_locks_a_closed_run_is_resumed(tmp_path, monkeypatch):
    monkeypatch.setattr(run_module.fcntl, "flock", _no_locks)
    begun(tmp_path / "r")
    Run.open(tmp_path / "r", MANIFEST, resume=True).close()


def test_of_two_that_open_at_once_one_is_fenced(tmp_path, monkeypatch):
    monkeypatch.setattr(run_module.fcntl, "flock", _no_locks)
    begun(tmp_path / "r")
    scan = Run._scan

    def late(self: Run) -> None:
        scan(self)
        monkeypatch.setattr(Run, "_scan", scan)
        Run.open(tmp_path / "r", MANIFEST, resume=True)  # the other is faster

    monkeypatch.setattr(Run, "_scan", late)
    with pytest.raises(Overtaken):
        Run.open(tmp_path / "r", MANIFEST, resume=True)


# ---------------------------------------------------------------- force


def test_force_starts_anew(tmp_path):
    begun(tmp_path / "r")
    with Run.open(tmp_path / "r", changed(parameters={"a": 2}), force=True) as run:
        assert run.done == {}
    later = Run.open(tmp_path / "r", None)
    assert (later.done, later.manifest["parameters"]) == ({}, {"a": 2})


def test_force_removes_the_sums_and_leaves_other_files(tmp_path):
    begun(tmp_path)
    (tmp_path / "report.html").write_text("kept")
    with Run.open(tmp_path, MANIFEST, resume=True) as run:
        run.partials("x", 2, 3)
    Run.open(tmp_path, MANIFEST, force=True).close()
    assert not (tmp_path / "sums").exists()
    assert (tmp_path / "report.html").read_text() == "kept"


def test_force_is_refused_while_another_has_the_run(tmp_path):
    with (
        Run.open(tmp_path, MANIFEST),
        pytest.raises(RunError, match="is in use by process"),
    ):
        Run.open(tmp_path, MANIFEST, force=True)


def test_who_was_forced_out_is_fenced_too(tmp_path):
    first = Run.open(tmp_path, MANIFEST)
    Run.open(tmp_path, MANIFEST, force=True, takeover=True)
    first.record("x", (0,), 1)
    with pytest.raises(Overtaken):
        first.flush()


def test_a_kill_in_the_middle_of_force_leaves_no_old_record(tmp_path, monkeypatch):
    begun(tmp_path)

    def killed(self: Run) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "_replace_manifest", killed)
    with pytest.raises(KeyboardInterrupt):
        Run.open(tmp_path, changed(parameters={}), force=True)
    with Run.open(tmp_path, MANIFEST, resume=True) as run:
        assert run.done == {}


@pytest.mark.parametrize("name", ["manifest", "journal/00000000"])
def test_force_refuses_what_is_not_a_run(tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("packing list\n")
    with pytest.raises(RunError, match="not one of a run; choose another directory"):
        Run.open(tmp_path, MANIFEST, force=True)
    assert path.read_text() == "packing list\n"


def test_a_damaged_manifest_is_named_and_force_mends_it(tmp_path):
    path = begun(tmp_path / "r") / "manifest"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(RunError, match=r"manifest of .* is damaged; start anew with --force"):
        Run.open(tmp_path / "r", MANIFEST, resume=True)
    with Run.open(tmp_path / "r", MANIFEST, force=True) as run:
        assert run.manifest == MANIFEST


# ---------------------------------------------------------------- differences

FINGERPRINT = MANIFEST["inputs"]["X"]


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ({"parameters": {**MANIFEST["parameters"], "a": 2}}, "parameter a: 1 -> 2"),
        (
            {"parameters": {"features": {"n_projections": 16, "omega": None}, "a": 1}},
            "parameter features.n_projections: 8 -> 16",
        ),
        (
            {"parameters": {"features": {"n_projections": 8}, "a": 1}},
            "parameter features.omega: null -> absent",
        ),
        ({"parameters": {**MANIFEST["parameters"], "b": "x"}}, "parameter b: absent -> x"),
        (
            {"inputs": {"X": {**FINGERPRINT, "checksums": {"0": 1, "3": 9, "7": 5}}}},
            "input X: checksum of block 3 differs",
        ),
        (
            {"inputs": {"X": {**FINGERPRINT, "checksums": {"0": 1, "3": 9, "7": 6}}}},
            "input X: checksums of blocks 3, 7 differ",
        ),
        (
            {"inputs": {"X": {**FINGERPRINT, "shape": [12], "checksums": {"0": 4}}}},
            r"input X: shape \[10\] -> \[12\]",
        ),
        ({"inputs": {"Z": FINGERPRINT}}, "input X: .* -> absent, input Z: absent -> "),
    ],
)
def test_each_change_of_parameters_and_inputs_is_named(tmp_path, part, text):
    begun(tmp_path / "r")
    with pytest.raises(RunError, match=f"was begun otherwise: {text}") as caught:
        Run.open(tmp_path / "r", changed(**part), resume=True, allow_mixed=True)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ({"versions": {"numpy": "2.5.0"}}, "numpy 2.4.6 -> 2.5.0"),
        ({"cpu": {"machine": "arm64"}}, "cpu machine: x86_64 -> arm64"),
    ],
)
def test_other_versions_and_cpus_need_allow_mixed(tmp_path, part, text):
    begun(tmp_path / "r")
    with pytest.raises(RunError, match=f"{text}; start a new run, or give --allow-mixed"):
        Run.open(tmp_path / "r", changed(**part), resume=True)


def test_a_mixed_run_says_so_in_its_manifest(tmp_path):
    begun(tmp_path / "r")
    for _ in range(2):
        with Run.open(
            tmp_path / "r", changed(versions={"numpy": "2.5.0"}), resume=True, allow_mixed=True
        ) as run:
            assert len(run.done["features/features"]) == 3
    mixed = {"versions": {"numpy": "2.5.0"}, "cpu": MANIFEST["cpu"]}
    assert Run.open(tmp_path / "r", None).manifest == {**MANIFEST, "mixed": [mixed]}


# ---------------------------------------------------------------- sums


def test_partials_are_given_back_after_resuming(tmp_path):
    with Run.open(tmp_path, MANIFEST) as run:
        array = run.partials("model/products", 4, 3, {"level": 2})
        run.record("model/products", (1, 0), write_block(array, (1, 0), np.ones((1, 3))))
    with Run.open(tmp_path, MANIFEST, resume=True) as run:
        array = run.partials("model/products", 4, 3)
        assert check_block(array, (1, 0)) == run.done["model/products"][1, 0]
        assert array.attrs["level"] == 2


def test_sums_may_have_names_within_each_other(tmp_path):
    with Run.open(tmp_path, MANIFEST) as run:
        inner = run.partials("model/products/1", 1, 2)
        crc = write_block(inner, (0, 0), np.ones((1, 2)))
        run.partials("model/products", 1, 2)
        assert check_block(inner, (0, 0)) == crc


def test_partials_of_length_zero_can_be_made(tmp_path):
    with Run.open(tmp_path, MANIFEST) as run:
        assert run.partials("x", 3, 0).shape == (3, 0)


def test_partials_of_another_shape_are_refused(tmp_path):
    with Run.open(tmp_path, MANIFEST) as run:
        run.partials("x", 4, 3)
        with pytest.raises(RunError, match=r"has shape \(4, 3\), not \(4, 5\)"):
            run.partials("x", 4, 5)


@pytest.mark.parametrize("damage", ["delete", "damage"])
def test_a_sum_whose_metadata_is_lost_begins_anew(tmp_path, damage):
    with Run.open(tmp_path, MANIFEST) as run:
        array = run.partials("x", 2, 3)
        run.record("x", (0, 0), write_block(array, (0, 0), np.ones((1, 3))))
        path = tmp_path / "sums" / "x" / "zarr.json"
        path.unlink() if damage == "delete" else path.write_text("{")
        assert run.find_partials("x") is None
        assert run.partials("x", 3, 3).shape == (3, 3)
        assert run.missing("x", [(0, 0)]) == [(0, 0)]


@pytest.mark.parametrize("name", ["", "../x", "/x", "a//b", "a/", ".hidden", "a b"])
def test_sums_cannot_leave_the_run_directory(tmp_path, name):
    with Run.open(tmp_path, MANIFEST) as run, pytest.raises(InputError, match="a sum is named"):
        run.partials(name, 1, 1)
