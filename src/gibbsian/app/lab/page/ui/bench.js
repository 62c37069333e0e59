// The bench on which one experiment runs: its settings and address, the clock, canvases, facts, and what is said aloud.

import { Random } from "../core/random.js";
import { build, read, written } from "./controls.js";
import { colors, el } from "./dom.js";

/** The meaning of colors: [[color, words], …]. */
function keyOf(legend) {
  return legend.length ? el("span", { class: "legend" }, legend.map(([color, text]) => el("span", {}, el("i", { style: `background: var(--${color})` }), text))) : null;
}

const BUDGET = 11; // milliseconds of a frame that steps may take

export class Bench {
  /** @param {object} experiment one of sections/ @param {URLSearchParams} asked settings in the address */
  constructor(experiment, asked, { still, onchange }) {
    Object.assign(this, { experiment, onchange });
    this.values = {};
    for (const control of experiment.controls) this.values[control.id] = read(control, asked.get(control.id));
    this.seed = Math.max(0, Math.floor(Number(asked.get("seed")) || 0));
    this.playing = asked.has("play") ? asked.get("play") === "1" : !still;
    this.debt = 0;
    this.steps = 0;
    this.frames = [];
    this.fitted = [];
    this.builtControls = {};
    this.facts = {};
    this.c = colors();
    this.node = this.layout();
  }

  // --- elements -------------------------------------------------------------------------------------------------

  layout() {
    const { experiment } = this;
    this.stages = el("div", { class: "stages", id: "stage", tabindex: "-1" });
    this.factList = el("ul", { class: "facts" });
    this.charts = el("div", { class: "card charts" });
    this.playButton = el("button", { class: "main", type: "button", onclick: () => this.play(!this.playing) });
    this.seedInput = el("input", { type: "number", min: 0, step: 1, value: this.seed, "aria-label": "Seed of the random numbers", onchange: () => { this.seed = Math.max(0, Math.floor(Number(this.seedInput.value) || 0)); this.reset(); } });
    const bar = el("div", { class: "bar" }, this.playButton,
      el("button", { type: "button", onclick: () => { this.play(false); this.step(); } }, "Step"),
      el("button", { type: "button", onclick: () => this.reset() }, "Start over"),
      (experiment.actions ?? []).map((action) => el("button", { type: "button", onclick: () => { this.sim[action.does](); this.redraw(); } }, action.label)),
      el("label", { class: "seed" }, "seed", this.seedInput));
    const fields = el("div", { class: "fields" });
    for (const control of experiment.controls) {
      const built = build(control, this.values[control.id], (value) => this.set({ [control.id]: value }));
      this.builtControls[control.id] = built;
      fields.append(built.node);
    }
    const presets = experiment.presets?.length ? el("div", { class: "presets" }, el("span", {}, "Try:"), experiment.presets.map((preset) => el("button", { type: "button", class: "small", onclick: () => { this.set({ ...this.defaults(), ...preset.set }, { fresh: true }); this.play(true); } }, preset.label))) : null;
    return el("section", { "aria-labelledby": "title" }, el("h1", { id: "title" }, experiment.title), el("p", { class: "lead" }, experiment.lead),
      el("p", { class: "look" }, el("b", {}, "Look for: "), experiment.look), presets,
      el("div", { class: experiment.broad ? "bench broad" : "bench" }, el("div", { class: "card work" }, this.stages, bar, this.factList), this.charts, el("aside", { class: "card panel", "aria-label": "Settings" }, fields)));
  }

  /** A large canvas to look at, with a title. `hands`: it takes touches. */
  stage(label, make, { hands = false, caption = "", max = null, legend = [] } = {}) {
    const canvas = el("canvas", { role: hands ? "application" : "img", "aria-label": label, class: hands ? "hands" : null, tabindex: hands ? "0" : null });
    const note = el("span", {}, caption, keyOf(legend));
    const figure = el("figure", {}, el("figcaption", {}, el("b", {}, label), note), canvas);
    if (max) figure.style.maxWidth = `${max}px`;
    this.stages.append(figure);
    return this.keep(canvas, make, { note });
  }

  /** A small chart below; `legend` as [[color, words], …]. */
  chart(label, make, legend = []) {
    const canvas = el("canvas", { role: "img", "aria-label": label });
    this.charts.append(el("figure", {}, el("figcaption", {}, el("b", {}, label), keyOf(legend)), canvas));
    return this.keep(canvas, make, {});
  }

