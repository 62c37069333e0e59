// Small functions that the other modules share.

export const sigmoid = (u) => (u >= 0 ? 1 / (1 + Math.exp(-u)) : 1 - 1 / (1 + Math.exp(u)));

export const softplus = (u) => (u > 0 ? u + Math.log1p(Math.exp(-u)) : Math.log1p(Math.exp(u)));

export function logAddExp(a, b) {
  const top = Math.max(a, b);
  if (top === -Infinity) return top;
  return top + Math.log1p(Math.exp(Math.min(a, b) - top));
}

export function logSumExp(values) {
  let top = -Infinity;
  for (let i = 0; i < values.length; i++) if (values[i] > top) top = values[i];
  if (top === -Infinity) return top;
  let sum = 0;
  for (let i = 0; i < values.length; i++) sum += Math.exp(values[i] - top);
  return top + Math.log(sum);
}

export const clamp = (x, low, high) => Math.min(high, Math.max(low, x));

/** n numbers from a to b, in equal steps. */
export function linspace(a, b, n) {
  return Float64Array.from({ length: n }, (_, i) => (n > 1 ? a + ((b - a) * i) / (n - 1) : a));
}

/** n numbers from a to b, each the same multiple of the one before. */
export function geometric(a, b, n) {
  return Float64Array.from({ length: n }, (_, i) => (n > 1 ? a * (b / a) ** (i / (n - 1)) : a));
}

export function mean(values) {
  let sum = 0;
  for (let i = 0; i < values.length; i++) sum += values[i];
  return sum / values.length;
}

/** Unbiased variance. */
export function variance(values) {
  const m = mean(values);
  let sum = 0;
  for (let i = 0; i < values.length; i++) sum += (values[i] - m) ** 2;
  return sum / (values.length - 1);
}
