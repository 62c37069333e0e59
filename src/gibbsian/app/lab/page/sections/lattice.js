// (d) Ising and Potts lattices, by single sites and by clusters.

import { criticalTemperature, Lattice, onsager } from "../core/lattice.js";
import { integratedTime, Moments, Recorder } from "../core/statistics.js";
import { Bits } from "../ui/bits.js";
import { fixed, pretty } from "../ui/dom.js";
import { Plot } from "../ui/plot.js";

const MOVES = { gibbs: "Gibbs (heat bath)", metropolis: "Metropolis", swendsenWang: "Swendsen–Wang", wolff: "Wolff" };
const KINDS = { ising: [2, true, "Ising"], potts3: [3, false, "Potts, 3 states"], potts5: [5, false, "Potts, 5 states"], potts10: [10, false, "Potts, 10 states"] };
const SIZES = [16, 32, 64, 128, 256, 512];
const TC = criticalTemperature(2, true);
const isIsing = (v) => v.kind === "ising";

export const lattice = {
  id: "lattice",
  tab: "Lattices",
  title: "A lattice at its critical point",
  lead: "Each site prefers to agree with its four neighbors; heat disturbs it. Ising sites are up or down, Potts sites have one of several colors. Below a critical temperature one state wins.",
  look: "islands of every size at the critical temperature, where single-site moves take ages to change the whole and cluster moves do it at once. The dots should sit on Onsager's exact curves.",
  controls: [
    { id: "kind", kind: "select", label: "Lattice", options: Object.entries(KINDS).map(([id, [, , label]]) => [id, label]), value: "ising", fresh: true },
    { id: "temperature", kind: "slider", label: "temperature T, in units of the critical", min: 0.3, max: 2.5, value: 1, step: 0.005, format: (v) => `${fixed(v, 3)} Tc` },
    { id: "move", kind: "select", label: "Moves", options: Object.entries(MOVES), value: "gibbs" },
    { id: "field", kind: "slider", label: "field h", min: -0.5, max: 0.5, value: 0, step: 0.01, format: (v) => fixed(v, 2), when: isIsing },
    { id: "size", kind: "slider", label: "sites along a side", min: 4, max: 9, value: 7, step: 1, fresh: true, format: (v) => String(SIZES[Math.round(v) - 4]) },
    { id: "start", kind: "choice", label: "Start", options: [["hot", "hot, all random"], ["cold", "cold, all alike"]], value: "hot", fresh: true },
    { id: "speed", kind: "slider", label: "sweeps a frame", min: 0.05, max: 10, value: 1, log: true },
  ],
  presets: [
    { label: "quench from hot to cold", set: { temperature: 0.45, size: 8 } },
    { label: "critical, by single sites", set: { temperature: 1, move: "gibbs" } },
    { label: "critical, by clusters", set: { temperature: 1, move: "wolff", speed: 0.5 } },
    { label: "a field turns all round", set: { temperature: 0.75, field: -0.1, start: "cold", move: "metropolis", speed: 0.3 } },
    { label: "ten colors jump", set: { kind: "potts10", temperature: 0.98, start: "cold", speed: 2 } },
    { label: "hot noise", set: { temperature: 2 } },
  ],
  create: (bench) => new Sites(bench),
};

class Sites {
  constructor(bench) {
    this.bench = bench;
    this.picture = bench.stage("The lattice", (canvas) => new Bits(canvas));
    this.order = bench.chart("Magnetization", (canvas) => new Plot(canvas), [["accent", "here"], ["warm", "exact"]]);
    this.heat = bench.chart("Energy a site", (canvas) => new Plot(canvas), [["accent", "here"], ["warm", "exact"]]);
    this.trace = bench.chart("Magnetization over time", (canvas) => new Plot(canvas));
    bench.fact("temperature", "temperature, J/k");
    bench.fact("magnetization", "magnetization");
    bench.fact("energy", "energy a site");
    bench.fact("time", "sweeps to forget", "autocorrelation time of the magnetization");
    bench.fact("detail", "accepted");
    bench.fact("sweeps", "sweeps");
  }

  reset() {
    const { values } = this.bench, [states, ising] = KINDS[values.kind];
    this.rng = this.bench.random();
    this.critical = criticalTemperature(states, ising);
    this.lattice = new Lattice(SIZES[Math.round(values.size) - 4], states, { ising, field: values.field }).start(values.start, this.rng);
    if (values.start === "cold" && values.field < 0) this.lattice.spins.fill(1);
    this.curve = ising ? Array.from({ length: 120 }, (_, i) => 0.3 + (2.2 * (i + 0.5)) / 120).map((t) => [t, onsager(t * TC)]) : null;
    this.seen = [];
    this.again();
  }

