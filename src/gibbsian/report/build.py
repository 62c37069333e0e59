"""Gathering a run folder into one page."""

import dataclasses
import json
import math
import shlex
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import gibbsian
from gibbsian import plots
from gibbsian.data import Prepared
from gibbsian.diagnostics import summarise
from gibbsian.domains import Discrete
from gibbsian.energy import BoundedModel, Energy
from gibbsian.errors import GibbsianError
from gibbsian.evaluation import evaluate
from gibbsian.partition.base import placement
from gibbsian.plots.style import colour
from gibbsian.random import stream
from gibbsian.recipe import Recipe
from gibbsian.report import figures
from gibbsian.runs import Drawn, draw, open_run, snapshots_of, start_of, trained
from gibbsian.training import checkpoint
from gibbsian.training.log import read_log

__all__ = ["write_report"]

_CURVES = {
    "loss": "the objective, averaged between two records",
    "validation_loss": "the objective on held-out rows",
    "validation_energy_gap": "mean energy of held-out less that of training rows: a growing gap is overfitting",
    "validation_error": "share of held-out rows given a wrong class",
    "gap": "energy of data less that of the model's samples",
    "accuracy": "share of right answers while training",
    "gradient_norm": "length of the gradient",
    "acceptance": "share of moves that the sampler accepts",
    "lr": "learning rate",
}


def write_report(folder: Path, *, fresh: bool = False, progress: bool | None = None) -> tuple[Path, dict[str, Any]]:
    """Write `report.html` into a run folder; returns its path and the evaluation it shows.

    Args:
        folder: a run folder of the command line.
        fresh: judge the model anew even if `evaluation.json` is there.
        progress: show bars.
    """
    recipe, prepared = open_run(folder)
    energy = trained(folder, recipe)
    drawn = final_samples(recipe, prepared, energy, progress=progress)
    path = folder / "evaluation.json"
    if path.exists() and not fresh:
        found = json.loads(path.read_text())
    else:
        found = evaluate_run(folder, recipe, prepared, energy, drawn, progress=progress)
    page = _page(folder, recipe, prepared, energy, drawn, found)
    target = folder / "report.html"
    new = target.with_suffix(".new")
    new.write_text(page, encoding="utf-8")
    new.replace(target)
    return target, found


def evaluate_run(
    folder: Path, recipe: Recipe, prepared: Prepared, energy: Any, drawn: Drawn | None, *, progress: bool | None = None
) -> dict[str, Any]:
    """Judge the model of a run and write `evaluation.json`."""
    known = json.loads((folder / "command.json").read_text())
    found = evaluate(
        energy,
        prepared,
        recipe.evaluate,
        seed=recipe.fit["seed"],
        samples=drawn,
        learned_log_z=known.get("log_z"),
        progress=progress,
    )
    found["step"] = checkpoint.read_latest(folder, keys=("step",))["step"]
    (folder / "evaluation.json").write_text(json.dumps(found, indent=1))
    return found


def final_samples(recipe: Recipe, prepared: Prepared, energy: Any, *, progress: bool | None = None) -> Drawn | None:
    """Samples of the trained model for the report, or None where it cannot be sampled."""
    spec = recipe.sample
    generator = stream(recipe.fit["seed"], "report", placement(energy)[1])
    plane = math.prod(energy.domain.shape) <= 64 and not isinstance(energy.domain, Discrete)
    try:
        return draw(
            energy,
            1000 if plane else spec.show,
            generator=generator,
            kernel=spec.kernel,
            objective=recipe.objective,
            steps=spec.steps,
            start=start_of(recipe, prepared),
            keep=True,
            progress=progress,
        )
    except GibbsianError:
        return None


# --- the page -------------------------------------------------------------------------------------


