"""Losses that carry their gradients: the same as those of autograd through the plain formula, whoever combines them."""

import inspect

import pytest
import torch
from objective_oracles import bits, gen, random_rbm

import gibbsian as gb
from gibbsian import capabilities
from gibbsian.app.recipe import parse_recipe, recipe_source
from gibbsian.derivatives.known import with_gradients
from gibbsian.objectives.base import Objective, Step, SteppedObjective

GIBBS = gb.kernels.Gibbs()


def close(known, expected):
    assert set(known) == set(expected)
    for p, gradient in known.items():
        torch.testing.assert_close(gradient, expected[p], rtol=0, atol=1e-12)


def by_autograd(value, model):
    return dict(
        zip(
            model.parameters(),
            torch.autograd.grad(value, list(model.parameters()), allow_unused=True, materialize_grads=True),
            strict=True,
        )
    )


def centered(gradients, rbm, mu, nu):
    """ΔW = g_W - μg_cᵀ - g_bλᵀ,   Δb = g_b - ΔWλ,   Δc = g_c - ΔWᵀμ."""
    g_w, g_b, g_c = (gradients[p] for p in (rbm.weight, rbm.visible_bias, rbm.hidden_bias))
    d_w = g_w - torch.outer(mu, g_c) - torch.outer(g_b, nu)
    return {rbm.weight: d_w, rbm.visible_bias: g_b - d_w @ nu, rbm.hidden_bias: g_c - mu @ d_w}


@pytest.mark.parametrize("name", ["digits-rbm", "mnist-rbm"])
@pytest.mark.parametrize("fused", [False, True])
def test_recipes_of_rbms_take_the_fast_path(name, fused, monkeypatch):
    monkeypatch.setattr("gibbsian.objectives.regularizers.compiled_copy", lambda function, *key: function)
    monkeypatch.setattr("gibbsian.models.rbm.machine.compiled_copy", lambda function, *key: function)
    _, text = recipe_source(name)
    objective = parse_recipe(text, name=name).objective
    rbm, x = random_rbm(), bits(20, 6)
    state = objective.init(rbm, x, gen(1))
    loss = objective.loss(rbm, x, state, gen(2), Step(fused=fused))
    gap = rbm(x).mean() - rbm(loss.state.inner.x).mean()
    torch.testing.assert_close(loss.value.detach(), gap.detach(), rtol=0, atol=1e-12)
    expected = centered(by_autograd(gap, rbm), rbm, loss.state.visible, loss.state.hidden)
    close(loss.gradients, expected)
    loss.value.backward()
    close({p: p.grad for p in rbm.parameters()}, expected)


def test_sums_scale_and_add_the_gradients_of_their_parts():
    rbm, x = random_rbm(), bits(20, 6)
    objective = gb.objectives.Weighted(
        [gb.objectives.PersistentContrastiveDivergence(GIBBS, chains=9), gb.objectives.WeightDecay(0.1),
         gb.objectives.WeightDecay(0.2, norm=1)], [0.5, 2.0, 1.0]
    )  # fmt: skip
    loss = objective(rbm, x, objective.init(rbm, x, gen(1)), gen(2))
    w = rbm.weight
    value = 0.5 * (rbm(x).mean() - rbm(loss.state[0].x).mean()) + 0.1 * w.square().sum() + 0.2 * w.abs().sum()
    torch.testing.assert_close(loss.value.detach(), value.detach(), rtol=0, atol=1e-12)
    close(loss.gradients, by_autograd(value, rbm))


def test_a_part_without_gradients_leaves_the_sum_to_autograd():
    rbm, x = random_rbm(), bits(20, 6)
    cd, sparse = gb.objectives.ContrastiveDivergence(GIBBS), gb.objectives.Sparsity(0.1)
    loss = gb.objectives.Weighted([cd, sparse], [0.5, 2.0])(rbm, x, ((), ()), gen(2))
    assert loss.gradients is None
    alone = cd(rbm, x, (), gen(2))
    slopes = by_autograd(sparse(rbm, x, (), gen()).value, rbm)
    close(by_autograd(loss.value, rbm), {p: 0.5 * g + 2 * slopes[p] for p, g in alone.gradients.items()})


