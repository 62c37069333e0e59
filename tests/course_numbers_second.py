"""What the numbers of chapters 10 and later should be, from theory, enumeration or quadrature by other means; see test_course.py."""

import math

import numpy as np
from scipy import integrate, special

ROUNDING = "double precision"
_PAIR_ERROR = 0.06  # 4.5 standard errors of the mean of 20 000 maxima, whose variance is 2·π²/6 at the most


def _normal(x, s=1.0, m=0.0):
    return np.exp(-0.5 * ((x - m) / s) ** 2) / (s * math.sqrt(2 * math.pi))


# --- 10: v(θ) = s² of Langevin chains, and with the penalty of the guard ---------------------------

NEURAL = {
    "found['Langevin, ε = 0.6']": (
        2 / 0.36 * 0.2,
        0.05,
        "chains of 500: their variance errs by √(2/500) = 0.06, averaged over 150 updates",
    ),
    "found['Langevin, ε = 0.8']": (1.25, 0.05, "as above; without the bias of the step it would be 1"),
    "found['MALA, ε = 0.8']": (1.0, 0.05, "as above; with the bias of the step it would be 1.25"),
    "len(rollbacks)": (1, 0, "ε above the spread of the data diverges; the penalty then holds it"),
    "rest(settled)": (0.0, 0.06, "zero at the predicted θ; the slope there is about 1.2, θ errs by 0.04"),
    "settled": (0.85, 0.05, "root of the equation of the penalty 0.066 with the data's fourth moment of about 3"),
    "kl": (0.0, 0.1, "a good fit; the wrong step size gives 0.4 and more"),
    "min(kl, weights_kl) >= 0": (1, 0, "Kullback-Leibler divergences are not negative"),
    "at_edge": (8.0, 1e-9, ROUNDING),
    "after_one_step": (1.0, 1e-12, ROUNDING),
    "'not normalizable' in refused": (1, 0, "an energy that falls without end has no Z"),
    "float(cells[0][0])": (0.5, 0.01, "clumps of deviation 0.5 leave a little of their mass to their neighbors' cells"),
}

# --- 11: Fisher divergences by quad, parabolas by their moments -----------------------------------


def _hills(x):
    return 0.3 * _normal(x, 0.7, -1.5) + 0.7 * _normal(x, 0.7, 1.5)


def _slope(x, f, h=1e-5):
    return (math.log(f(x + h)) - math.log(f(x - h))) / (2 * h)


def _weights(x, w, gap, s=0.5):
    return w * _normal(x, s, -gap / 2) + (1 - w) * _normal(x, s, gap / 2)


def _log_ratio(x):
    return math.log(_weights(x, 0.5, 8.0) / _weights(x, 0.9, 8.0))


_explicit = integrate.quad(lambda x: _hills(x) * 0.5 * (0.4 - 0.4 * x**3 - _slope(x, _hills)) ** 2, -6, 6, limit=200)[0]
_implicit = integrate.quad(lambda x: _hills(x) * (-1.2 * x**2 + 0.5 * (0.4 - 0.4 * x**3) ** 2), -8, 8, limit=200)[0]
_kl_far = integrate.quad(lambda x: _weights(x, 0.5, 8.0) * _log_ratio(x), -8, 8, points=[-4, 0, 4], limit=200)[0]

