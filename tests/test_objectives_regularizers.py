"""Weight decay, sparsity, centered gradients, sums of objectives, cross-entropy; conformance of them all."""

import math

import pytest
import torch
from objective_oracles import (
    BINARY,
    F64,
    Machine,
    bits,
    gaussian,
    gen,
    gradient,
    gradient_of,
    mixture_of_three,
    random_rbm,
    some_data,
)
from torch.nn.utils import parameters_to_vector

import gibbsian as gb
from gibbsian import domains, errors, kernels, objectives, units
from gibbsian.objectives import (
    Adversarial,
    BlockSparsity,
    Blurred,
    Centered,
    ContrastiveDivergence,
    CrossEntropy,
    ExactLikelihood,
    FirstRows,
    ImplicitScoreMatching,
    NoiseContrastive,
    PersistentContrastiveDivergence,
    PseudoLikelihood,
    Shifted,
    Sparing,
    Sparsity,
    WeightDecay,
    Weighted,
)
from gibbsian.objectives.regularizers import Offsets
from gibbsian.testing import check_objective


class Still(kernels.langevin.Bare):
    """Chains that stay, whatever they live on."""

    domains = (domains.Domain,)

    def draw(self, energy, x, steps, generator, start=0):
        return (x.new_zeros(steps),)

    def step(self, energy, state, inputs):
        return state, kernels.base.Info()


# --- regularizers ---------------------------------------------------------------------------------


def test_weight_decay_touches_weights_alone():
    rbm, data = random_rbm(), bits(5, 6)
    for norm, truth in ((2, 0.05 * rbm.weight.square().sum()), (1, 0.1 * rbm.weight.abs().sum())):
        value = WeightDecay(0.1, norm)(rbm, data, (), gen()).value
        torch.testing.assert_close(value, truth)
        torch.testing.assert_close(gradient_of(value, rbm), gradient_of(truth, rbm))
    assert (gradient(rbm, WeightDecay(0.1), data)[rbm.weight.numel() :] == 0).all()
    with pytest.raises(errors.CapabilityError, match="names="):
        WeightDecay().init(gaussian(), some_data(3), gen())


def test_block_sparsity_is_the_square_of_what_a_feature_sums_to():
    rbm, data = random_rbm(), bits(5, 6)
    truth = 0.3 / (2 * len(rbm.weight)) * rbm.weight.abs().sum(0).square().sum()
    value = BlockSparsity(0.3)(rbm, data, (), gen()).value
    torch.testing.assert_close(value, truth)
    torch.testing.assert_close(gradient_of(value, rbm), gradient_of(truth, rbm))
    with pytest.raises(errors.CapabilityError, match="is for matrices"):
        BlockSparsity(names=("visible_bias",)).init(rbm, data, gen())


def test_blurred_data_have_their_covariance_and_that_of_the_noise():
    """At N(μ, Σ + σ²I) score matching on N(μ, Σ) blurred by σ has no gradient; at twice the noise it has."""
    truth, sigma, rows = gaussian(), 0.7, 2000
    objective = Blurred(ImplicitScoreMatching(), sigma)

    def worst(noise):
        cov = torch.tensor([[1.5, 0.6], [0.6, 0.8]], dtype=F64) + noise**2 * torch.eye(2, dtype=F64)
        energy = gb.energies.Gaussian(torch.tensor([0.5, -0.3], dtype=F64), cov, trainable=True)
        found = []
        for seed in range(60):
            x = truth.sample(rows, generator=gen(1000 + seed))
            found.append(gradient_of(objective(energy, x, (), gen(seed)).value, energy))
        found = torch.stack(found)
        return float((found.mean(0) / (found.std(0) / 60**0.5).clamp(min=1e-12)).abs().max())

    assert worst(sigma) < 5
    assert worst(2 * sigma) > 20


def test_every_shift_comes_equally_often_half_of_them_mirrored_and_rows_keep_their_labels():
    """Every row is an image of its own, 10⁴ apart from the next, so that nothing but its own place can be found in it."""
    n, image = 20000, torch.arange(30, dtype=F64).view(1, 5, 6)
    x, y = image + 1e4 * torch.arange(n, dtype=F64).view(n, 1, 1, 1), torch.arange(n) % 2
    joint = gb.models.JointEnergy(
        torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(30, 2, dtype=F64)), domains.Real((1, 5, 6))
    )
    moved, labels = Shifted(CrossEntropy(), pixels=1, flip=True).drawn(joint, (x, y), gen())
    assert torch.equal(labels, y)
    padded = torch.nn.functional.pad(torch.cat([image, image.flip(2)])[:, None], (1, 1, 1, 1), mode="replicate")[:, 0]
    wanted = torch.stack([padded[:, i : i + 5, j : j + 6] for i in range(3) for j in range(3)], 1).flatten(0, 1)
    same = ((moved - x + image)[:, 0, None] == wanted).flatten(2).all(2)
    assert (same.sum(1) == 1).all()
    p = 1 / 18
    assert float((same.double().mean(0) - p).abs().max()) < 5 * (p * (1 - p) / n) ** 0.5


