"""HAL principal components against eigenvectors of the literal kernel, and solvers against each other."""

import warnings

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from gramian import engine
from gramian.blocks import ArraySpec
from gramian.components import Settings
from gramian.errors import GramianWarning, InputError, InputTypeError
from gramian.features import HALPrincipalComponents
from tests import reference
from tests.contracts import assert_same_bits, blocks_of, lazy, stored

SOLVERS = ("dense", "randomized", "nystroem")


@parametrize_with_checks(
    [
        HALPrincipalComponents(),
        HALPrincipalComponents(solver="nystroem"),
        HALPrincipalComponents(n_components=1, solver="randomized"),
    ]
)
@pytest.mark.filterwarnings("ignore::gramian.errors.GramianWarning")
def test_it_is_a_scikit_learn_estimator(estimator, check):
    check(estimator)


def rows(n=60, d=3, seed=0):
    return np.random.default_rng(seed).random((n, d))


def literal_scores(X, new, weights=None, center=True, max_degree=None):
    """U_k D_k^1/2 of the rows and the centred cross-kernel of new ones, as the papers write it."""
    n = len(X)
    w = np.ones(n) if weights is None else weights
    K = reference.hal_kernel(X, X, X, max_degree, w).astype(float)
    cross = reference.hal_kernel(new, X, X, max_degree, w).astype(float)
    scale = np.average(np.diag(K), weights=w)
    K, cross = K / scale, cross / scale
    if center:
        J = np.eye(n) - np.outer(np.ones(n), w) / w.sum()
        mean = w @ K / w.sum()
        cross = (cross - mean) @ J.T
        K = J @ K @ J.T
    root = np.sqrt(w)
    values, U = np.linalg.eigh(root[:, None] * K * root)
    kept = values > 1e-10
    values, U = values[kept][::-1], U[:, kept][:, ::-1]
    return values, cross @ (root[:, None] * U) / np.sqrt(values)


def assert_same_up_to_sign(scores, wanted, tolerance=1e-8):
    signs = np.sign((scores * wanted).sum(axis=0))
    np.testing.assert_allclose(scores * signs, wanted, atol=tolerance * np.abs(wanted).max())


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("max_degree", [None, 1, 2])
@pytest.mark.parametrize("solver", SOLVERS)
def test_scores_are_those_of_the_literal_kernel(solver, max_degree, center):
    X, new = rows(30, 2), rows(7, 2, seed=1)
    model = HALPrincipalComponents(
        8, max_degree=max_degree, solver=solver, center=center, random_state=0
    ).fit(X)
    values, wanted = literal_scores(X, new, None, center, max_degree)
    np.testing.assert_allclose(model.eigenvalues_, values[:8], rtol=1e-9)
    assert_same_up_to_sign(model.transform(new), wanted[:, :8])


@pytest.mark.parametrize("solver", SOLVERS)
def test_weighted_scores_are_those_of_the_literal_kernel(solver):
    X, new = rows(30, 2), rows(7, 2, seed=1)
    w = np.random.default_rng(2).random(30)
    model = HALPrincipalComponents(8, solver=solver, random_state=0).fit(X, sample_weight=w)
    values, wanted = literal_scores(X, new, w)
    np.testing.assert_allclose(model.eigenvalues_, values[:8], rtol=1e-9)
    assert_same_up_to_sign(model.transform(new), wanted[:, :8])


@pytest.mark.parametrize("solver", SOLVERS)
def test_training_scores_are_orthogonal_with_the_eigenvalues_as_squares(solver):
    X = rows()
    model = HALPrincipalComponents(20, solver=solver, random_state=0).fit(X)
    Z = model.transform(X)
    np.testing.assert_allclose(Z.T @ Z, np.diag(model.eigenvalues_), atol=1e-9 * model.eigenvalues_[0])


def test_the_smallest_components_keep_their_length():
    X = np.random.default_rng(0).standard_normal((700, 2)).round(1)  # eigenvalues down to 1e-7 of the largest
    model = HALPrincipalComponents().fit(X)
    squares = (model.transform(X) ** 2).sum(axis=0)
    np.testing.assert_allclose(squares, model.eigenvalues_, rtol=1e-7)


