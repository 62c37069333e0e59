"""Searches: trials over a space of a recipe's keys, workers that come, go and are killed, the best recipe and its page."""

import json
import os
import signal
import sys
import time

import pytest

from gibbsian.app.cli import main
from gibbsian.app.recipe import parse_recipe
from gibbsian.app.search.space import as_flags, read_space, settled
from gibbsian.app.search.study import Search
from gibbsian.errors import ArgumentError

RECIPE = """
about: a machine that is trained in no time
data: {name: digits, steps: [flatten, {rescale: {old: [0, 16]}}, {binarize: {how: threshold}}, {split: {validation: 200, test: 300}}]}
model: {RBM: {visible: 64, hidden: 3}}
objective: {ContrastiveDivergence: {kernel: Gibbs, steps: 1}}
initialize: true
fit: {steps: 3, batch_size: 100, lr: 0.1, optimizer: sgd}
sample: {steps: 2, show: 4}
"""
SPACE = """
fit.lr: {low: 0.001, high: 1.0, log: true}
model.hidden: [2, 5]
fit.optimizer: {choices: [sgd, adam]}
"""


# --- the space ------------------------------------------------------------------------------------


def test_a_space_is_ranges_and_choices_of_keys():
    lr, hidden, optimizer = read_space(SPACE, "space.yaml")
    assert (lr.whole, lr.log, hidden.whole, optimizer.choices) == (False, True, True, ("sgd", "adam"))
    assert as_flags({"fit.lr": 0.5, "fit.betas": [1, 2], "a": True}) == [
        "--fit.lr=0.5",
        "--fit.betas=[1, 2]",
        "--a=true",
    ]
    here = {"fit": {"lr": 0.1, "optimizer": "sgd"}, "model": {"class_path": "RBM", "init_args": {"hidden": 3}}}
    assert settled(here, [lr, hidden, optimizer]) == {"fit.lr": 0.1, "model.hidden": 3, "fit.optimizer": '"sgd"'}
    here["model"]["init_args"]["hidden"] = 9
    assert settled(here, [lr, hidden, optimizer]) == {}  # outside of the space


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "no space"),
        ("fit.lr: 3", "give \\[low, high\\]"),
        ("fit.lr: [2, 1]", "low < high"),
        ("fit.lr: {low: 0, high: 1, log: true}", "above 0"),
        ("fit.lr: {low: 1, hihg: 2}", "did you mean"),
        ("fit.lr: {choices: []}", "list of values"),
        ("fit.lr: [1", "not valid YAML"),
    ],
)
def test_spaces_that_are_none_are_refused(text, says):
    with pytest.raises(ArgumentError, match=says):
        read_space(text, "space.yaml")


# --- searching ------------------------------------------------------------------------------------


@pytest.fixture
def made(tmp_path):
    (tmp_path / "tiny.yaml").write_text(RECIPE)
    (tmp_path / "space.yaml").write_text(SPACE)
    return tmp_path


