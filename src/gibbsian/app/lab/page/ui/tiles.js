// Small pictures side by side on one canvas: digits, filters.

import { rgb } from "./dom.js";

export class Tiles {
  constructor(canvas, { columns, rows, shape, gap = 1 }) {
    Object.assign(this, { canvas, columns, rows, shape, gap });
    canvas.classList.add("pixels");
    this.ctx = canvas.getContext("2d");
    this.fit();
  }

  fit() {
    const [h, w] = this.shape;
    this.canvas.width = this.columns * (w + this.gap) + this.gap;
    this.canvas.height = this.rows * (h + this.gap) + this.gap;
    this.canvas.style.height = "auto";
  }

  /** A grid of another size. */
  arrange(columns, rows) {
    if (columns === this.columns && rows === this.rows) return;
    Object.assign(this, { columns, rows });
    this.fit();
  }

  /** Values in [0, 1] from paper to ink, or with `signed` in [-1, 1] from one color over paper to another. */
  show(c, values, count, { signed = false, marks = null } = {}) {
    const { ctx, columns, gap } = this, [h, w] = this.shape, image = ctx.createImageData(this.canvas.width, this.canvas.height);
    const paper = rgb(c.card), ink = rgb(c.dark ? "#e4e6e8" : "#24292e"), plus = rgb(c.warm), minus = rgb(c.accent), line = rgb(c.line), mark = rgb(c.gold);
    for (let i = 0; i < image.data.length; i += 4) image.data.set([...line, 255], i);
    for (let t = 0; t < Math.min(count, columns * this.rows); t++) {
      const left = gap + (t % columns) * (w + gap), top = gap + Math.floor(t / columns) * (h + gap);
      for (let i = 0; i < h * w; i++) {
        const value = values[t * h * w + i], f = Math.min(1, Math.abs(value)), to = signed ? (value > 0 ? plus : minus) : ink;
        const at = 4 * ((top + Math.floor(i / w)) * this.canvas.width + left + (i % w)), tint = marks && marks[t * h * w + i] ? 0.35 : 0;
        for (let j = 0; j < 3; j++) {
          const shade = paper[j] + f * (to[j] - paper[j]);
          image.data[at + j] = shade + tint * (mark[j] - shade);
        }
      }
    }
    ctx.putImageData(image, 0, 0);
  }
}
