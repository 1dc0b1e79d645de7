"""Random features of subspaces as an estimator: what they estimate, their frequency, blocks and stores."""

from __future__ import annotations

import pickle
import warnings
from unittest import mock

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.linear_model import RidgeClassifier
from sklearn.pipeline import make_pipeline

from gramian import engine
from gramian.blocks import ArraySpec
from gramian.errors import GramianWarning, InputError, InputTypeError
from gramian.features import SAMPLE, GrassmannianRandomFeatures
from gramian.kernels.grassmann import periodic_kernel
from gramian.kernels.hamming import hamming_kernel
from gramian.sources import decode
from gramian.store.layout import create_array
from tests import reference
from tests.contracts import assert_same_bits, blocks_of, drawn, lazy, refuse, stored
from tests.strategies import orthonormal_bases

MAPS = {
    "periodic": {"nonlinearity": "periodic", "omega": 0.5},
    "sign": {"nonlinearity": "sign"},
    "linear": {"nonlinearity": "linear"},
    "packed": {"nonlinearity": "sign", "packed": True},
}
every_map = pytest.mark.parametrize("parameters", MAPS.values(), ids=MAPS.keys())


def bases(count=40, n=12, k=3, seed=0, dtype=np.float64):
    return orthonormal_bases(np.random.default_rng(seed), count, n, k, dtype)


def fitted(X, m=300, **parameters):
    return GrassmannianRandomFeatures(m, random_state=0, **parameters).fit(X)


# ---------------------------------------------------------------------------------------- estimates


def pair(k1, k2, n=10):
    """Two subspaces with something in common, the smaller one padded."""
    rng = np.random.default_rng(100 * k1 + k2)
    shared = rng.standard_normal((n, max(k1, k2)))
    both = [np.linalg.qr(shared[:, :k] + 0.4 * rng.standard_normal((n, k)))[0] for k in (k1, k2)]
    return np.stack([np.pad(U, ((0, 0), (0, max(k1, k2) - U.shape[1]))) for U in both])


DIMENSIONS = [(1, 1), (2, 2), (5, 5), (2, 5)]


@pytest.mark.parametrize("dimensions", DIMENSIONS)
def test_periodic_features_estimate_the_periodic_kernel(dimensions):
    X, m, omega = pair(*dimensions), 30_000, 0.6
    F = fitted(X, m, omega=omega).transform(X)
    kappa, doubled = (reference.periodic_kernel(*X, w) for w in (omega, 2 * omega))
    assert abs(F[0] @ F[1] - kappa) < 4 * np.sqrt(((1 + doubled) / 2 - kappa**2) / m)


@pytest.mark.parametrize("dimensions", DIMENSIONS)
@pytest.mark.parametrize("packed", [False, True])
def test_sign_features_estimate_the_sign_kernel(dimensions, packed):
    X, m = pair(*dimensions), 30_000
    F = fitted(X, m, nonlinearity="sign", packed=packed).transform(X)
    got = hamming_kernel(F, n_bits=m)[0, 1] if packed else F[0] @ F[1]
    kappa, uncertainty = reference.sign_kernel(*X, 200_000, np.random.default_rng(0))
    assert abs(got - kappa) < 4 * np.hypot(np.sqrt((1 - kappa**2) / m), uncertainty)


def test_linear_features_estimate_the_projection_kernel():
    X, m = pair(2, 5), 30_000
    F = fitted(X, m, nonlinearity="linear").transform(X)
    error = (F[0] * F[1] * m).std() / np.sqrt(m)
    assert abs(F[0] @ F[1] - reference.projection_kernel(*X)) < 4 * error


# ------------------------------------------------------------------------------------------- values


