"""A machine of one's own, a Boltzmann machine with three-valued units, in forty lines: the library does the rest."""

import itertools
import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

import gibbsian as gb
from gibbsian import domains, kernels, objectives, partition
from gibbsian.app.cli import main
from gibbsian.errors import CapabilityError
from gibbsian.random import uniforms
from gibbsian.testing import check_energy, check_invariance, check_kernel, check_objective
from gibbsian.units import pick

F64 = torch.float64


# --- the machine --------------------------------------------------------------------------------------


class ThreeValued(gb.Energy):
    """E(x) = -½ Σ_{i≠j} xᵢᵀWᵢⱼxⱼ - Σᵢ bᵢ·xᵢ over n one-hot units of three values."""

    def __init__(self, n: int, scale: float = 0.0, seed: int = 0):
        super().__init__(domains.Categorical(n, classes=3))
        g = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(scale * torch.randn(n, 3, n, 3, generator=g))
        self.bias = nn.Parameter(scale * torch.randn(n, 3, generator=g))

    def coupling(self):
        """W, symmetric, no unit acting on itself: `(n, 3, n, 3)`."""
        both = self.weight + self.weight.permute(2, 3, 0, 1)
        return both * (1 - torch.eye(len(both)).to(both))[:, None, :, None]

    def fields(self, x):
        """Σⱼ Wᵢⱼxⱼ of every unit, `(batch, n, 3)`."""
        return torch.einsum("iajb,njb->nia", self.coupling(), x)

    def forward(self, x):
        return -((0.5 * self.fields(x) + self.bias) * x).flatten(1).sum(1)

    def gibbs_noise(self, x, steps, generator):
        u = uniforms(steps, len(x) * x.shape[1], generator, dtype=x.dtype, device=x.device)
        return (u.reshape(steps, *x.shape[:2]),)

    def gibbs_sweep(self, x, noise, clamp=None):
        """One unit after the other given the rest."""
        (u,) = noise
        with torch.no_grad():
            coupling = self.coupling()
            for i in range(x.shape[1]):
                logits = torch.einsum("ajb,njb->na", coupling[i], x) + self.bias[i]
                new = nn.functional.one_hot(pick(torch.softmax(logits, 1), u[:, i]), 3).to(x)
                new = new if clamp is None else torch.where(clamp.expand(x.shape)[:, i], x[:, i], new)
                x = torch.cat([x[:, :i], new[:, None], x[:, i + 1 :]], 1)
            return x


# --- what it gets -------------------------------------------------------------------------------------


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def machine(n=5, scale=0.6, seed=0):
    return ThreeValued(n, scale, seed).double()


def exact_law(model):
    states = model.domain.states(dtype=F64)
    return states, torch.softmax(-model(states).detach(), 0)


def exact_draws(model, n, seed=1):
    states, p = exact_law(model)
    return states[torch.multinomial(p, n, replacement=True, generator=gen(seed))]


def test_its_energy_is_the_sum_over_pairs():
    model = machine(3)
    w = (model.weight + model.weight.permute(2, 3, 0, 1)).detach()
    for labels in itertools.product(range(3), repeat=3):
        x = model.domain.one_hot(torch.tensor([labels]), dtype=F64)
        pairs = sum(w[i, labels[i], j, labels[j]] for i, j in itertools.combinations(range(3), 2))
        own = sum(model.bias[i, labels[i]] for i in range(3))
        torch.testing.assert_close(model(x).detach()[0], -(pairs + own).detach())


def test_it_conforms():
    model = machine()
    x = model.domain.sample(8, generator=gen(), dtype=F64)
    check_energy(model, x, generator=gen())
    check_kernel(kernels.Gibbs(), model, x, generator=gen())
    pcd = objectives.PersistentContrastiveDivergence(kernels.Gibbs())
    check_objective(pcd, model, x, generator=gen())


def test_its_sweeps_keep_its_law():
    model = machine()
    check_invariance(model, kernels.Gibbs(), draws=exact_draws(model, 60000), generator=gen(2))

    class Broken(ThreeValued):
        def gibbs_sweep(self, x, noise, clamp=None):
            """Every unit given the old rest, all at once."""
            logits = self.fields(x).detach() + self.bias.detach()
            return nn.functional.one_hot(pick(torch.softmax(logits, 2), noise[0]), 3).to(x)

    broken = Broken(5, 0.6).double()
    with pytest.raises(AssertionError):
        check_invariance(broken, kernels.Gibbs(), draws=exact_draws(broken, 60000), generator=gen(2))


def test_clamped_sweeps_draw_from_the_conditional_law():
    model = machine(3)
    states, p = exact_law(model)
    held = model.domain.one_hot(torch.tensor([[2, 0, 1]]), dtype=F64)
    clamp = torch.tensor([True, False, False])[:, None].expand(3, 3)
    trace = gb.sample(
        model, kernels.Gibbs(), held.expand(20000, 3, 3), steps=30, clamp=clamp, keep=False, generator=gen()
    )
    assert torch.equal(trace.last[:, 0], held[:, 0].expand(20000, 3))
    given = p * (states[:, 0] == held[0, 0]).all(1)
    mean = torch.einsum("s,sia->ia", given / given.sum(), states)
    assert float((trace.last.mean(0) - mean).abs().max()) < 5 * 0.5 / math.sqrt(20000)


def test_it_learns_by_persistent_contrastive_divergence():
    truth = machine(4, scale=0.8, seed=3)
    data = exact_draws(truth, 4000).float()
    model = ThreeValued(4)
    before = gb.log_likelihood(model, data).value
    pcd = objectives.PersistentContrastiveDivergence(kernels.Gibbs(), steps=1)
    gb.fit(model, pcd, data, steps=600, batch_size=200, lr=2e-2, progress=False)
    after, best = gb.log_likelihood(model, data).value, gb.log_likelihood(truth.float(), data).value
    assert float(best - after) < 0.05 * float(best - before)


