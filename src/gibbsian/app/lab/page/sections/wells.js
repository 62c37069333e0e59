// (c) A small energy is fitted to points, on the line or in the plane, by five principles; wells are dug as one watches.

import { Chains } from "../core/chains.js";
import { ula } from "../core/kernels.js";
import { Adam, contrast, denoising, likelihood, scoreMatching } from "../core/principles.js";
import { Bumps, Perceptron } from "../core/smallmodels.js";
import { Histogram } from "../core/statistics.js";
import { tabulate, tabulateLine } from "../core/truth.js";
import { fixed, pretty, withAlpha } from "../ui/dom.js";
import { Field } from "../ui/field.js";
import { Plot } from "../ui/plot.js";

const REACH = 4;
const PRINCIPLES = {
  cd: "contrastive divergence",
  pcd: "persistent chains",
  exact: "exact likelihood",
  sm: "score matching",
  dsm: "denoising score matching",
};
const LINES = { two: [[-1.6, 0.4, 0.6], [1.4, 0.5, 0.4]], far: [[-2.6, 0.35, 0.75], [2.6, 0.35, 0.25]], three: [[-2.2, 0.35, 0.3], [0, 0.5, 0.4], [2.3, 0.3, 0.3]] };
const PLANES = {
  two: (rng) => [rng.uniform() < 0.65 ? -1.5 : 1.5, 0].map((m) => m + 0.45 * rng.normal()),
  far: (rng) => [rng.uniform() < 0.75 ? -2.5 : 2.5, 0].map((m) => m + 0.35 * rng.normal()),
  three: (rng) => {
    const a = Math.PI * rng.uniform(), up = rng.uniform() < 0.5 ? 1 : -1;
    return [1.6 * Math.cos(a) - 0.8 * up + 0.12 * rng.normal(), up * (1.6 * Math.sin(a) - 0.4) + 0.12 * rng.normal()];
  },
};

export const wells = {
  id: "wells",
  tab: "Digging wells",
  title: "Learning digs wells",
  lead: "Training an energy means: down where the data are, up where the model's own samples are. Principles differ in where they look for those samples, and score matching needs none: it asks only for the slope.",
  look: "the energy sinking under the data and rising under the moving samples until the two pull alike. With wells far apart, watch score matching and short chains miss how much each one weighs.",
  broad: true,
  controls: [
    { id: "dim", kind: "choice", label: "Space", options: [["1", "the line"], ["2", "the plane"]], value: "1", fresh: true },
    { id: "data", kind: "choice", label: "Data", options: [["two", "two clumps"], ["far", "far apart"], ["three", "three, or moons"]], value: "two", fresh: true },
    { id: "principle", kind: "select", label: "Principle", options: Object.entries(PRINCIPLES), value: "cd" },
    { id: "model", kind: "choice", label: "Energy", options: [["bumps", "sum of bumps"], ["network", "small network"]], value: "bumps", fresh: true },
    { id: "k", kind: "slider", label: "Langevin steps, k", min: 1, max: 60, step: 1, value: 5, when: (v) => v.principle === "cd" || v.principle === "pcd" },
    { id: "step", kind: "slider", label: "their size ε", min: 0.02, max: 0.6, value: 0.2, log: true, when: (v) => v.principle === "cd" || v.principle === "pcd" },
    { id: "sigma", kind: "slider", label: "noise σ", min: 0.05, max: 1, value: 0.25, log: true, when: (v) => v.principle === "dsm" },
    { id: "rate", kind: "slider", label: "learning rate", min: 0.001, max: 0.3, value: 0.02, log: true },
    { id: "decay", kind: "slider", label: "weight decay", min: 0, max: 0.1, value: 0.01, note: "without it score matching digs a pit under every point" },
    { id: "points", kind: "slider", label: "data points", min: 20, max: 500, step: 10, value: 200, fresh: true },
    { id: "speed", kind: "slider", label: "updates a frame", min: 0.1, max: 4, value: 1, log: true },
  ],
  presets: [
    { label: "CD digs two wells", set: {} },
    { label: "CD-1 misjudges the weights", set: { data: "far", principle: "cd", k: 1, decay: 0.003 } },
    { label: "score matching, too", set: { data: "far", principle: "sm", decay: 0.003 } },
    { label: "the exact gradient does not", set: { data: "far", principle: "exact", decay: 0.003 } },
    { label: "noise blurs what is learned", set: { principle: "dsm", sigma: 0.6 } },
    { label: "moons by persistent chains", set: { dim: "2", data: "three", principle: "pcd", k: 10, rate: 0.01 } },
    { label: "moons by their slope", set: { dim: "2", data: "three", principle: "dsm", sigma: 0.2 } },
  ],
  create: (bench) => new Wells(bench),
};

