"""Networks inside energies as compiled programs, for training steps that are repeated very often.

A pass through a small convolutional network and back is a hundred kernels, and most of them last a few microseconds whatever is in
them: casts, biases, activations, sums, each reading and writing what the convolutions around them read and write as well. The
compiler makes one kernel of those between two convolutions.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gibbsian.energy import Energy, ScoreField
from gibbsian.fast.compiled import Forgiving, compiled, weak_cache


def networks_of(module: nn.Module) -> list[nn.Module]:
    """The outermost parts of a module that are no energies or scores of their own, and have parameters.

    >>> import gibbsian as gb
    >>> joint = gb.models.JointEnergy(gb.nets.MLP(2, outputs=3), gb.domains.Real(2))
    >>> [type(net).__name__ for net in networks_of(joint)]
    ['MLP']
    """
    found: list[nn.Module] = []
    for part in module.children():
        if isinstance(part, Energy | ScoreField):
            found += networks_of(part)
        elif next(part.parameters(), None) is not None:
            found.append(part)
    return found


def _call(net: Any, *arguments: Any) -> Any:
    return net._call_impl(*arguments)  # what __call__ does where nothing is compiled


class Network:
    """A network as a program that is compiled at its first call with tensors of some kind, and compared with the network then: values
    and slopes. What differs by more than rounding, or cannot be compiled, is left to the network."""

    def __init__(self) -> None:
        self.program = Forgiving(_call, compiled)
        self.compared: set[tuple[Any, ...]] = set()

    def __call__(self, net: nn.Module, x: Any, *more: Any) -> Any:
        if torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None:
            return _call(net, x, *more)  # part of a larger program
        key = (x.shape, x.dtype, x.requires_grad, torch.is_grad_enabled(), net.training)
        if key not in self.compared and not (x.is_cuda and torch.cuda.is_current_stream_capturing()):
            self.compared.add(key)
            self._compare(net, x, *more)
        return self.program(net, x, *more)

    def _compare(self, net: nn.Module, x: Tensor, *more: Any) -> None:
        half = torch.is_autocast_enabled(x.device.type) or x.dtype in (torch.bfloat16, torch.float16)
        tolerance = 0.1 if half else 1e-2 if x.dtype == torch.float32 else 1e-8
        with warnings.catch_warnings(), torch._functorch.config.patch(donated_buffer=False):
            # the way back is gone twice, here and by whoever asked; and the compiler asks computed weights for their gradients
            warnings.simplefilter("ignore", UserWarning)
            plain, made = (_values_and_slopes(call, net, x, *more) for call in (_call, self.program))
        apart = float((made - plain).norm() / plain.norm().clamp(min=1e-30))
        if not self.program.failure and not apart <= tolerance:
            self.program.failure = f"the compiled network is {apart:.2g} away from PyTorch's"


def _values_and_slopes(call: Any, net: nn.Module, x: Tensor, *more: Any) -> Tensor:
    """Outputs and, where gradients flow, those of a weighted sum of them in x, or else in the parameters; in one row."""
    x = x.detach().requires_grad_(x.requires_grad)
    y = call(net, x, *more)
    parts = [y]
    if y.requires_grad:
        wave = torch.cos(torch.arange(y.numel(), device=y.device, dtype=torch.float64)).view_as(y).to(y.dtype)
        sources = [x] if x.requires_grad else [p for p in net.parameters() if p.requires_grad]
        slopes = torch.autograd.grad(y, sources, wave, allow_unused=True, retain_graph=True)
        parts += [s for s in slopes if s is not None]
    return torch.cat([part.detach().double().flatten() for part in parts])


_program = weak_cache(lambda net, *key: Network())


@contextmanager
def compiled_networks(energy: nn.Module) -> Iterator[list[Network]]:
    """Inside, the networks in an energy are called as compiled programs; they are the same modules with the same parameters.

    >>> import gibbsian as gb
    >>> joint = gb.models.JointEnergy(gb.nets.MLP(2, outputs=3), gb.domains.Real(2))
    >>> with compiled_networks(joint) as programs:
    ...     len(programs), joint.net._compiled_call_impl is not None
    (1, True)
    >>> joint.net._compiled_call_impl is None
    True
    """
    half = torch.is_autocast_enabled("cuda"), torch.is_autocast_enabled("cpu")
    nets = networks_of(energy)
    programs = [_program(net, half) for net in nets]
    for net, program in zip(nets, programs, strict=True):
        net._compiled_call_impl = partial(program, net)  # where `Module.compile` puts its own
    try:
        yield programs
    finally:
        for net in nets:
            del net._compiled_call_impl
