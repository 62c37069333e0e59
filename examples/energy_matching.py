"""Energy matching on MNIST or Fashion-MNIST: one potential that leads noise to images, against a score network.

    GIBBSIAN_DATA=folder python examples/energy_matching.py --data mnist --seconds 100 --out out/energy_matching

Both models have the same U-Net and the same training time: the energy is V(x)/ε_max with V(x) = ½‖x - U(x)‖², whose flow begins at a
Gaussian with the moments of the training images, the score network climbs down a noise ladder. The distance is Fréchet's in the features of a separate classifier (the mean over positions of its last
layer), between draws and test images. Writes results.json and energy_matching.png: draws of both, and the distance over the number of
gradients that a draw takes.
"""

import argparse
import copy
import fcntl
import json
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from images import Clock, fit_for, panels_png, set_up, train_classifier
from ncsn import shifted
from torch import Tensor, nn

import gibbsian as gb
from gibbsian import domains, kernels, metrics, models, objectives, schedules
from gibbsian.energies import ResidualNet
from gibbsian.objectives.base import Step
from gibbsian.objectives.noise import GaussianNoise
from gibbsian.recorded import Recorded

SHAPE = (1, 28, 28)
GRADIENTS = (25, 50, 100, 200, 400)
TIMES = (1.0, 1.25, 1.5, 2.0)


class Reconstruction(Recorded):
    """½‖x - U(x)‖²/T, U(x) the mean of a Gaussian law corrected by a U-Net: bounded from below, and large outside the data."""

    def __init__(self, net: nn.Module, temperature: float) -> None:
        super().__init__()
        self.net, self.temperature = net, temperature

    def forward(self, x: Tensor) -> Tensor:
        score = self.net(x, torch.ones_like(x[:, 0, 0, 0]))
        gap = (1 + self.net.spread**2) * score  # U(x) - x
        return gap.float().square().flatten(1).sum(1) / (2 * self.temperature)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=["mnist", "fashion"], default="mnist")
    parser.add_argument("--out", default="out/energy_matching")
    parser.add_argument("--seconds", type=float, default=100.0, help="of the training of each of the two")
    parser.add_argument("--contrast", type=float, default=0.1, help="share of that for the second phase")
    parser.add_argument("--noise", choices=["gaussian", "normal"], default="gaussian", help="where the flow begins")
    parser.add_argument("--temperature", type=float, default=0.01)
    parser.add_argument("--weight", type=float, default=1e-3)
    parser.add_argument("--chain-steps", type=int, default=20)
    parser.add_argument("--widths", type=int, nargs="+", default=[32, 64, 128])
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--matching-lr", type=float, default=3e-3)
    parser.add_argument("--ema", type=float, default=0.999)
    parser.add_argument("--samples", type=int, default=5000)
    parser.add_argument("--classifier-steps", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--turns", help="a file that several such programs lock in turn, so that each is timed alone")
    parser.add_argument("--limit", type=int, help="rows of each set, for a quick look")
    return parser.parse_args()


class Judge:
    """A classifier that has nothing to do with the models, and distances in its features."""

    def __init__(self, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], steps: int, seed: int) -> None:
        fast = train[0].is_cuda
        net = ResidualNet(SHAPE, (32, 64, 128) if fast else (8, 8), 1, outputs=10).to(train[0].device)
        box = domains.Box(SHAPE, -1.0, 1.0)
        self.model = train_classifier(net, train, shifted, steps, domain=box, lr=1e-3, seed=seed)
        self.features = copy.deepcopy(self.model.net)
        self.features.head = nn.Identity()
        self.moments = {n: metrics.feature_moments(x[0], self.features) for n, x in (("train", train), ("test", test))}
        predicted = torch.cat([self.model.class_log_prob(part).argmax(1) for part in test[0].split(2000)])
        self.accuracy = float((predicted == test[1]).double().mean())

    def distance(self, images: Tensor, to: str) -> float:
        return float(metrics.fid(self.moments[to], images.clamp(-1, 1), self.features).value)


def in_parts(draw: Any, n: int, size: int = 500) -> Tensor:
    return torch.cat([draw(min(size, n - i)) for i in range(0, n, size)])


