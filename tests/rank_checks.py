"""What the ranks of test_distributed.py do; see nursery.py."""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import gibbsian as gb
from gibbsian import domains, energies, kernels, metrics, models, objectives, partition
from gibbsian.app.cli import main
from gibbsian.distributed import Shards, World, join
from gibbsian.distributed.gradients import GradientExchange
from gibbsian.sampling.diagnostics import summarize
from gibbsian.sampling.exchange import replica_exchange
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


def measured(world: World, folder: Path) -> dict[str, Any]:
    """Distances of samples, of which every process has all rows or its own, in features that each computes for its share."""
    x, y = torch.randn(700, 3, generator=gen(1)), 0.3 + torch.randn(600, 3, generator=gen(2))
    law, seen = energies.Gaussian(torch.zeros(3), torch.eye(3)), [0]
    made = shards(world).draw(700, lambda n, g: torch.randn(n, 3, generator=g))
    whole = world.gather_rows(made.rows)

    def squares(rows: Tensor) -> Tensor:
        seen[0] += len(rows)
        return torch.cat([rows.flatten(1), rows.flatten(1) ** 2], 1)

    found: dict[str, Any] = {
        "mmd": metrics.mmd(x, y, world=world),
        "energy": metrics.energy_distance(x, y, world=world),
        "stein": metrics.kernel_stein_discrepancy(x, law, world=world),
        "sliced": metrics.sliced_wasserstein(x, y, generator=shards(world)),
        "scores": metrics.ood_scores(law, x, "score_norm", batch_size=100, world=world),
        "kid": metrics.kid(x, y, squares, subset_size=50, subsets=10, batch_size=90, generator=shards(world)).value,
        "few": metrics.kid(
            x[:3], y[:3], squares, subset_size=3, subsets=2, batch_size=2, generator=shards(world)
        ).value,
    }
    test = metrics.two_sample_test(x, y, permutations=20, generator=shards(world))
    found["test"] = torch.cat([test.value[None], torch.tensor([test.p_value]), test.permuted])
    fid = metrics.fid(x, y.split(70), squares, batch_size=90, world=world)
    found["fid"], found["rows"] = fid.value, fid.rows
    found["own"] = seen[0]
    found["shared"] = [
        metrics.mmd(made, y, world=world).item() - metrics.mmd(whole, y).item(),
        metrics.kernel_stein_discrepancy(made, law, world=world).item()
        - metrics.kernel_stein_discrepancy(whole, law).item(),
        metrics.fid(made, y, squares, world=world).value.item() - metrics.fid(whole, y, squares).value.item(),
    ]
    return found


STATES = domains.Binary(6).states(dtype=torch.float64)  # 64 rows that tell who they are
BETAS = [1.0, 0.6, 0.3, 0.1]


def exact_replicas(rbm: models.RBM, chains: int) -> Tensor:
    """Exact draws `(replicas, chains, 6)` at every temperature, by enumeration."""
    laws = [torch.softmax(-rbm.annealed(torch.tensor(beta, dtype=torch.float64))(STATES), 0) for beta in BETAS]
    return torch.stack(
        [STATES[torch.multinomial(law, chains, replacement=True, generator=gen(i))] for i, law in enumerate(laws)]
    )


def exchanged(world: World, folder: Path) -> dict[str, Any]:
    """Replicas at exact draws of their temperatures: nothing may move, whatever is swapped, of tempered and of scaled energies."""
    rbm, found = machine(), dict[str, Any]()
    ladder = kernels.ParallelTempering(kernels.Gibbs(), BETAS)
    start = exact_replicas(rbm, 4000)
    with torch.no_grad():
        run = replica_exchange(rbm, ladder, start, 4, generator=shards(world))
    found["cold"], found["temperature"], found["swaps"] = run.samples, run.temperature, run.swap_acceptance
    skewed = gb.as_energy(lambda x: (x.exp() - x).sum(1), domains.Real(1))
    walk = kernels.ParallelTempering(kernels.RandomWalk(1.5), BETAS)
    begin = torch.distributions.Gamma(
        torch.tensor(BETAS, dtype=torch.float64), torch.tensor(BETAS, dtype=torch.float64)
    )
    with gb.random.isolated(gen(6)):
        begin = begin.sample((4000,)).T[..., None].log().clamp(min=-600)
    moved = replica_exchange(skewed, walk, begin, 3, generator=shards(world))
    found["skewed"] = moved.samples
    found["own"] = len(moved.replicas)
    return found


