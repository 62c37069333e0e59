"""A Gaussian-Bernoulli RBM with learned variances on whitened patches of photographs: localised filters.

    python examples/gaussian_rbm.py --out out/gaussian_rbm

The two photographs that come with scikit-learn are cut into 14×14 patches and whitened (ZCA). The machine is trained by
contrastive divergence, its standard deviations learned along; hidden units start rare, as Melchior et al. (2017) advise.
Writes the filters sorted by how localised they are, a patch-by-patch reconstruction, the standard deviations, and the exact
held-out log-likelihood of a smaller machine beside that of a full Gaussian.
"""

import argparse
import json
import time
from pathlib import Path

import matplotlib
import torch

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from sklearn.datasets import load_sample_images

import gibbsian as gb
from gibbsian import kernels, models, objectives, partition, plots, units

SIDE = 14


def patches(n: int, generator: torch.Generator) -> torch.Tensor:
    """Random patches of the logarithm of the grey photographs, each less its mean."""
    images = [torch.tensor(image).double().mean(-1).add(1).log() for image in load_sample_images().images]
    found = []
    for image in images:
        windows = image.unfold(0, SIDE, 1).unfold(1, SIDE, 1)
        rows = torch.randint(windows.shape[0], (n // 2,), generator=generator)
        columns = torch.randint(windows.shape[1], (n // 2,), generator=generator)
        found.append(windows[rows, columns].flatten(1))
    x = torch.cat(found)
    x = x - x.mean(1, keepdim=True)
    return x[torch.randperm(len(x), generator=generator)]


def whitener(x: torch.Tensor, ridge: float = 1e-2) -> torch.Tensor:
    """ZCA: the symmetric root of the inverse covariance; directions of hardly any variance are not blown up."""
    values, vectors = torch.linalg.eigh(x.T.cov())
    return vectors @ torch.diag((values + ridge * values.mean()).rsqrt()) @ vectors.T


def localisation(w: torch.Tensor) -> torch.Tensor:
    """The share of a filter's energy in the best 7×7 window, a quarter of the patch: 0.25 for a filter all over."""
    squares = w.T.reshape(-1, 1, SIDE, SIDE).square()
    best = torch.nn.functional.avg_pool2d(squares, 7, stride=1).flatten(1).max(1).values * 49
    return best / squares.flatten(1).sum(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=196)
    parser.add_argument("--updates", type=int, default=30_000)
    parser.add_argument("--lr", type=float, default=0.03)
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="out/gaussian_rbm")
    options = parser.parse_args()
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    g = gb.random.stream(options.seed, "patches")
    raw = patches(70_000, g)
    train, test = raw[:60_000], raw[60_000:]
    white = whitener(train)
    train, test = (train @ white).float(), (test @ white).float()

    def fit(hidden: int) -> tuple[models.RBM, float]:
        rbm = models.RBM(units.Gaussian(SIDE**2), units.Bernoulli(hidden))
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
            optimiser={"name": "sgd", "momentum": 0.9},
            schedule="linear",
            clip=5.0,
            seed=options.seed,
        )
        return rbm, time.perf_counter() - begun

    rbm, seconds = fit(options.hidden)
    sigma = rbm.visible.sigma.detach()
    local = localisation(rbm.weight.detach())
    small, _ = fit(16)
    exact = gb.log_likelihood(small, test, partition.exact(small))
    gaussian = torch.distributions.MultivariateNormal(train.mean(0).double(), train.double().T.cov())
    result = {
        "options": vars(options),
        "seconds": round(seconds, 1),
        "sigma": [float(sigma.min()), float(sigma.mean()), float(sigma.max())],
        "localisation_median": float(local.median()),
        "localised_share": float((local > 0.6).float().mean()),
        "hidden_activity": float(rbm.hidden_mean(test).detach().mean()),
        "exact_test_log_likelihood_16_hidden": float(exact.value),
        "gaussian_test_log_likelihood": float(gaussian.log_prob(test.double()).mean()),
    }
    print(json.dumps(result, indent=1))
    (out / "results.json").write_text(json.dumps(result, indent=1) + "\n")

    figure, axes = plt.subplots(1, 3, figsize=(15, 5.4), layout="constrained")
    order = local.argsort(descending=True)
    plots.image_grid(
        rbm.weight.detach().T[order],
        axes[0],
        shape=(SIDE, SIDE),
        symmetric=True,
        title="filters, the most localised first",
    )
    axes[1].hist(local, bins=40, range=(0, 1), label="learned filters")
    noise = localisation(torch.randn(SIDE**2, 1000, generator=g))
    axes[1].hist(
        noise,
        bins=40,
        range=(0, 1),
        weights=torch.full((1000,), options.hidden / 1000),
        alpha=0.6,
        label="random filters",
    )
    axes[1].set(title="share of a filter's energy in its best 7×7 window", xlabel="share")
    axes[1].legend()
    axes[2].imshow(sigma.reshape(SIDE, SIDE), vmin=0, cmap="viridis")
    axes[2].set(title=f"learned σ, {float(sigma.min()):.2f} to {float(sigma.max()):.2f}", xticks=[], yticks=[])
    figure.savefig(out / "gaussian_rbm.png", dpi=110)


if __name__ == "__main__":
    main()
