"""Receptive fields of two restricted Boltzmann machines: Bernoulli on digits, Gaussian on patches of photographs.

    python examples/figures/receptive_fields.py --out out/figures

Each tile is what one hidden unit looks for: red where it wants more, blue where less. On digits (8×8, embedded in
scikit-learn) the filters are strokes and their absence; on whitened patches (12×12) of photographs they are local
and oriented, the most local first. They began as patches, which are spread out: the share of a filter's energy in its
best 6×6 window, a quarter of the patch, has risen. Short trainings; the examples `gaussian_rbm.py` and
`pictures.py` run longer.

Reference: Hinton 2012 (a practical guide); Melchior, Wang & Wiskott 2017 (Gaussian units).
"""

import math
from typing import Any

import drawing  # the other examples are found through it
import torch
from gaussian_rbm import SIDE, WINDOW, localization, patches
from matplotlib.figure import Figure
from pictures import digits, independent_pixels

import gibbsian as gb
from gibbsian import kernels, models, objectives, partition, plots, units
from gibbsian.drawing.style import color, tidy

COMPONENTS, HIDDEN = 49, 64  # of patches; fine components hold the noise of the photographs
STROKES = 36  # hidden units of the digits


def bernoulli(quick: bool, g: torch.Generator) -> tuple[models.RBM, float, float]:
    """A machine of the digits, its held-out log-likelihood, and that of independent pixels."""
    train, test = digits(g)
    rbm = models.RBM(64, STROKES)
    rbm.initialize_visible_bias(train)
    objective = objectives.Centered(objectives.PersistentContrastiveDivergence(kernels.Gibbs(), steps=1, chains=100))
    decaying = {"name": "sgd", "weight_decay": 0.01}  # smooth filters, for a nat of likelihood
    steps = 1600 if quick else 4000
    gb.fit(rbm, objective, train, steps=steps, batch_size=100, lr=0.05, schedule="linear", optimizer=decaying)
    log_z = partition.ais(rbm, data=train, chains=100, betas=300 if quick else 1000, generator=g)
    return rbm, float(gb.log_likelihood(rbm, test, log_z).value), independent_pixels(train, test)


def gaussian(quick: bool, g: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Receptive fields in pixels `(hidden, pixels)` of a machine of whitened patches: learned, and where they began.

    On white data the machine without weights is already a stationary point, and small weights take long to leave it.
    So they begin as patches, of length 3, with biases that make every unit rare (one component in ten of its law).
    """
    x = patches(3000 if quick else 30_000, g)
    value, vector = torch.linalg.eigh(torch.cov(x.T))
    value, vector = value.flip(0)[:COMPONENTS], vector.flip(1)[:, :COMPONENTS]
    to_white = (vector / value.sqrt()).float()
    white = x.float() @ to_white
    rbm = models.RBM(units.Gaussian(COMPONENTS), units.Bernoulli(HIDDEN))
    chosen = white[torch.randperm(len(white), generator=g)[:HIDDEN]]
    with torch.no_grad():
        rbm.weight.copy_(3 * torch.nn.functional.normalize(chosen, dim=1).T)
        rbm.hidden_bias.fill_(math.log(0.1) - 3**2 / 2)

    def fields() -> torch.Tensor:
        return (to_white @ (rbm.weight.detach() / rbm.visible.sigma.detach()[:, None])).T

    begun = fields()
    gb.fit(
        rbm,
        objectives.ContrastiveDivergence(kernels.Gibbs(), steps=1),
        white,
        steps=300 if quick else 12_000,
        batch_size=100,
        lr=0.05,
        optimizer={"name": "sgd", "momentum": 0.9},
        schedule="linear",
    )
    return fields(), begun


def compute(quick: bool) -> tuple[dict[str, Any], Any]:
    g = gb.random.stream(0, "receptive fields")
    of_digits, held_out, independent = bernoulli(quick, g)
    fields, begun = gaussian(quick, g)
    local, before = localization(fields), localization(begun)
    pairs = HIDDEN * (HIDDEN - 1) / 2
    direction = torch.nn.functional.normalize(fields, dim=1)
    numbers = {
        "digits: held-out log-likelihood, nats (AIS)": held_out,
        "digits: independent pixels, nats": independent,
        "patches: share in the best window, median": float(local.median()),
        "patches: the same before training (patches)": float(before.median()),
        "patches: |cosine| of two filters, mean": float((direction @ direction.T).triu(1).abs().sum() / pairs),
        "patches: filters above 0.6": float((local > 0.6).float().mean()),
    }
    return numbers, (of_digits, fields, local, before)


def draw(numbers: dict[str, Any], parts: Any) -> Figure:
    of_digits, fields, local, before = parts
    figure = drawing.canvas(12.5, 4.6)
    axes = figure.subplots(1, 3, width_ratios=[1.2, 1.2, 1])
    plots.filters(of_digits, axes[0], shape=(8, 8), count=STROKES).set_title("")
    drawing.title(
        axes[0],
        f"Bernoulli RBM on digits, strongest first\nheld out {numbers['digits: held-out log-likelihood, nats (AIS)']:.1f} nats "
        f"(independent pixels {numbers['digits: independent pixels, nats']:.1f})",
    )
    order = local.argsort(descending=True)
    plots.image_grid(fields[order], axes[1], shape=(SIDE, SIDE), symmetric=True)
    drawing.title(axes[1], "Gaussian RBM on whitened patches\nmost local first")
    for values, shade, name in ((local, color(1), "learned"), (before, color(6), "before: random patches")):
        axes[2].hist(values.numpy(), bins=24, range=(0.2, 1), color=shade, alpha=0.6, label=name)
    axes[2].set(xlabel="share", ylabel="hidden units")
    axes[2].legend(frameon=False)
    drawing.title(tidy(axes[2]), f"share of a patch filter's energy\nin its best {WINDOW}×{WINDOW} window")
    return figure


if __name__ == "__main__":
    drawing.main(__doc__, "receptive_fields", compute, draw)
