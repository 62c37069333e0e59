"""Samplers on one GPU: gibbsian eager and captured against JAX's scan and the bare products; interleaved.

    PYTHONPATH=src:benchmarks python benchmarks/gpu.py --save benchmarks/results/gpu.json

Work: HMC with 10 leapfrog steps on a 100-D Gaussian with 128 and 16384 chains; a Langevin step through an energy
of four convolutions on 28×28 images with 128 and 1024 chains.
"""

import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import argparse
import importlib.util
import time
import warnings

import torch
from timing import interleave, save

import gibbsian as gb

warnings.simplefilter("ignore")
PRECISION = torch.linspace(0.5, 2.0, 100)


def generator() -> torch.Generator:
    return torch.Generator("cuda").manual_seed(0)


class ConvNet(torch.nn.Module):
    """Four convolutions with SiLU and a linear read-out."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[torch.nn.Module] = []
        for a, b, size, stride in ((1, 16, 5, 2), (16, 32, 3, 2), (32, 64, 3, 2), (64, 64, 3, 2)):
            layers += [torch.nn.Conv2d(a, b, size, stride, size // 2), torch.nn.SiLU()]
        self.layers = torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(64 * 4, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).squeeze(-1)


def run_ours(energy, kernel, start, steps, compile):
    return gb.sample(
        energy, kernel, start, steps=steps, keep=False, generator=generator(), compile=compile, progress=False
    )


def hmc(rounds: int) -> list[dict]:
    results = []
    precision = PRECISION.cuda()
    energy = gb.as_energy(lambda x: 0.5 * (precision * x * x).sum(-1), gb.domains.Real(100))
    kernel = gb.kernels.HMC(0.1, 10)
    for chains in (128, 16384):
        start = torch.zeros(chains, 100, device="cuda")
        begun = time.perf_counter()
        run_ours(energy, kernel, start, 100, True)
        print(f"first captured call, {chains} chains: {time.perf_counter() - begun:.1f} s")
        contenders = [
            ("gibbsian captured", lambda n, s=start: run_ours(energy, kernel, s, n, True), 5000),
            ("gibbsian eager", lambda n, s=start: run_ours(energy, kernel, s, n, False), 100),
        ]
        if importlib.util.find_spec("jax"):
            contenders.append(("JAX scan", jax_hmc(chains), 5000))
        title = f"HMC, 10 leapfrogs, 100-D Gaussian, {chains} chains"
        results.append(interleave(title, contenders, base="gibbsian eager", rounds=rounds, sync=torch.cuda.synchronize))
    return results


def jax_hmc(chains: int):
    """HMC written in JAX: all chains at once, leapfrogs unrolled, steps in lax.scan."""
    import jax
    import jax.numpy as jnp

    precision = jnp.array(PRECISION.numpy())

    def energy(x):
        return 0.5 * (precision * x * x).sum(-1)

    gradient = jax.grad(lambda x: energy(x).sum())

    def step(carry, key):
        x, e, d = carry
        a, b = jax.random.split(key)
        v = jax.random.normal(a, x.shape)
        start = e + 0.5 * (v * v).sum(1)
        y, dy = x, d
        v = v - 0.05 * dy
        for i in range(10):
            y = y + 0.1 * v
            dy = gradient(y)
            v = v - (0.1 if i < 9 else 0.05) * dy
        ey = energy(y)
        accept = jnp.log(jax.random.uniform(b, (chains,))) < start - ey - 0.5 * (v * v).sum(1)
        x, d = jnp.where(accept[:, None], y, x), jnp.where(accept[:, None], dy, d)
        return (x, jnp.where(accept, ey, e), d), None

    jitted = {}

    def run(steps):
        if steps not in jitted:

            def loop(key, x):
                return jax.lax.scan(step, (x, energy(x), gradient(x)), jax.random.split(key, steps))[0][0]

            jitted[steps] = jax.jit(loop)
        return jax.block_until_ready(jitted[steps](jax.random.PRNGKey(0), jnp.zeros((chains, 100))))

    return run


def convolutional(rounds: int) -> list[dict]:
    results = []
    torch.manual_seed(0)
    energy = gb.as_energy(ConvNet().cuda(), gb.domains.Real((1, 28, 28)))
    kernel = gb.kernels.ShortRunLangevin(step_size=10.0, noise=0.005, clip=0.03)
    for chains in (128, 1024):
        start = torch.rand(chains, 1, 28, 28, device="cuda")
        begun = time.perf_counter()
        trace = run_ours(energy, kernel, start, 100, True)
        how = "captured" if trace.compiled else trace.compile_note
        print(f"first call, {chains} chains: {time.perf_counter() - begun:.1f} s, {how}")
        contenders = [
            ("gibbsian captured", lambda n, s=start: run_ours(energy, kernel, s, n, True), 1000),
            ("gibbsian eager", lambda n, s=start: run_ours(energy, kernel, s, n, False), 100),
            ("plain PyTorch", lambda n, s=start: plain_langevin(energy, s, n), 100),
        ]
        title = f"Langevin step, four convolutions on 28×28, {chains} chains"
        results.append(interleave(title, contenders, base="plain PyTorch", rounds=rounds, sync=torch.cuda.synchronize))
    return results


def plain_langevin(energy, x, steps):
    g = generator()
    for _ in range(steps):
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(energy.function(x).sum(), x)
        x = (x - 10.0 * gradient.clamp(-0.03, 0.03) + 0.005 * torch.randn(x.shape, generator=g, device="cuda")).detach()
    return x


def agreement() -> None:
    """Captured and eager chains on the same seed agree to rounding."""
    energy = gb.energies.Gaussian(torch.zeros(5, device="cuda"), torch.eye(5, device="cuda"))
    for kernel in (
        gb.kernels.RandomWalk(0.5),
        gb.kernels.MALA(0.7),
        gb.kernels.HMC(0.5, 5, jitter=0.2),
        gb.kernels.Langevin(0.3),
    ):
        a, b = (run_kept(energy, kernel, c) for c in (False, True))
        gap = float((a.samples - b.samples).abs().max())
        print(f"{type(kernel).__name__:12s} captured={b.compiled}: largest gap to eager over 103 steps {gap:.2e}")
    scaled = gb.kernels.MALA(0.3)
    run_kept(energy, scaled, True)
    torch.compiler.set_stance("fail_on_recompile")
    run_kept(energy, gb.kernels.MALA(0.4), True)
    torch.compiler.set_stance("default")
    print("no recompilation when the step size changes")


def run_kept(energy, kernel, compile):
    return gb.sample(
        energy,
        kernel,
        torch.zeros(64, 5, device="cuda"),
        steps=103,
        generator=generator(),
        compile=compile,
        progress=False,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--parts", nargs="+", choices=["hmc", "convolutional"], default=["hmc", "convolutional"])
    parser.add_argument("--save", help="write the figures to this JSON file, and leave those of other parts in it")
    options = parser.parse_args()
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    agreement()
    for part in options.parts:
        save((hmc if part == "hmc" else convolutional)(options.rounds), options.save, merge=True)
