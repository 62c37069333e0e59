"""Joint energy models: unlabeled rows, generation by class, refinement, and half precision in the chains."""

import math

import pytest
import torch

import gibbsian as gb
from gibbsian import domains, errors, hybrid, kernels, models, objectives
from gibbsian.nets import MLP, ConvNet, ResidualNet, WideResidualNet
from gibbsian.objectives.chains import cast_once, walk

D = torch.float64


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def joint_energy(classes=3):
    return models.JointEnergy(MLP(2, (8,), outputs=classes).double(), domains.Real(2))


class Wells(torch.nn.Module):
    """Logits -½‖x - μ_k‖²/s²: every class a Gaussian, classes equally probable."""

    def __init__(self, means, width=0.5):
        super().__init__()
        self.means, self.width = torch.nn.Parameter(torch.as_tensor(means, dtype=D)), width

    def forward(self, x):
        return -0.5 * (x[:, None] - self.means).square().sum(2) / self.width**2


MEANS = [[4.0, 0.0], [-4.0, 0.0], [0.0, 5.0]]


def gradient(loss, module):
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(module.parameters()))])


# --- unlabeled rows ------------------------------------------------------------------------------


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_rows_without_label_do_not_count(smoothing):
    joint, x = joint_energy(), torch.randn(10, 2, generator=gen(), dtype=D)
    y = torch.tensor([0, -1, 2, -1, -1, 1, 1, -1, 0, -1])
    known = y >= 0
    truth = torch.nn.functional.cross_entropy(joint.net(x[known]), y[known], label_smoothing=smoothing)
    loss = objectives.CrossEntropy(smoothing)(joint, (x, y), (), gen())
    torch.testing.assert_close(loss.value, truth)
    torch.testing.assert_close(gradient(loss.value, joint), gradient(truth, joint))
    accuracy = (joint.net(x[known]).argmax(1) == y[known]).double().mean()
    torch.testing.assert_close(loss.metrics["accuracy"], accuracy)


def test_adversarial_examples_of_a_linear_network_raise_every_margin_by_epsilon_times_its_weights():
    """Two classes with logit difference w·x + b: the worst x within ±ε has the margin of the true class lowered by ε‖w‖₁."""
    net = torch.nn.Linear(3, 2, dtype=D)
    x, y = torch.randn(20, 3, generator=gen(), dtype=D), torch.arange(20) % 2
    w, b = (net.weight[1] - net.weight[0]), (net.bias[1] - net.bias[0])
    margin = (2 * y - 1) * (x @ w + b)
    clean, worst = (torch.nn.functional.softplus(-m).mean() for m in (margin, margin - 0.3 * w.abs().sum()))
    joint = models.JointEnergy(net, gb.domains.Real(3))
    loss = objectives.CrossEntropy(adversary=0.3)(joint, (x, y), (), gen())
    torch.testing.assert_close(loss.value, (clean + worst) / 2)
    torch.testing.assert_close(loss.metrics["adversarial_cross_entropy"], worst.detach())
    held = (2 * y - 1) * (torch.full_like(x, 0.5) @ w + b)  # in a box that ends there nothing can move up
    boxed = models.JointEnergy(net, gb.domains.Box(3, 0.5, 0.5 + 1e-9))
    loss = objectives.CrossEntropy(adversary=0.3)(boxed, (torch.full_like(x, 0.5), y), (), gen())
    torch.testing.assert_close(loss.value, torch.nn.functional.softplus(-held).mean())
    binary = models.JointEnergy(net, gb.domains.Binary(3))
    with pytest.raises(errors.CapabilityError, match="moves inputs"):
        objectives.CrossEntropy(adversary=0.1).check(binary, (torch.zeros(2, 3, dtype=D), torch.arange(2)))


def test_a_batch_without_any_label_gives_no_gradient():
    joint, x = joint_energy(), torch.randn(4, 2, generator=gen(), dtype=D)
    loss = objectives.CrossEntropy()(joint, (x, torch.full((4,), -1)), (), gen())
    assert float(loss.value.detach()) == 0.0
    assert (gradient(loss.value, joint) == 0).all()


