// The truth about a law of the line or the plane, by quadrature on a grid of midpoints.

/** Energies, density, log Z, marginals and moments of exp(-E) over its view, on n × n cells. */
export function tabulate(law, n = 160, view = law.view) {
  const [left, right, bottom, top] = view, dx = (right - left) / n, dy = (top - bottom) / n;
  const x = new Float64Array(2), g = new Float64Array(2), energy = new Float64Array(n * n);
  let low = Infinity;
  for (let r = 0; r < n; r++) {
    for (let c = 0; c < n; c++) {
      x[0] = left + (c + 0.5) * dx;
      x[1] = bottom + (r + 0.5) * dy;
      const e = law.evaluate(x, g);
      energy[r * n + c] = e;
      if (e < low) low = e;
    }
  }
  const density = new Float64Array(n * n), marginals = [new Float64Array(n), new Float64Array(n)];
  let sum = 0, edge = 0;
  for (let i = 0; i < n * n; i++) sum += density[i] = energy[i] === energy[i] ? Math.exp(low - energy[i]) : 0;
  const mean = [0, 0], second = [0, 0];
  let meanEnergy = 0;
  for (let r = 0; r < n; r++) {
    for (let c = 0; c < n; c++) {
      const i = r * n + c, p = density[i] / sum, at = [left + (c + 0.5) * dx, bottom + (r + 0.5) * dy];
      if (p > 0) meanEnergy += p * energy[i];
      marginals[0][c] += p / dx;
      marginals[1][r] += p / dy;
      for (let j = 0; j < 2; j++) {
        mean[j] += p * at[j];
        second[j] += p * at[j] * at[j];
      }
      if (r === 0 || c === 0 || r === n - 1 || c === n - 1) edge += p;
      density[i] = p / (dx * dy);
    }
  }
  const variance = second.map((s, j) => s - mean[j] * mean[j]);
  return { n, view, energy, density, marginals, mean, variance, meanEnergy, edge, lowest: low, logZ: Math.log(sum * dx * dy) - low };
}

/** `count` draws from a table: a cell by its mass, a place in the cell uniformly. */
export function drawFrom(table, count, rng) {
  const { n, view, density } = table, cumulative = new Float64Array(n * n);
  let sum = 0;
  for (let i = 0; i < n * n; i++) cumulative[i] = sum += density[i];
  const out = new Float64Array(2 * count);
  for (let k = 0; k < count; k++) {
    const u = rng.uniform() * sum;
    let low = 0, high = n * n - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (cumulative[middle] < u) low = middle + 1;
      else high = middle;
    }
    out[2 * k] = view[0] + (((low % n) + rng.uniform()) * (view[1] - view[0])) / n;
    out[2 * k + 1] = view[2] + ((Math.floor(low / n) + rng.uniform()) * (view[3] - view[2])) / n;
  }
  return out;
}

/** Energies, density, log Z and moments of a law of the line on n cells of [left, right]. */
export function tabulateLine(law, left, right, n = 400) {
  const dx = (right - left) / n, x = new Float64Array(1), g = new Float64Array(1);
  const at = new Float64Array(n), energy = new Float64Array(n), density = new Float64Array(n);
  let low = Infinity, sum = 0;
  for (let i = 0; i < n; i++) {
    at[i] = x[0] = left + (i + 0.5) * dx;
    energy[i] = law.evaluate(x, g);
    if (energy[i] < low) low = energy[i];
  }
  for (let i = 0; i < n; i++) sum += density[i] = Math.exp(low - energy[i]);
  for (let i = 0; i < n; i++) density[i] /= sum * dx;
  return { n, at, dx, energy, density, logZ: Math.log(sum * dx) - low };
}
