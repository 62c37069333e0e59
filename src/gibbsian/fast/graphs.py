"""CUDA graphs: what launches thousands of small kernels becomes one launch.

A graph holds addresses, so what goes into it and what it carries on live in fixed tensors, which are written before
it is replayed; random numbers go on through the generators that it is given.
"""

import gc
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from gibbsian.fast.compiled import without_collector
from gibbsian.trees import leaves, mapped

Result = TypeVar("Result")


class CaptureError(RuntimeError):
    """What was to be captured waits for the device, or is not the same at every replay."""


def first_cause(error: BaseException) -> str:
    """What went wrong first: a capture that was broken off adds complaints of its own."""
    while isinstance(error.__context__, RuntimeError):
        error = error.__context__
    return " ".join(str(error).split())[:200]


def capturing(value: Tensor) -> bool:
    """Is what is done with this tensor being captured now? Nothing can be read then: what has to be checked is checked in the eager
    steps before, or after the replay."""
    return value.is_cuda and torch.cuda.is_current_stream_capturing()


class Pool:
    """Memory that several graphs share, so that they need that of the largest and not of all.

    They are replayed one at a time, and each makes anew what it reads from the pool: what outlives a replay (outputs) is
    held by somebody, and memory that is held is not given to another graph.
    """

    def __init__(self) -> None:
        self.handle: Any = None

    def of_next(self) -> Any:
        """The handle for the next capture."""
        if self.handle is None:
            self.handle = torch.cuda.graph_pool_handle()
        return self.handle

    def renew(self) -> None:
        """Leave the memory of a capture that failed, which nobody may use again."""
        self.handle = None


def capture(
    function: Callable[[], Result], *, generators: Sequence[torch.Generator] = (), pool: Pool | None = None
) -> tuple[torch.cuda.CUDAGraph, Result]:
    """The graph of what a function does, and the tensors that its replays write to.

    Args:
        function: launches kernels and never waits for the device.
        generators: those that it draws from.
        pool: memory to be shared with other graphs.
    """
    pool = Pool() if pool is None else pool
    graph = torch.cuda.CUDAGraph()
    for generator in generators:
        graph.register_generator_state(generator)
    gc.collect()
    try:
        with without_collector(), torch.cuda.graph(graph, pool=pool.of_next()):
            return graph, function()
    except RuntimeError as error:
        pool.renew()
        raise CaptureError(first_cause(error)) from error


def renewed(states: Sequence[Tensor], device: torch.device) -> list[torch.Generator]:
    """New generators in these states: a capture that failed leaves those that it was given registered."""
    generators = [torch.Generator(device) for _ in states]
    for generator, state in zip(generators, states, strict=True):
        generator.set_state(state)
    return generators


def milliseconds(function: Callable[[], Any]) -> float:
    """What a call takes on the device."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    function()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end)


def on_side_stream(function: Callable[[], Any], times: int = 1) -> None:
    """Run what will be captured: it compiles, sets up what libraries set up lazily, and warms the allocator up."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(times):
            function()
    torch.cuda.current_stream().wait_stream(side)


class Branch:
    """A branch of the graph that is being captured: kernels inside run beside those that follow, until both are `joined`. Small kernels
    leave most of a GPU idle. Where nothing is captured, or not `wanted`, all run one after the other.

    >>> branch = Branch(wanted=True)
    >>> with branch:
    ...     x = torch.ones(2).sum()
    >>> branch.join()
    """

    def __init__(self, *, wanted: bool) -> None:
        capturing = wanted and torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
        self.side = torch.cuda.Stream() if capturing else None
        self.inside: Any = nullcontext()

    def __enter__(self) -> None:
        if self.side is not None:
            self.side.wait_stream(torch.cuda.current_stream())
            self.inside = torch.cuda.stream(self.side)
        self.inside.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.inside.__exit__(*error)

    def join(self) -> None:
        """What comes from now on waits for the branch."""
        if self.side is not None:
            torch.cuda.current_stream().wait_stream(self.side)


def tensors_of(tree: Any) -> list[Tensor]:
    """The tensors in nested tuples, lists and dictionaries."""
    return [leaf for leaf in leaves(tree) if isinstance(leaf, Tensor)]


def fixed_copy(tree: Any) -> Any:
    """The same tree with tensors of its own, in the same memory format, at addresses that a graph can hold."""
    return mapped(lambda t: t.clone() if isinstance(t, Tensor) else t, tree)


def carry_over(before: Any, after: Any) -> None:
    """Write a tree into the fixed tensors of the one that it follows from.

    >>> state = (torch.zeros(2), None)
    >>> carry_over(state, (torch.ones(2), None))
    >>> state
    (tensor([1., 1.]), None)
    """
    groups: dict[torch.dtype, list[tuple[Tensor, Tensor]]] = {}  # one kernel copies tensors of one kind
    for pair in moves(before, after):
        groups.setdefault(pair[0].dtype, []).append(pair)
    for group in groups.values():
        torch._foreach_copy_([a for a, _ in group], [b for _, b in group])


def moves(before: Any, after: Any) -> list[tuple[Tensor, Tensor]]:
    """(where to, from where) of the tensors that `carry_over` writes."""
    old, form = pytree.tree_flatten(before)
    new, new_form = pytree.tree_flatten(after)
    if form != new_form or not all(map(_fits, old, new)):
        raise CaptureError("the state changes its form from step to step")
    return [(a, b) for a, b in zip(old, new, strict=True) if isinstance(a, Tensor) and a is not b]


def _fits(old: Any, new: Any) -> bool:
    if isinstance(old, Tensor):
        return isinstance(new, Tensor) and old.shape == new.shape
    return old == new


class CapturedChunk:
    """A chunk of compiled steps, captured at its first call as one CUDA graph.

    What it returns lives in the graph's memory until the next call: the caller copies what it keeps.

    Args:
        whole: `(*things, state, inputs, step) -> (state, *outputs)`, the chunk; `things` are read where they live.
        step: `(*things, state, inputs) -> (state, info)`, compiled; unrolled, the chunk itself would compile for ever.
        pool: memory that it shares with other chunks.
    """

    def __init__(self, whole: Callable[..., Any], step: Callable[..., Any], pool: Pool | None = None) -> None:
        self.whole, self.step, self.pool = whole, step, pool
        self.graph: torch.cuda.CUDAGraph | None = None
        self.state: Any = None
        self.inputs: Any = None
        self.outputs: tuple[Tensor, ...] = ()

    def __call__(self, *arguments: Any) -> Any:
        *things, state, inputs = arguments
        if self.graph is None:
            self.graph = self._capture(things, state, inputs)
        carry_over(self.state, state)
        torch._foreach_copy_(tensors_of(self.inputs), tensors_of(inputs))
        self.graph.replay()
        return self.state, *self.outputs

    def _capture(self, things: list[Any], state: Any, inputs: Any) -> torch.cuda.CUDAGraph:
        self.state, self.inputs = fixed_copy(state), fixed_copy(inputs)
        first = pytree.tree_map(lambda t: t[0], self.inputs)
        on_side_stream(lambda: self.step(*things, self.state, first), times=2)

        def whole() -> tuple[Tensor, ...]:
            end, *outputs = self.whole(*things, self.state, self.inputs, self.step)
            carry_over(self.state, end)
            return tuple(outputs)

        graph, self.outputs = capture(whole, pool=self.pool)
        return graph
