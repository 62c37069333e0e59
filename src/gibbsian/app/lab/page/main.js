// The page: one experiment at a time, named by the address: #landscape?law=ring&kernel=hmc&seed=3. With embed=1 only the
// experiment is seen, for frames in other pages.

import { el } from "./ui/dom.js";
import { Bench } from "./ui/bench.js";
import { annealing } from "./sections/annealing.js";
import { digits } from "./sections/digits.js";
import { landscape } from "./sections/landscape.js";
import { lattice } from "./sections/lattice.js";
import { machine } from "./sections/machine.js";
import { noise } from "./sections/noise.js";
import { wells } from "./sections/wells.js";

const EXPERIMENTS = [landscape, machine, wells, lattice, noise, annealing, digits];
const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
const main = document.getElementById("main"), tabs = document.getElementById("tabs");
let bench = null, written = "";

function address() {
  const [id, query] = location.hash.slice(1).split("?"); // what is escaped in it, URLSearchParams reads, whole or not
  return { experiment: EXPERIMENTS.find((one) => one.id === id) ?? EXPERIMENTS[0], asked: new URLSearchParams(query ?? "") };
}

/** Keep the address up to date without leaving a trail of back steps. */
function remember() {
  if (!bench) return;
  const query = bench.address();
  if (document.body.classList.contains("embed")) query.set("embed", "1");
  const text = query.toString();
  written = `#${bench.experiment.id}${text ? `?${text}` : ""}`;
  if (location.hash !== written) history.replaceState(null, "", written);
}

function show() {
  if (bench && location.hash === written) return;
  const { experiment, asked } = address();
  document.body.classList.toggle("embed", asked.get("embed") === "1");
  bench = null;
  const next = new Bench(experiment, asked, { still, onchange: () => queueMicrotask(remember) });
  main.replaceChildren(next.node);
  bench = next;
  bench.start();
  document.title = `${experiment.title} · the gibbsian lab`;
  for (const link of tabs.querySelectorAll("a")) {
    const here = link.dataset.id === experiment.id;
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
    if (here) tabs.scrollLeft = link.offsetLeft - tabs.offsetLeft - 40;
  }
}

function keys(event) {
  const typing = event.target.closest?.("input, select, textarea");
  if (!bench || event.ctrlKey || event.metaKey || event.altKey || (typing && typing.type !== "range" && typing.type !== "checkbox")) return;
  const key = event.key;
  if (key === " " && event.target.closest?.("button, input, a, canvas.pen")) return;
  if (key === " ") bench.play(!bench.playing);
  else if (key === "ArrowRight" && !typing && !event.target.closest?.("canvas.hands")) { bench.play(false); bench.step(); }
  else if (key.toLowerCase() === "r" && !typing) bench.reset();
  else if (/^[1-9]$/.test(key) && EXPERIMENTS[key - 1] && !typing) location.hash = EXPERIMENTS[key - 1].id;
  else return;
  event.preventDefault();
}

EXPERIMENTS.forEach((one) => tabs.append(el("li", {}, el("a", { href: `#${one.id}`, "data-id": one.id }, one.tab))));
addEventListener("hashchange", show);
addEventListener("keydown", keys);
let waiting = 0;
addEventListener("resize", () => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(() => bench?.refit()); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => bench?.refit());
show();

function frame(now) {
  bench?.frame(now);
  requestAnimationFrame(frame);
}
requestAnimationFrame(frame);
window.lab = { bench: () => bench, sections: EXPERIMENTS.map((one) => one.id) };
