"""What the numbers of chapters 1 to 9 should be, from theory, enumeration or quadrature by other means; see test_course.py."""

import itertools
import math

import numpy as np
from scipy import integrate, optimize, special, stats

ROUNDING = "double precision"


def _wells(x):
    return 3 * (x**2 - 1) ** 2 + 0.5 * x


def _mass(low: float, high: float, temperature: float) -> float:
    return integrate.quad(lambda x: math.exp(-_wells(x) / temperature), low, high, epsabs=1e-13, epsrel=1e-12)[0]


_z = _mass(-5, 5, 1.0)
_mean, _square = (integrate.quad(lambda x, k=k: _wells(x) ** k * math.exp(-_wells(x)), -5, 5)[0] / _z for k in (1, 2))
_up = np.arange(101)
_coins = special.comb(100, _up) / 2.0**100
_spins = special.comb(100, _up) * special.expit(2.0) ** _up * special.expit(-2.0) ** (100 - _up)

ENERGIES = {
    "log_ratio": (1.0, 1e-12, ROUNDING),
    "log_z.value": (math.log(_z), 1e-8, "tolerance of both integrations"),
    "riemann": (math.log(_z), 1e-8, "a sum over a smooth function that vanishes at both ends converges exponentially"),
    "slope": (_mean, 1e-5, "central differences, h² times the third cumulant"),
    "mean_energy": (_mean, 1e-8, "tolerance of the integration"),
    "curvature": (_square - _mean**2, 1e-4, "central differences, h² times the fourth cumulant"),
    "var_energy": (_square - _mean**2, 1e-8, "tolerance of the integration"),
    "shares[0]": (_mass(-5, 0, 0.2) / _mass(-5, 5, 0.2), 1e-3, "the cell at 0 lies on the border"),
    "shares[3]": (_mass(-5, 0, 4.0) / _mass(-5, 5, 4.0), 1e-3, "the cell at 0 lies on the border"),
    "log_z_ten": (10 * math.log(2 * math.cosh(1)), 1e-6, "single precision of the energy"),
    "variance": ((math.cosh(2) / math.cosh(1) ** 2) ** 10 - 1, 1e-6, ROUNDING),
    "overlap": (np.minimum(_coins, _spins).sum(), 1e-9, ROUNDING),
    "log_z_lifted": (math.log(_z) - 3, 1e-8, "tolerance of both integrations"),
    "laplace[0.2] - exact_share[0.2]": (0.0, 1e-3, "Laplace's approximation errs by order T times the tail 0.007"),
    "peak": (0.41678, 2e-5, "root of u tanh(u/2) = 2, and the spacing of the grid"),
    "estimate < truth - 5": (1.0, 0.0, "levels that carry Z have probability 1e-5 among all draws"),
}

_faces = np.arange(1, 7)


def _die(mean: float) -> float:
    """η of the die with this mean."""
    return optimize.brentq(lambda eta: special.softmax(eta * _faces) @ _faces - mean, -20, 20, xtol=1e-14)


_loaded = special.softmax(_die(4.5) * _faces)
_entropy = special.entr(_loaded).sum()

