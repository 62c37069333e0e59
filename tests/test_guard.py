"""The guard: sees divergence, rolls back exactly, softens within bounds, warns early, and leaves good runs alone."""

import dataclasses
import json
import math
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gibbsian as gb
from gibbsian import domains, energies, errors, kernels, models, objectives
from gibbsian.app.catalog import recipe_text
from gibbsian.app.recipe import parse_recipe
from gibbsian.objectives.base import Loss, Objective, within
from gibbsian.objectives.chains import gap_between
from gibbsian.training import Checkpoints, Guard, checkpoint
from gibbsian.training.guard import Monitor


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def reals(n: int = 200, d: int = 2) -> Tensor:
    return torch.randn(n, d, generator=gen())


def mlp(width: int = 32) -> gb.Energy:
    with gb.random.isolated(gen(1)):
        net = nn.Sequential(nn.Linear(2, width), nn.SiLU(), nn.Linear(width, 1), nn.Flatten(0))
    return gb.as_energy(net, domains.Real(2))


def weights(energy: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in energy.parameters()])


CD = objectives.ContrastiveDivergence(kernels.Langevin(0.3), steps=4)


@dataclass(frozen=True)
class Faulty(Objective):
    """Score matching that diverges in the given way at the given calls, counted over the whole run."""

    at: tuple[int, ...] = ()
    how: str = "raise"
    steps: int = 2
    penalty: float = 0.0
    calls: list[int] = field(default_factory=lambda: [0])
    seen: list[tuple[int, float]] = field(default_factory=list)

    def init(self, energy: Any, batch: Any, generator: torch.Generator) -> Tensor:
        return torch.zeros(())

    def gentler(self, steps_factor: float, penalty: float) -> "Faulty":
        return dataclasses.replace(self, steps=math.ceil(self.steps * steps_factor), penalty=max(self.penalty, penalty))

    def __call__(self, energy: Any, batch: Any, state: Any, generator: torch.Generator) -> Loss:
        self.calls[0] += 1
        self.seen.append((self.steps, float(torch.rand((), generator=generator))))
        value = energy.score(batch, create_graph=True).square().sum(1).mean() + energy(batch).mean()
        if self.calls[0] in self.at and self.how == "raise":
            raise errors.DivergenceError("the chains are gone")
        if self.calls[0] in self.at:
            value = value * {"nan": math.nan, "huge": 1e9}[self.how]
        return Loss(value, state + 1, {})


# --- what counts as divergence --------------------------------------------------------------------


def looks(guard: Guard, values: list[float], name: str = "gap") -> list[str | None]:
    monitor = Monitor(guard)
    return [monitor.look({"loss": 0.0, name: value}) for value in values]


def test_what_is_not_finite_is_divergence_at_once():
    for value in (math.nan, math.inf, -math.inf):
        assert "energy_data" in str(looks(Guard(), [value], "energy_data")[0])
    assert looks(Guard(), [math.nan], "acceptance") == [None]  # unadjusted kernels accept nothing


def test_explosions_are_seen_and_large_but_steady_numbers_are_not():
    guard = Guard(explosion=100)
    assert looks(guard, [500.0] * 50) == [None] * 50
    assert looks(guard, [0.001] * 20 + [99.0]) == [None] * 21  # the scale is one at the least
    assert looks(guard, [1.0] * 20 + [30.0, 30.0, 1.0] * 9) == [None] * 47  # spikes come and go
    assert "times its usual size" in str(looks(guard, [1.0] * 20 + [30.0] * 3)[-1])
    assert "times its usual size" in str(looks(guard, [3.0] * 20 + [-400.0])[-1])
    assert "times its usual size" in str(looks(guard, [2.0, 250.0])[-1])  # even at the start


def test_gradients_that_grow_while_a_network_wakes_up_are_no_divergence():
    growth = [min(2.0 * 1.2**i, 800.0) for i in range(200)]  # as seen in energies of binary images, under a warm-up
    assert not any(looks(Guard(), growth, "gradient_norm"))
    assert any(looks(Guard(), growth, "energy_samples"))


