"""Samplers against plain PyTorch, TorchEBM, ebmkit and BlackJAX: the same work, one thread, interleaved.

    make bench-samplers            (installs the peers into an environment of their own)

Work: unadjusted Langevin and MALA on an MLP 2-128-128-1 with 256 chains; HMC with 10 leapfrog steps on a 100-D
Gaussian with 128 chains; random-walk Metropolis on a 1-D bimodal density with 1 and 1000 chains. Then: cost and
memory as functions of steps and chains.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import argparse
import importlib.util
import resource
import time
import warnings

import torch
from timing import Contender, interleave, save

import gibbsian as gb

torch.set_num_threads(1)
warnings.simplefilter("ignore")
HAVE = {name: importlib.util.find_spec(name) is not None for name in ("torchebm", "ebm", "blackjax")}


class Net(torch.nn.Module):
    """0.05‖x‖² + MLP 2-128-128-1 with SiLU."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.layers = torch.nn.Sequential(
                torch.nn.Linear(2, 128),
                torch.nn.SiLU(),
                torch.nn.Linear(128, 128),
                torch.nn.SiLU(),
                torch.nn.Linear(128, 1),
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).squeeze(-1) + 0.05 * (x**2).sum(-1)


NET = Net()
PRECISION = torch.linspace(0.5, 2.0, 100)


