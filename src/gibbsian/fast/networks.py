"""Networks inside energies as compiled programs, for training steps that are repeated very often.

A pass through a small convolutional network and back is a hundred kernels, and most of them last a few microseconds whatever is in
them: casts, biases, activations, sums, each reading and writing what the convolutions around them read and write as well. The
compiler makes one kernel of those between two convolutions.
"""

import warnings
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gibbsian.energy import Energy, ScoreField
from gibbsian.fast import graphs
from gibbsian.fast.compiled import Forgiving, compiled, weak_cache
from gibbsian.fast.scores import half_of, moved, tolerance, wave


def networks_of(module: nn.Module) -> list[nn.Module]:
    """The outermost parts of a module that are no energies or scores of their own, and have parameters.

    >>> import gibbsian as gb
    >>> joint = gb.models.JointEnergy(gb.nets.MLP(2, outputs=3), gb.domains.Real(2))
    >>> [type(net).__name__ for net in networks_of(joint + 2 * joint)]
    ['MLP']
    """
    found: list[nn.Module] = []
    for part in module.children():
        if isinstance(part, Energy | ScoreField | nn.ModuleList | nn.ModuleDict):
            found += networks_of(part)
        elif next(part.parameters(), None) is not None:
            found.append(part)
    return list(dict.fromkeys(found))  # a network may be part of several energies


def _call(net: Any, *arguments: Any) -> Any:
    return net._call_impl(*arguments)  # what __call__ does where nothing is compiled


def _kind(value: Any) -> Any:
    """All of an argument that a program is compiled for."""
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype, value.device, value.requires_grad
    return value if isinstance(value, int | float | str | None) else type(value)


class Network:
    """A network as programs, one for every kind of input, each of which is compiled at its first call and compared with the network then:
    values, and slopes. What differs by more than rounding, or cannot be compiled, is left to the network."""

    def __init__(self) -> None:
        self.programs: dict[Hashable, Forgiving] = {}

    @property
    def failures(self) -> set[str]:
        """Why the network itself is called, where it is."""
        return {program.failure for program in self.programs.values()} - {""}

    def __call__(self, net: nn.Module, *arguments: Any, **named: Any) -> Any:
        if named or not arguments or not isinstance(arguments[0], Tensor):
            return net._call_impl(*arguments, **named)
        if torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None:
            return _call(net, *arguments)  # part of a larger program
        key = _key(net, arguments)
        if key not in self.programs:
            self.programs[key] = Forgiving(_call, compiled)
            if not graphs.capturing(arguments[0]):
                self.programs[key].failure = _difference(self.programs[key], net, arguments)
        return self.programs[key](net, *arguments)


def _key(net: nn.Module, arguments: tuple[Any, ...]) -> Hashable:
    """All that a program is compiled for."""
    weights = tuple((p.dtype, p.requires_grad) for p in net.parameters())
    return (*map(_kind, arguments), torch.is_grad_enabled(), net.training, half_of(arguments[0]), weights)


def _difference(program: Forgiving, net: nn.Module, arguments: tuple[Any, ...]) -> str:
    """Why a program is not the network, seen at weights that hide nothing; empty where it is."""
    with warnings.catch_warnings(), torch._functorch.config.patch(donated_buffer=False), _elsewhere(net):
        # the way back is gone twice, here and by whoever asked; and the compiler asks computed weights for their gradients
        warnings.simplefilter("ignore", UserWarning)
        plain, made = (_values_and_slopes(call, net, arguments) for call in (_call, program))
    if program.failure or plain is None or made is None:
        return program.failure or "its output is no tensor"
    apart = max(float((b - a).norm() / a.norm().clamp(min=1e-30)) for a, b in zip(plain, made, strict=True))
    return "" if apart <= tolerance(arguments[0]) else f"the compiled network is {apart:.2g} away from PyTorch's"


@contextmanager
def _elsewhere(net: nn.Module) -> Iterator[None]:
    """Inside, a network has other parameters: branches that begin at zero would not be seen."""
    parts = [(part, name, p) for part in net.modules() for name, p in part._parameters.items() if p is not None]
    try:
        for part, name, p in parts:
            part._parameters[name] = moved(p)  # type: ignore[assignment]
        yield
    finally:
        for part, name, p in parts:
            part._parameters[name] = p


def _values_and_slopes(call: Any, net: nn.Module, arguments: tuple[Any, ...]) -> tuple[Tensor, ...] | None:
    """Outputs and, where gradients flow, those of a weighted sum of them in x, or else in the parameters; None of what is no tensor."""
    x, kept = arguments[0].detach().requires_grad_(arguments[0].requires_grad), [b.clone() for b in net.buffers()]
    y = call(net, x, *arguments[1:])
    for buffer, before in zip(net.buffers(), kept, strict=True):
        buffer.data.copy_(before)  # the call may have moved them
    if not isinstance(y, Tensor):
        return None
    parts = [y.detach().double().flatten()]
    if y.requires_grad:
        sources = [x] if x.requires_grad else [p for p in net.parameters() if p.requires_grad]
        slopes = torch.autograd.grad(y, sources, wave(y).to(y.dtype), allow_unused=True, retain_graph=True)
        parts.append(torch.cat([s.double().flatten() for s in slopes if s is not None]))
    return tuple(parts)


_program = weak_cache(lambda net: Network())


@contextmanager
def compiled_networks(energy: nn.Module) -> Iterator[list[Network]]:
    """Inside, the networks in an energy are called as compiled programs; they are the same modules with the same parameters. Those
    that somebody compiled before are left alone.

    >>> import gibbsian as gb
    >>> joint = gb.models.JointEnergy(gb.nets.MLP(2, outputs=3), gb.domains.Real(2))
    >>> with compiled_networks(joint) as programs:
    ...     len(programs), joint.net._compiled_call_impl is not None
    (1, True)
    >>> joint.net._compiled_call_impl is None
    True
    """
    nets = [net for net in networks_of(energy) if net._compiled_call_impl is None]
    programs = [_program(net) for net in nets]
    try:
        for net, program in zip(nets, programs, strict=True):
            net._compiled_call_impl = partial(program, net)  # where `Module.compile` puts its own
        yield programs
    finally:
        for net in nets:
            net._compiled_call_impl = None
