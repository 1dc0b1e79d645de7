"""Neighbourhood components analysis: the optimum of scikit-learn, the same bits everywhere, helpful words."""

import tracemalloc
import warnings
from dataclasses import replace

import dask
import dask.array as da
import numpy as np
import pytest
import sklearn.neighbors
import zarr
from numpy.testing import assert_allclose
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris, make_classification
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.exceptions import ConvergenceWarning
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from gramian import cluster, engine, nca
from gramian.blocks import ArraySpec
from gramian.curves import neighbourhoods
from gramian.errors import GramianWarning, InputError, InputTypeError
from gramian.models import load_model, save_model
from gramian.nca import NeighborhoodComponentsAnalysis
from tests.contracts import assert_same_bits, blocks_of, lazy, stored

pytestmark = pytest.mark.filterwarnings("ignore:.* columns are constant:gramian.errors.GramianWarning")


def classes_of(n=300, d=6, seed=0, dtype=np.float64):
    X, y = make_classification(
        n, d, n_informative=4, n_redundant=0, n_classes=3, n_clusters_per_class=1, random_state=seed
    )
    return X.astype(dtype), y


def peer_value(model, X, y):
    """scikit-learn's own objective at a model's map."""
    peer = sklearn.neighbors.NeighborhoodComponentsAnalysis()
    peer.n_iter_ = 1
    return peer._loss_grad_lbfgs(model.components_.ravel(), X, y[:, None] == y)[0]


@parametrize_with_checks(
    [
        NeighborhoodComponentsAnalysis(),
        NeighborhoodComponentsAnalysis(objective="kl", solver="cg", max_iter=10),
        NeighborhoodComponentsAnalysis(solver="minibatch", max_iter=5),
    ]
)
def test_it_is_a_scikit_learn_estimator(estimator, check):
    check(estimator)


# ---------------------------------------------------------------------------------------- the optimum


@pytest.mark.parametrize("init", ["pca", "lda", "identity"])
def test_the_optimum_is_that_of_scikit_learn_from_the_same_start(init):
    X, y = load_iris(return_X_y=True)
    c = None if init == "identity" else 2
    ours = NeighborhoodComponentsAnalysis(c, init=init, max_iter=20).fit(X, y)
    theirs = sklearn.neighbors.NeighborhoodComponentsAnalysis(c, init=init, max_iter=20).fit(X, y)
    assert ours.init_ == init
    assert ours.objective_ >= 0.995 * peer_value(theirs, X, y)
    assert_allclose(ours.objective_, peer_value(ours, X, y), rtol=1e-9)


