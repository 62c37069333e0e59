// The No-U-Turn sampler as a loop (Hoffman & Gelman 2014; multinomial: Betancourt 2017; checks of halves: 2019).
//
// A subtree's leaves are numbered from 0. Leaf n even opens subtrees and is stored in slot popcount(n >> 1); leaf n odd
// closes as many as it has trailing ones, and each is tested for a turn against what its first leaf stored.

import { leapfrog } from "./kernels.js";
import { logAddExp } from "./math.js";

export function nuts({ stepSize = 0.3, mass = 1, maxDepth = 7 } = {}) {
  let w = null;
  return {
    step(law, c, rng) {
      w ??= new Workspace(c.dim, maxDepth);
      for (let i = 0; i < c.count; i++) transition(law, c, i, rng, w, stepSize, mass, maxDepth);
    },
  };
}

class Workspace {
  constructor(d, depth) {
    const array = () => new Float64Array(d), rows = () => Array.from({ length: depth + 1 }, array);
    this.ends = [0, 1].map(() => ({ x: array(), v: array(), g: array() })); // the left and right ends of the tree
    this.x = array(); this.v = array(); this.g = array(); // the leaf at hand
    this.rho = array(); this.first = array(); this.previous = array(); this.sum = array();
    this.kept = { x: array(), g: array(), e: 0 }; // chosen from the whole tree
    this.candidate = { x: array(), g: array(), e: 0 }; // chosen from the subtree
    this.slotV = rows(); this.slotSum = rows(); this.slotPrevious = rows();
    this.a = array(); this.b = array();
  }
}

function transition(law, c, i, rng, w, eps, mass, maxDepth) {
  const d = c.dim, root = Math.sqrt(mass);
  let h0 = c.energy[i];
  for (let j = 0; j < d; j++) {
    const v = root * rng.normal();
    h0 += (v * v) / (2 * mass);
    w.rho[j] = v;
    for (const end of w.ends) {
      end.x[j] = c.x[i * d + j];
      end.v[j] = v;
      end.g[j] = c.gradient[i * d + j];
    }
    w.kept.x[j] = c.x[i * d + j];
    w.kept.g[j] = c.gradient[i * d + j];
  }
  w.kept.e = c.energy[i];
  let logWeight = 0, leaves = 0, acceptance = 0;
  for (let depth = 0; depth < maxDepth; depth++) {
    const side = rng.uniform() < 0.5 ? 0 : 1, near = w.ends[side], far = w.ends[1 - side];
    w.x.set(near.x); w.v.set(near.v); w.g.set(near.g);
    w.sum.fill(0);
    let subWeight = -Infinity, good = true;
    for (let n = 0; n < 1 << depth && good; n++) {
      w.previous.set(w.v);
      const e = leapfrog(law, w.x, w.v, w.g, side ? eps : -eps, mass);
      let h = e;
      for (let j = 0; j < d; j++) {
        h += (w.v[j] * w.v[j]) / (2 * mass);
        w.sum[j] += w.v[j];
      }
      if (i < c.watched) c.visit(i, w.x);
      if (n === 0) w.first.set(w.v);
      const log = h0 - h;
      leaves++;
      good = log > -1000 && log < Infinity;
      if (!good) break;
      acceptance += Math.min(1, Math.exp(log));
      subWeight = logAddExp(subWeight, log);
      if (Math.log(rng.uniform()) < log - subWeight) {
        w.candidate.x.set(w.x); w.candidate.g.set(w.g); w.candidate.e = e;
      }
      good = straightInside(w, n, d);
    }
    if (!good) break;
    if (Math.log(rng.uniform()) < subWeight - logWeight) {
      w.kept.x.set(w.candidate.x); w.kept.g.set(w.candidate.g); w.kept.e = w.candidate.e;
    }
    logWeight = logAddExp(logWeight, subWeight);
    for (let j = 0; j < d; j++) { // each half, prolonged by the first leaf of the other
      w.a[j] = w.rho[j] + w.first[j];
      w.b[j] = w.sum[j] + near.v[j];
      w.rho[j] += w.sum[j];
    }
    const straight = ahead(w.rho, far.v) && ahead(w.rho, w.v) && ahead(w.a, far.v) && ahead(w.a, w.first) && ahead(w.b, near.v) && ahead(w.b, w.v);
    near.x.set(w.x); near.v.set(w.v); near.g.set(w.g);
    if (!straight) break;
  }
  for (let j = 0; j < d; j++) {
    c.x[i * d + j] = w.kept.x[j];
    c.gradient[i * d + j] = w.kept.g[j];
  }
  c.energy[i] = w.kept.e;
  c.acceptance[i] = acceptance / leaves;
  c.evaluations += leaves;
}

/** Store an even leaf; at an odd one, whether all subtrees that it closes still run straight. */
function straightInside(w, n, d) {
  let top = 0;
  for (let bits = n >> 1; bits; bits >>= 1) top += bits & 1;
  if (n % 2 === 0) {
    w.slotV[top].set(w.v); w.slotSum[top].set(w.sum); w.slotPrevious[top].set(w.previous);
    return true;
  }
  let ones = 0;
  for (let bits = n; bits & 1; bits >>= 1) ones++;
  for (let i = top; i > top - ones; i--) {
    const v = w.slotV[i], sum = w.slotSum[i];
    for (let j = 0; j < d; j++) w.a[j] = w.sum[j] - sum[j] + v[j];
    if (!ahead(w.a, v) || !ahead(w.a, w.v)) return false;
    if (i === top) continue; // two leaves: their halves, prolonged, are the whole
    const half = w.slotV[i + 1], halfSum = w.slotSum[i + 1], before = w.slotPrevious[i + 1];
    for (let j = 0; j < d; j++) {
      w.a[j] = halfSum[j] - sum[j] + v[j]; // the left half and the first leaf of the right one
      w.b[j] = w.sum[j] - halfSum[j] + half[j] + before[j]; // the right half and the last leaf of the left one
    }
    if (!ahead(w.a, v) || !ahead(w.a, half) || !ahead(w.b, before) || !ahead(w.b, w.v)) return false;
  }
  return true;
}

function ahead(rho, v) {
  let dot = 0;
  for (let j = 0; j < v.length; j++) dot += rho[j] * v[j];
  return dot > 0;
}
