"""Reports as a reader has them: verdicts in words, curves that are hovered and zoomed, a slider, detectors, runs side by side."""

import io
import json
import math
from pathlib import Path

import pytest
import torch
from chromium import browsing, find_chromium

import gibbsian as gb
from gibbsian import plots
from gibbsian.app.cli import main
from gibbsian.app.evaluation import chain_numbers
from gibbsian.app.report import build, comparison, figures
from gibbsian.app.report.comparison import best_of, comparable, names_of
from gibbsian.app.report.verdict import next_steps, p_value, verdict
from gibbsian.app.runs import open_run, trained
from gibbsian.errors import ArgumentError, CapabilityError
from gibbsian.metrics.ood import auroc
from gibbsian.progress import progress_bar
from gibbsian.uses.draw import draw_with_trace

PLANE = """
about: a test <i>of</i> words
data: {name: moons, n: 600, steps: [{split: {validation: 50, test: 100}}]}
model: {MLPEnergy: {domain: 2, hidden: [16], confine: 0.5}}
objective: {DenoisingScoreMatching: {sigma: 0.4}}
fit: {steps: %d, batch_size: 50, logging: {every: 3, validate_every: 4}}
sample: {steps: 30, kernel: {MALA: {step_size: 0.4}}}
evaluate: {outside: [noise]}
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("explore")
    for name, steps in (("short", 12), ("long", 24)):
        (folder / f"{name}.yaml").write_text(PLANE % steps)
        assert main(["train", str(folder / f"{name}.yaml"), "--run", str(folder / name), "-q", "--no-report"]) == 0
    assert main(["report", str(folder / "short"), str(folder / "long"), "-q"]) == 0  # judges both before
    return folder


# --- words ----------------------------------------------------------------------------------------


def found(**more):
    return {"part": "test", **more}


@pytest.mark.parametrize(
    ("given", "level", "words"),
    [
        ({"chains": {"r_hat": 1.17, "ess": 9.0, "chains": 64, "divergent": 0}}, "bad", "chains have not mixed: R-hat 1.17, run longer"),
        ({"chains": {"r_hat": 1.004, "ess": 900.0, "chains": 64, "divergent": 0}}, "good", "chains have mixed: R-hat 1.004, 900 effective"),
        ({"chains": {"r_hat": 1.03, "ess": 90.0, "chains": 64, "divergent": 0}}, "open", "nearly mixed: R-hat 1.03"),
        ({"chains": {"r_hat": 1.0, "ess": 90.0, "chains": 64, "divergent": 3}}, "bad", "3 of 64 chains"),
        ({"two_sample": {"p_value": 0.005}}, "bad", "samples differ from data, p = .005"),
        ({"two_sample": {"p_value": 0.02}}, "open", "samples may differ from data, p = .020"),
        ({"two_sample": {"p_value": 0.43}}, "good", "samples cannot be told from data, p = .430"),
        ({"likelihood": {"value": -5.0, "lower": -6.0, "upper": -4.0}, "baseline": {"what": "one Gaussian", "value": -9.0}}, "good", "4.0 nats likelier than under one Gaussian"),
        ({"likelihood": {"value": -9.0, "lower": -9.5, "upper": -8.5}, "baseline": {"what": "one Gaussian", "value": -5.0}}, "bad", "4.0 nats less likely"),
        ({"likelihood": {"value": -9.0, "lower": -12.0, "upper": None}, "baseline": {"what": "one Gaussian", "value": -10.0}}, "open", "is not known"),
        ({"likelihood": {"value": -9.0, "lower": -9.5, "upper": -8.5}, "train_likelihood": {"value": -5.0, "lower": -5.5, "upper": -4.5}}, "bad", "training rows are 4.0 nats likelier"),
        ({"anomalies": {"auroc": 0.93}}, "good", "energies find labeled anomalies: AUROC 0.930"),
        ({"outside": {"noise": {"auroc": 0.45}, "gone": {"missing": "not there"}}}, "bad", "do not find noise"),
        ({"classes": {"accuracy": 0.943, "calibration_error": 0.2}}, "open", "94.3 % of test rows get their class, but"),
        ({"classes": {"accuracy": 0.11, "calibration_error": 0.0, "rows": 1000, "commonest": 0.1}}, "bad", "11.0 % of test rows get their class, which cannot be told from naming the commonest for all (10.0 %)"),
        ({"classes": {"accuracy": 0.13, "calibration_error": 0.0, "rows": 1000, "commonest": 0.1}}, "good", "13.0 % of test rows get their class, with a confidence"),
        ({"classes": {"accuracy": 1.0, "calibration_error": 0.0, "rows": 9, "commonest": 1.0}}, "good", "100.0 % of test rows"),
    ],
)  # fmt: skip
def test_a_verdict_says_what_was_found(given, level, words):
    (said,) = verdict(found(**given))
    assert said.level == level
    assert words in said.text


def test_bad_news_come_first_and_rollbacks_are_said():
    given = found(two_sample={"p_value": 0.5}, anomalies={"auroc": 0.5})
    said = verdict(given, [{"event": "rollback"}, {"event": "rollback"}, {"event": "note"}])
    assert [one.level for one in said] == ["bad", "bad", "good"]
    assert "rolled back 2 times" in said[1].text


def test_p_values_are_rounded_as_papers_do():
    assert [p_value(p) for p in (0.00001, 0.005, 0.0495, 1.0)] == ["p < .001", "p = .005", "p = .050", "p = 1"]


@pytest.mark.parametrize(
    ("kernel", "asked"),
    [(gb.kernels.MALA(0.1), True), (gb.kernels.Langevin(0.1), True), (gb.kernels.ShortRunLangevin(0.1, 0.01), False)],
)
def test_only_chains_that_settle_in_a_law_are_asked_whether_they_have_mixed(kernel, asked):
    """Short-run chains end in the nearest well: R-hat is large for as long as they run, so that more steps are no advice."""
    energy = gb.energies.Bimodal()
    drawn = draw_with_trace(
        energy, 16, generator=torch.Generator().manual_seed(0), steps=100, kernel=kernel, keep=True, progress=False
    )
    assert (chain_numbers(drawn).get("chains", {}).get("r_hat", 0.0) > 1.05) is asked


def test_kernels_that_know_their_steps_go_a_way():
    every = [
        thing for thing in vars(gb.kernels).values() if isinstance(thing, type) and issubclass(thing, gb.kernels.Kernel)
    ]
    ways = {cls for cls in every if cls.total_steps is not gb.kernels.Kernel.total_steps}
    assert ways
    assert not any(cls.mixes for cls in ways)


def test_what_to_do_next_depends_on_what_is_wrong():
    assert next_steps({"step": 10}, "a b")[0] == "gibbsian resume 'a b' --steps 20"
    mixing = next_steps({"step": 10, "chains": {"r_hat": 1.2}}, "a", 100)
    assert mixing[0] == "gibbsian sample a -n 100 --steps 1000"


def test_the_terminal_says_the_verdict_of_the_page(runs, capsys, monkeypatch):
    monkeypatch.setattr(build, "_page", lambda *_: (runs / "short" / "report.html").read_text())  # pictures take time
    assert main(["report", str(runs / "short")]) == 0
    said = capsys.readouterr().out
    page = (runs / "short" / "report.html").read_text()
    findings = verdict(json.loads((runs / "short" / "evaluation.json").read_text()))
    assert findings
    for finding in findings:
        assert finding.text in said
        assert finding.text in page
    assert "next: gibbsian" in said


# --- in the browser -------------------------------------------------------------------------------

POINT = """((kind, share) => { const svg = document.querySelector('.chart svg'), area = svg.getBoundingClientRect();
  svg.setPointerCapture = () => {};
  svg.dispatchEvent(new PointerEvent(kind, {clientX: area.left + share * area.width, clientY: area.top + 50, pointerId: 1, bubbles: true}));
  return document.querySelector('.chart .tip').textContent; })"""
TICKS = "[...document.querySelectorAll('.chart')][0].querySelectorAll('text').length"
needs_browser = pytest.mark.skipif(find_chromium() is None, reason="no chromium to open the page in")


@pytest.fixture(scope="module")
def browser():
    with browsing() as one:
        yield one


@needs_browser
@pytest.mark.parametrize("look", [{"width": 1200}, {"width": 390}, {"width": 1200, "dark": True}], ids=str)
def test_nothing_is_cut_off_broken_or_dead(runs, browser, look, tmp_path):
    browser.errors.clear()
    pages = [runs / "short" / "report.html", runs / "comparison.html"]
    for page in pages:
        browser.open(page.as_uri(), **look)
        assert not browser.faults()
    if look.get("dark"):
        from PIL import Image

        browser.open(pages[0].as_uri(), **look)
        browser.picture(tmp_path / "dark.png", whole=True)
        with Image.open(tmp_path / "dark.png") as picture:
            counts = picture.convert("L").histogram()
        assert sum(counts[235:]) < 0.01 * sum(counts)  # no white boxes; letters and contours are less


@needs_browser
def test_curves_are_read_and_zoomed(runs, browser):
    browser.errors.clear()
    browser.open((runs / "long" / "report.html").as_uri(), width=1000)
    log = [json.loads(line) for line in (runs / "long" / "metrics.jsonl").read_text().splitlines()]
    losses = {r["step"]: r["loss"] for r in log if "loss" in r}
    said = browser.run(f"{POINT}('pointermove', 0.98)")
    step, value = said.removeprefix("step ").split(": ")
    assert int(step) == max(losses)
    assert float(value) == pytest.approx(losses[max(losses)], rel=1e-3)
    for kind, share in (("pointerdown", 0.45), ("pointermove", 0.7), ("pointerup", 0.7)):
        browser.run(f"{POINT}('{kind}', {share})")
    assert not browser.run("document.querySelector('.chart .back').hidden")
    said = browser.run(f"{POINT}('pointermove', 0.98)")  # the right end is another step now
    assert min(losses) < int(said.removeprefix("step ").split(": ")[0]) < max(losses)
    browser.run("document.querySelector('.chart .back').click()")
    assert browser.run("document.querySelector('.chart .back').hidden")
    keys = "['ArrowLeft', '+', 'Escape'].forEach(key => document.querySelector('.chart svg').dispatchEvent(new KeyboardEvent('keydown', {key})))"
    browser.run(keys)
    assert not browser.errors


@needs_browser
def test_a_slider_goes_through_training_to_its_end(runs, browser):
    browser.open((runs / "long" / "report.html").as_uri())
    show = "(i => { const s = document.querySelector('.reel input'); s.value = i; s.dispatchEvent(new Event('input')); return document.querySelector('.reel output').textContent + ' ' + document.querySelectorAll('.film figure:not([hidden])').length; })"
    assert browser.run("document.querySelector('.reel output').textContent") == "trained"
    assert browser.run(f"{show}(0)") == "step 1 1"
    last = int(browser.run("document.querySelector('.reel input').max"))
    assert browser.run(f"{show}({last - 1})") == "step 24 1"


# --- parts ----------------------------------------------------------------------------------------


def test_strange_rows_and_the_curve_of_a_detector_are_those_of_the_energy(runs):
    from gibbsian.app.report.detectors import detectors

    recipe, prepared = open_run(runs / "short")
    energy = trained(runs / "short", recipe)
    known = json.loads((runs / "short" / "evaluation.json").read_text())
    shown = detectors(recipe, prepared, energy, known, None)
    x = prepared.finished("test", 1000).x
    with torch.no_grad():
        order = energy(x).argsort(descending=True)[:8]
    assert [row["row"] for row in shown["strange"]] == [int(i) + 1 for i in order]
    (line,) = shown["data"]["series"]
    area = sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in zip(line["points"], line["points"][1:], strict=False))
    assert area == pytest.approx(known["outside"]["noise"]["auroc"], abs=2e-3)  # by trapezoids, curve against rates


def test_a_few_far_energies_do_not_squeeze_a_histogram():
    import matplotlib.figure

    near, far = torch.linspace(0, 1, 500), torch.full((500,), 1e6)
    text = figures.energies({"data": near, "noise": far}, {"data": near})
    assert "100 % higher" in text
    ax = plots.energy_histogram({"data": near, "noise": far}, matplotlib.figure.Figure().subplots(), within=(0.0, 3.0))
    heights = [patch.get_height() for patch in ax.patches if hasattr(patch, "get_height")]
    assert sum(height > 0 for height in heights) > 10
    assert sum(heights) == pytest.approx(1.0)  # shares of all rows of a set, also of those beyond


def test_runs_are_named_apart_and_compared(runs, capsys, monkeypatch):
    assert list(names_of([Path("a/x"), Path("b/x")])) == ["a/x", "b/x"]
    with pytest.raises(ArgumentError, match="twice"):
        names_of([Path("a"), Path("a")])
    text = (runs / "comparison.html").read_text()
    assert "fit.steps" in text  # where they differ
    for name in ("short", "long"):
        assert f'"{name}/report.html"' in text
    monkeypatch.setattr(comparison, "render", lambda *_: "a page")
    target = runs / "other" / "page.html"
    target.parent.mkdir()
    assert main(["report", str(runs / "short"), str(runs / "long"), "--out", str(target)]) == 0
    assert target.read_text() == "a page"
    assert "side by side" in capsys.readouterr().out
    ll = {"value": -5.0, "lower": -8.0, "upper": -2.0}
    assert best_of({"a": {"likelihood": ll}, "b": {"likelihood": ll | {"value": -6.0}}}, same=True)[0].level == "open"
    assert main(["report", str(runs / "short"), "--out", "x.html"]) != 0


def test_a_recipe_that_is_none_is_named_where_runs_are_compared(tmp_path):
    for name, text in (("a", "fit: {lr: 0.1}"), ("b", "fit: {lr: [}")):
        (tmp_path / f"{name}.yaml").write_text(text)
    with pytest.raises(ArgumentError, match=r"b\.yaml is not valid YAML: line 1"):
        comparison.differences([tmp_path / "a.yaml", tmp_path / "b.yaml"])


def test_runs_on_other_data_are_not_ranked():
    ll = {"value": -5.0, "lower": -5.5, "upper": -4.5}
    a, b = ({"likelihood": ll, "baseline": {"what": "one Gaussian", "value": value}} for value in (-9.0, -30.0))
    (said,) = best_of({"a": a, "b": b}, same=comparable({"a": a, "b": b}))
    assert "cannot be compared" in said.text


# --- notebooks and terminals ----------------------------------------------------------------------


def test_progress_is_whole_in_a_narrow_terminal():
    from rich.console import Console

    for width in (44, 80):
        out = io.StringIO()
        console = Console(file=out, width=width, force_terminal=True, color_system=None, legacy_windows=False)
        with progress_bar(150_000, "training", True, console) as advance:
            advance(12_345, gap=-0.012345, **{"steps/s": 1446.31})
        line = next(line for line in reversed(out.getvalue().replace("\r", "\n").split("\n")) if "training" in line)
        assert "12345/150000" in line
        assert "gap -0.0123" in line
        assert "…" not in line
        assert (width < 72) == ("steps/s" not in line)


def test_only_a_loss_that_falls_is_shown():
    gibbs = gb.kernels.Gibbs()
    assert gb.objectives.ExactLikelihood().descends()
    assert not gb.objectives.ContrastiveDivergence(kernel=gibbs).descends()
    assert not gb.objectives.Centered(gb.objectives.PersistentContrastiveDivergence(kernel=gibbs)).descends()
    assert not gb.objectives.Adversarial().descends()
    assert not gb.objectives.FirstRows(gb.objectives.RecoveryLikelihood()).descends()


def test_notebooks_show_cards_and_pictures():
    import matplotlib.figure

    ax = lambda: matplotlib.figure.Figure().subplots()  # noqa: E731
    g = torch.Generator().manual_seed(0)
    ring, rbm = gb.energies.Ring(), gb.models.RBM(16, 6)
    trace = gb.sample(ring, gb.kernels.RandomWalk(0.5), torch.ones(3, 2), steps=50, generator=g)
    x = torch.bernoulli(torch.full((40, 16), 0.5), generator=g)
    run = gb.fit(rbm, gb.objectives.ContrastiveDivergence(kernel=gb.kernels.Gibbs()), x, steps=60, batch_size=20)
    log_z = gb.partition.exact(rbm)
    for thing, words in (
        (ring, "Real(2)"),
        (rbm, "Binary(16)"),
        (trace, "RandomWalk"),
        (run, "60"),
        (log_z, "exact sum"),
    ):
        card = thing._repr_html_()
        assert words in card
        assert card.count("<tr") == card.count("</tr>") > 1
    assert f"{float(log_z.value):.5g}" in log_z._repr_html_()
    assert ">loss<" not in run._repr_html_()  # a contrast
    for show in ("traces", "ranks", "paths"):
        trace.plot(ax(), show=show)
    with pytest.raises(ArgumentError, match="show="):
        trace.plot(ax(), show="other")
    assert ring.plot(ax()).get_xlabel() == "$x_1$"
    assert rbm.plot(ax()).get_title() == "filters"
    with pytest.raises(CapabilityError, match="no picture"):
        gb.as_energy(lambda x: x.sum(-1), gb.domains.Binary(4)).plot(ax())
    assert run.plot(ax(), "gradient_norm").get_ylabel() == "gradient norm"
    with pytest.raises(ArgumentError, match="gradient_norm"):
        run.plot(ax(), "other")


def test_a_card_says_nothing_that_a_page_would_run():
    from gibbsian.drawing.html import card

    assert "<script" not in card("<script>", [("<script>", "<script>")], note="<script>")


def test_the_area_is_that_of_the_rates():
    a, b = torch.randn(200, generator=torch.Generator().manual_seed(1)), torch.ones(100)
    picture, data = figures.roc({"x": (a, b)})
    assert data["series"][0]["points"][0] == [0.0, 0.0]
    assert data["series"][0]["points"][-1] == [1.0, 1.0]
    assert f"{float(auroc(a, b)):.3f}" in picture
    assert math.isfinite(float(auroc(a, b)))


@needs_browser
def test_a_crawl_sees_what_is_wrong(browser, tmp_path):
    (tmp_path / "bad.html").write_text(
        """<body style="margin:0"><img src="gone.png" alt="gone"><a href="#nowhere">link</a><section></section><p>0.30000000000000004</p><p>nan</p>
        <figure><svg viewBox="0 0 100 50" width="200"><text x="80" y="20">cut off here</text></svg></figure><div style="width:5000px">wide</div>
        <script>console.error("said")</script></body>"""
    )
    browser.open((tmp_path / "bad.html").as_uri())
    found = browser.faults()
    for words in (
        "console: said", "not loaded", "broken picture", "dead link", "empty section", "nobody reads", "word of programs", "cut off", "wider",
    ):  # fmt: skip
        assert any(words in one for one in found), (words, found)
    (tmp_path / "good.html").write_text("<body><p>0.3 of all</p></body>")
    assert not browser.open((tmp_path / "good.html").as_uri()).faults()
