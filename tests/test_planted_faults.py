"""Small faults that once slipped through every other test: each of these fails where its fault is planted."""

import math

import pytest
import torch

import gibbsian as gb
from gibbsian import domains, energies, kernels, models, partition
from gibbsian.errors import ArgumentError, CapabilityError
from gibbsian.kernels.tempering import Replicas
from gibbsian.objectives.base import classes_of
from gibbsian.objectives.chains import energy_gap
from gibbsian.objectives.flows import spread

F64 = torch.float64


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_interval_of_a_full_perturbation_lies_around_its_value():
    out = partition.perturb_and_map(models.BoltzmannMachine(4), 50, order="full", generator=gen())
    assert float(out.lower) == pytest.approx(float(out.value - 3 * out.stderr))
    assert float(out.upper) == pytest.approx(float(out.value + 3 * out.stderr))
    assert float(out.stderr) == pytest.approx(math.pi / math.sqrt(300))


@pytest.mark.parametrize("missing", ["log_z", "sample"])
def test_a_base_needs_both_a_log_z_and_draws(missing):
    class Base(gb.Energy):
        def forward(self, x):
            return x.square().sum(-1)

    known = {"log_z": lambda self: torch.zeros(()), "sample": lambda self, n, *, generator: torch.zeros(n, 2)}
    half = type("Half", (Base,), {name: how for name, how in known.items() if name != missing})(domains.Real(2))
    with pytest.raises(CapabilityError, match="has not both"):
        partition.ais(energies.Gaussian(torch.zeros(2), torch.eye(2)), base=half, betas=5, generator=gen())


def test_spread_is_that_of_every_entry_and_one_where_nothing_varies():
    x = torch.tensor([[1.0, 5.0], [3.0, 5.0], [8.0, 5.0]])
    loc, scale = spread(x)
    assert torch.allclose(loc, torch.tensor([4.0, 5.0]))
    assert torch.allclose(scale, torch.tensor([math.sqrt(26 / 3), 1.0]))


def test_a_proposal_that_moves_one_of_several_clamped_entries_is_refused():
    def nudge(x, generator):
        return x + torch.tensor([0.0, 1.0, 0.0])

    law = energies.Gaussian(torch.zeros(3), torch.eye(3))
    clamp = torch.tensor([True, True, False])
    with pytest.raises(ArgumentError, match="moved a clamped entry"):
        gb.sample(law, kernels.Metropolis(nudge, symmetric=True), torch.zeros(4, 3), 2, clamp=clamp, generator=gen())


def test_replicas_are_paired_with_neighbors_and_made_anew_for_other_chains():
    replicas = Replicas(energies.Gaussian(torch.zeros(1), torch.eye(1)), torch.tensor([1.0, 0.5, 0.25]))
    for chains in (2, 3):
        replicas.fit(torch.zeros(3 * chains, 1))
        rows = torch.arange(3 * chains).reshape(3, chains)
        even = torch.cat([rows[1], rows[0], rows[2]])  # 0 with 1, 2 stays
        odd = torch.cat([rows[0], rows[2], rows[1]])  # 1 with 2, 0 stays
        assert {tuple(p.tolist()) for p in replicas.partner} == {tuple(even.tolist()), tuple(odd.tolist())}
        assert torch.equal(replicas.beta, torch.tensor([1.0, 0.5, 0.25]).repeat_interleave(chains))
        for partner, ratio in zip(replicas.partner, replicas.ratio, strict=True):
            assert torch.allclose(ratio, replicas.beta / replicas.beta[partner])


def test_labels_are_whole_numbers_one_a_row():
    x = torch.zeros(4, 2)
    assert classes_of((x, torch.tensor([0, 1, 0, 2]))) is not None
    for other in (torch.zeros(4), torch.zeros(4, dtype=torch.bool), torch.zeros(3, dtype=torch.long), x.long()):
        assert classes_of((x, other)) is None
    assert classes_of(x) is None


def test_separation_is_the_gap_in_standard_deviations():
    square = gb.as_energy(lambda x: x.square().sum(-1), domains.Real(1))
    data, samples = torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [4.0], [5.0]])
    _, metrics = energy_gap(square, data, samples)
    at_data, at_samples = torch.tensor([1.0, 4.0]), torch.tensor([9.0, 16.0, 25.0])
    want = (at_samples.mean() - at_data.mean()) / (0.5 * (at_data.var() + at_samples.var())).sqrt()
    assert float(metrics["separation"]) == pytest.approx(float(want), rel=1e-5)
    assert "separation" not in energy_gap(square, data[:1], samples)[1]  # one row has no spread
    assert "separation" in energy_gap(square, data, samples[:2])[1]
    flat = gb.as_energy(lambda x: 1e6 + 0 * x.sum(-1), domains.Real(1))
    assert float(energy_gap(flat, data, samples)[1]["separation"]) == 0
