// (g) A trained machine to draw from and to be completed with the mouse. Further machines: a file in models/ and a line here.

import { sweep } from "../core/rbm.js";
import { fixed, rgb } from "../ui/dom.js";
import { digits as readDigits, machine } from "../ui/models.js";
import { Plot } from "../ui/plot.js";
import { Tiles } from "../ui/tiles.js";

const MACHINES = [["digits-rbm.json", "digits, 8 × 8"], ["zoo-digits-rbm.json", "digits-rbm of the zoo"]];
const CHAINS = 24;
const FREE = 0, INK = 1, BLANK = 2;
const TOOLS = { ink: INK, blank: BLANK, free: FREE };

export const digits = {
  id: "digits",
  tab: "Draw with it",
  title: "A trained machine completes what you draw",
  lead: "The first machine has learned 64 pixels together with the name of the digit, that of the zoo pixels alone. Whatever you fix, pixels or the name, is held; Gibbs sampling fills in the rest again and again, drawing from its law given what you fixed.",
  look: "a few pixels that narrow twenty-four dreams down to one digit, and bars that say which. Or fix nothing but the name, and let it draw.",
  controls: [
    { id: "model", kind: "select", label: "Machine", options: MACHINES, value: MACHINES[0][0], fresh: true },
    { id: "tool", kind: "choice", label: "Drag over the picture to set", options: [["ink", "ink"], ["blank", "no ink"], ["free", "let it choose"]], value: "ink" },
    { id: "label", kind: "choice", label: "It is a", options: [["any", "any"], ..."0123456789".split("").map((d) => [d, d])], value: "any", when: (v) => v.model === MACHINES[0][0] },
    { id: "drawn", kind: "hidden", value: "" }, // 64 of . (free), # (ink) and - (no ink), row by row
    { id: "speed", kind: "slider", label: "sweeps a frame", min: 0.05, max: 8, value: 0.5, log: true },
  ],
  actions: [{ label: "Clear", does: "clear" }, { label: "Half a real digit", does: "half" }],
  presets: [
    { label: "dream freely", set: {} },
    { label: "draw sevens", set: { label: "7" } },
    { label: "a ring, open", set: { drawn: "...##.....#..#...#............................................." } },
    { label: "two strokes", set: { drawn: "..................................#####.....#......#............" } },
  ],
  create: (bench) => new Pad(bench),
};

class Pad {
  constructor(bench) {
    this.bench = bench;
    this.pad = bench.stage("Your digit", (canvas) => new Grid(canvas), { hands: true, caption: "blue frames: held by you", max: 480 });
    this.tiles = bench.chart("Its dreams, all with what you hold", (canvas) => new Tiles(canvas, { columns: 6, rows: 4, shape: [8, 8] }));
    this.names = bench.chart("Which digit?", (canvas) => new Plot(canvas, { left: 12, height: 140 }));
    bench.fact("best", "most likely");
    bench.fact("held", "pixels held");
    bench.fact("sweeps", "sweeps");
    this.cell = 27;
    this.listen(this.pad.canvas);
  }

  reset() {
    const { values } = this.bench;
    this.rng = this.bench.random();
    this.held = read(values.drawn);
    Promise.all([machine(values.model), readDigits()]).then(([found, data]) => {
      const late = this.machine !== found;
      this.machine = found;
      this.data = data;
      if (late) this.wake();
    });
    if (this.machine) this.wake();
  }

  wake() {
    const { rbm } = this.machine;
    this.rows = Float64Array.from({ length: CHAINS * rbm.visible }, () => (this.rng.uniform() < 0.3 ? 1 : 0));
    this.means = new Float64Array(this.rows.length);
    this.labels = Array.from({ length: CHAINS }, () => this.rng.integer(Math.max(1, rbm.classes)));
    this.dream = new Float64Array(rbm.visible).fill(0.3);
    this.guess = new Float64Array(rbm.classes).fill(1 / Math.max(1, rbm.classes));
    this.names.canvas.parentElement.hidden = !rbm.classes;
    this.hold();
    for (let t = 0; t < 30; t++) this.sweep();
    this.bench.redraw();
  }

  /** What is held, put into every chain. */
  hold() {
    const { rbm } = this.machine, { label } = this.bench.values;
    this.clamp = this.held.map((state) => state !== FREE);
    for (let r = 0; r < CHAINS; r++) {
      for (let i = 0; i < rbm.visible; i++) if (this.clamp[i]) this.rows[r * rbm.visible + i] = this.held[i] === INK ? 1 : 0;
      if (label !== "any") this.labels[r] = Number(label);
    }
  }

  change(changes) {
    if ("drawn" in changes) {
      this.held = read(changes.drawn);
    }
    if (this.machine && ("drawn" in changes || "label" in changes)) this.hold();
  }

  sweep() {
    const { rbm } = this.machine, fixedLabel = this.bench.values.label !== "any";
    sweep(rbm, this.rows, this.rng, { clamp: this.clamp, means: this.means, labels: rbm.classes ? this.labels : null, heldLabel: fixedLabel });
    for (let i = 0; i < rbm.visible; i++) this.dream[i] += 0.25 * (this.means[i] - this.dream[i]); // the first chain, calmed
    if (!rbm.classes) return;
    const now = new Float64Array(rbm.classes);
    for (const y of this.labels) now[y] += 1 / CHAINS;
    for (let y = 0; y < rbm.classes; y++) this.guess[y] += 0.06 * (now[y] - this.guess[y]);
  }

  step() {
    if (this.machine) this.sweep();
  }

