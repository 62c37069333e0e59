"""Making a trained run small: averaged weights in half precision and some of its chains, without what only training needs.

zoo/NAME/config.{json,safetensors}    the energy by its constructor, the objective and the settings, as in any run folder
zoo/NAME/recipe.yaml, data.*          the recipe and what the steps of its data learned, where there are any
zoo/NAME/checkpoints/                 one checkpoint with the weights alone
zoo/NAME/chains.safetensors           where draws may begin: chains of the training as bytes between two values, an entry its own
zoo/NAME/card.json, samples.png       see `gibbsian.zoo`
"""

import shutil
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file, save_file
from torch import Tensor

from gibbsian.capabilities import JointModel
from gibbsian.domains import Domain
from gibbsian.energy import Energy, ScoreField
from gibbsian.errors import ArgumentError, CheckpointError, check_count, check_tensor
from gibbsian.random import stream
from gibbsian.tables.keeping import model_of
from gibbsian.training import checkpoint, keep
from gibbsian.uses.hybrid import earlier

_COPIED = ("config.json", "config.safetensors", "data.json", "data.safetensors", "command.json", "environment.json")


def pack(run: str | Path, target: str | Path, *, chains: int = 160) -> Path:
    """A small copy of a run folder that `gibbsian.load` and `gibbsian sample` read as they read the run.

    Averaged weights where there are any, else the last ones, rounded to half precision where that holds their size: loaded, they are in the default
    precision again. Figures for a card are to be measured on the copy.

    Args:
        run: the run folder.
        target: a new folder.
        chains: how many of the chains that the objective kept are copied, of every class as many where classes are known.

    >>> import gibbsian as gb, tempfile
    >>> home = tempfile.mkdtemp()
    >>> data = (torch.rand(50, 6, generator=torch.Generator().manual_seed(0)) < 0.3).float()
    >>> objective = gb.objectives.PersistentContrastiveDivergence(gb.kernels.Gibbs())
    >>> _ = gb.fit(gb.models.RBM(6, 3), objective, data, steps=20, run_dir=f"{home}/run", ema=0.9)
    >>> small = pack(f"{home}/run", f"{home}/small", chains=5)
    >>> gb.load(small).weight.dtype, chains_of(small).shape
    (torch.float32, torch.Size([5, 6]))
    """
    run, target, chains = Path(run), Path(target), check_count("pack", "chains", chains, 0)
    config = keep.read_config(run, ("energy", "objective"))
    tree = checkpoint.read_latest(run, keys=("step", "energy", "frozen", "ema", "ranks"))
    _new(target)
    for name in _COPIED:
        if (run / name).exists():
            shutil.copy(run / name, target / name)
    _copy_recipe(run, target)
    weights = _write_weights(target, tree["step"], tree["ema"] or tree["energy"], tree["frozen"])
    energy = config["energy"]
    checkpoint.load_module(energy, weights, tree["frozen"])
    found = config["objective"].chains_of(tree["ranks"][0]["state"])
    if found is not None and chains:
        _write_chains(target, _chosen(energy.eval(), found, chains))
    return target


def save(energy: Any, folder: str | Path, *, step: int = 0) -> Path:
    """A folder with an energy alone, in half precision, for models that were learned without `gibbsian.fit`.

    >>> import gibbsian as gb, tempfile
    >>> folder = save(gb.models.Potts(4, 3), tempfile.mkdtemp() + "/potts")
    >>> gb.load(folder).coupling.shape
    torch.Size([4, 3, 4, 3])
    """
    if not isinstance(energy, Energy | ScoreField):
        raise ArgumentError(f"energy is a {type(energy).__name__}, expected an energy or a score field")
    folder = _new(folder)
    checkpoint.write_tree(folder, "config", {"energy": energy}, weightless={"energy"})
    _write_weights(
        folder, step, dict(energy.state_dict()), [n for n, p in energy.named_parameters() if not p.requires_grad]
    )
    return folder


