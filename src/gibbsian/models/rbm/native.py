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

from gibbsian.fast.coins import SOURCE, NativeCoins
from gibbsian.fast.native import library
from gibbsian.fast.recorded import gemm_address

_SOURCE = """
#include <math.h>
#include <string.h>

typedef void (*Gemm)(const char*, const char*, const int*, const int*, const int*, const float*, const float*, const int*,
                     const float*, const int*, const float*, float*, const int*);

static float log_of_product(const float *p, int n) {  /* all in [1, 2^120] */
  double whole = 1, sum = 0;
  for (int j = 0; j < n; j++) {
    whole *= p[j];
    if (whole > 0x1p900 || j == n - 1) { sum += log(whole); whole = 1; }
  }
  return sum;
}

/* p = sigma(a + bias) in place; added to the sums over rows of p and, where softplus is wanted, of max(a, 0) and log(1 + e) */
static float logistic(float *a, const float *bias, int rows, int n, float *sums, float *room) {
  float *products = room, *positive = room + n, softplus = 0;
  for (int j = 0; j < n; j++) { products[j] = 1; positive[j] = 0; }
  for (int i = 0; i < rows; i++) {
    float *p = a + (size_t)i * n;
    for (int j = 0; j < n; j++) {
      const float x = p[j] + bias[j];
      float t = -fabsf(x);
      t = t < -87.0f ? -87.0f : t;
      const float k = (t * 1.44269504f + 12582912.0f) - 12582912.0f;  /* rounded */
      const float r = (t - k * 0.693359375f) + k * 2.12194440e-4f;
      float e = 1.9875691500e-4f;
      e = e * r + 1.3981999507e-3f;
      e = e * r + 8.3334519073e-3f;
      e = e * r + 4.1665795894e-2f;
      e = e * r + 1.6666665459e-1f;
      e = e * r + 5.0000001201e-1f;
      e = e * (r * r) + r + 1.0f;
      union { int32_t i; float f; } power = {.i = ((int32_t)k + 127) << 23};
      e *= power.f;
      const float d = 1.0f + e, s = (x >= 0.0f ? 1.0f : e) / d;
      p[j] = s;
      sums[j] += s;
      products[j] *= d;
      positive[j] += x > 0.0f ? x : 0.0f;
    }
    if (i % 120 == 119) {
      softplus += log_of_product(products, n);
      for (int j = 0; j < n; j++) products[j] = 1;
    }
  }
  softplus += log_of_product(products, n);
  double rest = 0;
  for (int j = 0; j < n; j++) rest += positive[j];
  return softplus + rest;
}

static void add_rows(const float *x, int rows, int n, float *sums) {
  for (int i = 0; i < rows; i++)
    for (int j = 0; j < n; j++) sums[j] += x[(size_t)i * n + j];
}

/* room: h (m, H), and with `few` rows both factors of the gradient, (n + m, V) and (n + m, H); then twice the wider layer */
float contrast(Gemm gemm, const float *W, const float *b, const float *c, const float *data, const float *chains, int n, int m,
               int V, int H, int sweeps, uint64_t **states, const float *middles, float *p, float *q, float *v, float *room,
               float *g_W, float *g_b, float *g_c, int few) {
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
  return value;
}
"""

_LARGE = 1 << 20  # units in all rows
_FEW = 64  # rows: the gradient is then written in one product, since passes over it are what costs


@functools.cache
def _function() -> Any:
    """The C function and the product that it calls, or None."""
    found = library(SOURCE + _SOURCE)
    if found is None:
        return None
    p, i = ctypes.c_void_p, ctypes.c_int
    found.contrast.argtypes = [*[p] * 6, *[i] * 5, *[p] * 9, i]
    found.contrast.restype = ctypes.c_float
    return found.contrast, gemm_address(torch.float32)


def serves(weight: Tensor, bias: Tensor, batch: Tensor, rows: int) -> bool:
    """Whether the native form is there for these tensors, and the faster one for so many rows of samples: its passes are
    those of one thread."""
    single = weight.dtype == bias.dtype == batch.dtype == torch.float32 and weight.device.type == "cpu"
    small = torch.get_num_threads() <= 2 or rows * sum(weight.shape) <= _LARGE
    return single and small and weight.is_contiguous() and _function() is not None


def native_contrast(
    weight: Tensor, b: Tensor, c: Tensor, batch: Tensor, chains: Tensor | None, noise: Sequence[NativeCoins]
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """F(batch).mean() - F(samples).mean(), the samples, and the gradients in W, b and c."""
    function, gemm = _function()
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
    value = function(
        gemm, weight.data_ptr(), b.data_ptr(), c.data_ptr(), batch.data_ptr(), None if start is None else start.data_ptr(),
        n, m, visible, hidden, len(noise), states, middles, p.data_ptr(), q.data_ptr(), v.data_ptr(), room.data_ptr(),
        g_weight.data_ptr(), g_b.data_ptr(), g_c.data_ptr(), few,
    )  # fmt: skip
    return torch.tensor(value), v, [g_weight, g_b, g_c]
