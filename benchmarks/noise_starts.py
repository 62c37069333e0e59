"""Garments from noise: what sampler settings alone do for a joint energy whose chains never began there in training.

    GIBBSIAN_DATA=folder python benchmarks/noise_starts.py --save results

Draws of the zoo's `fashion-jem`, as many of every class, from starts that know nothing of garments (and from Gaussians with the moments of the classes, which
do), read by a separate classifier. Ten minutes on one core.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from images import probabilities, read, save_png, share_read, train_classifier

import gibbsian as gb
from gibbsian import domains, hybrid, kernels
from gibbsian.nets import ResidualNet
from gibbsian.objectives.starts import start_points

SHAPE = (1, 28, 28)
FALLING = kernels.ShortRunLangevin(2.0, 0.01, 0.1, last=0.05, cycle=20)


def coarse_to_fine(law: gb.Energy, n: int, g: torch.Generator, steps: int = 40) -> Tensor:
    """Chains on images of 4×4, then 7×7, then 14×14 pixels, each enlarged to the next: no texture is within their reach."""
    x = 2 * torch.rand(n, 1, 4, 4, generator=g) - 1
    for size in (4, 7, 14):
        x = F.interpolate(x, (size, size), mode="bilinear")
        for i in range(steps):
            x.requires_grad_()
            (slope,) = torch.autograd.grad(law(F.interpolate(x, SHAPE[1:], mode="bilinear")).sum(), x)
            slope = slope / slope.flatten(1).std(1)[:, None, None, None].clamp(min=1e-8)
            step = 0.3 * 0.05 ** (i / (steps - 1))
            z = torch.randn(x.shape, generator=g)
            x = (x.detach() - step * slope.clamp(-2, 2) + 0.3 * step * z).clamp(-1.1, 1.1)
    return F.interpolate(x, SHAPE[1:], mode="bilinear")


def cases(
    model: gb.Energy, law: gb.Energy, data: tuple[Tensor, Tensor], labels: Tensor, g: torch.Generator, steps: int
) -> dict[str, Callable[[], Tensor]]:
    """Ways to draw."""
    n, (x, y) = len(labels), data

    def walk(begin: Tensor, kernel: kernels.Kernel = FALLING, steps: int = steps) -> Tensor:
        begin = begin.clamp(-1.1, 1.1)
        return gb.sample(law, kernel, begin, steps=steps, keep=False, generator=g, progress=False).last

    def annealed(first: float) -> kernels.ShortRunLangevin:
        falling = first * (0.01 / first) ** (torch.arange(steps) / max(1, steps - 1))
        return kernels.ShortRunLangevin(torch.ones(steps), falling, 0.1)

    uniform = lambda: model.domain.sample(n, generator=g)  # noqa: E731
    small = lambda size: size * torch.randn(n, *SHAPE, generator=g)  # noqa: E731
    return {
        "uniform noise": lambda: walk(uniform()),
        "uniform noise, steps with noise that falls from 0.3": lambda: walk(uniform(), annealed(0.3)),
        "uniform noise, steps with noise that falls from 0.1": lambda: walk(uniform(), annealed(0.1)),
        "smooth noise": lambda: walk(start_points("smooth", n, model, x[:10], g)),
        "uniform noise, coarse pixels first": lambda: walk(coarse_to_fine(law, n, g), steps=max(1, steps * 2 // 5)),
        "gray of any level": lambda: walk(small(0.05) - torch.rand(n, 1, 1, 1, generator=g)),
        "black": lambda: walk(small(0.01) - 1),
        "Gaussians with the moments of the classes": lambda: walk(
            hybrid.like_classes(x[:5000], y[:5000], n, wanted=labels, generator=g)
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=50)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--judge", type=int, default=6000, help="updates of the classifier")
    parser.add_argument("--save", type=Path, help="folder for noise_starts.json and pictures")
    chosen = parser.parse_args()
    data, (held, truth) = read("fashion", "train"), read("fashion", "test")
    box = domains.Box(SHAPE, -1.0, 1.0)
    net = ResidualNet(SHAPE, (32, 64), 1, outputs=10, stride=2)
    judge = train_classifier(net, data, lambda b, g: b, chosen.judge, domain=box, lr=2e-3, batch=64)
    right = share_read(probabilities(judge, held), truth)
    model, g = gb.zoo.load("fashion-jem"), gb.random.stream(0, "noise starts")
    labels = torch.arange(10).repeat(chosen.draws // 10)
    law = model.given(labels)
    with torch.no_grad():
        seen = model.given(data[1][:1000])(data[0][:1000])
    found = {"judge_accuracy": right, "draws": chosen.draws, "steps": chosen.steps, "rows": []}
    found["energy_of_data"] = [float(seen.mean()), float(seen.std())]
    for name, draw in cases(model, law, data, labels, g, chosen.steps).items():
        begun = time.process_time()
        made = draw()
        correct = (probabilities(judge, made.clamp(-1, 1)).argmax(1) == labels).double()
        with torch.no_grad():
            height = float(law(made).mean())
        each = [float(correct[labels == k].mean()) for k in range(10)]
        row = {"start": name, "read_as_their_class": float(correct.mean()), "per_class": each, "energy": height}
        found["rows"].append(row | {"cpu_seconds": round(time.process_time() - begun, 1)})
        print(json.dumps(found["rows"][-1]), flush=True)
        if chosen.save:
            chosen.save.mkdir(parents=True, exist_ok=True)
            save_png(made, chosen.save / f"{name.replace(' ', '_')}.png", 10)
            (chosen.save / "noise_starts.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
