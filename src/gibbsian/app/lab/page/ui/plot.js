// Charts on a canvas: axes with round ticks, lines, bands, bars. Redrawn whole; sharp on every screen.

import { pretty, withAlpha } from "./dom.js";

export class Plot {
  constructor(canvas, { height = 150, left = 40, bottom = 24, top = 8, right = 10 } = {}) {
    Object.assign(this, { canvas, margin: { left, bottom, top, right }, height });
    this.ctx = canvas.getContext("2d");
    this.fit();
  }

  /** As many pixels as the screen has. */
  fit() {
    const ratio = Math.min(2, window.devicePixelRatio || 1), width = this.canvas.clientWidth || 280;
    this.width = width;
    this.canvas.style.height = `${this.height}px`;
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(this.height * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(this.height * ratio);
    }
    this.ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
  }

  /** Begin anew with axes over x = [a, b], y = [a, b]. `log`: the y axis counts factors of ten. `every`: the ticks of x. */
  begin(c, { x, y, xLabel = "", yLabel = "", yTicks = true, xTicks = true, log = false, every = null }) {
    const { ctx, margin } = this;
    this.c = c;
    this.x0 = x[0]; this.x1 = x[1] > x[0] ? x[1] : x[0] + 1;
    this.log = log;
    const low = log ? Math.log10(y[0]) : y[0], high = log ? Math.log10(y[1]) : y[1];
    this.y0 = low; this.y1 = high > low ? high : low + 1;
    ctx.clearRect(0, 0, this.width, this.height);
    ctx.font = "11px system-ui, sans-serif";
    ctx.lineWidth = 1;
    const bottom = this.height - margin.bottom;
    if (xTicks) {
      ctx.textAlign = "center"; ctx.textBaseline = "top";
      for (const t of every ?? ticks(this.x0, this.x1, Math.max(2, Math.floor(this.width / 70)))) {
        const at = this.px(t);
        ctx.strokeStyle = c.grid;
        stroke(ctx, at, margin.top, at, bottom);
        ctx.fillStyle = c.soft;
        ctx.fillText(pretty(t), at, bottom + 5);
      }
    }
    if (yTicks) {
      ctx.textAlign = "right"; ctx.textBaseline = "middle";
      const marks = ticks(this.y0, this.y1, Math.max(2, Math.floor(this.height / 40)));
      const figures = Math.max(3, Math.ceil(Math.log10(Math.max(...marks.map(Math.abs)) / (marks[1] - marks[0]) || 1)) + 1); // neighbors read differently
      for (const t of marks) {
        if (log && t !== Math.round(t)) continue;
        const at = bottom - ((t - this.y0) / (this.y1 - this.y0)) * (bottom - margin.top);
        ctx.strokeStyle = c.grid;
        stroke(ctx, margin.left, at, this.width - margin.right, at);
        ctx.fillStyle = c.soft;
        ctx.fillText(log ? pretty(10 ** t) : pretty(t, figures), margin.left - 5, at);
      }
    }
    ctx.strokeStyle = c.axis;
    stroke(ctx, margin.left, bottom, this.width - margin.right, bottom);
    ctx.fillStyle = c.soft;
    if (xLabel) { ctx.textAlign = "right"; ctx.textBaseline = "bottom"; ctx.fillText(xLabel, this.width - margin.right, bottom - 3); }
    if (yLabel) { ctx.textAlign = "left"; ctx.textBaseline = "top"; ctx.fillText(yLabel, margin.left + 4, margin.top - 2); }
    return this;
  }

  px(x) {
    return this.margin.left + ((x - this.x0) / (this.x1 - this.x0)) * (this.width - this.margin.left - this.margin.right);
  }

  py(y) {
    const bottom = this.height - this.margin.bottom, v = this.log ? Math.log10(Math.max(y, 1e-300)) : y;
    const at = bottom - ((v - this.y0) / (this.y1 - this.y0)) * (bottom - this.margin.top);
    return Math.min(this.height + 50, Math.max(-50, at));
  }

  clipped(draw) {
    const { ctx, margin } = this;
    ctx.save();
    ctx.beginPath();
    ctx.rect(margin.left, margin.top - 3, this.width - margin.left - margin.right, this.height - margin.top - margin.bottom + 4);
    ctx.clip();
    draw(ctx);
    ctx.restore();
    return this;
  }

  line(xs, ys, color, width = 1.8, dash = []) {
    return this.clipped((ctx) => {
      ctx.strokeStyle = color; ctx.lineWidth = width; ctx.lineJoin = "round";
      ctx.setLineDash(dash);
      ctx.beginPath();
      let up = true;
      for (let i = 0; i < xs.length; i++) {
        if (!Number.isFinite(ys[i])) { up = true; continue; }
        if (up) ctx.moveTo(this.px(xs[i]), this.py(ys[i]));
        else ctx.lineTo(this.px(xs[i]), this.py(ys[i]));
        up = false;
      }
      ctx.stroke();
    });
  }

  band(xs, low, high, color, alpha = 0.2) {
    return this.clipped((ctx) => {
      ctx.fillStyle = withAlpha(color, alpha);
      ctx.beginPath();
      for (let i = 0; i < xs.length; i++) ctx.lineTo(this.px(xs[i]), this.py(high[i]));
      for (let i = xs.length - 1; i >= 0; i--) ctx.lineTo(this.px(xs[i]), this.py(low[i]));
      ctx.fill();
    });
  }

  /** Bars over equal bins of [low, high]. */
  bars(low, high, heights, color, alpha = 0.45) {
    return this.clipped((ctx) => {
      ctx.fillStyle = withAlpha(color, alpha);
      const w = (high - low) / heights.length, zero = this.py(0);
      for (let i = 0; i < heights.length; i++) {
        if (!heights[i]) continue;
        const a = this.px(low + i * w), b = this.px(low + (i + 1) * w), y = this.py(heights[i]);
        ctx.fillRect(a, y, Math.max(1, b - a - 0.6), zero - y);
      }
    });
  }

  dots(xs, ys, color, radius = 3) {
    return this.clipped((ctx) => {
      ctx.fillStyle = color;
      for (let i = 0; i < xs.length; i++) {
        ctx.beginPath();
        ctx.arc(this.px(xs[i]), this.py(ys[i]), radius, 0, 7);
        ctx.fill();
      }
    });
  }

  across(y, color, dash = [5, 4]) {
    return this.line([this.x0, this.x1], [y, y], color, 1.5, dash);
  }

  upright(x, color, dash = [4, 4]) {
    return this.clipped((ctx) => {
      ctx.strokeStyle = color; ctx.lineWidth = 1.3;
      ctx.setLineDash(dash);
      stroke(ctx, this.px(x), this.margin.top, this.px(x), this.height - this.margin.bottom);
    });
  }
}

function stroke(ctx, x0, y0, x1, y1) {
  ctx.beginPath();
  ctx.moveTo(Math.round(x0) + 0.5, Math.round(y0) + 0.5);
  ctx.lineTo(Math.round(x1) + 0.5, Math.round(y1) + 0.5);
  ctx.stroke();
}

/** About `count` round numbers from a to b. */
export function ticks(a, b, count) {
  const raw = (b - a) / count, power = 10 ** Math.floor(Math.log10(raw)), step = power * ([1, 2, 5, 10].find((m) => m * power >= raw) ?? 10);
  const out = [];
  for (let t = Math.ceil(a / step - 1e-9); t * step <= b + 1e-9 * step; t++) out.push(Number((t * step).toPrecision(12)));
  return out;
}
