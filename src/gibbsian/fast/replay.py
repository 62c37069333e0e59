"""Compiled steps again and again in one C loop.

The wrapper that the compiler puts around its kernels costs 35-130 µs a call, the kernels of a small model 2 µs. So the first
of many steps is the ordinary call, watched: which kernels and products ran on which memory. All the others repeat
them on the same memory, but for the state, whose two sets of tensors, before and after a step, change places; what
every step has of its own (noise, step sizes) lies in blocks in which the pointers go on.

The memory of parameters is looked up anew in every chunk of steps, with the first step of it. Products go to BLAS. What
else a step may call cannot be replayed, and `replay` says so in a `ReplayError`, before it has changed anything.
"""

import ctypes
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gibbsian.fast.graphs import fixed_copy, tensors_of
from gibbsian.fast.native import library
from gibbsian.fast.recorded import Deed, Launch, Recorder, ReplayError, gemm_address
from gibbsian.fast.tape import Player
from gibbsian.fast.traced import storage_start
from gibbsian.trees import mapped

_MOST = 160  # arguments of a kernel, a multiple of eight
_AT_ONCE = 1 << 14  # steps between two chances to interrupt

_SOURCE = """
#pragma GCC optimize("O1")  // half of the time that compiling it takes; nothing here is hot
#include <stdint.h>
#include <string.h>
typedef char* P;
typedef void (*G)(const char*, const char*, const int*, const int*, const int*, const void*, const void*, const int*,
                  const void*, const int*, const void*, void*, const int*);

// Cases go up in eights, a quarter of the time that compiling all takes: a kernel that is given more than it takes leaves that alone,
// since who calls it clears the stack.
static void launch(void* f, int64_t count, P* a) {
  switch ((count + 7) / 8) {
CASES
  }
}

// numbers: rows, columns, inner, transposed a, b, strides of a, b, out, batch, steps of a, b, out in it, row of the added, bytes
#define PRODUCT(NAME, T) \\
  static void NAME(void* f, const int64_t* n, const double* real, P a, P b, P out, P added) { \\
    const int m = n[0], k = n[1], inner = n[2], sa = n[5], sb = n[6], so = n[7]; \\
    const T alpha = real[0], beta = added ? 1 : 0; \\
    for (int64_t i = 0; i < n[8]; i++) { \\
      T* to = (T*)out + i * n[11]; \\
      if (added) \\
        for (int64_t r = 0; r < m; r++) memcpy(to + r * so, (T*)added + r * n[12], k * sizeof(T)); \\
      ((G)f)(n[4] ? "T" : "N", n[3] ? "T" : "N", &k, &m, &inner, &alpha, (T*)b + i * n[10], &sb, \\
             (T*)a + i * n[9], &sa, &beta, to, &so); \\
    } \\
  }
PRODUCT(product_float, float)
PRODUCT(product_double, double)

// deeds: kind, function, number of arguments, the first of them, first of its numbers
int64_t replay(const int64_t* deeds, int64_t count, P* even, P* odd, const int64_t* stride, const int64_t* numbers,
                          const double* reals, int64_t from, int64_t to, const int64_t* even_flag, const int64_t* odd_flag,
                          int64_t limit) {
  P a[MOST] = {0};
  int64_t t = from;
  while (t < to) {
    P* base = t & 1 ? odd : even;
    for (int64_t i = 0; i < count; i++) {
      const int64_t* d = deeds + 5 * i;
      for (int64_t j = 0; j < d[2]; j++) {
        P p = base[d[3] + j];
        a[j] = p ? p + t * stride[d[3] + j] : p;
      }
      const int64_t* n = numbers + d[4];
      if (d[0] == 0) launch((void*)d[1], d[2], a);
      else if (d[0] == 1) memcpy(a[0], a[1], n[0]);
      else if (d[0] == 2) product_float((void*)d[1], n, reals + n[13], a[0], a[1], a[2], a[3]);
      else product_double((void*)d[1], n, reals + n[13], a[0], a[1], a[2], a[3]);
    }
    t++;
    if (even_flag) {
      int64_t value = *(t & 1 ? even_flag : odd_flag);  // of the step that was just made
      if (value < 0 || value > limit) break;
    }
  }
  return t;
}
"""


