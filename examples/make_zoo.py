"""Make a member of the zoo from a trained run: pack it, judge it as it is loaded, draw a picture, write its card.

    gibbsian train digits-rbm --run runs/digits-rbm --no-report
    python examples/make_zoo.py digits-rbm runs/digits-rbm --out src/gibbsian/zoo/members

`ABOUT` says of every member what it is and whose its data are; everything else comes from the run and from what is
measured here. A run that is packed already (by `gibbsian.zoo.pack`, `pack_table` or `save`) is taken as it is, with an
evaluation.json where it has one. `--figures FILE` adds figures that were measured elsewhere on the same packed weights:
a JSON object of name: [value, low, high, how]; a run without evaluation.json is then not judged again.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch
import yaml
from matplotlib.figure import Figure as Canvas

import gibbsian as gb
from gibbsian import plots, zoo
from gibbsian.app.cli import main as command
from gibbsian.tables.keeping import model_of
from gibbsian.training import checkpoint
from gibbsian.zoo.cards import Card, Figure, share

MNIST = "MNIST (Y. LeCun, C. Cortes, C. Burges; CC BY-SA 3.0), 60000 training digits"
ABOUT: dict[str, tuple[str, str]] = {
    "digits-rbm": (
        "a restricted Boltzmann machine, 64 binary pixels and 100 hidden units, of 8×8 digits",
        "Optical Recognition of Handwritten Digits (E. Alpaydin, C. Kaynak; CC BY 4.0), as scikit-learn has it",
    ),
    "mnist-rbm": ("a restricted Boltzmann machine of 500 hidden units", MNIST),
    "mnist-dbm": ("a deep Boltzmann machine 784-500-1000", MNIST),
    "mnist-dbn": ("a deep belief network 784-500-500-2000 with ten labels: classifies, and draws digits by class", MNIST),
    "mnist-jem": ("a joint energy: a classifier of digits that is also their energy", MNIST),
    "fashion-jem": (
        "a joint energy: a classifier of garments that is also their energy",
        "Fashion-MNIST (Zalando SE; MIT), 60000 training images",
    ),
    "cifar-jem": (
        "a joint energy: a classifier of color images that is also their energy",
        "CIFAR-10 (A. Krizhevsky; no license stated), 50000 training images",
    ),
    "mnist-ncsn": ("a noise-conditional score network: digits from noise by annealed Langevin dynamics", MNIST),
    "patches-foe": (
        "a field of experts, 24 filters of 5×5, of patches of photographs: a prior for denoising",
        "two photographs of scikit-learn (china.jpg, flower.jpg; CC BY)",
    ),
    "patches-ica": (
        "independent components of 10×10 patches of photographs: filters like edges, with an exact likelihood",
        "two photographs of scikit-learn (china.jpg, flower.jpg; CC BY)",
    ),
    "riboswitch-potts": (
        "a Potts machine of the purine riboswitch: 102 sites of an RNA family, learned by persistent chains",
        "Rfam RF00167 (CC0), an alignment of 2704 sequences as in KIT-MBS/pydca (MIT)",
    ),
    "penguins-table": (
        "the law of a table of penguins: species, island, sex and four measurements, with gaps",
        "Palmer penguins (K. Gorman, A. Horst, A. Hill; CC0), 344 rows",
    ),
}  # fmt: skip

LETTERS = {"riboswitch-potts": "-ACGU"}  # of members whose events are sequences


def figures_of(found: dict[str, Any], redrawn: bool) -> dict[str, Figure]:
    """What `gibbsian evaluate` found, as figures; `redrawn` where the data draw rows anew."""
    figures, rows = {}, found["rows"]
    told = ", classes by the mean over 20 draws of their pixels" if redrawn else ""
    if "likelihood" in found:
        ll = found["likelihood"]
        how = f"nats a row, {ll.get('rows', rows)} {found['part']} rows, {ll['method']}"
        if "ess" in found.get("log_z", {}):
            how += f" with {found['log_z']['ess']:.0f} effective weights"
        bound = "bound on the " if ll["upper"] is None else ""
        figures[f"{bound}test log-likelihood"] = Figure(ll["value"], ll["lower"], ll["upper"], how)
    if "classes" in found:
        classes, n = found["classes"], rows
        figures["accuracy"] = share(round(classes["accuracy"] * n), n, f"of {n} {found['part']} rows{told}")
        error = classes["calibration_error"]
        spread = (15 / n) ** 0.5 / 2  # what bins of n rows add to it by chance, at most
        figures["calibration error"] = Figure(
            error,
            max(0.0, error - spread),
            error + spread,
            f"15 bins, {n} {found['part']} rows{told}, ± what chance adds at most",
        )
    for name, rates in found.get("outside", {}).items():
        if "auroc" in rates:
            n, a = rows, rates["auroc"]
            spread = 1.96 * (max(a * (1 - a), 1e-6) / n) ** 0.5
            how = f"energies of {n} test rows against rows of {name}; 95 %, cautious"
            figures[f"AUROC against {name}"] = Figure(a, max(0.0, a - spread), min(1.0, a + spread), how)
    return figures


def judged(name: str, folder: Path) -> dict[str, Figure]:
    """Figures of a packed run."""
    if (folder / "table.json").exists():
        model = model_of(checkpoint.read_tree(folder, "table"))
        scores = torch.as_tensor(model.calibration).double()
        how = f"nats a row, {len(scores)} rows that the judging law did not learn from, ± 2 standard errors"
        half = 2 * float(scores.std()) / len(scores) ** 0.5
        mean = float(scores.mean())
        return {"held-out log-likelihood": Figure(mean, mean - half, mean + half, how)}
    if not (folder / "recipe.yaml").exists():
        return {}
    if not (folder / "evaluation.json").exists() and command(["evaluate", str(folder), "-q"]):
        raise SystemExit(f"{folder} could not be judged")
    found = json.loads((folder / "evaluation.json").read_text())
    from gibbsian.app.runs import open_run

    more = {"patches-foe": denoising, "mnist-ncsn": noise_loss}.get(name, lambda _: {})
    return figures_of(found, open_run(folder).prepared.redraws) | more(folder)


def denoising(folder: Path, sigma: float = 0.1) -> dict[str, Figure]:
    """By how much noise on held-out patches falls."""
    from gibbsian.app.runs import open_run

    energy = gb.load(folder)
    x = open_run(folder).prepared.finished("test", 500).x
    g = torch.Generator().manual_seed(0)
    noisy = x + sigma * torch.randn(x.shape, generator=g)
    clean = gb.denoise(energy, noisy, sigma).x
    gain = 10 * torch.log10((noisy - x).flatten(1).square().mean(1) / (clean - x).flatten(1).square().mean(1))
    mean, half = float(gain.mean()), 2 * float(gain.std()) / len(gain) ** 0.5
    how = f"dB, noise of {sigma} on {len(x)} test patches, ± 2 standard errors"
    return {"denoising gain": Figure(mean, mean - half, mean + half, how)}


def noise_loss(folder: Path, rows: int = 512, every: int = 1) -> dict[str, Figure]:
    """½‖σs(x + σz, σ) + z‖² on held-out rows, a mean over noise levels."""
    from gibbsian.app.runs import open_run

    field = gb.load(folder)
    x = open_run(folder).prepared.finished("test", rows).x
    g = torch.Generator().manual_seed(0)
    loss = torch.zeros(len(x), dtype=torch.float64)
    levels = field.noise_levels()[::every]
    for sigma in levels:
        z = torch.randn(x.shape, generator=g)
        with torch.no_grad():
            s = torch.cat([field.given(sigma).score(part) for part in (x + sigma * z).split(128)])
        loss += 0.5 * (sigma * s + z).flatten(1).double().square().sum(1) / len(levels)
    mean, half = float(loss.mean()), 2 * float(loss.std()) / len(loss) ** 0.5
    how = f"mean over noise levels of the loss of training, {len(x)} test digits, ± 2 standard errors"
    return {"denoising loss": Figure(mean, mean - half, mean + half, how)}


def picture(folder: Path, draws: int, steps: int | None) -> None:
    """samples.png: as many draws, of all classes where there are ten."""
    if not (folder / "recipe.yaml").exists():
        return
    from gibbsian.app.draws import draw_by
    from gibbsian.app.runs import open_pipeline

    recipe, pipeline = open_pipeline(folder)
    energy = gb.load(folder)
    pool = zoo.chains_of(folder)
    how: dict[str, Any] = {"start": pool, "steps": steps or recipe.sample.steps}
    if len(pipeline.classes) == 10 and recipe.data.labels:
        how["label"] = torch.arange(10).repeat(draws // 10)
        how["start"] = None if pool is None else zoo.begin(energy, pool, how["label"])
    x = pipeline.undo(draw_by(recipe, energy, draws, "picture", **how).x.detach().float())
    if recipe.sample.shape and x.dim() == 2:
        x = x.reshape(len(x), *recipe.sample.shape)
    x = x if x.dim() > 2 else x.reshape(len(x), *[round(x.shape[1] ** 0.5)] * 2)
    canvas = Canvas(figsize=(6, 0.62 * draws / 10), layout="constrained")
    colored = x.dim() == 4 and x.shape[1] == 3
    plots.image_grid(x / 255 if colored else x, canvas.subplots(), columns=10)
    canvas.savefig(folder / "samples.png", dpi=80)


def is_packed(run: Path) -> bool:
    """Does the run hold weights alone?"""
    states = list((run / "checkpoints").glob("*/state.json"))
    return all("ranks" not in json.loads(state.read_text())["tree"] for state in states)


def made_by(folder: Path, name: str) -> dict[str, Any]:
    """How it was made, as far as the folder says."""
    table = folder / "table.yaml"
    what = yaml.safe_load(table.read_text())["table"]["path"] if table.exists() else name
    made: dict[str, Any] = {"command": f"gibbsian train {what}", "seed": 0}
    for file, keys in (("made.json", None), ("command.json", ("seconds",)), ("environment.json", ("device", "torch"))):
        if (folder / file).exists():
            plain = json.loads((folder / file).read_text())
            made |= {k: plain[k] for k in keys or plain if k in plain}
    if (folder / "command.json").exists():
        arguments = json.loads((folder / "command.json").read_text())["arguments"]
        flags = [a for i, a in enumerate(arguments) if "--run" not in (a, arguments[i - 1]) and a != "--no-report"]
        made["command"] = "gibbsian " + " ".join([flags[0], name, *flags[2:]])
    log = folder / "metrics.jsonl"
    if not made.get("seconds") and log.exists():  # it was cut before its end
        made["seconds"] = max(json.loads(line).get("seconds", 0.0) for line in log.read_text().splitlines())
    made["seconds"] = round(made.get("seconds", 0.0))
    saved = checkpoint.steps_saved(folder)
    return made | ({"updates": saved[-1]} if saved and saved[-1] else {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=sorted(ABOUT))
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, default=Path("src/gibbsian/zoo/members"))
    parser.add_argument("--figures", type=Path, help="figures that were measured elsewhere")
    parser.add_argument("--made", type=Path, help="how it was made, where the run does not say: a JSON object")
    parser.add_argument("--picture", type=Path, help="a picture of draws that is there already")
    parser.add_argument("--draws", type=int, default=40, help="in the picture")
    parser.add_argument("--steps", type=int, help="of each; the recipe's by default")
    chosen = parser.parse_args()
    folder = chosen.out / chosen.name
    if not chosen.run.is_dir() or folder.resolve() == chosen.run.resolve():  # it would be gone before it is read
        parser.error(f"{chosen.run} is no run folder, or the member itself; say a run, or another --out")
    shutil.rmtree(folder, ignore_errors=True)
    if (chosen.run / "table.json").exists():
        zoo.pack_table(chosen.run, folder)
    elif is_packed(chosen.run):
        shutil.copytree(chosen.run, folder)
    else:
        zoo.pack(chosen.run, folder)
    figures = {} if chosen.figures and not (folder / "evaluation.json").exists() else judged(chosen.name, folder)
    if chosen.figures:
        figures |= {name: Figure(*figure) for name, figure in json.loads(chosen.figures.read_text()).items()}
    if chosen.picture:
        shutil.copy(chosen.picture, folder / "samples.png")
    else:
        picture(folder, chosen.draws, chosen.steps)
    made = made_by(folder, chosen.name) | (json.loads(chosen.made.read_text()) if chosen.made else {})
    classes: tuple[str, ...] = ()
    if (folder / "data.json").exists():
        classes = (
            tuple(checkpoint.read_tree(folder, "data")["classes"])
            if chosen.name.split("-")[-1] in ("jem", "dbn")
            else ()
        )
    for name in ("evaluation.json", "metrics.jsonl", "samples.npz", "command.json", "environment.json", "made.json"):
        (folder / name).unlink(missing_ok=True)
    about, data = ABOUT[chosen.name]
    letters = LETTERS.get(chosen.name, "")
    zoo.write_card(folder, Card(chosen.name, about, data, "MIT, as the library", made, figures, classes, letters))
    print(zoo.read_card(folder))


if __name__ == "__main__":
    main()