def _page(
    folder: Path, recipe: Recipe, prepared: Prepared, energy: Any, drawn: Drawn | None, found: dict[str, Any]
) -> str:
    history = read_log(folder)
    known = json.loads((folder / "command.json").read_text())
    environment = json.loads((folder / "environment.json").read_text())
    events = [record for record in history if "event" in record]
    shape = _image_shape(recipe, prepared)
    context: dict[str, Any] = {
        "title": recipe.name,
        "about": recipe.about,
        "cards": _cards(energy, found, known, events),
        "facts": _facts(recipe, prepared, energy, found, known),
        "model_text": repr(energy),
        "why_no_likelihood": found.get("why_no_likelihood"),
        "likelihood": _likelihood(found),
        "warnings": found.get("warnings", []),
        "curves": _curves(history, events),
        "curves_text": _speed(history),
        "events": events,
        "histogram": _histogram(energy, prepared, drawn),
        "classes": _classes(energy, prepared, found, recipe.evaluate.rows),
        "outside": _outside(found),
        "chains": _chains(drawn),
        "filters": _filters(energy, prepared, shape),
        "command": _command(recipe, known),
        "recipe": recipe.text,
        "environment": list(environment.items()),
        "version": gibbsian.__version__,
        "made": time.strftime("%d %B %Y, %H:%M"),
        **_samples(folder, prepared, energy, drawn, shape),
    }
    names = {
        "what": "What was trained",
        "likelihood": "Likelihood",
        "samples": "Samples",
        "filters": "Filters",
        "curves": "Curves",
        "energies": "Energies",
        "classes": "Classes and outsiders",
        "chains": "Chains",
        "again": "Do it again",
    }
    there = {
        "likelihood": context["likelihood"] or context["why_no_likelihood"],
        "samples": context["samples"] or context["plane"] or context["strip"] or context["marginals"],
        "filters": context["filters"],
        "energies": context["histogram"],
        "classes": context["classes"] or context["outside"],
        "chains": context["chains"],
    }
    context["contents"] = [(key, name) for key, name in names.items() if there.get(key, True)]
    return render("run.html.j2", context)


def render(template: str, context: dict[str, Any]) -> str:
    """A template of the package, filled in; a name that it needs and is not there is an error."""
    import jinja2

    loader = jinja2.PackageLoader("gibbsian", "report")
    return (
        jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
        .get_template(template)
        .render(context)
    )


def brief(thing: Any) -> str:
    """A dataclass with the arguments that are not its defaults; anything else as Python writes it."""
    if not dataclasses.is_dataclass(thing) or isinstance(thing, type):
        if isinstance(thing, tuple | list):
            return "[" + ", ".join(brief(part) for part in thing) + "]"
        return repr(thing)
    shown = []
    for field in dataclasses.fields(thing):
        value = getattr(thing, field.name)
        if "tensor(" in repr(value) or (field.default is not dataclasses.MISSING and value == field.default):
            continue
        shown.append(f"{field.name} {brief(value)}" if not isinstance(value, str) else f"{field.name} {value}")
    return type(thing).__name__ + (f" ({', '.join(shown)})" if shown else "")


def duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def _count(n: int) -> str:
    for size, name in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if n >= size:
            return f"{n / (1e3 if name == ' k' else size):.3g}{name}"
    return str(n)


def _cards(energy: nn.Module, found: dict[str, Any], known: dict[str, Any], events: list[Any]) -> list[dict[str, Any]]:
    cards = []
    if "likelihood" in found:
        ll = found["likelihood"]
        upper = "open" if ll["upper"] is None else f"{ll['upper']:.2f}"
        what = "test" if found["part"] == "test" else found["part"]
        cards.append(
            {
                "hero": True,
                "value": f"{ll['value']:.2f}",
                "label": f"nats a {what} row, in [{ll['lower']:.2f}, {upper}]",
            }
        )
    if "classes" in found:
        cards.append(
            {
                "hero": "likelihood" not in found,
                "value": f"{100 * found['classes']['accuracy']:.2f} %",
                "label": f"accuracy, {found['part']} rows",
            }
        )
    if "anomalies" in found:
        cards.append({"hero": False, "value": f"{found['anomalies']['auroc']:.3f}", "label": "AUROC of anomalies"})
    parameters = sum(p.numel() for p in energy.parameters())
    cards += [
        {"hero": False, "value": duration(known.get("seconds", 0.0)), "label": "training time"},
        {"hero": False, "value": f"{found['step']:,}".replace(",", " "), "label": "updates"},
        {"hero": False, "value": _count(parameters), "label": "parameters"},
        {"hero": False, "value": str(len(events)), "label": "guard events"},
    ]
    return cards


def _facts(
    recipe: Recipe, prepared: Prepared, energy: Any, found: dict[str, Any], known: dict[str, Any]
) -> list[tuple[str, str]]:
    data = prepared.data
    parts = ", ".join(f"{len(rows)} {name}" for name, rows in data.parts.items())
    steps = " → ".join(brief(step) for step in prepared.steps) or "as it is"
    length = f"{recipe.fit['epochs']} epochs" if recipe.fit["epochs"] else f"{recipe.fit['steps']} steps"
    how = [f"{recipe.fit['optimiser'] or 'adam'}, learning rate {recipe.fit['lr']}"]
    how += [str(recipe.fit["schedule"])] if recipe.fit["schedule"] else []
    how += [f"averaged weights ({recipe.fit['ema']:g})"] if recipe.fit["ema"] else []
    return [
        ("model", f"{type(energy).__name__} over {energy.domain}"),
        ("objective", brief(recipe.objective)),
        ("data", f"{data.name}: {parts} rows of shape {tuple(data.train.x.shape[1:])}"),
        ("steps of the data", steps),
        ("training", f"{length} of {recipe.fit['batch_size']} rows; {', '.join(how)}; seed {recipe.fit['seed']}"),
        ("started", time.strftime("%d %B %Y, %H:%M", time.localtime(known.get("began", 0)))),
    ]