def projections(X, m, seed=0):
    """Projection by projection, from probes of the feature block that each belongs to."""
    from gramian.kernels.rank_one import FEATURE_BLOCK, draw_probes

    u = np.empty((len(X), m))
    for j in range(m):
        A, B = draw_probes(X.shape[1], FEATURE_BLOCK, seed, j // FEATURE_BLOCK)
        at = j % FEATURE_BLOCK
        u[:, j] = [reference.rank_one_projection(U, A[at], B[at]) for U in X]
    return u


@pytest.mark.filterwarnings("ignore:the median kernel:gramian.errors.GramianWarning")
@pytest.mark.parametrize("m", [1, 255, 256, 257, 600])
@every_map
def test_features_are_what_they_are_called(parameters, m):
    X = bases(5)
    F, u = fitted(X, m, **parameters).transform(X), projections(X, m)
    if parameters["nonlinearity"] == "periodic":
        waves = np.exp(1j * parameters["omega"] * u) / np.sqrt(m)
        wanted = np.stack([waves.real, waves.imag], axis=2).reshape(5, 2 * m)
    elif parameters["nonlinearity"] == "linear":
        wanted = u / np.sqrt(m)
    elif parameters.get("packed"):
        wanted = reference.packed_signs(u)
    else:
        wanted = np.where(u >= 0, 1, -1) / np.sqrt(m)
    assert F.dtype == (np.uint8 if parameters.get("packed") else np.float64)
    np.testing.assert_allclose(F, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("nonlinearity", ["periodic", "sign", "linear"])
def test_more_projections_leave_the_earlier_ones_as_they_are(nonlinearity):
    X = bases()
    few, many = (fitted(X, m, nonlinearity=nonlinearity, omega=1.0).transform(X) for m in (300, 1000))
    width = few.shape[1]
    np.testing.assert_allclose(many[:, :width] * np.sqrt(1000), few * np.sqrt(300), rtol=0, atol=1e-12)


@every_map
def test_subspaces_of_other_dimension_are_taken(parameters):
    X, fewer = bases(), bases(6, k=2, seed=1)
    model = fitted(X, **parameters)
    padded = np.concatenate([fewer, np.zeros((6, 12, 1))], axis=2)
    np.testing.assert_allclose(model.transform(fewer), model.transform(padded), rtol=0, atol=1e-12)


@pytest.mark.parametrize("nonlinearity", ["periodic", "sign", "linear"])
def test_float32_is_preserved(nonlinearity):
    X = bases(dtype=np.float32)
    F = fitted(X, nonlinearity=nonlinearity, omega=0.5).transform(X)
    wanted = fitted(X.astype(float), nonlinearity=nonlinearity, omega=0.5).transform(X.astype(float))
    assert F.dtype == np.float32
    np.testing.assert_allclose(F, wanted, rtol=0, atol=1e-5)


def test_integers_become_float64():
    X = np.eye(4, dtype=int)[None, :, :2]
    assert fitted(X, 600, omega=1.0).transform(X).dtype == np.float64


# ------------------------------------------------------------------------------------ the frequency


@pytest.mark.parametrize("k", [1, 3, 8])
def test_automatic_omega_makes_the_median_kernel_one_half(k):
    X = bases(60, 30, k)
    X[::3, :, k // 2 + 1 :] = 0
    omega = fitted(X, 5000).omega_
    values = periodic_kernel(X, omega=omega)[np.triu_indices(60, 1)]
    assert abs(np.median(values) - 0.5) < 1e-3


def test_automatic_omega_of_many_columns():
    assert 0 < fitted(bases(12, 200, 90), 5000).omega_ < 1


def test_automatic_omega_of_near_subspaces():
    X = bases(1, 20, 2) + 1e-6 * np.random.default_rng(1).standard_normal((30, 20, 2))
    X = np.linalg.qr(X)[0]
    values = periodic_kernel(X, omega=fitted(X, 5000).omega_)[np.triu_indices(30, 1)]
    assert abs(np.median(values) - 0.5) < 1e-3


def test_automatic_omega_of_equal_subspaces_warns():
    with pytest.warns(GramianWarning, match=r"most pairs of subspaces are equal.*omega is 1"):
        model = fitted(np.repeat(bases(1), 10, axis=0))
    assert model.omega_ == 1


def test_automatic_omega_needs_a_pair():
    with pytest.raises(InputError, match="omega is 'auto' with a single subspace"):
        fitted(bases(1))


def test_given_omega_needs_no_pair():
    assert fitted(bases(1), omega=0.3).omega_ == 0.3


@pytest.mark.parametrize("nonlinearity", ["sign", "linear"])
def test_maps_without_a_frequency_have_none(nonlinearity):
    assert fitted(bases(), nonlinearity=nonlinearity).omega_ is None


def test_omega_at_which_the_kernel_collapses_warns():
    with pytest.warns(
        GramianWarning, match=r"median kernel of two subspaces is .* lower omega or take more projections"
    ):
        fitted(bases(20, 40, 5), omega=3.0)


def test_omega_at_which_it_does_not_collapse_is_silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted(bases(20, 40, 5))


@pytest.mark.parametrize("omega", ["auto", 0.3])
def test_fit_reads_no_more_than_its_sample(omega):
    X, taken = stored(bases(500), 50), []
    with mock.patch.object(engine, "take", side_effect=lambda X, rows: taken.append(rows) or X[:][rows]):
        fitted(X, omega=omega)
    assert [len(rows) for rows in taken] == [SAMPLE]


def test_sample_of_large_subspaces_stays_within_a_block():
    spec = ArraySpec((1000, 5000, 100), np.dtype(float))
    assert GrassmannianRandomFeatures().plan(spec).read <= 12 * spec.row_bytes


# ------------------------------------------------------------------------------- blocks, lazy, stores


@every_map
def test_bits_do_not_depend_on_chunks_or_kind_of_array(parameters):
    X = bases(90)

    @drawn
    @given(rows=st.integers(1, 90), threads=st.sampled_from((1, 2)), kind=st.sampled_from((stored, lazy)))
    def check(rows, threads, kind):
        with blocks_of(1 << 17), dask.config.set(num_workers=threads):
            source = kind(X, rows)
            model = fitted(source, 700, **parameters)
            assert len(model.row_map(X).grid) > 2
            assert_same_bits(model.transform(source).compute(), fitted(X, 700, **parameters).transform(X))

    check()


@every_map
def test_transform_of_stored_rows_is_lazy(parameters):
    X = bases()
    model = fitted(X, **parameters)
    with dask.config.set(scheduler=refuse):
        for source in (stored(X, 7), lazy(X, 7)):
            assert isinstance(model.transform(source), da.Array)


def test_height_of_blocks_does_not_depend_on_the_number_of_projections():
    spec = ArraySpec((10**6, 100, 5), np.dtype(np.float32))
    maps = (fitted(bases(n=100, k=5), m, nonlinearity="sign").row_map(spec) for m in (1, 256, 10**5))
    steps = {row_map.grid.step for row_map in maps}
    assert len(steps) == 1


@every_map
def test_columns_are_feature_blocks(parameters):
    model = fitted(bases(), 700, **parameters)
    row_map = model.row_map(bases())
    width = {"periodic": 512, "sign": 256, "linear": 256}[parameters["nonlinearity"]]
    assert row_map.columns.step == (32 if parameters.get("packed") else width)
    assert row_map.tail == (row_map.columns.size,) == (model.transform(bases(1)).shape[1],)


@every_map
def test_readers_of_a_store_see_what_transform_returns(parameters):
    X = bases(50)
    model = fitted(X, 300, **parameters)
    row_map, attrs = model.stored_map(X)
    group = zarr.create_group({})
    out = create_array(group, "features", row_map.shape, row_map.dtype, row_map.grids, attrs)
    engine.write(row_map, out, X, name="features")
    seen = decode(out[:], out.attrs)
    unpacked = {**parameters, "packed": False}
    np.testing.assert_allclose(seen, fitted(X, 300, **unpacked).transform(X), rtol=0, atol=1e-7)
    assert_same_bits(seen, engine.apply(model.decoded_map(X), X))


def test_stores_hold_unscaled_values():
    model = fitted(bases(), 300, nonlinearity="sign")
    row_map, attrs = model.stored_map(bases())
    assert set(np.unique(row_map.whole(bases()))) == {-1.0, 1.0}
    assert attrs == {"scale": 1 / np.sqrt(300)}


def test_packed_store_knows_its_bits():
    model = fitted(bases(), 300, **MAPS["packed"])
    assert model.stored_map(bases())[1] == {"scale": 1 / np.sqrt(300), "n_bits": 300}


def test_declared_scratch_is_above_what_is_allocated():
    import tracemalloc

    X = bases(64, 100, 5)
    row_map = fitted(X, 256, omega=0.3).row_map(X)
    row_map.whole(X)
    tracemalloc.start()
    row_map.function(*row_map.prepared(X), column=0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 0.3 * peak < 64 * (row_map.scratch + 512 * 8) < 3 * peak


# ------------------------------------------------------------------------------------- scikit-learn


def test_clone_keeps_parameters_and_nothing_learned():
    model = clone(fitted(bases(), 70, nonlinearity="sign", packed=True))
    assert model.get_params() == {
        "n_projections": 70,
        "nonlinearity": "sign",
        "projection": "auto",
        "omega": "auto",
        "packed": True,
        "random_state": 0,
    }
    assert not hasattr(model, "seed_")


def test_set_params_after_fit_changes_nothing_fitted():
    X = bases()
    model = fitted(X, 70, omega=0.3)
    before = model.transform(X)
    assert_same_bits(model.set_params(omega=2.0, random_state=5).transform(X), before)


def test_learned_attributes():
    model = fitted(bases())
    assert (model.projection_, model.ambient_dimension_, model.n_features_in_, model.seed_) == (
        "gaussian",
        12,
        36,
        0,
    )


@pytest.mark.parametrize("state", [None, np.random.RandomState(3), np.random.default_rng(3)])
def test_seed_of_an_instance_is_kept(state):
    X = bases()
    model = GrassmannianRandomFeatures(50, random_state=state).fit(X)
    again = GrassmannianRandomFeatures(50, random_state=model.seed_).fit(X)
    assert_same_bits(model.transform(X), again.transform(X))


@every_map
def test_names_of_features(parameters):
    model = fitted(bases(), 50, **parameters)
    names = model.get_feature_names_out()
    assert len(names) == model.transform(bases(2)).shape[1]
    assert names[0] == "grassmannianrandomfeatures0"


def test_frame_as_output():
    model = fitted(bases(), 50).set_output(transform="pandas")
    frame = model.transform(bases())
    assert list(frame.columns) == list(model.get_feature_names_out())


def test_frame_as_output_of_stored_rows_is_refused():
    model = fitted(bases(), 50).set_output(transform="pandas")
    with pytest.raises(InputTypeError, match="lazy"):
        model.transform(stored(bases(), 10))


def test_pickled_model_transforms_alike():
    X = bases()
    model = fitted(X)
    assert_same_bits(pickle.loads(pickle.dumps(model)).transform(X), model.transform(X))


def test_works_within_a_pipeline():
    rng = np.random.default_rng(0)
    centres, y = bases(3, 20, 2), rng.integers(0, 3, 90)
    X = np.linalg.qr(centres[y] + 0.1 * rng.standard_normal((90, 20, 2)))[0]
    pipeline = make_pipeline(GrassmannianRandomFeatures(500, random_state=0), RidgeClassifier())
    assert pipeline.fit(X[:60], y[:60]).score(X[60:], y[60:]) > 0.95


# ---------------------------------------------------------------------------------------- bad input


BAD_PARAMETERS = {
    "no projections": ({"n_projections": 0}, "n_projections is 0"),
    "another map": (
        {"nonlinearity": "cosine"},
        "nonlinearity is 'cosine'; give one of 'periodic', 'sign', 'linear'",
    ),
    "projection not built": ({"projection": "structured"}, "give one of 'auto', 'gaussian'"),
    "omega of zero": ({"omega": 0}, "omega is 0"),
    "omega not finite": ({"omega": np.inf}, "omega is inf"),
    "packed floats": ({"packed": True}, "packed is True with nonlinearity 'periodic'"),
    "negative seed": ({"random_state": -1}, "random_state is -1"),
}


@pytest.mark.parametrize(("parameters", "message"), BAD_PARAMETERS.values(), ids=BAD_PARAMETERS.keys())
def test_bad_parameters_are_refused_at_fit(parameters, message):
    with pytest.raises(InputError, match=message):
        GrassmannianRandomFeatures(**parameters).fit(bases())


@pytest.mark.parametrize("omega", ["half", None, "1.0", True])
def test_omega_of_another_type_is_refused(omega):
    with pytest.raises((InputError, InputTypeError), match="omega is"):
        GrassmannianRandomFeatures(omega=omega).fit(bases())


def test_single_basis_is_refused():
    with pytest.raises(InputError, match="single basis"):
        fitted(bases()[0])


def test_no_rows_are_refused():
    with pytest.raises(InputError, match=r"shape \(0, 12, 3\)"):
        fitted(bases()[:0])


def test_path_is_refused_with_the_way_to_open_it():
    with pytest.raises(InputTypeError, match="open it first"):
        fitted("objects.zarr")


def test_sample_that_is_not_orthonormal_is_refused_at_fit():
    with pytest.raises(InputError, match="not orthonormal"):
        fitted(2 * bases())


@pytest.mark.parametrize("kind", [np.asarray, lambda X: stored(X, 9)])
def test_row_that_is_not_orthonormal_is_refused_where_it_is_read(kind):
    X = bases(200)
    model = fitted(X)
    X[150] *= 2
    with pytest.raises(InputError, match="basis 150 of X is not orthonormal"):
        np.asarray(model.transform(kind(X)))


def test_another_ambient_dimension_is_refused():
    with pytest.raises(InputError, match="fitted in dimension 12"):
        fitted(bases()).transform(bases(n=13))


def test_transform_before_fit_is_refused():
    from sklearn.exceptions import NotFittedError

    with pytest.raises(NotFittedError):
        GrassmannianRandomFeatures().transform(bases())
