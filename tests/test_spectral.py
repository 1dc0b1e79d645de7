"""Leading eigenpairs: three solvers against NumPy and closed forms, bits, resumption, refusals."""

from __future__ import annotations

from unittest import mock

import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from gramian import engine, moments, spectral
from gramian.blocks import ArraySpec
from gramian.errors import GramianWarning, InputError, InputTypeError, PlanError
from gramian.gram import GramOperator
from gramian.spectral import Eigenpairs, leading_eigenpairs, plan_eigenpairs
from gramian.streams import Stream, draw_rows
from tests.contracts import assert_same_bits, blocks_of, lazy, stored
from tests.strategies import orthonormal_bases

N = 220
SOLVERS = ("dense", "randomized", "nystroem")
every_solver = pytest.mark.parametrize("solver", SOLVERS)


def solve(operator, k, solver, **options) -> Eigenpairs:
    """With all rows as landmarks, where there are any."""
    landmarks = {"n_landmarks": operator.shape[0]} if solver == "nystroem" else {}
    return leading_eigenpairs(operator, k, solver=solver, random_state=0, **(landmarks | options))


def with_spectrum(values, seed=0):
    """A matrix with these eigenvalues, and its eigenvectors."""
    vectors = np.linalg.qr(np.random.default_rng(seed).standard_normal((len(values), len(values))))[0]
    return (vectors * values) @ vectors.T, vectors


def matrix(values, **options):
    K, _ = with_spectrum(values)
    return GramOperator((K + K.T) / 2, kernel="precomputed", **options)


def subspace_error(A, B):
    """Norm of the difference of the projectors on two subspaces of one dimension."""
    return np.linalg.norm(A - B @ (B.T @ A), 2)


def covariates(rows=N, d=3):
    return np.random.default_rng(1).standard_normal((rows, d))


def operators():
    """Operators of every sort whose 15th eigenvalue stands apart from the 16th."""
    X, w = covariates(), np.random.default_rng(2).integers(0, 4, N).astype(float)
    bases = orthonormal_bases(np.random.default_rng(3), N, 9, 2)
    return {
        "hal": GramOperator(X, kernel="hal"),
        "centred": GramOperator(X, kernel="hal", center=True, scale="mean_diagonal"),
        "weighted": GramOperator(X, kernel="hal", center=True, sample_weight=w),
        "degree 1": GramOperator(X, kernel="hal", max_degree=1, n_knots=50),
        "periodic": GramOperator(bases, kernel="periodic", omega=0.5, center=True),
        "stored": matrix(1.0 / np.arange(1, N + 1), center=True),
    }


every_operator = pytest.mark.parametrize("name", operators())


# ------------------------------------------------------------------------------------- agreement


@every_operator
@every_solver
def test_values_agree_with_numpy(name, solver):
    operator = operators()[name]
    wanted = np.linalg.eigvalsh(operator.toarray())[: -15 - 1 : -1]
    assert_allclose(solve(operator, 15, solver).values, wanted, rtol=0, atol=1e-12 * wanted[0])


@every_operator
@every_solver
def test_subspace_agrees_with_numpy(name, solver):
    operator = operators()[name]
    values, vectors = np.linalg.eigh(operator.toarray())
    assert values[-15] - values[-16] > 1e-5 * values[-1]
    assert subspace_error(solve(operator, 15, solver).vectors, vectors[:, -15:]) < 1e-8


@every_operator
@every_solver
def test_residuals_are_those_of_the_pairs(name, solver):
    operator = operators()[name]
    pairs = solve(operator, 15, solver)
    exact = np.linalg.norm(operator.toarray() @ pairs.vectors - pairs.vectors * pairs.values, axis=0)
    assert_allclose(pairs.residuals, exact, rtol=1e-6, atol=1e-13 * pairs.values[0])


@every_operator
@every_solver
def test_vectors_are_orthonormal(name, solver):
    vectors = solve(operators()[name], 15, solver).vectors
    assert_allclose(vectors.T @ vectors, np.eye(15), atol=1e-11)


@every_solver
def test_entry_of_largest_magnitude_is_positive(solver):
    vectors = solve(operators()["centred"], 15, solver).vectors
    assert (np.abs(vectors).max(axis=0) == vectors.max(axis=0)).all()


