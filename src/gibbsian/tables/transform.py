"""A monotone map that makes a column of numbers nearly normal, its slope and its inverse."""

import math
from dataclasses import dataclass

import numpy as np
from scipy.interpolate import CubicHermiteSpline, PchipInterpolator
from scipy.special import ndtr, ndtri

_TABLE = 1 << 12  # points of the curve that the inverse is first looked up in
_NEWTON = 3  # steps that make it exact


@dataclass(frozen=True)
class NearNormal:
    """z = T(x): quantiles of x on quantiles of the normal law, joined by a smooth monotone curve.

        u(x) = (x - c)/s,   or with a lower bound a:  u(x) = log(exp(x/s - a/s) - 1),  which is -∞ at a
        z = H(u),           H the monotone cubic through (u of the quantile at Φ(zⱼ), zⱼ), straight beyond the ends

    Few knots, equally spaced in z: T follows the skew and the tails of a column, not its noise. With a bound no z leads
    below it, so that draws keep it.

    Reference: Fritsch & Carlson 1980 (monotone cubics).

    Args:
        u, z, slope: knots and the slopes there.
        center, scale, bound: of u.

    >>> t = NearNormal.fit(np.exp(np.linspace(-2, 2, 101)), bound=0.0)
    >>> x = np.array([0.5, 1.0, 2.0])
    >>> bool(np.allclose(t.inverse(t(x)), x)), bool((t.inverse(np.array([-9.0])) > 0).all())
    (True, True)
    """

    u: np.ndarray
    z: np.ndarray
    slope: np.ndarray
    center: float
    scale: float
    bound: float | None = None

    @classmethod
    def fit(cls, x: np.ndarray, bound: float | None = None, knots: int | None = None) -> "NearNormal":
        """The map for a column: `knots` of them, by default the cube root of the rows, 3 to 21."""
        x = np.sort(np.asarray(x, dtype=np.float64))
        spread = _spread(x)
        center = float(np.median(x)) if len(x) else 0.0
        scale = spread if bound is None else max((center - bound) / math.log(2), 1e-6 * spread, 1e-300)
        base = cls(np.zeros(1), np.zeros(1), np.ones(1), center, scale, bound)  # for its axis
        count = knots or int(np.clip(round(len(x) ** (1 / 3)), 3, 21))
        most = float(-ndtri(min(0.3, 0.5 / max(len(x), 1))))  # the outermost knots are the extremes
        z = np.linspace(-most, most, count)
        u = base.axis(np.quantile(x if len(x) else np.zeros(1), ndtr(z), method="hazen"))
        apart = np.r_[True, np.diff(np.maximum.accumulate(u)) > 1e-9 * float(np.ptp(u))]
        u, z = u[apart], z[apart]
        if len(u) < 2:
            u, z = u[0] + np.array([-1.0, 1.0]), np.array([-1.0, 1.0])
        secants = np.diff(z) / np.diff(u)
        slope = PchipInterpolator(u, z).derivative()(u) if len(u) > 2 else np.repeat(secants, 2)
        middle = len(u) // 2  # values heaped at an end must not make the tail beyond it short
        slope[0] = min(secants[0], (z[middle] - z[0]) / (u[middle] - u[0]))
        slope[-1] = min(secants[-1], (z[-1] - z[-1 - middle]) / (u[-1] - u[-1 - middle]))
        return cls(u, z, slope, center, scale, bound)

    def _curve(self) -> CubicHermiteSpline:
        return CubicHermiteSpline(self.u, self.z, self.slope)

    def axis(self, x: np.ndarray) -> np.ndarray:
        """u(x); values at or below the bound are taken as a hair above it."""
        if self.bound is None:
            return (x - self.center) / self.scale
        t = np.maximum((x - self.bound) / self.scale, 1e-300)
        return t + np.log(-np.expm1(-t))

    def _hermite(self, u: np.ndarray) -> np.ndarray:
        inside = self._curve()(np.clip(u, self.u[0], self.u[-1]))
        over = np.where(u < self.u[0], (u - self.u[0]) * self.slope[0], 0.0)
        return inside + over + np.where(u > self.u[-1], (u - self.u[-1]) * self.slope[-1], 0.0)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return self._hermite(self.axis(x))

    def log_slope(self, x: np.ndarray) -> np.ndarray:
        """log dz/dx."""
        slope = np.log(self._curve().derivative()(np.clip(self.axis(x), self.u[0], self.u[-1])))
        if self.bound is None:
            return slope - math.log(self.scale)
        t = np.maximum((x - self.bound) / self.scale, 1e-300)
        return slope - math.log(self.scale) - np.log(-np.expm1(-t))

    def _cell(self) -> float:
        return float(self.u[-1] - self.u[0]) / (_TABLE - 1)

    def inverse(self, z: np.ndarray) -> np.ndarray:
        """x of z: Newton's method from a fine table, within the piece of the curve that z lies in."""
        z, curve = np.asarray(z, dtype=np.float64), self._curve()
        fine = np.linspace(self.u[0], self.u[-1], _TABLE)
        inner = np.clip(z, self.z[0], self.z[-1])
        table = np.maximum.accumulate(curve(fine))
        u = np.interp(inner, table, fine)
        slope = curve.derivative()
        for _ in range(_NEWTON):
            step = (curve(u) - inner) / np.maximum(slope(u), 1e-12)
            u = np.clip(u - np.clip(step, -self._cell(), self._cell()), self.u[0], self.u[-1])
        u = u + np.minimum(z - self.z[0], 0.0) / self.slope[0] + np.maximum(z - self.z[-1], 0.0) / self.slope[-1]
        if self.bound is None:
            return self.center + self.scale * u
        return self.bound + self.scale * np.logaddexp(0.0, u)


def _spread(x: np.ndarray) -> float:
    """A robust width of sorted numbers, never 0."""
    if len(x) < 2:
        return 1.0
    quarter = float(np.quantile(x, 0.84) - np.quantile(x, 0.16)) / 2
    return quarter or float(x.std()) or max(abs(float(x[0])), 1.0) * 1e-3