def _likelihood(found: dict[str, Any]) -> dict[str, Any] | None:
    if "likelihood" not in found:
        return None
    rows: list[tuple[str, float, float | None, float | None]] = []
    table = []
    for key, name in (("likelihood", found["part"] + " rows"), ("train_likelihood", "training rows")):
        ll = found[key]
        rows.append((name, ll["value"], ll["lower"], ll["upper"]))
        upper = "open" if ll["upper"] is None else f"{ll['upper']:.3f}"
        table.append((name, f"{ll['value']:.3f}", f"in [{ll['lower']:.3f}, {upper}], {ll['rows']} rows"))
    if "baseline" in found:
        rows.append((found["baseline"]["what"], found["baseline"]["value"], None, None))
        table.append(
            (found["baseline"]["what"], f"{found['baseline']['value']:.3f}", "the simplest model, to be beaten")
        )
    method = found["likelihood"]["method"]
    if "log_z" in found:
        z = found["log_z"]
        method = z["method"]
        ess = f", {z['ess']:.0f} effective weights" if "ess" in z else ""
        table.append(("log Z", f"{z['value']:.3f}", f"± {z['stderr']:.2g} by {method}{ess}"))
    if "learned_log_z" in found:
        table.append(("log Z that the objective learned", f"{found['learned_log_z']:.3f}", ""))
    how = {
        "AIS": "log Z is estimated by annealed importance sampling, which errs to the low side: then likelihoods look too good.",
        "exact sum": "log Z is exact: every state was summed.",
        "quadrature": "log Z is integrated numerically.",
        "closed form": "log Z is known in closed form.",
    }.get(
        method, f"log Z is found by {method}." if "log_z" in found else f"Found by {method}, at the lowest noise level."
    )
    return {"picture": figures.intervals(rows), "rows": table, "how": how}


def _speed(history: list[dict[str, Any]]) -> str:
    rates = [r["steps_per_second"] for r in history if "steps_per_second" in r]
    return f"{rates[-1]:.3g} updates a second at the end; dashed lines mark the guard's events." if rates else ""


def _curves(history: list[dict[str, Any]], events: list[dict[str, Any]]) -> list[dict[str, str]]:
    marks = [(event["step"], event["event"]) for event in events]
    out = []
    for name, caption in _CURVES.items():
        points = [
            (r["step"], float(r[name])) for r in history if name in r and "event" not in r and math.isfinite(r[name])
        ]
        if len(points) < 2 or (name in {"lr", "acceptance"} and len({value for _, value in points}) < 2):
            continue
        label = name.removeprefix("validation_").replace("_", " ")
        out.append(
            {"picture": figures.curve({label: points}, marks, label=label, name=f"curve-{name}"), "caption": caption}
        )
    return out


def _rows(prepared: Prepared, part: str, n: int, energy: Any) -> Tensor | None:
    if part not in prepared.data.parts:
        return None
    dtype, device = placement(energy)
    return prepared.finished(part, n).x.to(device, dtype)


def _histogram(energy: Any, prepared: Prepared, drawn: Drawn | None) -> str | None:
    if not isinstance(energy, Energy) or isinstance(energy, BoundedModel):
        return None
    dtype, device = placement(energy)
    noise = energy.domain.sample(1000, generator=stream(0, "noise", device), dtype=dtype)
    held = _rows(prepared, "test", 1000, energy)
    sets = {
        "training": _rows(prepared, "train", 1000, energy),
        "held out": held if held is not None else _rows(prepared, "validation", 1000, energy),
        "samples": drawn.x if drawn else None,
        "noise": noise,
    }
    try:
        with torch.no_grad():
            values = {name: energy(x).double() for name, x in sets.items() if x is not None}
    except GibbsianError:
        return None
    finite = {name: v[torch.isfinite(v)] for name, v in values.items()}
    kept = {name: v for name, v in finite.items() if len(v)}
    return figures.svg(lambda ax: plots.energy_histogram(kept, ax, clip=0.003), size=(7.6, 3.0), name="energies")


