"""Fields of experts learned from two photographs restore a third: denoising at σ = 25 and removal of scratches.

    python examples/fields_of_experts.py --out out/fields_of_experts

Fields of 24 filters of 5 × 5 pixels are learned by denoising score matching, at σ = 25, 8 and 1 gray values. A photograph with noise of σ = 25 takes one step x + cσ²s(x) with the first field (with c = 1 the posterior mean
if its score is exact) and one with the second, which clears up what is left; both c are chosen on the photographs that
the fields were learned from. Against it: the Gaussian filter whose width is best for the *test* photograph, and the
posterior mode under the second field. Scratches and text are filled in by the mode of the third field given all other pixels,
from linear interpolation onwards. The photographs come with scikit-learn and matplotlib. Writes results.json and a picture.
"""

import argparse
import itertools
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
from PIL import Image, ImageDraw
from scipy.interpolate import griddata
from scipy.ndimage import gaussian_filter
from sklearn.datasets import load_sample_images
from torch import Tensor

import gibbsian as gb
from gibbsian import energies, objectives, plots
from gibbsian.training import Logging

NOISE, FINE, CLEAN = 25 / 255, 8 / 255, 1 / 255
SIZE = 32


def photographs() -> dict[str, Tensor]:
    china, flower = load_sample_images().images
    with matplotlib.cbook.get_sample_data("grace_hopper.jpg") as file:
        hopper = matplotlib.image.imread(file, format="jpg")
    gray = np.array([0.299, 0.587, 0.114])
    named = {"china": china, "flower": flower, "hopper": hopper}
    return {name: torch.tensor(image @ gray, dtype=torch.float32) / 255 for name, image in named.items()}


def psnr(a: Tensor, b: Tensor) -> float:
    return float(-10 * torch.log10((a - b).square().mean()))


