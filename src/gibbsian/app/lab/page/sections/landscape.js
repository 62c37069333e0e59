// (a) Chains in the plane: any law, any kernel, beside the truth by quadrature.

import { Chains } from "../core/chains.js";
import { Drawing } from "../core/drawn.js";
import { parse } from "../core/formula.js";
import { guided, hmc, independence, mala, microcanonical, randomWalk, ula, underdamped } from "../core/kernels.js";
import { banana, doubleWell, eightHills, funnel, gaussian, ring, tempered, threeHills } from "../core/laws.js";
import { geometric, mean } from "../core/math.js";
import { nuts } from "../core/nuts.js";
import { Histogram, integratedTime, Recorder } from "../core/statistics.js";
import { tempering } from "../core/tempering.js";
import { tabulate } from "../core/truth.js";
import { fixed, pretty, withAlpha } from "../ui/dom.js";
import { Field } from "../ui/field.js";
import { Plot } from "../ui/plot.js";

const LAWS = {
  hills: { label: "three hills", make: (v) => threeHills({ distance: v.distance }), start: (v) => [-v.distance, -0.6 * v.distance] },
  eight: { label: "eight hills", make: (v) => eightHills({ distance: 1.4 * v.distance }), start: (v) => [1.4 * v.distance, 0] },
  banana: { label: "banana", make: (v) => banana({ curvature: v.curvature }), start: () => [-4, 5] },
  ring: { label: "ring", make: (v) => ring({ width: v.width }), start: () => [2, 0] },
  well: { label: "double well", make: (v) => doubleWell({ barrier: v.barrier }), start: () => [-1.5, 0] },
  funnel: { label: "funnel", make: () => funnel(), start: () => [2, 0] },
  gaussian: { label: "correlated Gaussian", make: (v) => gaussian({ correlation: v.correlation }), start: () => [-3, 3] },
  formula: { label: "your own formula", make: (v) => ({ ...parse(v.formula), view: [-4, 4, -4, 4] }), start: () => [0.1, 0.1] },
  drawing: { label: "your own drawing", make: () => null, start: () => [-1, 0.5] },
};
const KERNELS = {
  walk: { label: "random-walk Metropolis", make: (v) => randomWalk({ stepSize: v.step }) },
  independence: { label: "independence Metropolis", make: (v) => independence({ width: v.spread }) },
  ula: { label: "Langevin (unadjusted)", make: (v) => ula({ stepSize: v.step }) },
  mala: { label: "MALA", make: (v) => mala({ stepSize: v.step, mass: v.mass }) },
  hmc: { label: "HMC", make: (v) => hmc({ stepSize: v.step, leapfrogSteps: v.leapfrog, mass: v.mass }) },
  nuts: { label: "NUTS", make: (v) => nuts({ stepSize: v.step, mass: v.mass }) },
  underdamped: { label: "underdamped Langevin", make: (v) => underdamped({ stepSize: v.step, friction: v.friction, mass: v.mass }) },
  guided: { label: "generalized HMC", make: (v) => guided({ stepSize: v.step, friction: v.friction, mass: v.mass }) },
  microcanonical: { label: "microcanonical (adjusted)", make: (v) => microcanonical({ stepSize: v.step, leapfrogSteps: v.leapfrog }) },
  tempering: { label: "parallel tempering", make: (v) => tempering({ temperatures: [...geometric(1, v.hottest, 5)], inner: (t) => mala({ stepSize: v.step * Math.sqrt(t) }) }) },
};
const has = (...names) => (v) => names.includes(v.kernel);
const of = (...names) => (v) => names.includes(v.law);
const options = (table) => Object.entries(table).map(([id, { label }]) => [id, label]);

const SHAPES = ["distance", "curvature", "width", "barrier", "correlation", "formula"];
const GRID = 144, BINS = 48, TRAIL = 160;

