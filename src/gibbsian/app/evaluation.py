"""Judging the model of a run on its held-out data."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gibbsian.app.files import write_whole
from gibbsian.app.recipe import Recipe
from gibbsian.app.runs import noted
from gibbsian.data import DataSet, Prepared, Rows, load
from gibbsian.distributed import Shards, World
from gibbsian.energy import Energy
from gibbsian.errors import CapabilityError, GibbsianError
from gibbsian.metrics.evaluate import costly, detection, energies_of, evaluate
from gibbsian.placement import placement
from gibbsian.random import stream
from gibbsian.sampling.diagnostics import summarize
from gibbsian.training import checkpoint
from gibbsian.uses.draw import Drawn

_ROWS = 1 << 14
_DRAWS = 20  # forms of a held-out row by which its class is told


class Outside(NamedTuple):
    """Rows of other sets by name, and for those that could not be had, why."""

    sets: dict[str, Tensor]
    missing: dict[str, dict[str, str]]


def held_out_part(prepared: Prepared) -> str:
    """The part that a model is judged on: test, else validation, else the training rows themselves."""
    return next((part for part in ("test", "validation") if part in prepared.data.parts), "train")


def evaluate_run(
    folder: Path,
    recipe: Recipe,
    prepared: Prepared,
    model: Any,
    drawn: Drawn | None,
    *,
    outside: Outside | None = None,
    progress: bool | None = None,
    world: World | None = None,
) -> dict[str, Any]:
    """Judge the model of a run and write `evaluation.json`: plain numbers, see `gibbsian.evaluate`.

    With several processes, `world`, chains and rows are spread over them. `outside` are other sets, by default those of the recipe. Where steps draw rows anew, classes are told by the mean over 20 forms of each. Further keys are `part` (that it was judged on), `learned_log_z`, `anomalies` (labeled ones in that part), what is
    `missing` of sets outside that could not be had, `chains` (how well those that drew the samples have mixed), and `step`.
    """
    dtype, device = placement(model)
    part, spec = held_out_part(prepared), recipe.evaluate
    held, train = prepared.finished(part, spec.rows), prepared.finished("train", max(spec.rows, _ROWS))
    x, seen = held.x.to(device, dtype), train.x.to(device, dtype)
    able = _gives_energies(model)
    sets, missing = outside or outside_sets(recipe, prepared, model)
    found = evaluate(
        model,
        x if held.y is None else (x, held.y),
        train=seen,
        outside={name: rows.to(x) for name, rows in sets.items()},
        samples=None if drawn is None else drawn.x,
        draws=_drawn_again(prepared, part, x),
        likelihood=spec.likelihood,
        chains=spec.chains,
        betas=spec.betas,
        seed=_seed(recipe, world, device),
        progress=progress,
    ).to_dict()
    if able:
        found["energies"] = {"train": found["energies"]["train"], part: found["energies"]["data"]}
        found |= _anomalies(prepared, model, x, held.y)
    if missing:
        found["outside"] = found.get("outside", {}) | missing
    found |= chain_numbers(drawn)
    learned = noted(folder).get("log_z")
    found = {"part": part} | found | ({} if learned is None else {"learned_log_z": learned})
    found["step"] = checkpoint.read_latest(folder, keys=("step",))["step"]
    if (world or World()).first:
        write_whole(folder / "evaluation.json", json.dumps(found, indent=1))
    return found


def _drawn_again(prepared: Prepared, part: str, x: Tensor) -> Iterator[Tensor]:
    """Other forms of held-out rows x that are drawn."""
    for draw in range(1, _DRAWS) if prepared.redraws else ():
        yield prepared.finished(part, len(x), draw=draw).x.to(x)


def _seed(recipe: Recipe, world: World | None, device: torch.device) -> int | Shards:
    seed = recipe.fit["seed"]
    return seed if world is None else Shards(seed, "evaluate", device=device)


def _anomalies(prepared: Prepared, model: Energy, x: Tensor, y: Tensor | None) -> dict[str, Any]:
    """How well labeled anomalies among the rows are found."""
    if y is None or prepared.data.classes != ("normal", "anomaly") or len(y.unique()) < 2:
        return {}
    inside, strange = (energies_of(model, x[(y == label).to(x.device)]) for label in (0, 1))
    return {"anomalies": detection(inside, strange)._asdict()}


def moving_part(drawn: Drawn | None) -> Tensor | None:
    """What diagnostics look at of the chains that drew samples, `(draws, chains, entries)`: at most 64 chains and 48 entries
    that ever change; None where no chains were kept, or too few draws."""
    if drawn is None or drawn.trace is None or drawn.trace.samples is None or len(drawn.trace.samples) < 8:
        return None
    some = drawn.trace.samples[:, :64].flatten(2)
    entries = (some.float().var((0, 1)) > 0).nonzero().flatten()
    if not len(entries):
        return None
    return some[:, :, entries[torch.linspace(0, len(entries) - 1, min(48, len(entries))).long()]]


def chain_numbers(drawn: Drawn | None) -> dict[str, Any]:
    """How far the chains that drew samples can be trusted: the largest R-hat, the smallest effective sample size.

    Nothing of kernels that go a way (annealed and short-run ones, flows): there only the last draw of a chain counts.
    """
    part = moving_part(drawn)
    if part is None or drawn is None or drawn.trace is None or not drawn.trace.kernel.mixes:
        return {}
    summary = summarize(part.double())
    r_hat, ess = (summary[name][torch.isfinite(summary[name])] for name in ("r_hat", "ess"))
    if not len(r_hat) or not len(ess):
        return {}
    acceptance = float(drawn.trace.acceptance)
    numbers: dict[str, Any] = {"r_hat": float(r_hat.max()), "ess": float(ess.min())}
    numbers |= {"draws": part.shape[0] * part.shape[1], "chains": len(drawn.trace.last)}
    numbers["divergent"] = int((drawn.trace.divergences > 0).sum())
    numbers |= {"acceptance": acceptance} if math.isfinite(acceptance) else {}
    return {"chains": numbers}


def _gives_energies(model: Any) -> bool:
    return isinstance(model, Energy) and not costly(model)


def outside_sets(recipe: Recipe, prepared: Prepared, model: Any, *, strict: bool = False) -> Outside:
    """Rows of the sets outside through the same steps, and why others are not there; `strict` raises instead."""
    spec = recipe.evaluate
    sets, missing = dict[str, Tensor](), dict[str, dict[str, str]]()
    if not _gives_energies(model):
        if strict:
            raise CapabilityError(
                f"{type(model).__name__} gives no energies to tell other sets by; leave --outside out"
            )
        return Outside(sets, missing)
    for name in spec.outside:
        try:
            sets[name] = prepared.other(_other(name, prepared))[: spec.rows]
        except GibbsianError as error:
            if strict:
                raise type(error)(f"--outside {name}: {error}") from error
            missing[name] = {"missing": str(error)}
    return Outside(sets, missing)


def _other(name: str, prepared: Prepared) -> DataSet:
    return DataSet("noise", Rows(_noise(prepared))) if name == "noise" else load(name, part="test")


def _noise(prepared: Prepared) -> Tensor:
    """Uniform numbers between the smallest and the largest of the raw training rows, whole where those are."""
    seen = prepared.undo(prepared.finished("train", 1000).x).float()
    low, high, generator = float(seen.min()), float(seen.max()), stream(prepared.seed, "noise")
    if bool((seen == seen.round()).all()):
        return torch.randint(int(low), int(high) + 1, (2000, *prepared.shape), generator=generator).float()
    return low + (high - low) * torch.rand(2000, *prepared.shape, generator=generator)
