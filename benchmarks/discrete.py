"""Machines with pairwise couplings: closed forms against the general ones, and against bare products.

    python benchmarks/discrete.py --save benchmarks/results/discrete.json
    python benchmarks/discrete.py --device cuda --save benchmarks/results/discrete_gpu.json

The general forms ask an energy for the energies of all neighbors of a state; the closed ones take one product. "bare" is the
same value and gradient written out by hand for that machine: two products and what stands between them. On a GPU both
are captured, as `gb.fit(compile=True)` does, and replayed.
"""

import argparse
import time

import torch
from timing import interleave, save

import gibbsian as gb
from gibbsian import kernels, models, objectives
from gibbsian.fast.graphs import capture, on_side_stream


def gen(seed: int = 0, device: str = "cpu") -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


class General(gb.Energy):
    """A machine that tells nothing but its energy."""

    def __init__(self, model) -> None:
        super().__init__(model.domain)
        self.model = model

    def forward(self, x):
        return self.model(x)


def gradient(energy, x, objective=None):
    objective = objective or objectives.PseudoLikelihood()
    g = gen(device=x.device.type)
    state = objective.init(energy, x, g)

    def run(steps: int) -> None:
        for _ in range(steps):
            loss = objective.loss(energy, x, state, g, objectives.base.Step(watched=False))
            if loss.gradients is None:
                torch.autograd.grad(loss.value, list(energy.parameters()))

    return run


def bare_potts(model, x):
    """∇h = ΣR, ∇J = A + Aᵀ without its blocks of a site with itself, A = RᵀX, R = softmax(g) - x."""
    n = model.sites * model.states
    j, h, flat, between = model.coupling.detach().reshape(n, n), model.field.detach(), x.flatten(1), model.between

    def run(steps: int) -> None:
        for _ in range(steps):
            g = h + (flat @ j).reshape(x.shape)
            value = (torch.logsumexp(g, -1) - (x * g).sum(-1)).sum() / len(x)
            residual = (torch.softmax(g, -1) - x).flatten(1) / len(x)
            a = residual.T @ flat
            (value, (a + a.T).reshape(model.coupling.shape) * between, residual.sum(0))

    return run


def bare_spins(model, x):
    """∇b = ΣR, ∇W = A + Aᵀ without its diagonal, R = -2x σ(-2xu)."""
    w, b = model.weight.detach(), model.bias.detach()

    def run(steps: int) -> None:
        for _ in range(steps):
            gaps = -2 * x * (x @ w + b)
            value = torch.nn.functional.softplus(gaps).sum() / len(x)
            residual = -2 * x * torch.sigmoid(gaps) / len(x)
            a = residual.T @ x
            (value, (a + a.T).fill_diagonal_(0), residual.sum(0))

    return run


def bare_ratios(model, x):
    """The same for ratio matching: 2p²(1 - p) in the place of p."""
    w, b = model.weight.detach(), model.bias.detach()

    def run(steps: int) -> None:
        for _ in range(steps):
            p = torch.sigmoid(-2 * x * (x @ w + b))
            value = p.square().sum() / len(x)
            residual = -4 * x * p.square() * (1 - p) / len(x)
            a = residual.T @ x
            (value, (a + a.T).fill_diagonal_(0), residual.sum(0))

    return run


def bare_flow(model, x):
    """And for minimum probability flow: ½exp(gap/2)."""
    w, b = model.weight.detach(), model.bias.detach()

    def run(steps: int) -> None:
        for _ in range(steps):
            flow = torch.exp(-x * (x @ w + b))
            value = flow.sum() / len(x)
            residual = -x * flow / len(x)
            a = residual.T @ x
            (value, (a + a.T).fill_diagonal_(0), residual.sum(0))

    return run


def bare_rbm(model, x):
    """Gaps d b + Σⱼ [softplus(a + dW) - softplus(a)] of all bits at once, differentiated by autograd."""
    w, b, c = model.weight, model.visible_bias, model.hidden_bias
    softplus, d = torch.nn.functional.softplus, 1 - 2 * x

    def run(steps: int) -> None:
        for _ in range(steps):
            a = c + x @ w
            gaps = d * b + softplus(a[:, None] + d[..., None] * w).sum(-1) - softplus(a).sum(-1, keepdim=True)
            torch.autograd.grad(softplus(gaps).sum() / len(x), [w, b, c])

    return run


