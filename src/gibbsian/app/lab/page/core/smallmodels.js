// Energies to be learned, of the line or the plane, with everything that principles of learning ask of them, in closed form:
//   evaluate(x, g)              E and its gradient in x
//   laplacian(x)                ΔE
//   energyGradient(x, w, out)   out += w ∂E/∂θ
//   slopeGradient(x, u, w, out) out += w ∂(u·∇E)/∂θ for a fixed direction u
//   laplacianGradient(x, w, out) out += w ∂ΔE/∂θ

/** E(x) = ½c‖x‖² - Σ θ_j φ_j(x), φ_j a Gaussian bump of width s about μ_j: an exponential family. */
export class Bumps {
  constructor(dim, centers, width, confine) {
    Object.assign(this, { dim, centers, width, confine, size: centers.length / dim });
    this.theta = new Float64Array(this.size);
    this.ticks = null; // of a grid: its places along every axis, whose factors are shared by all bumps
  }

  /** Bumps on a grid over [-r, r]^d. */
  static grid(dim, perSide, radius, width, confine) {
    const centers = [];
    for (let i = 0; i < perSide ** dim; i++) {
      for (let j = 0, k = i; j < dim; j++, k = Math.floor(k / perSide)) centers.push(-radius + (2 * radius * (k % perSide)) / (perSide - 1));
    }
    const out = new Bumps(dim, Float64Array.from(centers), width, confine);
    if (dim === 2) out.ticks = { at: out.centers.filter((_, i) => i % 2 === 0).slice(0, perSide), q: new Float64Array(2 * perSide), phi: new Float64Array(2 * perSide) };
    return out;
  }

  /** Calls visit(j, φ_j, q_j) with q = ‖x - μ‖² for the bumps that reach x. */
  each(x, visit) {
    const { dim, centers, width, ticks } = this, half = 0.5 / (width * width), far = 20 / half;
    if (ticks) {
      const { at, q, phi } = ticks, n = at.length;
      for (let k = 0; k < 2 * n; k++) {
        q[k] = (x[k < n ? 0 : 1] - at[k % n]) ** 2;
        phi[k] = Math.exp(-half * q[k]);
      }
      for (let b = 0, j = 0; b < n; b++) {
        if (q[n + b] > far) j += n;
        else for (let a = 0; a < n; a++, j++) if (q[a] + q[n + b] < far) visit(j, phi[a] * phi[n + b], q[a] + q[n + b]);
      }
      return;
    }
    for (let j = 0; j < this.size; j++) {
      let q = 0;
      for (let k = 0; k < dim; k++) q += (x[k] - centers[j * dim + k]) ** 2;
      if (q < far) visit(j, Math.exp(-half * q), q);
    }
  }

  evaluate(x, g) {
    const { dim, centers, theta, confine } = this, p = 1 / (this.width * this.width);
    let e = 0;
    for (let k = 0; k < dim; k++) {
      e += 0.5 * confine * x[k] * x[k];
      g[k] = confine * x[k];
    }
    this.each(x, (j, phi) => {
      const t = theta[j] * phi;
      e -= t;
      for (let k = 0; k < dim; k++) g[k] += t * p * (x[k] - centers[j * dim + k]);
    });
    return e;
  }

  laplacian(x) {
    const p = 1 / (this.width * this.width);
    let sum = this.confine * this.dim;
    this.each(x, (j, phi, q) => (sum -= this.theta[j] * phi * (q * p * p - this.dim * p)));
    return sum;
  }

  energyGradient(x, w, out) {
    this.each(x, (j, phi) => (out[j] -= w * phi));
  }

  slopeGradient(x, u, w, out) {
    const { dim, centers } = this, p = 1 / (this.width * this.width);
    this.each(x, (j, phi) => {
      let along = 0;
      for (let k = 0; k < dim; k++) along += u[k] * (x[k] - centers[j * dim + k]);
      out[j] += w * phi * p * along;
    });
  }

  laplacianGradient(x, w, out) {
    const p = 1 / (this.width * this.width);
    this.each(x, (j, phi, q) => (out[j] -= w * phi * (q * p * p - this.dim * p)));
  }
}

/** E(x) = ½c‖x‖² + Σ a_j tanh(w_j·x + b_j): a perceptron of one hidden layer. θ = [w, b, a], unit after unit. */
export class Perceptron {
  constructor(dim, units, confine, rng) {
    Object.assign(this, { dim, units, confine, stride: dim + 2 });
    this.theta = new Float64Array(units * this.stride);
    for (let j = 0; j < units; j++) {
      for (let k = 0; k < dim; k++) this.theta[j * this.stride + k] = 1.5 * rng.normal();
      this.theta[j * this.stride + dim] = 2.5 * rng.normal();
      this.theta[j * this.stride + dim + 1] = 0.05 * rng.normal();
    }
  }

  each(x, visit) {
    const { dim, stride, theta } = this;
    for (let j = 0, o = 0; j < this.units; j++, o += stride) {
      let u = theta[o + dim];
      for (let k = 0; k < dim; k++) u += theta[o + k] * x[k];
      visit(o, Math.tanh(u), theta[o + dim + 1]);
    }
  }

  evaluate(x, g) {
    const { dim, theta, confine } = this;
    let e = 0;
    for (let k = 0; k < dim; k++) {
      e += 0.5 * confine * x[k] * x[k];
      g[k] = confine * x[k];
    }
    this.each(x, (o, t, a) => {
      e += a * t;
      const slope = a * (1 - t * t);
      for (let k = 0; k < dim; k++) g[k] += slope * theta[o + k];
    });
    return e;
  }

  norm(o) {
    let q = 0;
    for (let k = 0; k < this.dim; k++) q += this.theta[o + k] ** 2;
    return q;
  }

  laplacian(x) {
    let sum = this.confine * this.dim;
    this.each(x, (o, t, a) => (sum += a * -2 * t * (1 - t * t) * this.norm(o)));
    return sum;
  }

  energyGradient(x, w, out) {
    const { dim } = this;
    this.each(x, (o, t, a) => {
      const s = w * a * (1 - t * t);
      for (let k = 0; k < dim; k++) out[o + k] += s * x[k];
      out[o + dim] += s;
      out[o + dim + 1] += w * t;
    });
  }

  slopeGradient(x, u, w, out) {
    const { dim, theta } = this;
    this.each(x, (o, t, a) => {
      let along = 0;
      for (let k = 0; k < dim; k++) along += theta[o + k] * u[k];
      const d1 = 1 - t * t, d2 = -2 * t * d1;
      for (let k = 0; k < dim; k++) out[o + k] += w * a * (d2 * along * x[k] + d1 * u[k]);
      out[o + dim] += w * a * d2 * along;
      out[o + dim + 1] += w * d1 * along;
    });
  }

  laplacianGradient(x, w, out) {
    const { dim, theta } = this;
    this.each(x, (o, t, a) => {
      const q = this.norm(o), d1 = 1 - t * t, d2 = -2 * t * d1, d3 = d1 * (6 * t * t - 2);
      for (let k = 0; k < dim; k++) out[o + k] += w * a * (d3 * q * x[k] + 2 * d2 * theta[o + k]);
      out[o + dim] += w * a * d3 * q;
      out[o + dim + 1] += w * d2 * q;
    });
  }
}
