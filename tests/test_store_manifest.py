"""What a manifest says of inputs, versions and CPU, and what two of them differ in."""

from __future__ import annotations

import json
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr

from gramian.store import manifest
from gramian.store.manifest import cpu, differences, fingerprint, versions


def test_several_changes_are_named_together():
    old = {"parameters": {"a": 1, "b": 2}, "versions": {"numpy": "2.4.6"}}
    hard, soft = differences(old, {"parameters": {"a": 2}, "versions": {"numpy": "3"}})
    assert (hard, soft) == (["parameter a: 1 -> 2", "parameter b: 2 -> absent"], ["numpy 2.4.6 -> 3"])


def test_long_values_are_cut():
    (text,) = differences({"parameters": {"a": "x" * 500}}, {"parameters": {"a": 1}})[0]
    assert len(text) < 100


def values(rows: int = 2000, columns: int = 3) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(rows, columns))


def stored(X: np.ndarray, chunks: tuple[int, ...], **attrs: Any) -> zarr.Array:
    array = zarr.create_array({}, shape=X.shape, dtype=X.dtype, chunks=chunks, attributes=attrs)
    array[...] = X
    return array


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(manifest, "SAMPLED_BYTES", 24 * 10)  # ten rows of three numbers


@pytest.mark.usefixtures("small_blocks")
def test_a_fingerprint_does_not_depend_on_chunks_or_container():
    X = values()
    expected = fingerprint(X)
    assert fingerprint(stored(X, (7, 2))) == expected
    assert fingerprint(stored(X, (999, 3))) == expected
    assert fingerprint(da.from_array(X, chunks=(123, 1))) == expected


@pytest.mark.usefixtures("small_blocks")
def test_a_fingerprint_samples_sixteen_blocks_from_first_to_last():
    blocks = [int(block) for block in fingerprint(values())["checksums"]]
    assert (len(blocks), blocks[0], blocks[-1]) == (16, 0, 199)


@pytest.mark.usefixtures("small_blocks")
def test_a_change_in_a_sampled_block_is_named():
    X = values()
    changed_X = X.copy()
    changed_X[-1, 0] += 1
    hard, _ = differences({"inputs": {"X": fingerprint(X)}}, {"inputs": {"X": fingerprint(changed_X)}})
    assert hard == ["input X: checksum of block 199 differs"]


def test_a_small_array_is_covered_whole():
    X = values(5)
    assert fingerprint(X)["checksums"] == {"0": fingerprint(X.copy())["checksums"]["0"]}
    assert fingerprint(X) != fingerprint(X + 1)


def test_a_fingerprint_survives_json():
    X = stored(np.zeros((4, 2), "u1"), (2, 2), n_bits=13, scale=0.5, note="not a part")
    facts = fingerprint(X)
    assert json.loads(json.dumps(facts)) == facts
    assert (facts["n_bits"], facts["scale"], "note" in facts) == (13, 0.5, False)


@pytest.mark.parametrize(
    "X", [np.zeros((0, 3)), np.array(["a", "bc"]), np.array(["a", "bc"], object), np.zeros((3, 0))]
)
def test_fingerprints_of_unusual_arrays(X):
    assert fingerprint(X) == fingerprint(X.copy())


def test_versions_name_what_bits_depend_on():
    assert {"python", "gramian", "numpy", "scipy", "numba", "zarr", "dask"} <= set(versions())


def test_cpu_tells_machine_and_model_and_never_the_host():
    facts = cpu()
    assert {"machine", "family", "model", "blas"} <= set(facts)
    assert all(isinstance(value, str) and value for value in facts.values())
    assert cpu() == facts
