"""PCHAR and PCHAL: closed forms against solvers on the scores, honest folds, rows in any place."""

import dask
import dask.array as da
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import Lasso, Ridge
from sklearn.model_selection import KFold, ShuffleSplit
from sklearn.utils.estimator_checks import parametrize_with_checks

from gramian import engine, moments, regression
from gramian.blocks import ArraySpec
from gramian.errors import GramianWarning, InputError
from gramian.features import HALPrincipalComponents
from gramian.regression import PCHALRegressor, PCHARRegressor, lasso_path, ridge_path, truncated
from tests.contracts import assert_same_bits, blocks_of, lazy, stored

BOTH = (PCHARRegressor, PCHALRegressor)
ROUTES = ("dense", "nystroem")

# short grids end where a test wants them to
pytestmark = pytest.mark.filterwarnings("ignore:.* edge of its grid:gramian.errors.GramianWarning")


@parametrize_with_checks(
    [
        PCHARRegressor(),
        PCHALRegressor(),
        PCHARRegressor(alpha=1e-3),
        PCHALRegressor(alpha=1e-3),
        PCHARRegressor(solver="nystroem"),
    ]
)
@pytest.mark.filterwarnings("ignore::gramian.errors.GramianWarning")
def test_it_is_a_scikit_learn_estimator(estimator, check):
    check(estimator)


def drawn(n=100, d=2, seed=0, targets=None):
    rng = np.random.default_rng(seed)
    X = rng.random((n, d))
    y = np.sin(5 * X[:, 0]) + X[:, -1] + 0.2 * rng.standard_normal(n)
    return X, y if targets is None else np.column_stack(
        [y] + [rng.standard_normal(n) for _ in range(targets - 1)]
    )


# ------------------------------------------------------------------------------------- closed forms


def orthogonal_scores(seed=0, n=50, k=6, t=2):
    rng = np.random.default_rng(seed)
    U = np.linalg.qr(rng.standard_normal((n, k)))[0]
    D = np.sort(rng.random(k) * 10)[::-1]
    return U * np.sqrt(D), D, rng.standard_normal((n, t))


@pytest.mark.parametrize("penalty", [1e-6, 0.1, 10.0])
def test_the_ridge_path_is_that_of_ridge(penalty):
    Z, D, Y = orthogonal_scores()
    wanted = Ridge(penalty, fit_intercept=False).fit(Z, Y).coef_.T
    np.testing.assert_allclose(ridge_path(D, Z.T @ Y, np.array([penalty]))[:, 0], wanted, atol=1e-12)


@pytest.mark.parametrize("penalty", [1e-6, 0.1, 2.0])
def test_the_lasso_path_is_that_of_lasso(penalty):
    Z, D, Y = orthogonal_scores()
    lasso = Lasso(penalty / len(Z), fit_intercept=False, tol=1e-14, max_iter=10_000).fit(Z, Y[:, 0])
    found = lasso_path(D, Z.T @ Y, np.array([penalty]))[:, 0, 0]
    np.testing.assert_allclose(found, lasso.coef_, atol=1e-9)


def test_a_truncated_path_has_only_the_first_components():
    path = np.ones((3, 2, 1))
    np.testing.assert_array_equal(truncated(path, (1, 3)).sum(axis=0)[:, 0], [1, 1, 3, 3])


@pytest.mark.parametrize("solver", ROUTES)
@pytest.mark.parametrize("alpha", [1e-6, 1e-3])
def test_pchar_is_ridge_on_the_scores(alpha, solver):
    X, y = drawn()
    new = drawn(seed=1)[0]
    components = HALPrincipalComponents(20, solver=solver, random_state=0).fit(X)
    ridge = Ridge(len(X) * alpha).fit(components.transform(X), y)
    model = PCHARRegressor(alpha, n_components=20, solver=solver, random_state=0).fit(X, y)
    np.testing.assert_allclose(model.predict(new), ridge.predict(components.transform(new)), rtol=1e-9)
    np.testing.assert_allclose(model.coef_, ridge.coef_, rtol=1e-6)