def test_labels_outside_the_classes_are_refused():
    joint, x = joint_energy(), torch.zeros(3, 2, dtype=D)
    for y in ([0, 3, 1], [0, -2, 1]):
        with pytest.raises(errors.DataError, match="expected 0 to 2, or -1"):
            objectives.CrossEntropy().init(joint, (x, torch.tensor(y)), gen())


def test_semi_supervised_training_uses_the_unlabeled_rows():
    """Two labeled points between three clusters each: the density moves the border where two labels leave it."""
    g = gen(1)
    centers = torch.tensor(MEANS, dtype=D)
    u = centers[torch.arange(300) % 3] + 0.5 * torch.randn(300, 2, generator=g, dtype=D)
    x, y = torch.tensor([[4.0, 0.0], [-4.0, 0.0], [0.0, 5.0]], dtype=D), torch.arange(3)
    start = [[3.0, 2.0], [-3.0, 2.0], [1.0, 3.0]]
    joint = models.JointEnergy(Wells(start), domains.Real(2))
    chains = objectives.PersistentContrastiveDivergence(kernels.MALA(0.5), steps=5, chains=200, start="data")
    objective = objectives.Weighted([objectives.CrossEntropy(), chains])
    transform = gb.data.WithLabeled(x, y, rows=6)
    gb.fit(joint, objective, u, transform=transform, steps=150, batch_size=100, lr=0.05, seed=0)
    # the likelihood's optimum of the means, within the standard error 0.5/√100 and the optimizer's noise
    assert (joint.net.means.detach() - centers).abs().max() < 0.3
    assert (hybrid.classify(joint, u).argmax(1) == torch.arange(300) % 3).double().mean() > 0.99


def test_labeled_rows_are_drawn_from_their_tensor():
    x, y = torch.arange(5.0)[:, None], torch.arange(5)
    transform = gb.data.WithLabeled(x, y, rows=2000)
    both, labels = transform(torch.full((3, 1), 9.0), gen())
    assert (labels[:3] == -1).all()
    assert (both[:3] == 9).all()
    assert (both[3:, 0] == labels[3:]).all()
    counts = labels[3:].bincount()
    assert ((counts - 400).abs() < 5 * (2000 * 0.2 * 0.8) ** 0.5).all()
    with pytest.raises(errors.ShapeError):
        gb.data.WithLabeled(x, y[:3], rows=2)
    with pytest.raises(errors.DataError, match="whole"):
        gb.data.WithLabeled(x, y.float(), rows=2)
    with pytest.raises(errors.ArgumentError, match="rows"):
        gb.data.WithLabeled(x, y, rows=0)
    with pytest.raises(errors.DataError, match="tensor"):
        transform((x, y), gen())


# --- generation -----------------------------------------------------------------------------------


def test_generated_draws_follow_the_law_of_their_class():
    """Langevin on E(·, y) of a Gaussian class: mean μ_y, variance s²/(1 - ε²/4s²), within 5 standard errors."""
    joint = models.JointEnergy(Wells(MEANS), domains.Real(2))
    y = torch.arange(3).repeat(1000)
    x = hybrid.generate(joint, y, kernels.Langevin(0.4), 60, generator=gen())
    variance = 0.25 / (1 - 0.16 / (4 * 0.25))
    for k in range(3):
        own = x[y == k]
        assert ((own.mean(0) - torch.tensor(MEANS[k])).abs() < 5 * (variance / 1000) ** 0.5).all()
        assert ((own.var(0) / variance - 1).abs() < 5 * (2 / 1000) ** 0.5).all()