@pytest.mark.parametrize("n_components", ["auto", 10])
def test_dense_and_nystroem_with_all_rows_as_landmarks_agree(n_components):
    X, new = rows(120), rows(40, seed=1)
    dense, nystroem = (
        HALPrincipalComponents(n_components, solver=solver, random_state=0).fit(X)
        for solver in ("dense", "nystroem")
    )
    np.testing.assert_allclose(nystroem.eigenvalues_, dense.eigenvalues_, atol=1e-8 * dense.eigenvalues_[0])
    np.testing.assert_allclose(nystroem.transform(new), dense.transform(new), atol=1e-8)
    np.testing.assert_allclose(nystroem.explained_variance_ratio_, dense.explained_variance_ratio_, atol=1e-9)


def test_few_landmarks_still_find_the_leading_components():
    X = rows(2000, 2)
    model = HALPrincipalComponents(3, solver="nystroem", n_landmarks=200, n_knots=100, random_state=0).fit(X)
    exact = HALPrincipalComponents(3, solver="dense", n_knots=100, random_state=0).fit(X)
    np.testing.assert_allclose(model.eigenvalues_, exact.eigenvalues_, rtol=1e-2)


@pytest.mark.parametrize("solver", SOLVERS)
def test_integer_weights_equal_repeated_rows(solver):
    X, w = rows(40), np.random.default_rng(1).integers(1, 4, 40)
    weighted = HALPrincipalComponents(8, solver=solver, random_state=0).fit(X, sample_weight=w)
    repeated = HALPrincipalComponents(8, solver=solver, random_state=0).fit(np.repeat(X, w, axis=0))
    np.testing.assert_allclose(weighted.eigenvalues_, repeated.eigenvalues_, rtol=1e-9)
    assert_same_up_to_sign(weighted.transform(X), repeated.transform(X), 1e-7)


def test_rows_of_weight_zero_are_as_if_they_were_not_there():
    X, w = rows(40), np.random.default_rng(1).integers(0, 2, 40)
    weighted = HALPrincipalComponents(random_state=0).fit(X, sample_weight=w)
    without = HALPrincipalComponents(random_state=0).fit(X[w > 0])
    np.testing.assert_allclose(weighted.transform(X), without.transform(X), atol=1e-9)


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_largest_score_of_a_landmark_is_positive(solver):
    X = rows()
    Z = HALPrincipalComponents(5, solver=solver, random_state=0).fit(X).transform(X)
    assert (Z[np.abs(Z).argmax(axis=0), np.arange(5)] > 0).all()


def test_the_shares_of_all_components_sum_to_one():
    model = HALPrincipalComponents(random_state=0).fit(rows())
    assert model.explained_variance_ratio_.sum() == pytest.approx(1)


def test_the_scale_is_the_mean_diagonal():
    X = rows(30, 2)
    model = HALPrincipalComponents(2).fit(X)
    assert model.kernel_scale_ == pytest.approx(np.diag(reference.hal_kernel(X, X, X)).mean())


@pytest.mark.parametrize("solver", ["dense", "nystroem"])
def test_given_knots_are_used(solver):
    X, knots = rows(), rows(10, seed=3)
    model = HALPrincipalComponents(3, knots=knots, solver=solver, random_state=0).fit(X)
    K = reference.hal_kernel(X, X, knots).astype(float)
    J = np.eye(len(X)) - 1 / len(X)
    wanted = np.linalg.eigvalsh(J @ K @ J / np.diag(K).mean())[::-1][:3]
    np.testing.assert_allclose(model.eigenvalues_, wanted, rtol=1e-8)


def test_covariates_may_be_transformed_monotonically():
    X = rows()
    first = HALPrincipalComponents(5, random_state=0).fit(X).transform(X)
    np.testing.assert_array_equal(first, HALPrincipalComponents(5, random_state=0).fit(X**3).transform(X**3))


# ----------------------------------------------------------------------------------- what is settled


@pytest.mark.parametrize(("columns", "degree"), [(1, None), (10, None), (11, 3), (19, 3), (20, 2), (200, 2)])
def test_the_automatic_degree(columns, degree):
    assert Settings.of(HALPrincipalComponents(), 50, columns).degrees == (degree,)


