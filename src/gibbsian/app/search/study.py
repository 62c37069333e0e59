"""A search: workers that take trials from one study, on one machine or many, and go on where others were killed."""

import hashlib
import os
import socket
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gibbsian.app import runs
from gibbsian.app.recipe import Recipe, parse_recipe
from gibbsian.app.search.judge import AIMS, rows_of
from gibbsian.app.search.space import Axis, as_flags, settled
from gibbsian.errors import ArgumentError, CapabilityError, GibbsianError, suggest
from gibbsian.training.run import Run

SAMPLERS = {
    "tpe": "TPESampler", "random": "RandomSampler", "gp": "GPSampler", "cma-es": "CmaEsSampler", "qmc": "QMCSampler",
    "brute-force": "BruteForceSampler",
}  # fmt: skip
PRUNERS = {
    "none": "NopPruner", "median": "MedianPruner", "halving": "SuccessiveHalvingPruner", "hyperband": "HyperbandPruner",
    "wilcoxon": "WilcoxonPruner",
}  # fmt: skip


_CAUGHT = (GibbsianError, ArithmeticError, RuntimeError, ValueError)  # of settings that do not work
_TRIES = 10  # to open the data base, while another worker makes it


def library() -> Any:
    """Optuna, quiet."""
    try:
        import optuna
    except ImportError as error:
        raise CapabilityError("searches need the package optuna: pip install 'gibbsian[search]'") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


@dataclass(frozen=True)
class Search:
    """What a search is: the same for all its workers.

    Attributes:
        name, text, flags: the recipe, and what changes it in all trials.
        axes: what is searched.
        objective: what for, a name of `judge.AIMS`.
        folder: where the runs of trials lie.
        storage: the URL of the data base; SQLite in the folder by default.
        sampler, pruner: by name.
        looks: how often a trial is judged on its way, for the pruner.
        heartbeat: seconds between two signs of life of a worker; after three without one its trial counts as killed.
    """

    name: str
    text: str
    flags: tuple[str, ...]
    axes: tuple[Axis, ...]
    objective: str
    folder: Path
    storage: str | None = None
    sampler: str = "tpe"
    pruner: str = "none"
    seed: int = 0
    looks: int = 4
    heartbeat: int = 20

    def __post_init__(self) -> None:
        for what, given, known in (("--objective", self.objective, AIMS), ("--sampler", self.sampler, SAMPLERS), ("--pruner", self.pruner, PRUNERS)):  # fmt: skip
            if given not in known:
                raise ArgumentError(f"{what} {given}: {suggest(given, known)}there are {', '.join(known)}")

    def recipe(self, values: dict[str, Any], name: str | None = None) -> Recipe:
        """The recipe of a trial."""
        return parse_recipe(self.text, [*self.flags, *as_flags(values)], name=name or self.name)

    def check(self) -> Recipe:
        """The recipe as it is, once it is known that the space is made of its keys and that there are rows to choose by."""
        self.recipe({axis.key: axis.middle for axis in self.axes})
        plain = self.recipe({})
        rows_of(plain.data.prepare(), 1)
        return plain

    @property
    def fingerprint(self) -> str:
        """What may not change from worker to worker."""
        return hashlib.sha256(repr((self.text, self.flags, self.axes, self.objective)).encode()).hexdigest()

    # --- the study --------------------------------------------------------------------------------

    def open(self) -> Any:
        """The study of this search; the first worker makes it, and asks for the recipe as it is in the first trial."""
        optuna = library()
        plain = self.check()
        self.folder.mkdir(parents=True, exist_ok=True)
        url = self.storage or f"sqlite:///{(self.folder / 'search.db').resolve()}"
        store = self._store(url)
        common: dict[str, Any] = {"storage": store, "study_name": self.name, "pruner": self._pruner()}
        with quiet():
            try:
                study = optuna.create_study(**common, direction=AIMS[self.objective].direction)
                study.set_user_attr("fingerprint", self.fingerprint)
                known = settled(yaml.safe_load(plain.text), self.axes)
                if known:
                    study.enqueue_trial(known, user_attrs={"recipe": "as it is"})
            except optuna.exceptions.DuplicatedStudyError:
                study = optuna.load_study(**common)
                self._agree(study)
            study.sampler = self._sampler(self.seed + len(study.trials))  # workers must not ask for the same
        return study

    def _store(self, url: str) -> Any:
        """The data base; two workers that begin at the same moment may both want to make its tables, and one has to ask again."""
        from sqlalchemy.exc import SQLAlchemyError  # through which Optuna speaks to data bases

        refusals = (SQLAlchemyError, library().exceptions.OptunaError, ImportError, RuntimeError, ValueError)
        signs = {"heartbeat_interval": self.heartbeat, "grace_period": 3 * self.heartbeat}
        tries = 0
        while True:
            try:
                with quiet():
                    return library().storages.RDBStorage(url, **signs)
            except refusals as error:
                raced = "UNIQUE" in str(error) or "already exists" in str(error) or "locked" in str(error)
                tries += 1
                if tries == _TRIES or not raced:
                    raise ArgumentError(f"--storage {url}: {' '.join(str(error).split())[:300]}") from error
            time.sleep(0.5)

    def _agree(self, study: Any) -> None:
        for _ in range(50):  # the first worker may be at it
            known = study.user_attrs.get("fingerprint")
            if known is not None:
                break
            time.sleep(0.1)
        if known != self.fingerprint:
            raise ArgumentError(
                f"there is a search {self.name!r} of another recipe, space or objective in {self.storage or self.folder}; give another --run, "
                "or the same command as then"
            )

    def _sampler(self, seed: int) -> Any:
        kind = getattr(library().samplers, SAMPLERS[self.sampler])
        options: dict[str, Any] = {"seed": seed}
        if self.sampler == "tpe":
            options |= {
                "constant_liar": True,
                "n_startup_trials": 6,
            }  # trials of other workers that are not done yet count
        return kind(**options)

    def _pruner(self) -> Any:
        with quiet():
            return getattr(library().pruners, PRUNERS[self.pruner])()

    # --- working ----------------------------------------------------------------------------------

    def work(self, trials: int, tell: Callable[[Any], None] = lambda trial: None) -> Any:
        """Take trials until there are so many, and wait for those of others; returns the study."""
        study = self.open()
        states = library().trial.TrialState
        while True:
            bury_the_dead(study)
            alive = [t for t in study.get_trials(deepcopy=False) if t.state == states.RUNNING]
            if len(counted(study)) + len(alive) < trials:
                with quiet():
                    study.optimize(self.attempt, n_trials=1, catch=_CAUGHT, callbacks=[lambda _, trial: tell(trial)])
            elif alive:
                time.sleep(min(1.0, self.heartbeat))
            else:
                return study

    def attempt(self, trial: Any) -> float:
        """One trial: train, judge."""
        trial.set_user_attr("worker", f"{socket.gethostname()}:{os.getpid()}")
        folder = self.folder / "trials" / f"{trial.number:04d}"
        trial.set_user_attr("folder", str(folder))
        begun = time.perf_counter()
        try:
            recipe = self.recipe({axis.key: axis.ask(trial) for axis in self.axes}, f"{self.name}-{trial.number}")
            hooks = [] if self.pruner == "none" else [self._looking(trial, recipe)]
            _, (recipe, prepared) = runs.train(recipe, folder, progress=False, hooks=hooks)
            score = AIMS[self.objective].judge(recipe, prepared, runs.trained(folder, recipe))
        except _CAUGHT as error:
            trial.set_user_attr("error", " ".join(str(error).split())[:500])
            raise
        for name, value in zip(("lower", "upper"), score[1:], strict=True):
            trial.set_user_attr(name, value)
        trial.set_user_attr("seconds", time.perf_counter() - begun)
        return score.value

    def _looking(self, trial: Any, recipe: Recipe) -> Any:
        """A hook that judges a trial on its way and ends it where the pruner says so."""
        prepared = recipe.data.prepare()
        total = runs.total_steps(recipe, prepared)
        marks = sorted({max(1, round(total * k / (self.looks + 1))) for k in range(1, self.looks + 1)})

        def look(run: Run) -> None:
            energy = run.energy if run.ema is None else run.ema
            was_training = energy.training
            energy.eval()
            try:
                trial.report(AIMS[self.objective].judge(recipe, prepared, energy).value, run.step)
            finally:
                energy.train(was_training)
            if trial.should_prune():
                raise library().TrialPruned(f"given up after {run.step} of {total} updates")

        return marks, look


