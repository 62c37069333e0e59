"""The numerics of the lab against the library: energies, gradients, single steps on the same noise, moments, log Z.

Statistical tests compare at 3 standard errors what independent chains gave; of many such comparisons a few in a thousand lie
beyond, so no more may than a binomial of that rate allows once in ten thousand runs, and none beyond 5.
"""

import itertools
import json
import math
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from chromium import browsing, find_chromium
from scipy import stats
from torch import Tensor

import gibbsian as gb
from gibbsian.app.lab.serve import page, serving

PAGE = page()
NUMBERS = Path(__file__).parent / "lab" / "numbers.mjs"

torch_f64 = {"dtype": torch.float64}


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def randn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), **torch_f64)


THREE = ([-1.6, -0.96, 1.6, -0.8, 0.0, 1.6], [0.55, 0.4, 0.5], [0.5, 0.2, 0.3])


def three_hills() -> Any:
    means, deviations, weights = THREE
    covariances = torch.stack([s * s * torch.eye(2, **torch_f64) for s in deviations])
    return gb.energies.GaussianMixture(torch.tensor(means, **torch_f64).view(3, 2), covariances, weights)


LAWS: dict[str, tuple[dict[str, Any], Any]] = {
    "gaussian": (
        {"law": "gaussian", "options": {"scale": 2.0, "correlation": 0.7}},
        lambda: gb.energies.Gaussian(torch.zeros(2), torch.tensor([[1.0, 1.4], [1.4, 4.0]])),
    ),
    "three hills": ({"law": "threeHills"}, three_hills),
    "banana": (
        {"law": "banana", "options": {"curvature": 0.3, "scale": 1.5}},
        lambda: gb.energies.Banana(curvature=0.3, scale=1.5),
    ),
    "double well": (
        {"law": "doubleWell", "options": {"barrier": 1.5, "distance": 1.2}},
        lambda: gb.energies.DoubleWell(barrier=1.5, distance=1.2),
    ),
    "ring": (
        {"law": "ring", "options": {"radius": 1.5, "width": 0.4}},
        lambda: gb.energies.Ring(radius=1.5, width=0.4),
    ),
    "funnel": ({"law": "funnel", "options": {"scale": 1.0}}, lambda: gb.energies.Funnel(scale=1.0)),
}


def law(name: str) -> Any:
    return LAWS[name][1]().double()


# --- how JavaScript is run -----------------------------------------------------------------------------------------