# --- training ---------------------------------------------------------------------------------------


def weights(energy: Any) -> Tensor:
    return torch.cat([p.detach().flatten() for p in energy.parameters()])


def trained(world: World, folder: Path) -> dict[str, Any]:
    """The same exact training as one process, with an average and validation, over gradients in parts, and rolled back."""
    exact, how = objectives.ExactLikelihood(), {"batch_size": 20, "lr": 0.05}
    run = gb.fit(models.RBM(6, 3).double(), exact, rows(), steps=60, validation=rows(), ema=0.9,
                 logging=gb.training.Logging(every=20, validate_every=30), **how)  # fmt: skip
    parts = gb.fit(models.RBM(6, 3).double(), exact, rows(), steps=60, engine=gb.training.Engine(accumulate=3), **how)
    found = {"weights": weights(run.energy), "ema": weights(run.ema), "parts": weights(parts.energy)}
    found["validation"] = [r["validation_loss"] for r in run.history if "validation_loss" in r]
    found["losses"] = len([r for r in run.history if "loss" in r])
    return found


@dataclass(frozen=True)
class Breaks(objectives.ExactLikelihood):
    calls: list = field(default_factory=lambda: [0])

    def __call__(self, energy: Any, batch: Any, state: Any, generator: Any) -> Any:
        self.calls[0] += 1
        if join()[0].rank == 1 and self.calls[0] == 17:
            raise gb.errors.DivergenceError("only here")
        return super().__call__(energy, batch, state, generator)


def diverged(world: World, folder: Path) -> dict[str, Any]:
    """One process diverges, all roll back."""
    guard = gb.training.Guard(every=5, snapshot_every=10)
    run = gb.fit(models.RBM(6, 3).double(), Breaks(), rows(), steps=30, batch_size=20, guard=guard)
    return {"events": run.events, "step": run.step, "weights": weights(run.energy)}


PCD = objectives.PersistentContrastiveDivergence(kernels.Gibbs(), steps=2, chains=24)
HOW: dict[str, Any] = {"batch_size": 20, "lr": 0.02, "seed": 3}
KILLED = 41


def watched(world: World, run: Callable[..., Any], *given: Any, **options: Any) -> tuple[Any, list[list[int]]]:
    """A training on the 64 states, and which of them each of its steps saw, over all processes."""
    seen: list[Tensor] = []

    def note(batch: Tensor, generator: torch.Generator) -> Tensor:
        numbers = torch.full((64,), -1)
        numbers[: len(batch)] = (batch.long() * 2 ** torch.arange(6)).sum(1)
        seen.append(numbers)
        return batch

    done = run(*given, transform=note, **options)
    steps = len(seen) - 1  # the first look is the objective's
    mine = torch.stack(seen[-steps:]) if steps else torch.empty(0, 64).long()
    every = world.gather_rows(mine[None]).transpose(0, 1).flatten(1)
    return done, [sorted(n for n in numbers if n >= 0) for numbers in every.tolist()]


def killed(world: World, folder: Path) -> None:
    """A run of two processes, one of which is lost between two checkpoints."""

    def die(run: Any) -> None:
        if run.step == KILLED and world.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    every = gb.training.Checkpoints(every=10)
    gb.fit(
        models.RBM(6, 3).double(),
        PCD,
        STATES,
        steps=80,
        run_dir=folder / "killed",
        checkpoints=every,
        hooks=[die],
        **HOW,
    )


def straight(world: World, folder: Path) -> dict[str, Any]:
    """The same, undisturbed."""
    run, seen = watched(world, gb.fit, models.RBM(6, 3).double(), PCD, STATES, steps=80, **HOW)
    return {"weights": weights(run.energy), "chains": world.gather_rows(run.state.x), "seen": seen}


