// Laws of the plane, exp(-E(x)): `evaluate(x, g)` returns E(x) and writes its gradient to g. The forms are those of
// gibbsian.energies. `view` is the part of the plane worth looking at: [left, right, bottom, top].

const SQUARE = (r) => [-r, r, -r, r];

/** N(0, Σ) with standard deviations 1 and s, correlated by ρ. */
export function gaussian({ scale = 1, correlation = 0.9 } = {}) {
  const det = 1 - correlation * correlation;
  const a = 1 / det, b = -correlation / (det * scale), c = 1 / (det * scale * scale);
  return {
    dim: 2,
    view: SQUARE(4),
    evaluate(x, g) {
      g[0] = a * x[0] + b * x[1];
      g[1] = b * x[0] + c * x[1];
      return 0.5 * (x[0] * g[0] + x[1] * g[1]);
    },
  };
}

/** -log Σᵢ wᵢ N(x; μᵢ, sᵢ²I), in any dimension; the means flat, one after the other. */
export function mixture(means, deviations, weights, { dim = 2, view = SQUARE(4) } = {}) {
  const k = weights.length;
  const total = weights.reduce((a, b) => a + b, 0);
  const precision = deviations.map((s) => 1 / (s * s));
  const offset = weights.map((w, i) => Math.log(w / total) - dim * (Math.log(deviations[i]) + 0.5 * Math.log(2 * Math.PI)));
  const log = new Float64Array(k);
  return {
    dim,
    view,
    evaluate(x, g) {
      let top = -Infinity;
      for (let i = 0; i < k; i++) {
        let q = 0;
        for (let j = 0; j < dim; j++) {
          const u = x[j] - means[i * dim + j];
          q += u * u;
        }
        const l = offset[i] - 0.5 * precision[i] * q;
        log[i] = l;
        if (l > top) top = l;
      }
      let sum = 0;
      for (let j = 0; j < dim; j++) g[j] = 0;
      for (let i = 0; i < k; i++) {
        const w = Math.exp(log[i] - top);
        sum += w;
        for (let j = 0; j < dim; j++) g[j] += w * precision[i] * (x[j] - means[i * dim + j]);
      }
      for (let j = 0; j < dim; j++) g[j] /= sum;
      return -top - Math.log(sum);
    },
  };
}

/** Three hills of unequal weight. */
export const threeHills = ({ distance = 1.6 } = {}) =>
  mixture([-distance, -0.6 * distance, distance, -0.5 * distance, 0, distance], [0.55, 0.4, 0.5], [0.5, 0.2, 0.3], { view: SQUARE(4) });

/** Eight hills on a circle. */
export function eightHills({ distance = 2.5 } = {}) {
  const means = [];
  for (let i = 0; i < 8; i++) means.push(distance * Math.cos((Math.PI * i) / 4), distance * Math.sin((Math.PI * i) / 4));
  return mixture(means, Array(8).fill(0.35), Array(8).fill(1 / 8), { view: SQUARE(4) });
}

/** E = x₀²/2s² + ½(x₁ - b(x₀² - s²))². */
export function banana({ curvature = 0.5, scale = 2 } = {}) {
  const s2 = scale * scale;
  return {
    dim: 2,
    view: [-6, 6, -5, 9],
    evaluate(x, g) {
      const across = x[1] - curvature * (x[0] * x[0] - s2);
      g[0] = x[0] / s2 - 2 * curvature * x[0] * across;
      g[1] = across;
      return 0.5 * ((x[0] * x[0]) / s2 + across * across);
    },
  };
}

/** E = h((x₀/a)² - 1)² + ½x₁². */
export function doubleWell({ barrier = 3, distance = 1.5 } = {}) {
  return {
    dim: 2,
    view: SQUARE(3.4),
    evaluate(x, g) {
      const u = x[0] / distance, height = u * u - 1;
      g[0] = ((4 * barrier) / distance) * u * height;
      g[1] = x[1];
      return barrier * height * height + 0.5 * x[1] * x[1];
    },
  };
}

/** E = (‖x‖ - R)²/2w². */
export function ring({ radius = 2, width = 0.3 } = {}) {
  return {
    dim: 2,
    view: SQUARE(3.6),
    evaluate(x, g) {
      const r = Math.sqrt(x[0] * x[0] + x[1] * x[1]);
      const away = (r - radius) / width;
      const f = r > 0 ? away / (width * r) : 0;
      g[0] = f * x[0];
      g[1] = f * x[1];
      return 0.5 * away * away;
    },
  };
}

/** Neal's funnel: E = v²/2s² + ½e⁻ᵛx₁² + ½v, v = x₀. */
export function funnel({ scale = 1.5 } = {}) {
  return {
    dim: 2,
    view: [-5, 5, -6, 6],
    evaluate(x, g) {
      const shrink = Math.exp(-x[0]);
      const pull = 0.5 * shrink * x[1] * x[1];
      g[0] = x[0] / (scale * scale) - pull + 0.5;
      g[1] = shrink * x[1];
      return (0.5 * x[0] * x[0]) / (scale * scale) + pull + 0.5 * x[0];
    },
  };
}

/** A law at temperature T: E/T. */
export function tempered(law, temperature) {
  if (temperature === 1) return law;
  const beta = 1 / temperature;
  return {
    dim: law.dim,
    view: law.view,
    evaluate(x, g) {
      const e = law.evaluate(x, g);
      for (let j = 0; j < law.dim; j++) g[j] *= beta;
      return beta * e;
    },
  };
}

/** Between two laws: (1-β)·E₀ + β·E₁, the geometric path of annealing. `beta` may be changed. */
export function between(base, target, beta = 0) {
  const h = new Float64Array(target.dim);
  return {
    dim: target.dim,
    view: target.view,
    beta,
    evaluate(x, g) {
      const b = this.beta;
      const e0 = base.evaluate(x, h);
      const e1 = target.evaluate(x, g);
      for (let j = 0; j < g.length; j++) g[j] = (1 - b) * h[j] + b * g[j];
      return (1 - b) * e0 + b * e1;
    },
  };
}

/** N(0, s²I): E = ‖x‖²/2s². */
export function round(dim, scale) {
  const p = 1 / (scale * scale);
  return {
    dim,
    view: SQUARE(3 * scale),
    logZ: 0.5 * dim * Math.log(2 * Math.PI) + dim * Math.log(scale),
    evaluate(x, g) {
      let q = 0;
      for (let j = 0; j < dim; j++) {
        g[j] = p * x[j];
        q += x[j] * x[j];
      }
      return 0.5 * p * q;
    },
  };
}
