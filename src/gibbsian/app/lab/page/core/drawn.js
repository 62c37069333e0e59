// A landscape drawn by hand: heights on a grid, made smooth by cubic B-splines, with walls that rise outside the view.

export class Drawing {
  /** @param {number[]} view [left, right, bottom, top] */
  constructor(view, cells = 48, depth = 6) {
    this.dim = 2;
    this.view = view;
    this.cells = cells;
    this.depth = depth;
    this.energyAt = new Float64Array(cells * cells).fill(depth); // a plateau to dig into
  }

  /** Dig (amount > 0) or fill with a round brush. */
  paint(x, y, radius, amount) {
    const { cells, view, energyAt } = this;
    for (let r = 0; r < cells; r++) {
      for (let c = 0; c < cells; c++) {
        const u = view[0] + ((c + 0.5) * (view[1] - view[0])) / cells - x, v = view[2] + ((r + 0.5) * (view[3] - view[2])) / cells - y;
        const q = (u * u + v * v) / (radius * radius);
        if (q < 9) energyAt[r * cells + c] = Math.min(this.depth, Math.max(0, energyAt[r * cells + c] - amount * Math.exp(-0.5 * q)));
      }
    }
  }

  evaluate(x, g) {
    const { cells, view } = this;
    const sx = cells / (view[1] - view[0]), sy = cells / (view[3] - view[2]);
    const u = (x[0] - view[0]) * sx - 0.5, v = (x[1] - view[2]) * sy - 0.5;
    const iu = Math.floor(u), iv = Math.floor(v);
    weights(u - iu, WU, DU);
    weights(v - iv, WV, DV);
    let e = 0, gx = 0, gy = 0;
    for (let b = 0; b < 4; b++) {
      const row = Math.min(cells - 1, Math.max(0, iv + b - 1)) * cells;
      for (let a = 0; a < 4; a++) {
        const h = this.energyAt[row + Math.min(cells - 1, Math.max(0, iu + a - 1))];
        e += WU[a] * WV[b] * h;
        gx += DU[a] * WV[b] * h;
        gy += WU[a] * DV[b] * h;
      }
    }
    g[0] = gx * sx;
    g[1] = gy * sy;
    for (let j = 0; j < 2; j++) {
      const center = 0.5 * (view[2 * j] + view[2 * j + 1]), half = 0.45 * (view[2 * j + 1] - view[2 * j]);
      const out = Math.abs(x[j] - center) - half;
      if (out > 0) {
        e += 8 * out * out;
        g[j] += 16 * out * Math.sign(x[j] - center);
      }
    }
    return e;
  }
}

const WU = new Float64Array(4), WV = new Float64Array(4), DU = new Float64Array(4), DV = new Float64Array(4);

/** Values and slopes of the four uniform cubic B-splines at t in [0, 1). */
function weights(t, w, d) {
  const s = 1 - t;
  w[0] = (s * s * s) / 6;
  w[1] = (3 * t * t * t - 6 * t * t + 4) / 6;
  w[2] = (3 * s * s * s - 6 * s * s + 4) / 6;
  w[3] = (t * t * t) / 6;
  d[0] = -0.5 * s * s;
  d[1] = 1.5 * t * t - 2 * t;
  d[2] = -1.5 * s * s + 2 * s;
  d[3] = 0.5 * t * t;
}
