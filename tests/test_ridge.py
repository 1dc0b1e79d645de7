"""Blockwise ridge against scikit-learn's, and its cross-validation against fits to the rows themselves."""

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from sklearn.base import clone
from sklearn.linear_model import Ridge, RidgeClassifier
from sklearn.model_selection import KFold, ShuffleSplit
from sklearn.utils.estimator_checks import parametrize_with_checks

from gramian import blocks
from gramian.blocks import ArraySpec
from gramian.errors import GramianWarning, InputError, InputTypeError
from gramian.ridge import BlockwiseRidge, BlockwiseRidgeClassifier
from tests.contracts import assert_lazy

CANDIDATES = (100.0, 1.0, 0.01)


@parametrize_with_checks(
    [
        BlockwiseRidge(),
        BlockwiseRidge(alpha=1.0),
        BlockwiseRidgeClassifier(),
        BlockwiseRidgeClassifier(alpha=1.0),
    ]
)
@pytest.mark.filterwarnings("ignore::gramian.errors.GramianWarning")
def test_it_is_a_scikit_learn_estimator(estimator, check):
    check(estimator)


def drawn(n=200, m=6, t=3, seed=0, offset=0.0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    X = (rng.standard_normal((n, m)) + offset).astype(dtype)
    return X, X @ rng.standard_normal((m, t)) + rng.standard_normal((n, t))


def labels(n=200, classes=3, seed=0):
    X, Y = drawn(n, t=classes, seed=seed)
    return X, np.array(["elm", "oak", "yew", "fir"])[Y.argmax(axis=1)]


@pytest.fixture
def small_blocks(monkeypatch):
    """Many blocks of few rows."""
    monkeypatch.setattr(blocks, "TARGET", 1 << 13)


# -------------------------------------------------------------------------------------- closed form


@pytest.mark.parametrize("alpha", [0.0, 1e-6, 1.0, 1e4])
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_it_equals_ridge(alpha, fit_intercept, weighted):
    X, Y = drawn()
    w = np.random.default_rng(1).random(len(X)) if weighted else None
    model = BlockwiseRidge(alpha, fit_intercept=fit_intercept).fit(X, Y, sample_weight=w)
    wanted = Ridge(alpha, fit_intercept=fit_intercept).fit(X, Y, sample_weight=w)
    np.testing.assert_allclose(model.predict(X), wanted.predict(X), rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(model.coef_, wanted.coef_, rtol=1e-8, atol=1e-8)


def test_a_single_target_gives_vectors():
    X, Y = drawn()
    model = BlockwiseRidge(1.0).fit(X, Y[:, 0])
    wanted = Ridge(1.0).fit(X, Y[:, 0])
    assert model.coef_.shape == (6,)
    assert isinstance(model.intercept_, float)
    np.testing.assert_allclose(model.predict(X), wanted.predict(X), rtol=1e-8)


def test_more_features_than_rows():
    X, Y = drawn(n=20, m=50)
    np.testing.assert_allclose(
        BlockwiseRidge(0.1).fit(X, Y).predict(X), Ridge(0.1).fit(X, Y).predict(X), rtol=1e-8, atol=1e-8
    )


def test_rows_far_from_zero_keep_their_digits(small_blocks):
    X, Y = drawn(offset=1e6)
    model, wanted = BlockwiseRidge(1.0).fit(X, Y), Ridge(1.0).fit(X - 1e6, Y)
    np.testing.assert_allclose(model.coef_, wanted.coef_, rtol=1e-8)


def test_without_a_penalty_dependent_features_share_the_least_coefficients():
    X, Y = drawn()
    X = np.hstack([X, X[:, :1]])
    wanted = np.linalg.lstsq(X - X.mean(axis=0), Y - Y.mean(axis=0), rcond=None)[0]
    np.testing.assert_allclose(BlockwiseRidge(0.0).fit(X, Y).coef_, wanted.T, atol=1e-8)


def test_integer_weights_equal_repeated_rows():
    X, Y = drawn()
    w = np.random.default_rng(2).integers(0, 4, len(X))
    weighted = BlockwiseRidge(2.0).fit(X, Y, sample_weight=w)
    repeated = BlockwiseRidge(2.0).fit(np.repeat(X, w, axis=0), np.repeat(Y, w, axis=0))
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, rtol=1e-10)


@pytest.mark.parametrize("classes", [2, 3, 4])
def test_the_classifier_equals_ridge_classifier(classes):
    X, y = labels(classes=classes)
    model, wanted = BlockwiseRidgeClassifier(1.0).fit(X, y), RidgeClassifier(1.0).fit(X, y)
    np.testing.assert_allclose(model.decision_function(X), wanted.decision_function(X), rtol=1e-8, atol=1e-10)
    np.testing.assert_array_equal(model.predict(X), wanted.predict(X))
    np.testing.assert_allclose(model.coef_.ravel(), wanted.coef_.ravel(), rtol=1e-8, atol=1e-10)


# --------------------------------------------------------------------------------- cross-validation


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("splitter", [KFold(4), ShuffleSplit(6, test_size=0.2, random_state=0)])
def test_scores_from_sums_equal_scores_from_rows(splitter, fit_intercept):
    X, Y = drawn(offset=2.0)
    w = np.random.default_rng(1).random(len(X))
    model = BlockwiseRidge(CANDIDATES, fit_intercept=fit_intercept, cv=splitter).fit(X, Y, sample_weight=w)
    variance = np.average((Y - np.average(Y, axis=0, weights=w)) ** 2, axis=0, weights=w)
    for f, (train, test) in enumerate(splitter.split(X)):
        scores = []
        for alpha in CANDIDATES:
            ridge = Ridge(alpha, fit_intercept=fit_intercept).fit(X[train], Y[train], sample_weight=w[train])
            errors = np.average((Y[test] - ridge.predict(X[test])) ** 2, axis=0, weights=w[test])
            scores.append(1 - (errors / variance).mean())
        np.testing.assert_allclose(model.cv_results_[f"split{f}_test_score"], scores, rtol=1e-9)


def test_the_best_candidate_is_refitted_to_all_rows():
    X, Y = drawn(n=40)
    model = BlockwiseRidge(CANDIDATES, random_state=0).fit(X, Y)
    table = model.cv_results_
    assert model.alpha_ == table["param_alpha"][table["mean_test_score"].argmax()]
    np.testing.assert_allclose(model.coef_, Ridge(model.alpha_).fit(X, Y).coef_, rtol=1e-8)


def test_a_given_alpha_needs_no_folds():
    X, Y = drawn(n=3)
    assert BlockwiseRidge(1.0, cv=5).fit(X, Y).cv_results_ is None


def test_an_automatic_alpha_follows_the_scale_of_the_features():
    X, Y = drawn()
    first = BlockwiseRidge(random_state=0).fit(X, Y)
    second = BlockwiseRidge(random_state=0).fit(1000 * X, Y)
    np.testing.assert_allclose(second.alpha_, 1e6 * first.alpha_)


@pytest.mark.filterwarnings("ignore:alpha")
def test_groups_stay_together():
    X, Y = drawn(n=40)
    twice, both, groups = np.repeat(X, 2, axis=0), np.repeat(Y, 2, axis=0), np.repeat(np.arange(40), 2)
    grouped = BlockwiseRidge((100.0, 1.0), cv=40).fit(twice, both, groups=groups)
    alone = BlockwiseRidge((50.0, 0.5), cv=40).fit(X, Y)
    for candidate in (0, 1):
        found, wanted = (
            np.sort([model.cv_results_[f"split{f}_test_score"][candidate] for f in range(40)])
            for model in (grouped, alone)
        )
        np.testing.assert_allclose(found, wanted, rtol=1e-9)


def test_a_choice_on_the_edge_warns():
    X = np.random.default_rng(0).standard_normal((100, 3))
    with pytest.warns(GramianWarning, match="alpha = 1e-09 is the lower edge"):
        BlockwiseRidge((1e-9, 10.0), random_state=0).fit(X, X[:, 0])


# ------------------------------------------------------------------------------- where the rows are


def stored(array, chunks):
    return zarr.create_array({}, data=array, chunks=chunks)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("chunks", [(7, 6), (64, 2), (200, 6)])
def test_the_bits_do_not_depend_on_where_the_rows_are(chunks, dtype, small_blocks):
    X, Y = drawn(dtype=dtype)
    w = np.random.default_rng(1).random(len(X))
    models = [
        BlockwiseRidge(random_state=0).fit(rows, target, sample_weight=weights)
        for rows, target, weights in (
            (X, Y, w),
            (stored(X, chunks), Y, stored(w, (11,))),
            (da.from_array(X, chunks=chunks), da.from_array(Y, chunks=(50, 3)), w),
        )
    ]
    for model in models[1:]:
        np.testing.assert_array_equal(model.coef_, models[0].coef_)
        assert model.alpha_ == models[0].alpha_


@pytest.mark.parametrize("threads", [1, 2])
def test_the_bits_do_not_depend_on_threads(threads, small_blocks):
    X, Y = drawn()
    with dask.config.set(num_workers=threads):
        coef = BlockwiseRidge(1.0).fit(X, Y).coef_
    with dask.config.set(scheduler="synchronous"):
        np.testing.assert_array_equal(BlockwiseRidge(1.0).fit(X, Y).coef_, coef)


def test_blocks_change_nothing_but_rounding(monkeypatch):
    X, Y = drawn()
    whole = BlockwiseRidge(1.0).fit(X, Y)
    monkeypatch.setattr(blocks, "TARGET", 1 << 12)
    np.testing.assert_allclose(BlockwiseRidge(1.0).fit(X, Y).coef_, whole.coef_, rtol=1e-12)


@pytest.mark.parametrize("kind", ["zarr", "dask"])
@pytest.mark.parametrize("method", ["predict", "decision_function"])
def test_predictions_of_stored_rows_are_lazy(kind, method, small_blocks):
    X, y = labels()
    model = BlockwiseRidgeClassifier(1.0).fit(X, y)
    rows = stored(X, (30, 6)) if kind == "zarr" else da.from_array(X, chunks=(30, 3))
    assert_lazy(getattr(model, method), rows, X)


def test_labels_of_a_store(small_blocks):
    X, y = labels()
    _, codes = np.unique(y, return_inverse=True)
    model = BlockwiseRidgeClassifier(random_state=0).fit(stored(X, (30, 6)), stored(codes, (17,)))
    np.testing.assert_array_equal(model.coef_, BlockwiseRidgeClassifier(random_state=0).fit(X, y).coef_)


def test_scaled_features_of_a_store_are_those_that_a_reader_sees():
    X, Y = drawn()
    rows = stored(X, (30, 6))
    rows.attrs["scale"] = 0.25
    np.testing.assert_allclose(
        BlockwiseRidge(1.0).fit(rows, Y).coef_, BlockwiseRidge(1.0).fit(0.25 * X, Y).coef_
    )


# ------------------------------------------------------------------------------------------- plans


@pytest.mark.filterwarnings("ignore:alpha")
@pytest.mark.parametrize("features", [64, 512])
def test_the_plan_is_that_of_the_sum(features, monkeypatch):
    from gramian import engine

    seen = []
    real = engine.row_sum
    monkeypatch.setattr(
        engine, "row_sum", lambda *args, **kwargs: seen.append((args[1], kwargs)) or real(*args, **kwargs)
    )
    X, Y = drawn(n=300, m=features, t=2)
    specs = [ArraySpec(array.shape, array.dtype) for array in (X, Y)]
    (step,) = BlockwiseRidge(cv=3).plan(*specs).steps
    BlockwiseRidge(cv=3, alpha=(1e-9, 1.0, 1e9)).fit(X, Y)
    (grid, sizes) = seen[-1]
    wanted = engine.sum_step("gram", grid, X, Y, scratch=sizes["scratch"], result=sizes["result"])
    assert (step.tasks, step.task_bytes) == (wanted.tasks, wanted.task_bytes)


@pytest.mark.parametrize("kind", [np.asarray, lambda y: stored(y, (7,)), lambda y: y.tolist()])
def test_the_plan_of_a_classifier_counts_its_classes(kind):
    X, labels = drawn(n=60)[0], np.arange(60) % 7
    plan = BlockwiseRidgeClassifier().plan(X, kind(labels))
    promised = BlockwiseRidgeClassifier().plan(X, ArraySpec((60, 7), np.dtype(np.int64)))
    ridge = BlockwiseRidge().plan(X, ArraySpec((60, 7), np.dtype(np.float64)))
    assert plan == promised
    assert plan.steps[0].result_bytes == ridge.steps[0].result_bytes


def test_the_plan_of_two_classes_is_that_of_one_target():
    X = drawn(n=60)[0]
    found = BlockwiseRidgeClassifier().plan(X, np.arange(60) % 2)
    assert found.steps[0].result_bytes == BlockwiseRidge().plan(X, X[:, 0]).steps[0].result_bytes


def test_a_plan_cannot_count_the_classes_of_a_shape():
    with pytest.raises(InputError, match=r"ArraySpec of shape \(60,\), which does not tell the number"):
        BlockwiseRidgeClassifier().plan(drawn(n=60)[0], ArraySpec((60,), np.dtype(np.int64)))


# -------------------------------------------------------------------------------------- bad inputs


def broken(**changes):
    X, Y = drawn(n=20)
    return {"X": X, "y": Y[:, 0]} | changes


@pytest.mark.parametrize(
    ("parameters", "data", "message"),
    [
        ({"alpha": -1.0}, broken(), "alpha is -1.0; give a finite number of at least 0"),
        ({"alpha": "best"}, broken(), "alpha is 'best'"),
        ({"alpha": ()}, broken(), "alpha holds no candidate"),
        ({"cv": 30}, broken(), "cv is 30 for 20 rows"),
        ({}, broken(y=np.ones(20)), "y is constant"),
        ({}, broken(sample_weight=-np.ones(20)), "sample_weight holds -1"),
        ({}, broken(sample_weight=np.zeros(20)), "sample_weight is zero for every row"),
        ({}, broken(sample_weight=np.ones(19)), r"sample_weight has shape \(19,\)"),
        ({}, broken(groups=np.ones(19)), r"groups has shape \(19,\)"),
        ({"random_state": -1}, broken(), "random_state is -1"),
    ],
)
def test_bad_input_is_told_in_one_line(parameters, data, message):
    with pytest.raises(InputError, match=message) as caught:
        BlockwiseRidge(**parameters).fit(**data)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("rows", "target", "message"),
    [
        (lambda X: stored(X[0], (3,)), None, r"X has shape \(6,\)"),
        (lambda X: stored(X, (5, 6)), np.ones(19), r"y has shape \(19,\)"),
        (lambda X: stored(np.where(X > 2, np.nan, X), (5, 6)), None, "X has NaN"),
        (
            lambda X: da.from_array(X, chunks=5)[da.from_array(X[:, 0] > 0, chunks=5)],
            None,
            "unknown chunk sizes",
        ),
    ],
)
def test_bad_stored_rows_are_told_in_one_line(rows, target, message):
    X, Y = drawn(n=200)
    with pytest.raises(InputError, match=message):
        BlockwiseRidge(1.0).fit(rows(X), Y[:, 0] if target is None else target)