def test_what_a_rollback_adds_to_the_loss_is_no_divergence():
    """An energy penalty on energies about -200 makes the loss ten thousand times what it was."""
    monitor = Monitor(Guard())
    monitor.keep(0, "state")
    for _ in range(30):
        assert monitor.look({"loss": 1.0, "energy_data": -200.0}) is None
    assert monitor.look({"loss": 1.0, "energy_data": -1e7}) is not None
    monitor.roll_back(30, "far off", Faulty())
    for _ in range(30):
        assert monitor.look({"loss": 8000.0, "energy_data": -200.0}) is None
    assert monitor.look({"loss": 8000.0, "energy_data": -1e7}) is not None  # the energies are known as before


@pytest.mark.parametrize("size", [0.2, 3.0, 200.0])
def test_the_penalty_after_a_rollback_leaves_room_to_energies_as_they_were(size):
    """Energies -e of data and e of samples, free to move: gap and penalty rest at e = 1/2w, which must not be below what was usual."""
    monitor = Monitor(Guard())
    monitor.keep(0, "state")
    for _ in range(30):
        assert monitor.look({"energy_data": -size, "energy_samples": 0.9 * size}) is None
    assert monitor.look({"energy_data": -1e9}) is not None
    monitor.roll_back(30, "far off", CD)
    weight = monitor.softened(CD).penalty
    e = torch.tensor([size], dtype=torch.float64, requires_grad=True)
    best = torch.optim.LBFGS([e], max_iter=50, line_search_fn="strong_wolfe")

    def loss():
        best.zero_grad()
        value, _ = gap_between(-e, e, weight)
        value.backward()
        return value

    best.step(loss)
    assert float(e.detach()) == pytest.approx(5 * max(1.0, size), rel=1e-3)
    again = Monitor(Guard())
    again.load(monitor.state())
    assert again.softened(CD) == monitor.softened(CD)  # a resumed run goes on with the same weight


def test_a_runaway_cannot_drag_its_scale_along_and_a_slow_drift_is_no_runaway():
    guard = Guard(explosion=100)
    runaway = [1.05**i for i in range(400)]
    assert any(looks(guard, runaway))
    drift = [1.0 + 0.5 * i for i in range(1000)]
    assert not any(looks(guard, drift))


def test_one_outlier_among_the_first_looks_is_not_taken_for_the_scale():
    """The scale doubles at the most: 90 makes it 2, of which 2500 is more than a thousand times."""
    monitor = Monitor(Guard())
    assert all(monitor.look({"energy_data": value}) is None for value in (1.0, 90.0, 1.0))
    assert monitor.scales["energy_data"] == 2.0
    assert monitor.look({"energy_data": 2500.0}) is not None


def test_a_rollback_forgets_what_was_counted_in_the_time_that_it_undoes():
    """Two looks at a tenth of an explosion and a while behind the data; and the first state is kept for good."""
    monitor = Monitor(Guard(patience=100, snapshots=2))
    for step in range(0, 60, 10):
        monitor.keep(step, f"state {step}")
    assert [step for step, _ in monitor.snapshots] == [0, 40, 50]
    calm = {"energy_data": 1.0, "separation": 9.0}
    assert all(monitor.look({**calm, "energy_data": value}, step=10) is None for value in (1.0, 150.0, 250.0))
    assert monitor.apart_since == 10
    assert monitor.roll_back(60, "it diverged", CD) == "state 50"
    assert monitor.look({**calm, "energy_data": 500.0}, step=120) is None  # the first of three, and of a new while
    assert monitor.apart_since == 120


def test_healthy_training_is_left_alone():
    binary = (torch.rand(200, 6, generator=gen()) < 0.3).float()
    for energy, objective, data in (
        (mlp(), CD, reals()),
        (mlp(), objectives.DenoisingScoreMatching(0.2), reals()),
        (mlp(), objectives.NoiseContrastive("gaussian"), reals()),
        (models.RBM(6, 4), objectives.PersistentContrastiveDivergence(kernels.Gibbs(), chains=20), binary),
    ):
        run = gb.fit(energy, objective, data, steps=150, batch_size=50, lr=1e-2)
        assert run.events == []


def squares(x: Tensor) -> Tensor:
    return torch.cat([x, x.square()], 1)