def test_the_starts_are_those_of_scikit_learn():
    X, y = load_digits(return_X_y=True)
    starts = {}
    for init in ("pca", "lda"):
        seen = []
        NeighborhoodComponentsAnalysis(
            4, init=init, max_iter=1, callback=lambda A, i, seen=seen: seen.append(A)
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(nca._Problem, "evaluate", lambda self, A, seen=seen: seen.append(A) or stop())
            with pytest.raises(KeyboardInterrupt):
                NeighborhoodComponentsAnalysis(4, init=init).fit(X, y)
        starts[init] = seen[0]
    wanted = {
        "pca": PCA(4, svd_solver="full").fit(X).components_,
        "lda": LinearDiscriminantAnalysis(n_components=4).fit(X, y).scalings_.T[:4],
    }
    for init, start in starts.items():
        signs = np.sign((start * wanted[init]).sum(axis=1))[:, None]
        assert_allclose(start, signs * wanted[init], atol=1e-6 * np.abs(start).max())


def stop():
    raise KeyboardInterrupt


@pytest.mark.parametrize("objective", ["accuracy", "kl"])
@pytest.mark.parametrize("solver", ["lbfgs", "cg"])
def test_it_climbs(objective, solver):
    X, y = classes_of()
    model = NeighborhoodComponentsAnalysis(2, objective=objective, solver=solver, init="pca").fit(X, y)
    history = model.objective_history_
    assert len(history) == model.n_iter_ + 1
    assert history[-1] == model.objective_ > history[0]
    assert (np.diff(history) >= -1e-9 * abs(history[0])).all()


def test_the_expected_accuracy_is_the_objective_over_the_rows():
    X, y = classes_of()
    model = NeighborhoodComponentsAnalysis(2).fit(X, y)
    assert_allclose(model.expected_accuracy_, model.objective_ / len(X))


def test_float32_is_kept_and_close():
    X, y = classes_of()
    single = NeighborhoodComponentsAnalysis(2, init="pca", max_iter=5).fit(X.astype(np.float32), y)
    double = NeighborhoodComponentsAnalysis(2, init="pca", max_iter=5).fit(X, y)
    assert single.components_.dtype == single.transform(X.astype(np.float32)).dtype == np.float32
    assert_allclose(single.objective_, double.objective_, rtol=1e-3)


def test_an_offset_costs_no_digits():
    X, y = classes_of()
    model = NeighborhoodComponentsAnalysis(2, init="pca", max_iter=3)
    assert_allclose(clone(model).fit(X + 1e4, y).objective_, clone(model).fit(X, y).objective_, rtol=1e-9)


def test_a_warm_start_goes_on_from_the_last_map():
    X, y = classes_of()
    model = NeighborhoodComponentsAnalysis(2, warm_start=True, max_iter=2).fit(X, y)
    first = model.objective_
    model.fit(X, y)
    assert model.init_ == "warm_start"
    assert_allclose(model.objective_history_[0], first, rtol=1e-12)


@pytest.mark.filterwarnings("ignore:.* were not enough")
def test_the_callback_and_the_words_follow_each_iteration(capsys):
    X, y = classes_of()
    seen = []
    model = NeighborhoodComponentsAnalysis(
        2, max_iter=4, verbose=1, callback=lambda A, i: seen.append((A.shape, i))
    ).fit(X, y)
    assert seen == [((12,), i) for i in range(1, model.n_iter_ + 1)]
    assert capsys.readouterr().out.count("[NeighborhoodComponentsAnalysis]") == model.n_iter_ + 1


@pytest.mark.parametrize("solver", ["lbfgs", "cg"])
def test_tol_is_the_gradient_at_which_it_ends(solver):
    X, y = classes_of()
    model = NeighborhoodComponentsAnalysis(2, init="pca", solver=solver, tol=1e6)
    with pytest.warns(GramianWarning, match=r"ended near its start after 0 iteration\(s\)"):
        model.fit(X, y)
    assert_same_bits(model.components_, model.start_)


def test_too_few_iterations_are_told_where_words_are_wanted(capsys):
    X, y = classes_of()
    with pytest.warns(ConvergenceWarning, match="2 iterations were not enough; raise max_iter"):
        NeighborhoodComponentsAnalysis(2, max_iter=2, verbose=1).fit(X, y)


def test_classes_on_a_line_have_one_discriminant():
    X = classes_of(100)[0]
    X = np.concatenate([np.concatenate([X, -X]) + k * np.eye(6)[0] for k in range(3)])  # means (k, 0, ...)
    y = np.repeat([0, 1, 2], 200)
    with pytest.warns(GramianWarning, match="differ in 1 of 2 directions; init is 'pca'"):
        model = NeighborhoodComponentsAnalysis(2, init="lda", max_iter=1).fit(X, y)
    assert model.init_ == "pca"


def test_a_constant_column_has_no_part_in_the_discriminants():
    X, y = classes_of()
    start = (
        NeighborhoodComponentsAnalysis(2, init="lda", max_iter=1).fit(np.c_[X, np.full(300, 0.1)], y).start_
    )
    wanted = NeighborhoodComponentsAnalysis(2, init="lda", max_iter=1).fit(X, y).start_
    assert_allclose(start[:, :-1], wanted, rtol=1e-9)
    assert np.abs(start[:, -1]).max() < 1e-3


def test_facts_of_the_last_evaluation_are_kept():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 12000)
    X = 60 * rng.standard_normal((12000, 2)) + y[:, None]
    model = NeighborhoodComponentsAnalysis(1, init=np.eye(1, 2), max_iter=1)
    found = clone(model).fit(X, y)
    assert found.kept_pairs_ < 0.6
    assert 0 < found.truncation_error_ < 1e-8
    whole = clone(model).set_params(truncation="none").fit(X, y)
    assert (whole.kept_pairs_, whole.truncation_error_) == (1, 0)
    assert_allclose(found.objective_history_[0], whole.objective_history_[0], rtol=1e-8)
    with pytest.warns(GramianWarning, match="saturated"):
        assert clone(model).fit(1e3 * X[:300], y[:300]).underflow_rows_ > 200


