"""Neural energies: shapes, scores, derivatives, masks, graphs, confinement, initialization, rebuilding."""

import copy
import math
from contextlib import nullcontext

import pytest
import torch
from objective_oracles import F64, gen
from torch.nn import functional as F

import gibbsian as gb
from gibbsian import domains, energies, errors, kernels, objectives
from gibbsian.capabilities import Jet
from gibbsian.derivatives import score_jacobian as second
from gibbsian.derivatives import taylor
from gibbsian.energies import Graphs
from gibbsian.nets.layers import standardized_once
from gibbsian.objectives.base import Step
from gibbsian.testing import check_energy

RING = torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 0]])
CASES = {
    "mlp": (lambda **o: energies.MLPEnergy(4, (8, 8), **o), (4,)),
    "mlp of an image": (lambda **o: energies.MLPEnergy((2, 3), (8,), **o), (2, 3)),
    "conv": (lambda **o: energies.ConvEnergy((2, 7, 6), (4, 4), 8, **o), (2, 7, 6)),
    "residual": (lambda **o: energies.ResidualEnergy((1, 7, 6), (4, 6), 1, **o), (1, 7, 6)),
    "residual, standardized": (
        lambda **o: energies.ResidualEnergy((1, 7, 6), (4, 6), 1, standardize=True, **o),
        (1, 7, 6),
    ),
    "residual, activated after sums": (
        lambda **o: energies.ResidualEnergy((1, 7, 6), (4, 6), (1, 2), after=True, **o),
        (1, 7, 6),
    ),
    "recurrent": (lambda **o: energies.RecurrentEnergy((5, 3), 8, 2, **o), (5, 3)),
    "attention": (lambda **o: energies.AttentionEnergy((5, 3), 8, 2, 1, **o), (5, 3)),
    "graph": (lambda **o: energies.GraphEnergy((5, 3), RING, 8, 2, **o), (5, 3)),
}


def some(shape, n=4, seed=0):
    return torch.randn(n, *shape, generator=gen(seed), dtype=F64)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("options", [{}, {"activation": "softplus", "confine": 0.3}, {"spectral_norm": True}])