def test_shifted_images_are_the_image_moved_by_every_distance_and_mirrored():
    image = torch.arange(30, dtype=F64).view(1, 5, 6)
    padded = torch.nn.functional.pad(image[None], (2, 2, 2, 2), mode="replicate")[0]
    crops = [padded[:, i : i + 5, j : j + 6] for i in range(5) for j in range(5)]
    wanted = {
        tuple(c.flatten().tolist())
        for c in (
            *crops,
            *(
                torch.nn.functional.pad(image.flip(2)[None], (2, 2, 2, 2), mode="replicate")[0][:, i : i + 5, j : j + 6]
                for i in range(5)
                for j in range(5)
            ),
        )
    }
    joint = gb.models.JointEnergy(
        torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(30, 2, dtype=F64)), domains.Real((1, 5, 6))
    )
    batch = image.expand(2000, 1, 5, 6), torch.zeros(2000, dtype=torch.long)
    moved = Shifted(CrossEntropy(), pixels=2, flip=True)
    seen = {tuple(row.flatten().tolist()) for row in moved.drawn(joint, batch, gen())[0]}
    assert seen == wanted  # a place is missed with probability 50·(49/50)^2000 < 1e-15
    value = moved(joint, batch, (), gen()).value
    torch.testing.assert_close(value, CrossEntropy()(joint, moved.drawn(joint, batch, gen()), (), gen()).value)
    with pytest.raises(errors.ShapeError, match="moves images"):
        Shifted(CrossEntropy()).init(
            gb.models.JointEnergy(torch.nn.Linear(3, 2), domains.Real(3)), (torch.zeros(2, 3), batch[1][:2]), gen()
        )


def test_first_rows_are_a_small_batch_with_its_labels():
    """The loss of the first rows alone, labels included; and over all ways to deal a batch its mean is that of the whole batch."""
    joint = gb.models.JointEnergy(torch.nn.Linear(3, 4, dtype=F64), domains.Real(3))
    x, y = torch.randn(6, 3, generator=gen(), dtype=F64), torch.tensor([0, 3, 1, 2, 0, 1])
    few = FirstRows(CrossEntropy(), rows=2)
    alone = CrossEntropy()(joint, (x[:2], y[:2]), (), gen())
    loss = few(joint, (x, y), few.init(joint, (x, y), gen()), gen())
    torch.testing.assert_close(gradient_of(loss.value, joint), gradient_of(alone.value, joint))
    dealt = [gradient(joint, few, (x.roll(k, 0), y.roll(k, 0))) for k in range(6)]
    torch.testing.assert_close(torch.stack(dealt).mean(0), gradient(joint, CrossEntropy(), (x, y)))
    many = FirstRows(CrossEntropy(), rows=60)
    torch.testing.assert_close(gradient(joint, many, (x, y)), gradient(joint, CrossEntropy(), (x, y)))
    bound = FirstRows(
        PersistentContrastiveDivergence(kernels.Langevin(0.1), classes=4, buffer=8, reinit=0.5, start="gaussian"),
        rows=2,
    )
    chains = bound.init(joint, (x, y), gen())
    moved = bound(joint, (x, y), chains, gen(1)).state
    assert ((moved.x != chains.x).any(1).view(4, 2).sum(1) == torch.tensor([1, 0, 0, 1])).all()  # of classes 0 and 3
    with pytest.raises(errors.ArgumentError, match="rows"):
        FirstRows(CrossEntropy(), rows=0)


def test_what_is_fitted_to_data_is_fitted_to_all_rows():
    x = some_data(30)
    state = FirstRows(NoiseContrastive("gaussian"), rows=2).init(gaussian(), x, gen())
    torch.testing.assert_close(state.noise.energy.mean, x.mean(0))
    blurred = Blurred(NoiseContrastive("gaussian"), 3.0)
    state, seen = blurred.init(gaussian(), x, gen(5)), blurred.drawn(gaussian(), x, gen(5))
    torch.testing.assert_close(state.noise.energy.mean, seen.mean(0))  # as they are drawn


def corrected_joint():
    base, classifier = (gb.nets.MLP(3, (5,), outputs=4, generator=gen(k)) for k in (1, 2))
    return gb.models.JointEnergy(gb.nets.Corrected(base, classifier, 0.1).to(F64), domains.Real(3))