MAXIMUM_ENTROPY = {
    "found.eta": (_die(4.5), 1e-7, "tolerance 1e-8 of the moments"),
    "found.entropy": (_entropy, 1e-7, "flat at the solution"),
    "found.dual": (_entropy, 1e-7, "the dual at its minimum is the entropy"),
    "loaded[5]": (0.34749, 1e-5, "Jaynes' table has four digits, 0.3475"),
    "dual.min() - found.dual >= 0": (1.0, 0.0, "no point of the curve lies below its minimum"),
    "normal.eta[0]": (1 / 4, 1e-7, "N(1, 4)"),
    "normal.eta[1]": (-1 / 8, 1e-7, "N(1, 4)"),
    "normal.entropy": (0.5 * math.log(8 * math.pi * math.e), 1e-7, "closed form"),
    "exponential.eta[0]": (-1 / 2, 1e-7, "closed form"),
    "exponential.entropy": (1 + math.log(2), 1e-7, "closed form"),
    "gamma.eta[0]": (-1.0, 1e-6, "shape 3, rate 1"),
    "gamma.eta[1]": (2.0, 1e-6, "shape 3, rate 1"),
    "by_newton - by_descent": (0.0, 1e-6, "60 steps of a contraction by 1 - 0.3 Var"),
    "error": (0.0, 1e-6, "moments to 1e-8, times the inverse of their covariance"),
    "etas[5.99]": (_die(5.99), 1e-5, "tolerance of moments over their variance 0.01"),
    "len(refused)": (2, 0, "on the boundary, and beyond"),
    "kl - gap": (0.0, 1e-9, "the moments agree to 1e-8 of their spread"),
    "of_pairs.entropy": (3 * math.log(2), 1e-9, "three coins"),
    "with_triplet.eta[6]": (math.atanh(0.9), 1e-6, "tolerance of moments over their variance"),
    "float((loosely.residual.abs().max()))": (0.05, 1e-6, "a bound that is reached, λ"),
    "loosely.entropy > exactly.entropy": (1.0, 0.0, "fewer constraints"),
}


def _walk_accepts(d: int) -> float:
    """E[2Φ(-σ|z|/2)], z normal in d dimensions: what a random walk of scale σ = 2.38/√d accepts on N(0, I)."""
    return stats.chi2(d).expect(lambda r2: 2 * stats.norm.cdf(-2.38 / math.sqrt(d) * np.sqrt(r2) / 2))


_normal_split = 2 / math.pi  # squared mean of half a normal law
SE20000 = "four standard errors of the variance of 20 000 draws"

METROPOLIS = {
    "moved": (0.0, 1e-15, ROUNDING),
    "balance": (0.0, 1e-15, ROUNDING),
    "walk_mean": (0.4, 0.13, "four standard errors, sd 3.3, about 13 000 effective draws"),
    "walk_var": (10.84, 0.5, "four standard errors, about 13 000 effective draws"),
    **{f"ula[{i}]": (1 / (1 - e * e / 4), 0.04 / (1 - e * e / 4), SE20000) for i, e in enumerate((0.4, 0.8, 1.2, 1.6))},
    **{f"mala[{i}]": (1.0, 0.04, SE20000) for i in range(4)},
    "drift[0] / drift[1]": (4.0, 0.2, "order ε², next term of order ε⁴"),
    "drift[1] / drift[2]": (4.0, 0.1, "order ε², next term of order ε⁴"),
    "reversed_error": (0.0, 1e-13, ROUNDING),
    "cost['NUTS'] < cost['MALA'] / 2 and cost['HMC'] < cost['MALA'] / 2": (1.0, 0.0, "6 to 8 times, with 10 % noise"),
    "cost['MALA'] < cost['random walk']": (1.0, 0.0, "about 3 times, with 20 % noise"),
    "summary['ess'] / expected_ess": (1.0, 0.2, "four standard errors, √(2·101/80 000) for a window of 50 lags"),
    "apart": (
        math.sqrt(1 + 16 / 15 * _normal_split / (1 - _normal_split)),
        0.03,
        "16 half chains of halves of a normal law",
    ),
    "alike": (1.0, 0.03, "500 draws a chain, some 50 effective ones"),
    "share_plain": (0.0, 0.05, "a barrier of 8: a rate of some e^-8 a step"),
    "share_tempered": (0.5, 0.12, "four standard errors of 100 chains that forget in a hundred steps"),
    "wrong[2] / p[2] < 0.5": (1.0, 0.0, "the claim of the text"),
    "still": (0.0, 1e-15, ROUNDING),
    **{f"accepted[{d}]": (_walk_accepts(d), 0.025, "four standard errors, 3000 effective steps") for d in (4, 16, 64)},
    "echoes[0]": (math.cos(16 * math.acos(1 - (math.pi / 32) ** 2 / 2)), 0.065, "four standard errors of 4000 pairs"),
    "echoes[1]": (-1.0, 0.005, "cos of the leapfrog's angle, 16 arccos(1 - ε²/2), but for what was refused"),
    "echoes[2]": (1.0, 0.005, "cos of the leapfrog's angle, 16 arccos(1 - ε²/2), but for what was refused"),
    "jittered": (0.0, 0.15, "four standard errors of the mean of 400 cosines"),
    "found[2]": (0.5, 0.15, "four standard errors of 100 chains"),
}

