"""Random numbers that depend on a seed, a use and a block alone: never on chunks, workers or order."""

from __future__ import annotations

from enum import IntEnum
from numbers import Integral

import numpy as np
from numpy.typing import NDArray

from gramian.errors import InputError, InputTypeError


class Stream(IntEnum):
    """One fixed number for each use of random numbers. Append only: a number is part of the results."""

    KNOTS = 0
    LANDMARKS = 1
    FOLDS = 2
    SKETCH = 3
    PROBES_A = 4
    PROBES_B = 5
    SIGNS = 6
    SAMPLE = 7
    SPLIT = 8
    START = 9
    REFERENCES = 10
    BATCHES = 11


def generator(seed: int, stream: Stream, block: int = 0) -> np.random.Generator:
    """The generator of one block of one stream.

    Parameters
    ----------
    seed : int
        Any non-negative integer; large ones are not rounded.
    stream : Stream
        The use of the numbers.
    block : int, default 0
        The index of the block that is drawn.
    """
    sequence = np.random.SeedSequence(seed, spawn_key=(int(stream), block))
    return np.random.Generator(np.random.Philox(sequence))


def draw_rows(n_rows: int, count: int, seed: int, stream: Stream) -> NDArray[np.intp]:
    """Ascending indices of so many different rows; of all where there are no more."""
    if count >= n_rows:
        return np.arange(n_rows)
    return np.sort(generator(seed, stream).permutation(n_rows)[:count])


def seed_of(random_state: object) -> int:
    """One seed from whatever scikit-learn accepts as ``random_state``.

    An integer is its own seed; an instance or None gives one 63-bit draw.
    """
    if isinstance(random_state, Integral) and not isinstance(random_state, bool):
        if random_state < 0:
            raise InputError(f"random_state is {random_state}", "give a non-negative integer")
        return int(random_state)
    if random_state is None:
        return int(np.random.default_rng().integers(2**63))
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**63))
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(0, 2**63, dtype=np.int64))
    raise InputTypeError(
        f"random_state is a {type(random_state).__name__}",
        "give an integer, a NumPy generator or None",
    )
