"""The parts of a report that are numbers, tables and charts; each returns what the template shows, or None."""

import math
import time
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gibbsian import plots
from gibbsian.app.curves import CURVES
from gibbsian.app.evaluation import held_out_part, moving_part
from gibbsian.app.recipe import Recipe
from gibbsian.app.report import figures
from gibbsian.app.report.pictures import some_rows
from gibbsian.app.report.words import brief, count, duration, end, method, thousands
from gibbsian.data import Prepared
from gibbsian.data.sets import ENDLESS
from gibbsian.energy import Energy
from gibbsian.errors import GibbsianError
from gibbsian.metrics.evaluate import costly
from gibbsian.placement import placement
from gibbsian.random import stream
from gibbsian.uses.draw import Drawn

_UNMIXED = "above 1.01: the chains have not forgotten where they began"

_METHODS = {
    "AIS": "log Z is estimated by annealed importance sampling, which errs to the low side: then likelihoods look too good.",
    "AIS bounds": "log Z is estimated by annealed importance sampling from both sides, climbing from a base and "
    "descending from chains that began at the data; the interval holds both.",
    "exact sum": "log Z is exact: every state was summed.",
    "quadrature": "log Z is integrated numerically.",
    "closed form": "log Z is known in closed form.",
}


def cards(energy: nn.Module, found: dict[str, Any], known: dict[str, Any], events: list[Any]) -> list[dict[str, Any]]:
    shown: list[tuple[str, str]] = []
    if "likelihood" in found:
        ll = found["likelihood"]
        between = f"[{ll['lower']:.2f}, {end(ll['upper'], 2)}]"
        shown.append((f"{ll['value']:.2f}", f"nats a {found['part']} row, in {between}"))
    if "classes" in found:
        shown.append((f"{100 * found['classes']['accuracy']:.2f} %", f"accuracy, {found['part']} rows"))
    heroes = min(1, len(shown))
    if "anomalies" in found:
        shown.append((f"{found['anomalies']['auroc']:.3f}", "AUROC of anomalies"))
    shown += [
        (duration(known.get("seconds", 0.0)), "training time"),
        (thousands(found["step"]), "updates"),
        (count(sum(p.numel() for p in energy.parameters())), "parameters"),
        (str(len(events)), "guard events"),
    ]
    return [{"hero": i < heroes, "value": value, "label": label} for i, (value, label) in enumerate(shown)]


def facts(
    recipe: Recipe, prepared: Prepared, energy: Any, found: dict[str, Any], known: dict[str, Any]
) -> list[tuple[str, str]]:
    data = prepared.data
    counts = {name: thousands(len(rows)) if len(rows) < ENDLESS else "a stream of" for name, rows in data.parts.items()}
    parts = ", ".join(f"{count} {name}" for name, count in counts.items())
    steps = " → ".join(brief(step) for step in prepared.steps) or "as it is"
    how = [f"{method(recipe.fit['optimizer'], 'adam')}, learning rate {brief(recipe.fit['lr'])}"]
    how += [method(recipe.fit["schedule"], "")] if recipe.fit["schedule"] else []
    how += [f"averaged weights ({recipe.fit['ema']:g})"] if recipe.fit["ema"] else []
    return [
        ("model", f"{type(energy).__name__} over {energy.domain}"),
        ("objective", brief(recipe.objective)),
        ("data", f"{data.name}: {parts} rows of shape {tuple(prepared.finished('train', 1).x.shape[1:])}"),
        ("steps of the data", steps),
        ("training", f"{_length(recipe.fit, known)}; {', '.join(how)}; seed {recipe.fit['seed']}"),
        ("started", time.strftime("%d %B %Y, %H:%M", time.localtime(known.get("began", 0)))),
    ]


def _length(fit: dict[str, Any], known: dict[str, Any]) -> str:
    """How long the training was, as the recipe says, and as it went on where it did."""
    length = f"{fit['epochs']} epochs" if fit["epochs"] else f"{fit['steps']} steps"
    further = [f", then {thousands(total)} steps in all" for total in known.get("then", [])[-1:]]
    return "".join([length, f" of {fit['batch_size']} rows", *further])


def likelihood(found: dict[str, Any]) -> dict[str, Any] | None:
    if "likelihood" not in found:
        return None
    rows: list[tuple[str, float, float | None, float | None]] = []
    table = []
    for key, name in (("likelihood", found["part"] + " rows"), ("train_likelihood", "training rows")):
        ll = found[key]
        rows.append((name, ll["value"], ll["lower"], ll["upper"]))
        interval = f"in [{ll['lower']:.3f}, {end(ll['upper'], 3)}], {thousands(ll['rows'])} rows"
        table.append((name, f"{ll['value']:.3f}", interval))
    if "baseline" in found:
        what, value = found["baseline"]["what"], found["baseline"]["value"]
        rows.append((what, value, None, None))
        table.append((what, f"{value:.3f}", "the simplest model, to be beaten"))
    method = found["likelihood"]["method"]
    if "log_z" in found:
        z = found["log_z"]
        method = z["method"]
        ess = f", {z['ess']:.0f} effective weights" if "ess" in z else ""
        error = f"± {z['stderr']:.2g} " if z["stderr"] >= 1e-4 else ""
        table.append(("log Z", f"{z['value']:.3f}", f"{error}by {method}{ess}"))
    if "learned_log_z" in found:
        table.append(("log Z that the objective learned", f"{found['learned_log_z']:.3f}", ""))
    other = f"log Z is found by {method}." if "log_z" in found else f"Found by {method}, at the lowest noise level."
    return {"picture": figures.intervals(rows), "rows": table, "how": _METHODS.get(method, other)}