  keep(canvas, make, more) {
    const thing = make(canvas);
    Object.assign(thing, more);
    this.fitted.push(thing);
    return thing;
  }

  /** A number with its meaning. */
  fact(id, label, title = "") {
    const value = el("b", {}, "–");
    this.factList.append(el("li", { title: title || null }, value, el("small", {}, label)));
    this.facts[id] = value;
  }

  tell(id, text) {
    if (this.facts[id].textContent !== text) this.facts[id].textContent = text;
  }

  // --- settings -------------------------------------------------------------------------------------------------

  defaults() {
    return Object.fromEntries(this.experiment.controls.map((control) => [control.id, control.value]));
  }

  /** Change settings: the experiment begins anew where it must, and says so by the words it gives to `fresh`. */
  set(changes, { fresh = false } = {}) {
    Object.assign(this.values, changes);
    const must = fresh || Object.keys(changes).some((id) => this.experiment.controls.find((c) => c.id === id)?.fresh);
    try {
      if (must) this.reset();
      else this.sim.change?.(changes);
    } finally {
      for (const [id, value] of Object.entries(changes)) if (fresh) this.builtControls[id].show(value);
      this.arrange();
      this.onchange();
      this.redraw();
    }
  }

  /** Only the settings that mean something now are seen. */
  arrange() {
    for (const control of this.experiment.controls) this.builtControls[control.id].node.hidden = control.kind === "hidden" || (control.when ? !control.when(this.values) : false);
  }

  /** Settings that are not the defaults, for the address. */
  address() {
    const out = new URLSearchParams();
    for (const control of this.experiment.controls) if (this.values[control.id] !== control.value) out.set(control.id, written(control, this.values[control.id]));
    if (this.seed) out.set("seed", this.seed);
    return out;
  }

  // --- the clock ------------------------------------------------------------------------------------------------

  start() {
    this.sim = this.experiment.create(this);
    this.arrange();
    this.reset();
    this.play(this.playing);
  }

  random() {
    return new Random(this.seed);
  }

  reset() {
    this.steps = 0;
    this.debt = 0;
    this.sim.reset();
    this.redraw();
    this.onchange();
  }

  play(on) {
    this.playing = on;
    this.playButton.textContent = on ? "Pause" : "Play";
    if (!on && this.sim) this.describe(true);
  }

  step() {
    this.sim.step();
    this.steps++;
    this.redraw();
  }

  /** One frame: as many steps as the speed asks for and time allows, then a picture. */
  frame(now) {
    const begun = performance.now();
    const passed = Math.min(100, now - (this.last ?? now));
    this.last = now;
    if (this.playing) {
      const speed = this.values.speed ?? 1, beats = passed < 12 ? passed / 16.7 : Math.round(passed / 16.7); // sixtieths of a second
      this.debt = Math.min(this.debt + speed * beats, 4 * speed + 1);
      while (this.debt >= 1 && this.playing) {
        this.sim.step();
        this.steps++;
        this.debt--;
        if (performance.now() - begun > BUDGET) { this.debt = Math.min(this.debt, 1); break; }
      }
    }
    const stepped = performance.now();
    if (this.playing || this.dirty) {
      this.sim.draw();
      if (this.dirty || !(now - (this.charted ?? -1000) < 150)) {
        this.charted = now;
        this.sim.charts?.();
      }
      this.dirty = false;
      if (!(now - (this.said ?? -1e4) < 3000)) { this.said = now; this.describe(false); }
    }
    if (this.frames.length >= 1200) this.frames.shift();
    this.frames.push([now, stepped - begun, performance.now() - begun]); // when, milliseconds of steps, of everything
  }

  redraw() {
    this.dirty = true;
  }

  /** What is seen, in words: on the canvas for those who come to it, aloud when the clock stops. */
  describe(aloud) {
    const text = this.sim.describe?.();
    if (!text) return;
    this.stages.querySelector("canvas")?.setAttribute("aria-label", text);
    if (aloud) document.getElementById("live").textContent = text;
  }

  /** The window or the colors changed. */
  refit() {
    this.c = colors();
    for (const thing of this.fitted) thing.fit?.();
    this.sim.refit?.();
    this.sim.draw(); // at once, or canvases of a new size would be seen empty
    this.sim.charts?.();
    this.redraw();
  }
}