@pytest.mark.parametrize("solver", ROUTES)
@pytest.mark.parametrize("alpha", [1e-4, 1e-2])
def test_pchal_is_lasso_on_the_scores(alpha, solver):
    X, y = drawn()
    new = drawn(seed=1)[0]
    components = HALPrincipalComponents(20, solver=solver, random_state=0).fit(X)
    lasso = Lasso(alpha, tol=1e-14, max_iter=10_000).fit(components.transform(X), y)
    model = PCHALRegressor(alpha, n_components=20, solver=solver, random_state=0).fit(X, y)
    np.testing.assert_allclose(model.predict(new), lasso.predict(components.transform(new)), rtol=1e-9)


def test_pchar_without_centring_has_no_intercept():
    X, y = drawn()
    Z = HALPrincipalComponents(20, center=False).fit(X)
    ridge = Ridge(len(X) * 1e-3, fit_intercept=False).fit(Z.transform(X), y)
    model = PCHARRegressor(1e-3, n_components=20, center=False).fit(X, y)
    np.testing.assert_allclose(model.predict(X), ridge.predict(Z.transform(X)), rtol=1e-9)
    assert model.intercept_ == 0


def test_pchar_with_all_components_is_kernel_ridge():
    X, y = drawn()
    components = HALPrincipalComponents().fit(X)
    Z = components.transform(X)
    fitted = y.mean() + Z @ Z.T @ np.linalg.solve(Z @ Z.T + len(X) * 1e-3 * np.eye(len(X)), y - y.mean())
    np.testing.assert_allclose(PCHARRegressor(1e-3).fit(X, y).predict(X), fitted, rtol=1e-9)


@pytest.mark.parametrize("Model", BOTH)
@pytest.mark.parametrize("solver", [*ROUTES, "randomized"])
def test_integer_weights_equal_repeated_rows(Model, solver):
    X, y = drawn()
    w = np.random.default_rng(1).integers(1, 4, len(X))
    build = clone(Model(1e-3, n_components=15, solver=solver, random_state=0))
    weighted = clone(build).fit(X, y, sample_weight=w)
    repeated = clone(build).fit(np.repeat(X, w, axis=0), np.repeat(y, w))
    np.testing.assert_allclose(weighted.predict(X), repeated.predict(X), rtol=1e-7)


@pytest.mark.parametrize("Model", BOTH)
def test_weights_of_zero_are_missing_rows(Model):
    X, y = drawn()
    w = np.random.default_rng(1).integers(0, 3, len(X))
    weighted = Model(1e-3).fit(X, y, sample_weight=w)
    repeated = Model(1e-3).fit(np.repeat(X, w, axis=0), np.repeat(y, w))
    np.testing.assert_allclose(weighted.predict(X), repeated.predict(X), rtol=1e-9)


@pytest.mark.parametrize("Model", BOTH)
def test_the_scale_of_the_weights_does_not_matter(Model):
    X, y = drawn()
    w = np.random.default_rng(1).random(len(X))
    first = Model(random_state=0).fit(X, y, sample_weight=w)
    second = Model(random_state=0).fit(X, y, sample_weight=100 * w)
    np.testing.assert_allclose(second.predict(X), first.predict(X), rtol=1e-9)


@pytest.mark.parametrize("Model", BOTH)
@pytest.mark.parametrize("solver", ROUTES)
def test_a_thousand_times_the_target_gives_a_thousand_times_the_predictions(Model, solver):
    X, y = drawn()
    once = Model(solver=solver, random_state=0).fit(X, y).predict(X)
    often = Model(solver=solver, random_state=0).fit(X, 1000 * y).predict(X)
    np.testing.assert_allclose(often, 1000 * once, rtol=1e-9)