_states = np.array(list(itertools.product([-1, 1], repeat=4)))
_weight = np.exp(
    -_states[:, 0] * _states[:, 1]
    - _states[:, 0] * _states[:, 2]
    + 2 * _states[:, 1] * _states[:, 2]
    + _states[:, 2] * _states[:, 3]
    + _states[:, 1]
)
_first, _low = _states[:, 0] > 0, _states[:, 1] < 0
_p_first = _weight[_first].sum() / _weight.sum()
_p_given = _weight[_first & _low].sum() / _weight[_low].sum()

BOLTZMANN = {
    "Z": (_weight.sum(), 1e-9, ROUNDING),
    "Z / (2 * math.cosh(1))": (172.420, 5e-4, "the worked example has three digits"),
    "log_z": (math.log(_weight.sum()), 1e-9, ROUNDING),
    "p_first": (_p_first, 1e-12, ROUNDING),
    "round(p_first, 3)": (0.135, 1e-9, "the worked example"),
    "p_given": (_p_given, 1e-12, ROUNDING),
    "round(p_given, 3)": (0.980, 1e-9, "the worked example"),
    "sampled_first": (
        _p_first,
        0.035,
        "three standard errors of 1000 chains that hardly move, one in 400 false alarms",
    ),
    "sampled_given": (_p_given, 0.008, "four standard errors of 5000 draws"),
    "rule_error": (0.0, 1e-12, ROUNDING),
    "mismatch": (0.0, 0.02, "300 steps of Adam, not at the end yet"),
    "newton - curve[-1]": (0.0, 1e-3, "300 steps of Adam, not at the end yet"),
    "newton >= curve[-1] > best": (1.0, 0.0, "the maximum over all machines, the true one too"),
    "kl_pairs": (math.log(2), 1e-3, "the maximum, approached by 400 steps"),
    "kl_hidden": (0.0, 0.05, "tends to 0 as the weights grow"),
    "f": (0.6625, 5e-5, "four digits of the text"),
    "log_z_biased - log_z_reduced": (0.0, 1e-9, ROUNDING),
    "bits_error": (0.0, 1e-12, ROUNDING),
    "history[0]": (0.1, 1e-9, "all averages begin at 0"),
    "averages.max() - averages.min()": (0.0, 1e-9, "pairs of five like units"),
    "history[399] - history[99]": (math.log(4) / 8, 0.02, "the law of growth is one of late times"),
    "ground[1.0]": (math.exp(6) / _weight.sum(), 1e-9, ROUNDING),
}


def _kaufman(side: int, temperature: float) -> float:
    """Energy a site of the periodic side × side lattice: differences of Kaufman's log Z, written anew."""

    def log_z(k: float) -> float:
        x = np.cosh(2 * k) / np.tanh(2 * k)
        gamma = np.arccosh(np.maximum(x - np.cos(np.pi * np.arange(2 * side) / side), 1.0))
        gamma[0] = 2 * k + np.log(np.tanh(k))
        half = np.exp(gamma * side / 2)
        c, s = half + 1 / half, half - 1 / half
        return side**2 / 2 * np.log(2 * np.sinh(2 * k)) + np.log(
            (c[1::2].prod() + s[1::2].prod() + c[::2].prod() + s[::2].prod()) / 2
        )

    h = 1e-4
    return -(log_z(1 / temperature + h) - log_z(1 / temperature - h)) / (2 * h) / side**2