def test_curves_compare_the_start_with_the_end():
    X, y = classes_of()
    model = NeighborhoodComponentsAnalysis(2, init="pca", max_iter=20).fit(X, y)
    found = neighbourhoods(model, X, y)
    for moment, A in (("start", model.start_), ("end", model.components_)):
        Z = X @ A.T
        nearest = ((Z[:, None] - Z) ** 2).sum(axis=2) + np.diag(np.full(300, np.inf))
        votes = y[nearest.argsort(axis=1)[:, :3]]
        guessed = [np.bincount(row, minlength=3).argmax() for row in votes]
        assert_allclose(found["neighbours"][moment], (guessed == y).mean())
    assert found["neighbours"]["start"] < found["neighbours"]["end"]
    assert found["objective"]["iteration"] == list(range(model.n_iter_ + 1))
    assert np.shape(found["scatter"]["before"]) == np.shape(found["scatter"]["after"]) == (300, 2)
    assert found["scatter"]["before"] != found["scatter"]["after"]


# ------------------------------------------------------------------------------------------ predictions


def literal_probabilities(Z, points, codes, n_classes):
    K = np.exp(-((Z[:, None] - points) ** 2).sum(axis=2))
    sums = np.stack([K[:, codes == c].sum(axis=1) for c in range(n_classes)], axis=1)
    return sums / sums.sum(axis=1, keepdims=True)


def test_probabilities_are_those_of_the_stochastic_neighbours():
    X, y = classes_of()
    labels = np.array(["a", "b", "c"])[y]
    model = NeighborhoodComponentsAnalysis(2, max_iter=10).fit(X[:200], labels[:200])
    new, old = (model.transform(rows) - model.mean_ @ model.components_.T for rows in (X[200:], X[:200]))
    wanted = literal_probabilities(new, old, y[:200], 3)
    assert_allclose(model.predict_proba(X[200:]), wanted, atol=1e-12)
    assert (model.predict(X[200:]) == model.classes_[wanted.argmax(axis=1)]).all()


def test_left_out_rows_do_not_see_themselves():
    X, y = classes_of(120)
    model = NeighborhoodComponentsAnalysis(2, max_iter=3).fit(X, y)
    found = model.leave_one_out_proba()
    for i in (0, 60, 119):
        others = np.arange(120) != i
        wanted = literal_probabilities(model.points_[[i]], model.points_[others], y[others], 3)
        assert_allclose(found[[i]], wanted, atol=1e-12)
    assert_allclose(found[np.arange(120), y].mean(), model.expected_accuracy_)
    assert model.leave_one_out_accuracy() == (found.argmax(axis=1) == y).mean()


def test_a_row_far_from_all_others_is_still_predicted():
    X, y = classes_of()
    model = NeighborhoodComponentsAnalysis(2, max_iter=3).fit(X, y)
    proba = model.predict_proba(X[:1] + 1e5)
    assert np.isfinite(proba).all()
    assert_allclose(proba.sum(), 1)


def test_it_stands_in_a_pipeline_and_comes_back_from_disk(tmp_path):
    X, y = classes_of()
    pipeline = make_pipeline(StandardScaler(), NeighborhoodComponentsAnalysis(2, max_iter=5)).fit(X, y)
    assert pipeline.score(X, y) > 0.8
    model = NeighborhoodComponentsAnalysis(2, max_iter=5).fit(X, y)
    save_model(model, tmp_path / "nca.zarr")
    assert_same_bits(load_model(tmp_path / "nca.zarr").predict_proba(X), model.predict_proba(X))