@pytest.mark.parametrize("Model", BOTH)
@pytest.mark.parametrize("n_components", ["auto", 20])
def test_dense_and_nystroem_with_all_rows_as_landmarks_agree(Model, n_components):
    X, y = drawn()
    new = drawn(seed=1)[0]
    first, second = (
        Model(1e-3, n_components=n_components, solver=solver).fit(X, y).predict(new) for solver in ROUTES
    )
    np.testing.assert_allclose(second, first, atol=1e-8 * np.abs(first).max())


@pytest.mark.parametrize("Model", BOTH)
@pytest.mark.parametrize("solver", ROUTES)
def test_several_targets_are_fitted_as_each_alone(Model, solver):
    X, Y = drawn(targets=3)
    together = Model(1e-3, solver=solver, random_state=0).fit(X, Y)
    alone = [Model(1e-3, solver=solver, random_state=0).fit(X, y) for y in Y.T]
    np.testing.assert_allclose(together.predict(X), np.column_stack([m.predict(X) for m in alone]), rtol=1e-9)
    assert together.coef_.shape == (3, together.n_components_)


@pytest.mark.parametrize("Model", BOTH)
def test_predictions_are_those_of_the_dual_coefficients(Model):
    from gramian.kernels import hal_kernel

    X, y = drawn()
    model = Model(1e-3).fit(X, y)
    K = hal_kernel(X, model.landmarks_, knots=model.knots_)
    np.testing.assert_allclose(model.predict(X), K @ model.dual_coef_ + model.intercept_, rtol=1e-12)


# -------------------------------------------------------------------------------------- honest folds


@pytest.mark.parametrize("Model", BOTH)
@pytest.mark.parametrize("weighted", [True, False])
def test_scores_are_those_of_fits_to_the_training_rows_alone(Model, weighted):
    X, y = drawn(60)
    w = np.random.default_rng(1).random(60) if weighted else np.ones(60)
    alphas = (1e-1, 1e-3, 1e-5)
    model = Model(alphas, cv=KFold(3)).fit(X, y, sample_weight=w if weighted else None)
    variance = np.average((y - np.average(y, weights=w)) ** 2, weights=w)
    for f, (train, test) in enumerate(KFold(3).split(X)):
        fits = [Model(alpha).fit(X[train], y[train], sample_weight=w[train]) for alpha in alphas]
        errors = [np.average((y[test] - fit.predict(X[test])) ** 2, weights=w[test]) for fit in fits]
        np.testing.assert_allclose(model.cv_results_[f"split{f}_test_score"], 1 - np.array(errors) / variance)


@pytest.mark.parametrize("splitter", [KFold(3), ShuffleSplit(5, test_size=0.3, random_state=0)])
@pytest.mark.parametrize("Model", BOTH)
def test_scores_from_one_pass_are_those_of_fits_with_the_same_knots(Model, splitter):
    X, Y = drawn(60, targets=2)
    knots, alphas, counts = X[:20], (1e-1, 1e-3), (3, 10)
    fixed = {"knots": knots, "cv": splitter}
    dense, streamed = (
        Model(alphas, n_components=counts, solver=solver, **fixed).fit(X, Y).cv_results_ for solver in ROUTES
    )
    for key in ("mean_test_score", "param_alpha", "param_n_components", "rank_test_score"):
        np.testing.assert_allclose(streamed[key], dense[key], rtol=1e-6)


@pytest.mark.parametrize("Model", BOTH)
def test_without_noise_the_cross_validated_error_is_small(Model):
    X = np.random.default_rng(0).random((300, 2))
    model = Model(n_components=40, random_state=0).fit(X, X.sum(axis=1))
    assert 1 - model.cv_results_["mean_test_score"].max() < 0.002


@pytest.mark.parametrize("Model", BOTH)
@pytest.mark.parametrize("selection", ["best", "one_se"])
def test_pure_noise_is_not_fitted(Model, selection):
    scores = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        X, y = rng.random((1150, 4)), rng.standard_normal(1150)
        model = Model(selection=selection, random_state=seed).fit(X[:150], y[:150])
        scores.append(model.score(X[150:], y[150:]))
    assert np.mean(scores) >= -0.03


