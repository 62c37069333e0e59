"""Learning rates by torch's schedulers, as functions of the step.

A scheduler drives an optimizer of its own, with one parameter, and what it does to that one is written down: the rate of a
step is then known before it comes (captured steps ask for many at once), after a rollback and on resume, from the number of the
step alone. Only `ReduceLROnPlateau` depends on more, the validation, and its state is kept in checkpoints.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from gibbsian.errors import ArgumentError, suggest

NAMES = sorted(
    name
    for name, kind in vars(lr_scheduler).items()
    if isinstance(kind, type) and issubclass(kind, LRScheduler) and not name.startswith("_") and name != "LRScheduler"
)
_MOVED = ("lr", "momentum", "betas")  # what schedulers change


def is_scheduler(choice: Any) -> bool:
    """Is this a scheduler of torch: a dictionary of a name and options, a class, or a `functools.partial` of one?

    >>> is_scheduler({"name": "StepLR", "step_size": 10}), is_scheduler(partial(lr_scheduler.StepLR, step_size=10))
    (True, True)
    """
    kind = choice.func if isinstance(choice, partial) else choice
    named = isinstance(choice, Mapping) or (isinstance(choice, str) and choice in NAMES)
    return named or (isinstance(kind, type) and issubclass(kind, LRScheduler))


def is_plateau(choice: Any) -> bool:
    """Is this `ReduceLROnPlateau`, which looks at the validation?"""
    kind = choice.func if isinstance(choice, partial) else choice
    name = choice.get("name", choice.get("class_path")) if isinstance(choice, Mapping) else choice
    return kind is ReduceLROnPlateau or (isinstance(name, str) and name == "ReduceLROnPlateau")


def build(choice: Any, optimizer: torch.optim.Optimizer) -> LRScheduler:
    """The scheduler of an optimizer; lists of schedulers among its options are made too."""
    if isinstance(choice, str):
        choice = {"name": choice}
    if isinstance(choice, Mapping):
        options = dict(choice)
        if "class_path" in options:  # as recipes spell out `StepLR: {step_size: 1000}`
            options = {"name": options["class_path"], **(options.get("init_args") or {})}
        name = options.pop("name", None)
        if name not in NAMES:
            raise ArgumentError(
                f"there is no scheduler {name!r}; {suggest(str(name), NAMES)}torch has {', '.join(NAMES)}"
            )
        if "schedulers" in options:
            options["schedulers"] = [build(one, optimizer) for one in options["schedulers"]]
        choice = partial(_chained if name == "ChainedScheduler" else getattr(lr_scheduler, name), **options)
    try:
        return choice(optimizer)
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"the schedule {choice!r} cannot be made: {error}; give its options, as in {{name: StepLR, step_size: 1000}}"
        ) from error


def _chained(optimizer: torch.optim.Optimizer, schedulers: list[LRScheduler]) -> LRScheduler:
    return lr_scheduler.ChainedScheduler(schedulers, optimizer=optimizer)


class TorchRates:
    """The rates that a scheduler gives, by step.

    >>> rates = TorchRates({"name": "StepLR", "step_size": 2, "gamma": 0.5}, 1.0, {})
    >>> [rates(step) for step in (4, 0, 1, 2)]
    [0.25, 1.0, 1.0, 0.5]
    """

    def __init__(self, choice: Any, lr: float, defaults: Mapping[str, Any]) -> None:
        self.make: Callable[[torch.optim.Optimizer], LRScheduler] = partial(build, choice)
        weight = torch.nn.Parameter(torch.zeros(()))
        if "betas" in defaults:
            self.optimizer: torch.optim.Optimizer = torch.optim.Adam([weight], lr=lr, betas=tuple(defaults["betas"]))
        else:
            self.optimizer = torch.optim.SGD([weight], lr=lr, momentum=float(defaults.get("momentum", 0.0)))
        self.first = {key: self.optimizer.param_groups[0].get(key) for key in _MOVED}
        self.scheduler = self.make(self.optimizer)
        self.watches = isinstance(self.scheduler, ReduceLROnPlateau)
        self.seen = [self._now()]

    def _now(self) -> dict[str, Any]:
        group = self.optimizer.param_groups[0]
        return {key: group[key] for key in _MOVED if key in group}

    def at(self, step: int) -> dict[str, Any]:
        """Rate, momentum and betas of the update after `step`."""
        if self.watches:
            return self._now()
        while len(self.seen) <= step:
            self.optimizer.step()
            try:
                self.scheduler.step()
            except ValueError as error:  # OneCycleLR past its end
                raise ArgumentError(f"the schedule ends before the run does: {error}") from error
            self.seen.append(self._now())
        return self.seen[step]

    def __call__(self, step: int) -> float:
        return float(self.at(step)["lr"])

    def others(self, step: int) -> dict[str, Any]:
        """What the scheduler changes besides the rate."""
        return {key: value for key, value in self.at(step).items() if key != "lr" and value != self.first[key]}

    @property
    def only_rates(self) -> bool:
        """Does it leave momentum and betas as they are?"""
        return not self.others(0) and not self.others(1)

    def observe(self, value: float) -> None:
        """Tell it what a validation found."""
        if self.watches:
            self.scheduler.step(value)  # type: ignore[arg-type]

    def state(self) -> dict[str, Any] | None:
        """What a checkpoint keeps of it."""
        if not self.watches:
            return None
        return {
            "lr": self._now()["lr"],
            "scheduler": {k: v for k, v in self.scheduler.state_dict().items() if _is_plain(v)},
        }

    def load(self, state: dict[str, Any] | None) -> None:
        """Go on from a checkpoint."""
        if state is not None and self.watches:
            self.scheduler.load_state_dict({**self.scheduler.state_dict(), **state["scheduler"]})
            self.optimizer.param_groups[0]["lr"] = state["lr"]


def _is_plain(value: Any) -> bool:
    return isinstance(value, int | float | str | bool | list | None)