export const landscape = {
  id: "landscape",
  tab: "Landscapes",
  title: "Chains in a landscape",
  lead: "An energy E(x) over the plane is a law, p(x) ∝ exp(−E(x)/T): shaded where it has mass. Chains walk over it by the rule you choose; what they leave behind should be that law.",
  look: "how far a chain gets before it has forgotten where it was, and whether the bars below grow into the line, which is the truth. Click or touch the landscape to drop all chains there.",
  controls: [
    { id: "law", kind: "select", label: "Landscape", options: options(LAWS), value: "hills", fresh: true },
    { id: "distance", kind: "slider", label: "distance of the hills", min: 0.5, max: 2.4, value: 1.6, when: of("hills", "eight") },
    { id: "curvature", kind: "slider", label: "curvature b", min: 0, max: 0.6, value: 0.4, when: of("banana") },
    { id: "width", kind: "slider", label: "width of the ring", min: 0.1, max: 0.8, value: 0.25, log: true, when: of("ring") },
    { id: "barrier", kind: "slider", label: "height of the barrier", min: 0.5, max: 12, value: 4, unit: "kT", when: of("well") },
    { id: "correlation", kind: "slider", label: "correlation", min: 0, max: 0.99, value: 0.95, when: of("gaussian") },
    { id: "formula", kind: "text", label: "E(x, y) =", value: "(x^2 + y - 2)^2 + (x + y^2 - 2)^2/2", note: "numbers, x, y, + − * / ^, exp, log, sqrt, sin, cos, tanh, abs, min, max, …", when: of("formula") },
    { id: "brush", kind: "choice", label: "Drag over the landscape to", options: [["dig", "dig a valley"], ["fill", "fill it up"]], value: "dig", when: of("drawing") },
    { id: "kernel", kind: "select", label: "Kernel", options: options(KERNELS), value: "mala" },
    { id: "step", kind: "slider", label: "step size ε", min: 0.02, max: 3, value: 0.4, log: true, when: (v) => v.kernel !== "independence" },
    { id: "spread", kind: "slider", label: "width of the proposals", min: 0.3, max: 6, value: 2.5, log: true, when: has("independence") },
    { id: "leapfrog", kind: "slider", label: "leapfrog steps L", min: 1, max: 40, step: 1, value: 10, when: has("hmc", "microcanonical") },
    { id: "friction", kind: "slider", label: "friction γ", min: 0.02, max: 10, value: 0.5, log: true, unit: "per unit of time", when: has("underdamped", "guided") },
    { id: "mass", kind: "slider", label: "mass m", min: 0.1, max: 10, value: 1, log: true, when: has("mala", "hmc", "nuts", "underdamped", "guided") },
    { id: "hottest", kind: "slider", label: "hottest of five replicas", min: 1.5, max: 60, value: 12, log: true, unit: "× T", when: has("tempering") },
    { id: "temperature", kind: "slider", label: "temperature T", min: 0.1, max: 10, value: 1, log: true },
    { id: "chains", kind: "slider", label: "chains", min: 1, max: 2000, step: 1, value: 200, log: true, fresh: true, format: (v) => String(Math.round(v)) },
    { id: "speed", kind: "slider", label: "steps a frame", min: 0.05, max: 20, value: 1, log: true },
  ],
  presets: [
    { label: "small steps, slow walk", set: { law: "banana", kernel: "walk", step: 0.15 } },
    { label: "HMC glides along", set: { law: "banana", kernel: "hmc", step: 0.25, leapfrog: 12, chains: 12, speed: 0.15 } },
    { label: "Langevin's bias", set: { law: "gaussian", correlation: 0, kernel: "ula", step: 1.2, chains: 1000 } },
    { label: "a barrier of 8 kT", set: { law: "well", barrier: 8, kernel: "mala", step: 0.4, speed: 4 } },
    { label: "tempering crosses it", set: { law: "well", barrier: 8, kernel: "tempering", step: 0.4, speed: 4 } },
    { label: "NUTS on a ring", set: { law: "ring", kernel: "nuts", step: 0.12, chains: 20, speed: 0.2 } },
    { label: "draw your own", set: { law: "drawing", kernel: "mala", step: 0.15, chains: 400 } },
  ],
  create: (bench) => new Landscape(bench),
};

class Landscape {
  constructor(bench) {
    this.bench = bench;
    this.field = bench.stage("The landscape", (canvas) => new Field(canvas), { hands: true });
    this.plots = ["x", "y"].map((axis) => bench.chart(`Histogram of ${axis}`, (canvas) => new Plot(canvas, { left: 12 }), [["accent", "chains"], ["warm", "truth"]]));
    this.correlation = bench.chart("Autocorrelation", (canvas) => new Plot(canvas), [["accent", "x"], ["plum", "y"]]);
    bench.fact("acceptance", "accepted moves");
    bench.fact("time", "autocorrelation time, steps", "steps until a chain has forgotten where it was: τ = 1 + 2Σρ");
    bench.fact("cost", "gradients per independent draw");
    bench.fact("distance", "histogram off the truth by", "half the area between bars and line, the larger of x and y");
    bench.fact("steps", "steps of each chain");
    this.drawing = null;
    this.listen(this.field.canvas);
  }