WRAPPED = {
    "binarized": lambda inner: gb.objectives.Binarized(inner),
    "weighted": lambda inner: gb.objectives.Weighted([inner]),
    "centered": lambda inner: gb.objectives.Centered(inner),
    "first rows": lambda inner: gb.objectives.FirstRows(inner, rows=20),
    "sparing": lambda inner: gb.objectives.Sparing(inner, ["hidden"]),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_whoever_holds_an_objective_passes_gradients_and_steps_on(name):
    asked = []

    class Asking(gb.objectives.ContrastiveDivergence):
        def loss(self, energy, batch, state, generator, step):
            asked.append(step)
            return super().loss(energy, batch, state, generator, step)

    rbm, x = random_rbm(), bits(20, 6)
    objective = WRAPPED[name](Asking(GIBBS))
    state = objective.init(rbm, x, gen(1))
    loss = objective.loss(rbm, x, state, gen(2), Step(watched=False))
    assert asked == [Step(watched=False)]
    assert "movement" not in loss.metrics
    close(loss.gradients, by_autograd(loss.value, rbm))


def test_fast_weights_and_chunks_carry_theirs():
    rbm, x = random_rbm(), bits(20, 6)
    pcd = gb.objectives.PersistentContrastiveDivergence(GIBBS, chains=9, fast_weights=0.1)
    loss = pcd(rbm, x, pcd.init(rbm, x, gen(1)), gen(2))
    close(loss.gradients, by_autograd(rbm(x).mean() - rbm(loss.state.x).mean(), rbm))
    whole, parts = (gb.objectives.PseudoLikelihood(chunk=n)(rbm, x, (), gen()) for n in (6, 2))
    assert whole.gradients is None
    close(parts.gradients, by_autograd(whole.value, rbm))


def test_gradients_are_of_what_is_trained():
    rbm, x = random_rbm(), bits(20, 6)
    cd = gb.objectives.ContrastiveDivergence(GIBBS)
    rbm.visible_bias.requires_grad_(False)
    assert set(cd(rbm, x, (), gen()).gradients) == {rbm.weight, rbm.hidden_bias}
    with torch.no_grad():
        assert cd(rbm, x, (), gen()).gradients is None
    torch.nn.utils.parametrizations.weight_norm(rbm)  # the weight is a function of others now
    loss = cd(rbm, x, (), gen())
    assert loss.gradients is None
    loss.value.backward()
    assert all(p.grad is not None for p in rbm.parameters() if p.requires_grad)


def test_a_parameter_that_stands_twice_gets_the_sum():
    p = torch.ones(2, requires_grad=True)
    value, known = with_gradients(torch.tensor(3.0), [p, p], [torch.ones(2), 2 * torch.ones(2)])
    assert torch.equal(known[p], torch.full((2,), 3.0))
    (2 * value).backward()
    assert torch.equal(p.grad, torch.full((2,), 6.0))


def test_objectives_with_a_plain_call_and_those_that_are_told_the_step():
    class Plain(Objective):
        def __call__(self, energy, batch, state, generator):
            return gb.objectives.base.Loss(energy(batch).mean(), state, {})

    rbm, x = random_rbm(), bits(5, 6)
    assert torch.equal(Plain().loss(rbm, x, (), gen(), Step(False, True)).value, rbm(x).mean())
    with pytest.raises(gb.errors.CapabilityError, match="override loss"):

        class Wrong(SteppedObjective):
            def __call__(self, energy, batch, state, generator):
                return None


def test_capabilities_are_seen_by_every_python():
    """From 3.12 on runtime protocols look at attributes statically, and modules hide tensors and parts from that."""
    plain = {"classes", "observed", "value"}  # numbers, domains, and the field of a result that is no module
    for name in capabilities.__all__:
        kind = getattr(capabilities, name)
        if getattr(kind, "_is_protocol", False):
            assert set(inspect.get_annotations(kind)) <= plain, name
