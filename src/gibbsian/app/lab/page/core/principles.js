// Principles of learning for the energies of smallmodels.js: each writes the gradient of its loss into `out` (of the size of
// θ) and returns the loss. Points are flat arrays, `dim` numbers each.

/** E over data less E over samples: ∇ = ⟨∂E⟩_data - ⟨∂E⟩_samples. With chains from the data this is CD-k. */
export function contrast(model, data, samples, out) {
  out.fill(0);
  return push(model, data, 1, out) - push(model, samples, -1, out);
}

function push(model, points, sign, out) {
  const d = model.dim, n = points.length / d, x = new Float64Array(d), g = new Float64Array(d);
  let e = 0;
  for (let i = 0; i < n; i++) {
    for (let k = 0; k < d; k++) x[k] = points[i * d + k];
    e += model.evaluate(x, g) / n;
    model.energyGradient(x, sign / n, out);
  }
  return e;
}

/** Exact maximum likelihood: ⟨E⟩_data + log Z, the law summed over nodes with masses p (which add to one). */
export function likelihood(model, data, nodes, masses, logZ, out) {
  const d = model.dim, x = new Float64Array(d);
  out.fill(0);
  const e = push(model, data, 1, out);
  for (let i = 0; i < masses.length; i++) {
    if (masses[i] < 1e-12) continue;
    for (let k = 0; k < d; k++) x[k] = nodes[i * d + k];
    model.energyGradient(x, -masses[i], out);
  }
  return e + logZ;
}

/** Implicit score matching: ⟨½‖∇E‖² - ΔE⟩_data (Hyvärinen 2005). */
export function scoreMatching(model, data, out) {
  const d = model.dim, n = data.length / d, x = new Float64Array(d), g = new Float64Array(d);
  out.fill(0);
  let loss = 0;
  for (let i = 0; i < n; i++) {
    for (let k = 0; k < d; k++) x[k] = data[i * d + k];
    model.evaluate(x, g);
    for (let k = 0; k < d; k++) loss += (0.5 * g[k] * g[k]) / n;
    loss -= model.laplacian(x) / n;
    model.slopeGradient(x, g, 1 / n, out);
    model.laplacianGradient(x, -1 / n, out);
  }
  return loss;
}

/** Denoising score matching: ½⟨‖s(x + σz) + z/σ‖²⟩ (Vincent 2011), with the noise z given. */
export function denoising(model, data, noise, sigma, out) {
  const d = model.dim, n = data.length / d, x = new Float64Array(d), g = new Float64Array(d);
  out.fill(0);
  let loss = 0;
  for (let i = 0; i < n; i++) {
    for (let k = 0; k < d; k++) x[k] = data[i * d + k] + sigma * noise[i * d + k];
    model.evaluate(x, g);
    for (let k = 0; k < d; k++) {
      g[k] -= noise[i * d + k] / sigma;
      loss += (0.5 * g[k] * g[k]) / n;
    }
    model.slopeGradient(x, g, 1 / n, out);
  }
  return loss;
}

/** Adam (Kingma & Ba 2015). */
export class Adam {
  constructor(size) {
    this.m = new Float64Array(size);
    this.s = new Float64Array(size);
    this.t = 0;
  }

  step(theta, gradient, rate) {
    this.t++;
    const a = 1 - 0.9 ** this.t, b = 1 - 0.999 ** this.t;
    for (let i = 0; i < theta.length; i++) {
      this.m[i] += 0.1 * (gradient[i] - this.m[i]);
      this.s[i] += 0.001 * (gradient[i] * gradient[i] - this.s[i]);
      theta[i] -= (rate * (this.m[i] / a)) / (Math.sqrt(this.s[i] / b) + 1e-8);
    }
  }
}
