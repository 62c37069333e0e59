"""A gated RBM learns how images move: shifts and rotations of random dots, and carries them over to new images.

    python examples/gated_rbm.py [--out out/gated_rbm] [--updates 20000]

About three minutes on one core, no network. Pairs of 13×13 images differ by a random shift (binary dots, Bernoulli
units) or a random rotation (blurred dots, Gaussian units). The machine sees pairs only; nobody says what moved
how. Its filters come in pairs, the same pattern at two phases, its hidden units say which shift it was, and the
transformation that it infers from one pair is applied to another image (Memisevic & Hinton 2010).
"""

import argparse
import math
import os
import time
from pathlib import Path

os.environ.setdefault("MPLBACKEND", "Agg")

import matplotlib.pyplot as plt
import torch
from torch import Tensor

import gibbsian as gb
from gibbsian import kernels, models, objectives, units

SIDE = 13
PIXELS = SIDE * SIDE
MOST = 3  # pixels of shift in each direction: 49 shifts
TURN = 90.0  # degrees of rotation either way


class Shifts:
    """Binary dots, one pixel in ten, shifted by whole pixels; what leaves on one side comes in on the other."""

    name = "shifts"

    def draw(self, n: int, g: torch.Generator) -> Tensor:
        """Which shifts, `(n, 2)`."""
        return torch.randint(-MOST, MOST + 1, (n, 2), generator=g)

    def pairs(self, how: Tensor, g: torch.Generator) -> tuple[Tensor, Tensor]:
        """Images `(n, 169)` and the same images shifted."""
        n, at = len(how), torch.arange(SIDE)
        x = (torch.rand(n, SIDE, SIDE, generator=g) < 0.1).float()
        rows, columns = (at - how[:, :1]) % SIDE, (at - how[:, 1:]) % SIDE
        y = x[torch.arange(n)[:, None, None], rows[:, :, None], columns[:, None, :]]
        return x.flatten(1), y.flatten(1)


class Rotations:
    """Ten blurred dots on a disc, rotated about its center by any angle."""

    name = "rotations"

    def draw(self, n: int, g: torch.Generator) -> Tensor:
        """Angles in radians, `(n,)`."""
        return (2 * torch.rand(n, generator=g) - 1) * math.radians(TURN)

    def pairs(self, how: Tensor, g: torch.Generator) -> tuple[Tensor, Tensor]:
        radius = 6.0 * torch.rand(len(how), 10, generator=g).sqrt()
        angle = 2 * math.pi * torch.rand(len(how), 10, generator=g)
        return self._render(radius, angle), self._render(radius, angle + how[:, None])

    @staticmethod
    def _render(radius: Tensor, angle: Tensor) -> Tensor:
        at = torch.arange(SIDE) - (SIDE - 1) / 2
        width = 2 * 0.8**2
        rows = torch.exp(-(at - (radius * angle.sin())[..., None]).square() / width)
        columns = torch.exp(-(at - (radius * angle.cos())[..., None]).square() / width)
        return torch.einsum("nki,nkj->nij", rows, columns).flatten(1)


