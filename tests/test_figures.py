"""The teaching figures at tiny size: each runs, and its key number points the right way. Figure 6 at its full accuracy.

Seeds are fixed, so nothing here is flaky; bounds are wide against the spread over seeds unless an error is stated.
"""

import importlib
import math
import sys
from pathlib import Path

import pytest
import torch

import gibbsian as gb

FOLDER = Path(__file__).parents[1] / "examples" / "figures"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "drawing")


@pytest.fixture(autouse=True)
def _examples_on_the_path(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER.parent))
    monkeypatch.syspath_prepend(str(FOLDER))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "").is_relative_to(FOLDER.parent):
            del sys.modules[name]


def figure(name):
    module = importlib.import_module(name)
    numbers, parts = module.compute(True)
    assert module.draw(numbers, parts).axes
    for value in numbers.values():
        assert all(map(math.isfinite, value if isinstance(value, tuple) else (value,)))
    return numbers, module


def test_every_figure_is_on_the_page_with_its_command_and_picture():
    page = (FOLDER.parents[1] / "docs" / "figures.md").read_text()
    assert len(NAMES) == 10
    for name in NAMES:
        assert f"python examples/figures/{name}.py" in page
        picture = FOLDER.parents[1] / "docs" / "images" / "figures" / f"{name}.png"
        assert f"images/figures/{name}.png" in page
        assert picture.stat().st_size < 60_000


def test_picture_and_numbers_from_the_command_line(tmp_path, monkeypatch, capsys):
    module = importlib.import_module("denoising_tradeoff")
    drawing = importlib.import_module("drawing")
    monkeypatch.setattr(sys, "argv", ["denoising_tradeoff.py", "--quick", "--out", str(tmp_path / "new")])
    drawing.main(module.__doc__, "denoising_tradeoff", module.compute, module.draw)
    assert (tmp_path / "new" / "denoising_tradeoff.png").read_bytes().startswith(b"\x89PNG")
    assert "best σ" in capsys.readouterr().out


def test_random_walk_needs_the_right_step():
    numbers, module = figure("random_walk")
    ess = {name: numbers[f"{name}: effective draws"] for name in module.SCALES}
    assert ess["good"] > 5 * max(ess["too small"], ess["too large"])
    rates = [numbers[f"{name}: acceptance"] for name in ("too small", "good", "too large")]
    assert rates[0] > 0.9 > 0.5 > rates[1] > 0.2 > 0.1 > rates[2]
    exact = numbers["P(x > 1), exact"]
    # a share has a standard error of √(q(1-q)/ESS); four of them
    assert abs(numbers["good: share above 1"] - exact) < 4 * math.sqrt(exact * (1 - exact) / ess["good"])


def test_unadjusted_langevin_is_caught_on_the_banana_and_the_adjusted_is_not():
    numbers, module = figure("langevin_banana")
    wrong, right = f"ULA, ε = {module.LARGE}", f"MALA, ε = {module.LARGE}"
    assert numbers[f"{wrong}: p"] < 0.05 < numbers[f"{right}: p"]
    (variance, error), (adjusted, spread) = (numbers[f"{name}: variance of x₂"] for name in (wrong, right))
    assert variance + 5 * error < module.VARIANCE
    assert abs(adjusted - module.VARIANCE) < 4 * spread


def test_score_of_a_mixture_is_learned():
    numbers, _ = figure("mixture_score")
    assert numbers["unexplained share"] < 0.15
    assert numbers["mean cosine of the angle"] > 0.9


def test_score_is_wrong_where_there_are_no_data():
    numbers, _ = figure("low_density")
    assert numbers["error beyond 4 deviations, mean"] > 3 * numbers["error within 2 deviations of a mode, mean"]
    assert numbers["share of the data beyond 4 deviations"] < 0.01


def test_loss_on_a_line_has_no_minimum_and_with_noise_its_closed_form():
    numbers, _ = figure("line_data")
    minimum = numbers["Gaussian, minimum with noise"]
    assert numbers["Gaussian, with noise: at the end"] == pytest.approx(minimum, rel=1e-3)
    assert numbers["Gaussian, on the line: at the end"] < 1000 * minimum
    assert numbers["network, on the line: at the end"] < 2 * numbers["network, with noise: at the end"]
    assert numbers["network, with noise: at the end"] > 1.3 * minimum  # a batch's loss scatters around it


def test_shares_of_plain_and_annealed_langevin():
    """10000 chains. The shares are binomial: standard errors 0.004 and 0.005, of which five are allowed."""
    module = importlib.import_module("annealed_mixing")
    numbers, parts = module.compute(False)
    assert module.draw(numbers, parts).axes
    (annealed, e), (plain, f) = numbers["annealed Langevin"], numbers["plain Langevin"]
    assert abs(annealed - 0.78) < 0.02
    assert abs(plain - 0.50) < 0.03
    assert abs(annealed - numbers["annealed Langevin, on a grid"]) < 5 * e
    assert abs(plain - 0.5) < 5 * f
    for x, exact in zip(parts[3], parts[4], strict=True):  # after every level
        q, error = module.share(x)
        assert abs(q - exact) < 5 * error


def test_contrastive_learning_pushes_down_at_data_and_up_at_chains():
    numbers, _ = figure("contrastive")
    assert numbers["push of the first 30 updates, data less chains"] < -0.1
    divergences = [value for name, value in numbers.items() if "KL" in name]
    assert divergences[-1] < 0.2 * divergences[0]


def test_bias_and_variance_of_denoising_follow_their_closed_forms():
    numbers, module = figure("denoising_tradeoff")
    assert numbers["largest error of a bias, in standard errors"] < 4
    assert numbers["largest relative error of a variance"] < 0.2  # √(2/2000) for normal λ̂, heavier tails here
    best = torch.tensor(numbers["best σ"])
    for sigma in (best / 4, best * 4):
        assert sum(module.closed_form(sigma)) > sum(module.closed_form(best))


def test_receptive_fields_differ_and_digits_are_learned():
    numbers, _ = figure("receptive_fields")
    assert numbers["digits: held-out log-likelihood, nats (AIS)"] > numbers["digits: independent pixels, nats"] + 0.3
    assert numbers["patches: |cosine| of two filters, mean"] < 0.2  # all alike in a machine that has collapsed


def test_composed_energies_mean_what_their_words_say():
    numbers, _ = figure("composition")
    share = {
        name: numbers[f"{name}: share in the blob, on a grid"]
        for name in ("ring", "blob", "ring and blob", "ring or blob", "ring, not blob")
    }
    assert share["ring, not blob"] < 0.6 * share["ring"]
    assert share["ring and blob"] > share["blob"] > share["ring or blob"] > share["ring"]
    assert share["ring or blob"] == pytest.approx((share["ring"] + share["blob"]) / 2, abs=0.01)


def test_a_quick_look_at_color_images_is_judged_though_no_temperature_suits_it():
    """After three updates its classifier may be worse than chance; the example ended in a traceback after its training."""
    judged = importlib.import_module("cifar_jem").judged
    joint = gb.models.JointEnergy(torch.nn.Identity(), gb.domains.Real(3))
    x, y = 2 * torch.eye(3).repeat(4, 1), torch.arange(3).repeat(4)
    wrong = judged(joint, (x, (y + 1) % 3), (x, y))
    assert wrong["temperature"] is None
    assert "worse than chance" in wrong["why"]
    assert wrong["as it is"]["accuracy"] == 1.0
    some = torch.cat([y[:-1], y[:1]])
    assert judged(joint, (x, some), (x, y))["at the temperature"]["accuracy"] == 1.0
