"""Many chains at once: effective draws a second and per gradient of ChEES against HMC tuned by hand, NUTS and MAMS, and where it
can be imported against BlackJAX's ChEES.

Every kernel is warmed up and then run; HMC gets the best of several lengths, found in runs of its own. Effective sizes are
the smallest over the entries of x and of their squares. On a GPU chains are captured (`--device cuda --compile`).

    OMP_NUM_THREADS=1 python benchmarks/many_chains.py --save benchmarks/results/many_chains.json
    python benchmarks/many_chains.py --device cuda --compile --chains 1000 --save benchmarks/results/many_chains_gpu.json
"""

import argparse
import time
import warnings
from collections.abc import Callable

import numpy as np
import torch
from timing import save
from torch import Tensor

import gibbsian as gb
from gibbsian import energies, kernels
from gibbsian.errors import AdaptationWarning, CompileWarning, DivergenceWarning
from gibbsian.sampling.diagnostics import summarize


def correlated(device: str, dim: int = 100) -> energies.Gaussian:
    """Variances from 0.01 to 1 along directions that no diagonal mass can see."""
    g = torch.Generator().manual_seed(3)
    turn, _ = torch.linalg.qr(torch.randn(dim, dim, generator=g))
    covariance = turn @ torch.diag(torch.logspace(-2, 0, dim)) @ turn.T
    return energies.Gaussian(torch.zeros(dim), (covariance + covariance.T) / 2).to(device)


class Logistic(gb.Energy):
    """Logistic regression of the breast cancer data with a standard normal prior: 569 rows, 31 coefficients."""

    x: Tensor
    y: Tensor

    def __init__(self) -> None:
        from sklearn.datasets import load_breast_cancer

        rows, labels = load_breast_cancer(return_X_y=True)
        rows = (rows - rows.mean(0)) / rows.std(0)
        super().__init__(gb.domains.Real(31))
        self.register_buffer("x", torch.tensor(np.c_[np.ones(len(rows)), rows], dtype=torch.float32))
        self.register_buffer("y", torch.tensor(labels, dtype=torch.float32))

    def forward(self, theta: Tensor) -> Tensor:
        logit = theta @ self.x.T
        return 0.5 * theta.square().sum(1) + (torch.nn.functional.softplus(logit) - self.y * logit).sum(1)