  // --- law and chains -------------------------------------------------------------------------------------------

  makeLaw() {
    const { values } = this.bench;
    if (values.law === "drawing") {
      if (!this.drawing) {
        this.drawing = new Drawing([-3, 3, -3, 3]);
        for (let t = 0; t <= 1; t += 0.04) this.drawing.paint(-1.8 + 3.6 * t, 1.1 * Math.sin(5 * t), 0.3, 1.5);
      }
      return this.drawing;
    }
    return LAWS[values.law].make(values);
  }

  reset() {
    const { values } = this.bench;
    this.rng = this.bench.random();
    this.problem = "";
    try {
      this.plain = this.makeLaw();
    } catch (error) { // a formula in the address that cannot be read
      this.problem = error.message;
      this.plain = LAWS.formula.make(this.bench.defaults());
    }
    const start = LAWS[values.law].start(values);
    this.chains = Chains.around(start, 0.08, Math.round(values.chains), this.rng);
    this.prepare();
  }

  /** After a change of the law or its temperature: the truth and the chains' energies anew, statistics from the start. */
  prepare() {
    const { values, c } = this.bench;
    this.law = tempered(this.plain, values.temperature);
    this.table = tabulate(this.law, GRID, this.plain.view);
    this.field.paint(this.table, c);
    this.chains.evaluate(this.law);
    this.makeKernel();
    this.forget();
  }

  makeKernel() {
    this.kernel = KERNELS[this.bench.values.kernel].make(this.bench.values);
    this.watch();
    this.record = ["x", "y"].map(() => new Recorder(Math.min(40, this.chains.count), 300));
    this.accepted = { sum: 0, count: 0, from: this.chains.evaluations, steps: 0 };
  }

  forget() {
    const v = this.plain.view;
    this.histograms = [new Histogram(v[0], v[1], BINS), new Histogram(v[2], v[3], BINS)];
  }

  /** Remember where the first few chains went, trajectories included. */
  watch() {
    const few = Math.min(this.chains.count, this.chains.count > 60 ? 3 : 6);
    this.trails = Array.from({ length: few }, () => []);
    this.chains.watched = few;
    this.chains.visit = (i, x) => this.trails[i].push(x[0], x[1]);
  }

  change(changes) {
    const shaped = SHAPES.some((id) => id in changes);
    if (shaped || "temperature" in changes) {
      if (shaped) this.plain = this.makeLaw();
      if (shaped) this.problem = "";
      this.prepare();
    } else if (!("speed" in changes) && !("brush" in changes)) {
      this.makeKernel();
      this.forget();
    }
  }

  step() {
    const { chains } = this;
    this.kernel.step(this.law, chains, this.rng);
    for (let i = 0; i < this.trails.length; i++) {
      const trail = this.trails[i];
      trail.push(chains.x[2 * i], chains.x[2 * i + 1]);
      if (trail.length > 2 * TRAIL) trail.splice(0, trail.length - 2 * TRAIL);
    }
    const [hx, hy] = this.histograms;
    for (let i = 0; i < chains.count; i++) {
      hx.add(chains.x[2 * i]);
      hy.add(chains.x[2 * i + 1]);
    }
    this.record.forEach((record, j) => record.push(chains.x, 2, j));
    this.accepted.sum += mean(chains.acceptance);
    this.accepted.count++;
  }

  // --- pictures -------------------------------------------------------------------------------------------------

  draw() {
    const { field, chains } = this, { c } = this.bench;
    if (field.stale) field.paint(this.table, c);
    field.begin();
    const hot = this.kernel.replicas?.();
    if (hot) hot.slice(1).forEach((replica, k) => field.points(replica.x.subarray(0, 2 * Math.min(150, replica.count)), withAlpha(c.gold, 0.6 - 0.1 * k), 1.8, { halo: false }));
    for (const trail of this.trails) field.path(trail, withAlpha(c.warm, 0.5));
    field.points(chains.x, c.warm, chains.count > 300 ? 2.2 : 3.4);
    if (this.cursor) field.points(Float64Array.from(this.cursor), c.ink, 5);
  }