def in_node(cases: dict[str, list[Any]], folder: Path) -> dict[str, list[Any]]:
    path = folder / "cases.json"
    path.write_text(json.dumps(cases))
    command = [str(shutil.which("node")), str(NUMBERS), str(path), f"{PAGE}/"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def in_chromium(cases: dict[str, list[Any]], folder: Path) -> dict[str, list[Any]]:
    shutil.copytree(PAGE / "core", folder / "core")
    shutil.copy(NUMBERS, folder)
    with serving(folder) as address, browsing() as browser:
        browser.open(f"{address}numbers.mjs")
        script = f'import("{address}numbers.mjs").then((m) => m.run({json.dumps(cases)}, "{address}"))'
        return browser.run(script)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What the lab makes of all cases, in node or else in a browser."""
    folder = tmp_path_factory.mktemp("lab")
    if shutil.which("node"):
        return in_node(CASES, folder)
    if find_chromium():
        return in_chromium(CASES, folder)
    pytest.skip("neither node nor chromium is installed")


# --- cases: what is asked of the lab, beside what the library says ---------------------------------------------------

POINTS = randn(40, 2, seed=1) * 1.5
CASES: dict[str, list[Any]] = {
    "random": [{"seed": 1, "n": 20000}],
    "laws": [{**case, "points": POINTS.tolist()} for case, _ in LAWS.values()],
    "times": [{"rho": 0.0}, {"rho": 0.8}],
    "onsager": [{"temperature": t} for t in (1.5, 2.2, 3.0)],
}

FORMULAS: dict[str, Any] = {
    "x^2/2 + 3(y - x^2)^2": lambda x, y: x**2 / 2 + 3 * (y - x**2) ** 2,
    "-x^2 + 2x y - -y": lambda x, y: -(x**2) + 2 * x * y + y,
    "exp(-x)*sin(3y) + cosh(x)/2": lambda x, y: torch.exp(-x) * torch.sin(3 * y) + torch.cosh(x) / 2,
    "2^x^2 - x/y/2": lambda x, y: 2 ** (x**2) - x / y / 2,
    "sqrt(x² + y²)·tanh(x) + abs(y)": lambda x, y: torch.sqrt(x**2 + y**2) * torch.tanh(x) + y.abs(),
    "max(x, y) + min(x, 2) * log(1 + x^2) + pi": lambda x, y: (
        torch.maximum(x, y) + torch.minimum(x, x * 0 + 2) * torch.log(1 + x**2) + math.pi
    ),
    "atan2(y, x)^2 + atan(x) - cos(x)tan(y/4) + sinh(x)": lambda x, y: (
        torch.atan2(y, x) ** 2 + torch.atan(x) - torch.cos(x) * torch.tan(y / 4) + torch.sinh(x)
    ),
    "(x^2 + 1)^(y/2) + 1e-1x**3": lambda x, y: (x**2 + 1) ** (y / 2) + 0.1 * x**3,
}
CASES["formulas"] = [{"text": text, "points": POINTS.tolist()} for text in FORMULAS]
REFUSED = {
    "x +": 3,
    "x $ y": 2,
    "foo(x)": 0,
    "sin(x, y)": 0,
    "(x + 1": 6,
    "x ) y": 2,
    "": 0,
    "alert(1)": 0,
    "x.constructor": 1,
}
CASES["refused"] = [{"text": text} for text in REFUSED]
CASES["drawn"] = [{"strokes": [[0, 0, 0.5, 3], [1, 1, 0.4, 4], [0.2, 0, 0.3, -1]], "points": (POINTS[:12]).tolist()}]

VIEW = [-7.0, 7.0, -14.0, 14.0]
CASES["truths"] = [{**case, "view": VIEW} for case, _ in LAWS.values()]


# single steps on the same noise

KERNELS: dict[str, tuple[dict[str, Any], Any]] = {
    "randomWalk": ({"stepSize": 0.8}, lambda: gb.kernels.RandomWalk(0.8)),
    "ula": ({"stepSize": 0.3}, lambda: gb.kernels.Langevin(0.3)),
    "mala": ({"stepSize": 0.6, "mass": 1.7}, lambda: gb.kernels.MALA(0.6, mass=1.7)),
    "hmc": (
        {"stepSize": 0.3, "leapfrogSteps": 4, "mass": 0.6, "jitter": 0},
        lambda: gb.kernels.HMC(0.3, leapfrog_steps=4, mass=0.6, jitter=0.0),
    ),
    "underdamped": (
        {"stepSize": 0.3, "friction": 1.3, "mass": 1.5},
        lambda: gb.kernels.UnderdampedLangevin(0.3, 1.3, mass=1.5),
    ),
    "guided": (
        {"stepSize": 0.4, "friction": 0.7, "mass": 1.5},
        lambda: gb.kernels.UnderdampedLangevin(0.4, 0.7, mass=1.5, adjusted=True),
    ),
}
STEPS = 12
START = randn(6, 2, seed=2)
REPLAYS = list(itertools.product(KERNELS, ("banana", "three hills", "funnel")))


def library_steps(kernel: Any, energy: Any) -> tuple[list[Any], list[float], list[list[float]]]:
    """Normals and uniforms in the order in which the lab asks for them, and where the library's chains go with them."""
    inputs = kernel.draw(energy, START, STEPS, seeded(3))
    state, places, uniforms = kernel.init(energy, START), [], []
    for t in range(STEPS):
        one = type(inputs)(*[part[t] for part in inputs])
        state, _ = kernel.step(energy, state, one)
        places.append(state.x.flatten().tolist())
        uniforms += inputs.threshold[t].exp().tolist()
    return inputs.z.flatten().tolist(), uniforms, places


STEPPED = {(kernel, name): library_steps(KERNELS[kernel][1](), law(name)) for kernel, name in REPLAYS}
CASES["replays"] = [
    {
        **LAWS[name][0],
        "kernel": kernel,
        "settings": KERNELS[kernel][0],
        "start": START.flatten().tolist(),
        "steps": STEPS,
    }
    | dict(zip(("normals", "uniforms"), STEPPED[kernel, name], strict=False))
    for kernel, name in REPLAYS
]

# moments after burn-in

EXACT = {
    "randomWalk": {"stepSize": 0.9},
    "independence": {"width": 2.5},
    "mala": {"stepSize": 0.55},
    "hmc": {"stepSize": 0.25, "leapfrogSteps": 6},
    "nuts": {"stepSize": 0.3},
    "guided": {"stepSize": 0.25, "friction": 1.0},
    "microcanonical": {"stepSize": 0.4, "leapfrogSteps": 5},
    "tempering": {"stepSize": 0.5},
}
COSTS = {"hmc": 4, "nuts": 4, "microcanonical": 4, "tempering": 2}  # fewer steps where one goes further
GENTLE = ("hmc", "nuts", "guided", "microcanonical")  # their steps are short: a right integrator is hardly ever refused
PAIRS = list(itertools.product(EXACT, LAWS))
CASES["moments"] = [
    {
        **LAWS[name][0],
        "kernel": kernel,
        "settings": EXACT[kernel],
        "temperatures": [1, 2.5, 6],
        "seed": 100 + number,
        "spread": 0.7,  # light tails hold MALA where a step overshoots, for good
        "chains": 400,
        "burnIn": 240 // COSTS.get(kernel, 1),
        "steps": 320 // COSTS.get(kernel, 1),
    }
    for number, (kernel, name) in enumerate(PAIRS)
]
BIASED = [(kernel, name) for kernel in ("ula", "underdamped") for name in ("gaussian", "banana", "ring")]
CASES["moments"] += [
    {
        **LAWS[name][0],
        "kernel": kernel,
        "settings": KERNELS[kernel][0],
        "seed": 300 + number,
        "spread": 0.7,
        "chains": 400,
    }
    | {"burnIn": 150, "steps": 150}
    for number, (kernel, name) in enumerate(BIASED)
]

# learning

WIDTH, CONFINE = 0.8, 0.3


def bumps(dim: int) -> tuple[dict[str, Any], Any]:
    """The same exponential family here and there: bumps with random weights."""
    centers, theta = randn(9, dim, seed=4), randn(9, seed=5)

    def features(x: Tensor) -> Tensor:
        q = (x[:, None] - centers.to(x)).square().sum(-1)
        return torch.cat([torch.exp(-0.5 * q / WIDTH**2), -0.5 * CONFINE * x.square().sum(1, keepdim=True)], 1)

    eta = torch.cat([theta, theta.new_ones(1)])
    energy = gb.energies.ExponentialFamily(features, gb.domains.Real(dim), eta=eta)
    case = {
        "model": "bumps",
        "dim": dim,
        "centers": centers.flatten().tolist(),
        "theta": theta.tolist(),
        "width": WIDTH,
    }
    return case, energy


def perceptron(dim: int) -> tuple[dict[str, Any], Any]:
    energy = gb.energies.MLPEnergy(dim, hidden=(7,), confine=CONFINE, activation="tanh").double()
    hidden, _, last = energy.net.layers
    with torch.no_grad():
        hidden.weight.copy_(randn(7, dim, seed=6))
        hidden.bias.copy_(randn(7, seed=7))
        last.weight.copy_(randn(1, 7, seed=8))
        last.bias.zero_()
        theta = torch.cat([hidden.weight, hidden.bias[:, None], last.weight.T], 1)
    return {"model": "perceptron", "dim": dim, "theta": theta.flatten().tolist()}, energy


def gradient_of(energy: Any, value: Tensor) -> list[float]:
    """In the order of the lab's parameters."""
    if isinstance(energy, gb.energies.ExponentialFamily):
        return torch.autograd.grad(value, energy.eta)[0][:-1].tolist()
    hidden, _, last = energy.net.layers
    w, b, a = torch.autograd.grad(value, [hidden.weight, hidden.bias, last.weight])
    return torch.cat([w, b[:, None], a.T], 1).flatten().tolist()


def learned() -> Any:
    """Cases of learning with the library's loss and gradient."""
    for make, dim in itertools.product((bumps, perceptron), (1, 2)):
        case, energy = make(dim)
        data = randn(8, dim, seed=9)
        objective = gb.objectives.ContrastiveDivergence(gb.kernels.Langevin(0.2), steps=3)
        samples = gb.sample(energy, objective.kernel, data, steps=3, generator=seeded(10)).last
        case |= {"confine": CONFINE, "data": data.flatten().tolist()}
        loss = objective(energy, data, (), seeded(10)).value
        yield (
            {**case, "principle": "contrast", "samples": samples.flatten().tolist()},
            loss.item(),
            gradient_of(energy, loss),
        )
        loss = gb.objectives.ImplicitScoreMatching()(energy, data, (), seeded(0)).value
        yield {**case, "principle": "scoreMatching"}, loss.item(), gradient_of(energy, loss)
        noise = torch.randn(data.shape, generator=seeded(11), dtype=data.dtype)
        loss = gb.objectives.DenoisingScoreMatching(sigma=0.4)(energy, data, (), seeded(11)).value
        noisy = {"principle": "denoising", "sigma": 0.4, "noise": noise.flatten().tolist()}
        yield {**case, **noisy}, loss.item(), gradient_of(energy, loss)
        nodes, cell = grid(dim)
        log_z = torch.logsumexp(-energy(nodes), 0) + math.log(cell)
        loss = energy(data).mean() + log_z
        masses = torch.exp(-energy(nodes) - log_z).detach() * cell
        summed = {"nodes": nodes.flatten().tolist(), "masses": masses.tolist(), "logZ": log_z.item()}
        yield {**case, "principle": "likelihood", **summed}, loss.item(), gradient_of(energy, loss)


def grid(dim: int, n: int = 60, reach: float = 7.0) -> tuple[Tensor, float]:
    """Midpoints of cells over [-reach, reach]^dim, and the volume of a cell."""
    step = 2 * reach / n
    line = -reach + step * (torch.arange(n, **torch_f64) + 0.5)
    return torch.cartesian_prod(*[line] * dim).reshape(-1, dim), step**dim


LEARNED = list(learned())
CASES["principles"] = [case for case, _, _ in LEARNED]

# machines


def small_machine() -> Any:
    rbm = gb.models.RBM(9, 5).double()
    with torch.no_grad():
        rbm.weight.copy_(randn(9, 5, seed=12))
        rbm.visible_bias.copy_(randn(9, seed=13))
        rbm.hidden_bias.copy_(randn(5, seed=14))
    return rbm


MACHINE = small_machine()
ROWS = (torch.rand(20, 9, generator=seeded(15), **torch_f64) < 0.5).double()
LABELED = gb.models.ClassificationRBM(9, classes=3, hidden=5).double()
with torch.no_grad():
    for part, other in (
        ("weight", MACHINE.weight),
        ("visible_bias", MACHINE.visible_bias),
        ("hidden_bias", MACHINE.hidden_bias),
    ):
        getattr(LABELED, part).copy_(other)
    LABELED.label_weight.copy_(randn(3, 5, seed=16))
    LABELED.label_bias.copy_(randn(3, seed=17))
PARAMETERS = {
    "weight": MACHINE.weight.flatten().tolist(),
    "visibleBias": MACHINE.visible_bias.tolist(),
    "hiddenBias": MACHINE.hidden_bias.tolist(),
    "labelBias": LABELED.label_bias.tolist(),
    "labelWeight": LABELED.label_weight.flatten().tolist(),
    "rows": ROWS.flatten().tolist(),
}
CASES["machines"] = [
    {**PARAMETERS, "base": [0.3] * 9, "chains": 500, "temperatures": 200, "sweeps": {"rows": 5000, "burnIn": 60}}
]
SWEPT = gb.sample(MACHINE, gb.kernels.Gibbs(), ROWS, steps=2, generator=seeded(18)).last
CASES["contrasts"] = [{**PARAMETERS, "samples": SWEPT.flatten().tolist()}]

# lattices: (size, states, Ising?, field, temperature)

PLACES = [(3, 2, True, 0.0, 2.4), (3, 2, True, 0.3, 3.0), (3, 3, False, 0.0, 1.1)]
MOVES = ("gibbs", "metropolis", "wolff", "swendsenWang")
LATTICES = list(itertools.product(MOVES, PLACES))
CASES["lattices"] = [
    {"move": move, "size": size, "states": states, "ising": ising, "field": field, "temperature": temperature}
    | {"seed": 40 + number, "chains": 400, "burnIn": 40, "steps": 100}
    for number, (move, (size, states, ising, field, temperature)) in enumerate(LATTICES)
]

# ladders of noise, and annealed importance sampling

SIGMAS = gb.schedules.geometric(3.0, 0.2, 5).double()
CASES["ladders"] = [
    {"means": THREE[0], "deviations": THREE[1], "weights": THREE[2], "sigmas": SIGMAS.tolist(), "stepsPerLevel": 4}
    | {"stepSize": 0.01, "start": START.flatten().tolist(), "normals": randn(20 * 12, seed=19).tolist()}
]
ANNEALED = ["three hills", "banana", "double well", "ring"]
CASES["annealings"] = [
    {**LAWS[name][0], "scale": 2.5, "particles": 2000, "levels": 60, "stepSize": 0.5, "seed": 50 + number}
    for number, name in enumerate(ANNEALED)
]


# --- what must hold ----------------------------------------------------------------------------------------------


def close(a: Any, b: Any, tolerance: float) -> None:
    torch.testing.assert_close(
        torch.tensor(a, **torch_f64), torch.tensor(b, **torch_f64), atol=tolerance, rtol=tolerance
    )


def agree(gaps: Tensor) -> None:
    """Gaps in standard errors: none beyond 5, and beyond 3 no more than chance allows."""
    gaps = gaps.abs().flatten()
    allowed = stats.binom.ppf(0.9999, len(gaps), 2 * stats.norm.sf(3))
    assert gaps.max() < 5, gaps
    assert (gaps > 3).sum() <= allowed, gaps


def test_random_numbers_are_uniform_and_normal(found):
    (one,) = found["random"]
    assert stats.kstest(one["uniforms"], "uniform").pvalue > 1e-4
    assert stats.kstest(one["normals"], "norm").pvalue > 1e-4
    assert abs(torch.corrcoef(torch.tensor([one["normals"][:-1], one["normals"][1:]]))[0, 1]) < 0.03


def test_laws_have_the_energies_and_gradients_of_the_library(found):
    for name, one in zip(LAWS, found["laws"], strict=True):
        energy, score = law(name).energy_and_score(POINTS)
        close(one["energy"], energy.tolist(), 1e-6)
        close(one["gradient"], (-score).tolist(), 1e-6)


def test_formulas_are_read_as_they_are_written_and_differentiated(found):
    for (text, function), one in zip(FORMULAS.items(), found["formulas"], strict=True):
        x = POINTS.clone().requires_grad_()
        value = function(x[:, 0], x[:, 1])
        (gradient,) = torch.autograd.grad(value.sum(), x)
        close(one["energy"], value.tolist(), 1e-9)
        close(one["gradient"], gradient.tolist(), 1e-8)
        assert text


def test_formulas_that_make_no_sense_are_refused_with_their_place(found):
    for (text, at), one in zip(REFUSED.items(), found["refused"], strict=True):
        assert one is not None, text
        assert one["at"] == at, (text, one)


def test_drawn_landscapes_slope_as_they_fall(found):
    close(found["drawn"][0], torch.zeros(12, 2).tolist(), 1e-4)


def test_truths_by_quadrature(found):
    for name, one in zip(LAWS, found["truths"], strict=True):
        assert abs(one["logZ"] - float(law(name).log_z())) < 2e-3, name


def test_steps_on_the_same_noise_go_where_the_librarys_go(found):
    for key, one in zip(REPLAYS, found["replays"], strict=True):
        close(one["x"], STEPPED[key][2], 1e-6)


def truth_of(name: str) -> Tensor:
    """E[x], E[y], E[x²], E[y²], E[E] of a law, by quadrature of the library's energy."""
    nodes, _ = grid(2, 700, 14.0)
    energy = law(name)(nodes)
    p = torch.softmax(-energy, 0)
    return p @ torch.cat([nodes, nodes.square(), energy[:, None]], 1)


def test_moments_after_burn_in_are_those_of_the_law(found):
    truths = {name: truth_of(name) for name in LAWS}
    gaps = []
    for (kernel, name), one in zip(PAIRS, found["moments"], strict=False):
        gaps.append((torch.tensor(one["mean"], **torch_f64) - truths[name]) / torch.tensor(one["error"]))
        assert (0.8 if kernel in GENTLE else 0.05) < one["acceptance"] <= 1, (kernel, name)
    agree(torch.stack(gaps))


def test_unadjusted_kernels_have_the_bias_of_the_librarys(found):
    gaps = []
    for (kernel, name), one in zip(BIASED, found["moments"][len(PAIRS) :], strict=True):
        start = 0.7 * randn(400, 2, seed=20)
        trace = gb.sample(law(name), KERNELS[kernel][1](), start, steps=300, burn_in=150, generator=seeded(21))
        x = trace.samples.double()
        values = torch.cat([x, x.square(), law(name)(x.flatten(0, 1)).view(150, 400, 1)], 2).mean(0)
        error = torch.hypot(values.std(0) / math.sqrt(400), torch.tensor(one["error"], **torch_f64))
        gaps.append((torch.tensor(one["mean"], **torch_f64) - values.mean(0)) / error)
    agree(torch.stack(gaps))


def test_gradients_of_learning_are_the_librarys(found):
    for (case, value, gradient), one in zip(LEARNED, found["principles"], strict=True):
        close(one["value"], value, 1e-6)
        close(one["gradient"], gradient, 1e-6)
        assert case


def test_machines_know_what_the_librarys_know(found):
    (one,) = found["machines"]
    exact = gb.partition.exact(MACHINE)
    close(one["logZ"], float(exact.value), 1e-9)
    close(one["free"], MACHINE(ROWS).tolist(), 1e-9)
    loss = gb.objectives.ExactLikelihood()(MACHINE, ROWS, (), seeded(0)).value
    parts = torch.autograd.grad(loss, [MACHINE.weight, MACHINE.visible_bias, MACHINE.hidden_bias])
    close(one["likelihood"], -loss.item(), 1e-9)
    for name, part in zip(("gradient", "gradientVisible", "gradientHidden"), parts, strict=True):
        close(one[name], part.flatten().tolist(), 1e-9)
    pseudo = gb.objectives.PseudoLikelihood()(MACHINE, ROWS, (), seeded(0)).value
    close(one["pseudo"], -pseudo.item(), 1e-9)
    assert abs(one["ais"]["value"] - float(exact.value)) < 4 * one["ais"]["error"]
    assert one["ais"]["error"] < 0.05
    p = torch.tensor(one["visible"])
    agree((torch.tensor(one["swept"]) - p) / (p * (1 - p) / 5000).sqrt())
    log_prob = torch.log_softmax(torch.tensor(one["logits"], **torch_f64), 0)
    close(log_prob.tolist(), LABELED.class_log_prob(ROWS[:1])[0].tolist(), 1e-9)


def test_labeled_machines_with_held_pixels_have_the_law_of_enumeration(found):
    """p(x, y | x₀ = 1, x₁ = 0) over all states of the library's machine."""
    one = found["machines"][0]["labels"]
    x = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], **torch_f64)] * 9)
    x = x[(x[:, 0] == 1) & (x[:, 1] == 0)]
    p = torch.softmax(-torch.stack([LABELED.pair_energy(x, y) for y in range(3)], 1).flatten(), 0).detach().view(-1, 3)
    share, mean = p.sum(0), (p.sum(1) @ x)[2:]
    assert one["mean"][:2] == [1, 0]
    for found_share, truth in ((one["share"], share), (one["mean"][2:], mean)):
        agree((torch.tensor(found_share) - truth) / (truth * (1 - truth) / 5000).sqrt())