@functools.cache
def _loop() -> Any:
    """The C function."""

    def call(n: int) -> str:
        kinds, values = ", ".join(["P"] * n), ", ".join(f"a[{i}]" for i in range(n))
        return f"    case {n // 8}: ((void (*)({kinds}))f)({values}); break;"

    cases = "\n".join(call(n) for n in range(8, _MOST + 1, 8))
    found = library(_SOURCE.replace("CASES", cases).replace("MOST", str(_MOST)))
    if found is None:
        raise ReplayError("there is no C compiler that works, or GIBBSIAN_NATIVE=0 forbids it")
    function = found.replay
    function.restype = ctypes.c_int64
    return function


class Place(NamedTuple):
    """Where an argument lies in an even and in an odd step, and how far it goes on from step to step."""

    even: int
    odd: int
    stride: int = 0


class _Memory:
    """Which memory belongs to the state, to the inputs of the step, or stays."""

    def __init__(self, before: list[Tensor], after: list[Tensor], blocks: list[Tensor]) -> None:
        self.swapped: dict[int, Place] = {}  # by the beginning of the storage
        self.copied: list[tuple[Tensor, Tensor]] = []
        self.inputs = {
            b.data_ptr(): Place(b.data_ptr(), b.data_ptr(), b.stride(0) * b.element_size()) for b in blocks if b.numel()
        }
        olds = {storage_start(old) for old in before}
        for old, new in zip(before, after, strict=True):
            if old.data_ptr() != new.data_ptr():  # else it stays what it is
                self._pair(old, new, olds)

    def _pair(self, old: Tensor, new: Tensor, olds: set[int]) -> None:
        """Let the two change places after every step."""
        a, b = old.untyped_storage(), new.untyped_storage()
        if b.data_ptr() in olds:
            raise ReplayError("the state exchanges its tensors")
        own = a.nbytes() == b.nbytes() and old.stride() == new.stride() and new.storage_offset() == 0
        if own and b.data_ptr() not in self.swapped:
            self.swapped[a.data_ptr()] = Place(a.data_ptr(), b.data_ptr())
            self.swapped[b.data_ptr()] = Place(b.data_ptr(), a.data_ptr())
        else:  # a part of something, or something twice: copied back into its place
            self.copied.append((old, new))

    def last(self, before: list[Tensor], after: list[Tensor], done: int) -> list[Tensor]:
        """The state after so many steps."""
        back = {id(old) for old, _ in self.copied}
        return [old if done % 2 == 0 or id(old) in back else new for old, new in zip(before, after, strict=True)]

    def place(self, t: Tensor | int | None) -> Place:
        """Where a tensor begins; whole numbers are passed as addresses are."""
        if t is None:
            return Place(0, 0)
        if isinstance(t, int):
            return Place(t, t)
        at = t.data_ptr()
        if at in self.inputs:
            return self.inputs[at]
        start = storage_start(t)
        found = self.swapped.get(start)
        if found is None:
            return Place(at, at)
        return Place(found.even + at - start, found.odd + at - start)


