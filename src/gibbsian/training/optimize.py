"""Optimizers by name, learning rates that change from step to step, averages of weights."""

import copy
import inspect
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gibbsian.errors import ArgumentError, CheckpointError, check_number
from gibbsian.fast.compiled import compiled_copy
from gibbsian.training.rates import NAMES, TorchRates, is_scheduler
from gibbsian.training.run import Settings

_OFFERED = ("Adadelta", "Adagrad", "Adam", "Adamax", "AdamW", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD")
_NAMES = {name.lower(): getattr(torch.optim, name) for name in _OFFERED}
_FUSED = {"adam", "adamw", "sgd", "adagrad"}  # one kernel over all parameters: several times faster, CPU and CUDA
_CAPTURED = {"adam", "adamw", "sgd"}  # fit for CUDA graphs
_ALONE = "give a function of the parameters, such as lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)"
_SCHEDULES = ("constant", "cosine", "linear", "warm-up", "warm-up cosine", "warm-up linear")


def _is_schedule(value: Any) -> bool:
    return callable(value) or (isinstance(value, Tensor) and value.dim() == 1)


_FEW = (
    8  # tensors that are moved by one compiled kernel: more take long to compile, and launch less often for their size
)


def _descend(parameters: list[Tensor], gradients: list[Tensor], rate: Tensor) -> None:
    torch._foreach_sub_(parameters, torch._foreach_mul(gradients, rate))


def _follow(average: list[Tensor], parameters: list[Tensor], weight: Tensor) -> None:
    torch._foreach_add_(average, torch._foreach_mul(torch._foreach_sub(parameters, average), weight))


def _as_one(function: Any, first: list[Tensor], second: list[Tensor], number: Any) -> bool:
    """Move a few tensors on a GPU by one compiled kernel; False where that is not for them."""
    if not (isinstance(number, Tensor) and first and len(first) <= _FEW and all(t.is_cuda for t in first)):
        return False
    key = tuple((tuple(a.shape), a.stride(), a.dtype, b.stride(), b.dtype) for a, b in zip(first, second, strict=True))
    compiled_copy(function, key)(first, second, number)
    return True


class CapturableSGD(torch.optim.SGD):
    """Stochastic gradient descent whose learning rate is a tensor, for CUDA graphs.

    torch's own reads the rate on the host, or (fused) cuts a large tensor into too few pieces for a GPU.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            moved = [p for p in group["params"] if p.grad is not None]
            plain = not group["weight_decay"] and not group["momentum"]
            if plain and _as_one(_descend, [p.detach() for p in moved], [p.grad for p in moved], group["lr"]):
                continue
            for p in group["params"]:
                if p.grad is None:
                    continue
                g = p.grad if not group["weight_decay"] else p.grad.add(p, alpha=group["weight_decay"])
                if group["momentum"]:
                    state = self.state[p]
                    if "momentum_buffer" in state:
                        state["momentum_buffer"].mul_(group["momentum"]).add_(g)
                    else:
                        state["momentum_buffer"] = g.clone()
                    g = state["momentum_buffer"]
                p.addcmul_(g, group["lr"], value=-1)


def build_optimizer(
    choice: Any, parameters: Iterable[nn.Parameter], lr: Any, *, capturable: bool = False, split: int | None = None
) -> tuple[torch.optim.Optimizer, dict[str, Any]]:
    """The optimizer, and those of its options that follow a schedule.

    Args:
        choice: the `optimizer` of `gibbsian.fit`.
        lr: the learning rate, or one for the first `split` parameters and one for the others.
        capturable: make Adam and SGD fit for CUDA graphs.

    >>> weight = torch.nn.Parameter(torch.zeros(2))
    >>> build_optimizer({"name": "sgd", "momentum": 0.9}, [weight], lr=0.1)[0].defaults["momentum"]
    0.9
    """
    parameters = list(parameters)
    rates = lr if isinstance(lr, tuple) else (lr,)
    if isinstance(choice, type) and issubclass(choice, torch.optim.Optimizer):  # it has still to be told the rates
        kind: Any = choice
        return _made_by(lambda p: kind(_groups(p, rates, split, False), lr=rates[0]), parameters), {}
    if callable(choice):
        return _made_by(choice, parameters), {}
    if isinstance(choice, torch.optim.Optimizer):
        raise ArgumentError(f"optimizer is a {type(choice).__name__} with parameters of its own; {_ALONE}")
    name, options, schedules = _named(choice)
    spared = bool(options.pop("spare_gains", False))
    if name in _FUSED and _can_be_fused(parameters, options):
        options["fused"] = True
    kind = _NAMES[name]
    if capturable and _can_be_captured(name, options, schedules):
        kind, own = (CapturableSGD, {"fused": False}) if name == "sgd" else (kind, {"capturable": True})
        options |= own
        rates = tuple(torch.tensor(rate, device=parameters[0].device) for rate in rates)  # changed in place
    try:
        return kind(_groups(parameters, rates, split, spared), lr=rates[0], **options), schedules
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"optimizer {name!r} refuses its options: {error}") from error


def _groups(
    parameters: list[nn.Parameter], rates: tuple[Any, ...], split: int | None, spared: bool
) -> list[dict[str, Any]]:
    """Groups of one rate each; with `spared` vectors and numbers (gains, biases, scales) in groups without weight decay."""
    parts = [parameters] if len(rates) == 1 else [parameters[:split], parameters[split:]]
    groups: list[dict[str, Any]] = [{"params": part, "lr": rate} for part, rate in zip(parts, rates, strict=True)]
    if spared:
        groups = [one for group in groups for one in _spared(group)]
    return [group for group in groups if group["params"]]


def _spared(group: dict[str, Any]) -> list[dict[str, Any]]:
    arrays, others = ([p for p in group["params"] if (p.dim() > 1) is array] for array in (True, False))
    return [group | {"params": arrays}, group | {"params": others, "weight_decay": 0.0}]


def _made_by(factory: Callable[[list[nn.Parameter]], Any], parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    try:
        optimizer = factory(parameters)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(f"the optimizer cannot be made from these parameters: {error}; {_ALONE}") from error
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ArgumentError(f"the optimizer factory returned a {type(optimizer).__name__}, not a torch.optim.Optimizer")
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if isinstance(optimizer, torch.optim.SparseAdam) or (closure and closure.default is inspect.Parameter.empty):
        raise ArgumentError(
            f"{type(optimizer).__name__} does not fit: a step has one gradient, dense, and no closure that would find others; {_ALONE}"
        )
    return optimizer


def _named(choice: Any) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """The name of an optimizer, its options, and those of them that follow a schedule."""
    options = dict(choice) if isinstance(choice, dict) else {"name": choice or "adam"}
    name = str(options.pop("name", "adam")).lower()
    if name not in _NAMES:
        raise ArgumentError(
            f"optimizer {name!r} is unknown; use {', '.join(_NAMES)}, or a callable params -> Optimizer"
        )
    schedules = {key: value for key, value in options.items() if _is_schedule(value)}
    return name, options | {key: value_at(value, 0) for key, value in schedules.items()}, schedules


def _can_be_fused(parameters: list[nn.Parameter], options: dict[str, Any]) -> bool:
    plain = all(p.is_floating_point() and p.device.type in {"cpu", "cuda"} for p in parameters)
    return plain and not {"fused", "foreach", "capturable", "differentiable"} & set(options)


def _can_be_captured(name: str, options: dict[str, Any], schedules: dict[str, Any]) -> bool:
    plain = not {"nesterov", "dampening", "maximize", "foreach", "differentiable"} & set(options)
    return name in _CAPTURED and not schedules and (name != "sgd" or plain)


def value_at(schedule: Any, step: int) -> float:
    """The value of a schedule at a step: a callable of the step, or a tensor whose last value is held."""
    return float(schedule(step) if callable(schedule) else schedule[min(step, len(schedule) - 1)])


def rate_at(schedule: Any, lr: float, total: int) -> Callable[[int], float]:
    """The learning rate as a function of the step.

    Args:
        schedule: that of `gibbsian.fit`. Rates fall from lr to 0 over the run; a warm-up is linear over its first
            twentieth, 1000 steps at most; of a tensor the last rate is held.

    >>> rate = rate_at("warm-up cosine", 1.0, 200)
    >>> [round(rate(step), 3) for step in (0, 9, 105, 199)]
    [0.1, 1.0, 0.5, 0.0]
    """
    if not (math.isfinite(lr) and lr > 0):
        raise ArgumentError(f"lr={lr}: the learning rate must be positive and finite, such as 1e-3")
    if _is_schedule(schedule):
        return lambda step: value_at(schedule, step)
    if schedule is not None and schedule not in _SCHEDULES:
        raise ArgumentError(
            f"schedule {schedule!r} is unknown; use {', '.join(_SCHEDULES)}, a scheduler of torch ({', '.join(NAMES[:3])}, ...), "
            "a 1-D tensor or a callable"
        )
    name = schedule or "constant"
    warm = min(1000, math.ceil(total / 20)) if name.startswith("warm-up") else 0

    def rate(step: int) -> float:
        if step < warm:
            return lr * (step + 1) / warm
        t = min(1.0, (step - warm) / max(1, total - warm))
        if name.endswith("cosine"):
            return lr * 0.5 * (1 + math.cos(math.pi * t))
        return lr * (1 - t) if name.endswith("linear") else lr

    return rate


class Updates:
    """The optimizer of a run, with what follows a schedule."""

    def __init__(self, settings: Settings, parameters: list[nn.Parameter], split: int) -> None:
        capturable = settings.engine.compile and parameters[0].device.type == "cuda"
        self.lr = settings.lr[0] if isinstance(settings.lr, tuple) else settings.lr
        self.parameters = parameters
        make = partial(build_optimizer, settings.optimizer, parameters, settings.lr, split=split)
        self.optimizer, self.options = make(capturable=capturable)
        self.torch_rates: TorchRates | None = None
        if is_scheduler(settings.schedule):
            self.torch_rates = TorchRates(settings.schedule, self.lr, self.optimizer.defaults)
            if (
                capturable and not self.torch_rates.only_rates
            ):  # graphs would hold the momentum that they were captured with
                capturable = False
                self.optimizer, self.options = make(capturable=False)
        self.rate = self.torch_rates or rate_at(settings.schedule, self.lr, settings.steps)
        self.capturable = capturable and all(isinstance(g["lr"], Tensor) for g in self.optimizer.param_groups)
        self.base_rates = [float(group["lr"]) for group in self.optimizer.param_groups]

    def set_rate(self, step: int, factor: float) -> None:
        """Set the learning rate, times a factor, and scheduled options of a step."""
        rates = self.rates(self.rate(step) * factor)
        for group, own in zip(self.optimizer.param_groups, rates, strict=True):
            if isinstance(group["lr"], Tensor):  # a captured step reads it where it is
                group["lr"].fill_(own)
            else:
                group["lr"] = own
            for name, schedule in self.options.items():
                group[name] = value_at(schedule, step)
            if self.torch_rates is not None:
                group.update(self.torch_rates.others(step))

    def observe(self, value: float) -> None:
        """Tell the scheduler what a validation found."""
        if self.torch_rates is not None:
            self.torch_rates.observe(value)

    def rates(self, rate: float) -> list[float]:
        """The learning rate of every group, where that of the first is `rate`."""
        return [base * (rate / self.lr) for base in self.base_rates]

    @contextmanager
    def reading(self, rates: Tensor) -> Iterator[None]:
        """Let steps that are captured read their rates `(groups,)` from there."""
        groups = self.optimizer.param_groups
        own = [group["lr"] for group in groups]
        try:
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate
            yield
        finally:
            for group, rate in zip(groups, own, strict=True):
                group["lr"] = rate

    def drop_gradients(self) -> None:
        """Forget the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    def load(self, saved: dict[str, Any]) -> None:
        """The optimizer's saved state; how it computes stays as it was built for this device."""
        how: list[dict[str, Any]] = [
            {key: group[key] for key in ("lr", "fused", "foreach", "capturable") if key in group}
            for group in self.optimizer.param_groups
        ]
        try:
            self.optimizer.load_state_dict(saved)
        except (ValueError, KeyError) as error:
            raise CheckpointError(f"the saved optimizer does not fit this one: {error}") from error
        for group, own in zip(self.optimizer.param_groups, how, strict=True):
            group.update(own)
        for parameter, state in self.optimizer.state.items():
            _lay_out(state, parameter)


def _lay_out(state: dict[str, Any], like: Tensor) -> None:
    """Moments as their parameter is laid out here: kernels for many tensors at once take no others."""
    for name, value in state.items():
        if isinstance(value, Tensor) and value.shape == like.shape and value.stride() != like.stride():
            state[name] = torch.empty_like(like, dtype=value.dtype).copy_(value)


class Ema:
    """A copy of an energy whose parameters follow the trained ones slowly.

        θ̄ ← θ̄ + (1 - d)(θ - θ̄),   d = min(decay, (1 + t)/(10 + t))

    Parameters are averaged, buffers copied: averages of spectral-norm vectors are not unit vectors, and such
    models explode. The decay grows to its full value over the first steps, so that the start is forgotten.

    Reference: Polyak & Juditsky 1992.

    >>> energy = torch.nn.Linear(1, 1, bias=False)
    >>> average = Ema(energy, decay=0.9)
    >>> _ = energy.weight.data.add_(1.0)
    >>> average.update(energy, step=1000)
    >>> bool(torch.allclose(energy.weight - average.energy.weight, torch.tensor(0.9)))
    True
    """

    def __init__(self, energy: nn.Module, decay: float) -> None:
        check_number("Ema", "decay", decay, 0.0, 1.0, open_low=True, open_high=True)
        self.decay = decay
        self.energy = copy.deepcopy(energy).requires_grad_(False)

    def update(self, energy: nn.Module, step: int) -> None:
        """Follow the energy after its `step`-th update."""
        self.follow(energy, self.weight(step))

    def weight(self, step: int) -> float:
        """1 - d after the `step`-th update."""
        return 1 - min(self.decay, (1 + step) / (10 + step))

    @torch.no_grad()
    def follow(self, energy: nn.Module, weight: float | Tensor) -> None:
        """Go that share of the way to the energy."""
        mine, theirs = ([p.detach() for p in module.parameters()] for module in (self.energy, energy))
        if not _as_one(_follow, mine, theirs, weight):
            for average, parameter in zip(mine, theirs, strict=True):
                average.lerp_(parameter, weight)
        for copied, buffer in zip(self.energy.buffers(), energy.buffers(), strict=True):
            copied.copy_(buffer)