def test_contrastive_divergence_of_machines_is_the_librarys(found):
    (one,) = found["contrasts"]
    loss = MACHINE(ROWS).mean() - MACHINE(SWEPT).mean()
    parts = torch.autograd.grad(loss, [MACHINE.weight, MACHINE.visible_bias, MACHINE.hidden_bias])
    for name, part in zip(("weight", "visible", "hidden"), parts, strict=True):
        close(one[name], part.flatten().tolist(), 1e-9)


def lattice_truth(size: int, states: int, ising: bool, field: float, temperature: float) -> list[float]:
    """Energy a site, magnetization (its size, where there is no field) and squared energy, over all states."""
    n = size * size
    codes = torch.cartesian_prod(*[torch.arange(states)] * n)
    s = codes.view(-1, size, size)
    if ising:
        spins = (2 * s - 1).to(torch.get_default_dtype())
        energy = gb.models.Ising((size, size), coupling=1.0, field=field)(spins).double()
        m = spins.mean((1, 2)).double()
        order = m if field else m.abs()
    else:
        energy = -sum((s == s.roll(1, axis)).sum((1, 2)) for axis in (1, 2)).double()
        most = torch.stack([(codes == k).sum(1) for k in range(states)]).amax(0).double() / n
        order = (states * most - 1) / (states - 1)
    p = torch.softmax(-energy / temperature, 0)
    return [float(p @ value) for value in (energy / n, order, (energy / n).square())]


