// (f) Annealed importance sampling: particles, weights, and an estimate of log Z closing in on the truth.

import { AnnealedImportance, summarize } from "../core/annealing.js";
import { mala } from "../core/kernels.js";
import { banana, between, doubleWell, eightHills, ring, round, threeHills } from "../core/laws.js";
import { linspace } from "../core/math.js";
import { tabulate } from "../core/truth.js";
import { fixed, pretty } from "../ui/dom.js";
import { Field } from "../ui/field.js";
import { Plot } from "../ui/plot.js";

const LAWS = {
  ring: ["ring", () => ring({ width: 0.25 })],
  eight: ["eight hills", () => eightHills({ distance: 2.6 })],
  hills: ["three hills", () => threeHills({ distance: 1.8 })],
  well: ["double well", () => doubleWell({ barrier: 5 })],
  banana: ["banana", () => banana({ curvature: 0.4 })],
};
const WIDE = 12;

export const annealing = {
  id: "annealing",
  tab: "AIS",
  title: "Annealed importance sampling",
  lead: "How large is Z = ∫ exp(−E)? Start from a law whose Z is known, bend it step by step into the one that is not, and let every particle carry the weight that the bending cost it. The mean weight is an unbiased estimate of the ratio of the two.",
  look: "a few heavy particles carrying everything when the ladder is short, and the estimate below the truth; with more levels the weights even out and the interval, run after run, closes in on the line.",
  controls: [
    { id: "law", kind: "select", label: "Target", options: Object.entries(LAWS).map(([id, [label]]) => [id, label]), value: "ring", fresh: true },
    { id: "scale", kind: "slider", label: "width of the base", min: 0.4, max: 4, value: 2, log: true, fresh: true },
    { id: "levels", kind: "slider", label: "levels of β", min: 2, max: 500, step: 1, value: 60, log: true, fresh: true, format: (v) => String(Math.round(v)) },
    { id: "particles", kind: "slider", label: "particles", min: 10, max: 1000, step: 10, value: 200, log: true, fresh: true, format: (v) => String(Math.round(v)) },
    { id: "moves", kind: "slider", label: "MALA moves a level", min: 0, max: 10, step: 1, value: 1, fresh: true },
    { id: "step", kind: "slider", label: "their step ε", min: 0.05, max: 2, value: 0.35, log: true, fresh: true },
    { id: "speed", kind: "slider", label: "levels a frame", min: 0.05, max: 20, value: 0.5, log: true },
  ],
  presets: [
    { label: "a good ladder", set: {} },
    { label: "too short a ladder", set: { law: "eight", scale: 0.5, levels: 4, particles: 50, speed: 0.05 } },
    { label: "a long one from the same base", set: { law: "eight", scale: 0.5, levels: 200, particles: 50, speed: 2 } },
    { label: "no moves: plain importance sampling", set: { moves: 0 } },
    { label: "run after run", set: { law: "eight", levels: 40, speed: 12 } },
  ],
  create: (bench) => new Annealing(bench),
};

class Annealing {
  constructor(bench) {
    this.bench = bench;
    this.field = bench.stage("Particles on the way", (canvas) => new Field(canvas), { caption: "size: weight" });
    this.path = bench.chart("log Z along the way", (canvas) => new Plot(canvas), [["accent", "estimate"], ["warm", "truth"]]);
    this.weights = bench.chart("Weights of the particles", (canvas) => new Plot(canvas));
    this.pooled = bench.chart("All runs together", (canvas) => new Plot(canvas), [["accent", "± 2 se"], ["warm", "truth"]]);
    bench.fact("beta", "β now");
    bench.fact("estimate", "log Z, this run");
    bench.fact("pooled", "log Z, all runs");
    bench.fact("truth", "the truth");
    bench.fact("effective", "particles that count", "effective sample size (Σw)²/Σw²");
    bench.fact("runs", "runs ended");
  }

  reset() {
    const { values } = this.bench;
    this.rng = this.bench.random();
    this.target = LAWS[values.law][1]();
    this.base = round(2, values.scale);
    this.betas = linspace(0, 1, Math.round(values.levels));
    const wide = [-WIDE, WIDE, -WIDE, WIDE], law = between(this.base, this.target, 0);
    this.line = [...linspace(0, 1, 21)].map((beta) => {
      law.beta = beta;
      return [beta, tabulate(law, 140, wide).logZ];
    });
    this.truth = tabulate(this.target, 400, wide).logZ;
    this.all = [];
    this.closing = [];
    this.begin();
  }

  begin() {
    const { values } = this.bench, { rng, base } = this;
    const draw = (n) => Float64Array.from({ length: 2 * n }, () => values.scale * rng.normal());
    this.run = new AnnealedImportance(base, this.target, Math.round(values.particles), this.betas, mala({ stepSize: values.step }), draw, rng);
    this.trail = [];
    this.painted = -1;
    this.note();
  }

