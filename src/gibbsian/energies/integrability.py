"""When a product of Student-t experts has a finite integral: the strength of a weighted set of vectors."""

import numpy as np
from scipy.optimize import linprog

from gibbsian.errors import ArgumentError


def _basis(vectors: np.ndarray, order: np.ndarray, tolerance: float) -> np.ndarray:
    """The greedy basis: vectors in the given order, each taken where it is independent of those before."""
    d = vectors.shape[1]
    taken: list[int] = []
    frame = np.zeros((d, d))
    for i in order:
        v = vectors[i]
        k = len(taken)
        rest = v - frame[:k].T @ (frame[:k] @ v)
        rest = rest - frame[:k].T @ (frame[:k] @ rest)  # twice is enough
        size = np.linalg.norm(rest)
        if size > tolerance:
            frame[k] = rest / size
            taken.append(i)
            if len(taken) == d:
                break
    return np.array(taken, dtype=int)


def strength(vectors: np.ndarray, capacity: np.ndarray, *, tolerance: float = 1e-9) -> float:
    """min over proper subspaces V of Σ_{wᵢ∉V} cᵢ / (d - dim V); 0 where the vectors do not span.

    A product Π (1 + ½(wᵢ·x)²)^(-cᵢ/2) falls along V⊥ as ‖x‖ to the power -Σ_{wᵢ∉V} cᵢ and is integrable there
    iff that exceeds the dimension of V⊥: in all directions iff the strength exceeds 1. By Edmonds' theorem on
    packing bases it is also the largest Σ_B λ_B over fractional packings of bases B with Σ_{B∋i} λ_B ≤ cᵢ, whose
    dual is a linear programme with one row for each basis; rows are added while a greedy basis violates one.

    Args:
        vectors: wᵢ `(n, d)`.
        capacity: cᵢ `(n,)`, positive.

    >>> strength(np.eye(2), np.array([3.0, 1.5]))  # the smaller of the two
    1.5
    >>> round(strength(np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), np.array([1.0, 1.0, 1.0])), 6)
    1.5
    """
    if vectors.ndim != 2 or capacity.shape != vectors.shape[:1] or not (capacity > 0).all():
        raise ArgumentError(f"{vectors.shape} vectors need as many positive capacities, got {capacity}")
    size = np.linalg.norm(vectors, axis=1)
    unit = vectors / np.where(size > 0, size, 1.0)[:, None]
    first = _basis(unit, np.argsort(-capacity), tolerance)
    if len(first) < vectors.shape[1]:
        return 0.0
    rows = [first]
    while True:
        cover = np.zeros((len(rows), len(vectors)))
        for row, basis in zip(cover, rows, strict=True):
            row[basis] = -1.0
        found = linprog(capacity, A_ub=cover, b_ub=-np.ones(len(rows)), bounds=(0, None), method="highs")
        lightest = _basis(unit, np.argsort(found.x, kind="stable"), tolerance)
        if found.x[lightest].sum() >= 1 - 1e-9:
            return float(found.fun)
        rows.append(lightest)