SCORE = {
    "explicit": (_explicit, 1e-5, "slopes by central differences in the check"),
    "implicit": (_implicit, 1e-6, "the mixture takes its weights in single precision"),
    "explicit - implicit - constant": (0.0, 1e-9, "an identity, but for the grid"),
    "from_library - by_hand": (0.0, 1e-12, ROUNDING),
    "implicit_theta * m2": (1.0, 1e-9, "the parabola's minimum is 1/m₂"),
    "sliced_theta * m2": (1.0, 1e-9, "on a line the slice is the trace"),
    "denoised[9] * (m2 + sigmas[9]**2)": (1.0, 0.03, "σ = 1: its standard error is 0.007"),
    "denoised[12] * (m2 + sigmas[12]**2)": (1.0, 0.03, "σ = 3.2: with 1/m₂ instead it would be 6.9"),
    "signs.mean()": (-13.0, 0.8, "variance 16.2 over 600 slices: 4.8 standard errors"),
    "signs.var()": (2 * (100 * 0.09 + 10 * (1.69 - 0.09)) - 2 * 10 * 1.69, 4.5, "variance of a variance over 600 slices, heavy tails"),
    "normals.var()": (2 * (100 * 0.09 + 10 * (1.69 - 0.09)), 17.0, "as above"),
    "kl[-1]": (_kl_far, 1e-6, "quad against a sum over the grid"),
    "kl[-1] - 0.5 * math.log(0.25 / 0.09)": (0.0, 1e-6, "no overlap is left at distance 8"),
    "fisher[-1] < 1e-9": (1, 0, "the Fisher divergence does not see weights"),
    "blurred[-1] > 1e-3": (1, 0, "after blur it does"),
    "at_truth": (0.0, 1e-12, ROUNDING),
    "nearby > 1e-3": (1, 0, "elsewhere the slope does not vanish"),
    "same": (0.0, 1e-12, ROUNDING),
    "without_half * 2 * m2": (1.0, 1e-3, "spacing of the grid of θ"),
    "rate - closed": (0.0, 1e-9, "the parabola's minimum in closed form"),
    "rate": (3.0, 0.15, "50 000 waits: mean and mean square err by half a per cent and one per cent"),
    "rounded[0.01]": (1.0, 0.01, "tends to 1 with c"),
    "rounded[0.3] < rounded[0.1] < rounded[0.03] < rounded[0.01]": (1, 0, "monotone in the rounding"),
    "noise_variance[0.1]": (100.0, 2.5, "400 000 draws of a product of two normals: 5 standard errors of 0.45 %"),
    "noise_variance[1.0]": (1.0, 0.03, "as above"),
}  # fmt: skip

# --- 12: the recursion of variances, and the law of the chains by matrices ---------------------------


def _recursion(steps: int, v: float = 100.0) -> float:
    for sigma in np.geomspace(10.0, 0.1, 12):
        for _ in range(steps):
            a = 0.2 * sigma**2
            v = (1 - a / (2 * (1 + sigma**2))) ** 2 * v + a
    return v


def _share(steps: int) -> float:
    """Mass on the left after annealed Langevin from U(-8, 8) on the hills, by transition matrices on another grid."""
    line = np.linspace(-26, 26, 1301)
    law = (np.abs(line) < 8) / (np.abs(line) < 8).sum()
    for sigma in np.geomspace(8.0, 0.1, 12):
        v = 0.09 + sigma**2
        left = special.expit(math.log(4) - ((line + 3) ** 2 - (line - 3) ** 2) / (2 * v))
        mean = line + 0.1 * sigma**2 * (-left * (line + 3) - (1 - left) * (line - 3)) / v
        step = np.exp(-0.5 * (line - mean[:, None]) ** 2 / (0.2 * sigma**2))
        step /= step.sum(1, keepdims=True)
        for _ in range(steps):
            law = law @ step
    return law[line < 0].sum()


_ladder = np.geomspace(10.0, 0.1, 12)
_unweighted = 1 / _ladder**2 - 1 / (1 + _ladder**2)

_share_20 = _share(20)

LEVELS = {
    "loss": (np.mean(1 / (1 + _ladder**2)), 0.015, "60 000 rows, each of deviation below 0.8: 4.5 standard errors"),
    "floor": (np.mean(1 / (1 + _ladder**2)), 1e-6, "the ladder is in single precision"),
    "theory[-1]": (_recursion(10), 1e-5, "the ladder is in single precision"),
    "recursion(100)[-1]": (_recursion(100), 1e-5, "the ladder is in single precision"),
    "measured[-1]": (_recursion(10), 0.08, "20 000 squares of normals: 4.5 standard errors of 1 %"),
    "plain_share": (0.5, 0.04, "4000 chains: 5 standard errors of 0.008"),
    "shares[4]": (_share_20, 0.03, "4000 chains: 4.5 standard errors"),
    "by_matrix": (_share_20, 0.003, "two grids, the other in single precision"),
    "excess": (0.0, 0.06, "a good fit; the Gaussian it starts from has 0.3"),
    "excess > 0": (1, 0, "nothing is better than the exact score"),
    "learned_shares[0]": (0.5, 0.12, "learned shares are near, and 1500 draws err by 0.013"),
    "learned_shares[2]": (0.2, 0.1, "as above"),
    "counts[2] < counts[64] < counts[784] < counts[3072]": (1, 0, "the ratio of levels falls to 1 with the dimension"),
    "coin_error": (0.0, 1e-5, "single precision"),
    "last_share": (_unweighted[-1] / _unweighted.sum(), 1e-5, "the ladder is in single precision"),
    "flow_error": (0.0, 0.01, "tolerance of the solver"),
}

