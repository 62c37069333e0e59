"""Scores that are differentiated once more, as compiled programs of their own.

Flow matching trains on ‖ε s(x) - u‖², s = -∇E: a gradient of a gradient. Autograd takes it kernel by kernel, and the gradient of a
convolution's reverse pass by convolutions whose kernels are whole images, for which no library has a fast form. Here forward and
reverse pass are written out as one graph of tensor operations, in which the reverse pass of a convolution is a transposed
convolution: its own gradients are usual ones, and the compiler fuses all that lies between.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from gibbsian.energy import ScoreField
from gibbsian.errors import CompileWarning
from gibbsian.fast.compiled import compiled, reason, weak_cache

Program = Callable[[Sequence[Tensor], Tensor], Tensor]  # (parameters and buffers, x) → s(x)


def named_tensors(energy: nn.Module) -> dict[str, Tensor]:
    """What a program reads: parameters and buffers by name."""
    return {**dict(energy.named_parameters()), **dict(energy.named_buffers())}


def written_out(energy: nn.Module, x: Tensor) -> torch.fx.GraphModule:
    """A program that computes s(x) = -∇E(x) for batches like x, in the precision that autocast asks for now.

    It takes the values of `named_tensors(energy)` and x, and holds nothing of the energy; autograd can differentiate it in all of them.

    >>> from gibbsian.nets import MLP
    >>> net, x = MLP(2, (3,)), torch.ones(4, 2)
    >>> program = written_out(lambda_energy := nn.Sequential(net, nn.Flatten(0)), x)
    >>> program(tuple(named_tensors(lambda_energy).values()), x).shape
    torch.Size([4, 2])
    """
    named = named_tensors(energy)

    def score(tensors: Sequence[Tensor], y: Tensor) -> Tensor:
        given = dict(zip(named, tensors, strict=True))
        return torch.func.grad(lambda z: -torch.func.functional_call(energy, given, (z,)).sum())(y)

    inputs = tuple(t.detach() for t in named.values())
    graph = make_fx(torch.func.functionalize(score, remove="mutations"))(inputs, x.detach())
    _transpose_convolutions(graph.graph)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def _transpose_convolutions(graph: torch.fx.Graph) -> None:
    """Write the gradient of a convolution in its input as the transposed convolution that it is."""
    aten = torch.ops.aten
    for node in graph.find_nodes(op="call_function", target=aten.convolution_backward.default):
        outer, x, weight, _, stride, padding, dilation, transposed, _, groups, wanted = node.args
        if transposed or list(wanted) != [True, False, False]:
            continue
        before, after, kernel = (n.meta["val"].shape[2:] for n in (x, outer, weight))
        sides = zip(before, after, kernel, stride, padding, dilation, strict=True)
        rest = [n - ((m - 1) * s - 2 * p + d * (k - 1) + 1) for n, m, k, s, p, d in sides]
        with graph.inserting_after(node):
            how = (stride, padding, dilation, True, rest, groups)
            found = graph.call_function(aten.convolution.default, (outer, weight, None, *how))
        for user in list(node.users):  # the first of three results is the only one that is there
            if user.args[1] == 0:
                user.replace_all_uses_with(found)
            graph.erase_node(user)
        graph.erase_node(node)


class _Compiled:
    """The program of an energy and a shape: compiled at its first call and compared with PyTorch, whose operations it falls
    back to, saying why, where either fails; and to the energy where autograd knows not all of these."""

    def __init__(self) -> None:
        self.checked = False
        self.program: Program | None = None

    def __call__(self, energy: Any, x: Tensor) -> Tensor:
        if not self.checked:
            self.program, self.checked = _checked(energy, x), True
        if self.program is None:
            return energy.score(x, create_graph=torch.is_grad_enabled())
        with _as_written(x.device):
            return self.program(tuple(named_tensors(energy).values()), x)


def _as_written(device: torch.device) -> torch.autocast:
    """A program has its casts; and the state of autocast is part of what the compiler compiles for, so it is always the same."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=False, cache_enabled=True)


def wave(like: Tensor) -> Tensor:
    """Numbers of unit size that nothing is symmetric in, of this shape, in double precision."""
    return torch.cos(torch.arange(like.numel(), device=like.device, dtype=torch.float64)).view_as(like)


def half_of(x: Tensor) -> torch.dtype | None:
    """The precision that autocast asks for now where x lives."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


def tolerance(x: Tensor) -> float:
    """How far a compiled program may be from PyTorch's, as a share of its size, in the precision of x and of autocast."""
    half = half_of(x) is not None or x.dtype in (torch.bfloat16, torch.float16)
    return 0.1 if half else 1e-2 if x.dtype == torch.float32 else 1e-8


def moved(tensor: Tensor) -> Tensor:
    """A tensor of the same kind with other numbers: of networks whose last layer begins at zero much could not be seen.

    By a third of its own size, or of that with which layers keep the size of what they are given: wide networks that are moved
    further amplify what half precision rounds.
    """
    if not tensor.is_floating_point():
        return tensor
    own = tensor.detach().square().mean().sqrt()
    usual = (tensor[0].numel() if tensor.dim() > 1 else 400 if tensor.dim() else 1) ** -0.5
    other = tensor.detach() + (0.3 * torch.where(own > 0, own, usual) * wave(tensor)).to(tensor.dtype)
    return nn.Parameter(other, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else other


def _checked(energy: Any, x: Tensor) -> Program | None:
    graph, tensors = written_out(energy, x), tuple(map(moved, named_tensors(energy).values()))
    allowed = tolerance(x)  # inside, autocast is off
    program, known = compiled(lambda tensors, y: graph(tensors, y)), None
    try:
        with _as_written(x.device), torch.enable_grad():
            known = _score_and_slopes(graph, tensors, x)
            apart = _share(_score_and_slopes(program, tensors, x), known)
        if apart <= allowed:
            return program
        why = f"the compiled program is {apart:.2g} away from PyTorch's"
    except RuntimeError as error:
        why = reason(error)
    warnings.warn(f"scores are differentiated operation by operation, because {why}", CompileWarning, stacklevel=5)
    return None if known is None else graph


def _score_and_slopes(program: Program, tensors: Sequence[Tensor], x: Tensor) -> Tensor:
    """Scores by a program, and the gradients of a function of them, in one row."""
    s = program(tensors, x)
    trained = [t for t in tensors if t.requires_grad]
    slopes = torch.autograd.grad(s, trained, x + s.detach(), allow_unused=True, materialize_grads=True)
    return torch.cat([t.detach().double().flatten() for t in (s, *slopes)])


def _share(one: Tensor, other: Tensor) -> float:
    """How far apart two rows of numbers are, as a share of their size."""
    return float((one - other).norm() / other.norm())


_program = weak_cache(lambda energy, *key: _Compiled())


def compiled_score(energy: Any, x: Tensor) -> Tensor:
    """`energy.score(x, create_graph=True)` by a compiled program, one for every shape and precision; without a graph under `no_grad`.

    Compiling takes up to a minute, so only steps that are repeated very often ask for it.
    """
    return _program(energy, x.shape, x.dtype, x.device, half_of(x), energy.training)(energy, x.contiguous())


class CompiledScores(ScoreField):
    """The scores of an energy by `compiled_score`, for kernels that need no more; the energy stays where it is."""

    def __init__(self, energy: Any) -> None:
        super().__init__(energy.domain)
        self.held = (energy,)  # not as a part: parameters are read where they live, in their own precision

    def score(self, x: Tensor, *, create_graph: bool = False) -> Tensor:
        with torch.set_grad_enabled(create_graph):
            return compiled_score(self.held[0], x)
