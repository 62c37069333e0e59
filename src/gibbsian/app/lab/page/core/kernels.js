// Markov transitions, one function a kernel. `step(law, chains, rng)` moves every chain once and leaves the probability of
// acceptance in chains.acceptance. Names and parameters are those of gibbsian.kernels: ε is the step size in
// x + (ε²/2)s(x) + εz, M the mass. All but `ula` and `underdamped` leave exp(-E) exactly invariant.

const DIVERGENCE = 1000; // energy error of a trajectory beyond which it is refused whatever the coin says

/** Random-walk Metropolis: x' = x + εz. */
export function randomWalk({ stepSize = 0.5 } = {}) {
  return {
    step(law, c, rng) {
      const d = c.dim, y = new Float64Array(d), g = new Float64Array(d);
      for (let i = 0; i < c.count; i++) {
        for (let j = 0; j < d; j++) y[j] = c.x[i * d + j] + stepSize * rng.normal();
        const e = law.evaluate(y, g);
        settle(c, i, y, e, g, c.energy[i] - e, rng);
      }
      c.evaluations += c.count;
    },
  };
}

/** Independence Metropolis: proposals from N(0, s²I), wherever the chain is. */
export function independence({ width = 2.5 } = {}) {
  return {
    step(law, c, rng) {
      const d = c.dim, y = new Float64Array(d), g = new Float64Array(d), p = 0.5 / (width * width);
      for (let i = 0; i < c.count; i++) {
        let q = 0; // log of the proposal's density at the new place against the old one
        for (let j = 0; j < d; j++) {
          y[j] = width * rng.normal();
          q += p * (c.x[i * d + j] ** 2 - y[j] ** 2);
        }
        const e = law.evaluate(y, g);
        settle(c, i, y, e, g, c.energy[i] - e - q, rng);
      }
      c.evaluations += c.count;
    },
  };
}

/** Unadjusted Langevin: x ← x - (ε²/2)∇E + εz. Biased by its step. */
export function ula({ stepSize = 0.2 } = {}) {
  return {
    step(law, c, rng) {
      const d = c.dim, x = new Float64Array(d), g = new Float64Array(d), half = 0.5 * stepSize * stepSize;
      for (let i = 0; i < c.count; i++) {
        for (let j = 0; j < d; j++) x[j] = c.x[i * d + j] - half * c.gradient[i * d + j] + stepSize * rng.normal();
        put(c, i, x, law.evaluate(x, g), g);
        c.acceptance[i] = NaN;
      }
      c.evaluations += c.count;
    },
  };
}

/** Hamiltonian Monte Carlo with L leapfrog steps; each trajectory's ε is jittered by a factor in [1-j, 1+j]. */
export function hmc({ stepSize = 0.2, leapfrogSteps = 10, mass = 1, jitter = 0.5 } = {}) {
  return {
    step(law, c, rng) {
      const d = c.dim, x = new Float64Array(d), v = new Float64Array(d), g = new Float64Array(d), root = Math.sqrt(mass);
      for (let i = 0; i < c.count; i++) {
        take(c, i, x, g);
        let kinetic = 0;
        for (let j = 0; j < d; j++) {
          v[j] = root * rng.normal();
          kinetic += (v[j] * v[j]) / (2 * mass);
        }
        const eps = jitter > 0 ? stepSize * (1 + jitter * (2 * rng.uniform() - 1)) : stepSize;
        let e = c.energy[i];
        for (let l = 0; l < leapfrogSteps; l++) {
          e = leapfrog(law, x, v, g, eps, mass);
          if (i < c.watched) c.visit(i, x);
        }
        for (let j = 0; j < d; j++) kinetic -= (v[j] * v[j]) / (2 * mass);
        settle(c, i, x, e, g, c.energy[i] - e + kinetic, rng);
      }
      c.evaluations += c.count * leapfrogSteps;
    },
  };
}

/** MALA: one leapfrog step with fresh momentum. */
export const mala = ({ stepSize = 0.5, mass = 1 } = {}) => hmc({ stepSize, leapfrogSteps: 1, mass, jitter: 0 });

/** Underdamped Langevin by the splitting BAOAB: kick, drift, friction with noise, drift, kick. */
export function underdamped({ stepSize = 0.3, friction = 1, mass = 1 } = {}) {
  let begun = null;
  return {
    step(law, c, rng) {
      const d = c.dim, x = new Float64Array(d), v = new Float64Array(d), g = new Float64Array(d);
      const keep = begun === c ? Math.exp(-friction * stepSize) : 0; // the first step draws the momenta afresh
      const noise = Math.sqrt((1 - keep * keep) * mass), half = 0.5 * stepSize;
      begun = c;
      for (let i = 0; i < c.count; i++) {
        take(c, i, x, g);
        for (let j = 0; j < d; j++) {
          v[j] = c.v[i * d + j] - half * g[j];
          x[j] += (half * v[j]) / mass;
          v[j] = keep * v[j] + noise * rng.normal();
          x[j] += (half * v[j]) / mass;
        }
        const e = law.evaluate(x, g);
        put(c, i, x, e, g);
        for (let j = 0; j < d; j++) c.v[i * d + j] = v[j] - half * g[j];
        c.acceptance[i] = NaN;
      }
      c.evaluations += c.count;
    },
  };
}