def clocked(device: str, work: Any) -> tuple[Any, float]:
    begun = time.perf_counter()
    found = work()
    if device == "cuda":
        torch.cuda.synchronize()
    return found, time.perf_counter() - begun


def score_network(chosen: argparse.Namespace, x: Tensor, device: str) -> tuple[Any, Any]:
    """A trained noise-conditional score network, and what draws from it."""
    ladder = schedules.noise_ladder(x, last=0.02, steps_per_level=5)
    net = models.ScoreUNet(SHAPE, chosen.widths, chosen.blocks, center=float(x.mean()), spread=float(x.std())).to(
        device
    )
    family = models.NoiseConditionalScore(net, domains.Real(SHAPE), ladder.sigmas.to(device))
    run = fit_for(Clock(chosen.seconds, chosen.lr), family, objectives.MultiScaleDenoising(), x, chosen)
    model = run.ema.eval()
    kernel = kernels.AnnealedLangevin(ladder.steps_per_level, ladder.step_size, denoise=True)
    g = gb.random.stream(chosen.seed, "score", device)

    def draw(n: int) -> Tensor:
        begin = float(ladder.sigmas[0]) * torch.randn(n, *SHAPE, generator=g, device=device)
        return gb.sample(model, kernel, begin, keep=False, generator=g, progress=False).last

    return run, (draw, kernel.total_steps(model))


@contextmanager
def in_turn(path: str | None) -> Iterator[None]:
    """Alone on the device among the programs that name this file."""
    with nullcontext() if path is None else open(path, "w") as file:
        if file is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def half(device: str) -> AbstractContextManager[Any]:
    """The precision of the training."""
    return torch.autocast(device, dtype=torch.bfloat16) if device == "cuda" else nullcontext()


class Matched:
    """An energy trained by matching, phase after phase on the clock, and what draws from it."""

    def __init__(self, chosen: argparse.Namespace, x: Tensor, device: str) -> None:
        self.chosen, self.device, self.rows = chosen, device, chosen.batch
        net = models.ScoreUNet(SHAPE, chosen.widths, chosen.blocks, center=float(x.mean()), spread=float(x.std()))
        domain = domains.Real(SHAPE)
        self.energy = gb.as_energy(Reconstruction(net, chosen.temperature), domain).to(device)
        self.g = gb.random.stream(chosen.seed, "energy", device)
        noise = GaussianNoise().fit(domain, x[:20000], self.g).energy if chosen.noise == "gaussian" else None
        self.how = {"temperature": chosen.temperature, "tau": 1.0, "sigma": 0.0, "weight": chosen.weight,
                    "floor": -0.02, "steps": chosen.chain_steps, "step_size": 1 / chosen.chain_steps,
                    "pairing": "sinkhorn", "noise": noise}  # fmt: skip
        self.phases = [objectives.EnergyMatching(flow_steps=n, **self.how) for n in (10**9, 0)]
        self.runs: list[Any] = []

    def compile(self, x: Tensor) -> float:
        """The seconds that compiling takes; both models are timed from their first compiled and captured step on."""
        begun = time.perf_counter()
        if self.device == "cuda":
            state = self.phases[0].init(self.energy, x[: self.rows], self.g)
            with half(self.device):
                self.phases[0].loss(self.energy, x[: self.rows], state, self.g, Step(fused=True))
            self.draw(self.rows, 1, 0.1)
        return time.perf_counter() - begun

    def train(self, x: Tensor, phase: int) -> None:
        chosen = self.chosen
        lr = chosen.matching_lr
        share, lr = ((1 - chosen.contrast, lr), (chosen.contrast, 0.03 * lr))[phase]
        clock = Clock(share * chosen.seconds, lr)
        settings = argparse.Namespace(**vars(chosen) | {"lr": lr})
        self.runs.append(fit_for(clock, self.energy, self.phases[phase], x, settings))
        self.energy.load_state_dict(self.runs[-1].ema.state_dict())

    def draw(self, n: int, gradients: int, until: float) -> Tensor:
        """n draws by so many gradients each, up to the time `until`."""
        fast, flow = self.device == "cuda", self.phases[0]
        state = flow.init(self.energy, torch.zeros(self.rows, *SHAPE, device=self.device), self.g)
        parts = []
        with half(self.device):
            for _ in range(0, n, self.rows):  # as many at a time as were compiled for
                how = {"compile": fast, "time": until, "step_size": until / gradients}
                parts.append(flow.generate(self.energy, self.rows, state, self.g, **how))
        return torch.cat(parts)[:n]