def counted(study: Any) -> list[Any]:
    """Trials that count: done, given up by the pruner, or failed for a reason of their own; not those of killed workers."""
    states = library().trial.TrialState
    every = study.get_trials(deepcopy=False)
    ended = [t for t in every if t.state in (states.COMPLETE, states.PRUNED)]
    return ended + [t for t in every if t.state == states.FAIL and "error" in t.user_attrs]


def bury_the_dead(study: Any) -> None:
    """Mark the trials of workers that are gone: of this machine at once, of others when they give no more signs of life."""
    optuna = library()
    with quiet():
        optuna.storages.fail_stale_trials(study)
    here = socket.gethostname()
    for trial in study.get_trials(deepcopy=False):
        host, _, process = trial.user_attrs.get("worker", ":").rpartition(":")
        if trial.state == optuna.trial.TrialState.RUNNING and host == here and not _alive(int(process)):
            with suppress(ValueError):  # another worker was quicker
                study.tell(trial.number, state=optuna.trial.TrialState.FAIL)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@contextmanager
def quiet() -> Iterator[None]:
    """Without Optuna's warnings of what is experimental."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=library().exceptions.ExperimentalWarning)
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"optuna")
        yield


def ranked(study: Any) -> list[Any]:
    """Trials that are done, the best first."""
    done = [t for t in study.get_trials(deepcopy=False) if t.state == library().trial.TrialState.COMPLETE]
    return sorted(done, key=lambda t: t.value, reverse=study.direction.name == "MAXIMIZE")


def importances(study: Any, axes: Sequence[Axis]) -> dict[str, float]:
    """How much of the spread of the objective every key explains (functional ANOVA), where there are trials enough."""
    if len(ranked(study)) < 5:
        return {}
    with quiet(), suppress(ValueError, RuntimeError):  # all values alike, or no key was ever changed
        evaluator = library().importance.FanovaImportanceEvaluator(seed=0)
        found = library().importance.get_param_importances(
            study, evaluator=evaluator, params=[axis.key for axis in axes]
        )
        return {key: float(value) for key, value in found.items()}
    return {}
