// Restricted Boltzmann machines of binary units: E(v, h) = -b·v - c·h - vᵀWh, W (visible, hidden), optionally with one label
// unit of K states that the hidden units see as well. Weights lie row by row: W[i * hidden + j].

import { logSumExp, sigmoid, softplus } from "./math.js";

export class RBM {
  constructor(visible, hidden) {
    this.visible = visible;
    this.hidden = hidden;
    this.weight = new Float64Array(visible * hidden);
    this.visibleBias = new Float64Array(visible);
    this.hiddenBias = new Float64Array(hidden);
    this.classes = 0;
    this.labelWeight = null; // (classes, hidden)
    this.labelBias = null;
  }

  /** Small random weights, and visible biases at the log-odds of the data. */
  start(data, rng, scale = 0.1) {
    const n = data.length / this.visible;
    for (let k = 0; k < this.weight.length; k++) this.weight[k] = scale * rng.normal();
    for (let i = 0; i < this.visible; i++) {
      let on = 0;
      for (let r = 0; r < n; r++) on += data[r * this.visible + i];
      const p = (on + 0.5) / (n + 1);
      this.visibleBias[i] = Math.log(p / (1 - p));
    }
    return this;
  }

  /** c + vW (+ U_y): the input of the hidden units of one row. */
  hiddenInput(v, offset, out, label = -1) {
    const { hidden, weight } = this;
    for (let j = 0; j < hidden; j++) out[j] = this.hiddenBias[j] + (label >= 0 ? this.labelWeight[label * hidden + j] : 0);
    for (let i = 0; i < this.visible; i++) {
      const x = v[offset + i];
      if (x !== 0) for (let j = 0, k = i * hidden; j < hidden; j++, k++) out[j] += x * weight[k];
    }
  }

  /** b + Wh. */
  visibleInput(h, out) {
    const { hidden, weight } = this;
    for (let i = 0; i < this.visible; i++) {
      let u = this.visibleBias[i];
      for (let j = 0, k = i * hidden; j < hidden; j++, k++) u += weight[k] * h[j];
      out[i] = u;
    }
  }

  /** F(v) = -b·v - Σ softplus(c + vW). */
  freeEnergy(v, offset = 0, scratch = new Float64Array(this.hidden)) {
    this.hiddenInput(v, offset, scratch);
    let f = 0;
    for (let i = 0; i < this.visible; i++) f -= this.visibleBias[i] * v[offset + i];
    for (let j = 0; j < this.hidden; j++) f -= softplus(scratch[j]);
    return f;
  }

  /** log p(y | v) up to a constant, for every label y. */
  labelLogits(v, offset = 0) {
    const input = new Float64Array(this.hidden), { hidden } = this;
    this.hiddenInput(v, offset, input);
    return Array.from({ length: this.classes }, (_, y) => {
      let sum = this.labelBias[y];
      for (let j = 0; j < hidden; j++) sum += softplus(input[j] + this.labelWeight[y * hidden + j]);
      return sum;
    });
  }

  /** log Z by a sum over all hidden states, in the order of a Gray code; ≤ 16 hidden units. With `out`, also E[v], E[h]
   * and E[vh] under the model. */
  exact(out = null) {
    const { visible, hidden, weight } = this, states = 1 << hidden;
    const input = Float64Array.from(this.visibleBias), log = new Float64Array(states);
    let own = 0, gray = 0;
    const flip = (n) => { // to the next state of the Gray code: one hidden unit changes
      const j = 31 - Math.clz32(n & -n), sign = gray & (1 << j) ? -1 : 1;
      gray ^= 1 << j;
      own += sign * this.hiddenBias[j];
      for (let i = 0; i < visible; i++) input[i] += sign * weight[i * hidden + j];
    };
    for (let n = 0; n < states; n++) {
      if (n) flip(n);
      let sum = own;
      for (let i = 0; i < visible; i++) sum += softplus(input[i]);
      log[n] = sum;
    }
    const logZ = logSumExp(log);
    if (!out) return logZ;
    out.visible.fill(0); out.hidden.fill(0); out.weight.fill(0);
    input.set(this.visibleBias);
    gray = 0;
    const p = new Float64Array(visible);
    for (let n = 0; n < states; n++) {
      if (n) flip(n);
      const mass = Math.exp(log[n] - logZ);
      if (mass < 1e-14) continue;
      for (let i = 0; i < visible; i++) out.visible[i] += p[i] = mass * sigmoid(input[i]);
      for (let j = 0; j < hidden; j++) {
        if (!(gray & (1 << j))) continue;
        out.hidden[j] += mass;
        for (let i = 0; i < visible; i++) out.weight[i * hidden + j] += p[i];
      }
    }
    return logZ;
  }

  /** Mean log-likelihood of rows, given log Z. */
  logLikelihood(data, logZ) {
    const n = data.length / this.visible, scratch = new Float64Array(this.hidden);
    let sum = 0;
    for (let r = 0; r < n; r++) sum -= this.freeEnergy(data, r * this.visible, scratch);
    return sum / n - logZ;
  }
}

/** Moments of a machine or of data: E[v], E[h], E[vh]. */
export const moments = (rbm) => ({
  visible: new Float64Array(rbm.visible),
  hidden: new Float64Array(rbm.hidden),
  weight: new Float64Array(rbm.visible * rbm.hidden),
});

