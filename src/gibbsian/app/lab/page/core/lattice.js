// Ising and Potts lattices, periodic, L × L: E(s) = -Σ_<ij> δ(sᵢ, sⱼ)·J - field, moved at temperature T.
//
// States are 0 … q-1. The Ising lattice is q = 2 with E = -Σ sᵢsⱼ - hΣsᵢ, s = ±1 (state 1 is up); Potts has
// E = -Σ δ(sᵢ, sⱼ), as usual. An Ising bond gains 2 by agreeing, a Potts bond 1: that is `bond`.

export class Lattice {
  constructor(size, states = 2, { ising = states === 2, field = 0 } = {}) {
    this.size = size;
    this.states = states;
    this.ising = ising;
    this.bond = ising ? 2 : 1;
    this.field = ising ? field : 0;
    this.spins = new Uint8Array(size * size);
    this.stack = new Int32Array(size * size);
    this.label = new Int32Array(size * size);
    this.clusterSizes = [];
  }

  /** All sites random ("hot") or alike ("cold"). */
  start(kind, rng) {
    for (let i = 0; i < this.spins.length; i++) this.spins[i] = kind === "hot" ? rng.integer(this.states) : this.states - 1;
    return this;
  }

  right(i) {
    return i % this.size === this.size - 1 ? i - this.size + 1 : i + 1;
  }
  left(i) {
    return i % this.size === 0 ? i + this.size - 1 : i - 1;
  }
  down(i) {
    return i + this.size < this.spins.length ? i + this.size : i + this.size - this.spins.length;
  }
  up(i) {
    return i >= this.size ? i - this.size : i - this.size + this.spins.length;
  }

  /** Energy per site. */
  energy() {
    const { spins } = this, n = spins.length;
    let agree = 0, total = 0;
    for (let i = 0; i < n; i++) {
      agree += (spins[i] === spins[this.right(i)] ? 1 : 0) + (spins[i] === spins[this.down(i)] ? 1 : 0);
      total += spins[i];
    }
    return this.ising ? (2 * n - 2 * agree - this.field * (2 * total - n)) / n : -agree / n;
  }

  /** Ising: Σs/N in [-1, 1]. Potts: (q·(largest share) - 1)/(q - 1) in [0, 1]. */
  magnetization() {
    const counts = new Float64Array(this.states), n = this.spins.length;
    for (let i = 0; i < n; i++) counts[this.spins[i]]++;
    if (this.ising) return (2 * counts[1] - n) / n;
    return (this.states * (Math.max(...counts) / n) - 1) / (this.states - 1);
  }

  /** Single sites in random order, n tries: heat bath. */
  gibbs(temperature, rng) {
    const { spins, states, bond } = this, n = spins.length, counts = new Float64Array(states);
    const boltzmann = Float64Array.from({ length: 5 }, (_, k) => Math.exp((bond * k) / temperature));
    const lean = Math.exp((2 * this.field) / temperature); // of state 1 against state 0
    for (let t = 0; t < n; t++) {
      const i = rng.integer(n);
      counts.fill(0);
      counts[spins[this.left(i)]]++; counts[spins[this.right(i)]]++; counts[spins[this.up(i)]]++; counts[spins[this.down(i)]]++;
      for (let s = 0; s < states; s++) counts[s] = boltzmann[counts[s]];
      if (this.field) counts[1] *= lean;
      spins[i] = rng.choice(counts);
    }
  }

  /** Single sites in random order, n tries: a new state is proposed and accepted with min(1, e^{-ΔE/T}). */
  metropolis(temperature, rng) {
    const { spins, states, bond } = this, n = spins.length;
    let accepted = 0;
    for (let t = 0; t < n; t++) {
      const i = rng.integer(n), old = spins[i], now = (old + 1 + rng.integer(states - 1)) % states;
      const a = spins[this.left(i)], b = spins[this.right(i)], c = spins[this.up(i)], d = spins[this.down(i)];
      const lost = (a === old) + (b === old) + (c === old) + (d === old), won = (a === now) + (b === now) + (c === now) + (d === now);
      const change = bond * (lost - won) - 2 * this.field * (now - old);
      if (change <= 0 || rng.uniform() < Math.exp(-change / temperature)) {
        spins[i] = now;
        accepted++;
      }
    }
    return accepted / n;
  }

