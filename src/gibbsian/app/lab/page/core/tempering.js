// Parallel tempering: replicas of every chain at several temperatures, which exchange their positions, even and odd pairs
// of neighbors in turn (Geyer 1991). The coldest, T = 1, are the chains that were given.

import { Chains } from "./chains.js";
import { tempered } from "./laws.js";

/** @param {(temperature: number) => object} inner makes the kernel of a temperature */
export function tempering({ inner, temperatures }) {
  let replicas = null, laws = null, of = null, turn = 0;
  const kernels = temperatures.map(inner);
  const swaps = { tried: 0, accepted: 0 };
  return {
    swaps,
    replicas: () => replicas,
    step(law, c, rng) {
      if (of !== c) {
        of = c;
        laws = temperatures.map((t) => tempered(law, t));
        replicas = temperatures.map((_, k) => (k ? new Chains(c.x.slice(), c.dim) : c));
        replicas.forEach((r, k) => k && r.evaluate(laws[k]));
      }
      replicas.forEach((r, k) => {
        const before = r.evaluations;
        kernels[k].step(laws[k], r, rng);
        if (k) c.evaluations += r.evaluations - before;
      });
      for (let k = turn; k + 1 < replicas.length; k += 2) exchange(replicas[k], replicas[k + 1], temperatures[k], temperatures[k + 1], rng, swaps);
      turn = 1 - turn;
    },
  };
}

/** Swap with probability min(1, exp((β - β')(E(x) - E(x')))); energies are kept divided by their temperatures. */
function exchange(cold, hot, tCold, tHot, rng, swaps) {
  const d = cold.dim, ratio = tHot / tCold;
  for (let i = 0; i < cold.count; i++) {
    const log = (1 / tCold - 1 / tHot) * (cold.energy[i] * tCold - hot.energy[i] * tHot);
    swaps.tried++;
    if (!(Math.log(rng.uniform()) < log)) continue;
    swaps.accepted++;
    const e = cold.energy[i];
    cold.energy[i] = hot.energy[i] * ratio;
    hot.energy[i] = e / ratio;
    for (let j = i * d; j < (i + 1) * d; j++) {
      const x = cold.x[j], g = cold.gradient[j];
      cold.x[j] = hot.x[j]; cold.gradient[j] = hot.gradient[j] * ratio;
      hot.x[j] = x; hot.gradient[j] = g / ratio;
    }
  }
}