/** Moments over rows, with hidden units at their conditional means. */
export function rowMoments(rbm, rows, out) {
  const { visible, hidden } = rbm, n = rows.length / visible, h = new Float64Array(hidden);
  out.visible.fill(0); out.hidden.fill(0); out.weight.fill(0);
  for (let r = 0; r < n; r++) {
    rbm.hiddenInput(rows, r * visible, h);
    for (let j = 0; j < hidden; j++) out.hidden[j] += h[j] = sigmoid(h[j]) / n;
    for (let i = 0; i < visible; i++) {
      const x = rows[r * visible + i];
      if (x === 0) continue;
      out.visible[i] += x / n;
      for (let j = 0, k = i * hidden; j < hidden; j++, k++) out.weight[k] += x * h[j];
    }
  }
}

/** One block Gibbs sweep of rows in place: hidden units given the rest, then pixels and labels given them. Where `clamp` is
 * set pixels stay; `labels` holds one of every row, drawn anew unless `heldLabel`. `means` gets the pixels' chances. */
export function sweep(rbm, rows, rng, { clamp = null, means = null, labels = null, heldLabel = false } = {}) {
  const { visible, hidden, classes } = rbm, n = rows.length / visible, h = new Float64Array(hidden), v = new Float64Array(visible);
  const logits = new Float64Array(classes);
  for (let r = 0; r < n; r++) {
    rbm.hiddenInput(rows, r * visible, h, labels ? labels[r] : -1);
    for (let j = 0; j < hidden; j++) h[j] = rng.uniform() < sigmoid(h[j]) ? 1 : 0;
    rbm.visibleInput(h, v);
    for (let i = 0; i < visible; i++) {
      const p = sigmoid(v[i]), at = r * visible + i;
      const held = clamp !== null && clamp[i];
      if (!held) rows[at] = rng.uniform() < p ? 1 : 0;
      if (means) means[at] = held ? rows[at] : p;
    }
    if (!labels || heldLabel) continue;
    let top = -Infinity;
    for (let y = 0; y < classes; y++) {
      let u = rbm.labelBias[y];
      for (let j = 0, k = y * hidden; j < hidden; j++, k++) u += rbm.labelWeight[k] * h[j];
      logits[y] = u;
      if (u > top) top = u;
    }
    for (let y = 0; y < classes; y++) logits[y] = Math.exp(logits[y] - top);
    labels[r] = rng.choice(logits);
  }
}

/** The gradient of log-likelihood as moments of data less moments of the model, added to the parameters. */
export function ascend(rbm, data, model, rate, decay = 0) {
  for (let k = 0; k < rbm.weight.length; k++) rbm.weight[k] += rate * (data.weight[k] - model.weight[k] - decay * rbm.weight[k]);
  for (let i = 0; i < rbm.visible; i++) rbm.visibleBias[i] += rate * (data.visible[i] - model.visible[i]);
  for (let j = 0; j < rbm.hidden; j++) rbm.hiddenBias[j] += rate * (data.hidden[j] - model.hidden[j]);
}

/** Chance that each pixel is as it is given the others, in nats a row: Σ log p(vᵢ | rest), on some rows. */
export function pseudoLikelihood(rbm, rows) {
  const { visible, hidden, weight } = rbm, n = rows.length / visible, a = new Float64Array(hidden);
  let sum = 0;
  for (let r = 0; r < n; r++) {
    rbm.hiddenInput(rows, r * visible, a);
    for (let i = 0; i < visible; i++) {
      const x = rows[r * visible + i], s = 1 - 2 * x;
      let change = -s * rbm.visibleBias[i]; // F(flipped) - F(v)
      for (let j = 0, k = i * hidden; j < hidden; j++, k++) change += softplus(a[j]) - softplus(a[j] + s * weight[k]);
      sum -= softplus(-change);
    }
  }
  return sum / n;
}

/** AIS from the machine without weights (Salakhutdinov & Murray 2008): log-weights, one a chain, whose mean exponential is Z. */
export function annealedImportance(rbm, base, chains, temperatures, rng) {
  const { visible, hidden, weight } = rbm, v = new Float64Array(visible), a = new Float64Array(hidden);
  let logZ0 = hidden * Math.LN2;
  for (let i = 0; i < visible; i++) logZ0 += softplus(base[i]);
  const log = new Float64Array(chains).fill(logZ0);
  for (let r = 0; r < chains; r++) {
    for (let i = 0; i < visible; i++) v[i] = rng.uniform() < sigmoid(base[i]) ? 1 : 0;
    for (let t = 1; t <= temperatures; t++) {
      const old = (t - 1) / temperatures, now = t / temperatures;
      rbm.hiddenInput(v, 0, a);
      let change = 0; // log of the unnormalized density at the new temperature less that at the old one
      for (let i = 0; i < visible; i++) change += (now - old) * (rbm.visibleBias[i] - base[i]) * v[i];
      for (let j = 0; j < hidden; j++) change += softplus(now * a[j]) - softplus(old * a[j]);
      log[r] += change;
      if (t === temperatures) break;
      for (let j = 0; j < hidden; j++) a[j] = rng.uniform() < sigmoid(now * a[j]) ? 1 : 0;
      for (let i = 0; i < visible; i++) {
        let u = now * rbm.visibleBias[i] + (1 - now) * base[i];
        for (let j = 0, k = i * hidden; j < hidden; j++, k++) u += now * weight[k] * a[j];
        v[i] = rng.uniform() < sigmoid(u) ? 1 : 0;
      }
    }
  }
  return log;
}
