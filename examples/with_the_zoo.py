"""What trained energies are for: seven things to do with models of the zoo, a picture each, on a CPU in minutes.

    GIBBSIAN_DATA=folder python examples/with_the_zoo.py --out out/zoo [classes composition inpainting ...]

classes       draws of a class: a column a garment                                      hybrid.generate, zoo.chains
composition   3 and 8 at once: the sum of two energies is the product of their laws     joint.given(3) + joint.given(8)
inpainting    the lower half of a digit, drawn given the upper one                      sample(..., clamp=)
purification  attacked digits, washed by steps towards lower energy                     hybrid.refine
rejection     declined by energy: what is no digit at all, though the classifier is sure   hybrid.rejecting
ratio         half digits, by density alone and against a background of pixels        metrics.ood_scores(method="ratio")
band          the way of lowest energy between two digits, and its barrier              elastic_band

The folder holds mnist/ and fashion_mnist/. Writes a picture each, and results.json.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from images import read
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import functional as F

import gibbsian as gb
from gibbsian import hybrid, kernels, metrics, plots, zoo
from gibbsian.energies.bases import Factorized, base_bias

KERNEL = kernels.ShortRunLangevin(2.0, 0.01, 0.1, last=0.05, cycle=20)  # that the joint energies were trained with


def grid(rows: dict[str, Tensor], path: Path) -> None:
    """Rows of images `(count, 28·28)` with names."""
    canvas = Figure(figsize=(7, 0.9 * len(rows)), layout="constrained")
    axes = canvas.subplots(len(rows), 1, squeeze=False)[:, 0]
    for axis, (name, images) in zip(axes, rows.items(), strict=True):
        plots.image_grid(images.detach().reshape(-1, 28, 28), axis, columns=len(images))
        axis.set_title(name, fontsize=8, loc="left", pad=2)
    canvas.savefig(path, dpi=90)


def classes(path: Path, g: torch.Generator) -> dict[str, Any]:
    joint, pool = zoo.load("fashion-jem"), zoo.chains("fashion-jem")
    labels = torch.arange(10).repeat(2)
    x = hybrid.generate(joint, labels, KERNEL, 20, pool=pool, generator=g)
    grid({"draws": x[:10], "": x[10:]}, path)
    with torch.no_grad():
        return {
            "read as their class by the model itself": float(
                (joint.class_log_prob(x).argmax(1) == labels).double().mean()
            )
        }


def composition(path: Path, g: torch.Generator) -> dict[str, Any]:
    joint, pool = zoo.load("mnist-jem"), zoo.chains("mnist-jem")
    three, eight = joint.given(3), joint.given(8)
    both = three + eight  # exp(-E₃ - E₈): what is a 3 and an 8
    begin = zoo.begin(joint, pool, torch.tensor([3, 8] * 5))
    draw = lambda energy: gb.sample(energy, KERNEL, begin, steps=100, keep=False, generator=g, progress=False).last  # noqa: E731
    made = {"begun at": begin, "3": draw(three), "8": draw(eight), "3 and 8": draw(both)}
    grid(made, path)
    with torch.no_grad():
        return {name: {"E3": float(three(x).mean()), "E8": float(eight(x).mean())} for name, x in made.items()}


def inpainting(path: Path, g: torch.Generator) -> dict[str, Any]:
    rbm, (x, y) = zoo.load("mnist-rbm"), read("mnist", "test", 500)
    digits = torch.stack([x[y == k][0] for k in range(10)]).flatten(1).gt(0).float()
    known = (torch.arange(784) < 392).expand_as(digits)
    start = torch.where(known, digits, (torch.rand(digits.shape, generator=g) < 0.2).float())
    rows = {"digit": digits, "known": torch.where(known, digits, 0.5)}
    for k in ("drawn", "again"):
        last = gb.sample(
            rbm, kernels.Gibbs(), start, steps=1000, clamp=known, keep=False, generator=g, progress=False
        ).last
        rows[k] = torch.where(known, digits, rbm.visible_mean(rbm.hidden_mean(last)))
    grid(rows, path)
    wrong = torch.stack([(rows[k] - digits)[:, 392:].square().mean() for k in ("drawn", "again")])
    return {"mean square of the hidden half": float(wrong.mean().detach())}


def attacked(model: Any, x: Tensor, y: Tensor, epsilon: float, steps: int = 10) -> Tensor:
    """Projected gradient ascent on the cross-entropy, every pixel within ±epsilon."""
    moved = x
    for _ in range(steps):
        moved = moved.detach().requires_grad_()
        (slope,) = torch.autograd.grad(F.cross_entropy(model.logits(moved), y), moved)
        moved = torch.clamp(moved + 2.5 * epsilon / steps * slope.sign(), x - epsilon, x + epsilon).clamp(-1, 1)
    return moved.detach()


def purification(path: Path, g: torch.Generator) -> dict[str, Any]:
    joint, (x, y) = zoo.load("mnist-jem"), read("mnist", "test", 40)
    right = lambda images: float((joint.class_log_prob(images).argmax(1) == y).double().mean())  # noqa: E731
    with torch.no_grad():
        found = {"clean": right(x)}
    bad = attacked(joint, x, y, 0.5)
    washed = hybrid.refine(joint, bad, KERNEL, 20, generator=g)
    with torch.no_grad():
        found |= {
            "attacked by 0.5 of 2": right(bad),
            "washed by 20 steps": right(washed),
            "clean, washed": right(hybrid.refine(joint, x, KERNEL, 20, generator=g)),
        }
    grid({"clean": x[:10], "attacked": bad[:10], "washed": washed[:10]}, path)
    return found


def rejection(path: Path, g: torch.Generator) -> dict[str, Any]:
    joint, (x, y), (other, _) = zoo.load("mnist-jem"), read("mnist", "test", 600), read("fashion", "test", 150)
    held, new, truth = x[:300], x[300:], y[300:]
    canvas = Figure(figsize=(6, 3), layout="constrained")
    axis, found = canvas.subplots(), {}
    for by in ("confidence", "energy"):
        kept = []
        for coverage in (0.8, 0.9, 0.98):
            declining = hybrid.rejecting(joint, held, coverage=coverage, by=by)
            guess, strange = declining(new), declining(other)
            seen = guess >= 0
            kept.append(
                (
                    float(seen.double().mean()),
                    float((guess[seen] == truth[seen]).double().mean()),
                    float((strange >= 0).double().mean()),
                )
            )
        found[by] = [
            {"coverage asked for": c, "digits kept": a, "right of them": b, "garments taken for digits": d}
            for c, (a, b, d) in zip((0.8, 0.9, 0.98), kept, strict=True)
        ]
        axis.plot([k[0] for k in kept], [k[2] for k in kept], "o-", label=f"declined by {by}")
    axis.set(xlabel="digits that are kept", ylabel="garments that are taken for digits", ylim=(-0.02, 1))
    axis.legend(loc="center right")
    canvas.savefig(path, dpi=90)
    return found


def ratio(path: Path, g: torch.Generator) -> dict[str, Any]:
    rbm = zoo.load("mnist-rbm")
    digits, garments = (read(name, "test", 1000)[0].flatten(1).gt(0).float() for name in ("mnist", "fashion"))
    halves = torch.where(torch.arange(784) < 392, digits, 0.0)  # little ink is cheap, whatever it draws
    train = read("mnist", "train", 5000)[0].flatten(1).gt(0).float()
    background = Factorized(rbm.domain, base_bias(rbm.domain, train))  # pixels alone
    canvas = Figure(figsize=(7, 2.6), layout="constrained")
    axes, found = canvas.subplots(1, 2), {}
    for axis, (name, how) in zip(axes, {"energy": {}, "ratio": {"background": background}}.items(), strict=True):
        scores = [metrics.ood_scores(rbm, rows, name, **how) for rows in (digits, halves, garments)]
        found[name] = {
            "halves": float(metrics.auroc(*scores[:2])),
            "garments": float(metrics.auroc(scores[0], scores[2])),
        }
        axis.hist([s.numpy() for s in scores[:2]], bins=40, label=["digits", "their upper halves"], density=True)
        axis.set(title=f"{name}: AUROC {found[name]['halves']:.3f}", yticks=[])
    axes[0].legend()
    canvas.savefig(path, dpi=90)
    return found


def band(path: Path, g: torch.Generator) -> dict[str, Any]:
    joint, pool = zoo.load("mnist-jem"), zoo.chains("mnist-jem")
    start, end = zoo.begin(joint, pool, torch.tensor([4, 9]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gb.errors.ConvergenceWarning)
        way = gb.elastic_band(joint, start, end, images=8, steps=150, climb=False)
    line = torch.stack([torch.lerp(start, end, t) for t in torch.linspace(0, 1, 10)])
    with torch.no_grad():
        straight = joint(line)
    grid({"straight": line, "lowest": way.x}, path)
    above = lambda e: float(e.max() - max(e[0], e[-1]))  # noqa: E731
    return {
        "highest energy above the ends": {"straight line": above(straight), "band": above(way.energy)},
        "energies": way.energy.tolist(),
        "straight": straight.tolist(),
    }


THINGS: dict[str, Callable[[Path, torch.Generator], dict[str, Any]]] = {
    f.__name__: f for f in (classes, composition, inpainting, purification, rejection, ratio, band)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("things", nargs="*", default=[], help="which of them; all by default")
    parser.add_argument("--out", type=Path, default=Path("out/zoo"))
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    file = chosen.out / "results.json"
    results = json.loads(file.read_text()) if file.exists() else {}
    for name in chosen.things or THINGS:
        begun = time.perf_counter()
        found = THINGS[name](chosen.out / f"{name}.png", torch.Generator().manual_seed(0))
        results[name] = found | {"seconds": round(time.perf_counter() - begun, 1)}
        print(name, json.dumps(results[name]), flush=True)
        file.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