def zero_head(bias: float = 0.0) -> gb.Energy:
    with gb.random.isolated(gen(1)):
        net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1), nn.Flatten(0))
    nn.init.zeros_(net[2].weight)
    nn.init.constant_(net[2].bias, bias)
    return gb.as_energy(net, domains.Real(2))


@pytest.mark.parametrize("name", ["no parameters yet", "next to none", "a head of zeros", "a constant", "one datum"])
def test_flat_energies_and_constant_data_are_no_divergence(name):
    """The gap and the spread of the energies are 0, or what rounding makes of 0: 0/0 is no explosion."""
    box = domains.Box(2)
    energy, data = {
        "no parameters yet": (energies.ExponentialFamily(squares, box), torch.rand(90, 2, generator=gen())),
        "next to none": (energies.ExponentialFamily(squares, box, torch.full((4,), 1e-25)), torch.ones(90, 2)),
        "a head of zeros": (zero_head(), reals()),
        "a constant": (zero_head(1234.567), reals()),
        "one datum": (mlp(), torch.ones(90, 2)),
    }[name]
    for objective in (
        objectives.PersistentContrastiveDivergence(kernels.Langevin(0.1), chains=23),
        objectives.ContrastiveDivergence(kernels.MALA(0.1)),
    ):
        guard = Guard(every=1)
        run = gb.fit(energy, objective, data, steps=6, batch_size=50, lr=1e-9, guard=guard, progress=False)
        assert run.events == []


def test_the_separation_of_energies_counts_their_standard_deviations():
    """E = x: data at -3 ± 1 and samples at 3 ± 1 are six standard deviations apart; a flat energy sets nothing apart."""
    data, samples = torch.randn(4000, generator=gen()) - 3, torch.randn(4000, generator=gen(1)) + 3
    found = objectives.chains.energy_gap(lambda x: x, data, samples)[1]["separation"]
    # the standard error of a difference of means is √(2/n), of a standard deviation 1/√(2n): 5 standard errors of 6
    assert abs(float(found) - 6) < 5 * (math.sqrt(2 / 4000) + 6 / math.sqrt(8000))
    tiny = objectives.chains.energy_gap(lambda x: 1e-30 * x, data, samples)[1]["separation"]
    assert float(tiny) == pytest.approx(float(found), rel=1e-4)
    for value in (0.0, 0.1, 1234.567, 1e8):
        flat = objectives.chains.energy_gap(lambda x, v=value: torch.full_like(x, v), data, samples[:23])[1]
        assert float(flat["separation"]) == 0.0


# --- rolling back ---------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["raise", "nan", "huge"])
def test_the_state_after_a_rollback_is_the_snapshot(how):
    """Weights, optimizer and objective state go back to step 10; steps go on to the end."""
    trail: dict[int, list[Tensor]] = {}

    def remember(run: gb.training.Run) -> None:
        trail.setdefault(run.step, []).append(weights(run.energy))

    objective = Faulty(at=(15,), how=how)
    guard = Guard(every=5, snapshot_every=10)
    run = gb.fit(mlp(), objective, reals(), steps=30, batch_size=50, guard=guard, hooks=[remember])
    assert run.step == 30
    assert int(run.state) == 30
    (event,) = run.events
    assert event["event"] == "rollback"
    assert event["step"] == 10
    assert event["failed"] == 15
    assert len(trail[11]) == 2
    assert len(trail[10]) == 1
    assert not torch.equal(*trail[11])  # other rows, other random numbers, a lower rate
    moved = [float((w - trail[10][0]).abs().max()) for w in trail[11]]
    assert moved[1] < moved[0]
    assert run.history[-1]["lr"] == pytest.approx(5e-4)


def test_a_rollback_gives_new_random_numbers_and_more_sampler_steps():
    objective = Faulty(at=(15,))
    run = gb.fit(mlp(), objective, reals(), steps=20, guard=Guard(every=5, snapshot_every=10))
    numbers = [number for _, number in objective.seen]
    assert len(set(numbers)) == len(numbers) == 25
    assert {steps for steps, _ in objective.seen[:15]} == {2}
    assert {steps for steps, _ in objective.seen[15:]} == {3}
    assert run.objective.steps == 3
    assert run.objective.penalty == 0.1
    assert objective.steps == 2