class Scale:
    """Images with mean 0 and variance 1 over all pixels."""

    def __init__(self, x: Tensor) -> None:
        self.mean, self.std = x.mean(), x.std()

    def __call__(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


def train(task: Shifts | Rotations, updates: int) -> tuple[models.GatedRBM, Scale]:
    """A gated RBM on 50000 pairs, by contrastive divergence with the input held."""
    g = gb.random.stream(0, task.name)
    x, y = task.pairs(task.draw(50000, g), g)
    scale = Scale(x)
    if isinstance(task, Shifts):
        model = models.GatedRBM(PIXELS, PIXELS, hidden=150, factors=400)
        model.initialize_visible_bias(y)
        rate = 0.005
    else:
        model = models.GatedRBM(PIXELS, units.Gaussian(PIXELS, learned=False), hidden=80, factors=160)
        y, rate = scale(y), 0.003
    objective = objectives.Conditional(objectives.ContrastiveDivergence(kernels.Gibbs(), steps=1))
    gb.fit(
        model, objective, (scale(x), y), steps=updates, batch_size=100, lr=rate, schedule="linear",
        hooks=[model.normalize_filters],
    )  # fmt: skip
    return model, scale


def correlation(a: Tensor, b: Tensor) -> float:
    """The mean over images of the correlation of pixels."""
    a, b = a - a.mean(1, keepdim=True), b - b.mean(1, keepdim=True)
    return float(torch.nn.functional.cosine_similarity(a, b, dim=1).mean())


def dots_found(guess: Tensor, truth: Tensor) -> float:
    """Of the k dots of the truth, the share among the k brightest pixels of the guess."""
    shares = []
    for a, b in zip(guess, truth, strict=True):
        k = int(b.sum())
        shares.append(float(b[a.topk(k).indices].mean()) if k else 1.0)
    return sum(shares) / len(shares)


def measure(task: Shifts | Rotations, model: models.GatedRBM, scale: Scale) -> tuple[dict[str, float], list[Tensor]]:
    """Transfer to new images: infer h from one pair, apply it to another image, compare with the truth."""
    g = gb.random.stream(1, task.name)
    how = task.draw(2000, g)
    x, y = task.pairs(how, g)
    new, truth = task.pairs(how, g)
    with torch.no_grad():
        seen = y if isinstance(task, Shifts) else scale(y)
        guess = model.transfer(scale(x), seen, to=scale(new))
        hidden = model.given(scale(x)).hidden_mean(seen)
    many_x, many_y = task.pairs(task.draw(20000, g), g)
    inputs = torch.cat([many_x, torch.ones(len(many_x), 1)], 1)
    linear = torch.linalg.lstsq(inputs, many_y).solution
    regression = torch.cat([new, torch.ones(len(new), 1)], 1) @ linear
    found = {
        "correlation with the truth": correlation(guess, truth),
        "  copy of the new image": correlation(new, truth),
        "  linear regression on the new image": correlation(regression, truth),
    }
    if isinstance(task, Shifts):
        found["dots at their place"] = dots_found(guess, truth)
        found["  copy of the new image "] = dots_found(new, truth)
        found["  linear regression on the new image "] = dots_found(regression, truth)
        label = (how[:, 0] + MOST) * (2 * MOST + 1) + how[:, 1] + MOST
        means = torch.stack([hidden[:1500][label[:1500] == k].mean(0) for k in range((2 * MOST + 1) ** 2)])
        nearest = torch.cdist(hidden[1500:], means).argmin(1)
        found["shift read off the hidden units (49)"] = float((nearest == label[1500:]).float().mean())
        found["filters with one frequency in both images"] = same_frequency(model)
    return found, [x, y, new, guess, truth]


def same_frequency(model: models.GatedRBM) -> float:
    """The share of factors whose strongest spatial frequency is the same in both filters."""
    peaks = []
    for filters in (model.input_weight, model.weight):
        power = torch.fft.rfft2(filters.detach().T.reshape(-1, SIDE, SIDE)).abs().flatten(1)
        peaks.append(power[:, 1:].argmax(1))
    return float((peaks[0] == peaks[1]).float().mean())


def strongest(model: models.GatedRBM, count: int) -> tuple[Tensor, Tensor]:
    """Input and output filters of the factors that hidden units listen to most, purest frequencies first."""
    u, v = (w.detach().T.reshape(-1, SIDE, SIDE) for w in (model.input_weight, model.weight))
    strength = model.hidden_weight.detach().norm(dim=0)
    power = torch.fft.rfft2(u).abs().flatten(1)
    purity = power.max(1).values / power.norm(dim=1)
    index = (purity * strength).topk(count).indices
    return u[index], v[index]


def draw(out: Path, results: list[tuple[str, models.GatedRBM, list[Tensor]]]) -> Path:
    """Filters above, transfers below, one column of panels for each transformation."""
    count, shown = 12, 8
    figure = plt.figure(figsize=(13, 5.9), layout="constrained")
    panels = figure.subfigures(2, len(results), height_ratios=[1.55, 4.2])
    for column, (name, model, images) in enumerate(results):
        panel = panels[0, column]
        panel.suptitle(f"{name}: filters of input (above) and output (below)", fontsize=11)
        axes = panel.subplots(2, count)
        for j, pair in enumerate(zip(*strongest(model, count), strict=True)):
            for i, image in enumerate(pair):
                top = float(image.abs().max())
                axes[i, j].imshow(image, cmap="RdBu_r", vmin=-top, vmax=top)
        panel = panels[1, column]
        panel.suptitle(f"{name}: inferred from one pair, applied to another image", fontsize=11)
        titles = ["seen: before", "seen: after", "new image", "machine's\nguess", "truth"]
        rows = panel.subplots(len(titles), shown)
        for i, (title, batch) in enumerate(zip(titles, images, strict=True)):
            for j in range(shown):
                image = batch[j].reshape(SIDE, SIDE)
                rows[i, j].imshow(image, cmap="gray", vmin=float(image.min()), vmax=float(image.max()))
            rows[i, 0].set_ylabel(title, fontsize=9, rotation=0, ha="right", va="center")
        for axis in (*axes.flat, *rows.flat):
            axis.set(xticks=[], yticks=[])
    out.mkdir(parents=True, exist_ok=True)
    path = out / "gated_rbm.png"
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out/gated_rbm"))
    parser.add_argument("--updates", type=int, default=20000)
    arguments = parser.parse_args()
    results = []
    for task in (Shifts(), Rotations()):
        begun = time.perf_counter()
        model, scale = train(task, arguments.updates)
        found, images = measure(task, model, scale)
        print(f"{task.name}: {arguments.updates} updates in {time.perf_counter() - begun:.0f} s")
        for name, value in found.items():
            print(f"  {name:44s}{value:7.3f}")
        results.append((task.name, model, images))
    print(f"written to {draw(arguments.out, results)}")


if __name__ == "__main__":
    main()
