"""The page of a run: everything that the records hold, in one file."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from gramian.errors import RunError
from gramian.report import FIGURES, figures, write_report
from gramian.store.run import Run

MANIFEST = {
    "title": "a <run>",
    "started": "2026-01-01T00:00:00+00:00",
    "parameters": {
        "stages": {
            "features": {"command": "featurize", "features": "periodic", "store": "data.zarr"},
            "model": {"command": "fit", "model": "pchar", "store": "data.zarr"},
            "test": {"command": "evaluate", "model": "model", "store": "data.zarr"},
        }
    },
    "versions": {"gramian": "0.1.0", "numpy": "2.4"},
    "cpu": {"machine": "x86_64"},
    "seeds": {"features": 7},
    "max_memory": 2 << 30,
    "plan": {"steps": [{"step": "features/features", "tasks": "3", "read": "1 MiB"}]},
}
FACTS = {
    "command": "featurize",
    "output": "features.zarr",
    "seconds": 1.25,
    "blocks": 12,
    "planned_bytes": 400 << 20,
    "measured_bytes": 300 << 20,
}
CURVES = {
    "kernel_error": {"projections": [8, 64, 512], "error": [0.2, 0.08, 0.02], "pairs": 4560},
    "spectrum": {"component": [1, 2, 3, 4], "eigenvalues": [1.0, 0.1, 0.01, 0.002], "components": 2},
    "path": {
        "alpha": [1e-3, 1e-1, 1e1],
        "score": [0.2, 0.5, 0.4],
        "spread": [0.1, 0.1, 0.1],
        "chosen": 0.1,
        "folds": 5,
        "metric": "R²",
    },
    "objective": {"iteration": [0, 1, 2, 3], "value": [0.2, 0.5, 0.6, 0.61], "objective": "accuracy"},
}
SCATTER = {
    "before": [[0.0, 1.0], [1.0, 2.0], [2.0, 0.0]],
    "after": [[0.0, 3.0], [4.0, 2.0], [2.0, 5.0]],
    "codes": [0, 1, 0],
    "classes": ["<cat>", "dog"],
    "start_name": "pca",
}
BARS = {"columns": 0.9, "start": 0.5, "end": 0.85, "rows": 2000, "nearest": 3, "start_name": "lda"}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A run of which two stages of three have finished."""
    table = {
        "title": "Compared",
        "columns": ["method", "accuracy"],
        "rows": [["<exact>", 0.98765]],
        "note": "fair",
    }
    root = tmp_path_factory.mktemp("report") / "run"
    with Run.open(root, MANIFEST) as run:
        run.complete(
            "features", {**FACTS, "curves": {"kernel_error": CURVES["kernel_error"]}, "tables": [table]}
        )
        run.complete(
            "model",
            {
                **FACTS,
                "command": "fit",
                "choices": {"alpha": 0.1},
                "curves": {"spectrum": CURVES["spectrum"], "path": CURVES["path"]},
            },
        )
    return root


class Page(HTMLParser):
    """Tags, text and references of a page."""

    def __init__(self, text):
        super().__init__()
        self.open, self.text, self.references, self.tags = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.references += [value for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag not in ("meta", "link", "br", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.references += [value for name, value in attrs if name in ("src", "href", "xlink:href")]

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def page(root):
    return Page(write_report(root).read_text(encoding="utf-8"))


def test_every_tag_is_closed(page):
    assert page.open == []


def test_the_page_needs_no_other_file(page):
    assert [reference for reference in page.references if not reference.startswith("#")] == []


def test_every_curve_is_a_figure(page):
    assert page.tags.count("figure") == page.tags.count("svg") == 3


@pytest.mark.parametrize(
    "text",
    [
        "a <run>",
        "Compared",
        "<exact>",
        "0.9877",
        "alpha",
        "400 MiB",
        "300 MiB",
        "1.33",
        "not finished: test",
        "1.2 s",
        "12",
        "numpy 2.4",
    ],
)
def test_what_the_records_hold_is_on_the_page(page, text):
    assert text in " ".join(page.text)


def test_figures_follow_the_colour_of_the_text(root):
    text = write_report(root).read_text(encoding="utf-8")
    assert "currentColor" in text
    assert "#010203" not in text


def test_the_same_run_gives_the_same_page(root):
    assert write_report(root).read_bytes() == write_report(root).read_bytes()


def test_every_kind_of_curve_is_drawn():
    known = {**CURVES, "scatter": SCATTER, "neighbours": BARS}
    assert set(known) == set(FIGURES)
    drawn = figures([{"stage": "a", "curves": known}])
    assert [figure.title for figure in drawn][-3:] == ["Nearest neighbours: a", "a: before", "a: after"]
    *_, bars, before, after = drawn
    assert all(text in bars.svg for text in ("0.900", "0.500", "0.850", "start (lda)"))
    assert "2,000 training rows" in bars.caption
    assert "before the fit, at the start (pca)" in before.caption
    assert after.svg.count("<use ") >= 3
    assert "&lt;cat&gt;" in after.svg


@pytest.mark.parametrize("kind", CURVES)
def test_a_figure_draws_all_its_points(kind):
    (figure,) = figures([{"stage": "a", "curves": {kind: CURVES[kind]}}])
    longest = max(
        len(re.findall(r"[ML] ", path)) for path in re.findall(r'<path d="([^"]*)" clip-path', figure.svg)
    )
    assert longest >= min(map(len, (value for value in CURVES[kind].values() if isinstance(value, list))))


def test_stages_share_the_figure_of_a_kernel_error():
    records = [{"stage": name, "curves": {"kernel_error": CURVES["kernel_error"]}} for name in "ab"]
    assert len(figures(records)) == 1


def test_without_curves_there_is_no_figure():
    assert figures([{"stage": "a"}]) == []


def test_a_deep_path_says_where_its_axis_ends():
    deep = {**CURVES["path"], "score": [-30.0, 0.5, 0.4]}
    (figure,) = figures([{"stage": "a", "curves": {"path": deep}}])
    assert "The axis ends" in figure.caption


def test_a_run_without_a_finished_stage_has_no_report(tmp_path):
    Run.open(tmp_path / "run", MANIFEST).close()
    with pytest.raises(RunError, match="no stage"):
        write_report(tmp_path / "run")


def test_a_folder_that_is_no_run_has_no_report(tmp_path):
    with pytest.raises(RunError, match="not a run directory"):
        write_report(tmp_path)