_TEMPERATURES = (1.5, 2.0, 2.27, 2.6, 3.2, 4.0)
ISING = {
    "sweep_error": (0.0, 1e-14, ROUNDING),
    "at_once_error > 0.05": (1.0, 0.0, "the claim of the text"),
    "T_c": (2 / math.log(1 + math.sqrt(2)), 1e-12, "Onsager"),
    **{f"exact[{i}]": (_kaufman(16, t), 1e-5, "central differences") for i, t in enumerate(_TEMPERATURES)},
    **{
        f"sampled[{i}]": (
            _kaufman(16, t),
            0.04 if t == 2.27 else 0.02,
            "four standard errors, slowest at the critical point",
        )
        for i, t in enumerate(_TEMPERATURES)
    },
    "magnet[0]": ((1 - math.sinh(2 / 1.5) ** -4) ** 0.125, 0.01, "Onsager; a lattice of 16 is large at T = 1.5"),
    "magnet[1]": ((1 - math.sinh(2 / 2.0) ** -4) ** 0.125, 0.02, "Onsager; a lattice of 16 is large at T = 2"),
    "overlaps.min()": (1.0, 1e-6, "a load of 0.05 is recalled without error"),
    "rises": (0.0, 1e-5, "the energy never rises, but for rounding"),
    "min(kept[:2])": (1.0, 0.01, "loads up to 0.06: recalled"),
    "kept[-1] < 0.6": (1.0, 0.0, "a load of 0.24, far beyond 0.138: lost"),
    "by_sum": (math.log((2 * math.cosh(0.7)) ** 10 + (2 * math.sinh(0.7)) ** 10), 1e-6, "coupling in single precision"),
    "own_law": (0.0, 1e-14, ROUNDING),
    "unstable": (
        0.5 * math.erfc(1 / math.sqrt(0.4)),
        0.0025,
        "four standard errors, units of a pattern nearly independent",
    ),
    "agreement": (1.0, 0.01, "a mixture of three is stable at small loads"),
    "mixture_overlap": (0.5, 0.05, "four standard errors of 1200 votes"),
    "energy_ratio": (0.75, 0.05, "three squared overlaps of a half"),
}

RBMS = {
    "free_energy_error": (0.0, 1e-12, ROUNDING),
    "log_z - gb.partition.exact(rbm).value.item()": (0.0, 1e-9, ROUNDING),
    "gradient_error": (0.0, 1e-12, ROUNDING),
    "invariance": (0.0, 1e-14, ROUNDING),
    "bias[19] / bias[18] - second": (0.0, 0.02, "after many sweeps the slowest mode alone is left"),
    "bias[24]": (0.0, 1e-6, "second eigenvalue to the 25th power"),
    "cosine[0] > 0.9": (1.0, 0.0, "the claim of the text"),
    "bias == sorted(bias, reverse=True)": (1.0, 0.0, "every sweep brings it nearer"),
    "sampled_error": (0.0, 0.011, "24 entries within 4.5 standard errors of 0.5/√40 000, one in 6000 false alarms"),
    "len(pictures)": (14, 0, "2 · 2³ - 2"),
    "curves['exact'][-1] > curves['CD-1'][-1]": (1.0, 0.0, "0.7 nats apart"),
    "curves['PCD'][-1] > curves['CD-1'][-1]": (1.0, 0.0, "0.6 nats apart, noise of 0.1"),
    "max(map(max, curves.values())) < -math.log(14)": (1.0, 0.0, "a bound for every machine"),
    "mean_first": (0.5, 1e-12, ROUNDING),
    "correlation": (math.tanh(0.75) ** 2, 1e-9, "closed form, w = 3"),
    "at_home": (0.0, 1e-14, ROUNDING),
    "gradient_there": (0.0, 1e-4, "L-BFGS at rest"),
    "cd_there.abs().max() > 1e-3": (1.0, 0.0, "not the fixed point of CD"),
    "times[0.25] < times[0.5] < times[1.0] / 4": (1.0, 0.0, "the claim of the text"),
    "error_after < error_before and likelihood_after < likelihood_before": (1.0, 0.0, "the claim of the text"),
    "25 < error_before / error_after < 100": (1.0, 0.0, "the text's fifty times, after 900 steps of CD-1"),
}

