// A part of the plane on a canvas: a shaded density with its contours, kept as a picture, and points over it.

import { rgb, withAlpha } from "./dom.js";

export class Field {
  constructor(canvas) {
    this.canvas = canvas;
    this.ctx = canvas.getContext("2d", { alpha: false });
    this.back = document.createElement("canvas");
    this.shade = document.createElement("canvas");
    this.fit();
  }

  fit() {
    const ratio = Math.min(2, window.devicePixelRatio || 1), size = this.canvas.clientWidth || 480;
    this.size = size;
    this.ratio = ratio;
    const pixels = Math.round(size * ratio);
    this.canvas.style.height = `${size}px`;
    if (this.canvas.width !== pixels) {
      this.canvas.width = this.canvas.height = pixels;
      this.back.width = this.back.height = pixels;
    }
    this.stale = true;
  }

  /** Show a table of truth.js: √density as shade, and lines of equal energy. */
  paint(table, c, { contours = true, tint = c.accent } = {}) {
    const { n, density } = table, ctx = this.shade.getContext("2d");
    this.view = table.view;
    this.c = c;
    this.shade.width = this.shade.height = n;
    const image = ctx.createImageData(n, n), low = rgb(c.card), high = rgb(tint), deep = c.dark ? 0.75 : 0.8;
    let top = 0;
    for (let i = 0; i < density.length; i++) if (density[i] > top) top = density[i];
    for (let r = 0; r < n; r++) {
      for (let k = 0; k < n; k++) {
        const f = deep * Math.sqrt(density[r * n + k] / (top || 1)), at = 4 * ((n - 1 - r) * n + k);
        for (let j = 0; j < 3; j++) image.data[at + j] = low[j] + f * (high[j] - low[j]);
        image.data[at + 3] = 255;
      }
    }
    ctx.putImageData(image, 0, 0);
    const back = this.back.getContext("2d");
    back.imageSmoothingEnabled = true;
    back.imageSmoothingQuality = "high";
    back.drawImage(this.shade, 0, 0, this.back.width, this.back.height);
    if (contours) this.contours(back, table, c);
    this.stale = false;
  }

  /** Lines of equal energy, one unit of energy apart near the bottom, by marching squares. */
  contours(ctx, { n, energy, lowest }, c) {
    ctx.strokeStyle = withAlpha(c.accent, c.dark ? 0.28 : 0.22);
    ctx.lineWidth = this.ratio;
    const scale = this.back.width / n, at = (k) => (k + 0.5) * scale, flip = (r) => this.back.height - (r + 0.5) * scale;
    for (const level of [0.5, 1, 2, 3, 4, 6, 8, 11, 15, 20]) {
      const value = lowest + level + 0.013; // beside round numbers, which plateaus may have
      ctx.beginPath();
      for (let r = 0; r + 1 < n; r++) {
        for (let k = 0; k + 1 < n; k++) {
          const a = energy[r * n + k] - value, b = energy[r * n + k + 1] - value, d = energy[(r + 1) * n + k] - value, e = energy[(r + 1) * n + k + 1] - value;
          if (a > 0 === b > 0 && a > 0 === d > 0 && a > 0 === e > 0) continue;
          const points = [];
          if (a > 0 !== b > 0) points.push([k + a / (a - b), r]);
          if (b > 0 !== e > 0) points.push([k + 1, r + b / (b - e)]);
          if (d > 0 !== e > 0) points.push([k + d / (d - e), r + 1]);
          if (a > 0 !== d > 0) points.push([k, r + a / (a - d)]);
          for (let p = 0; p + 1 < points.length; p += 2) {
            ctx.moveTo(at(points[p][0]), flip(points[p][1]));
            ctx.lineTo(at(points[p + 1][0]), flip(points[p + 1][1]));
          }
        }
      }
      ctx.stroke();
    }
  }

  /** The kept picture, ready to be drawn upon in pixels of the screen. */
  begin() {
    this.ctx.setTransform(1, 0, 0, 1, 0, 0);
    this.ctx.drawImage(this.back, 0, 0);
    this.sx = this.canvas.width / (this.view[1] - this.view[0]);
    this.sy = this.canvas.height / (this.view[3] - this.view[2]);
  }

  px(x) {
    return (x - this.view[0]) * this.sx;
  }

  py(y) {
    return this.canvas.height - (y - this.view[2]) * this.sy;
  }

  /** Points of a flat array; `sizes` (radii in pixels) may differ. */
  points(x, color, radius = 2.4, { sizes = null, halo = true } = {}) {
    const { ctx, ratio } = this, n = x.length / 2;
    if (!sizes && (n > 300 || !halo)) { // small squares: a thousand circles take longer
      const s = Math.max(2, Math.round(2 * ratio * radius * 0.62));
      ctx.fillStyle = color;
      for (let i = 0; i < n; i++) ctx.fillRect(this.px(x[2 * i]) - s / 2, this.py(x[2 * i + 1]) - s / 2, s, s);
      return;
    }
    ctx.fillStyle = color;
    ctx.strokeStyle = this.c.card;
    ctx.lineWidth = ratio;
    for (let i = 0; i < n; i++) {
      const r = ratio * (sizes ? sizes[i] : radius);
      if (r < 0.3) continue;
      ctx.beginPath();
      ctx.arc(this.px(x[2 * i]), this.py(x[2 * i + 1]), r, 0, 6.2832);
      ctx.fill();
      if (halo) ctx.stroke();
    }
  }

  path(points, color, width = 1.2) {
    const { ctx } = this;
    ctx.strokeStyle = color;
    ctx.lineWidth = width * this.ratio;
    ctx.lineJoin = "round";
    ctx.beginPath();
    for (let i = 0; i < points.length; i += 2) ctx.lineTo(this.px(points[i]), this.py(points[i + 1]));
    ctx.stroke();
  }

  /** The place in the plane of a pointer event. */
  where(event) {
    const box = this.canvas.getBoundingClientRect(), v = this.view;
    return [v[0] + ((event.clientX - box.left) / box.width) * (v[1] - v[0]), v[3] - ((event.clientY - box.top) / box.height) * (v[3] - v[2])];
  }
}
