// Machines and data that come with the page, fetched beside it, or found inside it where everything is one file.

import { RBM } from "../core/rbm.js";

const kept = new Map();

/** A file of models/, parsed. */
async function file(name) {
  const inside = document.getElementById("models");
  if (inside) return JSON.parse(inside.textContent)[name];
  const answer = await fetch(new URL(`models/${name}`, document.baseURI));
  if (!answer.ok) throw new Error(`models/${name} could not be read: ${answer.status}`);
  return answer.json();
}

function once(name, make) {
  if (!kept.has(name)) kept.set(name, file(name).then(make));
  return kept.get(name);
}

function bytes(text) {
  const raw = atob(text), out = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) out[i] = raw.charCodeAt(i);
  return out;
}

/** Numbers of half precision. */
export function halves(text) {
  const raw = bytes(text), out = new Float64Array(raw.length / 2);
  for (let i = 0; i < out.length; i++) {
    const h = raw[2 * i] | (raw[2 * i + 1] << 8), sign = h & 0x8000 ? -1 : 1, exponent = (h >> 10) & 31, fraction = h & 1023;
    out[i] = sign * (exponent === 0 ? fraction * 2 ** -24 : exponent === 31 ? (fraction ? NaN : Infinity) : (1 + fraction / 1024) * 2 ** (exponent - 15));
  }
  return out;
}

/** Rows of bits: { rows: Float64Array, count, shape, labels }. */
export const digits = () =>
  once("digits.json", (data) => {
    const raw = bytes(data.bits), rows = new Float64Array(raw.length * 8);
    for (let i = 0; i < rows.length; i++) rows[i] = (raw[i >> 3] >> (7 - (i & 7))) & 1;
    return { rows, count: data.rows, shape: data.shape, labels: data.labels };
  });

/** A trained machine: { rbm, shape, about, name }. */
export const machine = (name) =>
  once(name, (data) => {
    const rbm = new RBM(data.visible, data.hidden);
    rbm.weight = halves(data.weight);
    rbm.visibleBias = halves(data.visibleBias);
    rbm.hiddenBias = halves(data.hiddenBias);
    if (data.classes) Object.assign(rbm, { classes: data.classes, labelWeight: halves(data.labelWeight), labelBias: halves(data.labelBias) });
    return { ...data, rbm };
  });
