"""σ(bias + x W) as fast as the hardware does it: the step of every machine of coins."""

import ctypes
import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from gibbsian.fast.native import library

# product, bias and logistic function in one pass of oneDNN: what torch.compile emits for them on a CPU
_FUSED = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None

_LARGE = 2_000_000  # multiplications


class Logistic(NamedTuple):
    """Probabilities of a layer of coins given another layer x.

    >>> layer = Logistic.of(torch.zeros(2), torch.eye(2))
    >>> layer.mean(torch.zeros(1, 2))
    tensor([[0.5000, 0.5000]])
    """

    bias: Tensor
    weight: Tensor  # (inputs, outputs), in half precision where products are to be
    fused: bool = False

    @classmethod
    def of(cls, bias: Tensor, weight: Tensor) -> "Logistic":
        """The fastest form for these tensors."""
        single = weight.dtype == bias.dtype == torch.float32 and weight.device.type == "cpu"
        return cls(bias, weight, _FUSED is not None and single)

    def logits(self, x: Tensor) -> Tensor:
        """bias + x W."""
        if self.weight.dtype == self.bias.dtype:
            return torch.addmm(self.bias, x, self.weight)
        return torch.mm(x.to(self.weight.dtype), self.weight).to(self.bias.dtype).add_(self.bias)

    def _pays(self, x: Tensor) -> bool:
        """Whether one pass is faster for these rows: calling it takes longer, 20 µs."""
        return self.fused and x.numel() * self.weight.shape[1] >= _LARGE

    def mean(self, x: Tensor) -> Tensor:
        """σ(bias + x W)."""
        if self._pays(x):
            return _FUSED(x, self.weight.T, self.bias, "sigmoid", [], "")  # type: ignore[misc]
        return self.logits(x).sigmoid_()

    def mean_and_logits(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """The mean, and the logits where they are at hand."""
        if self._pays(x):
            return self.mean(x), None
        a = self.logits(x)
        return torch.sigmoid(a), a


# With e = exp(-|a|), softplus(a) = max(a, 0) + log(1 + e), the second part from the product of 1 + e <= 2 over 120 rows.
SOURCE = """
#include <math.h>
#include <stddef.h>
#include <stdint.h>

/* e^t for t in [-87, 88], in steps that a compiler takes for many numbers at once */
static inline float exponential(float t) {
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
  return e * power.f;
}

static double log_of_product(const float *p, int n) {  /* all in [1, 2^120] */
  double whole = 1, sum = 0;
  for (int j = 0; j < n; j++) {
    whole *= p[j];
    if (whole > 0x1p900 || j == n - 1) { sum += log(whole); whole = 1; }
  }
  return sum;
}

/* p = sigma(a + bias) in place, added to sums over rows; returns the sum of softplus(a + bias); room: twice a row */
double logistic(float *a, const float *bias, int rows, int n, float *sums, float *room) {
  float *products = room, *positive = room + n;
  double softplus = 0;
  for (int j = 0; j < n; j++) { products[j] = 1; positive[j] = 0; }
  for (int i = 0; i < rows; i++) {
    float *p = a + (size_t)i * n;
    for (int j = 0; j < n; j++) {
      const float x = p[j] + bias[j];
      const float t = -fabsf(x), e = exponential(t < -87.0f ? -87.0f : t);
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
"""


@functools.cache
def _native() -> Any:
    """The C function, or None."""
    found = library(SOURCE)
    if found is None:
        return None
    address = ctypes.c_void_p
    found.logistic.argtypes, found.logistic.restype = (
        [*[address] * 2, *[ctypes.c_int] * 2, *[address] * 2],
        ctypes.c_double,
    )
    return found.logistic


def mean_and_softplus(logits: Tensor) -> tuple[Tensor, Tensor | float]:
    """σ(a), written over the logits a `(rows, units)` where that is faster, and Σ softplus(a).

    >>> mean, total = mean_and_softplus(torch.zeros(1, 2))
    >>> mean, round(float(total), 4)
    (tensor([[0.5000, 0.5000]]), 1.3863)
    """
    fits = logits.dtype == torch.float32 and logits.device.type == "cpu" and logits.is_contiguous()
    if not fits or _native() is None:
        return torch.sigmoid(logits), F.softplus(logits).sum()
    rows, units = logits.shape
    room = torch.zeros(4 * units)  # sums over rows, twice a row of room, and a bias
    sums, spare, bias = (room.data_ptr() + 4 * units * k for k in (0, 1, 3))
    total = _native()(logits.data_ptr(), bias, rows, units, sums, spare)
    return logits, total
