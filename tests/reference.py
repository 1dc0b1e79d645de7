"""The slow, literal definitions: the oracle that fast code is compared with.

Written for reading, not for speed: each function follows its formula word by word.
"""

from __future__ import annotations

from itertools import combinations
from math import comb

import numpy as np

# --- Subspaces -------------------------------------------------------------------------------------


def unpadded(U):
    """Basis (n, k) without its trailing zero columns."""
    while not U[:, -1].any():
        U = U[:, :-1]
    return U


def principal_angles(U, V):
    """Angles between two bases, ascending: arccos of the cosines above pi/4, arcsin of the sines below."""
    U, V = unpadded(U), unpadded(V)
    if U.shape[1] < V.shape[1]:
        U, V = V, U
    cosines = np.linalg.svd(U.T @ V, compute_uv=False)
    sines = np.sort(np.linalg.svd(V - U @ (U.T @ V), compute_uv=False))
    small = cosines > np.sqrt(0.5)
    return np.where(small, np.arcsin(np.minimum(sines, 1)), np.arccos(np.minimum(cosines, 1)))


def projection_kernel(U, V):
    """||U'V||_F^2 of two bases."""
    return np.linalg.norm(U.T @ V) ** 2


def periodic_kernel(U, V, omega):
    """det(I + w^2 (P - Q)^2)^(-1/2) of the projectors of two bases."""
    D = U @ U.T - V @ V.T
    return np.linalg.det(np.eye(len(U)) + omega**2 * D @ D) ** -0.5


def projection_rbf_kernel(U, V, omega):
    """exp(-w^2 / 2 ||P - Q||_F^2) of the projectors of two bases."""
    return np.exp(-(omega**2) / 2 * np.linalg.norm(U @ U.T - V @ V.T) ** 2)


def sign_kernel(U, V, n_samples, rng):
    """1 - (2/pi) E[angle(Pg, Qg)] over Gaussian g, and the standard error of the mean."""
    U, V = unpadded(U), unpadded(V)
    theta = principal_angles(U, V)
    k, excess = len(theta), abs(U.shape[1] - V.shape[1])
    x, z = rng.standard_normal((2, n_samples, k))
    y = np.cos(theta) * x + np.sin(theta) * z
    surplus = (rng.standard_normal((n_samples, excess)) ** 2).sum(axis=1)
    lengths = np.sqrt((x**2).sum(axis=1) * ((y**2).sum(axis=1) + surplus))
    angles = np.arccos(np.clip((np.cos(theta) * x * y).sum(axis=1) / lengths, -1, 1))
    values = 1 - 2 / np.pi * angles
    return values.mean(), values.std() / np.sqrt(n_samples)


def gram(kernel, X, Y):
    """Every pair of rows, one after the other."""
    return np.array([[kernel(x, y) for y in Y] for x in X])


def rank_one_projection(U, a, b):
    """a' P b with the projector formed."""
    return a @ (U @ U.T) @ b


def packed_signs(u):
    """Bit j % 8 of byte j // 8 is 1 where projection j is not negative."""
    packed = np.zeros((len(u), -(-u.shape[1] // 8)), np.uint8)
    for i, row in enumerate(u):
        for j, value in enumerate(row):
            if value >= 0:
                packed[i, j // 8] |= 1 << (j % 8)
    return packed


def hamming_kernel(a, b, n_bits):
    """One minus twice the share of bits that differ, bit by bit."""
    differ = sum((a[j // 8] >> (j % 8) & 1) != (b[j // 8] >> (j % 8) & 1) for j in range(n_bits))
    return 1 - 2 * differ / n_bits


# --- Highly adaptive lasso -------------------------------------------------------------------------


def interactions(g, max_degree):
    """Subsets of g coordinates of size 1 to max_degree."""
    return sum(comb(g, size) for size in range(1, min(g, max_degree) + 1))


def hal_kernel(X, Y, knots, max_degree=None, knot_weights=None):
    """sum_i v_i sum_{s=1..q} C(g_i, s), g_i = #{j : knot_ij <= min(x_j, y_j)}, in Python's own numbers."""
    degree = X.shape[1] if max_degree is None else max_degree
    weights = [1] * len(knots) if knot_weights is None else knot_weights.tolist()
    table = [interactions(g, degree) for g in range(X.shape[1] + 1)]

    def entry(x, y):
        below = (knots <= np.minimum(x, y)).sum(axis=1)
        return sum(v * table[g] for v, g in zip(weights, below, strict=True))

    return gram(entry, X, Y)


def hal_basis(X, knots):
    """Indicators of x_s >= knot_s, every knot, every non-empty set s of coordinates: (n, m (2^d - 1))."""
    d = X.shape[1]
    sets = [s for size in range(1, d + 1) for s in combinations(range(d), size)]
    columns = [(knot, list(s)) for knot in knots for s in sets]
    return np.array([[(knot[s] <= x[s]).all() for knot, s in columns] for x in X], float)


# --- Neighbourhood components analysis -------------------------------------------------------------


def neighbour_powers(X, Y):
    """-||x - y||^2 of every pair, in long double."""
    X, Y = X.astype(np.longdouble), Y.astype(np.longdouble)
    return gram(lambda x, y: -((x - y) ** 2).sum(), X, Y)


def log_sum(powers):
    """log sum exp; minus infinity of nothing."""
    largest = powers.max(initial=-np.inf)
    return largest if np.isneginf(largest) else largest + np.log(np.exp(powers - largest).sum())


def neighbour_log_sums(Z, labels):
    """log sum_j exp(-||z_i - z_j||^2), j != i, over the class of i and over the other classes: (2, n)."""
    powers = neighbour_powers(Z, Z)
    np.fill_diagonal(powers, -np.inf)
    same = labels[:, None] == labels
    both = (zip(powers, which, strict=True) for which in (same, ~same))
    return np.array([[log_sum(row[kind]) for row, kind in pairs] for pairs in both])


def neighbour_objective(Z, labels, objective):
    """sum p_i, or sum log p_i of the rows with others of their class, and its derivative by Z.

    P_ij = K_ij / sum_k K_ik, p_i = sum of P_ij over the class of i, Q_ij = P_ij / p_i within it. By the
    squared distance of i and j, log p_i has the derivative P_ij - Q_ij: within the class, -(1 - p_i) Q_ij.
    """
    powers, (own, other), Z = neighbour_powers(Z, Z), neighbour_log_sums(Z, labels), Z.astype(np.longdouble)
    np.fill_diagonal(powers, -np.inf)
    value, slope = np.longdouble(0), np.zeros_like(Z)
    for i in np.flatnonzero(np.isfinite(own)):
        log_p, log_rest = (-np.logaddexp(0, sign * (other[i] - own[i])) for sign in (1, -1))
        same = labels == labels[i]
        within = np.exp(log_rest + np.where(same, powers[i] - own[i], 0))
        derivative = np.where(same, -within, np.exp(powers[i] - own[i] + log_p))
        if objective == "accuracy":
            derivative *= np.exp(log_p)
        value += np.exp(log_p) if objective == "accuracy" else log_p
        pull = 2 * derivative[:, None] * (Z[i] - Z)
        slope[i] += pull.sum(axis=0)
        slope -= pull
    return value, slope
