"""NUTS against BlackJAX: time per effective draw, on one thread, interleaved.

    make bench-samplers            (installs the peers into an environment of their own)
    .bench-venv/bin/python benchmarks/nuts.py --save benchmarks/results/nuts.json

Targets: eight schools (non-centered), a 50-D Gaussian of scales 0.5 to 2, logistic regression on the breast cancer data of
scikit-learn (standardized, prior N(0, 1)), Neal's funnel in 10-D. Both libraries have the same step size and mass,
found by a warm-up of ours; with `--warm-up` each also runs its own, whose time counts. Effective draws are those of the
worst entry (ArviZ's bulk ESS). Time is processor time, so that a loaded machine does no harm.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import argparse
import statistics
import time
import warnings

import numpy as np
import torch
from timing import save

import gibbsian as gb

torch.set_num_threads(1)
warnings.simplefilter("ignore")

Y = [28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0]
SIGMA = [15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0]


def eight_schools(xp):
    """θ = μ + τ·t, t ~ N(0, 1), μ ~ N(0, 5²), τ ~ half-Cauchy(5), as log τ."""
    y, sigma = xp.asarray(Y, dtype=xp.float32), xp.asarray(SIGMA, dtype=xp.float32)

    def energy(x):
        mu, log_tau, t = x[..., 0], x[..., 1], x[..., 2:]
        tau = xp.exp(log_tau)
        theta = mu[..., None] + tau[..., None] * t
        fit = 0.5 * (((y - theta) / sigma) ** 2).sum(-1) + 0.5 * (t**2).sum(-1)
        return fit + 0.5 * (mu / 5) ** 2 + xp.log1p((tau / 5) ** 2) - log_tau

    return energy, 10


def gaussian(xp):
    precision = xp.asarray(np.linspace(0.5, 2.0, 50).astype(np.float32) ** -2)
    return (lambda x: 0.5 * (precision * x * x).sum(-1)), 50


def logistic(xp):
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    rows = (data.data - data.data.mean(0)) / data.data.std(0)
    rows = np.concatenate([rows, np.ones((len(rows), 1))], 1)
    signed = xp.asarray((rows * (2 * data.target - 1)[:, None]).astype(np.float32))

    def energy(x):
        margin = x @ signed.T
        return xp.logaddexp(xp.zeros_like(margin), -margin).sum(-1) + 0.5 * (x**2).sum(-1)

    return energy, 31


def funnel(xp):
    def energy(x):
        v, rest = x[..., 0], x[..., 1:]
        return v**2 / 18 + 0.5 * (rest**2).sum(-1) * xp.exp(-v) + 4.5 * v

    return energy, 10


TARGETS = {"eight schools": eight_schools, "50-D Gaussian": gaussian, "logistic": logistic, "funnel": funnel}


def effective(samples) -> float:
    """Bulk ESS of the worst entry, of (draws, chains, entries)."""
    return float(gb.sampling.diagnostics.summarize(torch.as_tensor(np.array(samples)))["ess"].min())


class Ours:
    name = "gibbsian compiled"

    def __init__(self, make, chains):
        function, self.n = make(torch)
        self.energy, self.chains = gb.as_energy(function, gb.domains.Real(self.n)), chains

    def start(self):
        return 0.1 * torch.randn(self.chains, self.n, generator=torch.Generator().manual_seed(1))

    def warm(self, steps):
        g = torch.Generator().manual_seed(0)
        return gb.warm_up(self.energy, gb.kernels.NUTS(0.1), self.start(), steps, generator=g, compile=True)

    def fix(self, step_size, mass, steps, place):
        self.kernel, self.steps = gb.kernels.NUTS(step_size, mass=mass), steps
        deep = gb.kernels.NUTS(0.05 * step_size, mass=mass)  # trees of any depth are compiled before anything is timed
        gb.sample(self.energy, deep, self.start(), steps=3, generator=torch.Generator().manual_seed(4), compile=True)
        self.place = place

    def run(self, seed):
        g = torch.Generator().manual_seed(seed)
        trace = gb.sample(self.energy, self.kernel, self.place, steps=self.steps, generator=g, compile=True)
        return trace.samples, float(trace.stats["n_steps"].sum())

    def run_warm(self, seed, warm, steps):
        g = torch.Generator().manual_seed(seed)
        warmed = gb.warm_up(self.energy, gb.kernels.NUTS(0.1), self.start(), warm, generator=g, compile=True)
        trace = gb.sample(self.energy, warmed.kernel, warmed.trace, steps=steps, generator=g, compile=True)
        return trace.samples, float(trace.stats["n_steps"].sum())


class BlackJAX:
    name = "BlackJAX"

    def __init__(self, make, chains):
        import jax.numpy as jnp

        function, self.n = make(jnp)
        self.log_density, self.chains, self.jitted = (lambda x: -function(x)), chains, None

    def fix(self, step_size, mass, steps, place):
        import blackjax
        import jax
        import jax.numpy as jnp

        inverse = jnp.ones(self.n) if mass is None else jnp.asarray(1 / mass.numpy(), dtype=jnp.float32)
        algorithm = blackjax.nuts(self.log_density, step_size, inverse)
        chains = self.chains

        def loop(key, x):
            state = jax.vmap(algorithm.init)(x)

            def body(state, key):
                state, info = jax.vmap(algorithm.step)(jax.random.split(key, chains), state)
                return state, (state.position, info.num_integration_steps)

            return jax.lax.scan(body, state, jax.random.split(key, steps))[1]

        self.place, self.jitted = jnp.asarray(place.numpy()), jax.jit(loop)

    def run(self, seed):
        import jax

        samples, leapfrogs = jax.block_until_ready(self.jitted(jax.random.PRNGKey(seed), self.place))
        return np.asarray(samples), float(leapfrogs.sum())

    def prepare_warm(self, warm, steps, start):
        import blackjax
        import jax
        import jax.numpy as jnp

        adapt = blackjax.window_adaptation(blackjax.nuts, self.log_density)
        place = jnp.asarray(start.numpy())

        def one(key, x):
            first, second = jax.random.split(key)
            (state, parameters), _ = adapt.run(first, x, num_steps=warm)
            algorithm = blackjax.nuts(self.log_density, **parameters)

            def body(state, key):
                state, info = algorithm.step(key, state)
                return state, (state.position, info.num_integration_steps)

            return jax.lax.scan(body, state, jax.random.split(second, steps))[1]

        whole = jax.jit(jax.vmap(one))
        self.whole = lambda seed: whole(jax.random.split(jax.random.PRNGKey(seed), self.chains), place)

    def run_warm(self, seed, warm, steps):
        import jax

        samples, leapfrogs = jax.block_until_ready(self.whole(seed))
        return np.asarray(samples).swapaxes(0, 1), float(leapfrogs.sum())


def row(title, runs, rounds):
    """Every contender once a round: µs per effective draw and per leapfrog step, and the ratio of the first to the last."""
    times = {name: [] for name in runs}
    steps = {name: [] for name in runs}
    first = {}
    for name, run in runs.items():
        start = time.perf_counter()
        run(0)
        first[name] = time.perf_counter() - start
    for seed in range(1, rounds + 1):
        for name, run in runs.items():
            start = time.process_time()
            samples, leapfrogs = run(seed)
            took = time.process_time() - start
            times[name].append(took / effective(samples) * 1e6)
            steps[name].append(took / leapfrogs * 1e6)
    names = list(runs)
    print(f"\n{title}")
    rows = {}
    for name in names:
        ratios = [a / b for a, b in zip(times[name], times[names[-1]], strict=True)]
        low, mid, high = statistics.quantiles(ratios, n=4)
        rows[name] = {"us": statistics.median(times[name]), "us_per_leapfrog": statistics.median(steps[name]),
                      "ratio": mid, "quartiles": [low, high], "first_call_s": first[name]}  # fmt: skip
        print(f"{name:20s} {rows[name]['us']:10.2f} µs an effective draw {rows[name]['us_per_leapfrog']:8.3f} a leapfrog"
              f"   ratio {mid:5.2f} [{low:.2f}, {high:.2f}]   first call {first[name]:.1f} s", flush=True)  # fmt: skip
    return {"title": title, "base": names[-1], "rounds": rounds, "rows": rows}


def compare(name, chains, rounds, draws, warm) -> list[dict]:
    make = TARGETS[name]
    ours, theirs = Ours(make, chains), BlackJAX(make, chains)
    found, trace = ours.warm(500)
    steps = max(20, draws // chains)
    ours.fix(found.step_size, found.mass, steps, trace.last)
    theirs.fix(found.step_size, found.mass, steps, ours.place)
    results = [
        row(
            f"NUTS, {name}, {chains} chains, step and mass fixed",
            {ours.name: ours.run, theirs.name: theirs.run},
            rounds,
        )
    ]
    if warm:
        theirs.prepare_warm(warm, steps, ours.start())
        runs = {one.name: (lambda seed, one=one: one.run_warm(seed, warm, steps)) for one in (ours, theirs)}
        results.append(row(f"NUTS, {name}, {chains} chains, warm-up of {warm} counted", runs, rounds))
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--draws", type=int, default=20000, help="draws of all chains together")
    parser.add_argument("--chains", type=int, nargs="+", default=[4, 64, 1000])
    parser.add_argument("--targets", nargs="+", default=list(TARGETS))
    parser.add_argument("--warm-up", type=int, default=0, help="steps of a warm-up that counts")
    parser.add_argument("--save", help="write the figures to this JSON file, beside those of other targets in it")
    options = parser.parse_args()
    everything: list[dict] = []
    for target in options.targets:
        for chains in options.chains if target in {"eight schools", "50-D Gaussian"} else options.chains[:1]:
            everything += compare(target, chains, options.rounds, options.draws, options.warm_up)
    save(everything, options.save, merge=True)
