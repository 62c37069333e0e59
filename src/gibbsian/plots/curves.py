"""Curves and histograms of what models say: energies, detection, calibration, importance weights, activity."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gibbsian.capabilities import ActiveModel, require
from gibbsian.drawing.style import INK, color, legend, tidy
from gibbsian.errors import ArgumentError, CapabilityError, DataError, ShapeError
from gibbsian.metrics.calibration import expected_calibration_error, reliability_curve
from gibbsian.metrics.ood import auroc, roc_curve
from gibbsian.partition.base import LogZ

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def energy_histogram(
    sets: Mapping[str, Tensor],
    ax: "Axes",
    *,
    bins: int = 50,
    clip: float = 0.0,
    label: str = "energy",
    within: tuple[float, float] | None = None,
) -> "Axes":
    """Histograms of energies, or other scores, of several sets on one axis: overlap is what cannot be told apart.

    Args:
        sets: names and numbers `(n,)`.
        bins: over the range of all sets together.
        clip: leave out this share of all numbers on either side, where a few far ones squeeze the rest.
        label: of the axis.
        within: draw this range instead; the legend says how much of a set lies beyond.

    >>> import matplotlib.figure
    >>> ax = matplotlib.figure.Figure().subplots()
    >>> ax = energy_histogram({"digits": torch.randn(100), "letters": 2 + torch.randn(100)}, ax)
    """
    if not sets or not all(isinstance(v, Tensor) and v.numel() for v in sets.values()):
        raise ArgumentError("energy_histogram needs at least one set of numbers, such as {'train': energy(x)}")
    values = {name: v.detach().flatten().double().cpu() for name, v in sets.items()}
    pool = torch.cat(list(values.values()))
    if not bool(torch.isfinite(pool).all()):
        raise DataError(f"{int((~torch.isfinite(pool)).sum())} of {len(pool)} numbers are not finite; leave them out")
    ordered = pool.sort().values
    low, high = (float(ordered[min(len(pool) - 1, max(0, round(q * (len(pool) - 1))))]) for q in (clip, 1 - clip))
    if within is not None:
        low, high = within
    edges = torch.linspace(low, max(high, low + 1e-6), bins + 1, dtype=torch.float64).numpy()
    for i, (name, v) in enumerate(values.items()):
        text = name if within is None else name + _beyond(v, *within)
        weight = [1 / len(v)] * len(v)  # shares of all, also of those beyond
        ax.hist(v.numpy(), bins=edges, weights=weight, color=color(i), alpha=0.35, linewidth=0)  # type: ignore[arg-type]
        ax.hist(v.numpy(), bins=edges, weights=weight, color=color(i), histtype="step", linewidth=1.6, label=text)  # type: ignore[arg-type]
    ax.set(xlabel=label, ylabel="share", yticks=[])
    legend(ax)
    tidy(ax, grid=None)
    ax.spines["left"].set_visible(False)
    return ax


def _beyond(values: Tensor, low: float, high: float) -> str:
    """How much of a set lies outside a range, in words for a legend."""
    shares = {"higher": values > high, "lower": values < low}
    many = {where: float(out.double().mean()) for where, out in shares.items()}
    said = [f"{100 * share:.0f} % {where}" for where, share in many.items() if share > 0.02]
    return f" ({', '.join(said)})" if said else ""


def roc(scores: Mapping[str, tuple[Tensor, Tensor]], ax: "Axes") -> "Axes":
    """ROC curves with their areas, one for each detector.

    Args:
        scores: names, and for each the scores of inside and of outside rows, higher for outside.

    >>> import matplotlib.figure
    >>> ax = matplotlib.figure.Figure().subplots()
    >>> ax = roc({"energy": (torch.tensor([0.0, 1.0]), torch.tensor([2.0, 0.5]))}, ax)
    """
    if not scores:
        raise ArgumentError("roc needs at least one detector, such as {'energy': (inside, outside)}")
    ax.plot([0, 1], [0, 1], color="0.7", linewidth=1, linestyle="dashed")
    for i, (name, (inside, outside)) in enumerate(scores.items()):
        curve, area = roc_curve(inside, outside), float(auroc(inside, outside))
        x, y = curve.false_positive_rate.cpu().numpy(), curve.true_positive_rate.cpu().numpy()
        ax.plot(x, y, color=color(i), linewidth=2, label=f"{name}  {area:.3f}", solid_joinstyle="round")
    ax.set(xlabel="inside rows taken for outside", ylabel="outside rows found", xlim=(-0.01, 1), ylim=(0, 1.01))
    ax.set_aspect("equal")
    legend(ax, loc="lower right", title="area", alignment="right")
    return tidy(ax, grid="both")


def reliability(probabilities: Tensor, labels: Tensor, ax: "Axes", *, bins: int = 15) -> "Axes":
    """Accuracy against confidence; the diagonal is calibrated, below it the model is too sure. Dots grow with rows.

    Args:
        probabilities, labels, bins: as in `metrics.reliability_curve`.

    >>> import matplotlib.figure
    >>> p = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]])
    >>> ax = reliability(p, torch.tensor([0, 1, 1]), matplotlib.figure.Figure().subplots())
    """
    curve = reliability_curve(probabilities, labels, bins)
    error = float(expected_calibration_error(probabilities, labels, bins))
    seen = (curve.rows > 0).cpu()
    c, a, n = (part.cpu()[seen] for part in curve)
    ax.plot([0, 1], [0, 1], color="0.6", linewidth=1, linestyle="dashed", zorder=1)
    ax.vlines(c.numpy(), c.numpy(), a.numpy(), color=color(1), linewidth=5, alpha=0.35, zorder=2)
    ax.plot(c.numpy(), a.numpy(), color=color(0), linewidth=1.6, zorder=3)
    ax.scatter(c.numpy(), a.numpy(), s=(15 + 150 * n / n.max()).numpy(), color=color(0), zorder=4, edgecolors="white")
    ax.set(xlabel="confidence", ylabel="accuracy", xlim=(0, 1.03), ylim=(0, 1.03))
    ax.set_aspect("equal")
    ax.text(0.03, 0.95, f"expected calibration error {error:.3f}", color=INK)
    return tidy(ax, grid="both")


def ais_weights(estimate: LogZ | Tensor, ax: "Axes", *, bins: int = 40) -> "Axes":
    """Log weights of annealed importance sampling, with the estimate of log Z and the effective number of weights.

    A narrow hill is good; an estimate far right of the hill rests on a few lucky chains.

    Args:
        estimate: what `partition.ais` returned, or log weights `(chains,)`.
        bins: of the histogram.

    >>> import matplotlib.figure
    >>> ax = ais_weights(torch.randn(100), matplotlib.figure.Figure().subplots())
    """
    log_w = estimate.diagnostics.get("log_weights") if isinstance(estimate, LogZ) else estimate
    if not isinstance(log_w, Tensor) or log_w.dim() != 1 or len(log_w) < 2:
        raise CapabilityError("weights are kept by partition.ais, reverse_ais and smc; give those, or log weights")
    log_w = log_w.detach().double().cpu()
    mean = float(torch.logsumexp(log_w, 0)) - math.log(len(log_w))
    effective = 1 / float(torch.softmax(log_w, 0).square().sum())
    finite = log_w[torch.isfinite(log_w)]
    ax.hist(finite.numpy(), bins=bins, color=color(0), alpha=0.8, edgecolor="white", linewidth=0.5)
    ax.axvline(mean, color=color(1), linewidth=2)
    if isinstance(estimate, LogZ):
        low, high = (float(end) - float(estimate.value) + mean for end in (estimate.lower, estimate.upper))
        ax.axvspan(low, high, color=color(1), alpha=0.15)
    ax.set(xlabel="log weight", ylabel="chains")
    text = f"log mean weight {mean:.2f}, {effective:.0f} of {len(log_w)} weights matter"
    ax.set_title(text, loc="left", fontsize="medium", color=INK)
    return tidy(ax)


def hidden_activity(model: Any, x: Tensor, ax: "Axes", *, bins: int = 40) -> "Axes":
    """How often each hidden unit is on over a batch: units at 0 or 1 are dead, a narrow peak at 1/2 is untrained."""
    able = require(model, ActiveModel, "plots.hidden_activity", "an RBM has it")
    with torch.no_grad():
        activity = able.hidden_mean(x).flatten(1).mean(0).cpu()
    ax.hist(activity.numpy(), bins=bins, color=color(0), alpha=0.8, edgecolor="white", linewidth=0.5)
    ax.set(xlabel="mean activity over the batch", ylabel="hidden units")
    return tidy(ax)


def free_energies(model: Any, sets: Mapping[str, Tensor], ax: "Axes", *, bins: int = 50) -> "Axes":
    """Histograms of the energies of several data sets: training and held-out data should lie on each other."""
    if not sets:
        raise ArgumentError("free_energies needs at least one data set, such as {'train': x, 'test': y}")
    with torch.no_grad():
        return energy_histogram({name: model(x) for name, x in sets.items()}, ax, bins=bins)


def free_energy_gap(steps: Sequence[float], train: Sequence[float], held_out: Sequence[float], ax: "Axes") -> "Axes":
    """Mean energy of held-out data less that of training data along a run: a growing gap is overfitting.

    The partition function cancels in the difference, so this needs no estimate of it (Hinton 2012, section 6).
    """
    if not len(steps) == len(train) == len(held_out):
        sizes = f"{len(steps)}, {len(train)} and {len(held_out)}"
        raise ShapeError(f"steps, train and held_out have {sizes} entries; they must agree")
    ax.plot(list(steps), [float(b) - float(a) for a, b in zip(train, held_out, strict=True)], color=color(0))
    ax.axhline(0.0, color="0.4", linewidth=0.8)
    ax.set(xlabel="step", ylabel="held-out less training free energy")
    return tidy(ax)
