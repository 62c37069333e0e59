// What takes a model to be seen, asked for when it is there: samples by a slider over the run, and what a checkpoint shows.

import { colors, el, fixed, pretty, withAlpha } from "./ui/dom.js";
import { Field } from "./ui/field.js";
import { Plot } from "./ui/plot.js";

const SHADES = { training: "accent", data: "accent", "held out": "good", samples: "warm", noise: "axis" };

/** A slider over steps that follows the newest until a hand moves it. */
class Look {
  constructor(run, kind, title, text) {
    Object.assign(this, { run, kind, steps: [], step: null, found: null, kept: new Map(), follows: true, painted: [] });
    const id = `${kind}-${run}`;
    this.range = el("input", { type: "range", id, min: 0, max: 0, value: 0, step: 1, oninput: () => this.chosen(Number(this.range.value)) });
    this.at = el("output", { for: id });
    this.slider = el("div", { class: "field slider" }, el("label", { for: id }, text, this.at), this.range);
    this.body = el("div", { class: "looks" });
    this.node = el("section", { hidden: true }, el("h2", {}, title), this.slider, this.body);
  }

  offer(steps) {
    if (!steps || String(steps) === String(this.steps)) return;
    this.steps = steps;
    this.node.hidden = !steps.length;
    this.range.max = Math.max(0, steps.length - 1);
    this.range.hidden = steps.length < 2;
    if (!steps.length) return;
    const at = this.follows || !steps.includes(this.step) ? steps.length - 1 : steps.indexOf(this.step);
    this.go(at);
  }

  chosen(i) {
    this.follows = i === this.steps.length - 1;
    this.go(i);
  }

  async go(i) {
    const step = this.steps[i];
    this.range.value = i;
    this.at.textContent = `update ${step}`;
    this.range.setAttribute("aria-valuetext", `update ${step}`);
    this.wanted = step;
    let found = this.kept.get(step);
    if (!found) {
      this.body.setAttribute("aria-busy", "true");
      found = await fetch(`look/${this.kind}/${this.run}/${step}`).then((r) => (r.ok ? r.json() : { why: "it is not there any more" })).catch(() => ({ why: "the server does not answer" }));
      if (!found.why) this.kept.set(step, found);
    }
    if (this.wanted !== step) return; // another was chosen meanwhile
    this.body.removeAttribute("aria-busy");
    if (found.why && this.found) return; // what was seen last stays
    Object.assign(this, { found, step });
    this.show(found, step);
    this.draw();
  }

  /** New figures; each may come with a function that paints it. */
  put(figures) {
    this.painted = figures.map(([, paint]) => paint).filter(Boolean);
    this.body.replaceChildren(...figures.map(([node]) => node));
  }

  draw() {
    if (!this.node.hidden && this.body.isConnected) for (const paint of this.painted) paint(colors());
  }
}

function figure(title, content, text) {
  return el("figure", {}, el("figcaption", {}, el("b", {}, title)), content, text ? el("small", {}, text) : null);
}

/** Densities of several sets over common bins. */
function histogram(title, { low, high, sets }, text, height = 150) {
  const canvas = el("canvas", { role: "img", "aria-label": `histogram of ${title}: ${Object.keys(sets).join(", ")}` });
  const names = Object.keys(sets), top = 1.05 * Math.max(...names.map((name) => Math.max(...sets[name])), 1e-12);
  const swatches = names.map((name) => { const i = el("i"); return [i, name]; });
  const legend = el("span", { class: "legend" }, swatches.map(([i, name]) => el("span", {}, i, name)));
  const node = el("figure", {}, el("figcaption", {}, el("b", {}, title), legend), canvas, text ? el("small", {}, text) : null);
  let plot = null;
  return [node, (c) => {
    plot ??= new Plot(canvas, { height, left: 10 });
    plot.fit();
    plot.begin(c, { x: [low, high], y: [0, top], yTicks: false });
    for (const [i, name] of swatches) i.style.background = c[SHADES[name]];
    for (const name of names) plot.bars(low, high, sets[name], c[SHADES[name]], 0.4);
  }];
}

/** Points, and ways of chains, over a landscape where there is one. */
function plane(title, { view, landscape = null, data = [], points = [], paths = [] }, text) {
  const canvas = el("canvas", { role: "img", "aria-label": `${title}: ${points.length / 2} samples and ${paths.length} chains in the plane` });
  const n = landscape?.n ?? 2, energy = landscape ? landscape.energy.map((e) => e ?? Infinity) : new Array(4).fill(0);
  const lowest = energy.reduce((a, b) => Math.min(a, b), Infinity), density = energy.map((e) => (landscape ? Math.exp(lowest - e) : 0));
  let field = null;
  return [figure(title, canvas, text), (c) => {
    field ??= new Field(canvas);
    field.fit();
    field.paint({ n, view, energy, lowest, density }, c, { contours: Boolean(landscape) });
    field.begin();
    field.points(data, withAlpha(c.soft, 0.6), 1.2, { halo: false });
    field.points(points, c.warm, 2, { halo: false });
    for (const path of paths) {
      field.path(path, withAlpha(c.warm, 0.35), 1);
      field.points(path.slice(-2), c.warm, 3);
    }
  }];
}

export class SampleLook extends Look {
  constructor(run) {
    super(run, "samples", "Samples through training", "drawn at");
  }

  show(found, step) {
    if (found.why) this.put([[el("p", { class: "lead" }, found.why)]]);
    else if (found.image) this.put([[figure("", el("img", { src: found.image, alt: `${found.count} samples at update ${step}` }))]]);
    else if (found.points) this.put([plane("samples", found, "samples in orange, data in gray")]);
    else this.put(found.columns.map((one) => histogram(one.name, one, "", 110)));
  }
}

export class ModelLook extends Look {
  constructor(run, soon) {
    super(run, "model", "Inside the model", "checkpoint of");
    this.soon = soon;
  }

  show(found, step) {
    const out = [];
    if (found.why) out.push([el("p", { class: "lead" }, found.why)]);
    if (found.landscape) out.push(plane("energy landscape", { view: found.landscape.view, landscape: found.landscape, data: found.landscape.data, paths: found.chains?.paths ?? [] }, "the deeper the color the lower the energy; data in gray, chains with their last steps in orange"));
    if (found.filters) out.push([figure(found.filters.title, el("img", { src: found.filters.uri, alt: `${found.filters.title} at update ${step}` }), found.filters.text)]);
    if (found.energies) out.push(histogram("energies", found.energies, `training and held-out rows should look alike, and samples like them${found.noise === null ? "" : `; noise has ${pretty(found.noise)} on average`}`));
    if (found.chains && found.chains.r_hat !== null) out.push([this.words(found.chains)]);
    this.put(out);
    this.node.hidden = !out.length;
    this.soon();
  }

  words({ r_hat: rHat, ess, draws, acceptance, how }) {
    const rows = [["R-hat, largest", fixed(rHat, 3)], ["effective draws, least", `${pretty(ess)} of ${draws}`]];
    if (acceptance !== null) rows.push(["acceptance", fixed(acceptance)]);
    const verdict = rHat < 1.01 ? "The chains have mixed." : "The chains have not forgotten where they began: samples may not be those of the model yet.";
    return figure("chains", el("ul", { class: "facts whole" }, rows.map(([label, value]) => el("li", {}, el("b", {}, value), el("small", {}, label)))), `${how}. ${verdict}`);
  }
}
