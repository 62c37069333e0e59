// Random numbers: xoshiro128** (Blackman & Vigna 2018), seeded by splitmix32. Same seed, same chains.

export class Random {
  constructor(seed = 0) {
    let s = seed >>> 0;
    const next = () => {
      s = (s + 0x9e3779b9) >>> 0;
      let z = s;
      z = Math.imul(z ^ (z >>> 16), 0x21f0aaad);
      z = Math.imul(z ^ (z >>> 15), 0x735a2d97);
      return (z ^ (z >>> 15)) | 0;
    };
    this.a = next();
    this.b = next();
    this.c = next();
    this.d = next() | 1; // never all zero
    this.spare = NaN;
  }

  /** 32 random bits, as a signed integer. */
  bits() {
    const m = Math.imul(this.b, 5);
    const out = Math.imul((m << 7) | (m >>> 25), 9);
    const t = this.b << 9;
    this.c ^= this.a;
    this.d ^= this.b;
    this.b ^= this.c;
    this.a ^= this.d;
    this.c ^= t;
    this.d = (this.d << 11) | (this.d >>> 21);
    return out;
  }

  /** Uniform on the open interval (0, 1). */
  uniform() {
    return ((this.bits() >>> 0) + 0.5) * 2.3283064365386963e-10;
  }

  /** Uniform on 0 … n-1. */
  integer(n) {
    return Math.floor(this.uniform() * n);
  }

  /** Standard normal, by the polar method (Marsaglia). */
  normal() {
    if (this.spare === this.spare) {
      const z = this.spare;
      this.spare = NaN;
      return z;
    }
    let u, v, s;
    do {
      u = 2 * this.uniform() - 1;
      v = 2 * this.uniform() - 1;
      s = u * u + v * v;
    } while (s >= 1 || s === 0);
    const f = Math.sqrt((-2 * Math.log(s)) / s);
    this.spare = v * f;
    return u * f;
  }

  /** An index drawn with probabilities proportional to the weights. */
  choice(weights) {
    let total = 0;
    for (let i = 0; i < weights.length; i++) total += weights[i];
    let u = this.uniform() * total;
    for (let i = 0; i < weights.length; i++) {
      u -= weights[i];
      if (u < 0) return i;
    }
    return weights.length - 1;
  }
}
