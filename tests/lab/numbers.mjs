// Runs the lab's numerics on cases that Python made and returns what came out, for node and for browsers alike.

export async function run(cases, base) {
  const load = (name) => import(`${base}core/${name}.js`);
  const names = ["laws", "kernels", "nuts", "tempering", "chains", "random", "formula", "drawn", "truth", "statistics",
    "smallmodels", "principles", "rbm", "lattice", "annealing", "math"];
  const c = Object.assign({}, ...(await Promise.all(names.map(load))));
  const out = {};
  for (const [name, list] of Object.entries(cases)) out[name] = list.map((one) => RUN[name](one, c));
  return out;
}

const lawOf = (one, c) => (one.law === "mixture" ? c.mixture(...one.arguments) : c[one.law](one.options ?? {}));

/** Random numbers that were drawn elsewhere. */
class Replay {
  constructor(normals, uniforms) {
    Object.assign(this, { normals, uniforms, n: 0, u: 0 });
  }
  normal() {
    return this.normals[this.n++];
  }
  uniform() {
    return this.uniforms[this.u++];
  }
}

const kernelOf = (one, c) =>
  one.kernel === "tempering"
    ? c.tempering({ temperatures: one.temperatures, inner: (t) => c.mala({ stepSize: one.settings.stepSize * Math.sqrt(t) }) })
    : c[one.kernel](one.settings);

function evaluateAll(law, points) {
  const g = new Float64Array(law.dim), rows = points.map((p) => [law.evaluate(p, g), ...g]);
  return { energy: rows.map((r) => r[0]), gradient: rows.map((r) => r.slice(1)) };
}

function modelOf(one, c) {
  if (one.model === "bumps") {
    const m = new c.Bumps(one.dim, Float64Array.from(one.centers), one.width, one.confine);
    m.theta.set(one.theta);
    return m;
  }
  const m = new c.Perceptron(one.dim, one.theta.length / (one.dim + 2), one.confine, new c.Random(0));
  m.theta.set(one.theta);
  return m;
}

function machineOf(one, c) {
  const m = new c.RBM(one.visibleBias.length, one.hiddenBias.length);
  m.weight.set(one.weight);
  m.visibleBias.set(one.visibleBias);
  m.hiddenBias.set(one.hiddenBias);
  if (one.labelBias) Object.assign(m, { classes: one.labelBias.length, labelBias: one.labelBias, labelWeight: one.labelWeight });
  return m;
}

/** Pixels and labels together, some pixels held: how often each label and each pixel comes up. */
function labelsOf(m, one, c) {
  const n = one.sweeps.rows, rng = new c.Random(8), labels = new Array(n).fill(0), rows = new Float64Array(n * m.visible);
  const clamp = Array.from({ length: m.visible }, (_, i) => i < 2);
  for (let r = 0; r < n; r++) rows[r * m.visible] = 1; // the first two are held at 1, 0
  for (let t = 0; t < one.sweeps.burnIn; t++) c.sweep(m, rows, rng, { clamp, labels });
  const share = Array.from({ length: m.classes }, (_, y) => labels.filter((l) => l === y).length / n);
  const mean = Array.from({ length: m.visible }, (_, i) => rows.filter((_, k) => k % m.visible === i).reduce((a, b) => a + b, 0) / n);
  return { share, mean };
}