def gaussian(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * (PRECISION * x * x).sum(-1)


def bimodal(x: torch.Tensor) -> torch.Tensor:
    y = x[:, 0]
    return -torch.log(3 * torch.exp(-((y + 2) ** 2) / 2) + torch.exp(-((y - 4) ** 2) / 8))


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


# --- plain PyTorch, as one writes it by hand --------------------------------------------------------


def value_and_gradient(energy, x):
    x = x.detach().requires_grad_()
    e = energy(x)
    (gradient,) = torch.autograd.grad(e.sum(), x)
    return e.detach(), gradient


def plain_ula(energy, x, steps, eps, g):
    for _ in range(steps):
        _, gradient = value_and_gradient(energy, x)
        x = x - 0.5 * eps**2 * gradient + eps * torch.randn(x.shape, generator=g)
    return x


def plain_mala(energy, x, steps, eps, g):
    e, d = value_and_gradient(energy, x)
    for _ in range(steps):
        mean = x - 0.5 * eps**2 * d
        y = mean + eps * torch.randn(x.shape, generator=g)
        e_new, d_new = value_and_gradient(energy, y)
        forward = ((y - mean) ** 2).sum(1)
        backward = ((x - y + 0.5 * eps**2 * d_new) ** 2).sum(1)
        accept = torch.rand(len(x), generator=g).log() < e - e_new + (forward - backward) / (2 * eps**2)
        x, d = torch.where(accept[:, None], y, x), torch.where(accept[:, None], d_new, d)
        e = torch.where(accept, e_new, e)
    return x


def plain_hmc(energy, x, steps, eps, leapfrogs, g):
    e, d = value_and_gradient(energy, x)
    for _ in range(steps):
        v = torch.randn(x.shape, generator=g)
        start = e + 0.5 * (v * v).sum(1)
        y, dy = x, d
        v = v - 0.5 * eps * dy
        for i in range(leapfrogs):
            y = y + eps * v
            ey, dy = value_and_gradient(energy, y)
            v = v - (eps if i + 1 < leapfrogs else 0.5 * eps) * dy
        accept = torch.rand(len(x), generator=g).log() < start - ey - 0.5 * (v * v).sum(1)
        x, d = torch.where(accept[:, None], y, x), torch.where(accept[:, None], dy, d)
        e = torch.where(accept, ey, e)
    return x


def plain_random_walk(energy, x, steps, scale, g):
    e = energy(x)
    for _ in range(steps):
        y = x + scale * torch.randn(x.shape, generator=g)
        e_new = energy(y)
        accept = torch.rand(len(x), generator=g).log() < e - e_new
        x, e = torch.where(accept[:, None], y, x), torch.where(accept, e_new, e)
    return x


# --- the peers --------------------------------------------------------------------------------------


def torchebm_model(function):
    from torchebm.core import BaseModel

    class Model(BaseModel):
        def forward(self, x):
            return function(x)

    return Model()


def jax_scan(log_density, algorithm, chains, start):
    """run(steps): a BlackJAX kernel vmapped over chains inside lax.scan, jitted per number of steps."""
    import jax

    jitted = {}

    def run(steps):
        if steps not in jitted:

            def loop(key, x):
                state = jax.vmap(algorithm.init)(x)

                def body(state, key):
                    state, _ = jax.vmap(algorithm.step)(jax.random.split(key, chains), state)
                    return state, None

                return jax.lax.scan(body, state, jax.random.split(key, steps))[0].position

            jitted[steps] = jax.jit(loop)
        return jax.block_until_ready(jitted[steps](jax.random.PRNGKey(0), start))

    return run


def jax_energies():
    import jax
    import jax.numpy as jnp

    weights = [jnp.array(p.detach().numpy()) for p in NET.parameters()]

    def net(x):
        h = jax.nn.silu(x @ weights[0].T + weights[1])
        h = jax.nn.silu(h @ weights[2].T + weights[3])
        return -((h @ weights[4].T)[..., 0] + weights[5][0] + 0.05 * (x**2).sum(-1))

    precision = jnp.array(PRECISION.numpy())

    def normal(x):
        return -0.5 * (precision * x * x).sum(-1)

    def two(x):
        return jnp.log(3 * jnp.exp(-((x[0] + 2) ** 2) / 2) + jnp.exp(-((x[0] - 4) ** 2) / 8))

    return net, normal, two


def ours(function, kernel, shape) -> list[Contender]:
    energy = gb.as_energy(function, gb.domains.Real(shape[1]))

    def run(steps, compile):
        return gb.sample(
            energy, kernel, torch.zeros(shape), steps=steps, keep=False, generator=generator(), compile=compile
        )

    start = time.perf_counter()
    run(20, True)
    print(f"first compiled call of {type(kernel).__name__} on {shape[0]} chains: {time.perf_counter() - start:.1f} s")
    return [("gibbsian compiled", lambda n: run(n, True)), ("gibbsian eager", lambda n: run(n, False))]


def samplers(rounds: int) -> list[dict]:
    k, results = gb.kernels, []
    net, normal, two = jax_energies() if HAVE["blackjax"] else (None, None, None)

    def compare(title, fast, slow, function, kernel, shape, plain, peers, base="plain PyTorch"):
        mine = ours(function, kernel, shape)
        contenders = [(mine[0][0], mine[0][1], fast), (mine[1][0], mine[1][1], slow), ("plain PyTorch", plain, slow)]
        contenders += [(name, run, fast if "JAX" in name else slow) for name, run in peers]
        results.append(interleave(title, contenders, base=base, rounds=rounds, clock=time.process_time))

    x = torch.zeros(256, 2)
    peers = []
    if HAVE["torchebm"]:
        from torchebm.samplers import LangevinDynamics

        s = LangevinDynamics(torchebm_model(NET), step_size=0.02, noise_scale=1.0)
        peers.append(("TorchEBM", lambda n: s.sample(x=x, n_steps=n)))
    if HAVE["ebm"]:
        import ebm

        e_ula = ebm.LangevinDynamics(step_size=0.02)
        peers.append(("ebmkit", lambda n: e_ula.sample(NET, x, steps=n)))
    if HAVE["blackjax"]:
        import jax
        import jax.numpy as jnp

        gradient = jax.grad(lambda y: net(y).sum())
        jitted = {}

        def jax_ula(n):
            if n not in jitted:

                def loop(key, y):
                    def body(y, key):
                        return y + 0.02 * gradient(y) + 0.2 * jax.random.normal(key, y.shape), None

                    return jax.lax.scan(body, y, jax.random.split(key, n))[0]

                jitted[n] = jax.jit(loop)
            return jax.block_until_ready(jitted[n](jax.random.PRNGKey(0), jnp.zeros((256, 2))))

        peers.append(("JAX scan (BlackJAX has no ULA)", jax_ula))
    compare(
        "ULA, MLP 2-128-128-1, 256 chains", 1000, 200, NET, k.Langevin(0.2), (256, 2),
        lambda n: plain_ula(NET, x, n, 0.2, generator()), peers,
    )  # fmt: skip

    peers = []
    if HAVE["ebm"]:
        e_mala = ebm.MALA(step_size=0.02)
        peers.append(("ebmkit", lambda n: e_mala.sample(NET, x, steps=n)))
    if HAVE["blackjax"]:
        import blackjax

        peers.append(("BlackJAX", jax_scan(net, blackjax.mala(net, 0.02), 256, jnp.zeros((256, 2)))))
    compare(
        "MALA, MLP 2-128-128-1, 256 chains", 1000, 200, NET, k.MALA(0.2), (256, 2),
        lambda n: plain_mala(NET, x, n, 0.2, generator()), peers,
    )  # fmt: skip

    z = torch.zeros(128, 100)
    peers = []
    if HAVE["torchebm"]:
        from torchebm.samplers import HamiltonianMonteCarlo

        h = HamiltonianMonteCarlo(torchebm_model(gaussian), step_size=0.1, n_leapfrog_steps=10)
        peers.append(("TorchEBM", lambda n: h.sample(x=z, n_steps=n)))
    if HAVE["ebm"]:
        e_hmc = ebm.HMC(step_size=0.1, leapfrog_steps=10)
        peers.append(("ebmkit", lambda n: e_hmc.sample(gaussian, z, steps=n)))
    if HAVE["blackjax"]:
        algorithm = blackjax.hmc(normal, 0.1, jnp.ones(100), 10)
        peers.append(("BlackJAX", jax_scan(normal, algorithm, 128, jnp.zeros((128, 100)))))
    compare(
        "HMC, 10 leapfrogs, 100-D Gaussian, 128 chains", 500, 50, gaussian, k.HMC(0.1, 10), (128, 100),
        lambda n: plain_hmc(gaussian, z, n, 0.1, 10, generator()), peers,
    )  # fmt: skip

    for chains in (1, 1000):
        peers = []
        if HAVE["blackjax"]:
            walk = blackjax.additive_step_random_walk(two, blackjax.mcmc.random_walk.normal(2.0 * jnp.ones(1)))
            peers.append(("BlackJAX", jax_scan(two, walk, chains, jnp.zeros((chains, 1)))))
        compare(
            f"random walk, 1-D, {chains} chains", 10000 if chains == 1 else 2000, 1000, bimodal, k.RandomWalk(2.0),
            (chains, 1), lambda n, c=chains: plain_random_walk(bimodal, torch.zeros(c, 1), n, 2.0, generator()), peers,
        )  # fmt: skip
    return results


def scaling() -> dict:
    """Time a step and peak memory against steps and chains; samples not kept."""
    energy = gb.energies.Gaussian(torch.zeros(20), torch.eye(20))
    kernel = gb.kernels.MALA(0.5)
    out: dict = {"title": "cost of MALA on a 20-D Gaussian, samples not kept", "steps": {}, "chains": {}}

    def cost(steps, chains):
        best = float("inf")
        for _ in range(3):
            start = time.perf_counter()
            gb.sample(energy, kernel, torch.zeros(chains, 20), steps=steps, keep=False, generator=generator())
            best = min(best, time.perf_counter() - start)
        return best, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    print(f"\n{out['title']}")
    for steps in (500, 2000, 8000, 32000):
        seconds, memory = cost(steps, 1000)
        out["steps"][steps] = {"us_a_step": seconds / steps * 1e6, "peak_mb": memory}
        print(f"{steps:6d} steps, 1000 chains: {seconds / steps * 1e6:8.1f} µs a step, peak memory {memory:.0f} MB")
    for chains in (1000, 4000, 16000, 64000):
        seconds, memory = cost(100, chains)
        out["chains"][chains] = {"ns_a_chain_step": seconds / chains / 100 * 1e9, "peak_mb": memory}
        print(
            f"{chains:6d} chains, 100 steps: {seconds / chains / 100 * 1e9:8.1f} ns a chain and step, peak memory {memory:.0f} MB"
        )
    return out


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--save", help="write the figures to this JSON file")
    options = parser.parse_args()
    for name, here in HAVE.items():
        if not here:
            print(f"{name} is not installed: left out")
    growth = scaling()
    save([*samplers(options.rounds), growth], options.save)