def test_a_rollback_gives_rows_in_another_order():
    @dataclass(frozen=True)
    class Noting(Faulty):
        rows: list[float] = field(default_factory=list)

        def loss(self, energy: Any, batch: Any, *more: Any) -> Loss:
            self.rows.append(float(batch.sum()))
            return super().loss(energy, batch, *more)

    objective = Noting(at=(15,))
    gb.fit(mlp(), objective, reals(), steps=15, batch_size=20, guard=Guard(every=5, snapshot_every=10))
    assert len(objective.rows) == 20
    failed, anew = objective.rows[10:15], objective.rows[15:]  # steps 11 to 15, twice
    assert not set(anew) & set(failed)


def test_repeated_failures_go_back_further_and_further():
    objective = Faulty(at=(45, 52, 60))
    run = gb.fit(mlp(), objective, reals(), steps=60, guard=Guard(every=5, snapshot_every=10, snapshots=3))
    assert [(e["failed"], e["step"]) for e in run.events] == [(45, 40), (47, 30), (38, 20)]


def test_too_many_failures_end_with_what_was_tried():
    with pytest.raises(errors.DivergenceError) as caught:
        gb.fit(mlp(), Faulty(at=tuple(range(1, 100))), reals(), steps=10, guard=Guard(tries=3))
    message = str(caught.value)
    assert "given up after 3 rollbacks" in message
    assert message.count("the chains are gone") == 4
    assert "learning rate times 0.125" in message


def test_the_guard_repeats_no_advice_for_those_who_have_none():
    """A loss that is not finite by itself says to let the guard roll back."""
    energy = gb.as_energy(nn.Sequential(nn.Linear(2, 1), nn.Flatten(0)), domains.Real(2))
    wild = objectives.MultiScaleDenoising((1e30, 1e20))
    with pytest.raises(errors.DivergenceError, match="is not finite") as caught:
        gb.fit(energy, wild, 1e30 * reals().float(), steps=5, guard=Guard(tries=2))
    assert "given up after 2 rollbacks" in str(caught.value)
    assert "guard roll back" not in str(caught.value)
    with pytest.raises(errors.DivergenceError, match="lower the learning rate"):
        gb.fit(energy, wild, 1e30 * reals().float(), steps=5, guard=False)


def test_without_the_guard_the_run_stops_and_says_so():
    with pytest.raises(errors.DivergenceError, match="guard is off"):
        gb.fit(mlp(), Faulty(at=(3,)), reals(), steps=10, guard=False)
    with pytest.raises(errors.DivergenceError, match="loss is nan"):
        gb.fit(mlp(), Faulty(at=(10,), how="nan"), reals(), steps=10, guard=False)


def test_a_kernel_with_a_value_for_every_step_keeps_their_number():
    steps = torch.tensor([0.3, 0.2, 0.1])
    fixed = objectives.ContrastiveDivergence(kernels.ShortRunLangevin(steps, 0.01), steps=3, penalty=0.01)
    softened = Guard().soften(fixed, 2)
    assert (softened.steps, softened.penalty) == (3, 0.1)
    hot = kernels.ParallelTempering(kernels.HMC(0.3), betas=[1.0, 0.5])
    for free in (kernels.ShortRunLangevin(0.3, 0.01, last=0.1, cycle=3), kernels.HMC(0.1, mass=torch.ones(2)), hot):
        assert Guard().soften(objectives.ContrastiveDivergence(free, steps=3), 2).steps > 3
    hot = kernels.ParallelTempering(kernels.HMC(steps), betas=[1.0, 0.5])
    assert Guard().soften(objectives.ContrastiveDivergence(hot, steps=3), 2).steps == 3