class _Program:
    """The deeds of a step as the C loop reads them."""

    def __init__(self, memory: _Memory, deeds: list[Deed]) -> None:
        self.memory = memory
        self.deeds: list[tuple[int, ...]] = []
        self.places: list[Place] = []
        self.numbers: list[int] = []
        self.reals: list[float] = []
        for deed in deeds:
            self.add(deed)

    def carry_back(self) -> None:
        """Copy back what cannot change places, after this step and every further one."""
        for old, new in self.memory.copied:
            self.copy(self.memory.place(old), new)
            old.copy_(new)

    def add(self, deed: Deed) -> None:
        """One more deed."""
        if isinstance(deed, Launch):
            self._add(0, deed.address, [self.memory.place(t) for t in deed.arguments], [])
            return
        self._add_product(*deed)

    def _add_product(self, a: Tensor, b: Tensor, out: Tensor, added: Tensor | None, alpha: float) -> None:
        if a.dtype not in {torch.float32, torch.float64}:
            raise ReplayError(f"it multiplies matrices of {a.dtype}")
        (ta, sa), (tb, sb), (to, so) = _stored(a), _stored(b), _stored(out)
        batch, steps = (a.shape[0], [t.stride(0) for t in (a, b, out)]) if a.dim() == 3 else (1, [0, 0, 0])
        row = 0
        if added is not None:
            added = added.expand(out.shape)
            row, to = added.stride(-2), to or added.stride(-1) != 1
        if to:
            raise ReplayError("it writes a product in columns")
        numbers = [*out.shape[-2:], a.shape[-1], ta, tb, sa, sb, so, batch, *steps, row, len(self.reals)]
        self.reals.append(alpha)
        places = [self.memory.place(t) for t in (a, b, out, added)]
        self._add(2 if a.dtype == torch.float32 else 3, gemm_address(a.dtype), places, numbers)

    def copy(self, to: Place, source: Tensor) -> None:
        """A copy of a tensor, after the deeds of each step."""
        if not source.is_contiguous():
            raise ReplayError("a result is not contiguous")
        self._add(1, 0, [to, self.memory.place(source)], [source.numel() * source.element_size()])

    def keep(self, t: Tensor, steps: int) -> Tensor:
        """What every step writes there, the first has already written: a block with an axis of steps."""
        block = t.new_empty(steps, *t.shape)
        block[0] = t
        self.copy(Place(block.data_ptr(), block.data_ptr(), t.numel() * t.element_size()), t)
        return block

    def _add(self, kind: int, address: int, places: list[Place], numbers: list[int]) -> None:
        if len(places) > _MOST:
            raise ReplayError(f"a kernel has {len(places)} arguments, more than {_MOST}")
        self.deeds.append((kind, address, len(places), len(self.places), len(self.numbers)))
        self.places += places
        self.numbers += numbers

    def run(self, steps: int, flag: Place | None, limit: int) -> int:
        """Steps 1, 2, ... up to `steps`, or until the flag is negative or beyond the limit: how many have been made."""
        deeds, numbers = (np.array(v, dtype=np.int64) for v in (self.deeds, self.numbers or [0]))
        even, odd, stride = np.array(self.places, dtype=np.int64).reshape(-1, 3).T.copy()
        reals = np.array(self.reals or [0.0])
        pointers = [v.ctypes.data_as(ctypes.c_void_p) for v in (deeds, even, odd, stride, numbers, reals)]
        flags = [ctypes.c_void_p(0 if flag is None else value) for value in (flag or Place(0, 0))[:2]]
        whole, done = ctypes.c_int64, 1
        while done < steps:
            to = min(steps, done + _AT_ONCE)
            got = _loop()(pointers[0], whole(len(deeds)), *pointers[1:], whole(done), whole(to), *flags, whole(limit))
            done = int(got)
            if done < to:
                break
        return done


def _stored(t: Tensor) -> tuple[int, int]:
    """Whether a matrix lies in columns, and the distance of its rows (columns)."""
    rows, columns = t.stride()[-2:]
    if columns == 1 and (rows >= t.shape[-1] or t.shape[-2] == 1):
        return 0, max(rows, t.shape[-1])
    if rows == 1 and (columns >= t.shape[-2] or t.shape[-1] == 1):
        return 1, max(columns, t.shape[-2])
    raise ReplayError("it multiplies matrices that are neither in rows nor in columns")


def replay(
    recorder: Recorder | Player,
    step: Callable[..., Any],
    things: tuple[Any, ...],
    state: Any,
    inputs: Any,
    steps: int,
    *,
    limit: int | None = None,
) -> tuple[Any, Any, int]:
    """Many compiled steps: the state after them, what each of them gave (with a leading axis), and how many were made.

    Args:
        recorder: one for every compiled step, or a player of its tape, who needs no step.
        step: `(*things, state, inputs) -> (state, outputs)`, compiled, and called before with things like these.
        things: what it reads, and may write into, where it lives.
        state: nested tuples of tensors.
        inputs: the same for what every step has of its own, with a leading axis of steps.
        steps: how many.
        limit: stop before, when the last tensor of the state is negative or greater.
    """
    state, first = fixed_copy(state), mapped(lambda t: t[0], inputs)
    (end, outputs), deeds = recorder.made(step, things, state, first)
    before, after, given = tensors_of(state), tensors_of(end), tensors_of(outputs)
    memory = _Memory(before, after, tensors_of(inputs))
    program = _Program(memory, deeds)
    kept = [program.keep(t, steps) for t in given]
    program.carry_back()
    done = 1
    if limit is None:
        done = program.run(steps, None, 0)
    elif 0 <= int(after[-1]) <= limit:
        done = program.run(steps, memory.place(after[-1]), limit)
    return _filled(end, memory.last(before, after, done)), _filled(outputs, kept), done


def _filled(tree: Any, tensors: list[Tensor]) -> Any:
    """The tree with other tensors in place of its own."""
    given = iter(tensors)
    return mapped(lambda t: next(given) if isinstance(t, Tensor) else t, tree)