def resumed(world: World, folder: Path) -> dict[str, Any]:
    """The killed run goes on, on any number of processes: first as it was saved, then to its end."""
    own = folder / f"killed-{world.size}"
    if world.first:
        shutil.copytree(folder / "killed", own)
    world.wait(torch.device("cpu"))
    found = gb.resume(own, STATES, steps=40, hooks=())
    chains, step = world.gather_rows(found.state.x), found.step
    run, seen = watched(world, gb.resume, own, STATES, hooks=())
    last = world.gather_rows(run.state.x)
    files = len(list((own / "checkpoints" / f"step-{run.step:012d}").glob("rank-*.safetensors")))
    found = {"weights": weights(run.energy), "chains": chains, "step": step, "own": len(found.state.x), "seen": seen}
    return found | {"files": files, "end": run.step, "last": last}


def widened(world: World, folder: Path) -> dict[str, Any]:
    """What one process saved last goes on on several."""
    run = gb.resume(folder / "killed-1", STATES, steps=80, hooks=())
    return {"chains": world.gather_rows(run.state.x), "own": len(run.state.x)}


def late(world: World, folder: Path) -> None:
    """One process stops answering; the others wait for two seconds."""
    if world.rank == 1:
        time.sleep(4)
    gb.fit(models.RBM(6, 3).double(), objectives.ExactLikelihood(), rows(), steps=3, batch_size=20)


def overlapped(world: World, folder: Path) -> dict[str, Any]:
    """Buckets leave during the backward pass; a process without gradients keeps step."""
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=gen(1), dtype=torch.float64))
    x = torch.randn(12, 4, generator=gen(2), dtype=torch.float64)
    parameters = list(net.parameters())
    exchange = GradientExchange(world, parameters, bucket=70)
    share = x if world.size == 1 else x[:5] if world.first else x[5:]
    with exchange.overlapping(len(share)):
        net(share).square().mean().backward(inputs=parameters)
    on_their_way = len(exchange.sent)
    signals = exchange.finish(len(share), (1.0, 0.0))
    gradients = torch.cat([p.grad.flatten() for p in parameters])
    for p in parameters:
        p.grad = None
    if world.first:  # the other has met trouble and has none
        net(share).square().mean().backward(inputs=parameters)
    trouble = exchange.finish(len(share), (0.0, float(not world.first)))
    exchange.close()
    numbers = {"signals": signals, "trouble": trouble, "bytes": exchange.bytes, "numel": len(gradients)}
    return {"gradients": gradients, "sent": on_their_way, **numbers}


def commanded(world: World, folder: Path) -> dict[str, Any]:
    """The command line as one of several processes: the run of two is drawn from and judged by two and by one."""
    run = folder / "commanded"
    codes = []
    if world.size == 2:
        codes.append(
            main(
                [
                    "train",
                    "digits-rbm",
                    "--fit.epochs",
                    "1",
                    "--no-report",
                    "--sample.steps",
                    "8",
                    "--sample.show",
                    "16",
                    "--run",
                    str(run),
                    "-q",
                ]
            )
        )
    samples = folder / f"drawn-{world.size}.npy"
    codes.append(main(["sample", str(run), "-n", "16", "--steps", "5", "--out", str(samples), "--quiet"]))
    asked = ["--likelihood", "ais", "--chains", "16", "--betas", "10", "--quiet"]
    codes.append(main(["evaluate", str(run), *asked]))
    world.wait(torch.device("cpu"))
    found = json.loads((run / "evaluation.json").read_text())
    pictures = sorted(path.name for path in (run / "snapshots").glob("*"))
    judged = {key: found[key] for key in ("likelihood", "log_z", "energies", "reconstruction_error")}
    return {"codes": codes, "drawn": torch.from_numpy(np.load(samples)), "judged": judged, "pictures": pictures}


JOBS = [
    (name, function, size)
    for name, function in (("sampled", sampled), ("judged", judged), ("measured", measured))
    for size in (1, 2, 3)
]
JOBS += [("exchanged", exchanged, size) for size in (1, 2, 3)]
JOBS += [("trained", trained, 2), ("diverged", diverged, 2), ("killed", killed, 2), ("straight", straight, 2)]
JOBS += [
    ("resumed", resumed, 1),
    ("resumed", resumed, 2),
    ("resumed", resumed, 3),
    ("widened", widened, 3),
    ("late", late, 2),
]
JOBS += [("overlapped", overlapped, 1), ("overlapped", overlapped, 2)]
JOBS += [("commanded", commanded, 2), ("commanded", commanded, 1)]
