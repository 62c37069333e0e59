"""Reading noisy sequences of digits: a chain of labels against single labels, exact search against beam and ICM.

    python examples/sequence_tagging.py --out out/sequence_tagging

Sequences of eight handwritten digits (scikit-learn's, 8 × 8 pixels, test images never seen in training) follow a rule:
the next digit is most often this one plus 3 (mod 10). Heavy noise makes single images hard to read. Compared are single
labels (the chain without transitions), the chain learned by its exact likelihood, and the same chain learned without any
partition function: by ranking and by pseudo-likelihood. Decoding is Viterbi, which is exact, beam search and ICM. Prints a
table and writes results.json and a picture.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch import Tensor, nn

import gibbsian as gb
from gibbsian import energies, objectives
from gibbsian.training import Logging

LENGTH, CLASSES = 8, 10


class Emission(nn.Module):
    """The same small network for every image: `(n, length, 64)` → `(n, length, classes)`."""

    def __init__(self) -> None:
        super().__init__()
        self.net = energies.MLP(64, (64,), CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x.flatten(0, 1)).unflatten(0, x.shape[:2])


def sequences(count: int, part: slice, noise: float, seed: int) -> tuple[Tensor, Tensor]:
    """Noisy images `(count, LENGTH, 64)` and labels `(count, LENGTH)`, from a part of the digits."""
    digits = load_digits()
    images, labels = digits.data[part] / 16, digits.target[part]
    rng = np.random.default_rng(seed)
    y = np.empty((count, LENGTH), dtype=int)
    y[:, 0] = rng.integers(10, size=count)
    for t in range(1, LENGTH):
        rule = (y[:, t - 1] + 3) % 10
        y[:, t] = np.where(rng.uniform(size=count) < 0.8, rule, rng.integers(10, size=count))
    rows = [np.flatnonzero(labels == k) for k in range(10)]
    chosen = np.vectorize(lambda k: rng.choice(rows[k]))(y)
    x = images[chosen] + noise * rng.normal(size=(count, LENGTH, 64))
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--noise", type=float, default=0.8)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--out", default="out/sequence_tagging")
    options = parser.parse_args()
    (x, labels), (x_test, y_test) = (
        sequences(3000, slice(0, 1200), options.noise, 0),
        sequences(1000, slice(1200, None), options.noise, 1),
    )
    domain = gb.domains.Categorical(LENGTH, classes=CLASSES)
    y, seen = domain.one_hot(labels), domain.one_hot(y_test)

    def judged(model: energies.ChainField, decoded: Tensor) -> dict[str, float]:
        right = domain.labels(decoded) == y_test
        return {"label_accuracy": float(right.float().mean()), "sequence_accuracy": float(right.all(1).float().mean())}

    result: dict[str, dict[str, float]] = {}
    principles = {
        "single labels": objectives.ExactLikelihood(),
        "chain, exact likelihood": objectives.ExactLikelihood(),
        "chain, pseudo-likelihood": objectives.PseudoLikelihood(),
        "chain, ranking (64 candidates)": objectives.RankingContrastive(objectives.Flips(0.3), candidates=64),
    }
    for name, principle in principles.items():
        model = energies.ChainField(Emission(), LENGTH, CLASSES)
        if name == "single labels":
            model.transition.requires_grad_(False)
        gb.fit(model, objectives.Conditional(principle), (x, y), steps=options.steps, batch_size=100, lr=5e-3,
               schedule="cosine", optimizer={"name": "adamw", "weight_decay": 0.1}, logging=Logging(every=options.steps))  # fmt: skip
        with torch.no_grad():
            held_out = float(model.log_prob(x_test, seen).mean()) / LENGTH
        result[name] = {"log_likelihood_per_label": held_out, **judged(model, model.mode(x_test))}
        if name == "chain, exact likelihood":
            exact = model
    g = gb.random.stream(0, "starts")
    best = exact.pair_energy(x_test, exact.mode(x_test))
    searches = {
        "Viterbi": exact.mode(x_test),
        "beam of 1": gb.predict(exact, x_test, method="beam", width=1),
        "beam of 4": gb.predict(exact, x_test, method="beam", width=4),
        "beam of 16": gb.predict(exact, x_test, method="beam", width=16),
        "ICM, 4 starts": gb.predict(exact, x_test, method="icm", starts=4, generator=g),
    }
    for name, found in searches.items():
        gap = (exact.pair_energy(x_test, found) - best).detach()
        optimal = float((gap < 1e-3).float().mean())
        result[f"decoded by {name}"] = {
            "mean_energy_gap": float(gap.mean()),
            "optimal": optimal,
            **judged(exact, found),
        }
    for name, row in result.items():
        print(f"{name:34s}", "  ".join(f"{key} {value:.3f}" for key, value in row.items()))
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.json").write_text(json.dumps({"options": vars(options), "results": result}, indent=1) + "\n")
    picture(x_test[:6], y_test[:6], domain.labels(exact.mode(x_test[:6])), result).savefig(
        out / "sequence_tagging.png", dpi=110
    )


def picture(x: Tensor, truth: Tensor, read: Tensor, result: dict[str, dict[str, float]]) -> Figure:
    """A few sequences as the chain reads them, and how often all eight labels are right."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(1.2, 1))
    for row, images, true, found in zip(left.subplots(len(x), LENGTH), x, truth, read, strict=True):
        for ax, image, a, b in zip(row, images.reshape(LENGTH, 8, 8), true.tolist(), found.tolist(), strict=True):
            ax.imshow(image, cmap="gray_r")
            ax.set_title(str(b), fontsize=9, pad=1, color="black" if a == b else "red")
            ax.axis("off")
    left.suptitle("noisy digits, and how the chain reads them (red: wrong)")
    rows = {name: row for name, row in result.items() if "decoded" not in name}
    ax = right.subplots()
    ax.barh(list(rows), [row["sequence_accuracy"] for row in rows.values()], color="0.4")
    ax.invert_yaxis()
    ax.set(title="all eight labels right", xlabel="share of test sequences")
    return figure


if __name__ == "__main__":
    main()