def test_candidates_stand_from_simple_to_complex():
    X, y = drawn(40)
    model = PCHARRegressor((1e-4, 1e-2), n_components=(20, 5), max_degree=(None, 1), random_state=0).fit(X, y)
    first, last = model.cv_results_["params"][0], model.cv_results_["params"][-1]
    assert first == {"max_degree": 1, "n_components": 5, "alpha": 1e-2}
    assert last == {"max_degree": 2, "n_components": 20, "alpha": 1e-4}


@pytest.mark.parametrize("Model", BOTH)
@pytest.mark.parametrize("solver", ROUTES)
def test_the_choice_is_refitted_to_all_rows(Model, solver):
    X, y = drawn(60)
    grid = {"n_components": (4, 12, 40), "max_degree": (1, 2)}
    model = Model(solver=solver, random_state=0, **grid).fit(X, y)
    chosen = {"n_components": model.n_components_, "max_degree": model.max_degree_}
    again = Model(model.alpha_, solver=solver, random_state=0, **chosen).fit(X, y)
    np.testing.assert_allclose(model.predict(X), again.predict(X), rtol=1e-9)


def test_the_degree_is_found():
    X = np.random.default_rng(0).random((200, 3)) - 0.5
    y = np.where((X > 0).sum(axis=1) % 2, 1.0, -1.0)  # a parity: no main effect
    model = PCHARRegressor(max_degree=(1, 3), random_state=0).fit(X, y)
    assert model.max_degree_ is None


def test_groups_stay_together():
    X, _ = drawn(40)
    noise = np.random.default_rng(1).standard_normal(40)
    X, y, groups = np.tile(X, (2, 1)), np.tile(noise, 2), np.tile(np.arange(40), 2)
    alone, grouped = (PCHARRegressor(random_state=0).fit(X, y, groups=g) for g in (None, groups))
    assert alone.cv_results_["mean_test_score"].max() > 0.2
    assert grouped.cv_results_["mean_test_score"].max() < 0.01


def test_the_automatic_alphas_of_pchal_begin_where_no_component_is_left():
    X, y = drawn()
    model = PCHALRegressor(random_state=0).fit(X, y)
    alphas = model.cv_results_["param_alpha"]
    assert not PCHALRegressor(alphas[0] * 1.0001).fit(X, y).coef_.any()
    assert PCHALRegressor(alphas[1]).fit(X, y).coef_.any()
    assert alphas[-1] == pytest.approx(1e-6 * alphas[0])


def test_the_automatic_alphas_of_pchar_are_on_the_scale_of_the_kernel():
    X, y = drawn()
    alphas = PCHARRegressor(random_state=0).fit(X, y).cv_results_["param_alpha"]
    assert (alphas[0] * len(X), alphas[-1] * len(X)) == pytest.approx((1e2, 1e-8))


def test_a_given_alpha_needs_no_folds():
    X, y = drawn(4)
    assert PCHARRegressor(1e-3, cv=5).fit(X, y).cv_results_ is None


def test_a_constant_target_with_a_given_alpha_is_its_mean():
    X, _ = drawn()
    np.testing.assert_allclose(PCHARRegressor(1e-3).fit(X, np.full(len(X), 3.0)).predict(X), 3.0)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"alpha": (1e-8, 1e-7)}, "alpha = 1e-07 is the upper edge of its grid, 1e-08 to 1e-07"),
        ({"alpha": 1e-3, "n_components": (1, 2)}, "n_components = 2 is the upper edge"),
    ],
)
def test_an_edge_of_the_grid_is_named(parameters, message):
    with pytest.warns(GramianWarning, match=message):
        PCHARRegressor(random_state=0, **parameters).fit(*drawn())


# -------------------------------------------------------------------------------- where the rows are


