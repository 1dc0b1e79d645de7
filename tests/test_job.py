"""Jobs in words: one line for every fault, naming the stage and the key."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gramian.job import (
    Cluster,
    JobError,
    Rows,
    Stage,
    command_job,
    merge_clusters,
    parse_job,
    parse_settings,
    parse_size,
    parse_value,
    read_job,
)

JOB = """
path = "runs/objects"
max_memory = "2GiB"

[cluster]
workers = 2
threads = 1
memory_limit = "700MiB"

[stages.features]
command = "featurize"
store = "objects.zarr"
features = "periodic"
set = { n_projections = 64, random_state = 0 }

[stages.classifier]
command = "fit"
store = "features"
model = "ridge-classifier"
rows = "train"

[stages.test]
command = "evaluate"
model = "classifier"
store = "features"
rows = "test"
"""


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "job.toml"
        path.write_text(text)
        return path

    return write


def test_a_job_file_gives_its_stages_in_order(file, tmp_path):
    job = read_job(file(JOB))
    assert [(stage.name, stage.command) for stage in job.stages] == [
        ("features", "featurize"),
        ("classifier", "fit"),
        ("test", "evaluate"),
    ]
    assert job.path == str(tmp_path / "runs/objects")
    assert job.max_memory == 2 << 30
    assert job.cluster == Cluster(workers=2, threads=1, memory_limit=700 << 20)


def test_outputs_lie_in_the_run_directory_and_paths_are_relative_to_the_file(file, tmp_path):
    features, classifier, test = read_job(file(JOB)).stages
    assert features.store == str(tmp_path / "objects.zarr")
    assert features.out == str(tmp_path / "runs/objects/features.zarr")
    assert classifier.store == "features"
    assert test.out == str(tmp_path / "runs/objects/test.json")


def test_urls_and_absolute_paths_stay_as_they_are(file):
    text = JOB.replace('"objects.zarr"', '"s3://bucket/objects.zarr"')
    assert read_job(file(text)).stages[0].store == "s3://bucket/objects.zarr"


def test_the_words_of_a_stage_are_those_of_the_command_line(file):
    words = read_job(file(JOB)).stages[0].words()
    assert words["features"] == "periodic"
    assert words["set"] == {"n_projections": 64, "random_state": 0}
    assert "rows" not in words


def test_none_in_a_table_is_None(file):
    text = JOB.replace("random_state = 0", 'random_state = "none"')
    assert read_job(file(text)).stages[0].set["random_state"] is None


FAULTS = {
    "not TOML": (JOB.replace("[cluster]", "[cluster"), "job.toml is not TOML"),
    "unknown key of the job": ("colour = 1\n" + JOB, "the job has the key 'colour'"),
    "no path": (JOB.replace('path = "runs/objects"', ""), "the job has no path"),
    "no stages": ('path = "x"', "the job has no stages"),
    "size": (JOB.replace('"2GiB"', '"2 apples"'), "max_memory is '2 apples'"),
    "cluster key": (JOB.replace("threads = 1", "thread = 1"), "[cluster] has the key 'thread'"),
    "cluster type": (JOB.replace("workers = 2", 'workers = "two"'), "[cluster] has workers = 'two'"),
    "no command": (JOB.replace('command = "fit"', ""), "stage classifier has no command"),
    "command": (JOB.replace('"fit"', '"fix"'), "stage classifier has command = 'fix'"),
    "key of another command": (
        JOB.replace('model = "ridge-classifier"', 'kernel = "hal"'),
        "stage classifier has the key 'kernel'",
    ),
    "missing key": (JOB.replace('model = "ridge-classifier"', ""), "stage classifier has no model"),
    "type": (JOB.replace('store = "objects.zarr"', "store = 3"), "stage features has store = 3"),
    "rows": (JOB.replace('rows = "train"', 'rows = "tain"'), "stage classifier: rows are 'tain'"),
    "set": (
        JOB.replace("set = { n_projections = 64, random_state = 0 }", "set = 3"),
        "stage features has set = 3",
    ),
    "later stage": (
        JOB.replace('store = "objects.zarr"', 'store = "classifier"'),
        "stage features has store = 'classifier', a stage that comes later",
    ),
    "set of a fitted model": (
        JOB.replace('rows = "test"', "set = { alpha = 1 }"),
        "stage test sets alpha of a fitted model",
    ),
    "same output": (
        JOB.replace('rows = "train"', 'out = "runs/objects/features.zarr"'),
        "stage classifier has the output of stage features",
    ),
    "output within another": (
        JOB.replace('rows = "train"', 'out = "runs/objects/features.zarr/deep/m.zarr"'),
        "stage classifier has out = ",
    ),
    "output around another": (
        JOB.replace('rows = "train"', 'out = "runs/objects"'),
        "stage classifier has out",
    ),
    "output by another name": (
        JOB.replace('rows = "train"', 'out = "runs/x/../objects/./features.zarr"'),
        "stage classifier has the output of stage features",
    ),
    "output among the records": (
        JOB.replace('rows = "test"', 'out = "runs/objects/journal/s.json"'),
        "where the run directory keeps its records",
    ),
    "certificates": (JOB.replace("threads = 1", 'tls_ca = "a"'), "--tls-cert and --tls-key not given"),
    "scores at a URL": (
        JOB.replace('rows = "test"', 'out = "s3://a/b"'),
        "stage test has out = 's3://a/b', a URL",
    ),
    "name": (JOB.replace("[stages.test]", '[stages."a/b"]'), "stage a/b has a name that cannot be a file's"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_one_line_that_names_its_place(file, name):
    text, expected = FAULTS[name]
    with pytest.raises(JobError) as caught:
        read_job(file(text))
    assert expected in caught.value.cause
    assert caught.value.remedy
    assert "\n" not in str(caught.value)


def test_a_job_file_that_is_missing_is_an_error(tmp_path):
    with pytest.raises(JobError, match="cannot be read"):
        read_job(tmp_path / "none.toml")


def test_a_job_must_be_a_table_of_stages():
    with pytest.raises(JobError, match=r"stage a is 3"):
        parse_job({"path": "x", "stages": {"a": 3}}, base=Path())


@pytest.mark.parametrize(
    ("text", "size"), [("700MiB", 700 << 20), ("2 GB", 2 * 10**9), ("1.5kib", 1536), ("10", 10), (4096, 4096)]
)
def test_sizes(text, size):
    assert parse_size(text, "limit") == size


@pytest.mark.parametrize("text", ["", "-1GiB", "0", "1 XB", "GiB", True])
def test_sizes_that_are_none(text):
    with pytest.raises(JobError, match="limit is"):
        parse_size(text, "limit")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("1e-3", 1e-3),
        ("[1, 2]", [1, 2]),
        ("true", True),
        ("none", None),
        ("None", None),
        ('"none"', "none"),
        ("dense", "dense"),
        ("a = 1", "a = 1"),
        ("1\nother = 2", "1\nother = 2"),
    ],
)
def test_values_are_toml_else_text(text, value):
    assert parse_value(text) == value


@pytest.mark.parametrize("texts", [["alpha"], ["=1"], ["a-b=1"], ["a=1", "a=2"]])
def test_settings_that_are_none(texts):
    with pytest.raises(JobError, match="--set has"):
        parse_settings(texts)


@pytest.mark.parametrize("text", ["", "a:b", "3", "5:5", "7:2", "-3:", "train:test", "Test"])
def test_rows_that_are_none(text):
    with pytest.raises(JobError, match="rows are"):
        Rows.parse(text)


def test_an_open_range_of_rows():
    assert Rows.parse(":10") == Rows(stop=10)


def test_the_run_of_a_command_stands_beside_its_output():
    stage = Stage("fit", "fit", "data.zarr", "pchar", out="models/a.zarr/")
    assert command_job(stage, cluster=Cluster()).path == "models/a.zarr.run"


def test_a_command_without_output_has_no_run():
    stage = Stage("evaluate", "evaluate", "data.zarr", "model.zarr")
    assert command_job(stage, cluster=Cluster()).path is None


def test_a_scheduler_takes_the_place_of_the_local_cluster():
    local = Cluster(workers=2, memory_limit=1 << 30)
    assert merge_clusters(local, Cluster(scheduler="tcp://a:1")) == Cluster(scheduler="tcp://a:1")


def test_the_call_changes_what_it_names_alone():
    local = Cluster(workers=2, memory_limit=1 << 30)
    assert merge_clusters(local, Cluster(workers=4)) == replace(local, workers=4)