def test_the_pool_gives_every_class_rows_of_its_own_law():
    """Rows of p(x) drawn with weights p(y|x) are rows of p(x|y): their share in a half plane is that of the weights."""
    joint = models.JointEnergy(Wells(MEANS), domains.Real(2))
    pool = 3 * torch.randn(4000, 2, generator=gen(), dtype=D)
    y = torch.arange(3).repeat_interleave(200)
    x = hybrid.generate(joint, y, kernels.Langevin(0.1), 0, pool=pool, generator=gen())
    p = joint.class_log_prob(pool).exp().detach()
    for k in range(3):
        drawn = x[y == k]
        assert len(torch.unique(drawn, dim=0)) == 200  # no row twice
        share = float((p[:, k] * (pool[:, 0] > 0.5)).sum() / p[:, k].sum())
        sigma = (share * (1 - share) / 200) ** 0.5
        assert abs(float((drawn[:, 0] > 0.5).double().mean()) - share) < 4 * sigma + 0.02  # without replacement
    pool, y = pool[:50], torch.tensor([2, 0, 2, 1, 2, 0])
    x = hybrid.generate(joint, y, kernels.Langevin(0.1), 0, pool=pool, generator=gen())
    moved = hybrid.generate(joint, y, kernels.Langevin(0.1), 1, pool=pool, generator=gen())
    assert 0 < (moved - x).abs().max() < 5
    for narrow in (torch.uint8, torch.int8, torch.int16, torch.int32):  # such as labels are read from files
        again = hybrid.generate(joint, y.to(narrow), kernels.Langevin(0.1), 0, pool=pool, generator=gen())
        assert torch.equal(again, x)
    with pytest.raises(errors.DataError, match="larger"):
        hybrid.generate(joint, y, kernels.Langevin(0.1), 1, pool=pool[:2], generator=gen())
    with pytest.raises(errors.ArgumentError, match="expected 0 to 2"):
        hybrid.generate(joint, y + 1, kernels.Langevin(0.1), 1, generator=gen())
    with pytest.raises(errors.CapabilityError, match="JointEnergy"):
        hybrid.generate(joint.given(0), y, kernels.Langevin(0.1), 1, generator=gen())


def test_buffers_are_found_in_nested_states():
    joint, x = joint_energy(), torch.randn(6, 2, generator=gen(), dtype=D)
    chains = objectives.PersistentContrastiveDivergence(kernels.Langevin(0.1), chains=7)
    objective = objectives.Weighted([objectives.Weighted([chains]), objectives.CrossEntropy()])
    state = objective.init(joint, (x, torch.zeros(6).long()), gen())
    assert objective.chains_of(state) is state[0][0].x
    run = gb.fit(joint, objective, (x, torch.zeros(6).long()), steps=1)
    assert run.chains is run.state[0][0].x
    run = gb.fit(joint, objectives.CrossEntropy(), (x, torch.zeros(6).long()), steps=1)
    with pytest.raises(errors.CapabilityError, match="Persistent"):
        run.chains  # noqa: B018


# --- refinement -----------------------------------------------------------------------------------


def test_refinement_moves_downhill_and_averages_draws():
    joint = models.JointEnergy(Wells(MEANS), domains.Real(2))
    x = torch.tensor([[2.2, 1.5], [-2.0, -2.0]], dtype=D)
    cold = kernels.ShortRunLangevin(0.02, 0.0)
    near = hybrid.refine(joint, x, cold, 40, generator=gen())
    assert (joint(near) < joint(x)).all()
    assert hybrid.refine(joint, x, cold, 0, generator=gen()) is x
    torch.testing.assert_close(hybrid.classify(joint, x), joint.net(x).softmax(1))
    refined = hybrid.classify(joint, x, kernel=cold, steps=40, generator=gen())
    torch.testing.assert_close(refined, joint.net(near).softmax(1))
    noisy, g = kernels.ShortRunLangevin(0.02, 0.3), gen(3)
    each = [joint.net(hybrid.refine(joint, x, noisy, 3, generator=g)).softmax(1) for _ in range(4)]
    both = hybrid.classify(joint, x, kernel=noisy, steps=3, draws=4, generator=gen(3))
    torch.testing.assert_close(both, sum(each) / 4)
    with pytest.raises(errors.ArgumentError, match="kernel"):
        hybrid.classify(joint, x, steps=3, generator=gen())
    with pytest.raises(errors.RandomnessError):
        hybrid.classify(joint, x, kernel=cold, steps=3)


# --- precision and layout -------------------------------------------------------------------------


def image_energy(net):
    return models.JointEnergy(net, domains.Box((1, 12, 12), -1.0, 1.0))


