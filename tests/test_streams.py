"""Random numbers depend on seed, stream and block alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gramian.errors import InputError, InputTypeError
from gramian.streams import Stream, generator, seed_of


@given(st.integers(0, 2**64 - 1), st.sampled_from(list(Stream)), st.integers(0, 10**6))
def test_same_arguments_same_numbers(seed: int, stream: Stream, block: int) -> None:
    first, second = (generator(seed, stream, block).integers(2**63, size=4) for _ in range(2))
    assert np.array_equal(first, second)


def test_every_seed_stream_and_block_has_its_own_numbers() -> None:
    keys = [
        (seed, stream, block) for seed in (0, 1, 2**63, 2**63 + 1) for stream in Stream for block in (0, 1)
    ]
    drawn = {int(generator(*key).integers(2**63)) for key in keys}
    assert len(drawn) == len(keys)


def test_numbers_of_streams_never_change() -> None:
    drawn = [int(generator(7, Stream.PROBES_A, 3).bit_generator.random_raw()) for _ in range(2)]
    assert drawn == [9224060086322155638] * 2


@pytest.mark.parametrize("make", [np.random.default_rng, np.random.RandomState])
def test_an_instance_gives_one_draw(make: type) -> None:
    assert seed_of(make(5)) == seed_of(make(5)) != seed_of(make(6))


def test_none_gives_another_seed_every_time() -> None:
    assert seed_of(None) != seed_of(None)


@pytest.mark.parametrize("seed", [0, np.int32(5), 2**64])
def test_an_integer_is_its_own_seed(seed: int) -> None:
    assert seed_of(seed) == seed


@pytest.mark.parametrize(
    ("value", "error"),
    [(-1, InputError), (1.5, InputTypeError), ("a", InputTypeError), (True, InputTypeError)],
)
def test_other_values_are_refused(value: object, error: type[Exception]) -> None:
    with pytest.raises(error, match="random_state is"):
        seed_of(value)