# --- 13 -----------------------------------------------------------------------------------------------


def _accuracy(d: int, s: float = 1.5) -> float:
    t = 2 * d * math.log(s) / (1 - s**-2)
    return 0.5 * (special.gammainc(d / 2, t / 2) + special.gammaincc(d / 2, t / (2 * s**2)))


def _divergence_from_middle(s: float) -> float:
    def term(x: float) -> float:
        p, middle = _normal(x, s), 0.5 * (_normal(x, 1.0) + _normal(x, 2.0))
        return p * math.log(p / middle)

    return integrate.quad(term, -12, 12, limit=200)[0]


_js = 0.5 * (_divergence_from_middle(1.0) + _divergence_from_middle(2.0))

CONTRAST = {
    "theta": (1.0, 1e-5, "the optimizer's tolerance"),
    "c": (0.5 * math.log(2 * math.pi), 1e-5, "the optimizer's tolerance"),
    "no_offset": (math.log(4), 1e-4, "the optimizer's tolerance"),
    "no_weight": (-math.log(4), 1e-4, "the optimizer's tolerance"),
    "same[1][0]": (2.0, 1e-6, "1 + 1/ν"),
    "same[3][0]": (4 / 3, 1e-6, "1 + 1/ν"),
    "same[1][1]": (2.0, 0.35, "variances over 1500 sets err by 4 %, and n = 400 is finite: four and a half standard errors"),
    "same[3][1]": (4 / 3, 0.25, "as above"),
    "wide[1] / wide[0]": (1.0, 0.18, "as above"),
    "thin > 10": (1, 0, "narrow noise is ruinous"),
    "best_spread": (5 / 3, 0.026, "the text's two thirds wider, on a grid of 0.05"),
    "learned_c - true_log_z": (0.0, 0.12, "c follows 400 updates of 256 rows"),
    "kl": (0.0, 0.06, "a good fit; a Gaussian has 0.9"),
    "kl >= 0": (1, 0, "Kullback-Leibler divergences are not negative"),
    "period": (2 * math.pi / math.sqrt(0.05 - 0.0025), 0.6, "the game is linear only near its rest; peaks on a grid of time"),
    "crossings(fast)": (0, 0, "real eigenvalues do not circle"),
    "precision * data.var()": (1.0, 0.12, "a game of 250 updates"),
    "smallest": (2 * math.log(2) - 2 * _js, 1e-7, "quad against a sum over the grid"),
    "limits[1.0]": (1.0, 2e-4, "1 + 1/ν with ν = 10⁴"),
    "limits[2.0]": (1.0, 1e-3, "tends to maximum likelihood"),
    "accuracies[1]": (_accuracy(1), 1e-9, ROUNDING),
    "accuracies[100]": (_accuracy(100), 1e-9, ROUNDING),
    "ranking_loss": (math.log(16), 1e-5, "single precision"),
}  # fmt: skip

# --- 14: two logistic numbers, by quadrature over the plane -----------------------------------------


def _bound(coupling: float) -> float:
    """E max over four states, ℓ = logit(u) on a grid of midpoints."""
    u = (np.arange(1000) + 0.5) / 1000
    a, b = np.meshgrid(special.logit(u), special.logit(u))
    return np.maximum(coupling + np.abs(a + b) / 2, -coupling + np.abs(a - b) / 2).mean()


def _lattice(coupling: float) -> float:
    spins = 1 - 2 * ((np.arange(4096)[:, None] >> np.arange(12)) & 1).reshape(-1, 3, 4)
    bonds = (spins * np.roll(spins, 1, 1)).sum((1, 2)) + (spins * np.roll(spins, 1, 2)).sum((1, 2))
    return special.logsumexp(coupling * bonds)


