"""Pseudo-likelihood, ratio matching and minimum probability flow of Boltzmann machines on the CPU as one C function around
the two products of torch's BLAS: the twin of `objectives.neighbors`.

A hundred rows of 64 units are two products of 10 µs; what PyTorch takes for two dozen operations around them is more
than that, cold caches between them most of it.
"""

import ctypes
import functools
from typing import Any

import torch
from torch import Tensor

from gibbsian.fast import logistic
from gibbsian.fast.native import library
from gibbsian.fast.recorded import gemm_address

FUNCTIONS = ("pseudo-likelihood", "ratio matching", "probability flow")

_SOURCE = """
typedef void (*Gemm)(const char*, const char*, const int*, const int*, const int*, const float*, const float*, const int*,
                     const float*, const int*, const float*, float*, const int*);
#define TILE 32

/* out = a + a', without its diagonal */
static void symmetric(const float *restrict a, float *restrict out, int n) {
  for (int i0 = 0; i0 < n; i0 += TILE)
    for (int j0 = 0; j0 < n; j0 += TILE)
      for (int i = i0; i < n && i < i0 + TILE; i++)
        for (int j = j0; j < n && j < j0 + TILE; j++) out[(size_t)i * n + j] = a[(size_t)i * n + j] + a[(size_t)j * n + i];
  for (int i = 0; i < n; i++) out[(size_t)i * n + i] = 0;
}

/* u becomes the change x' - x of every unit (that of -2x or 1 - 2x) times its field u + b */
static void gaps(float *restrict u, const float *restrict b, const float *restrict x, int rows, int n, int spin) {
  for (int i = 0; i < rows; i++)
    for (int j = 0; j < n; j++) {
      const size_t at = (size_t)i * n + j;
      u[at] = (spin ? -2.0f * x[at] : 1.0f - 2.0f * x[at]) * (u[at] + b[j]);
    }
}

/* e^(a/2) in place; returns the sum */
static double flow(float *restrict a, int rows, int n) {
  double sum = 0;
  for (int i = 0; i < rows; i++) {
    float part = 0;
    for (int j = 0; j < n; j++) {
      const float x = 0.5f * a[(size_t)i * n + j], t = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;
      const float e = x > 88.0f ? INFINITY : exponential(t);
      a[(size_t)i * n + j] = e;
      part += e;
    }
    sum += part;
  }
  return sum;
}

/* the value of a principle and its gradients; room: (n, n), (rows, n), 4 n */
void neighbors(Gemm gemm, const float *W, const float *b, const float *x, int rows, int n, int spin, int principle,
               float *room, float *g_W, float *g_b, float *to) {
  const float half = 0.5f, zero = 0;
  float *square = room, *u = square + (size_t)n * n, *spare = u + (size_t)rows * n, *nothing = spare + 3 * (size_t)n;
  const size_t all = (size_t)rows * n;
  double value;
  symmetric(W, square, n);
  gemm("N", "N", &n, &rows, &n, &half, square, &n, x, &n, &zero, u, &n);
  gaps(u, b, x, rows, n, spin);
  memset(spare, 0, 4 * n * sizeof(float));
  if (principle == 2) {
    value = flow(u, rows, n);
    for (size_t i = 0; i < all; i++) u[i] *= 0.5f;
  } else {
    value = logistic(u, nothing, rows, n, spare, spare + n);
    if (principle == 1) {
      value = 0;
      for (int i = 0; i < rows; i++) {
        float part = 0, *p = u + (size_t)i * n;
        for (int j = 0; j < n; j++) {
          const float s = p[j] * p[j];
          part += s;
          p[j] = 2 * (s - s * p[j]);
        }
        value += part;
      }
    }
  }
  memset(g_b, 0, n * sizeof(float));
  for (int i = 0; i < rows; i++)
    for (int j = 0; j < n; j++) {
      const size_t at = (size_t)i * n + j;
      u[at] *= (spin ? -2.0f * x[at] : 1.0f - 2.0f * x[at]) / rows;
      g_b[j] += u[at];
    }
  gemm("N", "T", &n, &n, &rows, &half, x, &n, u, &n, &zero, square, &n);
  symmetric(square, g_W, n);
  *to = value / rows;
}
"""

_LARGE = 1 << 20  # units in all rows


@functools.cache
def _function() -> Any:
    """The C function and the product that it calls, or None."""
    found = library(logistic.SOURCE + "#include <string.h>\n" + _SOURCE)
    if found is None:
        return None
    p, i = ctypes.c_void_p, ctypes.c_int
    found.neighbors.argtypes, found.neighbors.restype = [*[p] * 4, *[i] * 4, *[p] * 4], None
    return found.neighbors, gemm_address(torch.float32)


def serves(weight: Tensor, bias: Tensor, x: Tensor) -> bool:
    """Whether the native form is there for these tensors, and the faster one: its passes are those of one thread."""
    fits = all(t.dtype is torch.float32 and t.is_cpu and t.is_contiguous() for t in (weight, bias, x))
    fits = fits and x.dim() == 2 and x.shape[1] == len(weight) and len(x) > 0  # else PyTorch says what is wrong
    return fits and (torch.get_num_threads() <= 2 or x.numel() <= _LARGE) and _function() is not None


def native_neighbors(
    weight: Tensor, bias: Tensor, x: Tensor, spin: bool, function: str
) -> tuple[Tensor, Tensor, Tensor]:
    """The mean over rows of Σᵢ f(E(x) - E(x̄ᵢ)), and its gradients in W and b; `function` is one of `FUNCTIONS`."""
    call, gemm = _function()
    rows, n = x.shape
    value, g_weight, g_bias = x.new_empty(()), x.new_empty(n, n), x.new_empty(n)
    room = x.new_empty(n * (n + rows + 4))
    call(
        gemm, weight.data_ptr(), bias.data_ptr(), x.data_ptr(), rows, n, spin, FUNCTIONS.index(function),
        room.data_ptr(), g_weight.data_ptr(), g_bias.data_ptr(), value.data_ptr(),
    )  # fmt: skip
    return value, g_weight, g_bias