  note() {
    const { value, error, effective } = this.run.estimate();
    this.now = { value: value + this.base.logZ, error, effective };
    this.trail.push([this.run.beta, this.now.value, error]);
  }

  step() {
    if (this.run.done) {
      this.begin();
      return;
    }
    this.run.step(Math.round(this.bench.values.moves));
    this.note();
    if (!this.run.done) return;
    for (const w of this.run.logWeights) this.all.push(w);
    if (this.all.length > 200000) this.all.splice(0, this.all.length - 200000);
    const { value, error } = summarize(this.all);
    this.closing.push([this.closing.length ? this.closing.at(-1)[0] + 1 : 1, value + this.base.logZ, error]);
    if (this.closing.length > 400) this.closing = this.closing.filter((_, i) => i % 2);
  }

  draw() {
    const { field, run } = this, { c } = this.bench, beta = run.beta;
    if (field.stale || this.painted !== beta) {
      const near = Math.abs(beta - this.painted) > 0.02 || run.done || field.stale; // the shade changes slowly
      if (near) {
        field.paint(tabulate(run.path, 72, this.target.view), c, { contours: false });
        this.painted = beta;
      }
    }
    const n = run.logWeights.length, top = Math.max(...run.logWeights), sizes = new Float64Array(n);
    let sum = 0;
    for (let i = 0; i < n; i++) sum += sizes[i] = Math.exp(run.logWeights[i] - top);
    const unit = n > 400 ? 2 : 3;
    for (let i = 0; i < n; i++) sizes[i] = Math.min(26, Math.max(0.7, unit * Math.sqrt((n * sizes[i]) / sum)));
    field.begin();
    field.points(run.chains.x, c.warm, 3, { sizes });
  }

  charts() {
    const { bench, trail, closing, now, run } = this, { c } = bench, n = run.logWeights.length;
    const values = [...this.line.map(([, z]) => z), ...trail.map(([, z]) => z)], low = Math.min(...values), high = Math.max(...values);
    this.path.begin(c, { x: [0, 1], y: [low - 0.15 * (high - low), high + 0.15 * (high - low)], xLabel: "β" });
    this.path.band(trail.map((t) => t[0]), trail.map((t) => t[1] - 2 * t[2]), trail.map((t) => t[1] + 2 * t[2]), c.accent).line(this.line.map((t) => t[0]), this.line.map((t) => t[1]), c.warm).line(trail.map((t) => t[0]), trail.map((t) => t[1]), c.accent, 2);
    const sorted = Float64Array.from(run.logWeights).sort().reverse(), top = sorted[0];
    let sum = 0;
    const shares = Array.from(sorted, (w) => { const v = Math.exp(w - top); sum += v; return v; }).map((v) => v);
    this.weights.begin(c, { x: [0, n], y: [0, Math.max(2, shares[0] / sum * n)], xLabel: "heaviest first", yLabel: "" });
    this.weights.across(1, c.axis).line(shares.map((_, i) => i), shares.map((v) => (v / sum) * n), c.plum);
    const spread = closing.length ? Math.max(0.02, ...closing.slice(Math.min(2, closing.length - 1)).map((t) => Math.abs(t[1] - this.truth) + 2 * t[2])) : 1;
    const first = closing[0]?.[0] ?? 1, last = Math.max(first + 5, closing.at(-1)?.[0] ?? 0);
    this.pooled.begin(c, { x: [first, last], y: [this.truth - 1.2 * spread, this.truth + 1.2 * spread], xLabel: "runs" }).band(closing.map((t) => t[0]), closing.map((t) => t[1] - 2 * t[2]), closing.map((t) => t[1] + 2 * t[2]), c.accent, 0.25);
    this.pooled.line(closing.map((t) => t[0]), closing.map((t) => t[1]), c.accent).dots(closing.slice(-1).map((t) => t[0]), closing.slice(-1).map((t) => t[1]), c.accent).across(this.truth, c.warm, []);
    const pooled = closing.at(-1);
    bench.tell("beta", fixed(run.beta, 2));
    bench.tell("estimate", `${fixed(now.value, 2)} ± ${pretty(now.error, 2)}`);
    bench.tell("pooled", pooled ? `${fixed(pooled[1], 3)} ± ${pretty(pooled[2], 2)}` : "–");
    bench.tell("truth", fixed(this.truth, 3));
    bench.tell("effective", `${pretty(now.effective, 3)} of ${n}`);
    bench.tell("runs", pretty(pooled?.[0] ?? 0, 4));
  }

  describe() {
    const pooled = this.closing.at(-1);
    return `Annealed importance sampling at β = ${fixed(this.run.beta, 2)}: log Z ${fixed(this.now.value, 2)} with error ${pretty(this.now.error, 2)}; the truth at the end is ${fixed(this.truth, 2)}.` + (pooled ? ` ${pooled[0]} runs together give ${fixed(pooled[1], 3)} ± ${pretty(pooled[2], 2)}.` : "");
  }

  refit() {
    this.field.stale = true;
  }
}