@every_solver
def test_clustered_eigenvalues_by_their_subspaces(solver):
    values = np.r_[np.full(7, 2.0), np.full(5, 1.0 + 1e-12), np.linspace(0.5, 0, N - 12)]
    K, vectors = with_spectrum(values)
    pairs = solve(GramOperator((K + K.T) / 2, kernel="precomputed"), 12, solver)
    assert_allclose(pairs.values, values[:12], atol=1e-11)
    assert subspace_error(pairs.vectors[:, :7], vectors[:, :7]) < 1e-9
    assert subspace_error(pairs.vectors[:, 7:], vectors[:, 7:12]) < 1e-9


# ----------------------------------------------------------------------------------- closed forms


def ordered(d):
    """Rows that are ordered in every coordinate: K = (2^d - 1) min(i, j)."""
    return np.sort(np.random.default_rng(0).standard_normal((N, d)), axis=0)


@every_solver
@pytest.mark.parametrize(("d", "degree", "factor"), [(1, None, 1), (3, None, 7), (4, 2, 10)])
def test_brownian_motion(solver, d, degree, factor):
    pairs = solve(GramOperator(ordered(d), kernel="hal", max_degree=degree), 10, solver)
    i, k = np.arange(1, N + 1)[:, None], np.arange(1, 11)
    angle = (2 * k - 1) * np.pi / (2 * N + 1)
    wanted = 2 / np.sqrt(2 * N + 1) * np.sin(i * angle)
    assert_allclose(pairs.values, factor / (4 * np.sin(angle / 2) ** 2), rtol=1e-10)
    assert_allclose(np.abs((pairs.vectors * wanted).sum(axis=0)), 1, atol=1e-10)
    assert subspace_error(pairs.vectors, wanted) < 1e-10


@every_solver
def test_centred_brownian_motion(solver):
    pairs = solve(GramOperator(ordered(2), kernel="hal", center=True), 10, solver)
    i, k = np.arange(1, N + 1)[:, None], np.arange(1, 11)
    wanted = np.sqrt(2 / N) * np.cos((i - 0.5) * k * np.pi / N)
    assert_allclose(pairs.values, 3 / (4 * np.sin(k * np.pi / (2 * N)) ** 2), rtol=1e-10)
    assert subspace_error(pairs.vectors, wanted) < 1e-10


# -------------------------------------------------------------------------------------- stability

SPECTRA = {
    "ten orders a pair": 10.0 ** -np.arange(N),
    "fast": 0.5 ** np.arange(N),
    "slow": 1 / np.sqrt(np.arange(1, N + 1)),
    "linear": np.linspace(1, 0.5, N),
    "all equal": np.ones(N),
    "rank 3": np.r_[3.0, 2.0, 1.0, np.zeros(N - 3)],
    "zero": np.zeros(N),
    "more equal ones than a block has columns": np.r_[np.ones(60), np.linspace(0.5, 0, N - 60)],
    "constant and little else": np.r_[1.0, 1e-9 / np.arange(1, N)],
    "tiny": 1e-200 / np.arange(1, N + 1),
    "huge": 1e200 / np.arange(1, N + 1),
}


@every_solver
@pytest.mark.parametrize("spectrum", SPECTRA)
def test_any_spectrum(spectrum, solver):
    values = SPECTRA[spectrum]
    pairs = solve(matrix(values), 12, solver)
    assert_allclose(pairs.values, values[:12], rtol=0, atol=1e-12 * values[0])
    assert_allclose(pairs.vectors.T @ pairs.vectors, np.eye(12), atol=1e-9)
    assert pairs.residuals.max() <= 1e-10 * values[0]


@every_solver
@pytest.mark.parametrize("k", [1, N - 1, N])
def test_any_number_of_pairs(solver, k):
    operator = operators()["centred"]
    values = np.linalg.eigvalsh(operator.toarray())[: -k - 1 : -1]
    pairs = solve(operator, k, solver)
    assert pairs.vectors.shape == (N, k)
    assert_allclose(pairs.values, values, atol=1e-11 * values[0])
    assert_allclose(pairs.vectors.T @ pairs.vectors, np.eye(k), atol=1e-9)


@every_solver
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_few_rows(solver, rows):
    pairs = solve(GramOperator(covariates(rows), kernel="hal"), rows, solver)
    assert pairs.values.sum() == pytest.approx(GramOperator(covariates(rows), kernel="hal").trace())


