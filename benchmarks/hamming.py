"""Hamming Gram of packed signs against sgemm of the unpacked ones, one thread.

python -m benchmarks.hamming [--short] [--rows N]

NUMBA_CPU_NAME=haswell NUMBA_CPU_FEATURES= OPENBLAS_CORETYPE=Haswell before it gives the row of AVX2,
x86-64 and Prescott that of SSE2.
"""

from __future__ import annotations

import argparse

from benchmarks.turns import medians, one_core, text  # first: it sets the number of threads

# isort: split
import numpy as np

from gramian.kernels import hamming_kernel

BITS = 4096


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--short", action="store_true", help="4000 rows")
    parser.add_argument("--rows", type=int, default=20_000)
    options = parser.parse_args()
    rows, turns = (4_000, 5) if options.short else (options.rows, 5)
    one_core()
    F = np.random.default_rng(0).integers(0, 2, (rows, BITS)).astype(np.float32) * 2 - 1
    G, packed = F.copy(), np.packbits(F > 0, axis=1, bitorder="little")
    few = slice(0, min(rows, 1000))
    wanted = F[few] @ F.T / np.float32(BITS)
    np.testing.assert_array_equal(hamming_kernel(packed, n_bits=BITS)[few], wanted)
    sides = {
        "ours": lambda: hamming_kernel(packed, n_bits=BITS),
        "sgemm": lambda: F @ G.T,
        "syrk": lambda: F @ F.T,
    }
    times = medians(sides, turns)
    print("| what | gramian | peer | ratio |\n|---|---|---|---|")
    for peer in ("sgemm", "syrk"):
        print(
            f"| Hamming Gram, {rows} x {rows}, m = {BITS} | {text(times['ours'])} "
            f"| {text(times[peer])}, {peer} of the unpacked signs "
            f"| {times[peer][1] / times['ours'][1]:.1f}x, 1/{F.nbytes // packed.nbytes} of the memory |"
        )


if __name__ == "__main__":
    main()
