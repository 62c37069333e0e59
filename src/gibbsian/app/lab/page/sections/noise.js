// (e) Annealed Langevin dynamics through noise levels, beside plain Langevin at the last one.

import { annealedStep, blurred } from "../core/annealing.js";
import { geometric } from "../core/math.js";
import { tabulate } from "../core/truth.js";
import { fixed, pretty } from "../ui/dom.js";
import { Field } from "../ui/field.js";
import { Plot } from "../ui/plot.js";

const VIEW = [-6, 6, -6, 6];

const arc = (x, y, r, from, to, n) => Array.from({ length: n }, (_, i) => [x + r * Math.cos(from + ((to - from) * i) / n), y + r * Math.sin(from + ((to - from) * i) / n)]);
const rise = (x, from, to, n) => Array.from({ length: n }, (_, i) => [x, from + ((to - from) * i) / (n - 1)]);

/** Mixtures of small Gaussians, told by groups: [where, share of the mass]. */
const LAWS = {
  two: () => group([[[-3, -3], 0.8], [[3, 3], 0.2]].map(([m, w]) => ({ points: [m], weight: w, deviation: 0.5 }))),
  five: () => group([[[-3.5, 0], 0.4], [[3.5, 0], 0.1], [[0, 3.5], 0.2], [[0, -3.5], 0.2], [[0, 0], 0.1]].map(([m, w]) => ({ points: [m], weight: w, deviation: 0.35 }))),
  moons: () => group([1, -1].map((up) => ({ weight: up > 0 ? 0.7 : 0.3, deviation: 0.16, points: Array.from({ length: 16 }, (_, i) => [2.6 * Math.cos((Math.PI * (i + 0.5)) / 16) - 1.3 * up, up * (2.6 * Math.sin((Math.PI * (i + 0.5)) / 16) - 0.7) + 1.6 * up]) }))),
  letters: () => group([ // g and b
    { weight: 0.65, deviation: 0.14, points: [...arc(-2.6, 1, 1.3, 0, 2 * Math.PI, 15), ...rise(-1.3, -1.7, 2.1, 7), ...arc(-2.6, -1.8, 1.3, 0, -0.85 * Math.PI, 8)] },
    { weight: 0.35, deviation: 0.14, points: [...rise(1.2, -0.2, 4, 9), ...arc(2.5, 0.9, 1.3, 0, 2 * Math.PI, 15)] },
  ]),
};

function group(parts) {
  const means = [], deviations = [], weights = [], owner = [];
  parts.forEach((part, g) => part.points.forEach((m) => {
    means.push(...m);
    deviations.push(part.deviation);
    weights.push(part.weight / part.points.length);
    owner.push(g);
  }));
  return { means, deviations, weights, owner, shares: parts.map((p) => p.weight), view: VIEW, dim: 2 };
}

export const noise = {
  id: "noise",
  tab: "Noise levels",
  title: "Langevin through noise levels",
  lead: "Blurred enough, any law is one smooth hill, and chains find their way over it. Annealed Langevin follows the score of the blurred law while the blur is taken back, level by level; generative models of images draw this way.",
  look: "the share of chains that ends in each part of the law. Annealed, it is nearly right, because it was decided while the parts were joined; plain Langevin lets the nearest part take all.",
  broad: true,
  controls: [
    { id: "law", kind: "select", label: "Law", options: [["two", "two hills, 80 : 20"], ["five", "five hills"], ["moons", "moons, 70 : 30"], ["letters", "two letters"]], value: "two", fresh: true },
    { id: "high", kind: "slider", label: "first noise level σ₁", min: 0.3, max: 10, value: 6, log: true, fresh: true },
    { id: "low", kind: "slider", label: "last noise level σ_L", min: 0.03, max: 1, value: 0.1, log: true, fresh: true },
    { id: "levels", kind: "slider", label: "levels", min: 1, max: 30, step: 1, value: 12, fresh: true },
    { id: "each", kind: "slider", label: "steps a level", min: 1, max: 100, step: 1, value: 30, fresh: true },
    { id: "step", kind: "slider", label: "step ε / σ_L²", min: 0.01, max: 1, value: 0.2, log: true, note: "α = ε σ²/σ_L²: the steps shrink with the noise" },
    { id: "chains", kind: "slider", label: "chains", min: 20, max: 1000, value: 400, log: true, step: 10, fresh: true },
    { id: "speed", kind: "slider", label: "steps a frame", min: 0.1, max: 10, value: 1.5, log: true },
  ],
  presets: [
    { label: "80 : 20 comes out right", set: {} },
    { label: "too little noise at the start", set: { high: 0.5 } },
    { label: "too few levels", set: { levels: 2, each: 60 } },
    { label: "moons out of a cloud", set: { law: "moons", low: 0.06, levels: 16 } },
    { label: "letters out of noise", set: { law: "letters", low: 0.05, levels: 18, chains: 800, step: 0.15 } },
  ],
  create: (bench) => new Noise(bench),
};

