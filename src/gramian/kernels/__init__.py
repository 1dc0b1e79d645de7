"""Kernels: one block in, one block out. NumPy, SciPy and numba alone; usable alone."""

from gramian.kernels.grassmann import (
    periodic_kernel,
    principal_angles,
    projection_kernel,
    projection_rbf_kernel,
)
from gramian.kernels.hal import hal_kernel
from gramian.kernels.hamming import hamming_kernel

__all__ = [
    "hal_kernel",
    "hamming_kernel",
    "periodic_kernel",
    "principal_angles",
    "projection_kernel",
    "projection_rbf_kernel",
]