# -------------------------------------------------------------------------------------- where rows are


@pytest.mark.parametrize("solver", ["lbfgs", "minibatch"])
@pytest.mark.parametrize("kind", [stored, lazy])
def test_the_bits_do_not_depend_on_where_the_rows_are(solver, kind):
    X, y = classes_of(5000)
    model = NeighborhoodComponentsAnalysis(2, solver=solver, max_iter=3, random_state=0)
    with blocks_of(1 << 17):
        wanted = clone(model).fit(X, y)
        for threads, height in ((1, 700), (2, 4999)):
            with dask.config.set(num_workers=threads):
                found = clone(model).fit(kind(X, height), y)
                assert_same_bits(found.components_, wanted.components_)
                assert_same_bits(found.points_, wanted.points_)


@pytest.fixture(scope="module", params=[(1, 2), (2, 1)], ids=["1x2", "2x1"])
def client(request):
    with cluster.local(*request.param, memory_limit="1GiB") as client:
        yield client


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_cluster_gives_the_bits_of_no_cluster(client, dtype, tmp_path):
    X, y = classes_of(5000, dtype=dtype)
    rows = zarr.create_array(str(tmp_path / "x.zarr"), data=X, chunks=(900, 6))
    model = NeighborhoodComponentsAnalysis(2, max_iter=3, random_state=0)
    found = clone(model).fit(rows, y)
    with dask.config.set(scheduler="threads"):
        wanted = clone(model).fit(X, y)
    assert_same_bits(found.components_, wanted.components_)
    assert_same_bits(np.asarray(found.predict_proba(rows).compute()), wanted.predict_proba(X))


def refuse(*args, **kwargs):
    raise AssertionError("something was computed")


@pytest.mark.parametrize("kind", [stored, lazy])
def test_results_of_stored_rows_are_lazy(kind):
    X, y = classes_of(3000)
    model = NeighborhoodComponentsAnalysis(2, max_iter=2).fit(X, y)
    with blocks_of(1 << 16):
        for method in ("transform", "predict", "predict_proba"):
            with dask.config.set(scheduler=refuse):
                result = getattr(model, method)(kind(X, 700))
            assert isinstance(result, da.Array)
            assert_same_bits(result.compute(), getattr(model, method)(X))


@pytest.mark.parametrize("solver", ["lbfgs", "minibatch"])
def test_an_interrupted_fit_goes_on_with_the_same_bits(solver, tmp_path, monkeypatch):
    X, y = classes_of()
    model = NeighborhoodComponentsAnalysis(2, solver=solver, max_iter=8, random_state=0)
    wanted = clone(model).fit(X, y)
    owner, name = (nca._Problem, "evaluate") if solver == "lbfgs" else (nca._Batches, "epoch")
    real, calls = getattr(owner, name), []

    def counted(self, *arguments):
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return real(self, *arguments)

    monkeypatch.setattr(owner, name, counted)
    with pytest.raises(KeyboardInterrupt), engine.session(run=tmp_path / "run"):
        clone(model).fit(X, y)
    with engine.session(run=tmp_path / "run"):
        found = clone(model).fit(X, y)
    monkeypatch.undo()
    assert_same_bits(found.components_, wanted.components_)
    total = [0]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, lambda self, *a: total.__setitem__(0, total[0] + 1) or real(self, *a))
        clone(model).fit(X, y)
    assert len(calls) == total[0] + 1  # the one that was interrupted, and no other twice


def test_iterations_are_told(tmp_path):
    X, y = classes_of()
    told = []
    with engine.session(on_progress=told.append):
        model = NeighborhoodComponentsAnalysis(2, max_iter=4).fit(X, y)
    done = [seen.done for seen in told if seen.name == "iterations"]
    assert done == list(range(model.n_iter_ + 1))