class Wells {
  constructor(bench) {
    this.bench = bench;
    bench.stages.style.setProperty("--stage", "min(300px, 41vw)");
    this.flat = bench.stage("The energy, its data and its samples", (canvas) => new Plot(canvas, { height: 360, left: 14 }), { max: 900, legend: [["ink", "energy"], ["warm", "samples and density of the model"], ["accent", "data"]] });
    this.field = bench.stage("The law that was learned", (canvas) => new Field(canvas), { legend: [["accent", "data"], ["warm", "samples"]], max: 560 });
    this.truth = bench.stage("The law of the data", (canvas) => new Field(canvas), { max: 560 });
    this.curve = bench.chart("How far the law is from the truth", (canvas) => new Plot(canvas, { height: 170 }), [["accent", "KL divergence, nats"]]);
    this.loss = bench.chart("What the principle sees", (canvas) => new Plot(canvas, { height: 170 }), [["plum", "its loss"]]);
    bench.fact("updates", "updates");
    bench.fact("kl", "nats from the truth");
    bench.fact("weight", "mass on the left");
    bench.fact("target", "of the data there");
    bench.fact("loss", "loss");
  }

  get dim() {
    return Number(this.bench.values.dim);
  }

  reset() {
    const { values } = this.bench, rng = (this.rng = this.bench.random()), n = Math.round(values.points), d = this.dim;
    this.data = new Float64Array(n * d);
    for (let i = 0; i < n; i++) this.data.set(this.draw1(rng), i * d);
    this.model = values.model === "bumps" ? (d === 1 ? Bumps.grid(1, 24, REACH, 0.38, 0.25) : Bumps.grid(2, 13, 3.6, 0.5, 0.25)) : new Perceptron(d, d === 1 ? 24 : 40, 0.25, rng);
    this.adam = new Adam(this.model.theta.length);
    this.gradient = new Float64Array(this.model.theta.length);
    this.samples = new Chains(Float64Array.from({ length: Math.max(200, n) * d }, () => 1.5 * rng.normal()), d);
    this.history = { at: [], kl: [], loss: [] };
    this.smooth = NaN;
    const one = d === 1;
    this.flat.canvas.parentNode.hidden = !one;
    this.field.canvas.parentNode.hidden = one;
    this.truth.canvas.parentNode.hidden = one;
    this.flat.fit();
    this.field.fit();
    this.truth.fit();
    if (!one) this.makeTruth();
    this.measure();
  }

  /** One point of the data's law. */
  draw1(rng) {
    const { values } = this.bench;
    if (this.dim === 2) return PLANES[values.data](rng);
    const part = LINES[values.data], [m, s] = part[rng.choice(part.map((p) => p[2]))];
    return [m + s * rng.normal()];
  }

  density(x) {
    return LINES[this.bench.values.data].reduce((sum, [m, s, w]) => sum + (w * Math.exp(-0.5 * ((x - m) / s) ** 2)) / (s * Math.sqrt(2 * Math.PI)), 0);
  }

