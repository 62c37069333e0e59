// Elements, numbers as people read them, and the colors of the page.

/** An element: el("button", { class: "main", onclick }, "Play"). */
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

/** Three figures, a proper minus, an infinity that is one. */
export function pretty(value, figures = 3) {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "–" : value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text = size >= 1e5 || size < 1e-3 ? value.toExponential(figures - 1).replace(/e\+?(-?)(\d+)/, (_, s, d) => `·10${(s + d).replace(/[-\d]/g, (c) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(c)])}`)
    : size >= 10 ** (figures - 1) ? String(Math.round(value)) : String(Number(value.toPrecision(figures)));
  return text.replace("-", "−");
}

/** So many digits after the point, always. */
export const fixed = (value, digits = 2) => (Number.isFinite(value) ? value.toFixed(digits).replace("-", "−") : pretty(value));

const NAMES = ["page", "card", "ink", "soft", "line", "grid", "axis", "accent", "warm", "good", "plum", "gold", "rose"];

/** The page's colors by name, as the style sheet has them now. */
export function colors() {
  const style = getComputedStyle(document.documentElement);
  const out = Object.fromEntries(NAMES.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  out.dark = matchMedia("(prefers-color-scheme: dark)").matches;
  return out;
}

export function rgb(hex) {
  const n = parseInt(hex.slice(1), 16);
  return [(n >> 16) & 255, (n >> 8) & 255, n & 255];
}

export function withAlpha(hex, alpha) {
  return `rgba(${rgb(hex).join(",")},${alpha})`;
}
