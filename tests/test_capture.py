"""Training steps that wait for nothing, on a CPU: what a CUDA graph could not hold is found without one.

Compiled parts are programs without breaks, which cannot wait; here goes all that is around them.
"""

import pytest
import torch
from never_waits import WaitError, never_waits
from test_objectives_regularizers import BINARY, DISCRETE, RBM, REAL, Machine, mixture_of_three, random_rbm, some_data
from test_objectives_regularizers import bits as coins
from test_principles_cuda import CASES

import gibbsian as gb
from gibbsian.derivatives.known import trainable
from gibbsian.objectives.base import Step, state_modules

LOOKS = {
    "a number": lambda x: float(x[0]),
    "a decision": lambda x: bool((x > 0).all()),
    "a list": lambda x: x.tolist(),
    "rows by a mask": lambda x: x[x > 0],
    "a value at a mask": lambda x: x.clone().__setitem__(x > 0, torch.ones(2)),
    "places": lambda x: (x > 0).nonzero(),
    "a selection": lambda x: x.masked_select(x > 0),
    "a comparison": lambda x: torch.equal(x, x),
    "repetitions": lambda x: x.repeat_interleave((x > 0).long()),
    "values that occur": torch.unique,
}


@pytest.mark.parametrize("name", LOOKS)
def test_looks_are_caught(name):
    x = torch.tensor([-1.0, 2.0, 3.0])
    LOOKS[name](x)
    with never_waits(), pytest.raises(WaitError):
        LOOKS[name](x)


def test_what_stays_on_the_device_is_not():
    x = torch.tensor([-1.0, 2.0, 3.0], requires_grad=True)
    with never_waits():
        y = torch.where(x > 0, x, 0.0)[torch.tensor([0, 2])].sort().values
        (g,) = torch.autograd.grad(y.sum(), x)
    assert g.tolist() == [0.0, 0.0, 1.0]


def step_of(objective, energy, batch, state, generator, done):
    """The state after a step, gradients and all."""
    parameters = [*trainable(energy), *(p for m in state_modules(state) for p in trainable(m))]
    loss = objective.loss(energy, batch, state, generator, Step(done=done))
    for value in (loss.value, loss.other):
        if value is not None:
            torch.autograd.grad(value, parameters, allow_unused=True, retain_graph=True)
    return loss.state


def take_steps(objective, energy, batch, steps=2):
    """A step that may look around, as those before a capture may, and some that may not."""
    generator = torch.Generator().manual_seed(0)
    state = step_of(objective, energy, batch, objective.init(energy, batch, generator), generator, 0)
    for done in range(1, 1 + steps):
        with never_waits():
            state = step_of(objective, energy, batch, state, generator, done)


# these say on a GPU that they train eagerly: solvers that go on until nothing moves, neighbors among rows
EAGER = {"perturb", "improved cd"}
PRINCIPLES = {
    **{f"plane: {name}": (mixture_of_three, REAL[name], lambda: some_data(20)) for name in REAL if name not in EAGER},
    **{f"bits: {name}": (lambda: Machine(BINARY), DISCRETE[name], lambda: coins(20, 4)) for name in DISCRETE if name not in EAGER},
    **{f"RBM: {name}": (random_rbm, RBM[name], lambda: coins(20, 6)) for name in RBM},
    **{name: (make, objective, lambda data=data: data("cpu")[:64]) for name, (make, objective, data) in CASES.items()},
}  # fmt: skip


@pytest.mark.parametrize("name", PRINCIPLES)
def test_principles_that_are_captured_wait_for_nothing(name):
    make, objective, data = PRINCIPLES[name]
    take_steps(objective, make(), data())


def test_machines_under_one_label_wait_for_nothing():
    """To index by a single number is to look at it."""
    machine = gb.models.ClassificationRBM(6, classes=3, hidden=4).given(1)
    x = coins(5, 6).float()
    noise = machine.gibbs_noise(x, 1, torch.Generator().manual_seed(0))
    with never_waits():
        machine.gibbs_sweep(x, tuple(part[0] for part in noise))
        machine(x)