  charts() {
    const { bench, table, record } = this, { c } = bench;
    this.plots.forEach((plot, j) => {
      const v = table.view, low = v[2 * j], high = v[2 * j + 1], truth = table.marginals[j], bars = this.histograms[j].density();
      const top = 1.15 * Math.max(...truth, 1e-9);
      const xs = Array.from(truth, (_, i) => low + ((i + 0.5) * (high - low)) / truth.length);
      plot.begin(c, { x: [low, high], y: [0, Math.min(2.2 * top, Math.max(top, 1.05 * Math.max(...bars)))], yTicks: false });
      plot.bars(low, high, bars, c.accent).line(xs, truth, c.warm);
    });
    const rho = record.map((r) => r.autocorrelation(100)), lags = Array.from(rho[0], (_, k) => k);
    this.correlation.begin(c, { x: [0, Math.max(20, lags.length - 1)], y: [-0.4, 1], xLabel: "lag, steps" }).across(0, c.axis, []);
    this.correlation.line(lags, rho[0], c.accent).line(lags, rho[1], c.plum);
    const tau = Math.max(...rho.map(integratedTime)), enough = record[0].filled > 20;
    const perStep = (this.chains.evaluations - this.accepted.from) / Math.max(1, this.accepted.count) / this.chains.count;
    const acceptance = this.accepted.sum / this.accepted.count;
    bench.tell("acceptance", Number.isNaN(acceptance) ? (this.accepted.count ? "no test" : "–") : `${fixed(100 * acceptance, 0)} %`);
    bench.tell("time", enough ? (tau > 60 ? "> 60" : pretty(tau, 2)) : "–");
    bench.tell("cost", enough ? (tau > 60 ? `> ${pretty(60 * perStep, 2)}` : pretty(Math.max(1, tau) * perStep, 2)) : "–");
    const off = Math.max(...this.histograms.map((h, j) => h.distance(table.marginals[j])));
    bench.tell("distance", this.histograms[0].total ? `${fixed(100 * off, off < 0.1 ? 1 : 0)} %` : "–");
    bench.tell("steps", pretty(bench.steps, 4));
    const lost = Number.isFinite(table.logZ) ? table.edge > 0.02 : true;
    this.field.note.textContent = this.problem ? `${this.problem}; another landscape is shown` : lost ? "mass reaches the edge: this energy may not be a law" : "";
    this.facts = { acceptance, tau, off };
  }

  describe() {
    const { values, steps } = this.bench, f = this.facts ?? {};
    return `${LAWS[values.law].label}, sampled by ${KERNELS[values.kernel].label} with ${Math.round(values.chains)} chains after ${steps} steps.` + (Number.isFinite(f.acceptance) ? ` ${fixed(100 * f.acceptance, 0)} % of moves accepted.` : "") + (f.off !== undefined ? ` The histograms differ from the truth by ${fixed(100 * f.off, 0)} %.` : "");
  }

  refit() {
    this.field.stale = true;
  }

  // --- hands ----------------------------------------------------------------------------------------------------

  listen(canvas) {
    let down = false;
    canvas.addEventListener("pointerdown", (event) => {
      down = true;
      canvas.setPointerCapture(event.pointerId);
      this.touch(...this.field.where(event));
    });
    canvas.addEventListener("pointermove", (event) => down && this.bench.values.law === "drawing" && this.touch(...this.field.where(event)));
    const up = () => {
      if (down && this.bench.values.law === "drawing") this.prepare();
      down = false;
    };
    canvas.addEventListener("pointerup", up);
    canvas.addEventListener("pointercancel", up);
    canvas.addEventListener("keydown", (event) => {
      const v = this.plain.view, move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
      if (move) {
        const [x, y] = this.cursor ?? [0, 0];
        this.cursor = [Math.min(v[1], Math.max(v[0], x + (move[0] * (v[1] - v[0])) / 40)), Math.min(v[3], Math.max(v[2], y + (move[1] * (v[3] - v[2])) / 40))];
      } else if (event.key === "Enter" && this.cursor) {
        this.touch(...this.cursor);
        if (this.bench.values.law === "drawing") this.prepare();
      } else return;
      event.preventDefault();
      this.bench.redraw();
    });
    canvas.addEventListener("blur", () => (this.cursor = null));
  }

  /** Dig where a drawing is touched; drop all chains on any other landscape. */
  touch(x, y) {
    const { chains } = this;
    if (this.bench.values.law === "drawing") {
      this.plain.paint(x, y, 0.28, this.bench.values.brush === "dig" ? 0.9 : -0.9);
      this.table = tabulate(this.law, 72, this.plain.view);
      this.field.paint(this.table, this.bench.c, { contours: false });
    } else {
      for (let i = 0; i < chains.count; i++) {
        chains.x[2 * i] = x + 0.02 * this.rng.normal();
        chains.x[2 * i + 1] = y + 0.02 * this.rng.normal();
      }
      chains.evaluate(this.law);
      this.makeKernel();
      this.forget();
    }
    this.bench.redraw();
  }
}
