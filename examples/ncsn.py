"""A noise-conditional score network on MNIST: digits from noise, missing halves filled in, and a likelihood.

    GIBBSIAN_DATA=folder python examples/ncsn.py --seconds 100 --out out/ncsn

The noise ladder and the Langevin steps on it are computed from the data. Writes results.json: how surely a separate
classifier reads the generated digits, by class, and the likelihood of test images by probability flow; and pictures:
ncsn.png (draws, and lower halves under given upper ones), data.png.

    GIBBSIAN_DATA=folder python examples/ncsn.py --zoo --out out/ncsn

draws the first picture from the trained network of the zoo instead, in a few minutes on one core.

The data folder holds mnist/ (or fashion_mnist/) with its four idx.gz files.
"""

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import torch
from images import Clock, augmented, fit_for, probabilities, read, save_png, set_up, share_read, train_classifier
from matplotlib.figure import Figure
from torch import Tensor

import gibbsian as gb
from gibbsian import domains, kernels, models, objectives, partition, plots, schedules
from gibbsian.energies import ResidualNet


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=["mnist", "fashion"], default="mnist")
    parser.add_argument("--out", default="out/ncsn")
    parser.add_argument("--seconds", type=float, default=100.0, help="of the training of the score network")
    parser.add_argument("--widths", type=int, nargs="+", default=[32, 64, 128])
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--ema", type=float, default=0.999)
    parser.add_argument("--last", type=float, default=0.02, help="smallest noise level, of pixels in [-1, 1]")
    parser.add_argument("--steps-per-level", type=int, default=5)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--classifier-steps", type=int, default=6000)
    parser.add_argument("--likelihood", type=int, default=128, help="test images whose likelihood is found")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, help="rows of each set, for a quick look")
    parser.add_argument("--zoo", action="store_true", help="draw the picture from the network of the zoo, and no more")
    return parser.parse_args()