  /** Statistics from the start. */
  again() {
    this.lattice.field = isIsing(this.bench.values) ? this.bench.values.field : 0;
    this.history = [];
    this.record = new Recorder(1, 2000);
    this.means = [new Moments(), new Moments()];
    this.waited = 0;
    this.detail = NaN;
  }

  change(changes) {
    if ("speed" in changes) return;
    const at = this.means[0].count > 20 ? { t: this.last, m: this.means[0].mean, e: this.means[1].mean } : null;
    if (at && !("field" in changes) && this.bench.values.field === 0) this.seen.push(at); // what was measured stays as a dot
    if (this.seen.length > 60) this.seen.shift();
    this.again();
  }

  step() {
    const { lattice, bench } = this, t = bench.values.temperature * this.critical, { move } = bench.values;
    this.last = bench.values.temperature;
    this.detail = lattice[move](t, this.rng);
    const m = lattice.magnetization(), e = lattice.energy();
    this.history.push(m);
    if (this.history.length > 600) this.history.shift();
    this.record.push([m]);
    if (++this.waited > 30) { // a little time to come to rest
      this.means[0].add(lattice.ising ? Math.abs(m) : m);
      this.means[1].add(e);
    }
    this.now = { m, e };
  }

  palette() {
    const { c } = this.bench;
    if (this.lattice.ising) return c.dark ? ["#1d2125", "#7db4df"] : ["#f0efeb", "#2f6c9e"];
    return [c.accent, c.warm, c.gold, c.good, c.plum, c.rose, c.soft, c.dark ? "#d8d5cc" : "#40454b", c.dark ? "#5f7d95" : "#a9c4d8", c.dark ? "#9c6b4f" : "#e6b79e"].slice(0, this.lattice.states);
  }

  draw() {
    this.picture.show(this.lattice.spins, this.lattice.size, this.palette());
  }

  charts() {
    const { bench, lattice, curve, means } = this, { c, values } = bench;
    const { m, e } = this.now ?? { m: lattice.magnetization(), e: lattice.energy() }, some = means[0].count > 5;
    const at = values.temperature, dots = this.seen;
    this.order.begin(c, { x: [0.3, 2.5], y: [0, 1.03], xLabel: "T / Tc" }).upright(1, c.axis);
    if (curve) this.order.line(curve.map(([t]) => t), curve.map(([, v]) => v.magnetization), c.warm);
    this.order.dots(dots.map((d) => d.t), dots.map((d) => d.m), c.plum, 2.5).dots([at], [some ? means[0].mean : Math.abs(m)], c.accent, 5);
    this.heat.begin(c, { x: [0.3, 2.5], y: [-2.05, 0], xLabel: "T / Tc" }).upright(1, c.axis);
    if (curve) this.heat.line(curve.map(([t]) => t), curve.map(([, v]) => v.energy), c.warm);
    this.heat.dots(dots.map((d) => d.t), dots.map((d) => d.e), c.plum, 2.5).dots([at], [some ? means[1].mean : e], c.accent, 5);
    const h = this.history;
    this.trace.begin(c, { x: [bench.steps - h.length, Math.max(bench.steps, bench.steps - h.length + 100)], y: lattice.ising ? [-1.05, 1.05] : [-0.02, 1.05], xLabel: "sweeps" });
    this.trace.line(h.map((_, i) => bench.steps - h.length + i), h, c.accent, 1.4);
    const enough = this.record.filled > 100, tau = enough ? integratedTime(this.record.autocorrelation(Math.min(400, this.record.filled >> 1))) : NaN;
    bench.tell("temperature", fixed(at * this.critical, 3));
    bench.tell("magnetization", fixed(m, 3));
    bench.tell("energy", fixed(e, 3));
    bench.tell("time", enough ? (tau > this.record.filled / 12 ? `> ${pretty(this.record.filled / 12, 2)}` : pretty(tau, 2)) : "–");
    const cluster = values.move === "wolff" || values.move === "swendsenWang";
    bench.tell("detail", values.move === "gibbs" || !Number.isFinite(this.detail) ? "always" : `${fixed(100 * this.detail, this.detail < 0.1 ? 1 : 0)} %`);
    bench.facts.detail.nextSibling.textContent = cluster ? (values.move === "wolff" ? "of the sites in its cluster" : "of the sites in the largest cluster") : "accepted";
    bench.tell("sweeps", pretty(bench.steps, 4));
  }

  describe() {
    const { values, steps } = this.bench;
    return `${KINDS[values.kind][2]} lattice of ${this.lattice.size} by ${this.lattice.size} sites at ${fixed(values.temperature, 2)} of its critical temperature, after ${steps} moves by ${MOVES[values.move]}: magnetization ${fixed(this.lattice.magnetization(), 2)}, energy a site ${fixed(this.lattice.energy(), 2)}.`;
  }
}