@pytest.mark.parametrize(
    "net",
    [
        ConvNet((1, 12, 12), (4, 8), 8, outputs=3),
        ResidualNet((1, 12, 12), (8, 16), 1, outputs=3),
        WideResidualNet((1, 12, 12), 10, 1, outputs=3),
    ],
    ids=["conv", "residual", "wide"],
)
def test_casting_weights_once_changes_nothing(net, monkeypatch):
    joint = image_energy(net.to(memory_format=torch.channels_last))
    x = joint.domain.sample(4, generator=gen())
    before = {name: p.detach().clone() for name, p in joint.named_parameters()}
    kernel = kernels.ShortRunLangevin(1.0, 0.01)
    with torch.autocast("cpu", torch.bfloat16):
        once, _ = walk(joint, kernel, x, 3, gen())
        with cast_once(joint, x.device):
            assert {p.dtype for p in joint.parameters()} == {torch.bfloat16}
            assert joint(x).dtype == torch.float32
        monkeypatch.setattr("gibbsian.objectives.chains.cast_once", lambda energy, device: torch.no_grad())
        plain, _ = walk(joint, kernel, x, 3, gen())
    assert torch.equal(once, plain)
    assert once.dtype == torch.float32
    full, _ = walk(joint, kernel, x, 3, gen())
    assert not torch.equal(once, full)
    for name, p in joint.named_parameters():
        assert p.dtype == torch.float32
        assert torch.equal(p, before[name])
    with cast_once(joint, x.device):  # outside autocast nothing is cast
        assert {p.dtype for p in joint.parameters()} == {torch.float32}


def test_a_joint_energy_trains_in_half_precision_and_channels_last(tmp_path):
    """Stripes lying and standing: both kinds are told apart, and the buffer holds both."""
    g = gen()
    y = torch.arange(200) % 2
    wave = torch.sign(torch.sin(torch.arange(12.0)))[None, :].expand(12, 12)
    x = torch.stack([wave if k else wave.T for k in y.tolist()])[:, None] * 0.8
    x = (x + 0.05 * torch.randn(x.shape, generator=g)).clamp(-1, 1)
    net = ConvNet((1, 12, 12), (8, 16), 16, outputs=2).to(memory_format=torch.channels_last)
    joint = image_energy(net)
    chains = objectives.PersistentContrastiveDivergence(
        kernels.ShortRunLangevin(1.0, 0.01), steps=5, chains=16, buffer=64, reinit=0.05, penalty=0.01
    )
    objective = objectives.Weighted([objectives.CrossEntropy(), chains])
    run = gb.fit(
        joint,
        objective,
        (x, y),
        steps=80,
        batch_size=32,
        lr=5e-3,
        engine=gb.training.Engine(precision="bf16"),
        ema=0.9,
        run_dir=tmp_path / "run",
    )
    assert net.layers[2].weight.is_contiguous(memory_format=torch.channels_last)
    assert (hybrid.classify(run.ema, x).argmax(1) == y).double().mean() > 0.95
    assert run.chains.shape == (64, 1, 12, 12)
    again = gb.load(tmp_path / "run")
    torch.testing.assert_close(again(x), joint(x), rtol=1e-5, atol=1e-5)


def test_reflection_at_the_walls_keeps_chains_inside_and_hides_nothing():
    from gibbsian.kernels.integrators import bounce, reflect

    box = domains.Box(4, -1.0, [1.0, 2.0, 3.0, 4.0])
    x = torch.tensor([[-1.5, 2.5, 0.3, 9.0], [torch.inf, torch.nan, -torch.inf, -2.0]])
    out = bounce(x, box)
    torch.testing.assert_close(out[0, :3], reflect(x, x, box)[0][0, :3])
    assert out[0, 2] == x[0, 2]
    assert out[0, 3] == -1.0
    assert torch.isnan(out[1, :3]).all()
    assert out[1, 3] == 0.0
    inside = box.sample(100, generator=gen())
    assert torch.equal(bounce(inside, box), inside)