def _classes(energy: Any, prepared: Prepared, found: dict[str, Any], most: int) -> dict[str, Any] | None:
    if "classes" not in found:
        return None
    rows = prepared.finished(found["part"], most)
    dtype, device = placement(energy)
    with torch.no_grad():
        p = torch.cat([energy.class_log_prob(x.to(device, dtype)) for x in rows.x.split(1024)]).exp().cpu()
    picture = figures.svg(lambda ax: plots.reliability(p, rows.y, ax), size=(4.4, 3.4), name="reliability")  # type: ignore[arg-type]
    c = found["classes"]
    text = f"{100 * c['accuracy']:.2f} % of {c['rows']} {found['part']} rows are given their class; the expected calibration error is {c['calibration_error']:.3f}."
    return {"text": text, "picture": picture}


def _outside(found: dict[str, Any]) -> dict[str, Any] | None:
    rows = []
    if "anomalies" in found:
        rows.append(("labelled anomalies", *(f"{found['anomalies'][k]:.3f}" for k in ("auroc", "aupr", "fpr95"))))
    for name, rates in found.get("outside", {}).items():
        rows.append(
            (name, *(f"{rates[k]:.3f}" for k in ("auroc", "aupr", "fpr95")))
            if "auroc" in rates
            else (name, rates["missing"], "", "")
        )
    return {"rows": rows} if rows else None


def _chains(drawn: Drawn | None) -> dict[str, Any] | None:
    if drawn is None or drawn.trace is None or drawn.trace.samples is None or len(drawn.trace.samples) < 8:
        return None
    trace, kept = drawn.trace, drawn.trace.samples
    some = kept[:, :64].flatten(2)
    moving = some.float().var((0, 1)) > 0
    if not bool(moving.any()):
        return None
    entries = moving.nonzero().flatten()
    chosen = entries[torch.linspace(0, len(entries) - 1, min(48, len(entries))).long()]
    part = some[:, :, chosen]
    summary = summarise(part.double())
    r_hat, ess = summary["r_hat"], summary["ess"]
    worst, least = float(r_hat[torch.isfinite(r_hat)].max()), float(ess[torch.isfinite(ess)].min())
    acceptance = float(trace.acceptance)
    rows = [
        ("kernel", brief(trace.kernel)),
        ("chains and steps", f"{kept.shape[1]} chains, {trace.steps} steps, the second half kept"),
        (
            "largest R-hat",
            f"{worst:.3f}"
            + (
                "  (below 1.01 is mixed)"
                if worst < 1.01
                else "  (above 1.01: the chains have not forgotten where they began)"
            ),
        ),
        ("smallest effective sample size", f"{least:.0f} of {part.shape[0] * part.shape[1]} draws"),
        ("divergent chains", str(int((trace.divergences > 0).sum()))),
    ]
    if math.isfinite(acceptance):
        rows.insert(2, ("acceptance", f"{acceptance:.3f}"))
    variance = part.float().var((0, 1))
    entry = int(variance.argmax())
    pictures = []
    if not bool(((part == 0) | (part == 1) | (part == -1)).all()):  # bits make poor traces
        pictures.append(
            {
                "picture": figures.svg(lambda ax: plots.traces(part, ax, entry=entry), size=(5.2, 2.6), name="traces"),
                "caption": "one number of the state along a few chains",
            }
        )
        pictures.append(
            {
                "picture": figures.svg(lambda ax: plots.ranks(part, ax, entry=entry), size=(5.2, 2.6), name="ranks"),
                "caption": "ranks among all chains: flat where they have mixed",
            }
        )
    return {
        "text": f"How the samples above were drawn, and how far to trust them: {drawn.how}.",
        "rows": rows,
        "pictures": pictures,
    }


# --- pictures of samples and weights --------------------------------------------------------------


def _image_shape(recipe: Recipe, prepared: Prepared) -> tuple[int, ...] | None:
    """The shape of pictures: what the recipe says, or that of the raw data where it looks like one."""
    if recipe.sample.shape:
        return tuple(recipe.sample.shape)
    raw = tuple(prepared.undo(prepared.finished("train", 2).x).shape[1:])
    return raw if len(raw) in (2, 3) and min(raw[-2:]) >= 4 and (len(raw) == 2 or raw[0] in (1, 3)) else None


def _as_images(x: Tensor, prepared: Prepared, shape: tuple[int, ...]) -> Tensor:
    return prepared.undo(x.detach().float().cpu()).reshape(len(x), *shape)