@pytest.mark.parametrize("name", ["mnist-energy", "mnist-jem", "fashion-jem", "cifar-jem"])
def test_chains_still_end_with_the_shortest_steps_after_a_rollback(name):
    """Recipes whose steps fall over one update: 3/2 of a cycle would leave chains where steps are eight times as long."""
    falling = [
        part for part in within(parse_recipe(recipe_text(name)).objective) if part.kernels() and not part.parts()
    ]
    assert falling
    for objective in falling:
        (kernel,) = objective.kernels()
        assert objective.steps == kernel.cycle
        for tries in range(8):
            steps = Guard().soften(objective, tries).steps
            assert steps >= math.ceil(Guard().factors(tries)[1] * objective.steps)
            assert steps <= 4 * objective.steps
            sizes = kernel.draw(None, torch.zeros(1, 2), steps, gen()).step_size
            assert float(sizes[-1]) == pytest.approx(kernel.last)
    kernel = kernels.ShortRunLangevin(0.3, 0.01, last=0.1, cycle=4)
    for uneven in (kernel, kernels.ShortRunLangevin(0.3, 0.01, cycle=4), kernels.Langevin(0.1)):
        steps = 6 if uneven is kernel else 4  # not whole cycles, or none
        found = Guard().soften(objectives.ContrastiveDivergence(uneven, steps=steps), 2).steps
        assert found == math.ceil(2.25 * steps)
    hot = kernels.ParallelTempering(kernel, betas=[1.0, 0.5])
    assert Guard().soften(objectives.PersistentContrastiveDivergence(hot, steps=4), 1).steps == 8


def test_every_objective_with_a_sampler_becomes_gentler():
    persistent = objectives.PersistentContrastiveDivergence(kernels.Gibbs(), steps=2)
    for objective, steps in (
        (objectives.MonteCarloLikelihood(kernels.Gibbs(), steps=4), 6),
        (objectives.ClassificationLikelihood(steps=2), 3),
        (objectives.VariationalLikelihood(steps=5), 8),
        (objectives.UpDown(steps=3), 5),
    ):
        assert objective.gentler(1.5, 0.1).steps == steps
    assert objectives.Adversarial().gentler(1.5, 0.1).penalty == 0.1
    for outer in (objectives.Binarized(persistent), objectives.Centered(persistent)):
        assert outer.gentler(1.5, 0.1) == dataclasses.replace(outer, objective=persistent.gentler(1.5, 0.1))
        assert outer.kernels() == (kernels.Gibbs(),)
    inside = objectives.Conditional(persistent).gentler(1.5, 0.1).objective
    assert (inside.steps, inside.penalty) == (3, 0.0)  # chains bound to inputs have no penalty


def test_softening_stays_within_its_bounds_and_reaches_nested_objectives():
    guard = Guard(lr_factor=0.5, min_lr_factor=0.1, steps_factor=2.0, max_steps_factor=5.0, penalty=0.2)
    assert [guard.factors(t) for t in (0, 1, 2, 3, 9)] == [
        (1.0, 1.0), (0.5, 2.0), (0.25, 4.0), (0.125, 5.0), (0.1, 5.0)
    ]  # fmt: skip
    assert guard.soften(CD, 0) is CD
    assert guard.soften(CD, 9) == dataclasses.replace(CD, steps=20, penalty=0.2)
    strong = dataclasses.replace(CD, penalty=0.7)
    assert guard.soften(strong, 1).penalty == 0.7
    both = guard.soften(objectives.Weighted([CD, objectives.WeightDecay(0.1)], [1.0, 2.0]), 1)
    assert both.objectives[0].steps == 8
    assert both.weights == (1.0, 2.0)
    assert both.objectives[1] == objectives.WeightDecay(0.1)
    monitor = Monitor(guard)
    monitor.keep(0, "state")
    monitor.roll_back(7, "the loss is nan", objectives.Weighted([CD, objectives.WeightDecay(0.1)]))
    assert monitor.trail == [
        "step 7: the loss is nan; back to step 0 with new random numbers, learning rate times 0.5, "
        "steps 4 → 8, penalty 0 → 0.2"
    ]
    for wrong in ({"every": 0}, {"explosion": 1.0}, {"lr_factor": 1.5}, {"steps_factor": 0.5}, {"penalty": -1.0}):
        with pytest.raises(errors.ArgumentError):
            Guard(**wrong)