def test_a_network_is_corrected_by_a_classifier_that_lapses():
    """exp f(x)[y] = exp b(x)[y] · q(y|x), q a mixture of the classifier and of all classes alike: never surer than that."""
    joint = corrected_joint()
    net, x = joint.net, 50 * torch.randn(20, 3, generator=gen(), dtype=F64)  # far out, where softmax is 0 or 1
    q = 0.9 * torch.softmax(net.classifier(x), 1) + 0.1 / 4
    torch.testing.assert_close(net(x).exp(), net.base(x).exp() * q)
    assert q.min() < 0.03
    assert (net(x) - net.base(x) >= math.log(0.1 / 4) - 1e-12).all()
    torch.testing.assert_close(joint(x), -torch.log((net.base(x).exp() * q).sum(1)))
    for smoothing in (0.0, 1.0, -0.1):
        with pytest.raises(errors.ArgumentError, match="smoothing"):
            gb.nets.Corrected(net.base, net.classifier, smoothing)


@pytest.mark.parametrize("outputs", [(4, 1), (1, 4), (4, 3)])
def test_a_correction_has_a_number_for_every_class(outputs):
    """One column would be added to all of the other's: the energy of a network that nobody meant."""
    base, classifier = (gb.nets.MLP(3, (5,), outputs=k) for k in outputs)
    with pytest.raises(errors.ShapeError, match=r"base gave \(7, \d\) and the classifier \(7, \d\)"):
        gb.nets.Corrected(base, classifier)(torch.zeros(7, 3))
    with pytest.raises(errors.ArgumentError, match=r"Corrected\(base=None\)"):
        gb.nets.Corrected(None, classifier)


def test_what_is_spared_has_no_gradient_and_the_rest_its_own():
    """Inside a sum each part of the energy is trained by its own principles; the values are those of the whole energy."""
    joint, x, y = corrected_joint(), torch.randn(6, 3, generator=gen(), dtype=F64), torch.tensor([0, 3, 1, 2, 0, 1])
    moving = PersistentContrastiveDivergence(kernels.Langevin(0.3), steps=3, chains=6, penalty=0.1)

    def found(objective):
        loss = objective(joint, (x, y), objective.init(joint, (x, y), gen(1)), gen(2))
        slopes = torch.autograd.grad(loss.value, list(joint.parameters()), materialize_grads=True, allow_unused=True)
        return loss, dict(zip((name for name, _ in joint.named_parameters()), slopes, strict=True))

    (whole, usual), (few, slopes) = found(moving), found(Sparing(moving, ["classifier"]))
    torch.testing.assert_close(few.value, whole.value)
    torch.testing.assert_close(few.state.x, whole.state.x)  # chains move in the whole energy
    for name, slope in slopes.items():
        torch.testing.assert_close(slope, torch.zeros_like(slope) if "classifier" in name else usual[name])
    assert all(p.requires_grad for p in joint.parameters())  # as before
    classes, both = found(CrossEntropy())[1], found(Weighted([CrossEntropy(), Sparing(moving, ["classifier"])]))[1]
    alone = found(Weighted([CrossEntropy(), moving]))[1]
    for name, slope in both.items():
        torch.testing.assert_close(slope, classes[name] if "classifier" in name else alone[name])
        assert (alone[name] - classes[name]).abs().max() > 1e-3
    first = {name: p.detach().clone() for name, p in joint.named_parameters()}
    gb.fit(joint, Sparing(CrossEntropy(), ["base"]), (x, y), steps=3, batch_size=6, progress=False)
    assert all(("base" in name) == torch.equal(p, first[name]) for name, p in joint.named_parameters())


def test_fast_weights_overlay_what_is_trained_alone():
    joint, x = corrected_joint(), torch.randn(6, 3, generator=gen(), dtype=F64)
    trained = parameters_to_vector(joint.net.base.parameters()).detach()
    objective = Sparing(
        PersistentContrastiveDivergence(kernels.Langevin(0.3), chains=6, fast_weights=0.1), ["classifier"]
    )
    state = objective.init(joint, x, gen(1))
    assert torch.equal(state.fast, torch.zeros_like(trained))
    loss = objective(joint, x, state, gen(2))
    slopes = torch.autograd.grad(loss.value, list(joint.net.base.parameters()), retain_graph=True)
    torch.testing.assert_close(loss.state.fast, -0.1 * parameters_to_vector(slopes))
    assert all(p.requires_grad for p in joint.parameters())
    with pytest.raises(errors.CapabilityError, match="trainable"):
        Sparing(objective.objective, ["net"]).init(joint, x, gen())


def test_a_module_that_stands_in_two_places_is_spared_in_both():
    one = gb.nets.MLP(3, (5,), outputs=4, generator=gen())
    joint = gb.models.JointEnergy(gb.nets.Corrected(one, one, 0.1), domains.Real(3))
    assert Sparing(CrossEntropy(), ["classifier"]).spared(joint) == [one]


