"""A search of twenty trials of `digits-rbm` by two workers, one of which is killed on the way and started again.

    python benchmarks/search.py --save benchmarks/results/search.json        (beside searches with trials of other lengths)

Trials are chosen on validation rows; then the best settings and the recipe as it is are trained at the recipe's own length, two
seeds each, and judged on test rows, row by row against each other.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import yaml
from timing import save

import gibbsian as gb
from gibbsian.app import runs
from gibbsian.app.catalog import recipe_text
from gibbsian.app.recipe import parse_recipe
from gibbsian.app.search.space import as_flags
from gibbsian.app.search.study import library, ranked

SPACE = {
    "fit.lr": {"low": 0.05, "high": 1.0, "log": True},
    "fit.batch_size": {"choices": [50, 100, 200]},
    "model.hidden": {"low": 50, "high": 300, "log": True},
    "objective.objective.steps": {"choices": [1, 2, 5, 10]},
}


def worker(folder: Path, trials: int, epochs: int) -> subprocess.Popen:
    """One worker."""
    flags = ["--space", str(folder / "space.yaml"), "--trials", str(trials), "--run", str(folder), "--no-report"]
    command = [sys.executable, "-m", "gibbsian", "search", "digits-rbm", *flags, "--fit.epochs", str(epochs)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def counts(folder: Path) -> dict[str, int]:
    """Trials by how they ended."""
    study = library().load_study(study_name="digits-rbm", storage=f"sqlite:///{folder / 'search.db'}")
    states = [trial.state.name.lower() for trial in study.trials]
    return {name: states.count(name) for name in ("complete", "pruned", "fail", "running")}


def likelihoods(flags: list[str], seed: int, folder: Path) -> torch.Tensor:
    """Log-likelihoods of the test rows after the recipe's own number of epochs."""
    recipe = parse_recipe(recipe_text("digits-rbm"), [*flags, f"--fit.seed={seed}"], name="digits-rbm")
    _, (recipe, prepared) = runs.train(recipe, folder, progress=False)
    energy, x = runs.trained(folder, recipe), prepared.finished("test").x
    found = gb.evaluate(energy, x, train=prepared.finished("train").x, chains=recipe.evaluate.chains)
    return found.log_likelihood.per_sample.double()


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--save")
    options.add_argument("--trials", type=int, default=20)
    options.add_argument("--epochs", type=int, default=300)
    options.add_argument("--seeds", type=int, default=2)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "search")
        folder.mkdir()
        (folder / "space.yaml").write_text(yaml.safe_dump(SPACE))
        begun = time.perf_counter()
        workers = [worker(folder, given.trials, given.epochs) for _ in range(2)]
        while not (folder / "search.db").exists() or counts(folder)["complete"] < 5:
            time.sleep(0.5)
        workers[1].send_signal(signal.SIGKILL)
        workers[1].wait()
        workers[1] = worker(folder, given.trials, given.epochs)
        codes = [one.wait() for one in workers]
        seconds = time.perf_counter() - begun
        study = library().load_study(study_name="digits-rbm", storage=f"sqlite:///{folder / 'search.db'}")
        best = ranked(study)
        plain = next(trial for trial in best if trial.user_attrs.get("recipe"))
        settings = {k: json.loads(v) if isinstance(v, str) else v for k, v in best[0].params.items()}
        found = {
            "trials": given.trials, "epochs": given.epochs, "workers": 2, "exit_codes": codes, "seconds": seconds, "ended": counts(folder),
            "best": {"trial": best[0].number, "validation": best[0].value, "settings": settings},
            "recipe": {"validation": plain.value}, "values": sorted((t.value for t in best), reverse=True),
        }  # fmt: skip
        rows = {"recipe": [], "best": []}
        for name, flags in (("recipe", []), ("best", as_flags(settings))):
            rows[name] = [likelihoods(flags, seed, Path(place, f"{name}{seed}")) for seed in range(given.seeds)]
        gain = torch.stack(rows["best"]).mean(0) - torch.stack(rows["recipe"]).mean(0)
        error = float(gain.std() / len(gain) ** 0.5)
        for name, values in rows.items():
            found[name]["test"] = [float(one.mean()) for one in values]
        found["gain"] = {"value": float(gain.mean()), "stderr": error, "rows": len(gain), "seeds": given.seeds}
    print(json.dumps(found, indent=1))
    path = Path(given.save or "")
    others = [one for one in json.loads(path.read_text()) if one["epochs"] != given.epochs] if path.is_file() else []
    save(sorted([*others, found], key=lambda one: one["epochs"]), given.save)


if __name__ == "__main__":
    main()
