"""Independent components of natural image patches: oriented edges, from nothing but statistics.

    python examples/ica_patches.py --out out/ica_patches

Patches of 12 × 12 pixels from three photographs (scikit-learn's and matplotlib's) at half their size, their mean taken away, are reduced to
81 principal components and whitened; then `energies.ICA` is learned by maximum likelihood. Its filters and features are
localized, oriented edges, where principal components are global waves. Also prints the held-out log-likelihood in bits a
dimension against that of a Gaussian. Writes results.json and a picture.
"""

import argparse
import json
import time
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.cbook
import matplotlib.image
import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_sample_images
from torch import Tensor

import gibbsian as gb
from gibbsian import energies, objectives, plots
from gibbsian.training import Logging

SIDE = 12


def patches(count: int, generator: torch.Generator) -> Tensor:
    """Random patches `(count, SIDE²)` of the logarithms of gray values, each with mean zero."""
    with matplotlib.cbook.get_sample_data("grace_hopper.jpg") as file:
        images = [*load_sample_images().images, matplotlib.image.imread(file, format="jpg")]
    rows = []
    for image in images:
        gray = torch.tensor(np.log(image @ np.array([0.299, 0.587, 0.114]) + 10))
        gray = torch.nn.functional.avg_pool2d(gray[None], 2)[0]  # the traces of compression lie in single pixels
        every = gray.unfold(0, SIDE, 1).unfold(1, SIDE, 1).reshape(-1, SIDE * SIDE)
        rows.append(every[torch.randperm(len(every), generator=generator)[: count // len(images)]])
    x = torch.cat(rows)
    return x - x.mean(1, keepdim=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--patches", type=int, default=60_000)
    parser.add_argument("--components", type=int, default=81)
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="out/ica_patches")
    options = parser.parse_args()
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)

    x = patches(options.patches, gb.random.stream(options.seed, "patches"))
    x = x[torch.randperm(len(x), generator=gb.random.stream(options.seed, "split"))]
    value, vector = torch.linalg.eigh(torch.cov(x.T))
    value, vector = value.flip(0)[: options.components], vector.flip(1)[:, : options.components]
    white = (x @ vector / value.sqrt()).float()
    train, test = white[: -len(white) // 5], white[-len(white) // 5 :]

    model = energies.ICA(options.components, "laplace")
    model.whiten(train)
    begun = time.process_time()
    run = gb.fit(
        model,
        objectives.ExactLikelihood(),
        train,
        steps=options.steps,
        batch_size=256,
        lr=2e-3,
        schedule="cosine",
        seed=options.seed,
        logging=Logging(every=options.steps // 10),
    )
    gaussian = energies.Gaussian(train.mean(0), torch.cov(train.T))
    bits = {
        name: float(gb.log_likelihood(energy, test).value) / (options.components * np.log(2))
        for name, energy in (("ICA", model), ("Gaussian", gaussian))
    }
    s = model.components(test).detach()
    kurtosis = (s - s.mean(0)).pow(4).mean(0) / s.var(0).square() - 3
    result = {
        "patches": len(train),
        "components": options.components,
        "cpu_seconds": round(time.process_time() - begun, 1),
        "last_training_loss": run.history[-1]["loss"],
        "held_out_bits_per_dimension": bits,
        "median_excess_kurtosis": float(kurtosis.median()),
        "share_of_super_gaussian_components": float((kurtosis > 0).float().mean()),
    }
    (out / "results.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))

    color = (vector * value.sqrt()).float()  # from whitened coordinates back to pixels
    features = model.mixing.detach().T @ color.T
    filters = model.weight.detach() @ (vector / value.sqrt()).float().T
    figure, axes = plt.subplots(1, 3, figsize=(15, 5.4), constrained_layout=True)
    names = ("principal components", "features of ICA (columns of A)", "filters of ICA (rows of W)")
    for ax, title, rows in zip(axes, names, (vector.T.float(), features, filters), strict=True):
        plots.image_grid(rows, ax, symmetric=True)
        ax.set_title(title)
    figure.savefig(out / "ica_patches.png", dpi=80)


if __name__ == "__main__":
    main()