def test_conformance(name, options):
    make, shape = CASES[name]
    energy = make(**options).double().eval()
    check_energy(energy, some(shape), generator=gen())


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("activation", ["silu", "softplus", "gelu", "elu", "mish", "tanh"])
def test_two_derivatives_against_finite_differences(name, activation):
    """Score matching differentiates the energy twice in x and once more in the parameters."""
    make, shape = CASES[name]
    energy = make(activation=activation, spectral_norm=activation == "silu").double().eval()
    x = some(shape, 2)
    v = some(shape, 2, seed=1)
    h = 1e-4
    by_hand = (energy(x + h * v) - 2 * energy(x) + energy(x - h * v)) / h**2
    leaf = x.clone().requires_grad_(True)
    s = energy.score(leaf, create_graph=True)
    curvature = -second.quadratic_forms(leaf, s, torch.stack([v, v]))
    torch.testing.assert_close(curvature[0], by_hand, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(curvature[0], curvature[1])
    objective = objectives.SlicedScoreMatching(3)
    loss = objective(energy, x, (), gen()).value
    parameter = next(p for p in energy.parameters() if p.requires_grad)
    (gradient,) = torch.autograd.grad(loss, parameter)
    index = int(gradient.abs().argmax())

    def at(step):
        with torch.no_grad():
            parameter.view(-1)[index] += step
        value = objective(energy, x, (), gen()).value.detach()
        with torch.no_grad():
            parameter.view(-1)[index] -= step
        return value

    slope = (at(1e-5) - at(-1e-5)) / 2e-5
    torch.testing.assert_close(gradient.flatten()[index], slope, rtol=1e-4, atol=1e-6)


PLAIN = {
    "mlp": lambda: energies.MLPEnergy(4, (8, 8), confine=0.3),
    "mlp of an image": lambda: energies.MLPEnergy((2, 2), (8,), activation="gelu", spectral_norm=True),
    "conv": lambda: energies.ConvEnergy((1, 5, 6), (4, 4), 8, activation="mish", confine=0.1),
    "linear": lambda: energies.MLPEnergy(4, (), confine=0.2),
    "neural": lambda: energies.NeuralEnergy(energies.MLP(4, (8,), activation="tanh"), domains.Real(4)),
    "sequential": lambda: gb.as_energy(
        torch.nn.Sequential(energies.MLP(4, (8,), 6), torch.nn.ELU(), energies.MLP(6, (4,)), torch.nn.Flatten(0)),
        domains.Real(4),
    ),
}


@pytest.mark.parametrize("name", PLAIN)
def test_pushing_derivatives_forward_is_the_same_as_two_backward_passes(name, monkeypatch):
    energy = PLAIN[name]().double().eval()
    assert taylor.has_taylor_rules(energy)
    x = some(energy.domain.shape, 3)
    found = []
    for fast in (True, False):
        if not fast:
            monkeypatch.setattr(second, "has_taylor_rules", lambda module: False)
        for objective in (
            objectives.SlicedScoreMatching(3, "gaussian"),
            objectives.SlicedScoreMatching(2, "gaussian", variance_reduced=False),
            objectives.ImplicitScoreMatching(),
            objectives.ImplicitScoreMatching(chunk=3),
            objectives.ImplicitScoreMatching("hutchinson", probes=2),
        ):
            value = objective(energy, x, (), gen()).value
            parts = torch.autograd.grad(value, list(energy.parameters()), allow_unused=True, materialize_grads=True)
            found.append(torch.cat([value.detach().reshape(1), *(p.flatten() for p in parts)]))
    for a, b in zip(found[:5], found[5:], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_what_is_not_known_takes_the_general_way():
    class Own(energies.MLPEnergy):
        def forward(self, x):
            return super().forward(x).square()

    hooked = energies.MLPEnergy(4)
    hooked.net.layers[0].register_forward_hook(lambda module, inputs, output: 2 * output)
    dropout = torch.nn.Sequential(energies.MLP(4), torch.nn.Dropout(0.5))
    recurrent = energies.RecurrentEnergy((5, 3), 8)
    for energy in (Own(4), hooked, energies.NeuralEnergy(dropout, domains.Real(4)), recurrent):
        assert not taylor.has_taylor_rules(energy)


class Squares(torch.nn.Module):
    """x², elementwise: a layer whose author knows its Taylor rule."""

    def forward(self, x):
        return x.square()

    def taylor_parts(self):
        return ()

    def taylor(self, jet, propagate):
        second = 2 * jet.first.square().sum(0)
        second = second if jet.second is None else second + 2 * jet.value * jet.second
        return Jet(self(jet.value), 2 * jet.value * jet.first, second)


def test_a_module_joins_with_a_rule_of_its_own_and_its_subclass_with_another_forward_does_not():
    class Cubes(Squares):
        def forward(self, x):
            return x**3

    net = torch.nn.Sequential(energies.MLP(4, (8,), 3), Squares(), torch.nn.Linear(3, 1))
    energy = energies.NeuralEnergy(net, domains.Real(4), confine=0.2).double()
    assert taylor.has_taylor_rules(energy)
    assert not taylor.has_taylor_rules(Cubes())
    x, v = some((4,), 3), some((4,), 5, seed=1)[:, None]
    value, slope, curve = taylor.directional_derivatives(energy, x, v)
    hessian = torch.stack([torch.autograd.functional.hessian(lambda z: energy(z[None])[0], row) for row in x])
    torch.testing.assert_close(value, energy(x))
    torch.testing.assert_close(slope, -torch.einsum("nd,kd->kn", energy.score(x), v[:, 0]))
    torch.testing.assert_close(curve, torch.einsum("kd,nde,ke->n", v[:, 0], hessian, v[:, 0]))


@pytest.mark.parametrize("name", CASES)
def test_rows_do_not_see_each_other(name):
    make, shape = CASES[name]
    energy = make().double()
    x = some(shape, 6)
    torch.testing.assert_close(energy(x)[2:3], energy(x[2:3]))


@pytest.mark.parametrize("name", CASES)
def test_initial_weights_are_a_fixed_seed_and_move_no_global_state(name):
    make, _ = CASES[name]
    before = torch.get_rng_state()
    one, two, other = make(), make(), make(generator=gen(3))
    spectral = make(spectral_norm=True)
    assert torch.equal(before, torch.get_rng_state())
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(a, b)
    assert any(not torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    weights = [p for p in one.parameters() if p.dim() > 1]
    assert len({float(p.detach().flatten()[0]) for p in weights}) == len(weights)  # layers differ
    assert sum(p.numel() for p in spectral.parameters()) == sum(p.numel() for p in one.parameters())


@pytest.mark.parametrize("name", CASES)
def test_confinement_adds_half_the_square(name):
    make, shape = CASES[name]
    x = some(shape)
    plain, confined = make().double(), make(confine=0.7).double()
    torch.testing.assert_close(confined(x) - plain(x), 0.35 * x.flatten(1).square().sum(1))


def test_confinement_makes_the_partition_function_finite():
    """The energy of a network grows at most linearly, so far away the quadratic term rules."""
    for activation in ("silu", "softplus", "gelu", "elu", "mish", "tanh"):
        energy = energies.MLPEnergy(1, (16, 16), activation=activation, confine=0.5, generator=gen(5)).double()
        far = torch.tensor([[-200.0], [200.0]], dtype=F64)
        assert (energy(far) > 0.2 * far[:, 0].square()).all()


def test_spectral_norm_bounds_the_slope():
    energy = energies.MLPEnergy(3, (16, 16), activation="tanh", spectral_norm=True, generator=gen(2)).double()
    x = some((3,), 200)
    for _ in range(50):
        energy(x)  # power iterations
    energy.eval()
    assert energy.score(x).norm(dim=1).max() <= 1 + 1e-6


@pytest.mark.parametrize(
    ("net", "shape"),
    [
        (energies.MLP(4, (8,), outputs=3), (4,)),
        (energies.ConvNet((1, 6, 6), (4,), 8, outputs=3), (1, 6, 6)),
        (energies.ResidualNet((1, 6, 6), (4,), 1, outputs=3), (1, 6, 6)),
        (energies.RecurrentNet(3, 8, outputs=3), (5, 3)),
        (energies.AttentionNet(3, 5, 8, 2, 1, outputs=3), (5, 3)),
        (energies.Corrected(energies.MLP(4, (8,), outputs=3), energies.MLP(4, (6,), outputs=3)), (4,)),
    ],
)
def test_networks_with_logits_make_joint_energies(net, shape):
    joint = gb.models.JointEnergy(copy.deepcopy(net).double(), domains.Real(shape))
    x = some(shape)
    assert joint.class_log_prob(x).shape == (4, 3)
    check_energy(joint, x, generator=gen())
    torch.testing.assert_close(joint(x), -torch.logsumexp(joint.net(x), 1))


# --- sequences ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [energies.RecurrentEnergy, energies.AttentionEnergy])
def test_padding_has_no_effect(kind):
    long = kind((7, 3), 8, confine=0.2).double()
    x, lengths = some((7, 3)), torch.tensor([7, 4, 1, 5])
    masked = long.given(lengths)
    energy = masked(x)
    rubbish = x.clone()
    for i, length in enumerate(lengths):
        rubbish[i, length:] = torch.nan if i % 2 else 1e6
    torch.testing.assert_close(masked(rubbish), energy)
    score = masked.score(x)
    for i, length in enumerate(lengths):
        assert (score[i, length:] == 0).all()
        assert (score[i, :length] != 0).any()
        short = kind((int(length), 3), 8, confine=0.2).double()
        state = {k: v[: int(length)] if k.endswith("positions") else v for k, v in long.state_dict().items()}
        short.load_state_dict(state)
        torch.testing.assert_close(short(x[i : i + 1, :length])[0], energy[i])
    torch.testing.assert_close(long.given(torch.full((4,), 7))(x), long(x))
    mask = torch.arange(7) < lengths[:, None]
    torch.testing.assert_close(long.given(mask)(x), energy)


def test_a_set_has_no_order_and_a_sequence_has():
    x, order = some((5, 3)), torch.tensor([3, 1, 4, 0, 2])
    sets = energies.AttentionEnergy((5, 3), 8, 2, positions=False).double()
    torch.testing.assert_close(sets(x), sets(x[:, order]))
    for kind in (energies.AttentionEnergy, energies.RecurrentEnergy):
        sequence = kind((5, 3), 8).double()
        assert (sequence(x) - sequence(x[:, order])).abs().max() > 1e-4


def test_bad_masks_are_refused():
    energy = energies.RecurrentEnergy((5, 3), 8)
    for bad in (
        lambda: energy.given(torch.tensor([6])),
        lambda: energy.given(torch.tensor([0])),
        lambda: energy.given([3]),
        lambda: energy.given(torch.ones(2, 4, dtype=torch.bool)),
        lambda: energy.given(torch.tensor([0.5])),
        lambda: energy.given(torch.tensor([3, 2]))(torch.zeros(3, 5, 3)),
    ):
        with pytest.raises(errors.GibbsianError) as caught:
            bad()
        assert len(str(caught.value)) > 25


def test_masked_energies_train_and_sample():
    energy = energies.RecurrentEnergy((5, 2), 8, confine=1.0)
    masked = energy.given(torch.tensor([5, 2, 3]))
    x = some((5, 2), 3).float()
    objectives.DenoisingScoreMatching(0.3)(masked, x, (), gen()).value.backward()
    assert all(p.grad is not None for n, p in energy.named_parameters() if n.endswith("weight"))
    clamp = ~(torch.arange(5) < torch.tensor([5, 2, 3])[:, None])[:, :, None].expand(3, 5, 2)
    trace = gb.sample(masked, kernels.MALA(0.3), x, steps=5, clamp=clamp, generator=gen())
    assert torch.equal(trace.last[clamp], x[clamp])


# --- graphs ---------------------------------------------------------------------------------------


def test_graph_energies_of_different_graphs_at_once():
    """Graphs with edge index and batch vector together equal the graphs one by one; padding has no effect."""
    edges = torch.tensor([[0, 1, 1, 3, 4, 5, 6], [1, 0, 2, 4, 5, 6, 3]])
    graphs = Graphs(edges, torch.tensor([0, 0, 0, 1, 1, 1, 1]))
    nodes = some((3,), 7)
    family = energies.GraphEnergy((5, 3), width=8, rounds=2, confine=0.4).double()
    x = graphs.pad(nodes, 5)
    together = family.given(graphs)(x)
    assert torch.equal(graphs.unpad(x), nodes)
    for g, (rows, own) in enumerate(((slice(0, 3), edges[:, :3]), (slice(3, 7), edges[:, 3:] - 3))):
        single = energies.GraphEnergy((nodes[rows].shape[0], 3), own, 8, 2, confine=0.4).double()
        state = family.state_dict() | {"edge_index": own}
        single.load_state_dict(state)
        torch.testing.assert_close(single(nodes[rows][None])[0], together[g])
    rubbish = x.clone()
    rubbish[0, 3:] = 1e6
    torch.testing.assert_close(family.given(graphs)(rubbish), together)


def test_graph_energies_do_not_depend_on_the_order_of_nodes_and_edges():
    energy = energies.GraphEnergy((5, 3), RING, 8, 2).double()
    x, order = some((5, 3)), torch.tensor([3, 1, 4, 0, 2])
    where = torch.argsort(order)  # old node i is new node where[i]
    moved = energies.GraphEnergy((5, 3), where[RING].flip(1), 8, 2).double()
    moved.load_state_dict(energy.state_dict() | {"edge_index": where[RING].flip(1)})
    torch.testing.assert_close(energy(x), moved(x[:, order]))
    against = energies.GraphEnergy((5, 3), RING.flip(0), 8, 2).double()
    assert (energy(x) - against(x)).abs().max() > 1e-6  # edges have a direction
    shuffled = Graphs(torch.zeros(2, 0).long(), torch.tensor([1, 0, 1, 1, 0]))
    assert shuffled.places.tolist() == [0, 0, 1, 2, 1]


def test_bad_graphs_are_refused():
    energy = energies.GraphEnergy((3, 2))
    edges = torch.tensor([[0], [1]])
    for bad in (
        lambda: energy(torch.zeros(2, 3, 2)),
        lambda: energies.GraphEnergy((3, 2), torch.tensor([[0], [3]])),
        lambda: energies.GraphEnergy((3, 2), torch.zeros(2, 2)),
        lambda: energies.GraphEnergy((3, 2), torch.zeros(3, 2).long()),
        lambda: energies.GraphEnergy(6),
        lambda: energy.given(Graphs(edges, torch.tensor([0, 1]))),
        lambda: energy.given(Graphs(edges, torch.tensor([0, 0, 0, 0]))),
        lambda: energy.given(Graphs(edges, torch.tensor([0, 0, 2]))),
        lambda: energy.given(Graphs(edges, torch.tensor([0, 0])))(torch.zeros(2, 3, 2)),
    ):
        with pytest.raises(errors.GibbsianError) as caught:
            bad()
        assert len(str(caught.value)) > 25


# --- options --------------------------------------------------------------------------------------


def test_bad_options_are_refused():
    for bad in (
        lambda: energies.MLPEnergy(2, (0,)),
        lambda: energies.MLPEnergy(2, activation="relu"),
        lambda: energies.MLPEnergy(2, confine=-1.0),
        lambda: energies.MLPEnergy(2, confine=math.inf),
        lambda: energies.MLP(2, outputs=0),
        lambda: energies.ConvEnergy((28, 28)),
        lambda: energies.ConvEnergy((1, 8, 8), channels=()),
        lambda: energies.ResidualEnergy(domains.Real(4)),
        lambda: energies.AttentionEnergy((5, 3), width=9, heads=2),
        lambda: energies.RecurrentEnergy((5, 3), layers=0),
    ):
        with pytest.raises(errors.GibbsianError) as caught:
            bad()
        assert len(str(caught.value)) > 25
    assert energies.MLPEnergy(2, ())(torch.zeros(3, 2)).shape == (3,)  # a linear energy
    assert energies.ConvEnergy(domains.Box((1, 8, 8)), (4,)).domain == domains.Box((1, 8, 8))


@pytest.mark.parametrize("name", CASES)
def test_energies_are_rebuilt_from_a_run_folder(name, tmp_path):
    make, shape = CASES[name]
    energy = make(confine=0.1, generator=gen(9))
    x = some(shape, 12).float()
    run = gb.fit(energy, objectives.DenoisingScoreMatching(0.5), x, steps=3, batch_size=6, run_dir=tmp_path / "run")
    again = gb.load(tmp_path / "run")
    assert type(again) is type(energy)
    assert torch.equal(again(x), run.energy(x))


def test_halving_has_the_derivatives_of_mean_pooling():
    from gibbsian.nets.conv import _Halve, halve

    x = torch.randn(2, 3, 4, 6, generator=gen(), dtype=torch.float64, requires_grad=True)
    pool = lambda x: torch.nn.functional.avg_pool2d(x, 2)  # noqa: E731
    torch.testing.assert_close(_Halve.apply(x), pool(x))
    torch.testing.assert_close(halve(x[:, :, :3]), torch.nn.functional.avg_pool2d(x[:, :, :3], 2, ceil_mode=True))
    assert torch.autograd.gradcheck(_Halve.apply, (x,), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(lambda x: _Halve.apply(x).square(), (x,))
    slopes = [
        torch.func.vmap(torch.func.grad(lambda x, f=f: f(x[None]).pow(3).sum()))(x.detach())
        for f in (_Halve.apply, pool)
    ]
    torch.testing.assert_close(*slopes)
    last = x.detach().to(memory_format=torch.channels_last).requires_grad_()
    (slope,) = torch.autograd.grad(_Halve.apply(last).square().sum(), last)
    assert slope.is_contiguous(memory_format=torch.channels_last)


def test_standardized_networks_keep_the_size_of_what_they_are_given_at_any_depth_and_any_size_of_weights():
    """Branches at a fifth of the stream: variances add up, whatever the weights are multiplied by and moved to."""
    net = energies.ResidualNet((3, 8, 8), (64,), 12, standardize=True, generator=gen(1)).double().requires_grad_(False)
    x, seen = some((3, 8, 8), 64), []
    linear = net.stem(x)
    assert torch.equal(net.stages[0](linear), linear)  # branches begin at nothing
    for block in net.stages[0]:
        block.scale.fill_(0.2)
    net.stages[0][-1].register_forward_hook(lambda module, given, made: seen.append(made))
    net(x)
    assert 0.8 < float(linear[..., 1:-1, 1:-1].var()) < 1.25  # the margins see zeros
    assert float(linear.var()) < float(seen[0].var()) < (1 + 0.04 * 1.5) ** 12 * 1.25
    for weight in (p for name, p in net.named_parameters() if name.endswith("original")):
        weight.mul_(30).add_(1)
    net(x)
    torch.testing.assert_close(seen[0], seen[1])


@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("side", [(28, 28), (9, 1)])
def test_residual_networks_that_activate_after_the_sums_are_what_they_say(standardize, side):
    """Written out layer by layer: a first convolution without activation, blocks of stride two where a stage begins."""
    net = energies.ResidualNet(
        (1, *side), (4, 6), (1, 3), outputs=2, after=True, pool=False, standardize=standardize, generator=gen(1)
    ).double()
    x = some((1, *side), 3)

    def conv(layer, x, stride=1):
        return F.conv2d(x, layer.weight, layer.bias, stride=stride, padding=layer.weight.shape[-1] // 2)

    out = conv(net.stem, x)
    for stage in net.stages:
        for number, block in enumerate(stage):
            stride = 1 if number else 2
            if standardize:
                block.scale.data.fill_(0.3)
            branch = conv(block.second, F.silu(conv(block.first, out, stride)))
            kept = out if stride == 1 else conv(block.shortcut, out, stride)
            out = F.silu(kept + (0.3 if standardize else 1.0) * branch)
    assert out.shape[2:] == ((side[0] + 3) // 4, (side[1] + 3) // 4)
    torch.testing.assert_close(net(x), F.linear(out.flatten(1), net.head.weight, net.head.bias))


def test_networks_that_activate_after_the_sums_begin_with_outputs_that_hardly_depend_on_their_inputs():
    """An activation halves what is small: the last of eight blocks in a row hardly passes on what the others add to."""
    x = some((1, 28, 28), 20).sign().clamp(0, 1)
    nets = [
        energies.ResidualNet((1, 28, 28), (16, 16), (1, 7), after=True, generator=gen(1)).double(),
        energies.ResidualNet((1, 28, 28), (16, 16), (2, 6), stride=2, generator=gen(1)).double(),
    ]
    after, before = (float(net(x).detach().std()) for net in nets)
    assert after < 0.05 * before


@pytest.mark.parametrize("pool", [True, False])
def test_gradients_of_images_with_channels_last_stay_so_down_to_the_first_layer(pool):
    net = energies.ResidualNet((1, 8, 8), (4, 6), (1, 2), after=True, pool=pool, generator=gen(1)).double()
    x, slopes, found = some((1, 8, 8)), [], []
    for block in (block for stage in net.stages for block in stage):
        block.register_full_backward_hook(lambda block, inner, outer: slopes.append(outer[0]))
    for _ in range(2):
        leaf = x.clone().requires_grad_()
        found.append(torch.autograd.grad(net(leaf).pow(3).sum(), leaf)[0])
        net = net.to(memory_format=torch.channels_last)
    torch.testing.assert_close(*found)
    assert len(slopes) == 6
    assert all(s.is_contiguous(memory_format=torch.channels_last) and not s.is_contiguous() for s in slopes[3:5])


@pytest.mark.parametrize("pool", [True, False])
def test_heads_of_images_with_channels_last_can_be_mapped_and_hooked(pool):
    net = energies.ResidualNet((1, 8, 8), (4, 6), 1, outputs=3, pool=pool, generator=gen(1)).double()
    x, seen = some((1, 8, 8), 5), []
    truth = net(x)
    net = net.to(memory_format=torch.channels_last)
    torch.testing.assert_close(torch.func.vmap(lambda row: net(row[None])[0])(x), truth)
    net.head.register_forward_hook(lambda head, inner, outer: seen.append(outer))
    torch.testing.assert_close(net(x), truth)
    assert len(seen) == 1


@pytest.mark.parametrize("pool", [True, False])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_energies_of_half_precision_networks_have_more_than_three_digits(pool, layout):
    """An offset of 1000 leaves steps of 4 nats to a half-precision energy, and none of the differences below."""
    energy = energies.ResidualEnergy((1, 8, 8), (4, 6), 1, pool=pool, generator=gen(1)).to(memory_format=layout)
    x = some((1, 8, 8), 16).float().to(memory_format=layout)
    energy.net.head.bias.data.fill_(1000.0)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        half = energy(x)
    exact = energy(x).detach()
    assert half.dtype == torch.float32
    assert float((half - exact).std()) < 0.05 * float(exact.std()) < 1.0


@pytest.mark.parametrize("fast", [None, 0.01])
def test_weights_that_are_standardized_once_an_update_give_the_same_gradients(fast):
    """Chains, frozen graphs, fast weights and all: what training does in one pass through the weights, step by step outside."""
    x, y = some((1, 6, 6), 12).float().clamp(-3, 3), torch.arange(12) % 3
    chains = objectives.PersistentContrastiveDivergence(
        kernels.ShortRunLangevin(0.5, 0.01), steps=3, chains=6, penalty=0.01, fast_weights=fast
    )
    objective = objectives.Weighted([objectives.CrossEntropy(), objectives.Blurred(chains, 0.1)], [1.0, 0.5])

    def gradients(once):
        net = energies.ResidualNet((1, 6, 6), (4, 6), 1, outputs=3, standardize=True, generator=gen(1))
        for block in (block for stage in net.stages for block in stage):
            block.scale.data.fill_(0.3)
        joint, found = gb.models.JointEnergy(net, domains.Box((1, 6, 6), -3.0, 3.0)), []
        state = objective.init(joint, (x, y), gen(2))
        for seed in range(2):  # the second with fast weights that are not zero
            with standardized_once(joint) if once else nullcontext():
                loss = objective.loss(joint, (x, y), state, gen(seed), Step())
            loss.value.backward()
            state = loss.state
            found += [p.grad.clone() for p in joint.parameters()]
            joint.zero_grad()
        return found

    for one, other in zip(gradients(True), gradients(False), strict=True):
        torch.testing.assert_close(one, other)
        assert float(one.abs().sum()) > 0