def test_wide_networks_have_the_depth_they_say():
    net = WideResidualNet((3, 16, 16), 16, 2, outputs=10)
    shortcuts = sum(isinstance(b.shortcut, torch.nn.Conv2d) for s in net.stages for b in s)
    convolutions = sum(isinstance(m, torch.nn.Conv2d) for m in net.modules())
    # 6n convolutions in blocks, the stem and the dense head; the stem is as wide as the first stage
    assert convolutions - shortcuts + 1 == 16 - 2
    assert shortcuts == 2
    assert [s[0].second.out_channels for s in net.stages] == [32, 64, 128]
    with pytest.raises(errors.ArgumentError, match="6n"):
        WideResidualNet((3, 16, 16), 12)


@pytest.mark.parametrize("side", [(28, 28), (7, 5), (2, 3)])
def test_residual_networks_may_keep_positions(side):
    net = ResidualNet((1, *side), (4, 6, 8), 1, outputs=3, pool=False)
    x = torch.randn(2, 1, *side, generator=gen())
    assert net(x).shape == (2, 3)
    moved = x.roll(1, 3)
    pooled = ResidualNet((1, *side), (4, 6, 8), 1, outputs=3)
    assert net.head.in_features > pooled.head.in_features or min(side) < 4
    assert net._arguments[1]["pool"] is False
    assert not torch.allclose(net(x), net(moved))


@pytest.mark.parametrize(("walls", "expected"), [("stop", 1.0), ("bounce", 0.8)])
def test_short_runs_stop_at_walls_or_turn_round(walls, expected):
    """A slope of one and a step of 0.3 from 0.9: to the wall at 1, or 0.2 past it and back."""
    energy = gb.as_energy(lambda x: -x.sum(-1), domains.Box(2, -1.0, 1.0))
    kernel = kernels.ShortRunLangevin(0.3, 0.0, walls=walls)
    x = torch.tensor([[0.9, -0.9]], dtype=D)
    trace = gb.sample(energy, kernel, x, steps=1, generator=gen())
    assert torch.allclose(trace.last, torch.tensor([[expected, -0.6]], dtype=D))
    with pytest.raises(errors.ArgumentError, match="bounce"):
        kernels.ShortRunLangevin(0.3, 0.0, walls="round")
    for name in ("clip", "last"):
        with pytest.raises(errors.ArgumentError, match=f"{name} must be a finite number"):
            kernels.ShortRunLangevin(0.3, 0.0, **{name: torch.tensor([[0.1, 0.2]])})


def test_short_runs_follow_no_slope_steeper_than_the_clip():
    energy = gb.as_energy(lambda x: -5 * x[:, 0] + 5 * x[:, 1] - 0.2 * x[:, 2], domains.Real(3))
    trace = gb.sample(energy, kernels.ShortRunLangevin(0.5, 0.0, clip=0.3), torch.zeros(2, 3), steps=2, generator=gen())
    torch.testing.assert_close(trace.last, torch.tensor([0.3, -0.3, 0.2]).expand(2, 3))


def test_short_runs_that_diverge_are_not_put_on_a_wall():
    from gibbsian.kernels.integrators import bounce, stop

    x = torch.tensor([math.inf, -math.inf, math.nan, 2.0])
    for walls in (stop, bounce):
        assert torch.isfinite(walls(x, domains.Box(4, -1.0, 1.0))).tolist() == [False, False, False, True]