def test_randomized_finds_the_largest_of_an_indefinite_matrix():
    values = np.linspace(1, -1.5, N)
    assert_allclose(solve(matrix(values), 4, "randomized").values, values[:4], atol=1e-11)


def count_products(operator, k):
    real = GramOperator.__matmul__
    with mock.patch.object(GramOperator, "__matmul__", autospec=True, side_effect=real) as product:
        solve(operator, k, "randomized")
    return product.call_count


def test_randomized_takes_few_products_where_the_spectrum_decays():
    operator = matrix(0.7 ** np.arange(N))
    with mock.patch.object(
        GramOperator, "__matmul__", autospec=True, side_effect=GramOperator.__matmul__
    ) as product:
        solve(operator, 10, "randomized")
    assert product.call_count <= 4


def test_randomized_stops_where_the_rank_is_exhausted():
    assert count_products(matrix(np.r_[3.0, 2.0, 1.0, np.zeros(N - 3)]), 3) <= 2


def test_randomized_keeps_its_basis_orthonormal_through_many_restarts():
    pairs = solve(matrix(np.linspace(1, 0.5, 2 * N)), 12, "randomized")
    assert_allclose(pairs.vectors.T @ pairs.vectors, np.eye(12), atol=1e-13)


def test_randomized_says_where_it_did_not_converge(monkeypatch):
    monkeypatch.setattr(spectral, "PRODUCTS", 3)
    with pytest.warns(GramianWarning, match="after 3 products an eigenpair has a residual of"):
        solve(matrix(np.linspace(1, 0.9, N)), 5, "randomized")


def test_randomized_gives_up_where_residuals_no_longer_shrink(monkeypatch):
    monkeypatch.setattr(spectral, "TOLERANCE", 0.0)
    operator = matrix(1.0 / np.arange(1, N + 1))
    with mock.patch.object(
        GramOperator, "__matmul__", autospec=True, side_effect=GramOperator.__matmul__
    ) as product:
        solve(operator, 10, "randomized")
    assert product.call_count < 60


# ---------------------------------------------------------------------------------------- Nyström


def test_nystroem_with_some_landmarks_is_the_literal_approximation():
    operator = operators()["centred"]
    L = draw_rows(N, 40, 0, Stream.LANDMARKS)
    K = GramOperator(covariates(), kernel="hal", scale="mean_diagonal").toarray()
    approximation = K[:, L] @ np.linalg.solve(K[np.ix_(L, L)], K[L])
    J = np.eye(N) - 1 / N
    values, vectors = np.linalg.eigh(J @ approximation @ J)
    pairs = solve(operator, 9, "nystroem", n_landmarks=40)
    assert_allclose(pairs.values, values[:-10:-1], rtol=1e-9)
    assert subspace_error(pairs.vectors, vectors[:, -9:]) < 1e-8


def test_nystroem_residuals_are_against_the_kernel_itself():
    operator = operators()["centred"]
    pairs = solve(operator, 9, "nystroem", n_landmarks=40)
    exact = np.linalg.norm(operator.toarray() @ pairs.vectors - pairs.vectors * pairs.values, axis=0)
    assert_allclose(pairs.residuals, exact, rtol=1e-9)


def test_sampled_residuals_estimate_the_exact_ones(monkeypatch):
    monkeypatch.setattr(spectral, "DENSE_ROWS", 100)
    monkeypatch.setattr(spectral, "SAMPLED_ROWS", 110)
    operator = operators()["weighted"]
    pairs = solve(operator, 9, "nystroem", n_landmarks=40)
    exact = np.linalg.norm(operator.toarray() @ pairs.vectors - pairs.vectors * pairs.values, axis=0)
    assert_allclose(pairs.residuals, exact, rtol=0.5)


def test_nystroem_of_single_precision_drops_what_is_rounding():
    bases = orthonormal_bases(np.random.default_rng(3), N, 4, 1, np.float32)  # rank 10
    operator = GramOperator(bases, kernel="projection")
    pairs = solve(operator, 12, "nystroem")
    assert_allclose(
        pairs.values, np.linalg.eigvalsh(operator.toarray())[:-13:-1], atol=1e-5 * pairs.values[0]
    )
    assert_array_equal(pairs.values[10:], 0)


# --------------------------------------------------------------------------------------- the choice


