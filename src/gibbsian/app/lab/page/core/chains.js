// Many chains at once: positions, energies, gradients and momenta in flat arrays, chain after chain.

export class Chains {
  /** @param {Float64Array} x positions, `count * dim` numbers */
  constructor(x, dim) {
    this.dim = dim;
    this.count = x.length / dim;
    this.x = x;
    this.v = new Float64Array(x.length);
    this.energy = new Float64Array(this.count);
    this.gradient = new Float64Array(x.length);
    this.acceptance = new Float64Array(this.count); // of the last step, a probability; NaN where nothing is tested
    this.evaluations = 0; // gradients computed so far, for fair comparisons
    this.watched = 0; // the first so many report every point of their trajectories to `visit(chain, x)`
    this.visit = null;
  }

  /** Energies and gradients anew, after the law or the positions were changed from outside. */
  evaluate(law) {
    const { dim } = this, x = new Float64Array(dim), g = new Float64Array(dim);
    for (let i = 0; i < this.count; i++) {
      for (let j = 0; j < dim; j++) x[j] = this.x[i * dim + j];
      this.energy[i] = law.evaluate(x, g);
      for (let j = 0; j < dim; j++) this.gradient[i * dim + j] = g[j];
    }
  }

  /** N(center, s²I) starts. */
  static around(center, scale, count, rng) {
    const dim = center.length, x = new Float64Array(count * dim);
    for (let i = 0; i < count; i++) for (let j = 0; j < dim; j++) x[i * dim + j] = center[j] + scale * rng.normal();
    return new Chains(x, dim);
  }
}