  draw() {
    if (!this.machine) return;
    this.pad.show(this.bench.c, this.dream, this.held, this.focused ? this.cell : -1);
    this.tiles.show(this.bench.c, this.means, CHAINS);
  }

  charts() {
    if (!this.machine) return;
    const { bench, guess } = this, { c } = bench, best = guess.indexOf(Math.max(...guess)), k = guess.length;
    if (k) this.names.begin(c, { x: [-0.5, k - 0.5], y: [0, 1.05], yTicks: false, every: Array.from({ length: k }, (_, y) => y) });
    guess.forEach((p, y) => this.names.bars(y - 0.38, y + 0.38, [p], y === best ? c.accent : c.axis, y === best ? 0.9 : 0.5));
    bench.tell("best", k ? `${best}  (${fixed(100 * guess[best], 0)} %)` : "knows no names");
    bench.tell("held", `${this.held.filter((s) => s !== FREE).length} of ${this.held.length}`);
    bench.tell("sweeps", String(bench.steps));
  }

  describe() {
    if (!this.machine) return "The machine is being read.";
    const best = this.guess.indexOf(Math.max(...this.guess));
    const taken = this.guess.length ? ` The machine takes it for a ${best}, with ${fixed(100 * this.guess[best], 0)} % of its chains.` : "";
    return `${this.held.filter((s) => s !== FREE).length} pixels are held.${taken} Arrow keys move over the picture, space sets a pixel.`;
  }

  // --- hands ----------------------------------------------------------------------------------------------------

  listen(canvas) {
    canvas.classList.add("pen");
    let down = false;
    canvas.addEventListener("pointerdown", (event) => {
      down = true;
      canvas.setPointerCapture(event.pointerId);
      this.put(this.pad.where(event));
    });
    canvas.addEventListener("pointermove", (event) => down && this.put(this.pad.where(event)));
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => (down = false));
    canvas.addEventListener("focus", () => { this.focused = canvas.matches(":focus-visible"); this.bench.redraw(); });
    canvas.addEventListener("blur", () => { this.focused = false; this.bench.redraw(); });
    canvas.addEventListener("keydown", (event) => {
      const [x, y] = [this.cell % 8, Math.floor(this.cell / 8)], move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
      if (move) this.cell = Math.min(7, Math.max(0, x + move[0])) + 8 * Math.min(7, Math.max(0, y + move[1]));
      else if (event.key === " " || event.key === "Enter") this.put(this.cell);
      else return;
      this.focused = true;
      event.preventDefault();
      this.bench.redraw();
    });
  }

  put(cell) {
    if (cell < 0 || !this.machine) return;
    this.held[cell] = TOOLS[this.bench.values.tool];
    this.keep();
  }

  /** The held pixels into the address and the chains. */
  keep() {
    const drawn = this.held.some((s) => s !== FREE) ? Array.from(this.held, (s) => ".#-"[s]).join("") : "";
    this.bench.builtControls.drawn.show(drawn);
    this.bench.set({ drawn });
  }

  clear() {
    this.held.fill(FREE);
    this.keep();
  }

  /** The upper half of one of the digits that scikit-learn has, the rest to be filled in. */
  half() {
    if (!this.data) return;
    const row = this.rng.integer(this.data.count) * 64;
    for (let i = 0; i < 64; i++) this.held[i] = i < 32 ? (this.data.rows[row + i] ? INK : BLANK) : FREE;
    this.keep();
  }
}

function read(text) {
  return Array.from({ length: 64 }, (_, i) => ({ "#": INK, "-": BLANK })[text[i]] ?? FREE);
}

/** Large pixels that can be touched. */
class Grid {
  constructor(canvas) {
    this.canvas = canvas;
    this.ctx = canvas.getContext("2d");
    this.fit();
  }

  fit() {
    const ratio = Math.min(2, window.devicePixelRatio || 1), size = this.canvas.clientWidth || 400;
    this.canvas.style.height = `${size}px`;
    const pixels = Math.round(size * ratio);
    if (this.canvas.width !== pixels) this.canvas.width = this.canvas.height = pixels;
  }

  show(c, values, held, cursor) {
    const { ctx } = this, side = this.canvas.width / 8, paper = rgb(c.card), ink = rgb(c.dark ? "#e4e6e8" : "#24292e");
    ctx.clearRect(0, 0, this.canvas.width, this.canvas.height);
    for (let i = 0; i < 64; i++) {
      const x = (i % 8) * side, y = Math.floor(i / 8) * side, f = held[i] === FREE ? values[i] : held[i] === INK ? 1 : 0;
      ctx.fillStyle = `rgb(${paper.map((p, j) => Math.round(p + f * (ink[j] - p))).join(",")})`;
      ctx.fillRect(x + 1, y + 1, side - 2, side - 2);
      ctx.lineWidth = held[i] === FREE ? 1 : side / 14;
      ctx.strokeStyle = held[i] === FREE ? c.line : c.accent;
      const inset = ctx.lineWidth / 2 + 1;
      ctx.strokeRect(x + inset, y + inset, side - 2 * inset, side - 2 * inset);
      if (i === cursor) {
        ctx.strokeStyle = c.warm;
        ctx.lineWidth = side / 10;
        ctx.strokeRect(x + 5, y + 5, side - 10, side - 10);
      }
    }
  }

  /** The pixel under a pointer. */
  where(event) {
    const box = this.canvas.getBoundingClientRect(), x = Math.floor((8 * (event.clientX - box.left)) / box.width), y = Math.floor((8 * (event.clientY - box.top)) / box.height);
    return x >= 0 && y >= 0 && x < 8 && y < 8 ? 8 * y + x : -1;
  }
}