_s = 2 * np.arange(15) - 14
_log_z = special.logsumexp(np.log(special.comb(14, np.arange(15))) + 2.2 / 28 * (_s**2 - 14) - 0.12 * _s)


def _mean_field() -> float:
    def minus_bound(m: float) -> float:
        return -(2.2 * 13 / 2 * m * m - 0.12 * 14 * m + 14 * (special.entr((1 + m) / 2) + special.entr((1 - m) / 2)))

    return -optimize.minimize_scalar(
        minus_bound, bounds=(-0.99999, -0.5), method="bounded", options={"xatol": 1e-10}
    ).fun


PARTITION = {
    "truth": (_log_z, 1e-9, "a sum over the number of spins that are up"),
    "mass_up": (0.039, 0.001, "the text's few per cent, three digits"),
    "hand_estimate": (_log_z, 0.9, "four standard errors, 23 of 2000 weights matter"),
    "library.value": (_log_z, 0.9, "four standard errors, 23 of 2000 weights matter"),
    "len(said)": (1, 0, "few weights matter"),
    "rows[0][1]": (-3.1, 0.5, "the upper well alone, log 0.039 = -3.2, but for chance finds of the other"),
    "rows[0][2] > 0.3 > rows[-1][2]": (1.0, 0.0, "the effective sample size falls as the ladder gets honest"),
    "rows[0][3] < 0.2 and rows[-1][3] > 0.7": (
        1.0,
        0.0,
        "coverage of 40 runs: 0.05 and 0.9, four standard errors of 0.05",
    ),
    "all(float(b.mean()) < truth + 0.2 for b in below)": (1.0, 0.0, "low on average"),
    "all(float(a.mean()) > truth - 0.3 for a in above)": (1.0, 0.0, "high on average; spread 0.6 over √40"),
    "both.lower < truth < both.upper": (1.0, 0.0, "three standard errors on both sides"),
    "ladder['mean field'] < ladder['exact'] < ladder['tree-reweighted']": (1.0, 0.0, "both are bounds"),
    "ladder['Bethe'] - ladder['exact']": (0.0, 0.2, "no bound, near for weak couplings"),
    "short_sum": (_log_z, 1e-9, ROUNDING),
    "too_high.max() < math.exp(-0.5)": (1.0, 0.0, "Markov's inequality"),
    "by_grid": (_mean_field(), 1e-6, "spacing of the grid, squared"),
    "by_library": (_mean_field(), 1e-5, "its tolerance"),
    "self_consistent - best_m": (0.0, 1e-4, "spacing of the grid"),
    "misled.value - (truth + math.log(mass_up))": (0.0, 0.25, "the upper well alone, from above"),
}

DEEP = {
    "tied_bound - rbm_value": (0.0, 1e-9, "the bound is tight where weights and biases are tied"),
    "exacts[0] - rbm_value": (0.0, 1e-9, "and the law is the same"),
    "min(e - b for e, b in zip(exacts, bounds)) > -1e-9": (1.0, 0.0, "a lower bound throughout"),
    "bounds[-1] - bounds[0] > 0.02": (1.0, 0.0, "the second layer improves it"),
    "drawn_error": (0.0, 0.03, "four standard errors, 14 · 400 up-passes of spread 0.5"),
    "clean - share": (0.0, 0.12, "four standard errors of 300 draws"),
    "fixed_point": (0.0, 1e-8, "tolerance of the iteration"),
    "hand_error": (0.0, 1e-6, "flat at the maximum, tolerance 1e-5"),
    "gap.min() >= 0": (1.0, 0.0, "a lower bound of every row"),
    "all(b > a - 1e-9 for a, b in zip(climbing, climbing[1:]))": (1.0, 0.0, "every iteration raises the bound"),
    "float(exact_rows.mean()) < -math.log(14)": (1.0, 0.0, "a bound for every model"),
    "same_law": (0.0, 1e-12, ROUNDING),
    "kl - gap_dbn": (0.0, 1e-9, ROUNDING),
    "one_cause": (
        1 / (1 + 2 * math.exp(-10)),
        1e-8,
        "weights e^-10 / 2 of either cause, e^-20 of none and of both; next order e^-20",
    ),
    "flat_gap": (0.0, 1e-9, "a product posterior"),
}