def sync(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def size_of(draws: Tensor) -> float:
    """The smallest effective size over entries and their squares."""
    both = torch.cat([draws, draws.square()], 2)
    return float(summarize(both)["ess"].min())


def timed(energy: gb.Energy, kernel: kernels.Kernel, state: object, steps: int, options: argparse.Namespace) -> dict:
    """A run once to compile and capture, and once for the clock."""
    g = torch.Generator(options.device).manual_seed(2)
    how = {"generator": g, "compile": options.compile, "progress": False}
    if options.compile:
        gb.sample(energy, kernel, state, steps, **how)
    clock = time.perf_counter if options.device == "cuda" else time.process_time
    sync(options.device)
    start = clock()
    trace = gb.sample(energy, kernel, state, steps, **how)
    sync(options.device)
    seconds = clock() - start
    size = size_of(trace.samples)
    thousands = gradients_of(kernel, trace) / 1000
    note = trace.compile_note or ("compiled" if trace.compiled else "eager")
    return {
        "ess": size,
        "seconds": seconds,
        "per_second": size / seconds,
        "per_thousand": size / thousands,
        "acceptance": float(trace.acceptance),
        "how": note,
    }


def gradients_of(kernel: kernels.Kernel, trace: gb.Trace) -> float:
    """How many gradients a run took, summed over chains."""
    if "n_steps" in trace.stats:  # kernels whose trajectories differ tell of them
        return float(trace.stats["n_steps"].sum())
    return float(vars(kernel)["leapfrog_steps"]) * trace.samples.shape[0] * trace.samples.shape[1]


def ours(energy: gb.Energy, x: Tensor, options: argparse.Namespace) -> dict[str, dict]:
    rows = {}
    for name, kernel, steps in (
        ("ChEES", kernels.ChEES(0.1), options.steps),
        ("MAMS", kernels.MAMS(0.1), options.steps),
        ("HMC tuned by hand", kernels.HMC(0.1, 10), options.steps),
        ("NUTS", kernels.NUTS(0.1), options.steps // 4),
    ):
        if name in options.skip:
            continue
        g = torch.Generator(options.device).manual_seed(1)
        start = time.perf_counter()
        if name == "HMC tuned by hand":
            tuned, warmed = by_hand(energy, x, options)
        else:
            like = kernels.HMC(0.1, 10) if name == "NUTS" else kernel  # which wants the same step size and mass
            warmed = gb.warm_up(energy, like, x, options.warm_up, generator=g, progress=False)
            tuned = warmed.kernel
        state = warmed.trace
        if name == "NUTS":
            tuned, state = kernels.NUTS(tuned.step_size, mass=tuned.mass), warmed.trace.last
        sync(options.device)
        spent = time.perf_counter() - start
        row = timed(energy, tuned, state, steps, options)
        row["warm_up_seconds"] = spent
        row["settings"] = str({k: v for k, v in vars(tuned).items() if isinstance(v, int | float)})
        rows[name] = row
        print(f"  {name:20s} {row['per_second']:10.0f} a second, {row['per_thousand']:.1f} a thousand gradients, acceptance {row['acceptance']:.2f}, "
              f"warm-up {spent:.0f} s, {row['how']}, {row['settings']}", flush=True)  # fmt: skip
    return rows


def by_hand(energy: gb.Energy, x: Tensor, options: argparse.Namespace) -> tuple[kernels.Kernel, object]:
    """The best of several lengths by effective draws per gradient."""
    best, found = -1.0, None
    for length in options.lengths:
        g = torch.Generator(options.device).manual_seed(1)
        warmed = gb.warm_up(energy, kernels.HMC(0.1, length), x, options.warm_up, generator=g, progress=False)
        trace = gb.sample(energy, warmed.kernel, warmed.trace, options.steps // 4, generator=g, progress=False)
        score = size_of(trace.samples) / length
        if score > best:
            best, found = score, (warmed.kernel, warmed)
    assert found is not None
    return found


def blackjax_chees(energy: gb.Energy, x: Tensor, options: argparse.Namespace) -> dict | None:
    """BlackJAX's ChEES on the same target and device, with as many steps."""
    try:
        import blackjax
        import jax
        import jax.numpy as jnp
        import optax
    except ImportError as error:
        print(f"  BlackJAX is not here: {error}")
        return None
    log_density = jax_twin(energy, jnp, jax)
    warm_up = blackjax.chees_adaptation(log_density, len(x), target_acceptance_rate=0.651)
    key = jax.random.key(0)
    (states, settings), _ = warm_up.run(
        key, jnp.asarray(x.cpu().numpy()), 0.1, optax.adam(0.025, b1=0.0, b2=0.95), options.warm_up
    )
    kernel = blackjax.dynamic_hmc(log_density, **settings).step

    @jax.jit
    def run(states, key):
        def one(states, key):
            states, info = jax.vmap(kernel)(jax.random.split(key, len(x)), states)
            return states, (states.position, info.acceptance_rate, info.num_integration_steps)

        return jax.lax.scan(one, states, jax.random.split(key, options.steps))

    jax.block_until_ready(run(states, key))
    start = time.perf_counter()
    _, (draws, acceptance, leapfrogs) = jax.block_until_ready(run(states, key))
    seconds = time.perf_counter() - start
    size = size_of(torch.tensor(np.asarray(draws)))
    row = {"ess": size, "seconds": seconds, "per_second": size / seconds, "acceptance": float(acceptance.mean())}
    row["per_thousand"] = 1000 * size / float(np.asarray(leapfrogs, dtype=np.float64).sum())
    row["settings"] = str({k: float(v) for k, v in settings.items() if np.ndim(v) == 0 and not callable(v)})
    print(
        f"  {'BlackJAX ChEES':20s} {row['per_second']:10.0f} a second, acceptance {row['acceptance']:.2f}, {row['settings']}",
        flush=True,
    )
    return row


def jax_twin(energy: gb.Energy, jnp: object, jax: object) -> Callable:
    if isinstance(energy, Logistic):
        rows, labels = jnp.asarray(energy.x.cpu().numpy()), jnp.asarray(energy.y.cpu().numpy())

        def log_density(theta):
            logit = rows @ theta
            return -0.5 * (theta**2).sum() - (jax.nn.softplus(logit) - labels * logit).sum()

        return log_density
    precision = jnp.asarray(energy.precision.cpu().numpy())
    return lambda x: -0.5 * x @ (precision @ x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--chains", type=int, nargs="*", default=[4, 100])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--warm-up", type=int, default=300)
    parser.add_argument("--skip", nargs="*", default=[])
    parser.add_argument("--targets", nargs="*", default=["Gaussian", "logistic"])
    parser.add_argument(
        "--lengths", type=int, nargs="*", default=[4, 8, 16, 32], help="of HMC, the best of which is shown"
    )
    options = parser.parse_args()
    if options.device == "cpu":
        torch.set_num_threads(1)
    for kind in (DivergenceWarning, AdaptationWarning, CompileWarning):
        warnings.simplefilter("ignore", kind)
    results = []
    for target in ("100-D Gaussian, condition 100", "logistic regression, breast cancer"):
        for chains in options.chains if any(name in target for name in options.targets) else ():
            energy = correlated(options.device) if "Gaussian" in target else Logistic().to(options.device)
            x = 0.1 * torch.randn(chains, *energy.domain.shape, generator=torch.Generator().manual_seed(0))
            x = x.to(options.device)
            print(f"\n{target}, {chains} chains on {options.device}", flush=True)
            rows = ours(energy, x, options)
            if "BlackJAX" not in options.skip and (peer := blackjax_chees(energy, x, options)):
                rows["BlackJAX ChEES"] = peer
            common = {"target": target, "chains": chains, "device": options.device, "steps": options.steps}
            case = f"{target.split(',')[0]}, {chains} chains"
            results += [{**common, "case": case, "kernel": name, **row} for name, row in rows.items()]
            save(results, options.save)


if __name__ == "__main__":
    main()