/** Generalized HMC, the exact form of underdamped Langevin: refusals turn the momentum round (Horowitz 1991). */
export function guided({ stepSize = 0.3, friction = 1, mass = 1 } = {}) {
  let begun = null;
  return {
    step(law, c, rng) {
      const d = c.dim, x = new Float64Array(d), v = new Float64Array(d), g = new Float64Array(d);
      const keep = begun === c ? Math.exp(-friction * stepSize) : 0, noise = Math.sqrt((1 - keep * keep) * mass);
      begun = c;
      for (let i = 0; i < c.count; i++) {
        take(c, i, x, g);
        let kinetic = 0;
        for (let j = 0; j < d; j++) {
          v[j] = keep * c.v[i * d + j] + noise * rng.normal();
          kinetic += (v[j] * v[j]) / (2 * mass);
          c.v[i * d + j] = -v[j]; // what stays if the move is refused
        }
        const e = leapfrog(law, x, v, g, stepSize, mass);
        for (let j = 0; j < d; j++) kinetic -= (v[j] * v[j]) / (2 * mass);
        if (settle(c, i, x, e, g, c.energy[i] - e + kinetic, rng)) for (let j = 0; j < d; j++) c.v[i * d + j] = v[j];
      }
      c.evaluations += c.count;
    },
  };
}

/** Adjusted microcanonical dynamics: |u| = 1, u̇ = -(I - uuᵀ)∇E/(d-1), fresh u, L steps, accepted with min(1, e^{-W}). */
export function microcanonical({ stepSize = 0.3, leapfrogSteps = 10 } = {}) {
  return {
    step(law, c, rng) {
      const d = c.dim, x = new Float64Array(d), u = new Float64Array(d), g = new Float64Array(d);
      for (let i = 0; i < c.count; i++) {
        take(c, i, x, g);
        let norm = 0;
        for (let j = 0; j < d; j++) norm += (u[j] = rng.normal()) ** 2;
        for (let j = 0; j < d; j++) u[j] /= Math.sqrt(norm);
        let e = c.energy[i], kinetic = 0;
        const n = 1 + rng.integer(2 * leapfrogSteps - 1); // lengths vary, or orbits would close
        for (let l = 0; l < n; l++) {
          kinetic += turn(u, g, 0.5 * stepSize);
          for (let j = 0; j < d; j++) x[j] += stepSize * u[j];
          e = law.evaluate(x, g);
          kinetic += turn(u, g, 0.5 * stepSize);
          if (i < c.watched) c.visit(i, x);
        }
        c.evaluations += n;
        settle(c, i, x, e, g, c.energy[i] - e - kinetic, rng);
      }
    },
  };
}

/** The exact kick of a unit velocity by a gradient over time ε; returns ΔK. */
function turn(u, g, eps) {
  const d = u.length;
  let norm = 0, along = 0;
  for (let j = 0; j < d; j++) norm += g[j] * g[j];
  norm = Math.sqrt(norm);
  if (!(norm > 0)) return 0;
  for (let j = 0; j < d; j++) along -= (g[j] / norm) * u[j];
  const delta = (eps * norm) / (d - 1), shrink = Math.exp(-2 * delta); // in units of e^δ/2: nothing overflows
  const sinh = 1 - shrink, cosh = 1 + shrink, scale = cosh + along * sinh;
  const f = sinh + along * (cosh - 2 * Math.exp(-delta));
  let length = 0;
  for (let j = 0; j < d; j++) length += (u[j] = (2 * Math.exp(-delta) * u[j] - (g[j] / norm) * f) / scale) ** 2;
  for (let j = 0; j < d; j++) u[j] /= Math.sqrt(length);
  return (d - 1) * (delta + Math.log(0.5 * scale));
}

/** One leapfrog step in place; returns the energy at its end, where g is the gradient. */
export function leapfrog(law, x, v, g, eps, mass) {
  const half = 0.5 * eps, drift = eps / mass;
  for (let j = 0; j < x.length; j++) {
    v[j] -= half * g[j];
    x[j] += drift * v[j];
  }
  const e = law.evaluate(x, g);
  for (let j = 0; j < x.length; j++) v[j] -= half * g[j];
  return e;
}

function take(c, i, x, g) {
  for (let j = 0; j < c.dim; j++) {
    x[j] = c.x[i * c.dim + j];
    g[j] = c.gradient[i * c.dim + j];
  }
}

function put(c, i, x, e, g) {
  for (let j = 0; j < c.dim; j++) {
    c.x[i * c.dim + j] = x[j];
    c.gradient[i * c.dim + j] = g[j];
  }
  c.energy[i] = e;
}

/** The Metropolis test: log u < log ratio; NaN and an energy of -∞ are refused. */
function settle(c, i, x, e, g, logRatio, rng) {
  const u = rng.uniform();
  const fine = logRatio > -DIVERGENCE && logRatio < Infinity;
  c.acceptance[i] = fine ? Math.min(1, Math.exp(logRatio)) : 0;
  if (!fine || !(Math.log(u) < logRatio)) return false;
  put(c, i, x, e, g);
  return true;
}