def search(made, *more, trials=3, space="space.yaml"):
    given = ["--space", str(made / space), "--trials", str(trials), "--run", str(made / "out"), *more]
    return main(["search", str(made / "tiny.yaml"), *given])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_search_goes_on_and_leaves_the_best_recipe_and_a_page(made, capsys):
    pytest.importorskip("optuna")
    assert search(made, "--json", "--no-report", trials=2) == 0
    first = json.loads(capsys.readouterr().out)
    assert first["trials"] == 2
    assert search(made, "--json", trials=5) == 0  # three more, and the best of all five
    second = json.loads(capsys.readouterr().out)
    assert second["trials"] == 5
    assert second["best"]["value"] >= first["best"]["value"]
    assert second["best"]["lower"] < second["best"]["value"] < second["best"]["upper"]
    assert set(second["test"]) == {"best", "recipe"}
    assert sum(second["importances"].values()) == pytest.approx(1.0)
    best = parse_recipe((made / "out" / "best.yaml").read_text())
    assert best.fit["lr"] == second["best"]["settings"]["fit.lr"]
    assert best.model.weight.shape[1] == second["best"]["settings"]["model.hidden"]
    first_trial = parse_recipe((made / "out" / "trials" / "0000" / "recipe.yaml").read_text())
    assert (first_trial.fit["lr"], first_trial.model.weight.shape[1]) == (0.1, 3)  # the recipe as it is
    page = (made / "out" / "report.html").read_text()
    assert page.count("<svg") == 3
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert f"trials/{second['best']['trial']:04d}/report.html" in page
    (made / "other.yaml").write_text("fit.lr: [0.1, 0.2]")
    assert search(made, space="other.yaml") == 2
    assert "another recipe, space or objective" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_killing_a_worker_loses_one_trial_at_most(made, capsys):
    optuna = pytest.importorskip("optuna")
    worker = os.fork()
    if worker == 0:  # whose second trial would never end
        from gibbsian.app.search import study

        plain = study.Search.recipe
        study.Search.recipe = lambda self, values, name=None: (
            time.sleep(600) if name == "tiny-1" else plain(self, values, name)
        )
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        search(made, "--no-report", "--quiet")
        os._exit(0)
    url = f"sqlite:///{made / 'out' / 'search.db'}"

    def states():
        try:
            trials = optuna.load_study(study_name="tiny", storage=url).trials
        except Exception:
            return []
        return [trial.state.name for trial in trials]

    for _ in range(600):
        if states() == ["COMPLETE", "RUNNING"]:
            break
        time.sleep(0.05)
    os.kill(worker, signal.SIGKILL)
    os.waitpid(worker, 0)
    assert search(made, "--json", "--no-report", trials=2) == 0
    assert json.loads(capsys.readouterr().out)["trials"] == 2
    assert states() == ["COMPLETE", "FAIL", "COMPLETE"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_worker_tells_of_its_own_trial_though_others_began_since(made, monkeypatch):
    optuna = pytest.importorskip("optuna")
    axes, told = tuple(read_space(SPACE, "space.yaml")), []
    own = Search("tiny", RECIPE, (), axes, objective="likelihood", folder=made / "out")

    def attempt(self, trial):
        other = {"fit.lr": 0.5, "model.hidden": 3, "fit.optimizer": '"sgd"'}
        trial.study.enqueue_trial(other)  # of another worker, that comes next
        return 1.0

    monkeypatch.setattr(Search, "attempt", attempt)
    study = own.work(1, told.append)
    assert [(trial.number, trial.value) for trial in told] == [(0, 1.0)]
    assert [trial.state for trial in study.trials] == [
        optuna.trial.TrialState.COMPLETE,
        optuna.trial.TrialState.WAITING,
    ]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_trials_that_fail_or_are_given_up_are_marked_and_others_go_on(made, capsys):
    optuna = pytest.importorskip("optuna")
    (made / "space.yaml").write_text("fit.batch_size: {choices: [100, -1]}\nfit.lr: [0.01, 0.1]")
    assert search(made, "--sampler", "random", "--no-report", trials=4) == 0
    assert "the best trials" in capsys.readouterr().out
    trials = optuna.load_study(study_name="tiny", storage=f"sqlite:///{made / 'out' / 'search.db'}").trials
    ended = {trial.state.name for trial in trials}
    assert ended == {"COMPLETE", "FAIL"}
    assert all("batch_size" in trial.user_attrs["error"] for trial in trials if trial.state.name == "FAIL")
    page = (made / "out" / "report.html").read_text()
    assert "Trials that failed" in page


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("objective", "pruner"), [("mmd", "median"), ("auroc", "none")])
def test_other_objectives_and_pruners(objective, pruner, made, capsys):
    pytest.importorskip("optuna")
    more = ["--evaluate.outside=[noise]"] if objective == "auroc" else ["--pruner", pruner, "--looks", "1"]
    assert search(made, "--json", "--no-report", "--objective", objective, *more, trials=1) == 0
    assert 0 < json.loads(capsys.readouterr().out)["best"]["value"] <= 1


def test_wrong_use_is_one_sentence(made, capsys):
    pytest.importorskip("optuna")
    for more, says in {
        ("--objective", "beauty"): "there are likelihood",
        ("--sampler", "tpee"): "tpe",
        ("--storage", "nonsense://"): "nonsense",
    }.items():
        assert search(made, *more) == 2
        assert says in capsys.readouterr().err
    (made / "space.yaml").write_text("fit.lrr: [0.1, 0.2]")
    assert search(made) == 2
    assert "lrr" in capsys.readouterr().err
    (made / "space.yaml").write_text(SPACE)
    (made / "tiny.yaml").write_text(RECIPE.replace("validation: 200, ", ""))
    assert search(made) == 1
    assert "split: {validation" in capsys.readouterr().err
    assert search(made, space="nowhere.yaml") == 2


def test_a_search_says_what_it_needs(made, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert search(made) == 1
    assert "gibbsian[search]" in capsys.readouterr().err