@pytest.mark.parametrize("Model", BOTH)
@pytest.mark.parametrize("height", [17, 128, 700])
def test_the_bits_do_not_depend_on_where_the_rows_are(Model, height):
    X, Y = drawn(700, targets=2)
    w = np.random.default_rng(1).random(700)
    with blocks_of(1 << 17):
        models = [
            Model(solver="nystroem", n_knots=50, n_landmarks=30, n_components=20, random_state=0).fit(
                rows, target, sample_weight=weights
            )
            for rows, target, weights in (
                (X, Y, w),
                (stored(X, height), stored(Y, height), w),
                (lazy(X, height), Y, lazy(w, height)),
            )
        ]
        predictions = [model.predict(X) for model in models]
    for model, prediction in zip(models[1:], predictions[1:], strict=True):
        assert model.alpha_ == models[0].alpha_
        assert_same_bits(prediction, predictions[0])


@pytest.mark.parametrize("kind", [stored, lazy])
def test_small_stored_rows_take_the_dense_route_too(kind):
    X, y = drawn()
    model = PCHARRegressor(random_state=0).fit(kind(X, 30), y)
    assert_same_bits(model.dual_coef_, PCHARRegressor(random_state=0).fit(X, y).dual_coef_)


def refuse(*args, **kwargs):
    raise AssertionError("something was computed")


@pytest.mark.parametrize("kind", [stored, lazy])
@pytest.mark.parametrize("targets", [None, 2])
def test_predictions_of_stored_rows_are_lazy(kind, targets):
    X, y = drawn(200, targets=targets)
    model = PCHARRegressor(1e-3).fit(X, y)
    with blocks_of(1 << 16):
        with dask.config.set(scheduler=refuse):
            result = model.predict(kind(X, 30))
        assert isinstance(result, da.Array)
        assert len(result.chunks[0]) > 1
        assert_same_bits(result.compute(), model.predict(X))


@pytest.mark.parametrize("solver", [*ROUTES, "randomized"])
def test_float32_rows_are_fitted_in_double_precision(solver):
    X, y = drawn()
    X = X.astype(np.float32)
    single, double = (
        PCHARRegressor(1e-3, solver=solver, n_components=20, random_state=0).fit(rows, y)
        for rows in (X, X.astype(np.float64))
    )
    np.testing.assert_allclose(single.predict(X), double.predict(X.astype(np.float64)), rtol=1e-9)


def test_a_random_state_that_is_an_instance_leaves_a_seed():
    X, y = drawn(200)
    model = PCHARRegressor(n_knots=50, random_state=np.random.RandomState(3)).fit(X, y)
    again = PCHARRegressor(n_knots=50, random_state=model.seed_).fit(X, y)
    np.testing.assert_array_equal(model.predict(X), again.predict(X))


@pytest.mark.parametrize("max_degree", ["auto", (1, 2)])
def test_a_recorded_pass_is_not_repeated(max_degree, tmp_path, monkeypatch):
    X, y = drawn(700)
    model = PCHARRegressor(
        solver="nystroem", n_knots=50, n_landmarks=30, max_degree=max_degree, random_state=0
    )
    with blocks_of(1 << 17), engine.session(run=tmp_path / "fit.run", stage="fit"):
        first = clone(model).fit(X, y)
    monkeypatch.setattr(moments, "_row_grams", refuse)
    with blocks_of(1 << 17), engine.session(run=tmp_path / "fit.run", stage="fit"):
        assert_same_bits(clone(model).fit(X, y).dual_coef_, first.dual_coef_)


