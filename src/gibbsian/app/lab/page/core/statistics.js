// What is watched: histograms, autocorrelation, running means.

/** Counts of values in equal bins over [low, high]; what falls outside is counted apart. */
export class Histogram {
  constructor(low, high, bins = 60) {
    this.low = low;
    this.high = high;
    this.counts = new Float64Array(bins);
    this.total = 0;
  }

  add(value) {
    const i = Math.floor(((value - this.low) / (this.high - this.low)) * this.counts.length);
    this.total++;
    if (i >= 0 && i < this.counts.length) this.counts[i]++;
  }

  /** Densities, one a bin. */
  density() {
    const width = (this.high - this.low) / this.counts.length;
    return Array.from(this.counts, (c) => (this.total ? c / (this.total * width) : 0));
  }

  /** Half the area between the histogram and a density given on a multiple of its bins: 0 agrees, 1 is disjoint. */
  distance(density) {
    const per = density.length / this.counts.length, width = (this.high - this.low) / this.counts.length, own = this.density();
    let sum = 0, inside = 0;
    for (let i = 0; i < own.length; i++) {
      let truth = 0;
      for (let k = 0; k < per; k++) truth += density[i * per + k] / per;
      sum += Math.abs(own[i] - truth) * width;
      inside += own[i] * width;
    }
    return 0.5 * (sum + Math.max(0, 1 - inside));
  }
}

/** The last `length` values of some chains, for their autocorrelation. */
export class Recorder {
  constructor(chains, length = 400) {
    this.chains = chains;
    this.length = length;
    this.values = new Float64Array(chains * length);
    this.filled = 0;
    this.at = 0;
  }

  /** One value of every chain: `values[i * stride + offset]`. */
  push(values, stride = 1, offset = 0) {
    for (let i = 0; i < this.chains; i++) this.values[i * this.length + this.at] = values[i * stride + offset];
    this.at = (this.at + 1) % this.length;
    this.filled = Math.min(this.length, this.filled + 1);
  }

  /** Autocorrelation at lags 0 … lags, about the mean of all chains, so that chains that never meet count as correlated. */
  autocorrelation(lags) {
    const { chains, length, filled, at, values } = this, start = filled < length ? 0 : at;
    lags = Math.min(lags, filled - 2);
    if (lags < 1) return [1];
    let sum = 0;
    for (let i = 0; i < chains; i++) for (let t = 0; t < filled; t++) sum += values[i * length + t];
    const mean = sum / (chains * filled), out = new Array(lags + 1).fill(0), row = new Float64Array(filled);
    for (let i = 0; i < chains; i++) {
      for (let t = 0; t < filled; t++) row[t] = values[i * length + ((start + t) % length)] - mean;
      for (let k = 0; k <= lags; k++) {
        let product = 0;
        for (let t = k; t < filled; t++) product += row[t] * row[t - k];
        out[k] += product / (filled - k);
      }
    }
    const zero = out[0] || 1;
    return out.map((c) => c / zero);
  }
}

/** τ = 1 + 2Σρ_k by Geyer's initial positive sequence: pairs of lags are summed while their sum is positive. */
export function integratedTime(rho) {
  let tau = -1;
  for (let k = 0; k + 1 < rho.length; k += 2) {
    const pair = rho[k] + rho[k + 1];
    if (pair <= 0) return Math.max(tau, 0.01);
    tau += 2 * pair;
  }
  return Math.max(tau, 0.01);
}

/** Mean and variance of a stream (Welford). */
export class Moments {
  constructor() {
    this.count = 0;
    this.mean = 0;
    this.sum = 0;
  }

  add(value) {
    this.count++;
    const change = value - this.mean;
    this.mean += change / this.count;
    this.sum += change * (value - this.mean);
  }

  get variance() {
    return this.count > 1 ? this.sum / (this.count - 1) : NaN;
  }
}
