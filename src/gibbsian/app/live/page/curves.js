// The numbers of a run along its updates, with dashed lines where the guard did something.

import { colors, el, pretty } from "./ui/dom.js";
import { Plot } from "./ui/plot.js";

const NOT_DRAWN = new Set(["step", "epoch", "seconds", "steps_per_second", "validation_energy", "validation_train_energy"]);

/** Steps and values of a number; a gap where the run went back. */
export function series(records, name) {
  const xs = [], ys = [];
  for (const r of records) {
    if (!(name in r) || "event" in r) continue;
    if (xs.length && r.step <= xs[xs.length - 1]) { xs.push(r.step); ys.push(NaN); }
    xs.push(r.step);
    ys.push(typeof r[name] === "number" ? r[name] : NaN);
  }
  return { xs, ys };
}

/** The ends of an axis for values of which a few may be far out. */
function span(values) {
  const sorted = values.filter(Number.isFinite).sort((a, b) => a - b);
  if (!sorted.length) return null;
  const at = (q) => sorted[Math.round(q * (sorted.length - 1))];
  let low = sorted[0], high = sorted[sorted.length - 1];
  const reach = 6 * (at(0.95) - at(0.05));
  if (sorted.length > 40 && reach > 0) { low = Math.max(low, at(0.05) - reach); high = Math.min(high, at(0.95) + reach); }
  const pad = 0.06 * (high - low) || 0.05 * Math.abs(high) || 1;
  return [low - pad, high + pad];
}

class Curve {
  constructor(name, caption) {
    this.name = name;
    this.label = name.replace(/^validation_/, "held-out ").replaceAll("_", " ");
    this.value = el("output", {});
    this.canvas = el("canvas", { role: "img", "aria-label": this.label });
    this.node = el("figure", {}, el("figcaption", {}, el("b", {}, this.label), this.value), this.canvas, caption ? el("small", {}, caption) : null);
    this.canvas.addEventListener("pointermove", (event) => { this.pointer = event.offsetX; this.paint(); });
    this.canvas.addEventListener("pointerleave", () => { this.pointer = null; this.paint(); });
  }

  range(records) {
    const { xs, ys } = series(records, this.name), y = span(ys);
    return y && { x: [0, 1.02 * Math.max(1, ...xs.slice(-200))], y }; // a little more, for the dot of the last
  }

  draw(records, shared) {
    Object.assign(this, series(records, this.name));
    this.events = records.filter((r) => "event" in r);
    this.axes = shared ?? this.range(records);
    this.node.hidden = !this.axes;
    if (this.axes) this.paint();
  }

  paint() {
    this.plot ??= new Plot(this.canvas, { height: 150, left: 54 });
    this.plot.fit();
    const { plot, xs, ys } = this, c = colors();
    plot.begin(c, this.axes);
    for (const r of this.events) plot.upright(r.step, r.event === "rollback" ? c.warm : c.gold);
    plot.line(xs, ys, c.accent);
    if (xs.length < 30) plot.dots(xs.filter((_, i) => Number.isFinite(ys[i])), ys.filter(Number.isFinite), c.accent, 2.4);
    let i = ys.findLastIndex(Number.isFinite);
    if (this.pointer != null) {
      i = xs.reduce((best, x, k) => (Math.abs(plot.px(x) - this.pointer) < Math.abs(plot.px(xs[best]) - this.pointer) ? k : best), 0);
      plot.upright(xs[i], c.axis, []).dots([xs[i]], [ys[i]], c.warm, 3.4);
    }
    this.value.textContent = i < 0 ? "" : `${pretty(ys[i])} at ${xs[i]}`;
    this.canvas.setAttribute("aria-label", i < 0 ? this.label : `${this.label}: ${pretty(ys[i])} at update ${xs[i]}, ${this.events.length} events of the guard`);
  }
}

export class Curves {
  constructor(captions) {
    Object.assign(this, { captions, shown: new Map(), node: el("div", { class: "curves" }) });
    this.empty = el("p", { class: "lead" }, "The first numbers come with the first record of the log.");
    this.node.append(this.empty);
  }

  /** All numbers there are: the known ones first, in their order. */
  names(records) {
    const found = new Set();
    for (const r of records) if (!("event" in r)) for (const name of Object.keys(r)) if (!NOT_DRAWN.has(name) && typeof r[name] === "number") found.add(name);
    const known = Object.keys(this.captions).filter((name) => found.has(name));
    return [...known, ...[...found].filter((name) => !(name in this.captions)).sort()];
  }

  ranges(records) {
    const pairs = this.names(records).map((name) => [name, new Curve(name).range(records)]);
    return Object.fromEntries(pairs.filter(([, range]) => range));
  }

  draw(records, shared) {
    const names = this.names(records);
    this.empty.hidden = names.length > 0;
    if (names.some((name) => !this.shown.has(name))) {
      for (const name of names) if (!this.shown.has(name)) this.shown.set(name, new Curve(name, this.captions[name]));
      this.node.replaceChildren(this.empty, ...names.map((name) => this.shown.get(name).node));
    }
    for (const name of names) this.shown.get(name).draw(records, shared[name]);
  }
}