@pytest.mark.parametrize(
    ("rows", "kernel", "chosen"),
    [
        (4096, "hal", "dense"),
        (4097, "hal", "nystroem"),
        (4096, "precomputed", "dense"),
        (4097, "precomputed", "randomized"),
    ],
)
def test_solver_that_auto_stands_for(rows, kernel, chosen):
    shape, params = ((rows, rows), {}) if kernel == "precomputed" else ((rows, 3), {"n_knots": 8})
    operator = GramOperator(ArraySpec(shape, np.dtype(float)), kernel=kernel, **params)
    assert spectral.choose_solver(operator, "auto") == chosen


@pytest.mark.parametrize(("rows", "k", "count"), [(500, 10, 500), (9000, 10, 1024), (9000, 600, 2400)])
def test_landmarks_that_auto_stands_for(rows, k, count):
    assert spectral.count_landmarks(rows, k, "auto") == count


def test_the_solver_is_named():
    assert leading_eigenpairs(operators()["hal"], 2).solver == "dense"


# -------------------------------------------------------------------------------------------- bits


@every_solver
@settings(max_examples=4)
@given(rows=st.integers(1, N), threads=st.sampled_from((1, 2)), make=st.sampled_from((stored, lazy)))
def test_bits_do_not_depend_on_chunks_or_threads(solver, rows, threads, make):
    options = {"kernel": "hal", "center": True, "scale": "mean_diagonal", "n_knots": 50}
    with blocks_of(1 << 17), dask.config.set(num_workers=threads):
        one = solve(GramOperator(covariates(), **options), 8, solver, **some_landmarks(solver))
        other = solve(GramOperator(make(covariates(), rows), **options), 8, solver, **some_landmarks(solver))
    for part in ("values", "vectors", "residuals"):
        assert_same_bits(getattr(one, part), getattr(other, part))


def some_landmarks(solver):
    return {"n_landmarks": 60} if solver == "nystroem" else {}


@pytest.mark.parametrize("solver", ["randomized", "nystroem"])
def test_seed_decides_the_bits(solver):
    operator = operators()["hal"]
    first, again, other = (
        leading_eigenpairs(operator, 8, solver=solver, n_landmarks=60, random_state=seed).vectors
        for seed in (0, 0, 1)
    )
    assert_same_bits(first, again)
    assert not np.array_equal(first, other)


@every_solver
def test_bits_are_those_of_a_cluster(solver):
    X, options = covariates(), {"kernel": "hal", "center": True, "n_knots": 50}
    with blocks_of(1 << 15):
        here = solve(GramOperator(X, **options), 8, solver, **some_landmarks(solver))
        with (
            LocalCluster(
                2, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
            ) as cluster,
            Client(cluster),
        ):
            there = solve(GramOperator(stored(X, 50), **options), 8, solver, **some_landmarks(solver))
    assert_same_bits(here.vectors, there.vectors)


# -------------------------------------------------------------------------------------- resumption


class Killed(BaseException):
    pass


def test_randomized_continues_with_the_products_that_are_remembered(tmp_path):
    operator, whole = operators()["hal"], solve(operators()["hal"], 8, "randomized")
    real, calls = GramOperator.__matmul__, []

    def product(self, V):
        calls.append(None)
        if len(calls) == 3:
            raise Killed
        return real(self, V)

    with mock.patch.object(GramOperator, "__matmul__", product):
        with pytest.raises(Killed), engine.session(run=tmp_path / "run"):
            solve(operator, 8, "randomized")
        with engine.session(run=tmp_path / "run"):
            resumed = solve(operator, 8, "randomized")
    assert_same_bits(resumed.vectors, whole.vectors)
    assert len(calls) == count_products(operator, 8) + 1


def test_nystroem_resumes_with_the_same_bits(tmp_path):
    operator = operators()["hal"]
    with engine.session(run=tmp_path / "run"):
        first = solve(operator, 8, "nystroem")
    with (
        engine.session(run=tmp_path / "run"),
        mock.patch.object(moments, "_row_grams", side_effect=AssertionError("computed again")),
    ):
        again = solve(operator, 8, "nystroem")
    assert_same_bits(first.vectors, again.vectors)


# -------------------------------------------------------------------------------- plans and memory


@every_solver
def test_plan_needs_no_data(solver):
    spec = ArraySpec((9000, 3), np.dtype(float), (500, 3))
    plan = plan_eigenpairs(GramOperator(spec, kernel="hal", n_knots=64, center=True), 20, solver=solver)
    assert plan.tasks > 0
    assert plan.flops > 0
    assert plan.driver_bytes() > 8 * 9000 * 20