def test_a_plan_reads_nothing_and_counts_the_pairs():
    model = NeighborhoodComponentsAnalysis(2)
    spec = ArraySpec((1_000_000, 50), np.dtype("f4"), (10_000, 50))
    plan = model.plan(spec)
    assert plan.driver_bytes() < 1 << 30
    assert plan.worker_bytes() < 1 << 30
    assert NeighborhoodComponentsAnalysis(2, solver="lbfgs").plan(spec).flops > 1e12 * 40


@pytest.mark.parametrize("solver", ["lbfgs", "minibatch"])
def test_a_fit_takes_no_more_than_its_plan(solver):
    X, y = classes_of(20_000, 30)
    model = NeighborhoodComponentsAnalysis(2, solver=solver, max_iter=1, truncation="none")
    planned = {step.name: step for step in model.plan(X, ArraySpec((len(X), 3), np.dtype("i8"))).steps}
    step = planned["pairs" if solver == "lbfgs" else "epochs"]
    codes, start = y.astype(np.intp), np.eye(2, 30)
    problem = nca._Problem(X, codes, X.mean(axis=0), "accuracy")
    state = nca._Adam(start, 0 * start, 0 * start)

    def work():
        if solver == "lbfgs":
            return problem.evaluate(start)
        return nca._Batches(problem, 0, 312, 8192).epoch(state, 0, 0.01)

    with dask.config.set(num_workers=1), blocks_of(1 << 20):
        work()
        peak = traced(work)
    allowed = step.driver_bytes + step.task_bytes + 2 * step.result_bytes
    assert allowed / 4 <= peak <= allowed


