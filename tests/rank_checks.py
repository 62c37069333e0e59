"""What the ranks of test_distributed.py do; see nursery.py."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import gibbsian as gb
from gibbsian import domains, energies, kernels, models, partition
from gibbsian.distributed import Shards, World
from gibbsian.sampling.diagnostics import summarize
from gibbsian.sampling.streaming import StreamingMoments


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rows(n: int = 203) -> Tensor:
    return (torch.rand(n, 6, generator=gen()) < torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9, 0.5])).double()


def machine(seed: int = 5) -> models.RBM:
    rbm = models.RBM(6, 3).double()
    with torch.no_grad():
        for p in rbm.parameters():
            p.copy_(torch.randn(p.shape, generator=gen(seed), dtype=torch.float64))
    return rbm


def shards(world: World, seed: int = 0) -> Shards:
    assert Shards(seed).world == world
    return Shards(seed, count=4, least=4)


def flat(law: dict[str, Tensor]) -> Tensor:
    return torch.stack([law[name] for name in sorted(law)])


def sampled(world: World, folder: Path) -> dict[str, Any]:
    """Chains of three kernels, kept and streamed, warmed up, clamped, gone on from."""
    found: dict[str, Any] = {}
    target = energies.Gaussian(torch.ones(3), torch.diag(torch.tensor([1.0, 4.0, 0.25])))
    x0 = torch.randn(37, 3, generator=gen(1))
    streams = shards(world)
    trace = gb.sample(target, kernels.MALA(0.8), x0, 30, burn_in=10, generator=streams)
    whole = trace.gather()
    found["mala"] = whole.samples
    found["share"] = trace.samples.shape[1]
    found["pooled"] = torch.equal(flat(trace.summary()), flat(summarize(whole.samples)))
    found["moments"] = [float(trace.acceptance), flat(trace.summary())]
    more = gb.sample(target, kernels.MALA(0.8), trace, 5, generator=streams).gather()
    found["more"], found["steps"] = more.samples, more.steps

    streamed = gb.sample(target, kernels.MALA(0.8), x0, 300, generator=shards(world), keep=False)
    kept = gb.sample(target, kernels.MALA(0.8), x0, 300, generator=shards(world)).gather()
    moments = StreamingMoments(300)
    moments.update(kept.samples)
    found["streamed"] = flat(streamed.summary())
    found["streamed_pooled"] = torch.equal(found["streamed"], flat(moments.summary()))
    assert len(moments.sums), "so few draws are all kept"

    warmed = gb.warm_up(target, kernels.NUTS(0.5), x0, 20, generator=shards(world, 3))
    found["nuts"] = gb.sample(target, warmed.kernel, warmed.trace, 5, generator=warmed.trace.streams).gather().samples
    found["step_size"] = warmed.kernel.step_size

    start = domains.Binary(6).sample(40, generator=gen(2), dtype=torch.float64)
    held = torch.rand(40, 6, generator=gen(3)) < 0.3
    gibbs = gb.sample(machine(), kernels.Gibbs(), start, 10, clamp=held, generator=shards(world)).gather()
    found["gibbs"] = gibbs.last
    found["held"] = torch.equal(gibbs.last[held], start[held])
    streams = shards(world)
    share = streams.draw(40, lambda n, g: domains.Binary(6).sample(n, generator=g, dtype=torch.float64))
    found["auto"] = gb.sample(machine(), "auto", share, 5, generator=streams).gather().samples
    found["drawn"] = gb.draw(machine(), 50, steps=5, generator=shards(world))
    return found


def judged(world: World, folder: Path) -> dict[str, Any]:
    """log Z and likelihoods by everything that spreads, of a machine whose log Z is known."""
    rbm, data = machine(), rows()
    found: dict[str, Any] = {"truth": float(partition.exact(rbm).value)}
    climb = partition.ais(rbm, data, chains=64, betas=40, generator=shards(world))
    found["ais"], found["stderr"], found["weights"] = climb.value, climb.stderr, climb.diagnostics["log_weights"]
    found["states"] = len(climb.diagnostics["states"])
    more = partition.ais(rbm, chains=32, resume=climb, generator=shards(world, 1))
    found["more"] = more.diagnostics["log_weights"]
    down = partition.reverse_ais(
        rbm, gb.draw(rbm, 48, steps=50, generator=gen()), forward=climb, generator=shards(world, 2)
    )
    found["reverse"], found["bounds"] = down.value, partition.bounds(climb, down).value
    for name, start in {"grown": data, "from_ends": None}.items():
        base = torch.zeros(6, dtype=torch.float64)
        options: dict[str, Any] = {"base": base} if start is None else {}
        both = partition.ais(rbm, start, chains=40, max_betas=30, generator=shards(world, 4), **options)
        found[name] = torch.stack([both.value, both.lower, both.upper, both.diagnostics["reverse"].value])
    found["smc"] = partition.smc(rbm, data, chains=20, betas=30, islands=8, generator=shards(world)).value
    likely = gb.log_likelihood(rbm, data, generator=shards(world))
    found["likelihood"] = likely.per_sample
    found["plain"] = gb.log_likelihood(rbm, data).per_sample
    report = gb.evaluate(rbm, data, train=data, outside={"ones": torch.ones(20, 6).double()}, seed=shards(world))
    plain = {key: value for key, value in report.to_dict().items() if key not in {"seconds", "warnings"}}
    found["evaluated"] = plain
    return found


JOBS = [(name, function, size) for name, function in (("sampled", sampled), ("judged", judged)) for size in (1, 2, 3)]