PERTURB = {
    "best.values.mean() - log_z": (0.0, 0.03, "variance π²/6 over 40 000: 4.7 standard errors"),
    "full.value - log_z": (0.0, 0.1, "the same over 4000"),
    "best.values.var()": (math.pi**2 / 6, 0.07, "a Gumbel's kurtosis is 5.4: 4 standard errors"),
    "far < 4.2": (1, 0, "16 frequencies, false alarm below 1e-3"),
    "upper_bound(0.5)": (_bound(0.5), 2e-3, "midpoints of the uniform grid"),
    "upper_bound(2.0)": (_bound(2.0), 2e-3, "midpoints of the uniform grid"),
    "pairs[0.5][0]": (_bound(0.5), _PAIR_ERROR, "4.5 standard errors"),
    "pairs[2.0][0]": (_bound(2.0), _PAIR_ERROR, "4.5 standard errors"),
    "lattice[0.5][2]": (_lattice(0.5), 1e-6, "enumeration against Kaufman"),
    "lattice[1.0][1] < lattice[1.0][2] < lattice[1.0][0]": (1, 0, "bounds"),
    "hundred.lower < hundred_exact < hundred.upper": (1, 0, "bounds"),
    "J_predicted": (0.5 * math.log(1 / math.sqrt(round(4000 * special.expit(-2)) / 8000) - 1), 1e-12, ROUNDING),
    "J_learned": (0.565, 0.035, "500 perturbations err by 0.009 an update, which chains of updates carry along"),
    "first": (special.expit(0.7), 0.005, "200 000 choices: 4.7 standard errors"),
    "cold[2]": (1 - math.log(2), 0.012, "200 000 draws: 4.5 standard errors"),
    "lattice[1.0][0] - lattice[1.0][2] - cold[12]": (0.0, 0.45, "2000 maxima of variance 12·π²/6: 4.5 standard errors"),
    "free_bound.value - free_log_z": (0.0, 0.075, "20 000 maxima of variance 3·π²/6: 4.8 standard errors"),
    "together - expected": (0.0, 0.0045, "40 000 pairs: 4.5 standard errors"),
}  # fmt: skip

# --- 15 -----------------------------------------------------------------------------------------------

JOINT = {
    "gap": (0.0, 1e-4, "single precision"),
    "scores['truth']['accuracy']": (0.87, 0.025, "4000 rows: 4.7 standard errors of the truth's own accuracy"),
    "scores['truth']['nll'] < scores['joint']['nll'] < scores['cross-entropy']['nll']": (1, 0, "nothing is better than the truth"),
    "scores['cross-entropy']['ece'] > 3 * scores['joint']['ece']": (1, 0, "memorized labels make too sure: 0.14 against 0.03"),
    "scores['joint']['ece']": (0.0, 0.06, "the truth has 0.01, a memorizing classifier 0.14"),
    "found['cross-entropy'][1]": (0.0, 0.1, "upside down"),
    "found['joint'][1]": (1.0, 0.05, "the ring is far outside"),
    "far[60]": (1.0, 1e-3, "logits grow with the distance"),
    "(own - centers).norm(dim=1).max()": (0.0, 0.9, "ninety rows: a class's mean errs by 0.16 a coordinate, and the fit adds to it"),
    "moved": (0.0, 1e-3, "single precision beside logits of 20‖x‖²"),
    "added": (20.0, 1e-3, "single precision"),
    "by_hand": (1.0, 1e-3, "ring and data do not overlap in 20‖x‖²"),
    "perfect - half_normal": (0.0, 0.002, "mean of 100 repetitions against the half-normal mean"),
    "cooled['accuracy'] - scores['cross-entropy']['accuracy']": (0.0, 1e-6, "a temperature keeps the winner"),
    "7 < T < 20": (1, 0, "logits too large by a factor of about ten"),
    "cooled['ece'] < scores['cross-entropy']['ece'] / 2": (1, 0, "one number mends most of it"),
    "by_energy": (0.0, 1e-6, "χ² of 100 and a quarter of it do not overlap"),
    "by_typicality": (1.0, 1e-6, "as above"),
}  # fmt: skip

# --- 16 -----------------------------------------------------------------------------------------------