MACHINES = [
    ("Potts 20 x 21", models.Potts(20, 21), bare_potts),
    ("spins 64", models.BoltzmannMachine(64, spin=True), bare_spins),
]


def sweep(energy, kernel, x):
    def run(steps: int) -> None:
        gb.sample(energy, kernel, x, steps=steps, keep=False, generator=gen(), progress=False)

    return run


def captured(run):
    """One update as a graph."""
    on_side_stream(lambda: run(1), times=3)
    graph, _ = capture(lambda: run(1))

    def replay(steps: int) -> None:
        for _ in range(steps):
            graph.replay()

    return replay


def on_gpu(rounds: int, path: str | None) -> None:
    """Captured closed forms against captured bare products, and what both take as single launches."""
    results = []
    for name, model, bare in MACHINES:
        model = model.cuda()
        for rows in (100, 1000, 10000):
            x = model.domain.sample(rows, generator=gen(device="cuda"))
            contenders = [
                ("bare, captured", captured(bare(model, x)), 200),
                ("closed form, captured", captured(gradient(model, x)), 200),
                ("bare", bare(model, x), 50),
                ("closed form", gradient(model, x), 50),
            ]
            results.append(
                interleave(
                    f"pseudo-likelihood gradient on the GPU, {name}, {rows} rows",
                    contenders,
                    base="bare, captured",
                    rounds=rounds,
                    sync=torch.cuda.synchronize,
                )
            )
            save(results, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--save")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.device == "cuda":
        on_gpu(options.rounds, options.save)
        return
    results = []

    def compare(title: str, contenders: list, base: str) -> None:
        results.append(interleave(title, contenders, base=base, rounds=options.rounds, clock=time.process_time))
        save(results, options.save)

    potts = MACHINES[0][1]
    for name, model, bare in MACHINES:
        for rows in (100, 1000):
            x = model.domain.sample(rows, generator=gen())
            contenders = [("bare", bare(model, x), 50), ("closed form", gradient(model, x), 50)]
            if rows == 100 or model is not potts:  # its general form takes seconds
                contenders.append(("general form", gradient(General(model), x), 1))
            compare(f"pseudo-likelihood gradient, {name}, {rows} rows", contenders, "bare")
    spins = MACHINES[1][1]
    for name, objective, bare in (
        ("ratio matching", objectives.RatioMatching(), bare_ratios),
        ("minimum probability flow", objectives.MinimumProbabilityFlow(), bare_flow),
    ):
        for rows in (100, 1000):
            x = spins.domain.sample(rows, generator=gen())
            contenders = [
                ("bare", bare(spins, x), 50),
                ("closed form", gradient(spins, x, objective), 50),
                ("general form", gradient(General(spins), x, objective), 1),
            ]
            compare(f"{name} gradient, spins 64, {rows} rows", contenders, "bare")
    rbm = models.RBM(784, 200, generator=gen())
    for rows in (20, 100):
        x = rbm.domain.sample(rows, generator=gen())
        contenders = [
            ("bare", bare_rbm(rbm, x), 1),
            ("closed form", gradient(rbm, x), 5),
            ("general form", gradient(General(rbm), x), 1),
        ]
        compare(f"pseudo-likelihood gradient, RBM of 784 and 200 units, {rows} rows", contenders, "bare")
    x = potts.domain.sample(100, generator=gen())
    sweeps = [
        ("Gibbs", sweep(potts, kernels.Gibbs(), x), 20),
        ("SiteGibbs", sweep(potts, kernels.SiteGibbs(), x), 20),
        ("SiteGibbs, general form", sweep(General(potts), kernels.SiteGibbs(), x), 1),
    ]
    compare("a sweep of 100 chains, Potts 20 x 21", sweeps, "Gibbs")


if __name__ == "__main__":
    main()