def test_its_partition_function_exactly_and_from_both_sides():
    model = machine()
    states = torch.tensor(list(itertools.product(range(3), repeat=5)))
    energies = model(model.domain.one_hot(states, dtype=F64)).detach()
    exact = partition.exact(model)
    assert float(exact.value) == pytest.approx(float(torch.logsumexp(-energies, 0)))
    data = exact_draws(model, 500)
    low = partition.ais(model, data, chains=200, betas=200, generator=gen())
    high = partition.reverse_ais(model, exact_draws(model, 200, seed=5), forward=low, generator=gen())
    both = partition.bounds(low, high)
    assert float(both.lower) <= float(exact.value) <= float(both.upper)
    assert float(both.upper - both.lower) < 0.3
    assert float(partition.smc(model, data, betas=50, generator=gen()).value) == pytest.approx(
        float(exact.value), abs=0.2
    )


def test_its_likelihood_has_an_interval_and_says_how_it_was_found():
    model = machine()
    p = exact_law(model)[1]
    entropy = -float((p * p.log()).sum())
    out = gb.log_likelihood(model, exact_draws(model, 400))
    assert out.method == "exact sum"
    assert float(out.lower) <= -entropy <= float(out.upper)
    large = machine(18, scale=0.1)
    x = large.domain.sample(200, generator=gen(), dtype=F64)
    x = gb.sample(large, kernels.Gibbs(), x, steps=30, keep=False, generator=gen()).last
    with pytest.raises(CapabilityError, match="generator="):  # 3^18 states are not summed without being asked for
        gb.log_likelihood(large, x)
    annealed = gb.log_likelihood(large, x, partition.ais(large, x, chains=50, betas=40, generator=gen(1)))
    assert annealed.method == "AIS"
    assert float(annealed.lower) < float(annealed.value) < float(annealed.upper)


def test_what_it_does_not_know_is_refused_by_the_name_of_the_method():
    with pytest.raises(CapabilityError, match=r"pairwise\(\)"):
        partition.mean_field(machine())
    with pytest.raises(CapabilityError, match=r"hidden_path\(x\)"):
        partition.clamped_ais(machine(), exact_draws(machine(), 2), generator=gen())
    with pytest.raises(CapabilityError, match=r"inputs\(\).*repeated\(times\)"):
        partition.exact_each(machine())


# --- the command line, told to trust this file ----------------------------------------------------------

RECIPE = """
about: three values a unit
data: {{name: {data}, steps: [{{split: {{test: 200}}}}]}}
model: {{test_own_machine.ThreeValued: {{n: 4, scale: 0.1}}}}
objective: {{PersistentContrastiveDivergence: {{kernel: Gibbs, steps: 2}}}}
fit: {{steps: 400, batch_size: 100, lr: 0.02}}
sample: {{steps: 50}}
evaluate: {{chains: 50, betas: 100}}
"""


def test_the_command_line_trains_samples_judges_and_reports_it(tmp_path, capsys):
    truth = machine(4, 0.8, seed=3)
    states, p = exact_law(truth)
    np.save(tmp_path / "x.npy", exact_draws(truth, 3000).float().numpy())
    (tmp_path / "three.yaml").write_text(RECIPE.format(data=tmp_path / "x.npy"))
    run, trusted = tmp_path / "run", ["--trust", __file__]

    def command(*arguments):
        code = main([*map(str, arguments), *trusted, "--json"])
        return code, json.loads(capsys.readouterr().out)

    code, found = command("train", tmp_path / "three.yaml", "--run", run)
    assert code == 0
    assert found["log_z"]["method"] == "exact sum"
    ll = found["likelihood"]
    assert ll["lower"] < ll["value"] < ll["upper"]
    entropy = float(-(p * p.log()).sum())
    assert -entropy - 0.5 < ll["value"] < -entropy + 0.2  # 200 rows: 0.08 standard error; learned in 400 steps
    page = (run / "report.html").read_text()
    for part in ("ThreeValued over Categorical(4, classes=3)", "Samples", "Chain diagnostics", "means-of-entries"):
        assert part in page
    code, found = command("evaluate", run, "--likelihood", "ais")
    assert code == 0
    assert found["log_z"]["method"] == "AIS"
    assert abs(found["log_z"]["value"] - float(partition.exact(gb.load(run)).value)) < 5 * found["log_z"]["stderr"]
    code, found = command("sample", run, "-n", 2000, "--out", tmp_path / "s.npy")
    assert code == 0
    assert found["how"] == "Gibbs, 50 steps"
    drawn = torch.from_numpy(np.load(tmp_path / "s.npy")).double()
    assert drawn.shape == (2000, 4, 3)
    # the law that it learned, from its own enumeration: 12 numbers beyond 5 standard errors once in 10⁵ runs
    model = gb.load(run).double()
    states, p = exact_law(model)
    mean = torch.einsum("s,sic->ic", p, states)
    assert ((drawn.mean(0) - mean).abs() < 5 * (mean * (1 - mean) / 2000).sqrt()).all()
    assert command("report", run, "--fresh")[0] == 0
    assert command("resume", run, "--steps", 410, "--no-report")[0] == 0


def test_nobody_builds_it_who_was_not_told_to(tmp_path):
    (tmp_path / "three.yaml").write_text(RECIPE.format(data="digits"))
    call = [sys.executable, "-m", "gibbsian", "train", str(tmp_path / "three.yaml")]
    done = subprocess.run(call, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert "test_own_machine.ThreeValued" in done.stderr
    assert "--trust test_own_machine" in done.stderr
