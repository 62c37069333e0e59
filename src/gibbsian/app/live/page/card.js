// One run: how far it is, its curves, what happened, samples through training, and what a checkpoint shows.

import { el, pretty, fixed } from "./ui/dom.js";
import { Curves } from "./curves.js";
import { ModelLook, SampleLook } from "./looks.js";

const STATES = {
  waiting: "has not begun", training: "training", done: "done",
  stopped: "stopped before its end; go on with",
};

/** Seconds as people say them. */
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 100) return `${Math.round(seconds)} s`;
  if (seconds < 6000) return `${Math.round(seconds / 60)} min`;
  return `${fixed(seconds / 3600, 1)} h`;
}

/** Steps a second of late: over the last records that belong together. */
export function rate(records) {
  const timed = records.filter((r) => typeof r.seconds === "number" && !("event" in r)).slice(-12);
  let first = timed.length - 1;
  while (first > 0 && timed[first - 1].seconds < timed[first].seconds && timed[first - 1].step < timed[first].step) first--;
  const a = timed[first], b = timed[timed.length - 1];
  if (!b) return NaN;
  return a === b ? (b.steps_per_second ?? NaN) : (b.step - a.step) / (b.seconds - a.seconds);
}

export class Card {
  constructor(run, captions, soon) {
    Object.assign(this, { run, soon, records: [], facts: {} });
    this.name = el("h1", { id: `run-${run}` });
    this.about = el("p", { class: "lead" });
    this.state = el("p", { class: "state" });
    this.bar = el("progress", { max: 1, value: 0, "aria-label": "share of the updates that are done" });
    this.numbers = el("ul", { class: "facts" });
    this.curves = new Curves(captions);
    this.events = el("ol", { class: "happened", tabindex: 0, "aria-label": "what the guard did" });
    this.happened = el("section", { hidden: true }, el("h2", {}, "What happened"), this.events);
    this.samples = new SampleLook(run);
    this.model = new ModelLook(run, soon);
    this.node = el("article", { class: "run card", "aria-labelledby": `run-${run}` }, this.name, this.about, this.state, this.bar, this.numbers,
      el("h2", {}, "Curves"), this.curves.node, this.happened, el("div", { class: "pair" }, this.samples.node, this.model.node));
  }

  title() {
    const share = this.facts.total && this.facts.state === "training" ? ` ${Math.floor((100 * this.step()) / this.facts.total)} %` : "";
    return `${this.facts.name ?? "run"}${share}`;
  }

  /** The newest step, which a rollback may have set back. */
  step() {
    return this.records.length ? this.records[this.records.length - 1].step : 0;
  }

  take({ anew, facts, records }) {
    if (anew) this.records = [];
    for (const record of records) this.records.push(record);
    const before = this.facts.state;
    this.facts = facts;
    if (before && before !== facts.state) document.getElementById("live").textContent = `${facts.name}: ${STATES[facts.state]}`;
    this.samples.offer(facts.samples);
    this.model.offer(facts.models);
  }

  ranges() {
    return this.curves.ranges(this.records);
  }

  draw(shared) {
    const { facts, records } = this;
    this.name.textContent = facts.name;
    this.about.textContent = facts.about;
    this.about.hidden = !facts.about;
    this.state.dataset.state = facts.state;
    this.state.replaceChildren(STATES[facts.state], ...(facts.state === "stopped" ? [" ", el("code", {}, `gibbsian resume ${facts.folder}`)] : []),
      ...(facts.report ? [" · report: ", el("code", {}, `${facts.folder}/report.html`)] : []));
    this.drawFacts();
    this.curves.draw(records, shared);
    const events = records.filter((r) => "event" in r);
    this.happened.hidden = !events.length;
    if (events.length !== this.events.childElementCount) {
      this.events.replaceChildren(...events.map((r) => el("li", {}, el("b", {}, `${r.event}, step ${r.step}`), String(r.message ?? ""))).reverse());
    }
    this.samples.draw();
    this.model.draw();
  }

  drawFacts() {
    const { facts, records } = this, step = this.step(), speed = rate(records), last = (name) => records.findLast((r) => name in r && !("event" in r))?.[name];
    this.bar.value = facts.total ? Math.min(1, step / facts.total) : 0;
    this.bar.hidden = !facts.total;
    const chains = this.model.found?.chains, acceptance = last("acceptance") ?? chains?.acceptance;
    const shown = [[String(step), facts.total ? `of ${facts.total} updates` : "updates"], [Number.isFinite(speed) ? pretty(speed) : "–", "updates a second"]];
    if (facts.state === "training" && facts.total >= step) shown.push([duration((facts.total - step) / speed), "left"]);
    else if (typeof last("seconds") === "number") shown.push([duration(last("seconds")), "of training"]);
    for (const [name, label] of [["loss", "loss"], ["validation_energy_gap", "held-out energy gap"], ["validation_loss", "held-out loss"]]) {
      if (typeof last(name) === "number") shown.push([pretty(last(name)), label]);
    }
    if (typeof acceptance === "number" && acceptance < 1) shown.push([fixed(acceptance), "acceptance"]);
    if (typeof chains?.r_hat === "number") shown.push([fixed(chains.r_hat), `R-hat, step ${this.model.step}`]);
    this.numbers.replaceChildren(...shown.map(([value, label]) => el("li", {}, el("b", {}, value), el("small", {}, label))));
  }
}