def test_a_path_is_refused():
    with pytest.raises(InputTypeError, match=r"X is the path 'rows\.zarr'"):
        BlockwiseRidge(1.0).fit("rows.zarr", np.ones(3))


def test_other_columns_are_refused_when_predicting():
    X, Y = drawn()
    with pytest.raises(InputError, match="X has 5 features, but BlockwiseRidge is expecting 6"):
        BlockwiseRidge(1.0).fit(X, Y).predict(stored(X[:, :5].copy(), (50, 5)))


def test_one_class_is_refused():
    with pytest.raises(InputError, match="y holds 1 class"):
        BlockwiseRidgeClassifier().fit(drawn()[0], np.ones(200, int))


def test_an_unknown_response_is_refused():
    X, y = labels()
    with pytest.raises(InputError, match="response is 'predict_proba'"):
        BlockwiseRidgeClassifier(1.0).fit(X, y).row_map(X, "predict_proba")


def test_a_generator_as_random_state_gives_a_seed_that_repeats_the_fit():
    X, Y = drawn(n=40)
    model = BlockwiseRidge(CANDIDATES, random_state=np.random.default_rng(5)).fit(X, Y)
    again = clone(model).set_params(random_state=model.seed_).fit(X, Y)
    np.testing.assert_array_equal(model.cv_results_["mean_test_score"], again.cv_results_["mean_test_score"])
