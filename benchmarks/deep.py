"""Deep belief networks against their bare matrix products: one thread, interleaved.

    python benchmarks/deep.py --save benchmarks/results/deep.json

Work: 784-500-500-2000 with ten labels, batches of 100, plain stochastic gradient steps: a CD-1 update of every stage of
greedy training, encoded on the fly, and an up-down update with k sweeps in the top RBM. What counts is the CPU time of
the one thread, as a ratio to the products that the algorithm cannot do without, in the same round.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import time

import torch
from timing import Contender, interleave, save

import gibbsian as gb
from gibbsian.objectives.base import Step
from gibbsian.training.pretrain import Encoded

torch.set_num_threads(1)
SIZES, CLASSES, BATCH, RATE = (784, 500, 500, 2000), 10, 100, 1e-3


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


DATA = (torch.rand(5000, SIZES[0], generator=generator()) < 0.2).float()
LABELS = torch.arange(5000) % CLASSES


def batches(steps: int):
    for i in range(steps):
        rows = slice(i * BATCH % len(DATA), i * BATCH % len(DATA) + BATCH)
        yield DATA[rows], LABELS[rows]


class Products:
    """The products of two layers, into memory that is there."""

    def __init__(self, low: int, high: int) -> None:
        g = generator()
        self.w = 0.01 * torch.randn(low, high, generator=g)
        self.x, self.h = ((torch.rand(BATCH, n, generator=g) < 0.5).float() for n in (low, high))
        self.up, self.down, self.grad = torch.empty(BATCH, high), torch.empty(BATCH, low), torch.empty(low, high)

    def __call__(self, ups: int, downs: int, gradients: int, x: torch.Tensor | None = None) -> None:
        x = self.x if x is None else x
        for _ in range(ups):
            torch.mm(x, self.w, out=self.up)
        for _ in range(downs):
            torch.mm(self.h, self.w.T, out=self.down)
        for _ in range(gradients):
            torch.mm(x.T, self.h, out=self.grad)


PAIRS = [Products(784, 500), Products(500, 500), Products(510, 2000)]
RECOGNITION = [Products(784, 500), Products(500, 500)]


def bare_stage(stage: int):
    def run(steps: int) -> None:
        for x, _ in batches(steps):
            for i, below in enumerate(PAIRS[:stage]):
                below(1, 0, 0, None if i else x)
            PAIRS[stage](2, 1, 2, None if stage else x)

    return run


def bare_up_down(k: int):
    def run(steps: int) -> None:
        for x, _ in batches(steps):  # on the matrices of the algorithm and in its order
            for i, (generation, recognition) in enumerate(zip(PAIRS[:2], RECOGNITION, strict=True)):
                recognition(1, 0, 0, None if i else x)
                generation(0, 1, 1)
            PAIRS[2](1 + k, k, 2)
            for generation, recognition in zip(PAIRS[1::-1], RECOGNITION[::-1], strict=True):
                generation(0, 1, 0)
                recognition(1, 0, 1)

    return run


def stepping(energy, objective, optimized: bool):
    """The objective with a plain update, or with torch.optim.SGD, as gibbsian.fit calls them."""
    g, parameters = generator(), list(energy.parameters())
    state = [objective.init(energy, next(batches(1)), g)]
    optimizer = torch.optim.SGD(parameters, lr=RATE, fused=True)

    def run(steps: int) -> None:
        for i, batch in enumerate(batches(steps)):
            step = Step(watched=i % 10 == 0)  # as gibbsian.fit with its guard
            loss = objective.loss(energy, batch, state[0], g, step)
            for p in parameters:
                p.grad = loss.gradients.get(p)
            state[0] = loss.state
            if optimized:
                optimizer.step()
                optimizer.zero_grad()
                continue
            with torch.no_grad():
                for p in parameters:
                    p.sub_(p.grad, alpha=RATE)
                    p.grad = None

    return run


def plain_up_down(k: int):
    """What one writes by hand, with torch.bernoulli."""
    g = generator()
    ups = [0.01 * torch.randn(a, b, generator=g) for a, b in ((784, 500), (500, 500))]
    downs, top = [w.clone() for w in ups], 0.01 * torch.randn(510, 2000, generator=g)
    up_bias = [torch.zeros(w.shape[1]) for w in ups]
    down_bias = [torch.zeros(w.shape[0]) for w in ups]
    b, c = torch.zeros(510), torch.zeros(2000)

    def coins(p):
        return torch.bernoulli(p, generator=g)

    def run(steps: int) -> None:
        for x, y in batches(steps):
            states = [x]
            for w, bias in zip(ups, up_bias, strict=True):
                states.append(coins(torch.sigmoid(states[-1] @ w + bias)))
            seen = torch.cat([torch.nn.functional.one_hot(y, 10).float(), states[-1]], 1)
            p = first = torch.sigmoid(seen @ top + c)
            v = seen
            for _ in range(k):
                field = coins(p) @ top.T + b
                label = torch.multinomial(torch.softmax(field[:, :10], 1), 1, generator=g).squeeze(1)
                v = torch.cat([torch.nn.functional.one_hot(label, 10).float(), coins(torch.sigmoid(field[:, 10:]))], 1)
                p = torch.sigmoid(v @ top + c)
            dreams = [v[:, 10:]]
            for w, bias in zip(downs[::-1], down_bias[::-1], strict=True):
                dreams.append(coins(torch.sigmoid(dreams[-1] @ w.T + bias)))
            dreams = dreams[::-1]
            wakes = [states[i] - torch.sigmoid(states[i + 1] @ downs[i].T + down_bias[i]) for i in range(2)]
            sleeps = [dreams[i + 1] - torch.sigmoid(dreams[i] @ ups[i] + up_bias[i]) for i in range(2)]
            for i in range(2):
                downs[i].add_(wakes[i].T @ states[i + 1] / BATCH, alpha=RATE)
                down_bias[i].add_(wakes[i].mean(0), alpha=RATE)
                ups[i].add_(dreams[i].T @ sleeps[i] / BATCH, alpha=RATE)
                up_bias[i].add_(sleeps[i].mean(0), alpha=RATE)
            top.add_((seen.T @ first - v.T @ p) / BATCH, alpha=RATE)
            b.add_((seen - v).mean(0), alpha=RATE)
            c.add_((first - p).mean(0), alpha=RATE)

    return run


def network() -> gb.models.DBN:
    return gb.models.DBN(*SIZES, labels=CLASSES)


def greedy(stage: int, rounds: int) -> dict:
    cd = gb.objectives.ContrastiveDivergence(gb.kernels.Gibbs())
    base = "the products alone"
    contenders: list[Contender] = [(base, bare_stage(stage), 40)]
    for name, optimized in [("gibbsian", False), ("gibbsian, torch.optim.SGD", True)]:
        dbn = network()
        machine = dbn.begin_stage(stage, dbn.encode(stage, (DATA, LABELS), generator()))
        contenders.append((name, stepping(machine, Encoded(cd, dbn, stage), optimized), 40))
    names = ["784 × 500", "500 × 500 above it", "(10 + 500) × 2000 above both"]
    title = f"CD-1, stage {stage + 1}: {names[stage]}, batch 100"
    return interleave(title, contenders, base=base, rounds=rounds, clock=time.process_time)


def up_down(k: int, rounds: int) -> dict:
    base = "the products alone"
    contenders: list[Contender] = [(base, bare_up_down(k), 20)]
    for name, optimized in [("gibbsian", False), ("gibbsian, torch.optim.SGD", True)]:
        contenders.append((name, stepping(network(), gb.objectives.UpDown(steps=k), optimized), 20))
    contenders.append(("plain torch", plain_up_down(k), 20))
    title = f"up-down, {k} sweep{'s' * (k > 1)} on top, 784-500-500-2000 with labels, batch 100"
    return interleave(title, contenders, base=base, rounds=rounds, clock=time.process_time)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--save", help="write the results as JSON")
    arguments = parser.parse_args()
    results = [greedy(stage, arguments.rounds) for stage in range(3)]
    results += [up_down(k, arguments.rounds) for k in (1, 3)]
    save(results, arguments.save)
