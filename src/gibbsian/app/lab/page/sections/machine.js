// (b) A restricted Boltzmann machine learning digits, by three rules side by side from the same start.

import { annealedImportance, ascend, moments, RBM, rowMoments, sweep } from "../core/rbm.js";
import { summarize } from "../core/annealing.js";
import { Random } from "../core/random.js";
import { fixed, pretty } from "../ui/dom.js";
import { digits } from "../ui/models.js";
import { Plot } from "../ui/plot.js";
import { Tiles } from "../ui/tiles.js";

const RULES = { cd: ["CD", "accent"], pcd: ["PCD", "warm"], exact: ["exact", "good"] };
const EXACT = 12; // hidden units up to which all states are summed
const HELD = 297; // rows kept apart for the curve
const SHOWN = 12;

export const machine = {
  id: "machine",
  tab: "Boltzmann machine",
  title: "A Boltzmann machine learns digits",
  lead: "Hidden units learn which pixels go together. Contrastive divergence starts its chains at the data, persistent chains go on where they were, and a small machine can sum over all its states: the exact gradient.",
  look: "strokes appearing in the filters, and fantasies that become digits. While learning is slow the three curves stay close: one sweep from the data is nearly the right direction. With larger steps the persistent chains lag behind the machine that they should follow, and their curve shakes.",
  broad: true,
  controls: [
    { id: "hidden", kind: "slider", label: "hidden units", min: 4, max: 64, step: 1, value: 8, fresh: true, note: `up to ${EXACT} the likelihood is exact, beyond it is estimated by AIS` },
    { id: "shown", kind: "choice", label: "Look at the machine of", options: [["cd", "CD"], ["pcd", "PCD"], ["exact", "exact"]], value: "pcd" },
    { id: "k", kind: "slider", label: "sweeps of the chains, k", min: 1, max: 25, step: 1, value: 1 },
    { id: "rate", kind: "slider", label: "learning rate", min: 0.005, max: 1, value: 0.2, log: true },
    { id: "batch", kind: "slider", label: "rows in a batch", min: 10, max: 200, step: 10, value: 100 },
    { id: "decay", kind: "slider", label: "weight decay", min: 0, max: 0.02, value: 0, format: (v) => pretty(v) },
    { id: "speed", kind: "slider", label: "updates a frame", min: 0.1, max: 8, value: 1, log: true },
  ],
  presets: [
    { label: "three rules, one start", set: {} },
    { label: "small steps: all agree", set: { rate: 0.08, speed: 3 } },
    { label: "larger steps: chains lag", set: { rate: 0.25, batch: 200 } },
    { label: "ten sweeps: they keep up", set: { rate: 0.25, batch: 200, k: 10 } },
    { label: "a larger machine", set: { hidden: 48, rate: 0.15, k: 5 } },
  ],
  create: (bench) => new Machine(bench),
};

class Machine {
  constructor(bench) {
    this.bench = bench;
    const tiles = (label, columns, rows, caption) => bench.stage(label, (canvas) => new Tiles(canvas, { columns, rows, shape: [8, 8] }), { caption });
    bench.stages.style.setProperty("--stage", "min(250px, 41vw)");
    this.filters = tiles("Filters", 4, 2, "of the hidden units");
    this.fantasies = tiles("Fantasies", 6, 4, "drawn by its chains");
    this.pairs = tiles("Reconstruction", SHOWN / 2, 4, "digits, rebuilt below");
    this.curve = bench.chart("Log-likelihood of held-out digits, nats", (canvas) => new Plot(canvas, { height: 210 }), [["accent", "CD"], ["warm", "PCD"], ["good", "exact"]]);
    bench.fact("updates", "updates");
    bench.fact("epochs", "passes over the data");
    for (const [id, [label]] of Object.entries(RULES)) bench.fact(id, `${label}: held-out log-likelihood`);
    bench.fact("error", "pixels rebuilt wrongly");
    digits().then((data) => {
      this.data = data;
      bench.reset();
    });
  }

  reset() {
    if (!this.data) return;
    const { values } = this.bench, rng = (this.rng = this.bench.random()), all = this.data, d = 64;
    const order = Array.from({ length: all.count }, (_, i) => i);
    for (let i = all.count - 1; i > 0; i--) {
      const j = rng.integer(i + 1);
      [order[i], order[j]] = [order[j], order[i]];
    }
    const take = (from, to) => Float64Array.from({ length: (to - from) * d }, (_, k) => all.rows[order[from + Math.floor(k / d)] * d + (k % d)]);
    this.train = take(0, all.count - HELD);
    this.held = take(all.count - HELD, all.count);
    const first = new RBM(d, Math.round(values.hidden)).start(this.train, rng);
    this.small = first.hidden <= EXACT;
    this.runs = Object.keys(RULES).filter((id) => id !== "exact" || this.small).map((id) => {
      const rbm = new RBM(d, first.hidden);
      rbm.weight.set(first.weight);
      rbm.visibleBias.set(first.visibleBias);
      return { id, rbm, data: moments(rbm), model: moments(rbm), chains: this.train.slice(0, 100 * d), free: this.train.slice(100 * d, 124 * d), steps: [], likelihood: [], error: [] };
    });
    const columns = first.hidden > 16 ? 8 : 4;
    this.filters.arrange(columns, Math.ceil(first.hidden / columns));
    this.base = first.visibleBias.slice();
    this.chances = new Float64Array(24 * d);
    this.judged = -1;
    this.judge();
  }

