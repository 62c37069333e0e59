"""What the numbers of chapters 1 to 9 should be, from theory, enumeration or quadrature by other means; see test_course.py."""

import math

import numpy as np
from scipy import integrate, special

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

NUMBERS: dict[str, dict[str, tuple[float, float, str]]] = {"01-energies": ENERGIES}
