"""Regression where one input has several answers: a conditional energy learned by four principles.

    python examples/regression_energy.py --out out/regression_energy

Data: x = y + 1.2 sin(πy/2) + noise, to be read backwards: for some x three different y are likely. `ConditionalEnergy` with
a small network is learned by its exact likelihood (a quadrature over y for every input), by ranking against candidates
around the datum, by denoising score matching and by contrastive divergence, and compared with a network that predicts the
mean and variance of a Gaussian. Held-out log p(y|x) by quadrature, and how often the central 90 % interval of samples
covers the truth. Denoising sees only slopes, so it cannot tell how likely answers that lie apart are relative to each
other. Prints a table; writes results.json and a picture.
"""

import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor, nn

import gibbsian as gb
from gibbsian import domains, energies, kernels, objectives
from gibbsian.training import Logging


class GaussianRegression(nn.Module):
    """½((y - m(x))/s(x))² + log s(x), which is normalized but for a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.net = energies.MLP(1, (64, 64), 2)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        mean, log_s = self.net(x).split(1, 1)
        return (0.5 * ((y - mean) / log_s.exp()).square() + log_s).squeeze(1)


def data(n: int, seed: int) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    y = rng.uniform(-4, 4, (n, 1))
    x = y + 1.2 * np.sin(np.pi * y / 2) + 0.2 * rng.normal(size=(n, 1))
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--out", default="out/regression_energy")
    options = parser.parse_args()
    (x, y), (x_test, y_test) = data(3000, 0), data(1000, 1)
    kernel = kernels.HMC(0.1, 8)
    principles: dict[str, objectives.Objective] = {
        "Gaussian regression": objectives.ExactLikelihood(),
        "exact likelihood": objectives.ExactLikelihood(),
        "ranking": objectives.RankingContrastive(objectives.Around((0.2, 0.8, 3.0)), candidates=64),
        "denoising": objectives.DenoisingScoreMatching(0.2),
        "contrastive divergence": objectives.ContrastiveDivergence(kernel, steps=4),
    }
    result: dict[str, dict[str, float]] = {}
    models: dict[str, energies.ConditionalEnergy] = {}
    for name, principle in principles.items():
        net = GaussianRegression() if name == "Gaussian regression" else energies.PairMLP(1, 1, (64, 64))
        model = energies.ConditionalEnergy(net, domains.Real(1), confine=0.0 if name == "Gaussian regression" else 0.05)
        steps = options.steps // 4 if principle == objectives.ExactLikelihood() else options.steps  # these cost most
        gb.fit(model, objectives.Conditional(principle), (x, y), steps=steps, batch_size=100, lr=1e-2,
               schedule="cosine", logging=Logging(every=steps))  # fmt: skip
        with torch.no_grad():
            held_out = float(model.log_prob(x_test, y_test).mean())
        g = gb.random.stream(0, "intervals")
        start = 8 * torch.rand(300, 1, generator=g) - 4
        found = gb.predict_interval(
            model, x_test[:300], kernel, steps=120, burn_in=60, chains=16, start=start, generator=g
        )
        covered = ((y_test[:300] > found.lower) & (y_test[:300] < found.upper)).float().mean()
        result[name] = {"held_out_log_likelihood": held_out, "coverage_of_90": float(covered)}
        models[name] = model
        print(f"{name:24s}", "  ".join(f"{key} {value:.3f}" for key, value in result[name].items()), flush=True)
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.json").write_text(json.dumps({"options": vars(options), "results": result}, indent=1) + "\n")

    figure, axes = plt.subplots(1, len(models), figsize=(4 * len(models), 4), constrained_layout=True, sharey=True)
    xs, ys = torch.linspace(-5, 5, 120), torch.linspace(-5, 5, 160)
    for ax, (name, model) in zip(axes, models.items(), strict=True):
        with torch.no_grad():
            member = model.given(xs[:, None])
            rows = ys[:, None].repeat_interleave(len(xs), 0)  # inputs run fastest
            p = (-member(rows).reshape(len(ys), len(xs)) - member.log_z()).exp()
        ax.pcolormesh(xs, ys, p, cmap="magma_r", vmax=1.5)
        ax.plot(x_test[:150, 0], y_test[:150, 0], ".", color="tab:cyan", markersize=2)
        ax.set_title(f"{name}\nlog p(y|x) {result[name]['held_out_log_likelihood']:.2f}")
        ax.set_xlabel("x")
    axes[0].set_ylabel("y")
    figure.savefig(out / "regression_energy.png", dpi=70)


if __name__ == "__main__":
    main()
