"""Suites that are inherited: a new kernel says what it is called and what it reads, and passes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import ClassVar
from unittest import mock

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from gramian import blocks, engine
from gramian.blocks import ArraySpec
from gramian.errors import InputError, InputTypeError
from gramian.gram import KERNELS, GramOperator, gram
from gramian.store.layout import open_dataset

# Subclasses share their inherited tests, which Hypothesis would otherwise take for a mistake.
drawn = settings(max_examples=8, suppress_health_check=[HealthCheck.differing_executors])


@contextmanager
def blocks_of(target):
    """Small blocks, so that few rows make many tiles."""
    with mock.patch.object(blocks, "TARGET", target):
        yield


def stored(array, rows=None):
    """The array as Zarr in this process's memory, in chunks of so many rows."""
    chunks = (array.shape[0] if rows is None else rows, *array.shape[1:])
    return zarr.create_array({}, data=array, chunks=chunks)


def lazy(array, rows):
    """The array as Dask, in chunks of so many rows."""
    return da.from_array(array, chunks=(rows, *array.shape[1:]))


def assert_same_bits(a, b):
    assert a.dtype == b.dtype
    assert_array_equal(a.view(np.uint8), b.view(np.uint8))


class KernelContract(ABC):
    """What holds for every line of the table of kernels.

    A subclass says its `name`, its `parameters`, what `rows` it reads and its literal twin: `value`.
    """

    name: str
    parameters: ClassVar[dict] = {}
    target = 1 << 14  # bytes of a block: about ten tiles along each axis
    tolerance = 1e-12  # relative, against the literal twin
    positive = True

    @abstractmethod
    def rows(self, rng, count):
        """So many rows."""

    @abstractmethod
    def value(self, x, y):
        """The kernel of two rows, literally."""

    @pytest.fixture
    def X(self):
        return self.rows(np.random.default_rng(0), 83)

    @pytest.fixture
    def Y(self):
        return self.rows(np.random.default_rng(1), 37)

    @pytest.fixture
    def K(self, X):
        """The matrix in memory, made of many tiles."""
        with blocks_of(self.target):
            return self.gram(X)

    def gram(self, X, Y=None, **options):
        return gram(X, Y, kernel=self.name, **self.parameters, **options)

    def operator(self, X, Y=None, **options):
        return GramOperator(X, Y, kernel=self.name, **self.parameters, **options)

    # -------------------------------------------------------------------------------------- values

    def test_many_tiles_are_tested(self, X):
        with blocks_of(self.target):
            assert len(self.operator(X).tile_map.rows) > 3

    def test_agrees_with_the_literal_twin(self, X, K):
        wanted = np.array([[self.value(x, y) for y in X[:20]] for x in X], float)
        assert_allclose(K[:, :20], wanted, rtol=self.tolerance, atol=self.tolerance * np.abs(wanted).max())

    def test_rectangle_agrees_with_the_literal_twin(self, X, Y):
        wanted = np.array([[self.value(x, y) for y in Y] for x in X[:20]], float)
        with blocks_of(self.target):
            got = self.gram(X[:20], Y)
        assert_allclose(got, wanted, rtol=self.tolerance, atol=self.tolerance * np.abs(wanted).max())

    def test_public_function_agrees(self, X, K):
        entry = KERNELS[self.name]
        assert_allclose(entry.bound(entry.function, self.parameters)(X), K, rtol=self.tolerance)

    def test_symmetric_to_the_last_bit(self, K):
        assert_same_bits(K, np.ascontiguousarray(K.T))

    def test_no_negative_eigenvalue_beyond_rounding(self, K):
        values = np.linalg.eigvalsh(K.astype(float))
        assert values[0] > -20 * np.finfo(K.dtype).eps * values[-1]

    def test_rectangle_of_the_rows_themselves_agrees_with_the_symmetric_matrix(self, X, K):
        assert_allclose(self.gram(X, X.copy()), K, rtol=self.tolerance)

    def test_exchanged_rectangle_is_the_transpose(self, X, Y):
        assert_allclose(self.gram(X, Y), self.gram(Y, X).T, rtol=self.tolerance)

    def test_one_row(self, X, K):
        assert_allclose(self.gram(X[:1], X[:1]), K[:1, :1], rtol=self.tolerance)

    # ---------------------------------------------------------------------------------------- bits

    @drawn
    @given(rows=st.integers(1, 90), threads=st.sampled_from((1, 2)), kind=st.sampled_from((stored, lazy)))
    def test_bits_do_not_depend_on_chunks_or_threads(self, rows, threads, kind):
        X = self.rows(np.random.default_rng(0), 83)
        with blocks_of(self.target), dask.config.set(num_workers=threads):
            assert_same_bits(self.gram(kind(X, min(rows, len(X)))), self.gram(X))

    @drawn
    @given(rows=st.integers(1, 90), kind=st.sampled_from((stored, lazy)))
    def test_bits_of_a_product_do_not_depend_on_chunks(self, rows, kind):
        rng = np.random.default_rng(0)
        X, V = self.rows(rng, 83), rng.standard_normal((83, 3))
        with blocks_of(self.target):
            assert_same_bits(self.operator(kind(X, min(rows, len(X)))) @ V, self.operator(X) @ V)

    def test_store_holds_the_bits_of_the_matrix_in_memory(self, X, K, tmp_path):
        with blocks_of(self.target):
            out = self.gram(stored(X, 10), out=tmp_path / "gram.zarr")
        assert_same_bits(out[:], K)

    def test_store_of_a_rectangle_holds_the_bits_of_the_matrix_in_memory(self, X, Y, tmp_path):
        with blocks_of(self.target):
            out = self.gram(X, Y, out=tmp_path / "gram.zarr")
            assert_same_bits(out[:], self.gram(X, Y))

    def test_every_chunk_is_written_once(self, X, tmp_path):
        with (
            blocks_of(self.target),
            mock.patch.object(engine, "write_block", wraps=engine.write_block) as write,
        ):
            out = self.gram(X, out=tmp_path / "gram.zarr")
        written = sorted(call.args[1] for call in write.call_args_list)
        assert written == list(np.ndindex(out.cdata_shape))

    def test_store_says_what_it_holds(self, X, tmp_path):
        self.gram(X, out=tmp_path / "gram.zarr")
        store = open_dataset(tmp_path / "gram.zarr")
        assert (store.kind, store.attrs["kernel"]) == ("gram", self.name)
        assert set(self.parameters) <= set(store.attrs["parameters"])

    # ------------------------------------------------------------------------------------ operator

    def test_product(self, X, K):
        V = np.random.default_rng(2).standard_normal((len(X), 3))
        with blocks_of(self.target):
            assert_allclose(
                self.operator(X) @ V, K.astype(float) @ V, rtol=1e-10, atol=1e-10 * np.abs(K).max()
            )

    def test_diagonal(self, X, K):
        with blocks_of(self.target):
            assert_allclose(self.operator(X).diagonal(), np.diagonal(K), rtol=self.tolerance)

    def test_columns(self, X, K):
        chosen = np.array([3, 4, 70])
        operator = self.operator(X)
        assert_allclose(engine.apply(operator.columns(chosen), X), K[:, chosen], rtol=self.tolerance)

    # ---------------------------------------------------------------------------------------- plan

    def test_plan_of_a_store_says_what_is_written(self, X, K):
        with blocks_of(self.target):
            plan = self.operator(X).plan()
            tile_map = self.operator(X).tile_map
            grid, groups = tile_map.rows, list(tile_map.groups())
        assert (plan.written, plan.files) == (K.nbytes, len(grid) ** 2)
        assert plan.steps[-1].tasks == len(groups)
        assert plan.flops > 0
        assert max(step.task_bytes for step in plan.steps) >= grid.step**2 * K.itemsize

    def test_plan_needs_no_data(self, X):
        spec = ArraySpec(X.shape, X.dtype)
        assert self.operator(spec).plan() == self.operator(X).plan()
        assert self.operator(spec).plan(5) == self.operator(X).plan(5)

    def test_block_stays_within_the_target(self, X):
        spec = ArraySpec((10**6, *X.shape[1:]), X.dtype)
        operator = self.operator(spec)
        step, row = operator.tile_map.rows.step, spec.row_bytes + operator.tile_map.scratch
        assert step == 1 or step * (2 * row + step * operator.dtype.itemsize) <= blocks.TARGET

    # ----------------------------------------------------------------------------------- bad input

    def test_unknown_parameter_is_refused(self, X):
        with pytest.raises(InputTypeError, match="has no parameter 'wrong'"):
            self.gram(X, wrong=1)

    def test_centring_a_whole_matrix_is_refused(self, X):
        with pytest.raises(InputTypeError, match="has no parameter 'center'"):
            self.gram(X, center=True)

    def test_rows_of_another_rank_are_refused(self, X):
        with pytest.raises(InputError, match=rf"X has shape .* reads {KERNELS[self.name].reads}"):
            self.gram(X[0])

    def test_no_rows_are_refused(self, X):
        with pytest.raises(InputError, match="X has shape"):
            self.gram(X[:0])


class FloatKernelContract(KernelContract):
    """The same for kernels of real numbers: not a number is refused, float32 is taken."""

    single = np.float32  # dtype of the matrix of float32 rows

    def test_float32(self, X, K):
        got = self.gram(X.astype(np.float32))
        assert got.dtype == self.single
        assert_allclose(got, K, rtol=1e-4, atol=1e-5 * np.abs(K).max())

    def test_mixed_types_give_float64(self, X, Y):
        assert self.gram(X.astype(np.float32), Y).dtype == np.float64

    @pytest.mark.parametrize("bad", [np.nan, np.inf])
    def test_not_finite_is_refused(self, X, bad):
        X[70, 0] = bad
        with pytest.raises(InputError, match=r"X has (NaN|infinity)"):
            self.gram(X)