@every_solver
def test_what_is_admitted_is_what_the_plan_shows(solver):
    operator, steps = operators()["weighted"], []
    plan = plan_eigenpairs(operator, 15, solver=solver, n_landmarks=40)
    with mock.patch.object(engine, "admit", steps.append):
        solve(operator, 15, solver, **({"n_landmarks": 40} if solver == "nystroem" else {}))
    assert len(steps) == 1
    assert steps[0] in plan.steps


def test_the_planned_pass_of_nystroem_is_the_one_that_runs():
    operator = operators()["weighted"]
    (features, *_) = plan_eigenpairs(operator, 15, solver="nystroem", n_landmarks=40).steps
    with mock.patch.object(engine, "row_sum", side_effect=engine.row_sum) as run:
        solve(operator, 15, "nystroem", n_landmarks=40)
    (_, grid, *sources), sizes = run.call_args_list[0]
    wanted = engine.sum_step(
        "features", grid, sources[0], scratch=sizes["scratch"], result=sizes["result"], flops=features.flops
    )
    assert features == wanted


@every_solver
def test_what_does_not_fit_is_refused(solver):
    operator = operators()["hal"]
    with engine.session(max_memory=1 << 20), pytest.raises(PlanError, match="allowed are 1 MiB"):
        solve(operator, 15, solver)


def test_dense_solver_is_refused_before_the_matrix_is_computed():
    operator = GramOperator(np.zeros((60_000, 1)), kernel="hal", n_knots=8)
    with (
        mock.patch.object(engine, "tiles", side_effect=AssertionError("computed")),
        pytest.raises(PlanError, match="eigenpairs needs"),
    ):
        leading_eigenpairs(operator, 3, solver="dense")


# --------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize("k", [0, -1, N + 1])
def test_impossible_number_of_pairs_is_refused(k):
    with pytest.raises(InputError, match=f"k is {k}; give a whole number from 1 to {N}"):
        leading_eigenpairs(operators()["hal"], k)


def test_fraction_of_a_pair_is_refused():
    with pytest.raises(InputTypeError, match=r"k is 2\.5"):
        leading_eigenpairs(operators()["hal"], 2.5)


def test_unknown_solver_is_refused_with_the_list():
    with pytest.raises(
        InputError, match="solver is 'lanczos'; give one of 'auto', 'dense', 'randomized', 'nystroem'"
    ):
        leading_eigenpairs(operators()["hal"], 2, solver="lanczos")


def test_landmarks_that_are_not_built_are_refused_with_the_list():
    with pytest.raises(InputError, match="landmarks is 'rpcholesky'; give one of 'uniform'"):
        leading_eigenpairs(operators()["hal"], 2, solver="nystroem", landmarks="rpcholesky")


@pytest.mark.parametrize("count", [4, N + 1])
def test_impossible_number_of_landmarks_is_refused(count):
    with pytest.raises(InputError, match=f"n_landmarks is {count}; give a whole number from 5 to {N}"):
        leading_eigenpairs(operators()["hal"], 5, solver="nystroem", n_landmarks=count)


def test_rectangle_has_no_spectrum():
    X = covariates()
    with pytest.raises(InputError, match=r"the Gram matrix has shape \(20, 220\)"):
        leading_eigenpairs(GramOperator(X[:20], X, kernel="hal", knots=X), 2)


def test_plain_array_is_refused_with_the_way_to_wrap_it():
    with pytest.raises(InputTypeError, match="is a ndarray; give GramOperator"):
        leading_eigenpairs(np.eye(3), 2)


@every_solver
def test_matrix_that_is_not_symmetric_is_refused(solver):
    K, _ = with_spectrum(1.0 / np.arange(1, N + 1))
    K[3, 5] += 0.01
    with pytest.raises(InputError, match="the stored Gram matrix is not symmetric"):
        solve(GramOperator(K, kernel="precomputed"), 3, solver)


@every_solver
def test_matrix_that_is_not_finite_is_refused(solver):
    K, _ = with_spectrum(1.0 / np.arange(1, N + 1))
    K[3, 3] = np.nan
    with pytest.raises(InputError, match="row 3 of the stored Gram matrix is not finite"):
        solve(GramOperator(K, kernel="precomputed"), 3, solver)