_mix = np.array([[1.0, 0.5], [-0.4, 1.2]])

PRODUCTS = {
    "clash": (-math.log(2 * math.pi * 4.25) - 1 / 4.25, 1e-5, "single precision; N((0, 0); (1, 1), 4.25 I)"),
    "closed": (-math.log(2 * math.pi * 4.25) - 1 / 4.25, 1e-5, "single precision"),
    "1 / precision": (1 / 4.25, 1e-6, "single precision"),
    "log_z_closed": (2 * math.log(2 * math.sqrt(2)) - math.log(np.linalg.det(_mix)), 1e-6, "∫(1 + z²/2)^(-3/2) dz = 2√2"),
    "log_z_quad - log_z_closed": (0.0, 1e-4, "heavy tails: the quadrature says 1e-5"),
    "square.strength()": (3.0, 1e-6, ROUNDING),
    "three.strength()": (1.05, 1e-5, "min of 2.1/2 and 1.4; α in single precision"),
    "inside[0]": (1 / math.sqrt(3), 0.035, "4000 chains: 4.5 standard errors"),
    "inside[1]": (1 / math.sqrt(3), 0.035, "4000 chains: 4.5 standard errors"),
    "best['Laplace sources, peaked g']": (0.0, 0.06, "4000 rows, and steps of one degree"),
    "best['uniform sources, two humps']": (0.0, 0.06, "as above"),
    "best['uniform sources, peaked g']": (math.pi / 4, 0.06, "as above"),
    "swing['normal sources, peaked g']": (0.0, 0.015, "flat but for 4000 rows; the others vary by 0.08 and more"),
    "amari['likelihood']": (0.0, 0.03, "4000 rows"),
    "amari['score matching']": (0.0, 0.1, "4000 rows, less efficient"),
    "amari['whitening alone'] > 0.15": (1, 0, "whitening leaves the angle open"),
    "shrunk": (0.4, 1e-4, "single precision"),
    "by_integral - by_formula": (0.0, 1e-7, "tolerance of the integration"),
    "weak.strength()": (0.9, 1e-5, "α in single precision"),
    "'not normalizable' in refused": (1, 0, "1.8 < 2"),
    "(condition + torch.eye(2)).abs().max()": (0.0, 0.005, "where the optimizer stopped"),
}  # fmt: skip

# --- 17: the band and the ring in polar coordinates ---------------------------------------------------

COMPOSED = {
    "shares['band']": (special.erf(2 / math.sqrt(2)), 0.005, "two deviations, and cells on the border"),
    "shares['ring or band'] - (shares['ring'] + shares['band']) / 2": (0.0, 1e-3, "a mixture of equal weights"),
    "shares['ring and band'] > shares['ring'] > shares['ring, not band']": (1, 0, "what the operations mean"),
    "second_moments[0]": (5.0, 1e-3, "half of 1 + 9, single precision"),
    "second_moments[1]": (7.0, 1e-2, "weights 1 : 3, cut off at five deviations"),
    "level_variance": (1.0, 0.05, "20 000 squares: 5 standard errors; the blurred product has 1.5"),
    "(by_chains - by_enumeration).abs().max()": (0.0, 0.025, "8000 chains: 4.5 standard errors"),
    "(without_cue - 0.5).abs().max()": (0.0, 1e-5, "symmetric under on and off, single precision"),
    "best - learned > 0": (1, 0, "nothing is better than the truth"),
    "learned - best": (0.0, 0.15, "a good fit; Gaussian regression has 1.1 less"),
    "gaussian": (-0.5 * math.log(2 * math.pi * (0.04 + 0.84 * 4 / 3)) - 0.5, 0.05, "Var = 0.04 + (1 - 0.4²) E x²; 2000 rows err by 1.5 %"),
    "lowest[1]": (-(2 / 0.09 + 1.68) / (1 / 0.09 - 2.8), 0.03, "spacing of the grid"),
    "refused == 'DivergenceError'": (1, 0, "λ above 2.78"),
    "filled_mean": (1.2, 0.03, "10 000 chains: 5 standard errors"),
    "filled_variance": (0.36, 0.025, "10 000 chains: 4.9 standard errors"),
    "guided[4.0][0]": (1.6, 1e-5, "single precision"),
    "guided[4.0][1]": (0.2, 1e-5, "single precision"),
    "near_mean": (0.0, 0.06, "the branches lie three deviations away at x = 1"),
    "near_lowest": (0.7 * special.erf(2 / math.sqrt(2)), 0.12, "300 rows: 4.5 standard errors"),
}  # fmt: skip

