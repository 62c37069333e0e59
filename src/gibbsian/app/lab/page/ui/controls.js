// Settings as people turn them: sliders with their value and unit, choices, switches, texts.

import { el, pretty } from "./dom.js";

/** What a setting's words in the address mean; what cannot be is the default. */
export function read(control, text) {
  if (text === null || text === undefined) return control.value;
  if (control.kind === "slider") {
    const value = Number(text);
    return Number.isFinite(value) ? Math.min(control.max, Math.max(control.min, value)) : control.value;
  }
  if (control.kind === "switch") return text === "1" || text === "true";
  if (control.kind === "choice" || control.kind === "select") return control.options.some(([value]) => value === text) ? text : control.value;
  return String(text).slice(0, 400);
}

export const written = (control, value) => (control.kind === "switch" ? (value ? "1" : "0") : control.kind === "slider" ? String(Number(Number(value).toPrecision(4))) : value);

const STEPS = 1000;

function toSlider({ min, max, log }, value) {
  return Math.round(STEPS * (log ? Math.log(value / min) / Math.log(max / min) : (value - min) / (max - min)));
}

function fromSlider({ min, max, log, step }, at) {
  const f = at / STEPS, value = log ? min * (max / min) ** f : min + f * (max - min);
  if (step) return Math.min(max, Math.max(min, Math.round(value / step) * step));
  return Number(value.toPrecision(3));
}

/** A control's elements; calls `changed(value)` and can be told a value by `.show(value)`. */
export function build(control, value, changed) {
  const id = `set-${control.id}`;
  const note = control.note ? el("small", { id: `${id}-note` }, control.note) : null;
  const described = control.note ? `${id}-note` : null;
  if (control.kind === "slider") {
    const out = el("output", { for: id });
    const input = el("input", { type: "range", id, min: 0, max: STEPS, step: 1, "aria-describedby": described });
    const show = (v) => {
      const text = (control.format ?? pretty)(v) + (control.unit ? ` ${control.unit}` : "");
      out.textContent = text;
      input.value = toSlider(control, v);
      input.setAttribute("aria-valuetext", text);
    };
    input.addEventListener("input", () => {
      const v = fromSlider(control, Number(input.value));
      const at = input.value;
      show(v);
      if (!control.step) input.value = at;
      changed(v);
    });
    input.addEventListener("keydown", (event) => { // arrows go one readable step, not one thousandth
      const up = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
      if (!up) return;
      event.preventDefault();
      event.stopPropagation();
      const now = fromSlider(control, Number(input.value));
      const next = control.step ? now + up * control.step : fromSlider(control, Number(input.value) + up * 20);
      const v = Math.min(control.max, Math.max(control.min, next));
      show(v);
      changed(v);
    });
    show(value);
    return { node: el("div", { class: "field" }, el("label", { for: id }, control.label, out), input, note), show };
  }
  if (control.kind === "select") {
    const input = el("select", { id, "aria-describedby": described }, control.options.map(([v, label]) => el("option", { value: v }, label)));
    input.value = value;
    input.addEventListener("change", () => changed(input.value));
    return { node: el("div", { class: "field" }, el("label", { for: id }, control.label), input, note), show: (v) => (input.value = v) };
  }
  if (control.kind === "choice") {
    const buttons = control.options.map(([v, label]) => el("button", { type: "button", class: "small", onclick: () => { show(v); changed(v); } }, label));
    const show = (v) => buttons.forEach((b, i) => b.setAttribute("aria-pressed", String(control.options[i][0] === v)));
    show(value);
    return { node: el("div", { class: "field", role: "group", "aria-label": control.label }, el("div", { class: "label" }, control.label), el("div", { class: "choices" }, buttons), note), show };
  }
  if (control.kind === "switch") {
    const input = el("input", { type: "checkbox", id, "aria-describedby": described });
    input.checked = value;
    input.addEventListener("change", () => changed(input.checked));
    return { node: el("div", { class: "field" }, el("label", { class: "check", for: id }, input, control.label), note), show: (v) => (input.checked = v) };
  }
  if (control.kind === "hidden") return { node: el("div"), show: () => {} }; // kept in the address alone
  const error = el("small", { class: "error", role: "alert" });
  const input = el("input", { type: "text", id, value, spellcheck: "false", autocapitalize: "off", autocomplete: "off" });
  input.addEventListener("input", () => {
    try {
      changed(input.value);
      error.textContent = "";
      input.removeAttribute("aria-invalid");
    } catch (problem) {
      error.textContent = problem.message;
      input.setAttribute("aria-invalid", "true");
    }
  });
  return { node: el("div", { class: "field" }, el("label", { for: id }, control.label), input, error, note), show: (v) => (input.value = v) };
}