def test_lattices_have_the_moments_of_enumeration(found):
    truths = {place: torch.tensor(lattice_truth(*place)) for place in PLACES}
    gaps = [
        (torch.tensor(one["mean"]) - truths[place]) / torch.tensor(one["error"])
        for (_, place), one in zip(LATTICES, found["lattices"], strict=True)
    ]
    agree(torch.stack(gaps))


def test_onsagers_energy_is_the_slope_of_his_free_energy(found):
    """-log Z/N = -log 2 - (1/8π²)∫∫ log(cosh²2K - sinh2K(cos a + cos b)), differentiated in K."""
    angle = (torch.arange(2000, **torch_f64) + 0.5) * math.pi / 2000
    for one, temperature in zip(found["onsager"], (1.5, 2.2, 3.0), strict=True):
        k = torch.tensor(1 / temperature, **torch_f64, requires_grad=True)
        inside = torch.cosh(2 * k) ** 2 - torch.sinh(2 * k) * (angle.cos()[:, None] + angle.cos())
        (slope,) = torch.autograd.grad(0.5 * inside.log().mean(), k)
        close(one["energy"], -slope.item(), 1e-4)


def test_ladders_of_noise_on_the_same_noise_end_where_the_librarys_end(found):
    family = three_hills().double()

    class Blurred(torch.nn.Module):
        def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
            covariances = torch.stack([(s * s + float(sigma[0]) ** 2) * torch.eye(2, **torch_f64) for s in THREE[1]])
            return gb.energies.GaussianMixture(family.means, covariances, THREE[2]).double().score(x)

    score = gb.models.NoiseConditionalScore(Blurred(), gb.domains.Real(2), SIGMAS)
    kernel = gb.kernels.AnnealedLangevin(4, step_size=0.01)
    inputs = kernel.draw(score, START, 20, seeded(0))._replace(z=randn(20 * 12, seed=19).view(20, 6, 2))
    state = kernel.init(score, START)
    for t in range(20):
        state, _ = kernel.step(score, state, type(inputs)(*[part[t] for part in inputs]))
    close(found["ladders"][0], state.x.flatten().tolist(), 1e-6)


def test_annealed_importance_finds_log_z(found):
    gaps = []
    for name, one in zip(ANNEALED, found["annealings"], strict=True):
        gaps.append((one["value"] - float(law(name).log_z())) / one["error"])
        assert one["error"] < 0.1
    agree(torch.tensor(gaps))


def test_autocorrelation_times_are_those_of_autoregressions(found):
    for one, rho in zip(found["times"], (0.0, 0.8), strict=True):
        assert abs(one / ((1 + rho) / (1 - rho)) - 1) < 0.15