def shifted(batch: tuple[Tensor, Tensor], generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x = augmented(batch[0], generator, shift=2)
    return (x + 0.05 * torch.randn(x.shape, generator=generator, device=x.device)).clamp(-1, 1), batch[1]


def first_of_each(x: Tensor, y: Tensor) -> Tensor:
    """One image of every class."""
    return torch.stack([x[y == k][0] for k in range(10) if bool((y == k).any())])


def complete(
    model: Any, kernel: kernels.Kernel, digits: Tensor, times: int, g: torch.Generator
) -> tuple[Tensor, Tensor]:
    """The digits with their upper half alone, and `times` lower halves drawn under each, set after set."""
    given = torch.zeros(1, 28, 28, dtype=torch.bool, device=digits.device)
    given[:, :14] = True
    begin = torch.where(given, digits.repeat(times, 1, 1, 1), noise(model, times * len(digits), g))
    filled = gb.sample(model, kernel, begin, keep=False, clamp=given, generator=g, progress=False).last
    return torch.where(given, digits, -torch.ones_like(digits)), filled


def noise(model: Any, n: int, g: torch.Generator) -> Tensor:
    """Where chains begin: normals as wide as the first noise level."""
    first = model.noise_levels()[0]
    return first * torch.randn(n, 1, 28, 28, generator=g, device=first.device)


def draw_picture(drawn: Tensor, digits: Tensor, upper: Tensor, filled: Tensor, path: Path) -> None:
    """Draws on the left; on the right test digits, their upper halves, and completions."""
    figure = Figure(figsize=(11.5, 5.9), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[8, 10])
    plots.image_grid((drawn[:64, 0].cpu().clamp(-1, 1) + 1) / 2, left, columns=8)
    left.set_title("drawn from noise, not selected")
    rows = torch.cat([digits, upper, filled])[:, 0].cpu().clamp(-1, 1)
    plots.image_grid((rows + 1) / 2, right, columns=len(digits))
    right.set_title(f"test digits, their upper halves, {len(filled) // len(digits)} lower halves drawn under each")
    figure.savefig(path, dpi=100)


def from_the_zoo(chosen: argparse.Namespace) -> None:
    """The picture by the zoo's network, on the CPU."""
    out = Path(chosen.out)
    out.mkdir(parents=True, exist_ok=True)
    x, y = read(chosen.data, "test", chosen.limit)
    model, g = gb.zoo.load("mnist-ncsn"), gb.random.stream(chosen.seed, "picture")
    sigmas = model.noise_levels()
    ends = {"first": float(sigmas[0]), "last": float(sigmas[-1])}
    ladder = schedules.noise_ladder(x, steps_per_level=chosen.steps_per_level, **ends)
    kernel = kernels.AnnealedLangevin(ladder.steps_per_level, ladder.step_size, denoise=True)
    drawn = gb.sample(model, kernel, noise(model, 64, g), keep=False, generator=g).last
    digits = first_of_each(x, y)
    draw_picture(drawn, digits, *complete(model, kernel, digits, 5, g), out / "ncsn.png")


def main() -> None:
    chosen = options()
    if chosen.zoo:
        from_the_zoo(chosen)
        return
    begun = time.perf_counter()
    device, out, (x, y), (held_x, held_y) = set_up(chosen)
    fast = device == "cuda"

    # a judge that has nothing to do with the score network
    box = domains.Box((1, 28, 28), -1.0, 1.0)
    judge = train_classifier(
        ResidualNet((1, 28, 28), (32, 64, 128) if fast else (8, 8), 1, outputs=10, pool=False).to(device),
        (x, y),
        shifted,
        chosen.classifier_steps,
        domain=box,
        lr=1e-3,
        seed=chosen.seed,
    )
    judged = share_read(probabilities(judge, held_x), held_y)
    print(f"the judge reads {100 * judged:.2f} % of the test images")

    ladder = schedules.noise_ladder(x, last=chosen.last, steps_per_level=chosen.steps_per_level)
    net = models.ScoreUNet((1, 28, 28), chosen.widths, chosen.blocks, center=float(x.mean()), spread=float(x.std())).to(
        device
    )
    family = models.NoiseConditionalScore(net, domains.Real((1, 28, 28)), ladder.sigmas.to(device))
    clock = Clock(chosen.seconds, chosen.lr)
    run = fit_for(clock, family, objectives.MultiScaleDenoising(), x, chosen)
    model, seconds = run.ema.eval(), clock.elapsed()
    print(f"score network: {run.step} updates in {seconds:.0f} s, {run.step * chosen.batch / len(x):.1f} epochs")

    g = gb.random.stream(chosen.seed, "evaluate", device)
    kernel = kernels.AnnealedLangevin(ladder.steps_per_level, ladder.step_size, denoise=True)
    started = time.perf_counter()
    drawn = torch.cat(
        [
            gb.sample(model, kernel, noise(model, n, g), keep=False, generator=g, progress=False).last
            for n in [500] * (chosen.samples // 500) + [chosen.samples % 500] * (chosen.samples % 500 > 0)
        ]
    )
    if fast:
        torch.cuda.synchronize()
    sampling = time.perf_counter() - started
    p = probabilities(judge, drawn.clamp(-1, 1))
    sure, kind = p.max(1)
    save_png(x[:100], out / "data.png", 10)

    # the upper half is given, the lower is drawn; four completions of ten digits
    digits = first_of_each(held_x, held_y)
    upper, filled = complete(model, kernel, digits, 4, g)
    draw_picture(drawn, digits, upper, filled, out / "ncsn.png")
    read_as = probabilities(judge, filled.clamp(-1, 1)).argmax(1).reshape(4, -1)
    whole = probabilities(judge, digits).argmax(1)

    result = {
        "options": vars(chosen),
        "device": torch.cuda.get_device_name() if fast else "cpu",
        "updates": run.step,
        "images_a_second": run.step * chosen.batch / seconds,
        "loss": [r["loss"] for r in run.history if "loss" in r][-5:],
        "events": run.events,
        "ladder": {
            "levels": len(ladder.sigmas),
            "first": float(ladder.sigmas[0]),
            "last": float(ladder.sigmas[-1]),
            "steps_per_level": ladder.steps_per_level,
            "step_size": ladder.step_size,
        },
        "judge_test_accuracy": judged,
        "mean_confidence": float(sure.mean()),
        "confidence_of_class": [float(sure[kind == k].mean()) if bool((kind == k).any()) else None for k in range(10)],
        "share_of_class": [float((kind == k).double().mean()) for k in range(10)],
        "confidence_on_test_images": float(probabilities(judge, held_x).amax(1).mean()),
        "completions_read_as_the_digit": float((read_as == whole).double().mean()),
        "known_pixels_kept": bool(torch.equal(filled[:, :, :14], digits.repeat(4, 1, 1, 1)[:, :, :14])),
        "images_sampled_a_second": chosen.samples / sampling,
    }
    if chosen.likelihood:
        some = held_x[: chosen.likelihood]
        some = some + ladder.sigmas[-1].to(device) * torch.randn(some.shape, generator=g, device=device)
        found = partition.flow_log_likelihood(model, some, data=x, steps=32, max_steps=128, tolerance=1.0, generator=g)
        bits = lambda v: float(-(v / 784 - math.log(127.5)) / math.log(2))  # noqa: E731  # of gray values 0 to 255
        result["likelihood"] = {
            "law": f"data blurred by {chosen.last}, pixels in [-1, 1]",
            "nats": [float(found.lower), float(found.value), float(found.upper)],
            "bits_a_dimension": [bits(found.upper), bits(found.value), bits(found.lower)],
            "solver_error_nats": float(found.solver_error.mean()),
            "steps": found.steps,
            "rows": len(some),
        }
    result["seconds"] = {"training": seconds, "sampling": sampling, "everything": time.perf_counter() - begun}
    (out / "results.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({k: v for k, v in result.items() if k != "options"}, indent=1))


if __name__ == "__main__":
    main()