def curve(ax: Any, points: list[dict[str, Any]], score: dict[str, Any]) -> None:
    """How near draws are to test images, for what they cost."""
    ax.plot([p["gradients"] for p in points], [p["fid"] for p in points], "o-", label="energy matching")
    ax.plot([score["gradients"]], [score["fid"]], "s", color="black", label="score network")
    ax.set(xscale="log", yscale="log", xlabel="gradients (scores) a draw", ylabel="Fréchet distance in a classifier")
    ax.set_title("distance to test images", fontsize=10)
    ax.legend(frameon=False)


def save(result: dict[str, Any], out: Path) -> None:
    """What is known so far."""
    (out / "results.json").write_text(json.dumps(result, indent=1) + "\n")


def main() -> None:
    chosen = options()
    begun = time.perf_counter()
    device, out, train, test = set_up(chosen)
    torch.backends.cudnn.benchmark = (
        False  # gradients of gradients have so many shapes that trying them all takes longer
    )
    x = train[0]
    judge = Judge(train, test, chosen.classifier_steps, chosen.seed)
    result: dict[str, Any] = {
        "options": vars(chosen), "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "judge_test_accuracy": judge.accuracy,
        "fid_of_training_images": float(metrics.fid(judge.moments["test"], x[: chosen.samples], judge.features).value),
    }  # fmt: skip

    with in_turn(chosen.turns):
        run, (draw, gradients) = score_network(chosen, x, device)
        images, seconds = clocked(device, lambda: in_parts(draw, chosen.samples))
    of_scores = images[:100]
    result["score_network"] = {"updates": run.step, "gradients": gradients, "sampling_seconds": seconds,
                               "fid": judge.distance(images, "test"), "events": run.events}  # fmt: skip
    save(result, out)
    print(json.dumps(result["score_network"]), flush=True)

    matched = Matched(chosen, x, device)
    compiling = matched.compile(x)
    found = result["energy_matching"] = {"compile_seconds": compiling}
    few = chosen.samples // 2
    with in_turn(chosen.turns):
        matched.train(x, 0)
        found["fid_after_the_first_phase"] = judge.distance(matched.draw(few, 100, 1.0), "test")
        if chosen.contrast:
            matched.train(x, 1)
        found |= {"updates": [r.step for r in matched.runs], "events": [e for r in matched.runs for e in r.events]}
        by_time = {t: judge.distance(matched.draw(few, 50, t), "train") for t in TIMES}
        until = min(by_time, key=by_time.__getitem__)  # on training images
        found |= {"time": until, "fid_of_times_on_training_images": {str(t): d for t, d in by_time.items()}}
        points: list[dict[str, Any]] = []
        for n in GRADIENTS:
            images, seconds = clocked(device, lambda n=n: matched.draw(chosen.samples, n, until))
            points.append({"gradients": n, "fid": judge.distance(images, "test"), "sampling_seconds": seconds})
            print(json.dumps(points[-1]), flush=True)
            found |= {"curve": points, "fid": min(p["fid"] for p in points)}
            save(result, out)
    found["last_numbers"] = [{k: v for k, v in r.items() if k in ("flow", "gap", "energy_data", "energy_samples")}
                             for r in matched.runs[-1].history if "gap" in r][-3:]  # fmt: skip
    panels = {
        f"energy matching, {points[-1]['gradients']} gradients": images[:100],
        f"score network, {gradients} scores": of_scores,
    }
    title = f"{chosen.data}: draws after {chosen.seconds:.0f} s of training each, not selected"
    panels_png(panels, out / "energy_matching.png", title, lambda ax: curve(ax, points, result["score_network"]))
    result["seconds"] = time.perf_counter() - begun
    save(result, out)
    print(json.dumps({k: v for k, v in result.items() if k != "options"}, indent=1))


if __name__ == "__main__":
    main()
