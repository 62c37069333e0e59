"""RBM training and annealed importance sampling against bare matrix products and peers: one thread, interleaved.

    python benchmarks/rbm.py                       (peers are used where they are installed:
    python benchmarks/rbm.py --save results.json    scikit-learn, learnergy, rbms)

Work: 10000 × 784 binary data, 500 hidden units, batches of 100, plain stochastic gradient steps; AIS with 1000
temperatures and 100 chains. What counts is the CPU time of the one thread, as a ratio to the five (CD-1) or six
(PCD-1) matrix products that the algorithm cannot do without, in the same round.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import importlib.util
import time
import warnings

import numpy as np
import torch
from timing import Contender, interleave, save

import gibbsian as gb
from gibbsian.fast.coins import coins
from gibbsian.fast.logistic import Logistic

torch.set_num_threads(1)
warnings.simplefilter("ignore")
VISIBLE, HIDDEN, BATCH, RATE = 784, 500, 100, 1e-3


def have(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


DATA = (torch.rand(10000, VISIBLE, generator=generator()) < 0.2).float()


def batches(steps: int):
    for i in range(steps):
        start = i * BATCH % len(DATA)
        yield DATA[start : start + BATCH]


def bare(products: int):
    """The products alone, into memory that is there."""
    w = 0.01 * torch.randn(VISIBLE, HIDDEN, generator=generator())
    h = (torch.rand(BATCH, HIDDEN, generator=generator()) < 0.5).float()
    up, down, grad = torch.empty(BATCH, HIDDEN), torch.empty(BATCH, VISIBLE), torch.empty(VISIBLE, HIDDEN)

    def run(steps: int) -> None:
        for x in batches(steps):
            for _ in range(products - 3):
                torch.mm(x, w, out=up)
            torch.mm(h, w.T, out=down)
            torch.mm(x.T, h, out=grad)
            torch.mm(x.T, h, out=grad)

    return run


def plain(persistent: bool):
    """What one writes by hand, with torch.bernoulli."""
    w, b, c = 0.01 * torch.randn(VISIBLE, HIDDEN, generator=generator()), torch.zeros(VISIBLE), torch.zeros(HIDDEN)
    g, chains = generator(), [DATA[:BATCH].clone()]

    def run(steps: int) -> None:
        for x in batches(steps):
            p = torch.sigmoid(x @ w + c)
            q = torch.sigmoid(chains[0] @ w + c) if persistent else p
            h = torch.bernoulli(q, generator=g)
            v = torch.bernoulli(torch.sigmoid(h @ w.T + b), generator=g)
            q = torch.sigmoid(v @ w + c)
            w.add_((x.T @ p - v.T @ q) / BATCH, alpha=RATE)
            b.add_((x - v).mean(0), alpha=RATE)
            c.add_((p - q).mean(0), alpha=RATE)
            chains[0] = v

    return run


def ours(persistent: bool, products: str, update: bool = True):
    """`RBM.contrast`, its gradients as `gibbsian.fit` takes them, and a plain update."""
    rbm, g, chains = gb.models.RBM(VISIBLE, HIDDEN, products=products), generator(), [DATA[:BATCH].clone()]
    parameters = list(rbm.parameters())

    def run(steps: int) -> None:
        for x in batches(steps):
            _, samples, gradients = rbm.contrast(x, chains[0] if persistent else None, 1, g)
            if update:
                with torch.no_grad():
                    for p in parameters:
                        p.sub_(gradients[p], alpha=RATE)
            chains[0] = samples

    return run


def through_objective(persistent: bool):
    """The objective and torch.optim.SGD, as gibbsian.fit calls them."""
    rbm, g = gb.models.RBM(VISIBLE, HIDDEN), generator()
    parameters = list(rbm.parameters())
    kernel = gb.kernels.Gibbs()
    objective = (
        gb.objectives.PersistentContrastiveDivergence(kernel, steps=1, chains=BATCH)
        if persistent
        else gb.objectives.ContrastiveDivergence(kernel, steps=1)
    )
    state = [objective.init(rbm, DATA[:BATCH], g)]
    optimizer = torch.optim.SGD(parameters, lr=RATE, fused=True)

    def run(steps: int) -> None:
        for x in batches(steps):
            loss = objective(rbm, x, state[0], g)
            optimizer.zero_grad()
            for p in parameters:
                p.grad = loss.gradients[p]
            optimizer.step()
            state[0] = loss.state

    return run


def scikit_learn(dtype: type):
    from sklearn.neural_network import BernoulliRBM

    data, rng = DATA.numpy().astype(dtype), np.random.RandomState(0)
    model = BernoulliRBM(HIDDEN, learning_rate=RATE, batch_size=BATCH, n_iter=1, random_state=rng)
    model.fit(data[:BATCH])

    def run(steps: int) -> None:
        for i in range(steps):  # the body of its fit; its partial_fit works in double precision
            start = i * BATCH % len(data)
            model._fit(data[start : start + BATCH], rng)

    return run


def learnergy():
    import logging

    from learnergy.models.bernoulli import RBM

    logging.disable(logging.CRITICAL)
    model = RBM(VISIBLE, HIDDEN, steps=1, learning_rate=RATE)

    def run(steps: int) -> None:
        for x in batches(steps):  # the body of its fit, without its running pseudo-likelihood
            *_, v = model.gibbs_sampling(x)
            cost = model.energy(x).mean() - model.energy(v.detach()).mean()
            model.optimizer.zero_grad()
            cost.backward()
            model.optimizer.step()

    return run


def rbms(persistent: bool):
    from rbms.bernoulli_bernoulli.classes import BBRBM
    from rbms.training.pcd import fit_batch_pcd

    with torch.random.fork_rng(devices=[]):
        model = BBRBM.init_parameters(HIDDEN, _Wrapped(DATA), torch.device("cpu"), torch.float32)
        chains = [model.init_chains(BATCH)]
    model.init_grad()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, maximize=True)
    weights = torch.ones(BATCH, 1)

    def run(steps: int) -> None:
        with torch.no_grad():
            for x in batches(steps):
                if not persistent:
                    chains[0] = model.init_chains(BATCH, weights=weights, start_v=x)
                optimizer.zero_grad(set_to_none=False)
                chains[0], _ = fit_batch_pcd((x, weights), chains[0], model, 1, 1.0, centered=False)
                optimizer.step()

    return run


class _Wrapped:
    """What rbms calls a data set."""

    def __init__(self, data: torch.Tensor) -> None:
        self.data, self.weights = data, torch.ones(len(data), 1)

    def get_num_visibles(self) -> int:
        return self.data.shape[1]


def parts(level: int):
    """CD-1 operation by operation, with the first `level` of its parts: the products in their order (with the functions fused into them), coins,
    means over rows, the value of the loss, the update."""
    w, b, c = 0.01 * torch.randn(VISIBLE, HIDDEN, generator=generator()), torch.zeros(VISIBLE), torch.zeros(HIDDEN)
    g, cpu = generator(), torch.device("cpu")
    up, down = Logistic.of(c, w), Logistic.of(b, w.T)

    def run(steps: int) -> None:
        for x in batches(steps):
            p = up.mean(x)
            g_w = torch.addmm(x.new_empty(()), x.T, p, beta=0, alpha=-1 / BATCH)
            coin = coins(BATCH * (VISIBLE + HIDDEN), g, dtype=torch.float32, device=cpu) if level > 1 else None
            h = coin.flip(p) if coin else torch.lt(p, 0.5, out=torch.empty_like(p))
            q = down.mean(h)
            v = coin.flip(q, over=True) if coin else torch.lt(q, 0.5, out=q)
            p_model = up.mean(v)
            g_w.addmm_(v.T, p_model, alpha=1 / BATCH)
            if level > 2:
                g_b, g_c = v.mean(0).sub_(x.mean(0)), p_model.mean(0).sub_(p.mean(0))
            if level > 3:
                torch.dot(g_b, w.sum(1).add_(b)).add_(_log_ratio(p, p_model), alpha=1 / BATCH)
            if level > 4:
                for parameter, gradient in ((w, g_w), (b, g_b), (c, g_c)):
                    parameter.sub_(gradient, alpha=RATE)

    return run


def _log_ratio(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Σ log p/q, by a quarter of the logarithms."""
    ratio = p.div(q)
    return ratio[: BATCH // 2].mul_(ratio[BATCH // 2 :]).log_().sum()


def profile(rounds: int) -> dict:
    """Where the time of CD-1 goes: every contender has one part more than the one before."""
    names = ["products in their order", "and coins", "and means", "and the value", "and the update"]
    contenders: list[Contender] = [("the 5 products alone", bare(5), 10)]
    contenders += [(name, parts(level), 10) for level, name in enumerate(names, 1)]
    contenders += [
        ("one C function", ours(False, "full", update=False), 10),
        ("all of gibbsian", ours(False, "full"), 10),
    ]
    title = f"parts of an update, {VISIBLE} × {HIDDEN}, batch {BATCH}"
    return interleave(title, contenders, base="the 5 products alone", rounds=rounds, clock=time.process_time)


def training(persistent: bool, rounds: int) -> dict:
    name, products = ("PCD-1", 6) if persistent else ("CD-1", 5)
    base = f"the {products} products alone"
    contenders: list[Contender] = [
        (base, bare(products), 20),
        ("gibbsian", ours(persistent, "full"), 20),
        ("gibbsian, objective and SGD", through_objective(persistent), 20),
        ("gibbsian, bf16 products", ours(persistent, "bf16"), 20),
        ("plain torch", plain(persistent), 20),
    ]
    if persistent and have("sklearn"):
        contenders += [("scikit-learn, f32", scikit_learn(np.float32), 10)]
        contenders += [("scikit-learn, f64", scikit_learn(np.float64), 10)]
    if not persistent and have("learnergy"):
        contenders.append(("learnergy", learnergy(), 10))
    if have("rbms"):
        contenders.append(("rbms", rbms(persistent), 10))
    title = f"{name}, {VISIBLE} × {HIDDEN}, batch {BATCH}"
    return interleave(title, contenders, base=base, rounds=rounds, clock=time.process_time)


def annealing(rounds: int) -> dict:
    """1000 temperatures × 100 chains; steps are temperatures."""
    rbm = gb.models.RBM(VISIBLE, HIDDEN)
    with torch.no_grad():
        rbm.weight.mul_(5)

    def ais(temperatures: int) -> None:
        gb.partition.ais(rbm, data=DATA[:1000], chains=100, betas=temperatures, generator=generator(), progress=False)

    contenders: list[Contender] = [("gibbsian", ais, 300)]
    if have("rbms"):
        from rbms.bernoulli_bernoulli.classes import BBRBM
        from rbms.partition_function.ais import compute_partition_function_ais

        other = BBRBM(rbm.weight.detach().clone(), rbm.visible_bias.detach().clone(), rbm.hidden_bias.detach().clone())
        contenders.append(("rbms", lambda n: compute_partition_function_ais(100, n, other), 300))
    return interleave("AIS, 100 chains, 784 × 500", contenders, base="gibbsian", rounds=rounds, clock=time.process_time)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--save", help="write the results as JSON")
    parser.add_argument("--only", choices=["cd", "pcd", "small", "parts", "ais"])
    arguments = parser.parse_args()
    results = []
    if arguments.only in (None, "cd"):
        results.append(training(False, arguments.rounds))
    if arguments.only in (None, "pcd"):
        results.append(training(True, arguments.rounds))
    if arguments.only in (None, "parts"):
        results.append(profile(arguments.rounds))
    if arguments.only in (None, "small"):
        BATCH = 10
        results.append(training(False, arguments.rounds))
        results.append(training(True, arguments.rounds))
        BATCH = 100
    if arguments.only in (None, "ais"):
        results.append(annealing(max(3, arguments.rounds // 3)))
    save(results, arguments.save)
