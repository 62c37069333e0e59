"""What the lab knows by heart, made anew: the digits as bits, and a machine trained on them with their labels.

    python -m gibbsian.app.lab.make_weights

writes `page/models/digits.json`, `page/models/digits-rbm.json` and, of the zoo, `page/models/zoo-digits-rbm.json`. Machines of your own go there in the same form, by `machine_file`, and
into the list of `page/sections/digits.js`.
"""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import gibbsian as gb
from gibbsian.app.lab.serve import page

TRAIN = 1500  # rows that are learned from; the others tell how well labels are guessed


def digits() -> tuple[Tensor, Tensor]:
    """Scikit-learn's digits as bits (1797, 64), a pixel on where it is above half, and their labels.

    >>> digits()[0].mean(), digits()[1][:3]
    (tensor(0.2929), tensor([0, 1, 2]))
    """
    data = gb.data.load("digits")
    x, y = torch.as_tensor(data.train.x).double(), data.train.y
    return (x.flatten(1) > x.max() / 2).float(), torch.as_tensor(y).long()


def train(hidden: int = 80, epochs: int = 400) -> tuple[gb.models.RBM, dict[str, Any]]:
    """A machine over pixels and label together, by centered persistent contrastive divergence."""
    x, y = digits()
    rows = torch.cat([x, torch.nn.functional.one_hot(y, 10).float()], 1)
    rbm = gb.models.RBM(gb.units.Joined(gb.units.Bernoulli(64), gb.units.Softmax(1, 10)), hidden)
    rbm.initialize_visible_bias(rows[:TRAIN])
    objective = gb.objectives.Centered(
        gb.objectives.PersistentContrastiveDivergence(gb.kernels.Gibbs(), steps=5, chains=100)
    )
    gb.fit(
        rbm,
        objective,
        rows[:TRAIN],
        epochs=epochs,
        seed=0,
        batch_size=100,
        lr=0.3,
        schedule="linear",
        optimizer="sgd",
        ema=0.999,
    )
    correct = guess(rbm, x[TRAIN:]).eq(y[TRAIN:]).float().mean()
    return rbm, {"rows": TRAIN, "correct": round(float(correct), 3)}


def guess(rbm: gb.models.RBM, x: Tensor) -> Tensor:
    """The label of least free energy for every row."""
    energies = []
    for label in range(10):
        one_hot = torch.nn.functional.one_hot(torch.full((len(x),), label), 10).float()
        energies.append(rbm(torch.cat([x, one_hot], 1)).detach())
    return torch.stack(energies, 1).argmin(1)


def half(t: Tensor) -> str:
    """Numbers in half precision, little-endian, as base64.

    >>> half(torch.tensor([1.0, -2.0]))
    'ADwAwA=='
    """
    return base64.b64encode(t.detach().flatten().numpy().astype("<f2").tobytes()).decode()


def machine_file(rbm: gb.models.RBM, pixels: int, **facts: Any) -> dict[str, Any]:
    """A machine of `pixels` binary units, the rest of its visible layer a label, as the lab reads it."""
    label = {"labelWeight": half(rbm.weight[pixels:]), "labelBias": half(rbm.visible_bias[pixels:])}
    return {
        **facts,
        "visible": pixels,
        "hidden": rbm.weight.shape[1],
        "classes": len(rbm.weight) - pixels,
        "weight": half(rbm.weight[:pixels]),
        "visibleBias": half(rbm.visible_bias[:pixels]),
        "hiddenBias": half(rbm.hidden_bias),
        **(label if len(rbm.weight) > pixels else {}),
    }


def main(folder: Path | None = None) -> None:
    """Write all files."""
    folder = folder or page() / "models"
    x, y = digits()
    bits = base64.b64encode(np.packbits(x.numpy().astype(np.uint8), axis=1).tobytes()).decode()
    about = "scikit-learn's digits, 8 × 8, one bit a pixel, row by row from the highest bit"
    rows = {"about": about, "shape": [8, 8], "rows": len(x), "bits": bits, "labels": "".join(map(str, y.tolist()))}
    (folder / "digits.json").write_text(json.dumps(rows) + "\n")
    rbm, facts = train()
    about = f"a Boltzmann machine of 64 pixels, ten labels and {rbm.weight.shape[1]} hidden units, trained on digits"
    file = machine_file(rbm, 64, name="digits", about=about, shape=[8, 8], trained=facts)
    (folder / "digits-rbm.json").write_text(json.dumps(file) + "\n")
    print(facts)
    write_zoo(folder)


def write_zoo(folder: Path) -> None:
    """The machine of the zoo that is small enough for a page."""
    card, rbm = gb.zoo.card("digits-rbm"), gb.zoo.load("digits-rbm")
    file = machine_file(rbm, 64, name="digits-rbm of the zoo", about=card.about, shape=[8, 8])
    (folder / "zoo-digits-rbm.json").write_text(json.dumps(file) + "\n")


if __name__ == "__main__":
    main()