@pytest.mark.parametrize(
    ("rows", "solver", "knots", "landmarks", "components"),
    [(100, "dense", 100, 100, 99), (4096, "dense", 2048, 4096, 4095), (4097, "nystroem", 2048, 2048, 512)],
)
def test_the_automatic_sizes(rows, solver, knots, landmarks, components):
    settings = Settings.of(HALPrincipalComponents(), rows, 4)
    assert (settings.solver, settings.n_knots, settings.n_landmarks, settings.limit) == (
        solver,
        knots,
        landmarks,
        components,
    )


def test_a_degree_of_all_covariates_means_all():
    assert Settings.of(HALPrincipalComponents(max_degree=3), 50, 3).degrees == (None,)


def test_without_centring_there_is_one_component_more():
    assert HALPrincipalComponents(center=False).fit(rows(20)).n_components_ == 20


def test_equal_rows_bound_the_rank():
    X = np.repeat(rows(10), 4, axis=0)
    assert HALPrincipalComponents().fit(X).n_components_ == 9


# -------------------------------------------------------------------------------- where the rows are


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("height", [17, 128, 700])
def test_the_bits_do_not_depend_on_where_the_rows_are(height, dtype):
    X, w = rows(700).astype(dtype), np.random.default_rng(1).random(700)
    with blocks_of(1 << 17):
        models = [
            HALPrincipalComponents(10, solver="nystroem", n_knots=50, n_landmarks=30, random_state=0).fit(
                array, sample_weight=w
            )
            for array in (X, stored(X, height), lazy(X, height))
        ]
        scores = [model.transform(X) for model in models]
    for model, score in zip(models[1:], scores[1:], strict=True):
        assert_same_bits(model.projection_, models[0].projection_)
        assert_same_bits(score, scores[0])


@pytest.mark.parametrize("threads", [1, 2])
def test_the_bits_do_not_depend_on_threads(threads):
    X = rows(700)
    fit = HALPrincipalComponents(5, solver="nystroem", n_knots=50, n_landmarks=30, random_state=0).fit
    with blocks_of(1 << 17):
        with dask.config.set(scheduler="synchronous"):
            alone = fit(X).projection_.copy()
        with dask.config.set(num_workers=threads):
            assert_same_bits(fit(X).projection_, alone)


def refuse(*args, **kwargs):
    raise AssertionError("something was computed")


@pytest.mark.parametrize("kind", [stored, lazy])
def test_scores_of_stored_rows_are_lazy(kind):
    X = rows(200)
    model = HALPrincipalComponents(4, random_state=0).fit(X)
    with blocks_of(1 << 16):
        with dask.config.set(scheduler=refuse):
            result = model.transform(kind(X, 30))
        assert isinstance(result, da.Array)
        assert len(result.chunks[0]) > 1
        assert_same_bits(result.compute(), model.transform(X))


def test_float32_rows_have_float32_scores():
    X = rows().astype(np.float32)
    assert HALPrincipalComponents(4).fit(X).transform(X).dtype == np.float32


def test_a_frame_gives_a_frame():
    frame = pd.DataFrame(rows(), columns=["a", "b", "c"])
    model = HALPrincipalComponents(2, random_state=0).set_output(transform="pandas").fit(frame)
    assert list(model.transform(frame).columns) == ["halprincipalcomponents0", "halprincipalcomponents1"]


@pytest.mark.parametrize("kind", [stored, lazy])
def test_a_lazy_frame_is_refused(kind):
    X = rows()
    model = HALPrincipalComponents(2).fit(X).set_output(transform="pandas")
    with pytest.raises(InputTypeError, match="use set_output"):
        model.transform(kind(X, 10))


# ------------------------------------------------------------------------------------ words of caution


def test_constant_covariates_are_named():
    X = rows()
    X[:, 1] = 2.0
    with pytest.warns(GramianWarning, match="1 of 3 covariates are constant, the first is column 1"):
        HALPrincipalComponents(2).fit(X)


@pytest.mark.parametrize("solver", ["dense", "nystroem"])
def test_a_kernel_close_to_the_identity_is_named(solver):
    X = np.random.default_rng(0).standard_normal((100, 40))
    with pytest.warns(GramianWarning, match="40 covariates and max_degree=all is close to the identity"):
        HALPrincipalComponents(2, max_degree=None, solver=solver).fit(X)


