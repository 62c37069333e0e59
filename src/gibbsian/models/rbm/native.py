"""Contrastive divergence of Bernoulli RBMs on the CPU as one C function around the products of torch's BLAS: the twin of
`contrast.bernoulli_contrast`.

Between products every operation of PyTorch begins with cold caches, so that two dozen of them cost a sixth of an update of
784 × 500 units and 100 rows. Here bias, logistic function, coins, means over rows and the value of the loss are one pass over
each layer. With e = exp(-|a|) the value costs no logarithm: softplus(a) = max(a, 0) + log(1 + e), the second part from the
product of 1 + e ≤ 2 over up to 120 rows.
"""

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gibbsian.fast import coins, logistic
from gibbsian.fast.coins import NativeCoins
from gibbsian.fast.native import library
from gibbsian.fast.recorded import gemm_address

_SOURCE = """
#include <string.h>

typedef void (*Gemm)(const char*, const char*, const int*, const int*, const int*, const float*, const float*, const int*,
                     const float*, const int*, const float*, float*, const int*);

static void add_rows(const float *x, int rows, int n, float *sums) {
  for (int i = 0; i < rows; i++)
    for (int j = 0; j < n; j++) sums[j] += x[(size_t)i * n + j];
}

/* room: h (m, H), and with `few` rows both factors of the gradient, (n + m, V) and (n + m, H); then twice the wider layer */
void contrast(Gemm gemm, const float *W, const float *b, const float *c, const float *data, const float *chains, int n, int m,
               int V, int H, int sweeps, uint64_t **states, const float *middles, float *p, float *q, float *v, float *room,
               float *g_W, float *g_b, float *g_c, float *to, int few) {
  const float one = 1, zero = 0, down = -1.0f / n, up = 1.0f / m;
  float *h = room, *both = h + (size_t)m * H, *pair = both + (few ? (size_t)(n + m) * V : 0);
  float *wide = pair + (few ? (size_t)(n + m) * H : 0);
  memset(g_b, 0, V * sizeof(float));
  memset(g_c, 0, H * sizeof(float));
  gemm("N", "N", &H, &n, &V, &one, W, &H, data, &V, &zero, p, &H);
  const double before = logistic(p, c, n, H, g_c, wide);
  add_rows(data, n, V, g_b);
  if (!few) gemm("N", "T", &H, &V, &n, &down, p, &H, data, &V, &zero, g_W, &H);
  for (int j = 0; j < V; j++) g_b[j] *= down;
  for (int j = 0; j < H; j++) g_c[j] *= down * m;  /* so that sums over samples can be added */
  const float *from = p;
  double after = 0;
  float *sums = wide + 2 * (V > H ? V : H);
  if (chains) {
    gemm("N", "N", &H, &m, &V, &one, W, &H, chains, &V, &zero, q, &H);
    logistic(q, c, m, H, sums, wide);
    from = q;
  }
  for (int k = 0; k < sweeps; k++) {
    flip(from, h, (size_t)m * H, states[k], middles[k]);
    gemm("T", "N", &V, &m, &H, &one, W, &H, h, &H, &zero, v, &V);
    logistic(v, b, m, V, sums, wide);
    flip(v, v, (size_t)m * V, states[k], middles[k]);
    gemm("N", "N", &H, &m, &V, &one, W, &H, v, &V, &zero, q, &H);
    memset(sums, 0, H * sizeof(float));
    after = logistic(q, c, m, H, sums, wide);
    from = q;
  }
  for (int j = 0; j < H; j++) g_c[j] = (g_c[j] + sums[j]) * up;
  memset(sums, 0, V * sizeof(float));
  add_rows(v, m, V, sums);
  double value = after / m - before / n;
  for (int j = 0; j < V; j++) {
    g_b[j] += sums[j] * up;
    value += (double)g_b[j] * b[j];
  }
  if (few) {
    const int all = n + m;
    memcpy(both, data, (size_t)n * V * sizeof(float));
    memcpy(both + (size_t)n * V, v, (size_t)m * V * sizeof(float));
    for (size_t i = 0; i < (size_t)n * H; i++) pair[i] = p[i] * down;
    for (size_t i = 0; i < (size_t)m * H; i++) pair[(size_t)n * H + i] = q[i] * up;
    gemm("N", "T", &H, &V, &all, &one, pair, &H, both, &V, &zero, g_W, &H);
  } else {
    gemm("N", "T", &H, &V, &m, &up, q, &H, v, &V, &one, g_W, &H);
  }
  *to = value;
}
"""

_LARGE = 1 << 20  # units in all rows
_FEW = 64  # rows: the gradient is then written in one product, since passes over it are what costs


@functools.cache
def _function() -> Any:
    """The C function and the product that it calls, or None."""
    found = library(coins.SOURCE + logistic.SOURCE + _SOURCE)
    if found is None:
        return None
    p, i = ctypes.c_void_p, ctypes.c_int
    found.contrast.argtypes = [*[p] * 6, *[i] * 5, *[p] * 10, i]
    found.contrast.restype = None
    return found.contrast, gemm_address(torch.float32)


def serves(weight: Tensor, biases: Sequence[Tensor], rows: Sequence[Tensor]) -> bool:
    """Whether the native form is there for these tensors, and the faster one: its passes are those of one thread."""
    tensors = [weight, *biases, *rows]
    fits = all(t.dtype == torch.float32 and t.device.type == "cpu" for t in tensors) and weight.is_contiguous()
    fits = fits and all(t.shape[1:] == weight.shape[:1] and len(t) for t in rows)  # else PyTorch says what is wrong
    small = torch.get_num_threads() <= 2 or len(rows[-1]) * sum(weight.shape) <= _LARGE
    return fits and small and _function() is not None


def native_contrast(
    weight: Tensor, b: Tensor, c: Tensor, batch: Tensor, chains: Tensor | None, sweeps: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """F(batch).mean() - F(samples).mean(), the samples, and the gradients in W, b and c."""
    function, gemm = _function()
    noise = [NativeCoins(generator) for _ in range(sweeps)]
    batch, b, c = batch.contiguous(), b.contiguous(), c.contiguous()
    start = None if chains is None else chains.contiguous()
    n, m, (visible, hidden) = len(batch), len(batch if start is None else start), weight.shape
    few = n + m <= _FEW
    empty = batch.new_empty
    p, q, v, g_weight, g_b, g_c = (
        empty(n, hidden), empty(m, hidden), empty(m, visible), empty(visible, hidden), empty(visible), empty(hidden)
    )  # fmt: skip
    room = empty(m * hidden + few * (n + m) * (visible + hidden) + 3 * max(visible, hidden))
    states = (ctypes.c_void_p * len(noise))(*(ctypes.addressof(coin.state) for coin in noise))
    middles = (ctypes.c_float * len(noise))(*(coin.middle for coin in noise))
    value = empty(())
    function(
        gemm, weight.data_ptr(), b.data_ptr(), c.data_ptr(), batch.data_ptr(), None if start is None else start.data_ptr(),
        n, m, visible, hidden, len(noise), states, middles, p.data_ptr(), q.data_ptr(), v.data_ptr(), room.data_ptr(),
        g_weight.data_ptr(), g_b.data_ptr(), g_c.data_ptr(), value.data_ptr(), few,
    )  # fmt: skip
    return value, v, [g_weight, g_b, g_c]
