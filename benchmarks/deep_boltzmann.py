"""An update of a deep Boltzmann machine against its matrix products: one thread, interleaved.

    python benchmarks/deep_boltzmann.py
    python benchmarks/deep_boltzmann.py --save benchmarks/results/deep_boltzmann.json

Work: 784-500-1000 binary units, batches of 100, 100 chains, 10 mean-field iterations and 5 Gibbs sweeps an update, plain
stochastic gradient steps. What counts is the CPU time of the one thread, as a ratio to the products that the algorithm
cannot do without, in the same round: 2 + 2·10 upwards and downwards for the data, 4·5 for the chains, 4 for the gradients.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import itertools
import time
import warnings

import torch
from timing import interleave, save

import gibbsian as gb

torch.set_num_threads(1)
warnings.simplefilter("ignore")
SIZES, BATCH, ITERATIONS, SWEEPS = (784, 500, 1000), 100, 10, 5


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


DATA = (torch.rand(10000, SIZES[0], generator=generator()) < 0.2).float()


def batches(steps: int):
    for i in range(steps):
        start = i * BATCH % len(DATA)
        yield DATA[start : start + BATCH]


def bare():
    """The products alone, into memory that is there."""
    g = generator()
    w1, w2 = (0.01 * torch.randn(a, b, generator=g) for a, b in itertools.pairwise(SIZES))
    h1, h2 = ((torch.rand(BATCH, n, generator=g) < 0.5).float() for n in SIZES[1:])
    out_v, out_1, out_2 = (torch.empty(BATCH, n) for n in SIZES)
    grad_1, grad_2 = torch.empty_like(w1), torch.empty_like(w2)

    def run(steps: int) -> None:
        for x in batches(steps):
            torch.mm(x, w1, out=out_1)
            torch.mm(h1, w2, out=out_2)
            for _ in range(ITERATIONS):
                torch.mm(h2, w2.T, out=out_1)
                torch.mm(h1, w2, out=out_2)
            for _ in range(SWEEPS):
                torch.mm(h1, w1.T, out=out_v)
                torch.mm(h1, w2, out=out_2)
                torch.mm(x, w1, out=out_1)
                torch.mm(h2, w2.T, out=out_1)
            for _ in range(2):
                torch.mm(x.T, h1, out=grad_1)
                torch.mm(h1.T, h2, out=grad_2)

    return run


def ours(centering: float | None = None):
    """Objective, its gradients as `gibbsian.fit` takes them, and update."""
    dbm = gb.models.DBM(*SIZES)
    parameters = list(dbm.parameters())
    objective = gb.objectives.VariationalLikelihood(ITERATIONS, SWEEPS, chains=BATCH, centering=centering)
    optimizer = torch.optim.SGD(parameters, lr=1e-4, fused=True)
    g = generator()
    state = objective.init(dbm, DATA[:BATCH], g)

    def run(steps: int) -> None:
        nonlocal state
        for x in batches(steps):
            loss = objective(dbm, x, state, g)
            for p in parameters:
                p.grad = loss.gradients[p]
            optimizer.step()
            optimizer.zero_grad()
            state = loss.state

    return run


def plain():
    """The same written by hand in plain torch, with automatic differentiation of the energy."""
    g = generator()
    w1, w2 = (torch.nn.Parameter(0.01 * torch.randn(a, b, generator=g)) for a, b in itertools.pairwise(SIZES))
    b0, b1, b2 = (torch.nn.Parameter(torch.zeros(n)) for n in SIZES)
    optimizer = torch.optim.SGD([w1, w2, b0, b1, b2], lr=1e-4, fused=True)
    chain = torch.bernoulli(torch.full((BATCH, SIZES[1]), 0.5), generator=g)

    def energy(v, x, y):
        return -(((v @ w1) * x).sum(1) + ((x @ w2) * y).sum(1) + v @ b0 + x @ b1 + y @ b2).mean()

    def run(steps: int) -> None:
        nonlocal chain
        for v in batches(steps):
            with torch.no_grad():
                m1 = torch.sigmoid(2 * v @ w1 + b1)
                m2 = torch.sigmoid(m1 @ w2 + b2)
                below = v @ w1 + b1
                for _ in range(ITERATIONS):
                    m1 = torch.sigmoid(below + m2 @ w2.T)
                    m2 = torch.sigmoid(m1 @ w2 + b2)
                h = chain
                for _ in range(SWEEPS):
                    u = torch.bernoulli(torch.sigmoid(h @ w1.T + b0), generator=g)
                    y = torch.bernoulli(torch.sigmoid(h @ w2 + b2), generator=g)
                    p = torch.sigmoid(u @ w1 + y @ w2.T + b1)
                    h = torch.bernoulli(p, generator=g)
                chain = h
            (energy(v, m1, m2) - energy(u, p, y)).backward()
            optimizer.step()
            optimizer.zero_grad()

    return run


def whole_fit():
    """Through fit, with everything that it watches."""

    def run(steps: int) -> None:
        objective = gb.objectives.VariationalLikelihood(ITERATIONS, SWEEPS, chains=BATCH)
        gb.fit(gb.models.DBM(*SIZES), objective, DATA, steps=steps, batch_size=BATCH, lr=1e-4, optimizer="sgd")

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--save")
    options = parser.parse_args()
    contenders = [
        ("bare products", bare(), 5),
        ("gibbsian objective and update", ours(), 5),
        ("the same, centered", ours(0.01), 5),
        ("gibbsian fit", whole_fit(), 60),
        ("plain torch", plain(), 5),
    ]
    title = "DBM 784-500-1000, batch 100, 10 mean-field iterations, 5 sweeps of 100 chains: an update"
    result = interleave(title, contenders, base="bare products", rounds=options.rounds, clock=time.process_time)
    save([result], options.save)


if __name__ == "__main__":
    main()