  step() {
    if (!this.data) return;
    const { values } = this.bench, d = 64, n = this.train.length / d, size = Math.round(values.batch), k = Math.round(values.k);
    const batch = new Float64Array(size * d);
    for (let r = 0; r < size; r++) {
      const row = this.rng.integer(n) * d;
      batch.set(this.train.subarray(row, row + d), r * d);
    }
    for (const run of this.runs) {
      rowMoments(run.rbm, batch, run.data);
      if (run.id === "exact") run.rbm.exact(run.model);
      else {
        const chains = run.id === "cd" ? batch.slice() : run.chains;
        for (let t = 0; t < k; t++) sweep(run.rbm, chains, this.rng);
        rowMoments(run.rbm, chains, run.model);
      }
      ascend(run.rbm, run.data, run.model, values.rate, values.decay);
    }
    const every = (this.bench.steps < 100 ? 10 : this.bench.steps < 1000 ? 50 : 200) * (this.small ? 1 : 4); // AIS takes its time
    if ((this.bench.steps + 1) % every === 0) this.judge(this.bench.steps + 1);
  }

  /** The likelihood of every machine now. */
  judge(at = 0) {
    for (const run of this.runs) {
      const estimate = this.small ? { value: run.rbm.exact(), error: 0 } : summarize(annealedImportance(run.rbm, this.base, 16, 120, new Random(at)));
      run.steps.push(at);
      run.likelihood.push(run.rbm.logLikelihood(this.held, estimate.value));
      run.error.push(estimate.error);
    }
  }

  shown() {
    return this.runs.find((run) => run.id === this.bench.values.shown) ?? this.runs[1];
  }

  draw() {
    if (!this.data) return;
    const { c } = this.bench, run = this.shown(), { rbm } = run, d = 64;
    const filters = new Float64Array(rbm.hidden * d);
    let size = 0;
    for (const w of rbm.weight) size = Math.max(size, Math.abs(w));
    for (let j = 0; j < rbm.hidden; j++) for (let i = 0; i < d; i++) filters[j * d + i] = (1.3 * rbm.weight[i * rbm.hidden + j]) / (size || 1);
    this.filters.show(c, filters, rbm.hidden, { signed: true });
    if (this.bench.playing || !this.drawn) sweep(rbm, run.free, this.rng, { means: this.chances });
    this.drawn = true;
    this.fantasies.show(c, this.chances, 24);
    const rebuilt = this.held.slice(0, SHOWN * d), means = new Float64Array(SHOWN * d), both = new Float64Array(2 * SHOWN * d);
    sweep(rbm, rebuilt, new Random(this.bench.seed), { means });
    const half = SHOWN / 2; // two bands of originals over their reconstructions
    for (let t = 0; t < SHOWN; t++) {
      const at = 2 * half * Math.floor(t / half) + (t % half);
      both.set(this.held.subarray(t * d, (t + 1) * d), at * d);
      both.set(means.subarray(t * d, (t + 1) * d), (at + half) * d);
    }
    this.pairs.show(c, both, 2 * SHOWN);
    let wrong = 0;
    for (let i = 0; i < means.length; i++) wrong += Math.abs(means[i] - this.held[i]) / means.length;
    this.wrong = wrong;
  }

  charts() {
    if (!this.data) return;
    const { bench } = this, { c } = bench, first = this.runs[0].likelihood[0];
    const last = Math.max(50, this.runs[0].steps.at(-1)), all = this.runs.flatMap((run) => run.likelihood);
    const top = Math.max(...all), low = Math.max(Math.min(...all), Math.min(first, top) - 12);
    this.curve.begin(c, { x: [0, last], y: [low - 0.5, top + 0.6], xLabel: "updates" });
    for (const run of this.runs) {
      const color = c[RULES[run.id][1]];
      if (!this.small) this.curve.band(run.steps, run.likelihood.map((v, i) => v - 2 * run.error[i]), run.likelihood.map((v, i) => v + 2 * run.error[i]), color, 0.15);
      this.curve.line(run.steps, run.likelihood, color, run.id === bench.values.shown ? 2.6 : 1.6);
    }
    bench.tell("updates", pretty(bench.steps, 4));
    bench.tell("epochs", fixed((bench.steps * bench.values.batch * 64) / this.train.length, 1));
    for (const id of Object.keys(RULES)) {
      const run = this.runs.find((one) => one.id === id);
      bench.tell(id, run ? `${this.small ? "" : "≈ "}${fixed(run.likelihood.at(-1), 2)}` : "too large");
    }
    bench.tell("error", `${fixed(100 * this.wrong, 1)} %`);
  }

  describe() {
    if (!this.data) return "The digits are being read.";
    return `A Boltzmann machine with ${this.runs[0].rbm.hidden} hidden units after ${this.bench.steps} updates. Held-out log-likelihood: ${this.runs.map((run) => `${RULES[run.id][0]} ${fixed(run.likelihood.at(-1), 1)}`).join(", ")} nats.`;
  }
}