class Noise {
  constructor(bench) {
    this.bench = bench;
    bench.stages.style.setProperty("--stage", "min(300px, 41vw)");
    this.left = bench.stage("Annealed", (canvas) => new Field(canvas), { max: 520 });
    this.right = bench.stage("Plain Langevin", (canvas) => new Field(canvas), { caption: "the law itself, the last level's step", max: 520 });
    this.ladder = bench.chart("Noise level", (canvas) => new Plot(canvas), [["accent", "σ"]]);
    this.parts = bench.chart("Share of each part", (canvas) => new Plot(canvas), [["ink", "truth"], ["accent", "annealed"], ["warm", "plain"]]);
    bench.fact("level", "level");
    bench.fact("sigma", "noise σ now");
    bench.fact("annealed", "shares off by, annealed");
    bench.fact("plain", "shares off by, plain");
    bench.fact("steps", "steps");
  }

  reset() {
    const { values } = this.bench, rng = (this.rng = this.bench.random()), n = Math.round(values.chains);
    this.spec = LAWS[values.law]();
    this.sigmas = [...geometric(values.high, Math.min(values.low, values.high), Math.round(values.levels))];
    this.x = Float64Array.from({ length: 2 * n }, () => VIEW[0] + rng.uniform() * (VIEW[1] - VIEW[0]));
    this.y = this.x.slice();
    this.plain = blurred(this.spec, this.sigmas.at(-1));
    this.truth = tabulate(this.plain, 110, VIEW);
    this.level = -1;
    this.at = 0;
    this.enter(0);
    this.right.stale = true;
  }

  enter(level) {
    if (level === this.level) return;
    this.level = level;
    this.law = blurred(this.spec, this.sigmas[level]);
    this.table = tabulate(this.law, 90, VIEW);
    this.left.stale = true;
  }

  step() {
    const { values } = this.bench, each = Math.round(values.each), last = this.sigmas.at(-1);
    const level = Math.min(this.sigmas.length - 1, Math.floor(this.at / each));
    this.enter(level);
    const alpha = values.step * this.sigmas[level] ** 2;
    annealedStep(this.law, this.x, alpha, this.rng);
    annealedStep(this.plain, this.y, values.step * last * last, this.rng);
    this.at++;
    if (this.at >= each * this.sigmas.length) this.bench.play(false); // it ends
  }

  draw() {
    const { c } = this.bench;
    if (this.left.stale) this.left.paint(this.table, c, { contours: false });
    if (this.right.stale) this.right.paint(this.truth, c, { contours: false });
    this.left.begin();
    this.left.points(this.x, c.warm, 2.6);
    this.right.begin();
    this.right.points(this.y, c.warm, 2.6);
  }

  /** Which share of the points is nearest to each part. */
  shares(x) {
    const { means, owner, shares } = this.spec, out = shares.map(() => 0), n = x.length / 2;
    for (let i = 0; i < x.length; i += 2) {
      let best = Infinity, who = 0;
      for (let k = 0; k < owner.length; k++) {
        const q = (x[i] - means[2 * k]) ** 2 + (x[i + 1] - means[2 * k + 1]) ** 2;
        if (q < best) [best, who] = [q, owner[k]];
      }
      out[who] += 1 / n;
    }
    return out;
  }

  charts() {
    const { bench, sigmas } = this, { c, values } = bench, each = Math.round(values.each), total = each * sigmas.length;
    const xs = sigmas.flatMap((_, i) => [i * each, (i + 1) * each]), ys = sigmas.flatMap((s) => [s, s]);
    this.ladder.begin(c, { x: [0, total], y: [sigmas.at(-1) * 0.8, sigmas[0] * 1.3], xLabel: "steps", log: true }).line(xs, ys, c.accent).upright(Math.min(this.at, total), c.warm);
    const truth = this.spec.shares, annealed = this.shares(this.x), plain = this.shares(this.y), k = truth.length;
    this.parts.begin(c, { x: [0, k], y: [0, 1.05 * Math.max(...truth, ...annealed, ...plain)], xTicks: false });
    const bar = (values, offset, color, alpha) => values.forEach((v, i) => this.parts.bars(i + offset, i + offset + 0.24, [v], color, alpha));
    bar(truth, 0.12, c.ink, 0.75);
    bar(annealed, 0.38, c.accent, 0.85);
    bar(plain, 0.64, c.warm, 0.85);
    const off = (s) => 0.5 * s.reduce((sum, v, i) => sum + Math.abs(v - truth[i]), 0);
    this.off = [off(annealed), off(plain)];
    bench.tell("level", `${this.level + 1} of ${sigmas.length}`);
    bench.tell("sigma", pretty(sigmas[this.level], 2));
    bench.tell("annealed", `${fixed(100 * this.off[0], 0)} %`);
    bench.tell("plain", `${fixed(100 * this.off[1], 0)} %`);
    bench.tell("steps", `${this.at} of ${total}`);
    this.left.note.textContent = `blurred by σ = ${pretty(sigmas[this.level], 2)}`;
  }

  describe() {
    const [a, b] = this.off ?? [NaN, NaN];
    return `Annealed Langevin at level ${this.level + 1} of ${this.sigmas.length}, noise ${pretty(this.sigmas[this.level], 2)}. Shares of the parts are off by ${fixed(100 * a, 0)} % annealed and ${fixed(100 * b, 0)} % by plain Langevin.`;
  }

  refit() {
    this.left.stale = this.right.stale = true;
  }
}
