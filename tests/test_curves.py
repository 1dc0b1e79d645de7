"""Curves of a fitted estimator: what they say, and what making them takes."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from gramian import curves, engine
from gramian.blocks import DRIVER_BASE
from gramian.curves import kernel_error, kernel_error_plan
from gramian.features import SAMPLE, GrassmannianRandomFeatures
from gramian.kernels.grassmann import periodic_kernel, projection_kernel
from gramian.regression import PCHARRegressor
from tests.contracts import stored
from tests.strategies import orthonormal_bases

KERNELS = {"periodic": lambda X: periodic_kernel(X, omega=0.2), "linear": projection_kernel}


def bases(count: int, n: int = 12, k: int = 2) -> np.ndarray:
    return orthonormal_bases(np.random.default_rng(0), count, n, k)


@pytest.mark.parametrize("nonlinearity", KERNELS)
@pytest.mark.parametrize("m", [13, 300, 512])
def test_the_kernel_error_is_that_of_the_first_projections(nonlinearity, m):
    X = bases(30)
    fitted = GrassmannianRandomFeatures(m, nonlinearity=nonlinearity, omega=0.2, random_state=1).fit(X)
    features, wanted, width = fitted.transform(X), KERNELS[nonlinearity](X), len(fitted.transform(X)[0]) // m
    upper = np.triu_indices(len(X), 1)
    found = kernel_error(fitted, X)["kernel_error"]
    assert found["projections"] == [*(c for c in (8, 16, 32, 64, 128, 256) if c < m), m]
    assert found["pairs"] == len(upper[0])
    for count, error in zip(found["projections"], found["error"], strict=True):
        part = features[:, : width * count]
        literal = np.abs(part @ part.T * (m / count) - wanted)[upper].mean()
        assert error == pytest.approx(literal, rel=1e-9)


def test_the_kernel_error_is_of_a_sample_whatever_holds_the_rows():
    X = bases(400)
    fitted = GrassmannianRandomFeatures(64, omega=0.2, random_state=1).fit(X)
    found = kernel_error(fitted, X)
    assert found["kernel_error"]["pairs"] == SAMPLE * (SAMPLE - 1) // 2
    assert kernel_error(fitted, stored(X, 37)) == found


def test_maps_without_a_closed_kernel_have_no_error():
    X = bases(20)
    fitted = GrassmannianRandomFeatures(64, nonlinearity="sign", random_state=1).fit(X)
    assert kernel_error(fitted, X) == {}
    assert not kernel_error_plan(fitted, engine.spec_of(X)).steps


@pytest.mark.parametrize(("n", "k", "m"), [(12, 2, 60_000), (600, 10, 600)])
def test_the_kernel_error_stays_within_its_plan(n, k, m):
    X = stored(bases(600, n, k), 300)
    fitted = GrassmannianRandomFeatures(m, omega=0.1, random_state=1).fit(X)
    kernel_error(fitted, bases(4, n, k))  # what is imported and compiled is counted once, in every process
    tracemalloc.start()
    kernel_error(fitted, X)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    planned = kernel_error_plan(fitted, engine.spec_of(X)).driver_bytes() - DRIVER_BASE
    assert peak < planned < 200 << 20


def test_the_spectrum_says_how_many_components_were_kept():
    X = np.random.default_rng(0).random((60, 2))
    fitted = PCHARRegressor(1e-3, n_components=7, random_state=0).fit(X, X[:, 0])
    found = curves.spectrum(fitted)["spectrum"]
    assert (found["components"], found["component"]) == (7, list(range(1, 8)))
    assert found["eigenvalues"] == fitted.eigenvalues_.tolist()


@pytest.mark.filterwarnings("ignore:n_components:gramian.errors.GramianWarning")
def test_the_path_is_that_of_the_other_choices():
    random = np.random.default_rng(0)
    X = random.random((80, 2))
    alphas = (1e-1, 1e-3, 1e-5)
    y = X[:, 0] + X[:, 1] + 0.1 * random.standard_normal(80)
    fitted = PCHARRegressor(alphas, n_components=(3, 9), random_state=0).fit(X, y)
    found = curves.path(fitted)["path"]
    table = fitted.cv_results_
    own = [entry["n_components"] == fitted.n_components_ for entry in table["params"]]
    scores = dict(zip(table["param_alpha"][own], table["mean_test_score"][own], strict=True))
    assert found["alpha"] == sorted(alphas)
    assert found["score"] == [scores[alpha] for alpha in sorted(alphas)]
    assert (found["chosen"], found["folds"]) == (fitted.alpha_, 5)