  /** The data's law in the plane, from many draws, smoothed a little. */
  makeTruth() {
    const n = 60, counts = new Float64Array(n * n), view = [-REACH, REACH, -REACH, REACH], rng = this.bench.random(), cell = (2 * REACH) / n, draws = 40000;
    for (let i = 0; i < draws; i++) {
      const [x, y] = this.draw1(rng), a = Math.floor((x + REACH) / cell), b = Math.floor((y + REACH) / cell);
      if (a > 0 && b > 0 && a < n - 1 && b < n - 1) for (let u = -1; u <= 1; u++) for (let v = -1; v <= 1; v++) counts[(b + v) * n + a + u] += (u ? 0.25 : 0.5) * (v ? 0.25 : 0.5);
    }
    this.target = { n, view, density: counts.map((k) => k / (draws * cell * cell)) };
  }

  step() {
    const { values } = this.bench, { model, data, gradient, rng, dim: d } = this;
    let loss;
    if (values.principle === "sm") loss = scoreMatching(model, data, gradient);
    else if (values.principle === "dsm") {
      const noise = Float64Array.from({ length: data.length }, () => rng.normal());
      loss = denoising(model, data, noise, values.sigma, gradient);
    } else if (values.principle === "exact") {
      const t = this.table();
      loss = likelihood(model, data, t.nodes, t.masses, t.logZ, gradient);
    } else {
      if (values.principle === "cd") this.samples = new Chains(data.slice(), d);
      this.samples.evaluate(model);
      const kernel = ula({ stepSize: values.step });
      for (let t = 0; t < Math.round(values.k); t++) kernel.step(model, this.samples, rng);
      loss = contrast(model, data, this.samples.x, gradient);
    }
    const decay = values.decay * (values.model === "network" ? 0.3 : 1); // a network's weights multiply each other
    for (let i = 0; i < gradient.length; i++) gradient[i] += decay * model.theta[i];
    this.adam.step(model.theta, gradient, values.rate);
    this.smooth = Number.isNaN(this.smooth) ? loss : 0.9 * this.smooth + 0.1 * loss;
    this.drift();
    if (this.bench.steps % 10 === 9) this.measure();
  }

  /** Principles without chains get some to look at. */
  drift() {
    if (["cd", "pcd"].includes(this.bench.values.principle)) return;
    this.samples.evaluate(this.model);
    ula({ stepSize: 0.15 }).step(this.model, this.samples, this.rng);
  }

  /** Nodes and masses of the model's law. */
  table() {
    if (this.dim === 1) {
      const t = tabulateLine(this.model, -6, 6, 240);
      return { ...t, nodes: t.at, masses: t.density.map((p) => p * t.dx) };
    }
    const n = 60, t = tabulate(this.model, n, [-REACH, REACH, -REACH, REACH]), cell = (2 * REACH) / n, nodes = new Float64Array(2 * n * n);
    for (let i = 0; i < n * n; i++) {
      nodes[2 * i] = -REACH + ((i % n) + 0.5) * cell;
      nodes[2 * i + 1] = -REACH + (Math.floor(i / n) + 0.5) * cell;
    }
    return { ...t, nodes, masses: t.density.map((p) => p * cell * cell) };
  }

  measure() {
    const t = this.table();
    let kl = 0, left = 0;
    for (let i = 0; i < t.masses.length; i++) {
      const x = t.nodes[i * this.dim];
      if (x < 0) left += t.masses[i];
      const size = t.masses[i] / t.density[i], p = (this.dim === 1 ? this.density(x) : this.target.density[i]) * size;
      if (p > 1e-12) kl += p * Math.log(p / Math.max(t.masses[i], 1e-300));
    }
    let below = 0;
    for (let i = 0; i < this.data.length; i += this.dim) below += this.data[i] < 0 ? 1 : 0;
    this.found = { t, kl, left, target: below / (this.data.length / this.dim) };
    this.history.at.push(this.bench.steps + (this.bench.steps ? 1 : 0));
    this.history.kl.push(kl);
    this.history.loss.push(this.smooth);
    if (this.history.at.length > 600) for (const list of Object.values(this.history)) list.splice(1, list.length, ...list.slice(1).filter((_, i) => i % 2));
  }