# --- 18: what noise leaves of the weight of two hills, by adaptive quadrature ---------------------------


def _left_after(t: float) -> float:
    """The Fisher information about the weight 0.8 of the left of two hills at ±2, of variance 0.16 + t."""

    def square(x: float) -> float:
        left, right = (_normal(x, math.sqrt(0.16 + t), m) for m in (-2.0, 2.0))
        return (left - right) ** 2 / (0.8 * left + 0.2 * right + 1e-300)

    return float(integrate.quad(square, -12, 12, limit=500, points=(-2, 0, 2))[0])


TRANSPORTED = {
    "minima[0.01]": (0.25, 1e-4, "tolerance of the search"),
    "minima[100.0]": (0.25, 1e-4, "tolerance of the search"),
    "variances[(1, 1)]": (4.0, 0.27, "100 000 rows: 4.5 times the deviation over twelve seeds"),
    "variances[(4, 1)]": (4.0, 0.27, "as above"),
    "variances[(1, 0)]": (1 / 3, 1e-3, "linear in k: the bound of the search"),
    "variances[(4, 0)] < 3 < variances[(16, 0)] < variances[(16, 1)]": (1, 0, "the bias falls as M grows"),
    "information(0.0)": (1 / (0.8 * 0.2), 1e-3, "hills that do not overlap: a coin"),
    "lost[2]": (1 - _left_after(4.0) / _left_after(0.0), 1e-3, "spacing of the grid"),
    "lost[0.3]": (1 - _left_after(0.09) / _left_after(0.0), 1e-6, "spacing of the grid"),
    "learned[0.1]": (0.5, 0.02, "a force of 1e-6: only noise moves it"),
    "learned[9.0] - share_of_rows": (0.0, 0.03, "three quarters of the information: 0.004, and the last steps of the descent"),
    "critical**2 * 8": (1.0, 1e-12, "E'' = -8 at 0"),
    "modes[0.95]": (1, 0, "below the critical width"),
    "modes[1.05]": (2, 0, "above it"),
    "down": (0.8, 0.035, "4000 chains: 4.5 standard errors are 0.028, and 20 steps a level leave 0.01"),
    "stuck": (0.5, 0.04, "valleys of one size, begun symmetrically: 4.5 standard errors"),
    "lengths['at random']": (10.25, 0.5, "4000 pairs: 4.5 standard errors"),
    "lengths['sorted']": (9.25, 0.5, "4000 pairs: the mean of the data and of the noise"),
    "results['flow alone'][0] > 1": (1, 0, "no law of anything"),
    "max(results['flow alone'][1]) > 0.8": (1, 0, "one hill has it all"),
    "results['and contrast'][0]": (0.0, 0.05, "a good fit"),
    "results['and contrast'][1][0]": (0.5, 0.06, "a good fit"),
    "results['flow alone'][2][4.0][0] > 4 * results['flow alone'][2][1.0][0]": (1, 0, "chains settle in another law"),
    "results['flow alone'][2][4.0][1][0]": (0.5, 0.05, "barriers hold the draws where the flow left them: 4.5 standard errors of 2000"),
    "results['flow alone'][3] < results['and contrast'][3] < 0.05": (1, 0, "barriers that contrast has lowered, and few cross yet"),
    "results['and contrast'][2][4.0][0] < 0.5 * results['and contrast'][2][1.0][0]": (1, 0, "chains settle in the law of the data"),
    "near_zero - score_matching": (0.0, 1e-4, "t = 1e-5"),
    "far - likelihood": (0.0, 1e-4, "t = 1e6"),
    "shifts[0.0]": (0.0, 1e-12, ROUNDING),
    "abs(shifts[0.5]) > 0.01": (1, 0, "the classes meet"),
    "resting * (1 - 0.2 * resting)": (1.0, 1e-12, "ε/s² = 1, dt = 0.4"),
    "of_chains": (0.5, 0.01, "100 000 chains: 4.5 standard errors"),
}  # fmt: skip