def test_the_automatic_degree_keeps_away_from_the_identity():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        HALPrincipalComponents(2).fit(np.random.default_rng(0).standard_normal((100, 40)))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_components": 20}, "n_components is 20, 20 rows, 20 landmarks have at most 19"),
        ({"n_components": 0}, "n_components is 0"),
        ({"n_components": (2, 3)}, "n_components has 2 candidates"),
        ({"max_degree": 0}, "max_degree is 0"),
        ({"max_degree": (1, 2)}, "max_degree has 2 candidates"),
        ({"max_degree": "most"}, "max_degree is 'most'"),
        ({"n_knots": 21}, "n_knots is 21 for 20 rows"),
        ({"n_landmarks": 21, "solver": "nystroem"}, "n_landmarks is 21 for 20 rows"),
        ({"n_components": 9, "n_landmarks": 8, "solver": "nystroem"}, "8 landmarks have at most 8"),
        ({"knots": "quantiles"}, "knots is 'quantiles'; give 'rows' or an array"),
        ({"knots": np.ones((3, 2))}, "knots has 2 columns, expected 3"),
        ({"knots": np.full((3, 3), 9.0)}, "no row is above any knot"),
        ({"solver": "arpack"}, "solver is 'arpack'"),
        ({"landmarks": "rpcholesky"}, "landmarks is 'rpcholesky'; give one of 'uniform'"),
    ],
)
def test_bad_parameters_are_told_in_one_line(parameters, message):
    with pytest.raises(InputError, match=message) as caught:
        HALPrincipalComponents(**parameters).fit(rows(20))
    assert "\n" not in str(caught.value)


def test_more_components_than_the_rank_are_refused():
    X = np.repeat(rows(10), 4, axis=0)
    with pytest.raises(InputError, match="n_components is 12, the kernel has 9 positive eigenvalues"):
        HALPrincipalComponents(12).fit(X)


@pytest.mark.filterwarnings("ignore::gramian.errors.GramianWarning")
def test_rows_that_are_all_alike_are_refused():
    with pytest.raises(InputError, match="all rows are alike"):
        HALPrincipalComponents().fit(np.ones((10, 2)))


@pytest.mark.parametrize(
    ("solver", "rows", "message"),
    [
        ("dense", 40_000, "solver='dense' would form a 40000 x 40000 matrix"),
        ("randomized", 1 << 19, "solver='randomized' would keep"),
    ],
)
def test_what_would_keep_too_much_is_refused(solver, rows, message):
    with pytest.raises(InputError, match=message):
        HALPrincipalComponents(solver=solver, n_knots=10).fit(np.zeros((rows, 2), np.float32))


@pytest.mark.parametrize("values", [np.nan, np.inf])
def test_values_of_a_store_are_checked_where_they_are_read(values):
    X = rows(200)
    X[150, 1] = values
    with pytest.raises(InputError, match="X has"):
        HALPrincipalComponents(2, solver="nystroem", n_knots=5, n_landmarks=5).fit(stored(X, 50))


# ------------------------------------------------------------------------------------------- plans


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_plan_reads_nothing(solver):
    plan = HALPrincipalComponents(4, solver=solver).plan(ArraySpec((5000, 3), np.dtype(float), (100, 3)))
    assert plan.driver_bytes() > 0


def test_the_plan_of_the_one_pass_is_that_of_its_sum(monkeypatch):
    seen = []
    real = engine.row_sum
    monkeypatch.setattr(
        engine, "row_sum", lambda *args, **kwargs: seen.append((args[1], kwargs)) or real(*args, **kwargs)
    )
    X = rows(500)
    model = HALPrincipalComponents(4, solver="nystroem", n_knots=64, n_landmarks=64)
    step = model.plan(ArraySpec(X.shape, X.dtype)).steps[-1]
    model.fit(X)
    ((grid, sizes),) = seen
    wanted = engine.sum_step("gram", grid, X, scratch=sizes["scratch"], result=sizes["result"])
    assert (step.tasks, step.task_bytes) == (wanted.tasks, wanted.task_bytes)