def traced(work):
    """Most bytes held at once."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_block_of_predictions_takes_no_more_than_its_map_declares():
    X, y = classes_of(4000)
    model = NeighborhoodComponentsAnalysis(2, max_iter=1).fit(X, y)
    row_map = model.row_map(X, "predict_proba")
    step = row_map.step("probabilities", X)
    block = X[row_map.grid[0]]
    row_map.whole(block)
    assert step.task_bytes / 4 <= traced(lambda: row_map.whole(block)) <= step.task_bytes


def test_a_plan_grows_with_the_iterations():
    X = ArraySpec((10_000, 20), np.dtype("f8"))
    few, many = (NeighborhoodComponentsAnalysis(2, max_iter=k).plan(X) for k in (10, 100))
    assert many.flops > 8 * few.flops
    assert many.driver_bytes() == few.driver_bytes()


@pytest.mark.parametrize("change", ["objective", "labels"])
def test_what_a_run_recorded_is_not_used_for_another_problem(change, tmp_path):
    X, y = classes_of()
    first = NeighborhoodComponentsAnalysis(2, init="pca", max_iter=3, random_state=0)
    other = clone(first).set_params(objective="kl") if change == "objective" else clone(first)
    labels = y[::-1].copy() if change == "labels" else y
    wanted = clone(other).fit(X, labels)
    with engine.session(run=tmp_path / "run"):
        first.fit(X, y)
    with engine.session(run=tmp_path / "run"):
        assert_same_bits(other.fit(X, labels).components_, wanted.components_)


# --------------------------------------------------------------------------------------- mini-batches


def test_mini_batches_end_after_three_epochs_that_gain_nothing(monkeypatch):
    X, y = classes_of()
    told = iter([1.0, 2.0, 1.0, 1.5, 1.9, 3.0])

    def epoch(self, state, *_):
        return replace(state, objective=next(told), slack=0.2)

    monkeypatch.setattr(nca._Batches, "epoch", epoch)
    model = NeighborhoodComponentsAnalysis(2, solver="minibatch", tol=0.0).fit(X, y)
    assert_allclose(model.objective_history_, 300 * np.array([1, 2, 1, 1.5, 1.9]))


def test_mini_batches_meet_rows_in_the_order_of_their_seed():
    X, y = classes_of()
    model = NeighborhoodComponentsAnalysis(2, solver="minibatch", init="pca", max_iter=2)
    found = [clone(model).set_params(random_state=seed).fit(X, y) for seed in (0, 0, 1)]
    assert_same_bits(found[0].components_, found[1].components_)
    assert np.abs(found[0].components_ - found[2].components_).max() > 1e-6
    assert found[0].kept_pairs_ == 1
    assert clone(model).set_params(n_references=30).fit(X, y).kept_pairs_ == 0.1


def test_mini_batches_improve_new_rows():
    X, y = load_digits(return_X_y=True)
    X = X / 16
    train, test = np.arange(len(X)) % 2 == 0, np.arange(len(X)) % 2 == 1
    model = NeighborhoodComponentsAnalysis(
        10, solver="minibatch", init="pca", max_iter=15, n_references=500, batch_size=128, random_state=0
    ).fit(X[train], y[train])
    start = NeighborhoodComponentsAnalysis(10, init="pca", max_iter=1, random_state=0).fit(X[train], y[train])
    assert model.objective_ > start.objective_history_[0]
    assert model.score(X[test], y[test]) > 0.93


@pytest.mark.filterwarnings("ignore:the objective is saturated:gramian.errors.GramianWarning")
@pytest.mark.parametrize("scale", [1.0, 1 / 16])
def test_few_epochs_of_mini_batches_come_close_to_the_exact_solver(scale):
    X, y = load_digits(return_X_y=True)
    train, test = np.arange(len(X)) % 2 == 0, np.arange(len(X)) % 2 == 1
    model = NeighborhoodComponentsAnalysis(10, init="pca", random_state=0)
    exact = clone(model).fit(scale * X[train], y[train])
    few = clone(model).set_params(solver="minibatch", max_iter=5).fit(scale * X[train], y[train])
    assert few.score(scale * X[test], y[test]) > exact.score(scale * X[test], y[test]) - 0.01


def test_a_batch_of_all_rows_has_the_exact_gradient():
    X, y = classes_of(150)
    problem = nca._Problem(X, y, X.mean(axis=0), "accuracy")
    A = np.random.default_rng(0).standard_normal((2, 6))
    exact = problem.evaluate(A)
    terms, p, gradient = nca._Batches(problem, 0, 150, 150).gradient(A, X - X.mean(axis=0), np.arange(150))
    assert_allclose(terms.sum(), exact.value)
    assert_allclose(p.mean(), exact.accuracy)
    assert_allclose(gradient, exact.gradient, atol=1e-10 * np.abs(exact.gradient).max())


# ------------------------------------------------------------------------------------- words that help


@pytest.mark.parametrize("solver", ["lbfgs", "cg", "minibatch"])
@pytest.mark.parametrize("scale", [100, 1000])
def test_a_saturated_objective_is_told(scale, solver):
    X, y = classes_of()
    model = NeighborhoodComponentsAnalysis(2, init="pca", solver=solver, max_iter=10)
    with pytest.warns(GramianWarning, match=r"saturated .* 300 rows .* went from .*; scale the columns"):
        model.fit(scale * X, y)


@pytest.mark.parametrize("objective", ["accuracy", "kl"])
def test_a_start_where_few_rows_can_move_is_told(objective):
    """Some rows still have a choice, and the optimiser goes on among them: the others stay wrong."""
    X, y = load_digits(return_X_y=True)
    model = NeighborhoodComponentsAnalysis(2, objective=objective, init="pca", max_iter=10)
    with pytest.warns(GramianWarning, match="saturated at its start"):
        model.fit(100 * X, y)


def test_an_optimum_is_not_called_saturated():
    X, y = np.array([[0.0], [0.1], [9.0]]), [0, 0, 1]
    assert NeighborhoodComponentsAnalysis(1, init="pca").fit(X, y).objective_ == 2  # one row is alone
    X, y = load_iris(return_X_y=True)
    model = NeighborhoodComponentsAnalysis(2, objective="kl", init="pca").fit(1000 * X, y)
    assert model.expected_accuracy_ > 0.99


@pytest.mark.parametrize("solver", ["lbfgs", "cg", "minibatch"])
def test_a_callback_ends_the_fit_and_its_errors_pass_through(solver):
    X, y = classes_of()

    def stop_at_2(A, i):
        A[:] = np.nan  # a copy
        if i == 2:
            raise StopIteration

    model = NeighborhoodComponentsAnalysis(2, solver=solver, callback=stop_at_2).fit(X, y)
    assert model.n_iter_ == 2
    assert np.isfinite(model.components_).all()
    with pytest.raises(ZeroDivisionError):
        NeighborhoodComponentsAnalysis(2, solver=solver, callback=lambda A, i: i / 0).fit(X, y)


@pytest.mark.parametrize("scale", [1e-200, 1e-160, 1e-100, 1e-30, 1e30, 1e100])
def test_mini_batches_take_any_scale(scale):
    X, y = classes_of()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GramianWarning)  # columns of 1e-200 have no spread in float64
        model = NeighborhoodComponentsAnalysis(2, solver="minibatch", max_iter=3).fit(scale * X, y)
    assert np.isfinite(model.components_).all()


@pytest.mark.parametrize("solver", ["lbfgs", "cg"])
@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1e3, 1e30])
def test_a_start_that_fits_the_columns_is_climbed_from_at_any_scale(scale, solver):
    X, y = make_classification(846, 18, n_informative=10, n_classes=4, random_state=0)
    model = NeighborhoodComponentsAnalysis(2, init="lda", solver=solver)
    wanted = clone(model).fit(X, y).objective_
    assert clone(model).fit(scale * X, y).objective_ > 0.9 * wanted


def test_columns_that_an_offset_leaves_few_digits_are_not_called_constant():
    X, y = classes_of()
    NeighborhoodComponentsAnalysis(2, max_iter=2).fit(X[:, :-1] + 1e12, y)


def test_columns_of_different_spread_and_constant_ones_are_told():
    X, y = classes_of()
    with pytest.warns(GramianWarning, match="1 of 6 columns are constant, the first is column 5"):
        NeighborhoodComponentsAnalysis(2, max_iter=2).fit(X * [1, 1, 1, 1, 1, 0], y)
    with pytest.warns(GramianWarning, match="standard deviations go from .*; scale the columns"):
        NeighborhoodComponentsAnalysis(2, max_iter=2).fit(X * [1, 1, 1, 1, 1, 1e5], y)


@pytest.mark.parametrize("scale", [[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1e5], [1e3] * 6])
def test_warnings_point_at_the_call(scale):
    X, y = classes_of()
    with pytest.warns(GramianWarning) as told:
        NeighborhoodComponentsAnalysis(2, init="pca", max_iter=2).fit(X * scale, y)
    assert {warning.filename for warning in told} == {__file__}


def test_singletons_are_counted():
    X, y = classes_of()
    y = y.copy()
    y[:3] = [7, 8, 9]
    for objective in ("accuracy", "kl"):
        model = NeighborhoodComponentsAnalysis(2, objective=objective, max_iter=3).fit(X, y)
        assert model.singleton_rows_ == 3
        assert np.isfinite(model.objective_)


BAD = {
    "one class": ({}, lambda X, y: (X, 0 * y), "y holds 1 class"),
    "own class": ({}, lambda X, y: (X[:19], np.arange(19)), "19 classes of one row each"),
    "missing": ({}, lambda X, y: (X, np.where(y == 1, np.nan, y)), "NaN"),
    "no labels": ({}, lambda X, y: (X, None), "requires y"),
    "too few": ({}, lambda X, y: (X, y[:-1]), "299"),
    "numbers": ({}, lambda X, y: (X, X[:, 0]), "[Cc]ontinuous"),
    "NaN": ({}, lambda X, y: (np.where(X > 2, np.nan, X), y), "NaN"),
    "flat": ({}, lambda X, y: (X[:, 0], y), "Expected 2D|shape"),
    "components": ({"n_components": 7}, lambda X, y: (X, y), "n_components is 7 for 6 columns"),
    "none": ({"n_components": 0}, lambda X, y: (X, y), "n_components is 0"),
    "lda": ({"n_components": 3, "init": "lda"}, lambda X, y: (X, y), "at most 2 components"),
    "init": ({"init": "rows"}, lambda X, y: (X, y), "init is 'rows'"),
    "init shape": ({"init": np.eye(2, 5)}, lambda X, y: (X, y), r"init has shape \(2, 5\)"),
    "init NaN": ({"init": np.full((2, 6), np.nan)}, lambda X, y: (X, y), "NaN"),
    "solver": ({"solver": "sgd"}, lambda X, y: (X, y), "solver is 'sgd'"),
    "objective": ({"objective": "loss"}, lambda X, y: (X, y), "objective is 'loss'"),
    "tol": ({"tol": -1.0}, lambda X, y: (X, y), "tol is -1"),
    "max_iter": ({"max_iter": 0}, lambda X, y: (X, y), "max_iter is 0"),
    "batch": ({"solver": "minibatch", "batch_size": 301}, lambda X, y: (X, y), "batch_size is 301"),
    "scale": ({"init": 1e300 * np.eye(2, 6)}, lambda X, y: (X, y), "scale"),
    "init None": ({"init": None}, lambda X, y: (X, y), "init is None; give one of 'auto'"),
    "init number": ({"init": 3}, lambda X, y: (X, y), "init is 3; give one of 'auto'"),
    "warm_start": ({"warm_start": "yes"}, lambda X, y: (X, y), "warm_start is 'yes'"),
    "callback": ({"callback": "print"}, lambda X, y: (X, y), "callback is 'print'"),
    "verbose": ({"verbose": "loud"}, lambda X, y: (X, y), "verbose is 'loud'"),
    "two types": ({}, lambda X, y: (X, np.array(["a", 1] * 150, object)), "give labels of one type"),
    "None": ({}, lambda X, y: (X, np.array(["a", None] * 150, object)), "none of them missing"),
    "bytes": ({}, lambda X, y: (X, np.array([b"a", b"b"] * 150)), "make them text"),
    "columns of labels": ({}, lambda X, y: (X, np.c_[y, y]), "give one class label for each row"),
}


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")
@pytest.mark.parametrize("solver", ["lbfgs", "minibatch"])
@pytest.mark.parametrize("init", ["auto", "pca", "identity"])
def test_columns_whose_products_overflow_are_refused(init, solver):
    X, y = classes_of()
    model = NeighborhoodComponentsAnalysis(2, init=init, solver=solver)
    with pytest.raises(InputError, match="overflow float64; divide each column by its largest value"):
        model.fit(1e200 * X, y)


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_told_in_one_line(name):
    parameters, change, message = BAD[name]
    X, y = change(*classes_of())
    with pytest.raises((InputError, InputTypeError), match=message) as error:
        NeighborhoodComponentsAnalysis(**parameters).fit(X, y)
    assert "\n" not in str(error.value)
    assert ";" in str(error.value)


# ------------------------------------------------------------------------------------- what it has to show


def test_curves_tell_the_objective_and_the_neighbours_before_and_after():
    X, y = classes_of()
    model = NeighborhoodComponentsAnalysis(2, init="pca", random_state=0).fit(X, y)
    found = neighbourhoods(model, X, y)
    assert_allclose(found["objective"]["value"], model.objective_history_ / len(X))
    assert found["objective"]["iteration"] == list(range(model.n_iter_ + 1))
    assert found["neighbours"]["start"] < found["neighbours"]["end"]
    assert_allclose(found["neighbours"]["end"], nearest_accuracy(model.transform(X), y))
    assert_allclose(found["scatter"]["after"], model.transform(X))
    assert_allclose(found["scatter"]["before"], X @ model.start_.T)
    three = NeighborhoodComponentsAnalysis(3, init="pca", max_iter=2).fit(X, y)
    assert "scatter" not in neighbourhoods(three, X, y)
    assert neighbourhoods(PCA().fit(X), X, y) == {}


def nearest_accuracy(points, y):
    distances = ((points[:, None] - points) ** 2).sum(axis=2)
    np.fill_diagonal(distances, np.inf)
    votes = y[np.argsort(distances, axis=1)[:, :3]]
    return np.mean(
        [np.bincount(row, minlength=3).argmax() == label for row, label in zip(votes, y, strict=True)]
    )
