"""Labels that depend on each other: what an energy over all of them knows, and independent classifiers do not.

    python examples/multi_label.py --out out/multi_label

Seven properties of handwritten digits (scikit-learn's): even, prime, above four, a square, has a closed loop, has a
straight stroke, divisible by three. Only ten of the 128 combinations occur. The images are covered by noise, so each
property alone is uncertain, but together they must fit one digit. Compared are independent logistic classifiers and a
`LabelField` with the same network, learned by exact likelihood, pseudo-likelihood, ranking and contrastive divergence:
held-out log-likelihood of all labels, share of images with all labels right, and calibration of the probability that the
model gives to its own answer. Prints a table and writes results.json and a picture.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch import Tensor

import gibbsian as gb
from gibbsian import energies, kernels, objectives
from gibbsian.training import Logging

PROPERTIES = {
    "even": (0, 2, 4, 6, 8),
    "prime": (2, 3, 5, 7),
    "above four": (5, 6, 7, 8, 9),
    "square": (0, 1, 4, 9),
    "closed loop": (0, 6, 8, 9),
    "straight stroke": (1, 2, 4, 5, 7),
    "divisible by three": (0, 3, 6, 9),
}


def labeled(part: slice, noise: float, seed: int, copies: int = 1) -> tuple[Tensor, Tensor]:
    digits = load_digits()
    images, target = np.repeat(digits.data[part] / 16, copies, 0), np.repeat(digits.target[part], copies)
    x = images + noise * np.random.default_rng(seed).normal(size=images.shape)
    y = np.stack([np.isin(target, members) for members in PROPERTIES.values()], 1)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--noise", type=float, default=0.6)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--out", default="out/multi_label")
    options = parser.parse_args()
    x, y = labeled(slice(0, 1200), options.noise, 0, copies=5)
    x_test, y_test = labeled(slice(1200, None), options.noise, 1, copies=3)
    n = len(PROPERTIES)
    principles: dict[str, objectives.Objective] = {
        "independent classifiers": objectives.ExactLikelihood(),
        "field, exact likelihood": objectives.ExactLikelihood(),
        "field, pseudo-likelihood": objectives.PseudoLikelihood(),
        "field, ranking": objectives.RankingContrastive("marginals", candidates=32),
        "field, contrastive divergence": objectives.ContrastiveDivergence(kernels.SiteGibbs(), steps=3),
    }
    result: dict[str, dict[str, float]] = {}
    for name, principle in principles.items():
        model = energies.LabelField(energies.MLP(64, (64,), n), n)
        if name == "independent classifiers":
            model.weight.requires_grad_(False)
        gb.fit(model, objectives.Conditional(principle), (x, y), steps=options.steps, batch_size=200, lr=5e-3,
               schedule="cosine", optimizer={"name": "adamw", "weight_decay": 0.1}, logging=Logging(every=options.steps))  # fmt: skip
        with torch.no_grad():
            log_p = model.log_prob(x_test, y_test)
            answer = gb.predict(model, x_test)
            sure = model.log_prob(x_test, answer).exp()
        right = (answer == y_test).all(1)
        result[name] = {
            "held_out_log_likelihood": float(log_p.mean()),
            "standard_error": float(log_p.std() / len(log_p) ** 0.5),
            "all_labels_right": float(right.float().mean()),
            "each_label_right": float((answer == y_test).float().mean()),
            "mean_confidence": float(sure.mean()),
            "impossible_answers": float(1 - _possible(answer).float().mean()),
        }
        if name == "field, exact likelihood":
            couplings = model.coupling().detach()
    for name, row in result.items():
        print(f"{name:30s}", "  ".join(f"{key} {value:.3f}" for key, value in row.items()))
    names = list(PROPERTIES)
    strongest = couplings.triu(1).abs().flatten().argsort(descending=True)[:5]
    for k in strongest.tolist():
        i, j = divmod(k, n)
        print(f"{names[i]} and {names[j]}: {float(couplings[i, j]):+.2f}")
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.json").write_text(json.dumps({"options": vars(options), "results": result}, indent=1) + "\n")
    picture(couplings, result).savefig(out / "multi_label.png", dpi=110)


def picture(couplings: Tensor, result: dict[str, dict[str, float]]) -> Figure:
    """What labels say of each other, and what that is worth."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    most = float(couplings.abs().max())
    shown = left.imshow(couplings, cmap="RdBu", vmin=-most, vmax=most)
    names = [name.replace("_", " ") for name in PROPERTIES]
    left.set_xticks(range(len(names)), names, rotation=45, ha="right")
    left.set_yticks(range(len(names)), names)
    left.set_title("couplings of the field")
    figure.colorbar(shown, ax=left, shrink=0.8)
    right.barh(list(result), [row["all_labels_right"] for row in result.values()], color="0.4")
    right.invert_yaxis()
    right.set(title="all seven labels right", xlabel="share of test images", xlim=(0, 1))
    return figure


def _possible(y: Tensor) -> Tensor:
    """Whether some digit has exactly these properties."""
    table = torch.tensor([[float(k in members) for members in PROPERTIES.values()] for k in range(10)])
    return (y[:, None] == table).all(2).any(1)


if __name__ == "__main__":
    main()