def test_a_learning_rate_far_too_high_diverges_without_the_guard_and_finishes_with_it(tmp_path, caplog):
    """CD on a neural energy, rate a thousand times too high: the energies reach 10^9 within 60 steps."""
    how: dict[str, Any] = {"steps": 60, "batch_size": 50, "lr": 10.0, "seed": 1}
    lost = gb.fit(mlp(), CD, reals(), guard=False, **how)
    assert abs(lost.history[-1]["energy_data"]) > 1e6
    with caplog.at_level("WARNING", logger="gibbsian"):
        run = gb.fit(mlp(), CD, reals(), run_dir=tmp_path / "run", **how)
    assert run.step == 60
    assert abs(run.history[-1]["energy_data"]) < 1e3
    rollbacks = [e for e in run.events if e["event"] == "rollback"]
    assert 2 <= len(rollbacks) <= 10
    assert [e["attempt"] for e in rollbacks] == list(range(1, len(rollbacks) + 1))
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["message"] for line in lines if "event" in line] == [e["message"] for e in run.events]
    assert len(caplog.messages) == len(rollbacks)
    assert "back to step" in caplog.messages[0]
    assert torch.isfinite(gb.load(tmp_path / "run")(reals())).all()


def test_a_run_that_was_rolled_back_resumes_exactly(tmp_path):
    how: dict[str, Any] = {"batch_size": 50, "lr": 10.0, "seed": 1}
    straight = gb.fit(mlp(), CD, reals(), steps=50, **how)
    assert straight.events
    gb.fit(mlp(), CD, reals(), steps=33, run_dir=tmp_path / "run", **how)
    resumed = gb.resume(tmp_path / "run", reals(), steps=50)
    assert torch.equal(weights(straight.energy), weights(resumed.energy))
    assert resumed.events == straight.events
    assert resumed.objective == straight.objective


def test_checkpoints_of_what_was_rolled_back_are_removed(tmp_path):
    objective = objectives.DenoisingScoreMatching(0.3)
    seen: list[int] = []

    def poison(run: gb.training.Run) -> None:
        seen.append(run.step)
        if run.step == 17 and seen.count(17) == 1:
            with torch.no_grad():
                next(run.energy.parameters()).fill_(math.nan)
        if run.step == 11 and seen.count(11) == 2:
            assert checkpoint.steps_saved(run.folder) == [0, 4, 8]

    guard = Guard(every=5, snapshot_every=10)
    run = gb.fit(mlp(), objective, reals(), steps=24, run_dir=tmp_path / "r", checkpoints=Checkpoints(every=4, keep_last=5),
                 guard=guard, hooks=[poison])  # fmt: skip
    assert [e["step"] for e in run.events] == [10]
    assert torch.isfinite(weights(gb.load(tmp_path / "r"))).all()


