"""Solves one planted problem with pylibmgm: `python matching_pylibmgm.py problem.npz pairs.npy`.

Costs are the negative terms of Eq. 4, with centred edge weights as in ttdg. pylibmgm is GPL, so this file imports
nothing from ttdg, and nothing in ttdg imports it.
"""

import itertools
import sys

import numpy as np
import pylibmgm
from pylibmgm import solver


def pair_model(i: int, j: int, edges: np.ndarray, affinity: np.ndarray, weight: float) -> pylibmgm.GmModel:
    """The matching problem of graphs i and j."""
    n = edges.shape[1]
    cells, links = list(itertools.product(range(n), repeat=2)), list(itertools.combinations(range(n), 2))
    model = pylibmgm.GmModel(pylibmgm.Graph(i, n), pylibmgm.Graph(j, n), len(cells), len(links) * n * (n - 1))
    for k, l in cells:
        model.add_assignment(k, l, -float(affinity[i, j, k, l]))
    for (k, q), (l, r) in itertools.product(links, itertools.permutations(range(n), 2)):
        model.add_edge(k * n + l, q * n + r, -weight * 2 * float(edges[i, k, q] * edges[j, l, r]))
    return model


def main(problem: str, answer: str, weight: float = 1.0) -> None:
    """Read the problem from one file and write the matches to the other."""
    data = np.load(problem)
    edges, affinity = data["edges"].astype(float), data["affinity"].astype(float)
    m, n, _ = edges.shape
    off = ~np.eye(n, dtype=bool)
    edges = np.where(off, edges - edges[:, off].mean(1)[:, None, None], 0.0)
    model = pylibmgm.MgmModel()
    for i, j in itertools.combinations(range(m), 2):
        model.add_model(pair_model(i, j, edges, affinity, weight))
    solution = solver.solve_mgm(model, solver.OptimizationLevel.DEFAULT)
    X = np.zeros((m, m, n, n), np.float32)
    for (i, j), labels in solution.labeling().items():
        for k, l in enumerate(labels):
            if l is not None and l >= 0:
                X[i, j, k, l] = X[j, i, l, k] = 1
    np.save(answer, X)


if __name__ == "__main__":
    main(*sys.argv[1:3])
