"""What holds for every test: one BLAS thread, a compile cache that cannot go stale, repeatable examples."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

from hypothesis import settings

ROOT = Path(__file__).parents[1]


def _kernels_hash() -> str:
    """A cached kernel is keyed by its own file alone, so the folder stands for the state of all of them."""
    files = sorted((ROOT / "src" / "gramian" / "kernels").glob("*.py"))
    return sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


# Before NumPy is imported; `make` sets the same.
for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ.setdefault("NUMBA_CACHE_DIR", str(ROOT / ".cache" / "numba" / _kernels_hash()))
os.environ.setdefault("MPLBACKEND", "agg")
os.environ.setdefault("SCIPY_ARRAY_API", "1")  # one of scikit-learn's checks of estimators needs it

settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