def test_weights_that_are_not_finite_are_neither_saved_nor_returned(tmp_path):
    """The last update breaks them: after the last loss was seen, before the checkpoint."""

    class Breaking(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            super().step(closure)
            updates.append(1)
            if len(updates) == 20:
                with torch.no_grad():
                    self.param_groups[0]["params"][0].fill_(math.inf)

    updates: list[int] = []
    objective = objectives.DenoisingScoreMatching(0.3)
    run = gb.fit(mlp(), objective, reals(), steps=20, optimizer=lambda p: Breaking(p, lr=1e-3), guard=Guard(every=5))
    assert torch.isfinite(weights(run.energy)).all()
    assert [e["failed"] for e in run.events] == [21]
    broken = mlp()
    with torch.no_grad():
        next(broken.parameters()).fill_(math.nan)
    with pytest.raises(errors.DivergenceError, match="not finite at step 0"):
        gb.fit(broken, objectives.DenoisingScoreMatching(0.3), reals(), steps=5)


# --- early warnings -------------------------------------------------------------------------------


def test_sigma_far_below_the_spread_of_the_data_is_pointed_out_once():
    with pytest.warns(errors.TrainingWarning, match="sigma is") as caught:
        run = gb.fit(mlp(), objectives.DenoisingScoreMatching(1e-3), reals(), steps=120, guard=Guard(explosion=1e9))
    assert len(caught) == 1
    assert [e["event"] for e in run.events] == ["warning"]


def test_noise_that_is_told_apart_at_once_is_pointed_out():
    far = energies.Gaussian(torch.full((2,), 50.0), torch.eye(2))
    trainable = energies.Gaussian(torch.zeros(2), torch.eye(2), trainable=True)
    with pytest.warns(errors.TrainingWarning, match="noise is too easy"):
        gb.fit(trainable, objectives.NoiseContrastive(far), reals(), steps=60)


def test_frozen_chains_are_pointed_out():
    for kernel, message in ((kernels.MALA(50.0), "accepted"), (kernels.Langevin(1e-9), "move by")):
        objective = objectives.PersistentContrastiveDivergence(kernel, chains=20)
        sharp = energies.Gaussian(torch.zeros(2), 1e-2 * torch.eye(2), trainable=True)
        with pytest.warns(errors.TrainingWarning, match=message):
            gb.fit(sharp, objective, reals(), steps=60)


def test_a_gap_that_swings_ever_wider_is_pointed_out_and_noise_around_zero_is_not():
    monitor = Monitor(Guard())
    found = [monitor.warnings({"gap": (-1.15) ** i}, CD) for i in range(60)]
    assert sum(map(len, found)) == 1
    noise = torch.randn(500, generator=gen()).tolist()
    monitor = Monitor(Guard())
    assert not any(monitor.warnings({"gap": value}, CD) for value in noise)


def test_a_sign_becomes_a_warning_after_five_looks_in_a_row():
    monitor, frozen, moving = Monitor(Guard()), {"acceptance": 0.0}, {"acceptance": 0.5}
    assert not any(monitor.warnings(seen, CD) for seen in (*[frozen] * 4, moving, *[frozen] * 4))
    (text,) = monitor.warnings(frozen, CD)
    assert "frozen" in text


def test_a_perfect_classifier_is_no_easy_noise():
    monitor = Monitor(Guard())
    assert not any(monitor.warnings({"accuracy": 1.0}, CD) for _ in range(20))


def test_chains_that_are_left_behind_are_seen_in_time_and_those_that_catch_up_are_not():
    monitor = Monitor(Guard(patience=200))
    apart = {"loss": -5.0, "gap": -10.0, "separation": 12.0}
    assert all(monitor.look(apart, step) is None for step in range(0, 200, 10))
    assert monitor.look({**apart, "separation": 2.0}, 200) is None  # caught up
    assert all(monitor.look(apart, step) is None for step in range(210, 410, 10))
    reason = monitor.look(apart, 410)
    assert reason is not None
    assert "left behind" in reason
    monitor.keep(0, "first")
    assert not monitor.wants_snapshot(1000)  # what the chains do not follow is no state to go back to
    monitor.look({**apart, "separation": 2.0}, 420)
    assert monitor.wants_snapshot(1000)


def test_the_numbers_of_a_sum_are_watched_under_their_own_names():
    """Two parts with chains: metrics that both have are called after the parts, and neither may run away unseen."""
    cd = objectives.ContrastiveDivergence(kernels.MALA(0.1))
    run = gb.fit(mlp(), objectives.Weighted([cd, cd]), reals(), steps=2, batch_size=50, progress=False, guard=Guard(every=1))  # fmt: skip
    names = [name for name in run.metrics if name.endswith((".energy_data", ".separation", ".acceptance"))]
    assert len(names) == 6
    for i, part in enumerate(("0.ContrastiveDivergence.", "1.ContrastiveDivergence.")):
        calm = {"loss": 1.0, **dict.fromkeys(names, 0.5)}
        monitor = Monitor(Guard(patience=50))
        assert all(monitor.look(calm, step) is None for step in range(0, 100, 10))
        found = monitor.look({**calm, f"{part}energy_data": -1e7}, 100)
        assert found is not None, i
        assert found.startswith(f"{part}energy_data")
        monitor = Monitor(Guard(patience=50))
        seen = [monitor.look({**calm, f"{part}separation": 12.0}, step) for step in range(0, 100, 10)]
        assert any("left behind" in why for why in seen if why), i
        monitor = Monitor(Guard())
        frozen = [monitor.warnings({**calm, f"{part}acceptance": 0.0}, cd) for _ in range(6)]
        assert any("frozen" in text for texts in frozen for text in texts), i
