"""The main job, on fewer groups than a person would run it on."""

from __future__ import annotations

import numpy as np
import pytest

from gramian import demo, load_model, open_dataset, pipeline
from gramian.job import Cluster
from gramian.store.run import Run


class Heard:
    """What a run says."""

    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)

    def progress(self, name, done, total):
        pass


@pytest.fixture(scope="module")
def small():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "TRAINING_GROUPS", 20)
        patch.setattr(demo, "TEST_GROUPS", 10)
        patch.setattr(demo, "PROJECTIONS", {"periodic": 64, "sign": 128})
        yield


@pytest.fixture(scope="module")
def root(small, tmp_path_factory):
    return tmp_path_factory.mktemp("demo") / "run"


@pytest.fixture(scope="module")
def first(root):
    return demo.run_demo(root, workers=0)


def test_digits_are_told_apart_well_above_chance(first):
    rows = first.tables[0]["rows"]
    assert len(rows) == 3
    assert all(accuracy > 0.8 for *_, accuracy in rows)


def test_a_learnt_map_keeps_the_neighbours_of_pixels(first):
    accuracy = {(name, size): value for name, size, value in first.tables[1]["rows"]}
    learnt = accuracy["neighbourhood components, stochastic neighbours", 10]
    assert learnt > accuracy["3 nearest neighbours, principal components", 10]
    assert learnt > accuracy["3 nearest neighbours, all pixels", demo.PIXELS] - 0.02


def test_the_regressions_of_diabetes_explain_what_is_known_to_be_explainable(first):
    rows = first.tables[2]["rows"]
    assert len(rows) == 3
    assert all(0.3 < score < 0.6 for _, *scores, _ in rows for score in scores)


def test_the_report_has_the_tables_and_the_figures(first):
    text = first.page.read_text(encoding="utf-8")
    wanted = (
        "Digits: held-out groups",
        "Diabetes",
        "Kernel error against the number of projections",
        "Spectrum",
        "Regularization path: pchar",
        "Regularization path: pchal",
    )
    assert [title for title in wanted if title not in text] == []


def test_the_advice_names_the_run(first, root):
    assert str(root) in first.advice


def test_run_again_it_says_that_it_is_complete(first, root):
    heard = Heard()
    again = demo.run_demo(root, workers=0, watch=heard)
    assert again.complete
    assert any("is complete" in line for line in heard.lines)
    assert again.tables == first.tables


def test_it_goes_on_where_it_stopped(first, root):
    (root / "pchal.zarr" / "zarr.json").unlink()
    heard = Heard()
    again = demo.run_demo(root, workers=0, watch=heard)
    assert not again.complete
    assert [line for line in heard.lines if ": fit" in line] == ["pchal: fit pchal"]
    assert load_model(root / "pchal.zarr").alpha_ > 0


def test_every_block_of_it_is_recorded_and_well(first, root):
    assert pipeline.verify(root) == []
    assert "comparison" in Run.open(root, None).stages


def test_no_image_is_on_both_sides_of_the_split(small):
    groups = demo.digit_groups()
    images = {
        side: {image.tobytes() for group in groups["X"][groups["split"] == side] for image in group.T}
        for side in (0, 1)
    }
    assert not images[0] & images[1]


def test_the_groups_are_the_same_each_time(small):
    np.testing.assert_array_equal(demo.digit_groups()["X"], demo.digit_groups()["X"])


def test_the_exact_kernel_is_that_of_the_stored_subspaces(first, root):
    from gramian.kernels import projection_kernel

    found = open_dataset(root / "projection.zarr").gram[:]
    expected = projection_kernel(open_dataset(root / "data/digits.zarr").subspaces[:])
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_the_main_job_fits_two_workers_of_its_size(root):
    real = demo.demo_job(root, Cluster(2, 1, demo.MEMORY))
    pipeline.outline(real).check()
