// Annealed Langevin dynamics through noise levels, and annealed importance sampling between two laws.

import { Chains } from "./chains.js";
import { between, mixture } from "./laws.js";
import { logSumExp } from "./math.js";
import { Moments } from "./statistics.js";

/** A mixture of Gaussians blurred by N(0, σ²I): every deviation becomes √(s² + σ²). */
export const blurred = (law, sigma) =>
  mixture(law.means, law.deviations.map((s) => Math.sqrt(s * s + sigma * sigma)), law.weights, { dim: law.dim ?? 2, view: law.view });

/** One step at noise level σ: x ← x + (α/2)s + √α z, α = ε σ²/σ_L² (Song & Ermon 2019). `law` is the blurred one. */
export function annealedStep(law, x, alpha, rng) {
  const d = law.dim, y = new Float64Array(d), g = new Float64Array(d), root = Math.sqrt(alpha);
  for (let i = 0; i < x.length; i += d) {
    for (let j = 0; j < d; j++) y[j] = x[i + j];
    law.evaluate(y, g);
    for (let j = 0; j < d; j++) x[i + j] += -0.5 * alpha * g[j] + root * rng.normal();
  }
}

/** Annealed importance sampling (Neal 2001) along (1-β)E₀ + βE₁: particles that start at exact draws of the base. */
export class AnnealedImportance {
  constructor(base, target, particles, betas, kernel, draw, rng) {
    Object.assign(this, { base, target, betas, kernel, rng });
    this.path = between(base, target, 0);
    this.chains = new Chains(draw(particles, rng), target.dim);
    this.logWeights = new Float64Array(particles);
    this.at = 0;
    this.chains.evaluate(this.path);
  }

  get done() {
    return this.at >= this.betas.length - 1;
  }

  get beta() {
    return this.betas[this.at];
  }

  /** To the next β: weights gain e^{-(β'-β)(E₁-E₀)}, then the particles move at β'. */
  step(moves = 1) {
    const { chains, base, target, logWeights } = this, d = chains.dim, x = new Float64Array(d), g = new Float64Array(d);
    const change = this.betas[this.at + 1] - this.betas[this.at];
    for (let i = 0; i < chains.count; i++) {
      for (let j = 0; j < d; j++) x[j] = chains.x[i * d + j];
      logWeights[i] -= change * (target.evaluate(x, g) - base.evaluate(x, g));
    }
    this.at++;
    this.path.beta = this.betas[this.at];
    chains.evaluate(this.path);
    for (let m = 0; m < moves; m++) this.kernel.step(this.path, chains, this.rng);
  }

  /** log(Z_β/Z₀) so far, its standard error by the delta method, and the effective number of particles. */
  estimate() {
    return summarize(this.logWeights);
  }
}

/** The log of the mean weight, its standard error, and the effective sample size (Σw)²/Σw². */
export function summarize(logWeights) {
  const n = logWeights.length, top = Math.max(...logWeights), stream = new Moments();
  let squares = 0, sum = 0;
  for (let i = 0; i < n; i++) {
    const w = Math.exp(logWeights[i] - top);
    stream.add(w);
    sum += w;
    squares += w * w;
  }
  return { value: logSumExp(logWeights) - Math.log(n), error: Math.sqrt(stream.variance / n) / stream.mean, effective: (sum * sum) / squares };
}