def learn(images: list[Tensor], sigma: float, steps: int) -> energies.FieldOfExperts:
    patches = torch.cat([im.unfold(0, SIZE, 5).unfold(1, SIZE, 5).reshape(-1, SIZE, SIZE) for im in images])
    # responses to the noise start near 1, where the experts bend
    field = energies.FieldOfExperts(
        (SIZE, SIZE), filters=24, size=5, alpha=0.1, scale=1 / sigma if sigma > 0.05 else 0.3 / sigma
    )
    objective = objectives.DenoisingScoreMatching(sigma)
    gb.fit(field, objective, patches, steps=steps, batch_size=16, lr=0.02, schedule="cosine",
           logging=Logging(every=steps // 5))  # fmt: skip
    return field


def restore(fields: list[energies.FieldOfExperts], factors: tuple[float, float], noisy: Tensor) -> Tensor:
    x = noisy[None]
    for field, sigma, factor in zip(fields, (NOISE, FINE), factors, strict=True):
        x = x + factor * sigma**2 * field.resized(tuple(noisy.shape)).score(x)
    return x[0]


def choose_factors(fields: list[energies.FieldOfExperts], images: list[Tensor], seed: int) -> tuple[float, float]:
    """The step sizes that are best on the photographs of the training, with noise of their own."""
    g = gb.random.stream(seed, "factors")
    pairs = [(im, im + NOISE * torch.randn(im.shape, generator=g)) for im in images]
    grid = list(itertools.product((0.5, 0.6, 0.7, 0.8, 0.9, 1.0), (0.0, 0.5, 0.75, 1.0, 1.25, 1.5)))
    gains = [sum(psnr(restore(fields, factors, noisy), im) for im, noisy in pairs) for factors in grid]
    return grid[int(np.argmax(gains))]


def scratches(shape: tuple[int, int], seed: int) -> Tensor:
    """True where a pixel is lost: text and random scratches."""
    mask = Image.new("L", (shape[1], shape[0]), 0)
    draw, rng = ImageDraw.Draw(mask), np.random.default_rng(seed)
    for i in range(0, shape[0], 28):
        draw.text((4, i), "energy based models  " * 8, fill=255)
    for _ in range(12):
        ends = rng.uniform(0, 1, (2, 2)) * [shape[1], shape[0]]
        draw.line([tuple(ends[0]), tuple(ends[1])], fill=255, width=2)
    return torch.tensor(np.array(mask) > 100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--test", default="flower", choices=["flower", "china", "hopper"])
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="out/fields_of_experts")
    options = parser.parse_args()
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)

    images = photographs()
    test = images.pop(options.test)
    begun = time.process_time()
    fields = [learn(list(images.values()), sigma, options.steps) for sigma in (NOISE, FINE, CLEAN)]
    training = time.process_time() - begun
    *fields, clean = fields
    factors = choose_factors(fields, list(images.values()), options.seed)

    g = gb.random.stream(options.seed, "test")
    noisy = test + NOISE * torch.randn(test.shape, generator=g)
    blurred = [torch.tensor(gaussian_filter(noisy.numpy(), width)) for width in np.arange(0.4, 3.0, 0.1)]
    gaussian = max(blurred, key=lambda image: psnr(image, test))
    restored = restore(fields, factors, noisy)
    fine = fields[1].resized(tuple(test.shape))
    strengths = {
        s: psnr(gb.denoise(fine, noisy[None], NOISE, strength=s, steps=60).x[0], test) for s in (0.3, 0.45, 0.6)
    }

    lost = scratches(tuple(test.shape), options.seed)
    torn = torch.where(lost, 1.0, test)
    known, missing = np.argwhere(~lost.numpy()), np.argwhere(lost.numpy())
    linear = test.clone()
    linear[lost] = torch.tensor(griddata(known, test[~lost].numpy(), missing, "linear", 0.5), dtype=test.dtype)
    # in double precision: the energy of a whole photograph is a large sum, and its minimum is flat
    field = clean.double().resized(tuple(test.shape))
    filled = gb.inpaint(field, linear[None].double(), ~lost, steps=100).x[0].float()

    result = {
        "test": options.test,
        "trained_on": list(images),
        "steps": options.steps,
        "training_cpu_seconds": round(training, 1),
        "factors": factors,
        "psnr": {
            "noisy": psnr(noisy, test),
            "best_gaussian_filter": psnr(gaussian, test),
            "fields_of_experts": psnr(restored, test),
            "first_field_alone": psnr(restore(fields, (1.0, 0.0), noisy), test),
            "posterior_mode_by_strength": strengths,
        },
        "gain_over_gaussian_filter": psnr(restored, test) - psnr(gaussian, test),
        "inpainting_psnr_of_lost_pixels": {
            "share_lost": float(lost.float().mean()),
            "torn": psnr(torn[lost], test[lost]),
            "linear_interpolation": psnr(linear[lost], test[lost]),
            "field_of_experts": psnr(filled[lost], test[lost]),
        },
    }
    (out / "results.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))

    panels = {
        "original": test,
        f"noisy, {psnr(noisy, test):.1f} dB": noisy,
        f"best Gaussian filter, {psnr(gaussian, test):.1f} dB": gaussian,
        f"fields of experts, {psnr(restored, test):.1f} dB": restored,
        f"scratched, {100 * float(lost.float().mean()):.0f} % lost": torn,
        f"filled in, {psnr(filled[lost], test[lost]):.1f} dB on lost pixels": filled,
    }
    figure, axes = plt.subplots(2, 4, figsize=(20, 8), constrained_layout=True)
    for ax, (title, image) in zip(axes[:, :3].flat, panels.items(), strict=True):
        ax.imshow(image[80:330, 150:480].clamp(0, 1), cmap="gray", vmin=0, vmax=1)
        ax.set_title(title)
        ax.set_axis_off()
    for ax, field, sigma in zip(axes[:, 3], fields, (NOISE, FINE), strict=True):
        order = field.alpha.argsort(descending=True)
        plots.image_grid(field.weight[order].detach(), ax, columns=6, symmetric=True)
        ax.set_title(f"filters learned at σ = {255 * sigma:.0f}, by weight")
    figure.savefig(out / "fields_of_experts.png", dpi=55)


if __name__ == "__main__":
    main()