def test_declining_keeps_the_promised_share_of_new_rows_exactly_on_average():
    """E[share kept] is ⌈(n + 1)c⌉/(n + 1) whatever the model: an average over 400 held-out sets, within four standard errors."""
    joint = models.JointEnergy(gb.nets.MLP(2, (8,), outputs=3), domains.Real(2))
    new = torch.randn(4000, 2, generator=gen(9))
    for by in ("confidence", "energy"):
        everything = hybrid.rejecting(joint, torch.randn(9, 2, generator=gen(5)), coverage=0.5, by=by).scores(new)
        kept = []
        for seed in range(400):
            threshold = hybrid.rejecting(
                joint, torch.randn(19, 2, generator=gen(100 + seed)), coverage=0.72, by=by
            ).threshold
            kept.append((everything <= threshold).double().mean())
        kept = torch.stack(kept)
        assert (
            abs(float(kept.mean()) - 15 / 20) < 4 * float(kept.std()) / 20 + 0.02
        )  # the new rows are a sample as well
    declining = hybrid.rejecting(joint, new[:99], coverage=0.9)
    classes = declining(new)
    sure = joint.class_log_prob(new).amax(1).detach()
    assert torch.equal(classes >= 0, -sure <= declining.threshold)
    assert torch.equal(classes[classes >= 0], joint.class_log_prob(new).argmax(1)[classes >= 0])
    assert float(sure[classes < 0].max()) < float(sure[classes >= 0].min())  # the least sure go
    with pytest.raises(errors.DataError, match="give 19 or more"):
        hybrid.rejecting(joint, new[:9], coverage=0.95)
    for coverage, kept in ((0.55, 55), (0.07, 7), (0.29, 29)):  # 100 times these is not whole in floats
        declining = hybrid.rejecting(joint, new[:99], coverage=coverage)
        assert int((declining(new[:99]) >= 0).sum()) == kept
    with pytest.raises(errors.DataError, match="give 9 or more"):
        hybrid.rejecting(joint, new[:8], coverage=0.9)
    hybrid.rejecting(joint, new[:9], coverage=0.9)
    with pytest.raises(errors.CapabilityError, match="may decline"):
        hybrid.rejecting(gb.energies.Gaussian(torch.zeros(2), torch.eye(2)), new[:99])


@pytest.mark.parametrize("by", ["confidence", "energy"])
def test_scores_that_are_no_numbers_are_refused(by):
    joint = models.JointEnergy(gb.nets.MLP(2, (8,), outputs=3), domains.Real(2))
    with torch.no_grad():
        next(joint.parameters()).fill_(math.nan)
    with pytest.raises(errors.DataError, match="50 of 50 held-out rows"):
        hybrid.rejecting(joint, torch.randn(50, 2, generator=gen()), by=by)


def test_labels_in_a_list_are_to_be_made_whole():
    """The advice of other rows, the default precision, is one that labels are refused for."""
    joint = models.JointEnergy(gb.nets.MLP(2, (8,), outputs=3), domains.Real(2))
    with pytest.raises(errors.ShapeError) as said:
        hybrid.generate(joint, [0, 1], gb.kernels.ShortRunLangevin(1.0, 0.01), 2, generator=gen())
    assert "torch.as_tensor(labels)" in str(said.value)


def test_rows_of_high_energy_are_declined_and_those_of_low_energy_kept():
    joint = models.JointEnergy(Wells([[0.0, 0.0], [1.0, 0.0]]), domains.Real(2))
    near, far = 0.1 * torch.randn(99, 2, generator=gen(), dtype=D), torch.full((5, 2), 9.0, dtype=D)
    declining = hybrid.rejecting(joint, near, coverage=0.9, by="energy")
    assert torch.equal(declining.scores(far), joint(far).detach())
    assert bool((declining(far) == -1).all())
    assert int((declining(near) >= 0).sum()) == 90


def test_one_row_of_the_pool_comes_as_often_as_its_class_is_likely():
    """p(y|x) as 1:2:4 for three rows under 5000 classes, one draw each: rows as 1:2:4, within four standard errors."""

    class Rare(torch.nn.Module):
        def forward(self, x):
            return torch.cat([torch.zeros_like(x), (x.log() - 20).expand(-1, 5000)], 1)

    joint, pool = models.JointEnergy(Rare(), domains.Real(1)), torch.tensor([[1.0], [2.0], [4.0]])
    drawn = hybrid.generate(joint, torch.arange(1, 5001), gb.kernels.MALA(0.1), 0, pool=pool, generator=gen())
    for row in pool.flatten():
        share = float(row) / 7
        assert abs(float((drawn == row).double().mean()) - share) < 4 * (share * (1 - share) / 5000) ** 0.5


def test_refining_takes_all_of_its_steps():
    """Langevin on ½x² takes x to (1 - ε²/2)x a step, and noise to a variance below one; a mean over 4000 rows."""
    law = gb.energies.Gaussian(torch.zeros(1), torch.eye(1))
    x = hybrid.refine(law, torch.full((4000, 1), 100.0), kernels.Langevin(0.5), 8, generator=gen())
    assert abs(float(x.mean()) - 100 * (1 - 0.125) ** 8) < 4 / 4000**0.5