  /** Wolff 1989: one cluster grown from a random site by bonds of probability 1 - e^{-bond/T}, recolored. */
  wolff(temperature, rng) {
    const { spins, stack, states, label } = this, n = spins.length, join = 1 - Math.exp(-this.bond / temperature);
    const seed = rng.integer(n), old = spins[seed], now = (old + 1 + rng.integer(states - 1)) % states;
    let top = 0, members = 0;
    stack[top++] = seed;
    spins[seed] = now;
    while (top) {
      const i = stack[--top];
      label[members++] = i;
      for (let side = 0; side < 4; side++) {
        const k = side === 0 ? this.left(i) : side === 1 ? this.right(i) : side === 2 ? this.up(i) : this.down(i);
        if (spins[k] === old && rng.uniform() < join) {
          spins[k] = now;
          stack[top++] = k;
        }
      }
    }
    const gain = (2 * this.field * (now - old) * members) / temperature; // the field is left to a Metropolis test
    if (this.field && !(Math.log(rng.uniform()) < gain)) for (let m = 0; m < members; m++) spins[label[m]] = old;
    return members / n;
  }

  /** Swendsen & Wang 1987: all clusters at once, each given a new state, the field weighing the choice. */
  swendsenWang(temperature, rng) {
    const { spins, label, stack, states } = this, n = spins.length, join = 1 - Math.exp(-this.bond / temperature);
    const bonds = new Uint8Array(2 * n); // to the right, and down
    for (let i = 0; i < n; i++) {
      bonds[2 * i] = spins[i] === spins[this.right(i)] && rng.uniform() < join ? 1 : 0;
      bonds[2 * i + 1] = spins[i] === spins[this.down(i)] && rng.uniform() < join ? 1 : 0;
    }
    const seen = new Uint8Array(n);
    let clusters = 0, largest = 0;
    for (let s = 0; s < n; s++) {
      if (seen[s]) continue;
      let top = 0, members = 0;
      stack[top++] = s;
      seen[s] = 1;
      while (top) {
        const i = stack[--top];
        label[members++] = i;
        const left = this.left(i), up = this.up(i), right = this.right(i), down = this.down(i);
        if (bonds[2 * i] && !seen[right]) { seen[right] = 1; stack[top++] = right; }
        if (bonds[2 * i + 1] && !seen[down]) { seen[down] = 1; stack[top++] = down; }
        if (bonds[2 * left] && !seen[left]) { seen[left] = 1; stack[top++] = left; }
        if (bonds[2 * up + 1] && !seen[up]) { seen[up] = 1; stack[top++] = up; }
      }
      const up = this.field ? 1 / (1 + Math.exp((-2 * this.field * members) / temperature)) : 0;
      const now = this.field ? (rng.uniform() < up ? 1 : 0) : rng.integer(states);
      for (let m = 0; m < members; m++) spins[label[m]] = now;
      clusters++;
      if (members > largest) largest = members;
    }
    return largest / n;
  }
}

/** Onsager's and Yang's exact answers for the infinite Ising lattice, J = 1: energy per site and spontaneous magnetization. */
export function onsager(temperature) {
  const k = 1 / temperature, kappa = (2 * Math.sinh(2 * k)) / Math.cosh(2 * k) ** 2;
  const energy = -(1 / Math.tanh(2 * k)) * (1 + (2 / Math.PI) * (2 * Math.tanh(2 * k) ** 2 - 1) * ellipticK(kappa));
  const magnetization = temperature < criticalTemperature(2, true) ? (1 - Math.sinh(2 * k) ** -4) ** 0.125 : 0;
  return { energy, magnetization };
}

/** The complete elliptic integral of the first kind, by the arithmetic-geometric mean. */
function ellipticK(kappa) {
  let a = 1, b = Math.sqrt(Math.max(0, 1 - kappa * kappa));
  if (b === 0) b = 1e-16;
  for (let i = 0; i < 40 && Math.abs(a - b) > 1e-15; i++) [a, b] = [(a + b) / 2, Math.sqrt(a * b)];
  return Math.PI / (2 * a);
}

export const criticalTemperature = (states, ising) => (ising ? 2 : 1) / Math.log(1 + Math.sqrt(states));