  draw() {
    if (this.dim === 1) this.drawLine();
    else this.drawPlane();
  }

  drawLine() {
    const { flat, data, model } = this, { c, values } = this.bench, t = tabulateLine(model, -REACH, REACH, 240), lowest = Math.min(...t.energy);
    const bars = new Histogram(-REACH, REACH, 56);
    for (const x of data) bars.add(x);
    flat.begin(c, { x: [-REACH, REACH], y: [-0.35, 1], yTicks: false });
    const density = bars.density(), top = 2.2 * Math.max(...density, ...t.density);
    flat.bars(-REACH, REACH, density.map((p) => p / top), c.accent, 0.3);
    flat.line(t.at, t.density.map((p) => p / top), c.warm, 2.2);
    flat.line(t.at, t.energy.map((e) => 0.42 + (e - lowest) / 14), c.ink, 2.4);
    const sample = this.samples.x, dots = Math.min(sample.length, 160);
    const g = new Float64Array(1), on = (x) => 0.42 + (model.evaluate([x], g) - lowest) / 14;
    flat.dots(data.subarray(0, Math.min(160, data.length)), Float64Array.from(data.subarray(0, 160), (_, i) => -0.12 - 0.05 * ((i * 0.618) % 1)), withAlpha(c.accent, 0.55), 2.6);
    flat.dots(sample.subarray(0, dots), Float64Array.from(sample.subarray(0, dots), on), withAlpha(c.warm, 0.8), 3);
  }

  drawPlane() {
    const { field, truth, data, found } = this, { c } = this.bench;
    if (this.painted !== found || field.stale) field.paint(found.t, c, { tint: c.warm });
    if (truth.stale || this.shownTarget !== this.target) truth.paint(this.target, c, { contours: false });
    this.painted = found;
    this.shownTarget = this.target;
    field.begin();
    field.points(data.subarray(0, 600), withAlpha(c.accent, 0.8), 1.8, { halo: false });
    field.points(this.samples.x.subarray(0, 400), c.warm, 2.6);
    truth.begin();
    truth.points(data, withAlpha(c.accent, 0.9), 2.2, { halo: false });
  }

  charts() {
    const { bench, history, found } = this, { c } = bench, last = Math.max(40, history.at.at(-1));
    const finite = history.kl.filter(Number.isFinite);
    this.curve.begin(c, { x: [0, last], y: [0, Math.max(0.2, ...finite.slice(0, 1), ...finite.slice(-60)) * 1.05], xLabel: "updates" }).line(history.at, history.kl, c.accent);
    const losses = history.loss.filter(Number.isFinite), late = losses.slice(Math.min(3, losses.length - 1));
    if (late.length) this.loss.begin(c, { x: [0, last], y: [Math.min(...late), Math.max(...late, Math.min(...late) + 0.05)], xLabel: "updates" }).line(history.at, history.loss, c.plum);
    bench.tell("updates", pretty(bench.steps, 4));
    bench.tell("kl", fixed(found.kl, 3));
    bench.tell("weight", `${fixed(100 * found.left, 0)} %`);
    bench.tell("target", `${fixed(100 * found.target, 0)} %`);
    bench.tell("loss", Number.isFinite(this.smooth) ? fixed(this.smooth, 2) : "–");
  }

  describe() {
    const { values, steps } = this.bench;
    return `An energy on ${values.dim === "1" ? "the line" : "the plane"}, learned by ${PRINCIPLES[values.principle]}, after ${steps} updates: ${fixed(this.found.kl, 2)} nats from the truth, ${fixed(100 * this.found.left, 0)} % of its mass on the left, where ${fixed(100 * this.found.target, 0)} % of the data lie.`;
  }

  refit() {
    this.field.stale = this.truth.stale = true;
  }
}
