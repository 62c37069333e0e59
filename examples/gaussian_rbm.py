"""A Gaussian-Bernoulli RBM with learned variances on whitened patches of photographs: localized filters.

    python examples/gaussian_rbm.py --out out/gaussian_rbm

The patches of `ica_patches.py` (12 × 12 pixels of three photographs, whitened on 81 principal components) are learned by
contrastive divergence, standard deviations along with the weights; hidden units start rare, as Melchior et al. (2017) advise.
Receptive fields, carried back to pixels, are localized edges. Also prints the held-out log-likelihood by AIS from both sides
beside that of a Gaussian, which is the machine without hidden units. Writes results.json and a picture.
"""

import argparse
import json
import time
from pathlib import Path

import matplotlib
import torch

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from ica_patches import SIDE, patches

import gibbsian as gb
from gibbsian import kernels, models, objectives, partition, plots, units

WINDOW = SIDE // 2


def localization(fields: torch.Tensor) -> torch.Tensor:
    """The share of a filter's energy in its best window of a quarter of the patch."""
    squares = fields.reshape(-1, 1, SIDE, SIDE).square()
    best = torch.nn.functional.avg_pool2d(squares, WINDOW, stride=1).flatten(1).max(1).values * WINDOW**2
    return best / squares.flatten(1).sum(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--components", type=int, default=81)
    parser.add_argument("--hidden", type=int, default=144)
    parser.add_argument("--updates", type=int, default=40_000)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--steps", type=int, default=1, help="Gibbs sweeps an update")
    parser.add_argument("--betas", type=int, default=2000, help="temperatures of AIS")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="out/gaussian_rbm")
    options = parser.parse_args()
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    x = patches(60_000, gb.random.stream(options.seed, "patches"))
    x = x[torch.randperm(len(x), generator=gb.random.stream(options.seed, "split"))]
    value, vector = torch.linalg.eigh(torch.cov(x.T))
    value, vector = value.flip(0)[: options.components], vector.flip(1)[:, : options.components]
    white = (x @ vector / value.sqrt()).float()
    train, test = white[: -len(white) // 5], white[-len(white) // 5 :]

    rbm = models.RBM(units.Gaussian(options.components), units.Bernoulli(options.hidden))
    with torch.no_grad():
        rbm.hidden_bias.fill_(-2.0)  # rare at first: about one patch in eight turns a unit on
    begun = time.perf_counter()
    gb.fit(
        rbm,
        objectives.ContrastiveDivergence(kernels.Gibbs(), steps=options.steps),
        train,
        steps=options.updates,
        batch_size=100,
        lr=options.lr,
        optimizer={"name": "sgd", "momentum": 0.9},
        schedule="linear",
        seed=options.seed,
    )
    seconds = time.perf_counter() - begun

    sigma = rbm.visible.sigma.detach()
    fields = (vector / value.sqrt()).float() @ (
        rbm.weight.detach() / sigma[:, None]
    )  # what a unit looks for, in pixels
    local = localization(fields.T)
    g = gb.random.stream(options.seed, "evaluate")
    noise = localization(
        ((vector / value.sqrt()).float() @ torch.randn(options.components, 1000, generator=g)).T
    )  # random directions
    log_z = partition.ais(rbm, data=train, chains=200, betas=options.betas, generator=g)
    held_out = gb.log_likelihood(rbm, test, log_z)
    gaussian = gb.energies.Gaussian(train.mean(0), torch.cov(train.T))
    result = {
        "options": vars(options),
        "seconds": round(seconds, 1),
        "sigma": [float(sigma.min()), float(sigma.mean()), float(sigma.max())],
        "localization_median": float(local.median()),
        "localization_median_of_random_directions": float(noise.median()),
        "hidden_activity": float(rbm.hidden_mean(test).detach().mean()),
        "test_log_likelihood": [float(held_out.lower), float(held_out.value), float(held_out.upper)],
        "ais_ess": float(log_z.diagnostics["ess"]),
        "gaussian_test_log_likelihood": float((-gaussian(test) - gaussian.log_z()).mean()),
    }
    print(json.dumps(result, indent=1))
    (out / "results.json").write_text(json.dumps(result, indent=1) + "\n")

    figure, axes = plt.subplots(1, 2, figsize=(12, 5.8), layout="constrained")
    order = local.argsort(descending=True)
    each = fields.T[order] / fields.T[order].abs().amax(1, keepdim=True)
    title = "receptive fields, the most localized first"
    plots.image_grid(each, axes[0], shape=(SIDE, SIDE), symmetric=True, title=title)
    bins = torch.linspace(0, 1, 41).tolist()
    axes[1].hist(local, bins, label="learned")
    weights = torch.full((1000,), options.hidden / 1000)
    axes[1].hist(noise, bins, weights=weights, alpha=0.6, label="random directions")
    axes[1].set(title=f"energy in the best {WINDOW}×{WINDOW} window", xlabel="share", ylabel="filters")
    axes[1].legend()
    figure.savefig(out / "gaussian_rbm.png", dpi=80)


if __name__ == "__main__":
    main()
