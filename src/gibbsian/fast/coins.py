"""Coins of given probabilities: u < p for uniforms u in order, which a native function never writes down."""

import ctypes
import functools
from typing import Any

import torch
from torch import Tensor

from gibbsian.fast.native import library
from gibbsian.random import QuickSeed, quick_uniforms

__all__ = ["SOURCE", "Coins", "NativeCoins", "coins"]

# The uniforms of `quick_uniforms`: numpy's SFC64, seeded as numpy does it (SeedSequence, O'Neill's seed_seq), gives every
# number 16 bits, in the order of its bytes.
SOURCE = """
#include <stddef.h>
#include <stdint.h>

static uint32_t hashed(uint32_t x, uint32_t *constant, uint32_t factor) {
  x ^= *constant;
  *constant *= factor;
  x *= *constant;
  return x ^ (x >> 16);
}

static inline uint64_t next(uint64_t *s) {
  const uint64_t t = s[0] + s[1] + s[3]++;
  s[0] = s[1] ^ (s[1] >> 11);
  s[1] = s[2] + (s[2] << 3);
  s[2] = ((s[2] << 24) | (s[2] >> 40)) + t;
  return t;
}

/* state: that of SFC64, a word that was begun, how many of its four numbers are used */
void seed(uint64_t value, uint64_t *state) {
  uint32_t pool[4] = {(uint32_t)value, (uint32_t)(value >> 32), 0, 0}, a = 0x43b0d7e5u, b = 0x8b51f9ddu, words[6];
  for (int i = 0; i < 4; i++) pool[i] = hashed(pool[i], &a, 0x931e8875u);
  for (int from = 0; from < 4; from++)
    for (int to = 0; to < 4; to++)
      if (from != to) {
        const uint32_t x = 0xca01f9ddu * pool[to] - 0x4973f715u * hashed(pool[from], &a, 0x931e8875u);
        pool[to] = x ^ (x >> 16);
      }
  for (int i = 0; i < 6; i++) words[i] = hashed(pool[i % 4], &b, 0x58f38dedu);
  for (int i = 0; i < 3; i++) state[i] = words[2 * i] | (uint64_t)words[2 * i + 1] << 32;
  state[3] = 1;
  for (int i = 0; i < 12; i++) next(state);
  state[5] = 4;
}

void flip(const float *p, float *out, size_t n, uint64_t *state, float middle) {
  uint64_t s[4] = {state[0], state[1], state[2], state[3]};
  union { uint64_t words[256]; int16_t numbers[1024]; } raw;
  size_t done = 0;
  while (done < n) {
    size_t m = n - done < 1020 ? n - done : 1020, begun = state[5] < 4 ? state[5] : 4, words = 0;
    if (begun < 4) raw.words[words++] = state[4];
    const size_t first = begun < 4 ? begun : 0, all = (first + m + 3) / 4;
    while (words < all) raw.words[words++] = next(s);
    const int16_t *r = raw.numbers + first;
    for (size_t i = 0; i < m; i++) out[done + i] = middle + r[i] * 0x1p-16f < p[done + i] ? 1.0f : 0.0f;
    state[4] = raw.words[all - 1];
    state[5] = (first + m) % 4 ? (first + m) % 4 : 4;
    done += m;
  }
  for (int i = 0; i < 4; i++) state[i] = s[i];
}
"""


@functools.cache
def _native() -> Any:
    """The C functions, or None."""
    found = library(SOURCE)
    if found is not None:
        address = ctypes.c_void_p
        found.seed.argtypes, found.seed.restype = [ctypes.c_uint64, address], None
        found.flip.argtypes, found.flip.restype = [address, address, ctypes.c_size_t, address, ctypes.c_float], None
    return found


class Coins:
    """At most `count` coins, flipped one after the other."""

    def __init__(self, count: int, generator: torch.Generator, *, dtype: torch.dtype, device: torch.device) -> None:
        self.numbers, self.at = quick_uniforms(count, generator, dtype=dtype, device=device), 0

    def uniforms(self, like: Tensor) -> Tensor:
        """The next numbers themselves, as many as there are in a tensor."""
        u = self.numbers[self.at : self.at + like.numel()].view_as(like)
        self.at += like.numel()
        return u

    def flip(self, p: Tensor, *, over: bool = False) -> Tensor:
        """1 with probability p, else 0; written over p where that is allowed."""
        u = self.uniforms(p)
        return torch.lt(u, p, out=p if over else u)


class NativeCoins(Coins):
    """The same on the CPU in single precision, without the numbers: a pass over memory less, and a fifth of the time."""

    def __init__(self, generator: torch.Generator) -> None:
        value, self.middle = QuickSeed.of(generator)
        self.state, self.functions = (ctypes.c_uint64 * 6)(), _native()
        self.functions.seed(value, self.state)

    def uniforms(self, like: Tensor) -> Tensor:
        raise NotImplementedError("numbers that are to be seen come from Coins")

    def flip(self, p: Tensor, *, over: bool = False) -> Tensor:
        p = p.contiguous()
        out = p if over else torch.empty_like(p)
        self.functions.flip(p.data_ptr(), out.data_ptr(), p.numel(), self.state, self.middle)
        return out


def coins(
    count: int, generator: torch.Generator, *, dtype: torch.dtype, device: torch.device, seen: bool = False
) -> Coins:
    """Coins in the fastest form; `seen`: their numbers are asked for too. Both forms give the same.

    >>> g = torch.Generator().manual_seed(0)
    >>> coins(4, g, dtype=torch.float32, device=torch.device("cpu")).flip(torch.tensor([0.0, 1.0, 0.0, 1.0]))
    tensor([0., 1., 0., 1.])
    """
    if dtype == torch.float32 and device.type == "cpu" and not seen and _native() is not None:
        return NativeCoins(generator)
    return Coins(count, generator, dtype=dtype, device=device)
