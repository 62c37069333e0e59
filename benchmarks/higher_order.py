"""Training steps of gated, temporal and spike-and-slab machines against their bare matrix products: one thread.

    python benchmarks/higher_order.py
    python benchmarks/higher_order.py --save benchmarks/results/higher_order.json

Contrastive divergence with one sweep (CD-1) and a plain gradient step. What counts is the CPU time of the one thread, as a
ratio to the products that the algorithm cannot do without, into memory that is there, in the same round:

    gated      7 forward (xU, yV, up; hP, down; y'V, up) and 7 for the gradients of U, V and P
    temporal   uA, uB, up, down, up and 4 for the gradients of W, A and B
    spike-slab up, down, up and 2 for the gradient of W
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import time

import torch
from timing import interleave, save

from gibbsian import kernels, models, objectives, units
from gibbsian.objectives.base import Step

torch.set_num_threads(1)
RATE = 1e-4


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=generator())


def products(rows: int, shapes: list[tuple[int, int, int]]):
    """Matrix products (a × b) by (b × c), nothing else; where b is the batch, of a transposed first factor."""
    ready = [(normal(b, a).T if b == rows else normal(a, b), normal(b, c), torch.empty(a, c)) for a, b, c in shapes]

    def run(steps: int) -> None:
        for _ in range(steps):
            for left, right, out in ready:
                torch.mm(left, right, out=out)

    return run


def gated_shapes(n: int, inputs: int, visible: int, hidden: int, factors: int) -> list[tuple[int, int, int]]:
    up = [(n, visible, factors), (n, factors, hidden)]
    down = [(n, hidden, factors), (n, factors, visible)]
    back = [(n, hidden, factors), (visible, n, factors), (hidden, n, factors)]  # h̄P, gradients of V and P
    return [(n, inputs, factors), *up, *down, *up, *back, *back, (inputs, n, factors)]


def temporal_shapes(n: int, past: int, visible: int, hidden: int) -> list[tuple[int, int, int]]:
    biases = [(n, past, visible), (n, past, hidden)]
    sweep = [(n, visible, hidden), (n, hidden, visible), (n, visible, hidden)]
    return [*biases, *sweep, (visible, n, hidden), (visible, n, hidden), (past, n, visible), (past, n, hidden)]


def slab_shapes(n: int, visible: int, hidden: int) -> list[tuple[int, int, int]]:
    sweep = [(n, visible, hidden), (n, hidden, visible), (n, visible, hidden)]
    return [*sweep, (visible, n, hidden), (visible, n, hidden)]


def training(model, batch, conditional: bool):
    """`contrast` and a plain update."""
    g, parameters = generator(), [p for p in model.parameters() if p.requires_grad]

    def run(steps: int) -> None:
        for _ in range(steps):
            if conditional:
                _, _, gradients = model.given(batch[0]).contrast(batch[1], None, 1, g)
            else:
                _, _, gradients = model.contrast(batch, None, 1, g)
            with torch.no_grad():
                for p in parameters:
                    p.sub_(gradients[p], alpha=RATE)

    return run


def through_objective(model, batch, conditional: bool):
    """The objective and torch.optim.SGD, as gibbsian.fit calls them."""
    objective = objectives.ContrastiveDivergence(kernels.Gibbs(), steps=1)
    if conditional:
        objective = objectives.Conditional(objective)
    g, parameters = generator(), [p for p in model.parameters() if p.requires_grad]
    state, optimizer = objective.init(model, batch, g), torch.optim.SGD(parameters, lr=RATE, fused=True)

    def run(steps: int) -> None:
        for i in range(steps):
            loss = objective.loss(model, batch, state, g, Step(watched=i % 10 == 0))  # as gibbsian.fit with its guard
            for p in parameters:
                p.grad = loss.gradients[p]
            optimizer.step()

    return run


def plain_gated(model, batch):
    """What one writes by hand: a sweep, and the free energies of both ends differentiated."""
    g, (x, y) = generator(), batch
    u, v, p, b, c = (
        part.detach().clone().requires_grad_()
        for part in (model.input_weight, model.weight, model.hidden_weight, model.visible_bias, model.hidden_bias)
    )

    def free(y):
        return -(y @ b) - torch.nn.functional.softplus(c + ((x @ u) * (y @ v)) @ p.T).sum(1)

    def run(steps: int) -> None:
        for _ in range(steps):
            with torch.no_grad():
                f = x @ u
                h = torch.bernoulli(torch.sigmoid(c + (f * (y @ v)) @ p.T), generator=g)
                z = torch.bernoulli(torch.sigmoid(b + (f * (h @ p)) @ v.T), generator=g)
            (free(y).mean() - free(z).mean()).backward()
            with torch.no_grad():
                for w in (u, v, p, b, c):
                    w.sub_(w.grad, alpha=RATE)
                    w.grad = None

    return run


KINDS = {
    "products": ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::addmv", "aten::mv"),
    "update of the parameters": ("aten::sub_",),
    "random numbers": (
        "aten::bernoulli",
        "aten::uniform_",
        "aten::normal_",
        "aten::rand",
        "aten::randn",
        "aten::random_",
    ),
    "sigmoid, softplus, exponentials": (
        "aten::sigmoid",
        "aten::softplus",
        "aten::exp",
        "aten::log1p",
        "aten::log_sigmoid",
    ),
    "copies and memory": ("aten::copy_", "aten::cat", "aten::empty", "aten::zero_", "aten::fill_", "aten::clone"),
    "sums": ("aten::sum", "aten::mean", "aten::dot"),
}


def parts(title: str, run) -> dict:
    """Microseconds of an update in torch's operations by their kinds, as its profiler counts them: the least over many updates of
    each, since the profiler's clock is the wall's."""
    run(3)
    rounds = [by_kind(run) for _ in range(60)]
    return {"title": title, **{kind: min(found[kind] for found in rounds) for kind in rounds[0]}}


def by_kind(run) -> dict[str, float]:
    """Of one update."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        run(1)
    found = {e.key.rstrip("_"): e.self_cpu_time_total for e in profiler.key_averages() if e.key.startswith("aten::")}
    kinds = {kind: {name.rstrip("_") for name in names} for kind, names in KINDS.items()}
    row = {kind: sum(t for key, t in found.items() if key in names) for kind, names in kinds.items()}
    known = set.union(*kinds.values())
    return row | {"element by element": sum(t for key, t in found.items() if key not in known)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--save")
    parser.add_argument("--save-parts", help="where the time goes, by kinds of operations")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--small", action="store_true", help="tiny sizes, to see that it runs")
    arguments = parser.parse_args()
    k = 16 if arguments.small else 1
    n, pixels, hidden, factors = arguments.batch, 784 // k, 256 // k, 512 // k
    x = normal(n, pixels)
    y = (torch.rand(n, pixels, generator=generator()) < 0.3).float()
    gated = models.GatedRBM(pixels, pixels, hidden, factors, scale=0.01)
    frame, order, many = 88 if k == 1 else 8, 10, 512 // k
    past, notes = normal(n, order, frame), (torch.rand(n, frame, generator=generator()) < 0.3).float()
    roll = models.TemporalRBM(frame, many, order)
    motion = models.TemporalRBM(units.Gaussian(frame, learned=False), many, order)
    slab = models.SpikeSlabRBM(pixels, hidden * 2)
    work = [
        (f"gated {pixels}×{pixels}, {factors} factors, {hidden} hidden", gated, (x, y), True,
         gated_shapes(n, pixels, pixels, hidden, factors)),
        (f"temporal {frame} binary, {order} frames, {many} hidden", roll, (past, notes), True,
         temporal_shapes(n, order * frame, frame, many)),
        (f"temporal {frame} real, {order} frames, {many} hidden", motion, (past, normal(n, frame)), True,
         temporal_shapes(n, order * frame, frame, many)),
        (f"spike-slab {pixels}×{hidden * 2}", slab, x, False, slab_shapes(n, pixels, hidden * 2)),
    ]  # fmt: skip
    if arguments.save_parts:
        save([parts(title, training(model, batch, conditional)) for title, model, batch, conditional, _ in work],
             arguments.save_parts)  # fmt: skip
        return
    results = []
    for title, model, batch, conditional, shapes in work:
        contenders = [
            ("products", products(n, shapes), arguments.steps),
            ("gibbsian", training(model, batch, conditional), arguments.steps),
            ("gibbsian, objective and SGD", through_objective(model, batch, conditional), arguments.steps),
        ]
        if model is gated:
            contenders.append(("plain torch", plain_gated(model, batch), arguments.steps))
        results.append(
            interleave(f"{title}, CD-1, batch {n}", contenders, base="products", rounds=arguments.rounds,
                       clock=time.process_time)
        )  # fmt: skip
    save(results, arguments.save)


if __name__ == "__main__":
    main()
