"""What Hypothesis draws: shapes, chunkings, orthonormal bases, data with ties."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st


def orthonormal_bases(rng, count, n, k, dtype=np.float64):
    """Uniformly drawn bases (count, n, k)."""
    return np.linalg.qr(rng.standard_normal((count, n, k)))[0].astype(dtype)


@st.composite
def subspaces(draw, n=None, max_k=6, dtypes=(np.float64,), padded=True):
    """Bases (N, n, k), N in 1..40; some padded, some equal, some a small turn away from another."""
    n = draw(st.integers(1, 12)) if n is None else n
    k = draw(st.integers(1, min(n, max_k)))
    count = draw(st.integers(1, 40))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    X = orthonormal_bases(rng, count, n, k)
    if draw(st.booleans()):
        X[count // 2] = X[0]
    if draw(st.booleans()):
        X[-1] = np.linalg.qr(X[0] + 1e-6 * rng.standard_normal((n, k)))[0]
    if padded and draw(st.booleans()):
        dimensions = rng.integers(1, k + 1, count)
        X *= np.arange(k) < dimensions[:, None, None]
    return X.astype(draw(st.sampled_from(dtypes)))