def speed(history: list[dict[str, Any]], events: list[Any]) -> str:
    rates = [r["steps_per_second"] for r in history if "steps_per_second" in r]
    said = [f"{rates[-1]:.3g} updates a second at the end."] if rates else []
    return " ".join([*said, *(["Dashed lines mark the guard's events."] if events else [])])


def curves(history: list[dict[str, Any]], events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    marks = [(event["step"], event["event"]) for event in events]
    out = []
    for name, caption in CURVES.items():
        points = _points(history, name)
        flat = len({value for _, value in points}) < 2
        if len(points) < 2 or (flat and name in {"lr", "acceptance"}):
            continue
        label = name.removeprefix("validation_").replace("_", " ")
        picture = figures.curve(points, marks, label=label, name=f"curve-{name}")
        out.append({"picture": picture, "data": figures.chart({label: points}, marks, y=label), "caption": caption})
    return out


def _points(history: list[dict[str, Any]], name: str) -> list[tuple[float, float]]:
    """A number of the log along the steps, where it is finite."""
    records = [r for r in history if name in r and "event" not in r]
    return [(r["step"], float(r[name])) for r in records if math.isfinite(r[name])]


def energies(energy: Any, prepared: Prepared, drawn: Tensor | None) -> dict[str, Tensor]:
    """Finite energies of training and held-out rows, of samples and of noise; nothing where they are out of reach."""
    if not isinstance(energy, Energy) or costly(energy):
        return {}
    dtype, device = placement(energy)
    part = held_out_part(prepared)
    sets = {
        "training": some_rows(prepared, "train", 1000, energy),
        "held out": None if part == "train" else some_rows(prepared, part, 1000, energy),
        "samples": drawn,
        "noise": energy.domain.sample(1000, generator=stream(0, "noise", device), dtype=dtype),
    }
    try:
        with torch.no_grad():
            values = {name: energy(x).double() for name, x in sets.items() if x is not None}
    except GibbsianError:
        return {}
    return {name: v[torch.isfinite(v)] for name, v in values.items() if bool(torch.isfinite(v).any())}


def histogram(energy: Any, prepared: Prepared, drawn: Drawn | None) -> str | None:
    found = energies(energy, prepared, None if drawn is None else drawn.x)
    if not found:
        return None
    return figures.energies(found, {name: v for name, v in found.items() if name != "noise"} or found)


def classes(energy: Any, prepared: Prepared, found: dict[str, Any], most: int) -> dict[str, Any] | None:
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


def chains(drawn: Drawn | None, found: dict[str, Any]) -> dict[str, Any] | None:
    numbers, part = found.get("chains"), moving_part(drawn)
    if numbers is None or part is None or drawn is None or drawn.trace is None:
        return None
    trace = drawn.trace
    mixed = "below 1.01 is mixed" if numbers["r_hat"] <= 1.01 else _UNMIXED
    rows = [
        ("kernel", brief(trace.kernel)),
        ("chains and steps", f"{numbers['chains']} chains, {trace.steps} steps, the second half kept"),
        ("largest R-hat", f"{numbers['r_hat']:.3f}  ({mixed})"),
        ("smallest effective sample size", f"{numbers['ess']:.0f} of {numbers['draws']} draws"),
        ("divergent chains", str(numbers["divergent"])),
    ]
    if "acceptance" in numbers:
        rows.insert(2, ("acceptance", f"{100 * numbers['acceptance']:.0f} %"))
    entry = int(part.float().var((0, 1)).argmax())
    looks = {
        "traces": (plots.traces, "one number of the state along a few chains"),
        "ranks": (plots.ranks, "ranks among all chains: flat where they have mixed"),
    }
    bits = bool(((part == 0) | (part == 1) | (part == -1)).all())  # they make poor traces
    pictures = [
        {"picture": figures.svg(partial(plot, part, entry=entry), size=(5.2, 2.6), name=name), "caption": caption}
        for name, (plot, caption) in looks.items()
        if not bits and part.shape[1] > 1
    ]
    text = f"How the samples above were drawn, and how far to trust them: {drawn.how}."
    return {"text": text, "rows": rows, "pictures": pictures}