const RUN = {
  random({ seed, n }, c) {
    const rng = new c.Random(seed);
    return { normals: Array.from({ length: n }, () => rng.normal()), uniforms: Array.from({ length: n }, () => rng.uniform()) };
  },
  laws: (one, c) => evaluateAll(lawOf(one, c), one.points),
  formulas: (one, c) => evaluateAll(c.parse(one.text), one.points),
  refused(one, c) {
    try {
      c.parse(one.text);
    } catch (error) {
      return { message: error.message, at: error.at };
    }
    return null;
  },
  drawn(one, c) {
    const law = new c.Drawing([-3, 3, -3, 3]);
    for (const stroke of one.strokes) law.paint(...stroke);
    const h = 1e-5, g = new Float64Array(2), none = new Float64Array(2);
    return one.points.map(([x, y]) => {
      law.evaluate([x, y], g);
      const slope = (dx, dy) => (law.evaluate([x + dx, y + dy], none) - law.evaluate([x - dx, y - dy], none)) / (2 * h);
      return [g[0] - slope(h, 0), g[1] - slope(0, h)];
    });
  },
  truths(one, c) {
    const t = c.tabulate(lawOf(one, c), 400, one.view);
    return { logZ: t.logZ, mean: t.mean, variance: t.variance, meanEnergy: t.meanEnergy };
  },
  replays(one, c) {
    const law = lawOf(one, c), kernel = kernelOf(one, c), chains = new c.Chains(Float64Array.from(one.start), law.dim);
    chains.evaluate(law);
    const rng = new Replay(one.normals, one.uniforms), x = [];
    for (let t = 0; t < one.steps; t++) {
      kernel.step(law, chains, rng);
      x.push(Array.from(chains.x));
    }
    return { x, energy: Array.from(chains.energy) };
  },
  moments(one, c) {
    const law = lawOf(one, c), rng = new c.Random(one.seed), kernel = kernelOf(one, c);
    const chains = c.Chains.around([0, 0], one.spread, one.chains, rng), d = law.dim;
    chains.evaluate(law);
    for (let t = 0; t < one.burnIn; t++) kernel.step(law, chains, rng);
    const sums = Array.from({ length: 5 }, () => new Float64Array(one.chains));
    let acceptance = 0;
    for (let t = 0; t < one.steps; t++) {
      kernel.step(law, chains, rng);
      for (let i = 0; i < one.chains; i++) {
        const x = chains.x[i * d], y = chains.x[i * d + 1];
        [x, y, x * x, y * y, chains.energy[i]].forEach((value, k) => (sums[k][i] += value / one.steps));
        acceptance += chains.acceptance[i] / (one.steps * one.chains);
      }
    }
    return { mean: sums.map((s) => c.mean(s)), error: sums.map((s) => Math.sqrt(c.variance(s) / one.chains)), acceptance };
  },
  principles(one, c) {
    const model = modelOf(one, c), out = new Float64Array(model.theta.length);
    const flat = (name) => Float64Array.from(one[name] ?? []);
    const value = {
      contrast: () => c.contrast(model, flat("data"), flat("samples"), out),
      scoreMatching: () => c.scoreMatching(model, flat("data"), out),
      denoising: () => c.denoising(model, flat("data"), flat("noise"), one.sigma, out),
      likelihood: () => c.likelihood(model, flat("data"), flat("nodes"), flat("masses"), one.logZ, out),
    }[one.principle]();
    return { value, gradient: Array.from(out) };
  },
  machines(one, c) {
    const m = machineOf(one, c), model = c.moments(m), data = c.moments(m), rows = Float64Array.from(one.rows);
    const logZ = m.exact(model);
    c.rowMoments(m, rows, data);
    const log = c.annealedImportance(m, Float64Array.from(one.base), one.chains, one.temperatures, new c.Random(5));
    const visited = new Float64Array(one.sweeps.rows * m.visible), rng = new c.Random(6);
    for (let t = 0; t < one.sweeps.burnIn; t++) c.sweep(m, visited, rng);
    const swept = c.moments(m);
    c.rowMoments(m, visited, swept);
    return {
      logZ,
      free: Array.from({ length: rows.length / m.visible }, (_, r) => m.freeEnergy(rows, r * m.visible)),
      likelihood: m.logLikelihood(rows, logZ),
      pseudo: c.pseudoLikelihood(m, rows),
      gradient: Array.from(data.weight, (w, k) => model.weight[k] - w),
      gradientVisible: Array.from(data.visible, (w, k) => model.visible[k] - w),
      gradientHidden: Array.from(data.hidden, (w, k) => model.hidden[k] - w),
      ais: c.summarize(log),
      swept: Array.from(swept.visible),
      visible: Array.from(model.visible),
      logits: m.labelLogits(rows, 0),
      labels: labelsOf(m, one, c),
    };
  },
  contrasts(one, c) { // CD of a machine with given samples
    const m = machineOf(one, c), data = c.moments(m), samples = c.moments(m);
    c.rowMoments(m, Float64Array.from(one.rows), data);
    c.rowMoments(m, Float64Array.from(one.samples), samples);
    return { weight: Array.from(data.weight, (w, k) => samples.weight[k] - w), visible: Array.from(data.visible, (w, k) => samples.visible[k] - w), hidden: Array.from(data.hidden, (w, k) => samples.hidden[k] - w) };
  },
  lattices(one, c) {
    const rng = new c.Random(one.seed), sums = [new c.Moments(), new c.Moments(), new c.Moments()];
    for (let chain = 0; chain < one.chains; chain++) { // independent chains: their means have an honest error
      const lattice = new c.Lattice(one.size, one.states, { ising: one.ising, field: one.field }).start("hot", rng);
      let e = 0, m = 0, two = 0;
      for (let t = 0; t < one.burnIn + one.steps; t++) {
        lattice[one.move](one.temperature, rng);
        if (t < one.burnIn) continue;
        const size = lattice.magnetization(), energy = lattice.energy();
        e += energy / one.steps;
        m += (one.field ? size : Math.abs(size)) / one.steps;
        two += (energy * energy) / one.steps;
      }
      [e, m, two].forEach((value, k) => sums[k].add(value));
    }
    return { mean: sums.map((s) => s.mean), error: sums.map((s) => Math.sqrt(s.variance / one.chains)) };
  },
  onsager: ({ temperature }, c) => c.onsager(temperature),
  ladders(one, c) {
    const law = { means: one.means, deviations: one.deviations, weights: one.weights, dim: 2 }, x = Float64Array.from(one.start);
    const rng = new Replay(one.normals, []), last = one.sigmas[one.sigmas.length - 1];
    for (const sigma of one.sigmas) {
      const noisy = c.blurred(law, sigma);
      for (let t = 0; t < one.stepsPerLevel; t++) c.annealedStep(noisy, x, (one.stepSize * sigma * sigma) / (last * last), rng);
    }
    return Array.from(x);
  },
  annealings(one, c) {
    const target = lawOf(one, c), base = c.round(2, one.scale), rng = new c.Random(one.seed);
    const draw = (n) => Float64Array.from({ length: 2 * n }, () => one.scale * rng.normal());
    const run = new c.AnnealedImportance(base, target, one.particles, c.linspace(0, 1, one.levels), c.mala({ stepSize: one.stepSize }), draw, rng);
    while (!run.done) run.step(1);
    const found = run.estimate();
    return { ...found, value: found.value + base.logZ };
  },
  times(one, c) { // autoregressions of known correlation
    const rng = new c.Random(3), record = new c.Recorder(200, 400), x = Float64Array.from({ length: 200 }, () => rng.normal());
    for (let t = 0; t < 400; t++) {
      for (let i = 0; i < 200; i++) x[i] = one.rho * x[i] + Math.sqrt(1 - one.rho ** 2) * rng.normal();
      record.push(x);
    }
    return c.integratedTime(record.autocorrelation(120));
  },
};

if (typeof process !== "undefined" && process.argv?.[2]) {
  const { readFileSync } = await import("node:fs");
  const { pathToFileURL } = await import("node:url");
  const cases = JSON.parse(readFileSync(process.argv[2], "utf8"));
  process.stdout.write(JSON.stringify(await run(cases, pathToFileURL(process.argv[3]).href)));
}