_on = math.exp(-3) / math.sqrt(0.15)
_on /= _on + 1 / math.sqrt(0.15 + 2.5**2)
_var = _on / 0.15 + (1 - _on) / (0.15 + 2.5**2)
_kurt = 3 * (_on / 0.15**2 + (1 - _on) / (0.15 + 2.5**2) ** 2) / _var**2


# two slabs integrated, √(2π)² of them, and on each axis both states of a spike
_slab_log_z = math.log(2 * math.pi) + 2 * math.log(
    math.sqrt(2 * math.pi) * (1 / math.sqrt(0.15 + 2.5**2) + math.exp(-3) / math.sqrt(0.15))
)

HIGHER_ORDER = {
    "named": (1.0, 0.03, "only patterns that look alike when they are moved can be misnamed"),
    "agree": (1.0, 0.03, "only patterns that look alike when they are moved can be misnamed"),
    "learned_agree": (1.0, 0.06, "chance is 0.5; 400 steps of CD-1"),
    "free_energy_error": (0.0, 1e-12, ROUNDING),
    "gate_error": (0.0, 1e-12, ROUNDING),
    "log_z_sum": (_slab_log_z, 1e-9, "closed form"),
    "log_z_integral": (_slab_log_z, 1e-7, "tolerance of the integration"),
    "variance": (_var, 1e-12, "closed form"),
    "draws.var(0).mean()": (_var, 4 * _var * math.sqrt((_kurt - 1) / 4000), "four standard errors of 4000 numbers"),
    "memory[1]": (-math.log(2), 0.05, "the entropy of left or right, and 180 steps of learning"),
    "memory[1] < -math.log(2) + 0.01": (1.0, 0.0, "nobody can do better on fresh movies"),
    "memory[2]": (0.0, 0.03, "everything is known; 180 steps of learning"),
    "dreamt.diff(dim=1).remainder(6).unique(dim=1).shape[1]": (1, 0, "every dot goes on in its direction"),
    "factored": (87600, 0, "200 (169 + 169 + 100)"),
    "gated_error": (0.0, 1e-12, ROUNDING),
    "log_zs[0] - each[0]": (0.0, 1e-9, ROUNDING),
    "abs(log_zs[0] - log_zs[1]) > 0.01": (1.0, 0.0, "the claim of the text"),
    "right_gate": (0.5, 1e-12, ROUNDING),
    "wrong_gate": (8 / 9, 1e-12, ROUNDING),
    "kurtosis": (_kurt, 1e-9, "closed form"),
    "kurtosis_line": (_kurt, 1e-6, "a sum over a smooth function converges exponentially"),
}

NUMBERS: dict[str, dict[str, tuple[float, float, str]]] = {
    "01-energies": ENERGIES,
    "02-maximum-entropy": MAXIMUM_ENTROPY,
    "03-metropolis-to-nuts": METROPOLIS,
    "04-boltzmann-machines": BOLTZMANN,
    "05-gibbs-ising-hopfield": ISING,
    "06-rbm-contrastive-divergence": RBMS,
    "07-partition-functions": PARTITION,
    "08-deep-belief-and-boltzmann": DEEP,
    "09-higher-order": HIGHER_ORDER,
}