def test_all_modules_of_these_names_are_spared():
    heads = [torch.nn.Linear(3, 4) for _ in range(3)]
    twins = [torch.nn.ModuleDict({"head": head}) for head in heads[:2]]
    net = torch.nn.ModuleDict({"first": twins[0], "second": twins[1], "third": heads[2]})
    energy = gb.as_energy(net, domains.Real(3))
    assert Sparing(CrossEntropy(), ["head"]).spared(energy) == heads[:2]
    assert Sparing(CrossEntropy(), ["third", "first"]).spared(energy) == [twins[0], heads[2]]


def test_what_cannot_be_spared_is_said():
    joint, batch = corrected_joint(), (torch.zeros(2, 3, dtype=F64), torch.zeros(2, dtype=torch.long))
    with pytest.raises(errors.CapabilityError, match=r"no module 'clasifier'; it has net, base, .*classifier"):
        Sparing(CrossEntropy(), ["clasifier"]).init(joint, batch, gen())
    with pytest.raises(errors.ArgumentError, match=r"\['classifier'\]"):
        Sparing(CrossEntropy(), "classifier")
    for names in ((), 5, None, {"classifier"}):
        with pytest.raises(errors.ArgumentError, match="a list of names"):
            Sparing(CrossEntropy(), names)
    with pytest.raises(errors.CapabilityError, match="it has none"):
        Sparing(ExactLikelihood(), ["mean"]).init(gaussian(), some_data(3), gen())