@pytest.mark.parametrize("solver", ["dense", "randomized", "nystroem"])
def test_an_interrupted_search_goes_on_with_the_folds_that_it_had(solver, tmp_path, monkeypatch):
    X, y = drawn(60)
    model = PCHARRegressor(n_components=10, solver=solver, random_state=0)
    wanted = clone(model).fit(X, y).cv_results_["mean_test_score"]
    real, computed, told = regression.relative_scores, [], []

    def interrupted(*arguments):
        computed.append(1)
        if len(computed) == 3:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(regression, "relative_scores", interrupted)
    with pytest.raises(KeyboardInterrupt), engine.session(run=tmp_path / "run"):
        clone(model).fit(X, y)
    with engine.session(run=tmp_path / "run", on_progress=told.append):
        found = clone(model).fit(X, y).cv_results_["mean_test_score"]
    assert len(computed) == 3 + 3
    assert [seen.done for seen in told if seen.name == "folds"] == [0, 1, 2, 3, 4, 5]
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize("Regressor", [PCHARRegressor, PCHALRegressor])
def test_a_split_with_a_single_training_row_predicts_its_target(Regressor):
    X, y = np.array([[0.0], [1.0]]), np.array([1.0, 3.0])
    with pytest.warns(GramianWarning, match="edge"):
        model = Regressor(cv=2, random_state=0).fit(X, y)
    assert model.cv_results_["mean_test_score"] == pytest.approx(1 - (3 - 1) ** 2 / np.var(y))


# -------------------------------------------------------------------------------------- bad inputs


def broken(**changes):
    X, y = drawn(20)
    return {"X": X, "y": y} | changes


@pytest.mark.parametrize("solver", ROUTES)
@pytest.mark.parametrize(
    ("parameters", "data", "message"),
    [
        ({"alpha": 0.0}, {}, "alpha is 0.0; give a finite number above 0"),
        ({"alpha": -1.0}, {}, "alpha is -1.0"),
        ({"alpha": "best"}, {}, "alpha is 'best'"),
        ({"cv": 30}, {}, "cv is 30 for 20 rows"),
        ({"n_components": 20}, {}, "n_components is 20, 20 rows, 20 landmarks have at most 19"),
        ({"selection": "median"}, {}, "selection is 'median'"),
        ({}, {"y": np.ones(20)}, "y is constant"),
        ({}, {"sample_weight": -np.ones(20)}, "sample_weight holds -1"),
        ({}, {"sample_weight": np.zeros(20)}, "sample_weight is zero for every row"),
        (
            {"cv": KFold(2)},
            {"sample_weight": np.repeat([1.0, 0.0], 10)},
            "the training rows of split 0 all have weight zero",
        ),
        ({}, {"groups": np.arange(20) % 3}, "cv is 5 for 3 groups"),
    ],
)
def test_bad_input_is_told_in_one_line(parameters, data, message, solver):
    with pytest.raises(InputError, match=message) as caught:
        PCHALRegressor(solver=solver, **parameters).fit(**broken(**data))
    assert "\n" not in str(caught.value)


# ------------------------------------------------------------------------------------------- plans


@pytest.mark.parametrize("solver", [*ROUTES, "randomized"])
def test_a_plan_reads_nothing(solver):
    spec = ArraySpec((5000, 3), np.dtype(float), (100, 3))
    model = PCHARRegressor(solver=solver, n_components=4, max_degree=(1, 2))
    assert model.plan(spec).driver_bytes() > 0


def test_the_plan_of_the_one_pass_is_that_of_its_sum(monkeypatch):
    seen = []
    real = engine.row_sum
    monkeypatch.setattr(
        engine, "row_sum", lambda *args, **kwargs: seen.append((args[1], kwargs)) or real(*args, **kwargs)
    )
    X, Y = drawn(500, targets=2)
    model = PCHARRegressor(solver="nystroem", n_knots=64, n_landmarks=64, random_state=0)
    step = model.plan(*(ArraySpec(array.shape, array.dtype) for array in (X, Y))).steps[-1]
    model.fit(X, Y)
    ((grid, sizes),) = seen
    wanted = engine.sum_step("gram", grid, X, scratch=sizes["scratch"], result=sizes["result"])
    assert step.tasks == wanted.tasks
    assert step.task_bytes == pytest.approx(wanted.task_bytes, rel=0.15)  # the rank is not known before