def pack_table(run: str | Path, target: str | Path) -> Path:
    """A copy of the run of a table without rows of the table: draws of the law stand for them where rows are compared."""
    run = Path(run)
    tree = checkpoint.read_tree(run, "table")
    model = model_of(tree)
    target = _new(target)
    drawn = model.codec.encode(model.sample(300, generator=stream(model.seed, "kept")))
    checkpoint.write_tree(target, "table", tree | {"kept": drawn})
    shutil.copy(run / "schema.json", target / "schema.json")
    recipe = yaml.safe_load((run / "table.yaml").read_text(encoding="utf-8"))
    recipe["table"]["path"] = Path(recipe["table"]["path"]).name
    (target / "table.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return target


def begin(energy: Any, chains: Tensor, labels: Tensor) -> Tensor:
    """For every label one of the chains `(rows, *event)` that are likeliest of its class, no chain twice as long as there are
    others."""
    check_tensor(labels, "labels", "(draws,)", whole=True)
    if labels.dim() != 1 or labels.is_floating_point() or labels.dtype == torch.bool:
        raise ArgumentError(f"labels are {labels.dtype} of shape {tuple(labels.shape)}, expected a whole number a draw")
    with torch.no_grad():
        best = torch.cat([energy.class_log_prob(part) for part in chains.split(256)]).argsort(0, descending=True)
    labels = labels.to(best.device, torch.long)  # bytes would be read as a mask
    unknown = labels[(labels < 0) | (labels >= best.shape[1])]
    if len(unknown):
        raise ArgumentError(f"class {int(unknown[0])} was asked for; the model knows 0 to {best.shape[1] - 1}")
    each = max(1, len(chains) // best.shape[1])
    return chains[best[earlier(labels) % each, labels]]


def chains_of(folder: str | Path) -> Tensor | None:
    """Chains that were packed with a model, `(rows, *event)`; None where there are none."""
    path = Path(folder) / "chains.safetensors"
    if not path.exists():
        return None
    with checkpoint.damage(path):
        kept = load_file(path)
        x = kept["x"].double()
        if "walls" in kept:
            low, high = kept["walls"].double()
            x = low + (high - low) / 255 * x
        x = x.to(torch.get_default_dtype())
    domain: Domain = keep.read_config(Path(folder), ("energy",))["energy"].domain
    return domain.within_walls(x)  # 1.1 in single precision lies beyond a wall at 1.1


def _new(folder: str | Path) -> Path:
    folder = Path(folder)
    if folder.exists() and any(folder.iterdir()):
        raise CheckpointError(f"{folder} already holds files; say a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _write_weights(folder: Path, step: int, weights: dict[str, Tensor], frozen: list[str]) -> dict[str, Tensor]:
    """The one checkpoint of a small folder; the weights as they are in it."""
    small = {name: _halved(part) for name, part in weights.items()}
    tree = {"step": step, "device": "cpu", "energy": small, "frozen": frozen, "ema": None}
    checkpoint.save_checkpoint(folder, step, tree)
    return small


def _halved(part: Tensor) -> Tensor:
    """In half precision, where that holds the largest entry: beyond 65504 it has only infinity, below 6e-5 few digits and then 0.

    >>> [_halved(torch.tensor([size, 0.0])).dtype for size in (1.0, 1e6, 1e-6)]
    [torch.float16, torch.float32, torch.float32]
    """
    if not part.is_floating_point() or not part.numel():
        return part
    largest, half = float(part.abs().max()), torch.finfo(torch.float16)
    return part.half() if largest == 0 or half.tiny <= largest <= half.max else part


def _copy_recipe(run: Path, target: Path) -> None:
    """The recipe, which asks for averaged weights no more: the weights are those."""
    path = run / "recipe.yaml"
    if path.exists():
        recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
        recipe["evaluate"] = (recipe.get("evaluate") or {}) | {"ema": False}
        text = yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True)
        (target / path.name).write_text(text, encoding="utf-8")


def _chosen(energy: Any, x: Tensor, most: int) -> Tensor:
    """Chains around the lower quartile of their class's energies, of all classes equally many where the model knows classes: those far
    above have not arrived, and those at the bottom are often no images any more."""
    x = x.float()
    knows_classes = isinstance(energy, JointModel)
    if not knows_classes:
        return x[:most]
    with torch.no_grad():
        height = torch.cat([energy(part) for part in x.split(256)])
        log_p = torch.cat([energy.class_log_prob(part) for part in x.split(256)])
    kind, each = log_p.argmax(1), max(1, most // log_p.shape[1])
    rows = ((kind == k).nonzero().flatten() for k in range(log_p.shape[1]))
    return x[torch.cat([_around_quartile(mine, height, each) for mine in rows])]


def _around_quartile(rows: Tensor, height: Tensor, most: int) -> Tensor:
    """At most so many of the rows, from where a quarter of them are lower.

    >>> _around_quartile(torch.arange(8), torch.arange(8.0), 3).tolist()
    [1, 2, 3]
    """
    order = rows[height[rows].argsort()]
    first = max(0, min(len(rows) // 4 - most // 2, len(rows) - most))
    return order[first : first + most]


def _write_chains(target: Path, x: Tensor) -> None:
    """Every entry as bytes between its own least and largest value, whole numbers as they are; no bytes where those reach too far."""
    exact = x.double()
    low, high = exact.amin(0), exact.amax(0)
    whole = (exact == exact.round()).all(0)
    wide = torch.where(whole, 255.0, torch.where(high > low, high - low, 1.0))
    if bool((high - low > wide).any()):
        return save_file({"x": x.contiguous()}, target / "chains.safetensors")
    levels = ((exact - low) * (255 / wide)).round().to(torch.uint8)
    walls = torch.stack([low, low + wide]).float()
    save_file({"x": levels.contiguous(), "walls": walls}, target / "chains.safetensors")