@pytest.mark.parametrize("side", [1, 2, 3])
def test_squares_are_cut_out_evenly(side):
    """Around every place of the image equally often; the rest stays, and what is cut out becomes the mean of the batch, color by color."""
    n, height, width = 20000, 4, 5
    image = torch.rand(2, height, width, generator=gen(), dtype=F64)
    x = torch.cat([image.expand(n - 1, 2, height, width), 7 * torch.ones(1, 2, height, width, dtype=F64)])
    joint = gb.models.JointEnergy(
        torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(40, 2, dtype=F64)), domains.Real((2, height, width))
    )
    cut = Shifted(CrossEntropy(), pixels=0, cutout=side)
    y = cut.drawn(joint, (x, torch.zeros(n, dtype=torch.long)), gen(1))[0]
    hole, mean = y != x, x.mean((0, 2, 3))
    assert torch.equal(hole[:, 0], hole[:, 1])
    torch.testing.assert_close(y[:, 0][hole[:, 0]], mean[0].expand(int(hole[:, 0].sum())))
    squares = {}
    for i in range(height):
        for j in range(width):
            square = torch.zeros(height, width, dtype=torch.bool)
            square[max(i - side // 2, 0) : i - side // 2 + side, max(j - side // 2, 0) : j - side // 2 + side] = True
            squares[tuple(square.flatten().tolist())] = squares.get(tuple(square.flatten().tolist()), 0) + 1
    kinds, counts = hole[:, 0].flatten(1).unique(dim=0, return_counts=True)
    assert {tuple(kind.tolist()) for kind in kinds} == set(squares)
    for kind, count in zip(kinds, counts, strict=True):
        p = squares[tuple(kind.tolist())] / (height * width)
        assert abs(int(count) - n * p) < 5 * (n * p * (1 - p)) ** 0.5
    again = Shifted(CrossEntropy(), pixels=1, flip=True).drawn(joint, (x[:9], torch.zeros(9).long()), gen(2))[0]
    none = Shifted(CrossEntropy(), pixels=1, flip=True, cutout=0).drawn(joint, (x[:9], torch.zeros(9).long()), gen(2))[
        0
    ]
    assert torch.equal(again, none)
    with pytest.raises(errors.ArgumentError, match="cutout"):
        Shifted(CrossEntropy(), cutout=-1)


def test_what_is_drawn_anew_is_of_the_domain_or_refused():
    pixels = domains.Binary((4, 4))
    images = pixels.sample(5, generator=gen())
    energy = gb.energies.MLPEnergy(pixels, (4,))
    assert pixels.contains(Shifted(PseudoLikelihood(), pixels=2, flip=True).drawn(energy, images, gen())).all()
    with pytest.raises(errors.CapabilityError, match="leave cutout out"):
        Shifted(PseudoLikelihood(), cutout=2).init(energy, images, gen())
    potts = gb.models.Potts(4, 3)
    with pytest.raises(errors.CapabilityError, match="runs through classes"):
        Shifted(PseudoLikelihood(), pixels=1).init(potts, potts.domain.sample(5, generator=gen()), gen())
    mixed = domains.Joined(domains.Joined(domains.Binary(2)), domains.Real(1))
    energy, rows = gb.energies.MLPEnergy(mixed, (4,)), mixed.sample(5, generator=gen())
    with pytest.raises(errors.CapabilityError, match="adds Gaussian noise"):
        Blurred(objectives.EnergyDiscrepancy(), 0.1).init(energy, rows, gen())
    with pytest.raises(errors.CapabilityError, match="draws real numbers"):
        PersistentContrastiveDivergence(Still(), start="gaussian").init(energy, rows, gen())
    joint = gb.models.JointEnergy(gb.nets.MLP(3, (4,), outputs=2), mixed)
    with pytest.raises(errors.CapabilityError, match="moves inputs"):
        CrossEntropy(adversary=0.1).init(joint, (rows, torch.zeros(5, dtype=torch.long)), gen())
    walled = domains.Joined(domains.Box(1), domains.Real(1), domains.NonNegative(1))
    energy, rows = gb.energies.MLPEnergy(walled, (4,)), walled.sample(50, generator=gen())
    blurred = Blurred(objectives.EnergyDiscrepancy(), 3.0).drawn(energy, rows, gen())
    assert walled.contains(blurred).all()
    assert (blurred[:, 1] != rows[:, 1]).all()


def test_blur_stays_in_the_box_and_is_seen_by_its_own_part_alone():
    x = torch.rand(50, 3, generator=gen(), dtype=F64)
    joint = gb.models.JointEnergy(torch.nn.Linear(3, 2, dtype=F64), domains.Box(3))
    seen = Blurred(CrossEntropy(), 0.5).drawn(joint, (x, torch.arange(50) % 2), gen())
    assert joint.domain.contains(seen[0]).all()
    assert not torch.equal(seen[0], x)
    batch = x, torch.arange(50) % 2
    both = Weighted([CrossEntropy(), Blurred(CrossEntropy(), 0.5)])(joint, batch, ((), ()), gen())
    clean = CrossEntropy()(joint, batch, (), gen()).value
    noisy = CrossEntropy()(joint, Blurred(CrossEntropy(), 0.5).drawn(joint, batch, gen()), (), gen()).value
    torch.testing.assert_close(both.value, clean + noisy)
    with pytest.raises(errors.CapabilityError, match="adds Gaussian noise"):
        Blurred(ContrastiveDivergence(kernels.Gibbs())).init(random_rbm(), bits(5, 6), gen())
    with pytest.raises(errors.ArgumentError, match="sigma"):
        Blurred(CrossEntropy(), 0.0)


def test_under_conditional_the_data_are_drawn_anew_and_not_the_inputs():
    """The first of a pair is the input there: blurred, it would be put within the walls of the outputs."""
    model = gb.energies.ConditionalEnergy(gb.nets.PairMLP(1, 1, (4,)), domains.Box(1))
    x, y = torch.full((6, 1), 5.0), torch.rand(6, 1, generator=gen())
    found = objectives.EnergyDiscrepancy(0.1)
    with pytest.raises(errors.CapabilityError, match=r"give Conditional\(Blurred"):
        Weighted([Blurred(FirstRows(objectives.Conditional(found), 4), 0.1)]).init(model, (x, y), gen())
    seen = []
    model.encoder = lambda rows: seen.append(rows) or rows
    objective = objectives.Conditional(Blurred(found, 0.1))
    objective(model, (x, y), objective.init(model, (x, y), gen()), gen()).value.backward()
    (inputs,) = seen
    assert torch.equal(inputs, x)


def test_sparsity_is_the_divergence_from_the_target():
    rbm, data = random_rbm(), bits(50, 6)
    q = torch.sigmoid(rbm.hidden_bias + data @ rbm.weight).mean(0)
    kl = lambda p, r: torch.distributions.kl_divergence(  # noqa: E731
        torch.distributions.Bernoulli(torch.tensor(p, dtype=F64)), torch.distributions.Bernoulli(r)
    )
    truth = 0.7 * kl(0.1, q).sum()
    value = Sparsity(0.1, rate=0.7)(rbm, data, (), gen()).value
    torch.testing.assert_close(value, truth)
    torch.testing.assert_close(gradient_of(value, rbm), gradient_of(truth, rbm))
    spins = gb.models.RBM(units.Bernoulli(6), units.Spin(4)).double()
    with pytest.raises(errors.CapabilityError, match="Bernoulli hidden"):
        Sparsity(0.1).init(spins, data, gen())


def centered_by_hand(rbm, data, mu, nu):
    """The gradient step of the centered parametrization E = -(v-μ)ᵀW(h-λ) - b'·(v-μ) - c'·(h-λ), mapped back.

    b = b' - Wλ and c = c' - Wᵀμ; a step of the primed parameters along minus their gradient moves W by ΔW,
    b by Δb' - ΔWλ and c by Δc' - ΔWᵀμ.
    """
    w = rbm.weight.detach().clone().requires_grad_(True)
    b = (rbm.visible_bias + rbm.weight @ nu).detach().clone().requires_grad_(True)
    c = (rbm.hidden_bias + mu @ rbm.weight).detach().clone().requires_grad_(True)

    def free(v):
        visible = (v - mu) @ b
        drive = c + (v - mu) @ w
        return -visible + drive @ nu - torch.nn.functional.softplus(drive).sum(1)

    states = domains.Binary(6).states(dtype=F64)
    nll = free(data).mean() + torch.logsumexp(-free(states), 0)
    dw, db, dc = torch.autograd.grad(nll, (w, b, c))
    return torch.cat([dw.flatten(), db - dw @ nu, dc - mu @ dw])


@pytest.mark.parametrize("rate", [1.0, 0.25])
def test_the_centered_gradient_is_that_of_the_centered_parametrization(rate):
    rbm, data = random_rbm(), bits(50, 6)
    objective = Centered(ExactLikelihood(), rate=rate)
    old = Offsets((), torch.full((6,), 0.2, dtype=F64), torch.full((4,), 0.6, dtype=F64))
    mu = (1 - rate) * old.visible + rate * data.mean(0)
    nu = (1 - rate) * old.hidden + rate * rbm.hidden_mean(data).mean(0).detach()
    loss = objective(rbm, data, old, gen())
    got = gradient_of(loss.value, rbm)
    torch.testing.assert_close(got, centered_by_hand(rbm, data, mu, nu))
    torch.testing.assert_close(loss.state.visible, mu)
    torch.testing.assert_close(loss.state.hidden, nu)
    plain = gradient(rbm, ExactLikelihood(), data)
    assert (got - plain).norm() > 0.1 * plain.norm()  # another direction
    assert float(got @ plain) > 0  # which still goes down
    torch.testing.assert_close(loss.value.detach(), ExactLikelihood()(rbm, data, (), gen()).value.detach())


def test_centering_on_the_average_of_data_and_model():
    rbm, data = random_rbm(), bits(50, 6)
    states = domains.Binary(6).states(dtype=F64)
    p = torch.softmax(-rbm(states), 0).detach()
    mu = 0.5 * (data.mean(0) + p @ states)
    nu = 0.5 * (rbm.hidden_mean(data).mean(0) + p @ rbm.hidden_mean(states)).detach()
    objective = Centered(ExactLikelihood(), offsets="average", rate=1.0)
    torch.testing.assert_close(gradient(rbm, objective, data), centered_by_hand(rbm, data, mu, nu))


def test_the_centered_gradient_does_not_care_what_is_called_one():
    """Flip the meaning of every visible bit: the same function is learned, step for step."""
    rbm, data = random_rbm(), bits(50, 6, p=0.9)
    flipped = random_rbm()
    with torch.no_grad():
        flipped.weight.copy_(-rbm.weight)
        flipped.visible_bias.copy_(-rbm.visible_bias)
        flipped.hidden_bias.copy_(rbm.hidden_bias + rbm.weight.sum(0))
    torch.testing.assert_close(rbm(data) - rbm(data)[0], flipped(1 - data) - flipped(1 - data)[0])
    objective = Centered(ExactLikelihood(), rate=1.0)
    steps = [gradient(rbm, objective, data), gradient(flipped, objective, 1 - data)]
    for machine, step in zip((rbm, flipped), steps, strict=True):
        with torch.no_grad():
            dw, db, dc = step.split([24, 6, 4])
            machine.weight -= 0.1 * dw.reshape(6, 4)
            machine.visible_bias -= 0.1 * db
            machine.hidden_bias -= 0.1 * dc
    gap = rbm(data) - flipped(1 - data)
    torch.testing.assert_close(gap, gap[:1].expand_as(gap))


def test_centering_refuses_units_whose_bias_is_not_linear():
    real = gb.models.RBM(units.Gaussian(6), 4).double()
    with pytest.raises(errors.CapabilityError, match="linearly"):
        Centered(ExactLikelihood()).init(real, some_data(3).repeat(1, 3), gen())
    with pytest.raises(errors.CapabilityError, match="RBM"):
        Centered(ExactLikelihood()).init(gaussian(), some_data(3), gen())
    for bad in (
        lambda: Centered(3),
        lambda: Centered(ExactLikelihood(), offsets="model"),
        lambda: Centered(ExactLikelihood(), rate=0.0),
        lambda: Sparsity(1.0),
        lambda: Sparsity(0.0),
        lambda: WeightDecay(-1.0),
        lambda: WeightDecay(norm=3),
    ):
        with pytest.raises(errors.ArgumentError):
            bad()


# --- sums -----------------------------------------------------------------------------------------


def test_a_weighted_sum_is_the_sum_of_its_parts():
    rbm, data = random_rbm(), bits(20, 6)
    objective = Weighted([ExactLikelihood(), WeightDecay(0.1), Sparsity(0.2)], [1.0, 2.0, 0.5])
    expected = sum(
        w * gradient(rbm, part, data) for part, w in zip(objective.objectives, objective.weights, strict=True)
    )
    torch.testing.assert_close(gradient(rbm, objective, data), expected)
    loss = objective(rbm, data, objective.init(rbm, data, gen()), gen())
    assert {"log_z", "activity", "0.ExactLikelihood", "1.WeightDecay"} <= set(loss.metrics)
    two = Weighted([ContrastiveDivergence(kernels.Gibbs()), ContrastiveDivergence(kernels.Gibbs(), 2)])
    loss = two(rbm, data, two.init(rbm, data, gen()), gen())
    assert {"0.ContrastiveDivergence.gap", "1.ContrastiveDivergence.gap"} <= set(loss.metrics)


def test_parts_keep_their_own_state_and_players():
    energy, x = mixture_of_three(), some_data(50)
    chains = PersistentContrastiveDivergence(kernels.MALA(0.5), chains=8)
    objective = Weighted([chains, NoiseContrastive(ratio=2), Adversarial("flow")], [1.0, 0.5, 2.0])
    state = objective.init(energy, x, gen())
    assert objective.log_z(state) is not None
    loss = objective(energy, x, state, gen(1))
    assert not torch.equal(loss.state[0].x, state[0].x)
    c = state[1].normalizer.log_z
    (own,) = torch.autograd.grad(loss.other, c, retain_graph=True)  # log Z moves over to the second player
    alone = NoiseContrastive(ratio=2)
    g = gen(1)
    chains(energy, x, state[0], g)
    (expected,) = torch.autograd.grad(alone(energy, x, state[1], g).value, c)
    torch.testing.assert_close(own, 0.5 * expected)
    assert Weighted([chains]).log_z(Weighted([chains]).init(energy, x, gen())) is None


def test_bad_sums_are_refused():
    for bad in (
        lambda: Weighted([]),
        lambda: Weighted([3]),
        lambda: Weighted([ExactLikelihood()], [1.0, 2.0]),
        lambda: Weighted([ExactLikelihood()], [float("nan")]),
        lambda: Weighted([ExactLikelihood()], 1.0),
        lambda: Weighted(ExactLikelihood()),
    ):
        with pytest.raises(errors.ArgumentError) as caught:
            bad()
        assert len(str(caught.value)) > 25


# --- cross-entropy and the joint energy -----------------------------------------------------------


def joint_energy():
    return gb.models.JointEnergy(gb.energies.MLP(2, (8,), outputs=3).double(), domains.Real(2))


def test_cross_entropy_is_torchs():
    joint, x, y = joint_energy(), some_data(12), torch.arange(12) % 3
    for smoothing in (0.0, 0.2):
        truth = torch.nn.functional.cross_entropy(joint.net(x), y, label_smoothing=smoothing)
        loss = CrossEntropy(smoothing)(joint, (x, y), (), gen())
        torch.testing.assert_close(loss.value, truth)
        torch.testing.assert_close(gradient_of(loss.value, joint), gradient_of(truth, joint))
    assert float(loss.metrics["accuracy"]) == float((joint.net(x).argmax(1) == y).double().mean())


def test_joint_likelihood_is_classification_plus_marginal():
    """-log p(x, y) = cross-entropy - log p(x) on three bits, by enumeration."""
    joint = gb.models.JointEnergy(gb.energies.MLP(3, (8,), outputs=2).double(), domains.Binary(3))
    states = domains.Binary(3).states(dtype=F64)
    x, y = bits(10, 3), torch.arange(10) % 2
    both = torch.stack([joint.given(k)(states) for k in (0, 1)])
    truth = joint.given(y)(x).mean() + torch.logsumexp(-both.flatten(), 0)
    objective = Weighted([CrossEntropy(), ExactLikelihood()])
    torch.testing.assert_close(gradient(joint, objective, (x, y)), gradient_of(truth, joint))


def test_labels_are_checked():
    joint, x = joint_energy(), some_data(6)
    for batch, match in (
        (x, "labels"),
        ((x, torch.zeros(6)), "dtype"),
        ((x, torch.zeros(5).long()), "labels have shape"),
        ((x, torch.zeros(6).long(), x), "pairs"),
    ):
        with pytest.raises(errors.GibbsianError, match=match):
            CrossEntropy().init(joint, batch, gen())
    with pytest.raises(errors.CapabilityError, match="class_log_prob"):
        CrossEntropy().init(gaussian(), (x, torch.zeros(6).long()), gen())
    with pytest.raises(errors.ArgumentError, match="expected 0 to 2"):
        joint.given(3)(x)
    with pytest.raises(errors.ArgumentError, match="whole number"):
        joint.given(torch.tensor(0.5))
    with pytest.raises(errors.ShapeError, match="one a row"):
        joint.given(torch.zeros(3).long())(x)
    one = gb.models.JointEnergy(gb.energies.MLP(2), domains.Real(2)).double()
    with pytest.raises(errors.ShapeError, match="two classes"):
        one(x)
    with pytest.raises(errors.DataError, match="batch"):
        ExactLikelihood().init(gaussian(), {"x": x}, gen())


# --- all of them ----------------------------------------------------------------------------------

REAL = {
    "exact": ExactLikelihood(),
    "monte-carlo": objectives.MonteCarloLikelihood(kernels.MALA(0.5), steps=3, chains=8),
    "cd": ContrastiveDivergence(kernels.MALA(0.5), steps=2),
    "improved cd": ContrastiveDivergence(kernels.Langevin(0.5), steps=2, entropy=True),
    "pcd": PersistentContrastiveDivergence(kernels.HMC(0.3, 2), chains=5, buffer=12, reinit=0.1, fast_weights=0.01),
    "explicit": objectives.ExplicitScoreMatching(gaussian(False)),
    "implicit": objectives.ImplicitScoreMatching(),
    "implicit chunked": objectives.ImplicitScoreMatching(chunk=1),
    "hutchinson": objectives.ImplicitScoreMatching("hutchinson", probes=2),
    "denoising": objectives.DenoisingScoreMatching(0.3),
    "multi-scale": objectives.MultiScaleDenoising((0.1, 1.0)),
    "sliced": objectives.SlicedScoreMatching(3, "sphere", False),
    "nce": NoiseContrastive("mixture", ratio=2),
    "nce flow": NoiseContrastive(objectives.FlowNoise(steps=1, train=True)),
    "adversarial flow": Adversarial("flow"),
    "adversarial implicit": Adversarial("implicit"),
    "weighted": Weighted([NoiseContrastive(), Adversarial("flow")]),
}
DISCRETE = {
    "exact": ExactLikelihood(),
    "cd": ContrastiveDivergence(kernels.SiteGibbs()),
    "pcd": PersistentContrastiveDivergence(kernels.SiteGibbs(), chains=6, penalty=0.1),
    "pseudo": objectives.PseudoLikelihood(),
    "ratio": objectives.RatioMatching(sites=2),
    "flow": objectives.MinimumProbabilityFlow(chunk=2),
    "nce": NoiseContrastive("marginals", ratio=3),
    "perturb": objectives.PerturbAndMAP(samples=5),
}
RBM = {
    "cd": ContrastiveDivergence(kernels.Gibbs()),
    "pcd": PersistentContrastiveDivergence(kernels.Gibbs(), chains=6),
    "centered": Centered(PersistentContrastiveDivergence(kernels.Gibbs(), chains=6)),
    "regularized": Weighted([ContrastiveDivergence(kernels.Gibbs()), WeightDecay(), Sparsity()]),
}


@pytest.mark.parametrize("name", REAL)
def test_conformance_on_the_plane(name):
    for energy in (gaussian(), mixture_of_three()):
        check_objective(REAL[name], energy, some_data(20), generator=gen())


@pytest.mark.parametrize("name", DISCRETE)
def test_conformance_on_bits(name):
    check_objective(DISCRETE[name], Machine(BINARY), bits(20, 4), generator=gen())


@pytest.mark.parametrize("name", RBM)
def test_conformance_on_an_rbm(name):
    check_objective(RBM[name], random_rbm(), bits(20, 6), generator=gen())


def test_single_precision_stays_single():
    energy = gb.energies.MLPEnergy(2, hidden=(8,), confine=0.5)
    x = some_data(20).float()
    for name, objective in REAL.items():
        if name in ("exact", "explicit"):
            continue
        loss = objective(energy, x, objective.init(energy, x, gen()), gen())
        assert loss.value.dtype == torch.float32, name
        assert all(m.dtype == torch.float32 for m in loss.metrics.values()), name


def test_objectives_cost_one_wait():
    """Nothing but the finiteness check reads a number back: all else stays a tensor on the device."""
    waits = []
    original = torch.Tensor.__bool__

    def counting(self):
        waits.append(1)
        return original(self)

    energy, x = gb.energies.MLPEnergy(2, hidden=(8,), confine=0.5), some_data(20).float()
    for name in ("cd", "pcd", "denoising", "sliced", "nce", "adversarial flow", "multi-scale"):
        objective = REAL[name]
        state = objective.init(energy, x, gen())
        waits.clear()
        torch.Tensor.__bool__ = counting
        try:
            objective(energy, x, state, gen())
        finally:
            torch.Tensor.__bool__ = original
        assert len(waits) <= 1 or name == "adversarial flow", (name, len(waits))


def test_centered_objectives_can_be_validated_on_the_average():
    g = torch.Generator().manual_seed(0)
    data = (torch.rand(40, 6, generator=g) < 0.3).float()
    objective = objectives.Centered(objectives.PersistentContrastiveDivergence(gb.kernels.Gibbs(), chains=10))
    run = gb.fit(gb.models.RBM(6, 3), objective, data, steps=10, ema=0.9, validation=data,
                 logging=gb.training.Logging(validate_every=5))  # fmt: skip
    assert sum("validation_loss" in record for record in run.history) == 2