# --- the page of slips: the right number and the wrong one ---------------------------------------------

_bits = (np.arange(8)[:, None] >> np.arange(3)) & 1
_minus_energy = (
    _bits @ [0.5, -1.0, 0.2]
    + 1.0 * _bits[:, 0] * _bits[:, 1]
    - 0.5 * _bits[:, 0] * _bits[:, 2]
    + 2.0 * _bits[:, 1] * _bits[:, 2]
)

SLIPS = {
    "right_noise": (1 / 0.95, 1e-12, ROUNDING),
    "slip_noise": (0.5 / 0.95, 1e-12, ROUNDING),
    "temperature": (1.25e-6, 1e-15, ROUNDING),
    "mala_true": (special.digamma(1), 2e-3, "exp(x) is exponential, so E x = -0.5772; below -9 the grid lacks 10 e⁻⁹ = 0.0012"),
    "mala_right - mala_true": (0.0, 1e-6, "detailed balance, on the grid itself"),
    "mala_slip - mala_true > 0.1": (1, 0, "an asymmetric proposal without its ratio"),
    "only_accepted": (3 / 8, 1e-12, "0.7·0.1429, 0.2·0.5, 0.1·0.6667: 3 : 3 : 2, normalized"),
    "sm_right * m2": (1.0, 1e-4, "spacing of the grid"),
    "sm_sign * m2": (-1.0, 1e-4, "spacing of the grid"),
    "sm_half * m2": (0.5, 1e-4, "spacing of the grid"),
    "dsm_right": (1 / 1.94, 1e-12, ROUNDING),
    "dsm_square / dsm_right": (2.0, 1e-12, "1/σ"),
    "dsm_sign / dsm_right": (-1.0, 1e-12, ROUNDING),
    "sphere_slip": (1.3, 0.02, "100 000 directions: far above 4 standard errors of 0.003"),
    "relu_trace": (0.0, 0.0, "piecewise linear"),
    "rbm_right > 0 > rbm_slip": (1, 0, "up and down the exact gradient"),
    "cd_detached": (1.25, 1e-9, "2/ε²·(1 - √(1 - ε²)) at ε = 0.8"),
    "cd_attached < 0.7": (1, 0, "the slope through the sampler pulls θ down"),
    "free - at_mean + entropy": (0.0, 1e-5, "single precision"),
    "p_bits - p_spins": (0.0, 1e-6, "single precision"),
    "abs(p_bits - p_copied) > 0.1": (1, 0, "another law"),
    "log_z_once": (special.logsumexp(_minus_energy), 1e-5, "eight states, single precision"),
    "log_z_twice": (special.logsumexp(2 * _minus_energy - _bits @ [0.5, -1.0, 0.2]), 1e-5, "couplings doubled, fields not"),
    "by_sum - softplus(2 * a) + a": (0.0, 1e-12, ROUNDING),
    "low < 0 < high": (1, 0, "Jensen: 40 short runs, -0.34 and +0.54 with errors below 0.1"),
    "mean_log < low": (1, 0, "Jensen again"),
    "z_mf < z_exact < z_trw": (1, 0, "a lower and an upper bound"),
    "c_error['both']": (0.0, 1e-6, "the grid"),
    "c_error['not in G']": (math.log(10), 1e-6, "the grid"),
    "c_error['not in front']": (-math.log(10), 1e-6, "the grid"),
    "gumbel_slip": (0.5772157, 0.013, "200 000 maxima of variance π²/6: 4.5 standard errors"),
    "product_gap": (-0.5 * math.log(4 * math.pi) - 2.25, 1e-5, "single precision"),
}  # fmt: skip

NUMBERS: dict[str, dict[str, tuple[float, float, str]]] = {
    "10-neural-energies": NEURAL,
    "11-score-matching": SCORE,
    "12-noise-conditional-scores": LEVELS,
    "13-noise-contrastive": CONTRAST,
    "14-perturb-and-map": PERTURB,
    "15-joint-energies": JOINT,
    "16-products-of-experts": PRODUCTS,
    "17-composition": COMPOSED,
    "18-perturb-recover-transport": TRANSPORTED,
}