def _samples(
    folder: Path, prepared: Prepared, energy: Any, drawn: Drawn | None, shape: tuple[int, ...] | None
) -> dict[str, Any]:
    out: dict[str, Any] = {"samples": [], "strip": [], "plane": [], "marginals": [], "samples_text": ""}
    flat = math.prod(energy.domain.shape)
    data = _rows(prepared, "train", 4000, energy)
    if data is None or not bool(torch.isfinite(data).all()):
        return out
    data = data.cpu()
    if drawn is not None:
        out["samples_text"] = f"Drawn from the trained model by {drawn.how}."
    x = None if drawn is None else drawn.x.cpu()
    snapshots = snapshots_of(folder)
    if shape is not None:
        if x is not None:
            out["samples"].append(("samples", figures.pixel_grid(_as_images(x[:64], prepared, shape), columns=8)))
        out["samples"].append(("training data", figures.pixel_grid(_as_images(data[:64], prepared, shape), columns=8)))
        for step, s in snapshots.items():
            out["strip"].append((step, figures.pixel_grid(_as_images(s[:16], prepared, shape), columns=4), "pixels"))
    elif flat == 2 and not isinstance(energy.domain, Discrete):
        out["plane"] = figures.plane(energy, data.reshape(-1, 2), None if x is None else x.reshape(-1, 2))
        extent = data.reshape(-1, 2)
        low, high = extent.amin(0) - 0.5, extent.amax(0) + 0.5
        for step, s in snapshots.items():
            out["strip"].append((step, figures.picture(_dots(s.reshape(-1, 2), low, high), size=(1.6, 1.6)), "chart"))
    elif x is not None and len(x) > 30 and not isinstance(energy.domain, Discrete):
        undone = [prepared.undo(part).flatten(1) for part in (data, x)]
        out["marginals"] = figures.marginals(undone[0], undone[1], prepared.data.columns)
    return out


def _dots(x: Tensor, low: Tensor, high: Tensor) -> Any:
    def draw(ax: Any) -> None:
        ax.plot(*x.T.numpy(), ".", markersize=2.5, color=colour(1))
        ax.set(
            xlim=(float(low[0]), float(high[0])),
            ylim=(float(low[1]), float(high[1])),
            xticks=[],
            yticks=[],
            aspect="equal",
        )
        for side in ax.spines.values():
            side.set_color("0.85")

    return draw


def _filters(energy: Any, prepared: Prepared, shape: tuple[int, ...] | None) -> dict[str, str] | None:
    """Weights as pictures: of hidden units in the space of the data, or of the first convolution."""
    own = getattr(energy, "weight", None)
    size = math.prod(energy.domain.shape)
    if hasattr(energy, "mixing"):
        own, title, text = energy.mixing, "Basis", "Each picture is what one source adds to the data."
    elif isinstance(own, Tensor) and own.dim() >= 2 and own.shape[0] == size and shape is not None:
        title, text = "Filters", "What each hidden unit looks for, strongest first: red adds, blue takes away."
    elif isinstance(own, Tensor) and own.dim() >= 3 and own.shape[-1] <= 16:
        kernels = own.detach().reshape(-1, *own.shape[-2:])
        return {
            "title": "Filters",
            "text": "The filters that are slid over images.",
            "uri": figures.pixel_grid(kernels[:100], symmetric=True),
        }
    elif hasattr(energy, "weights") and isinstance(energy.weights, nn.ParameterList) and shape is not None:
        own, title, text = (
            energy.weights[0],
            "Filters of the first layer",
            "What each unit of the first hidden layer looks for.",
        )
    else:
        convolution = next((m for m in energy.modules() if isinstance(m, nn.Conv2d)), None)
        if convolution is None:
            return None
        kernels = convolution.weight.detach().mean(1)
        return {
            "title": "Filters of the first layer",
            "text": "Convolution kernels, averaged over input channels.",
            "uri": figures.pixel_grid(kernels[:100], symmetric=True),
        }
    if shape is None or (len(shape) == 3 and shape[0] != 1) or not isinstance(own, Tensor):
        return None
    weight = own.detach().float().cpu().flatten(1).T
    order = weight.norm(dim=1).argsort(descending=True)[:100]
    rows = weight[order]
    if any("matrix" in fitted for fitted in prepared.fitted):  # whitened: shown in the space of the data
        rows = prepared.undo(rows).flatten(1) - prepared.undo(torch.zeros_like(rows)).flatten(1)
    images = rows.reshape(len(rows), *shape[-2:])
    return {"title": title, "text": text, "uri": figures.pixel_grid(images, symmetric=True)}


def _command(recipe: Recipe, known: dict[str, Any]) -> str:
    arguments = known.get("arguments") or ["train", "recipe.yaml"]
    return "gibbsian " + shlex.join(arguments)
