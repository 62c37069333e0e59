"""Predictions of conditional energies: outputs of lowest energy, and samples with intervals."""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from gibbsian.capabilities import Family, require
from gibbsian.domains import Discrete
from gibbsian.energy import Energy, ScoreField
from gibbsian.errors import CapabilityError, DataError, check_count, check_number, check_tensor
from gibbsian.kernels.base import Kernel
from gibbsian.placement import check_placement
from gibbsian.random import require_generator
from gibbsian.sampling.sample import sample
from gibbsian.uses.minimize import minimize, report_unrest


@runtime_checkable
class ExactMode(Protocol):
    """Knows its best output exactly."""

    def mode(self, x: Tensor) -> Tensor:
        """argmin_y E(x, y) for every input."""


class Interval(NamedTuple):
    """Per entry of the outputs `(n, *event)`: mean, median, and the ends of the central interval of the samples."""

    mean: Tensor
    median: Tensor
    lower: Tensor
    upper: Tensor


def _family(model: Any) -> Any:
    if not isinstance(model, Energy | ScoreField) or not isinstance(model, Family):
        raise CapabilityError(
            f"{type(model).__name__} has no given(x), so it predicts nothing from an input; use "
            "energies.ConditionalEnergy, or gibbsian.minimize on a plain energy"
        )
    return model


def _check_inputs(model: Any, x: Tensor) -> None:
    """Refuse inputs that are no tensor at hand, in another precision than the model, or not finite."""
    check_tensor(x, "x", "(rows, ...)")
    if x.is_floating_point():
        check_placement(x, model)
        if not bool(torch.isfinite(x).all()):
            raise DataError("some inputs are not finite; remove or replace such rows")


def predict(
    model: Any,
    x: Tensor,
    *,
    method: str | None = None,
    start: Tensor | None = None,
    starts: int = 8,
    steps: int = 500,
    width: int = 16,
    generator: torch.Generator | None = None,
) -> Tensor:
    """The output of lowest energy for every input: ŷ(x) = argmin_y E(x, y), `(n, *event)`.

    Exact where the model knows its mode (`ChainField`), or where y is enumerated; otherwise the best of several
    searches, with a `ConvergenceWarning` where one that was best had not come to rest.

    Args:
        model: a family with `given(x)`, such as `energies.ConditionalEnergy`.
        x: inputs, first axis n.
        method: as in `gibbsian.minimize`: "lbfgs", "gradient" for continuous y; "icm", "beam", "enumerate" for
            discrete y; "exact" for the model's own. By default exact or enumerated where that is within reach.
        start: outputs to start from, `(n, *event)`; several random ones when left out.
        starts: how many searches for every input, where `start` is left out.
        steps, width: as in `gibbsian.minimize`.
        generator: for random starts.

    >>> import gibbsian as gb
    >>> line = gb.energies.ConditionalEnergy(lambda x, y: (y - 2 * x).square().sum(1), gb.domains.Real(1))
    >>> predict(line, torch.tensor([[1.0], [3.0]]), start=torch.zeros(2, 1)).round(decimals=3)
    tensor([[2.],
            [6.]])
    """
    _check_inputs(_family(model), x)
    member, domain = model.given(x), model.domain
    steps, width = check_count("predict", "steps", steps), check_count("predict", "width", width)
    if method == "exact" or (method is None and isinstance(model, ExactMode)):
        return require(model, ExactMode, "method='exact'", "leave method out").mode(x)
    dtype = _precision(model, x)
    if isinstance(domain, Discrete) and _enumerated(domain, method):
        any_state = domain.decode(torch.zeros(len(x), dtype=torch.long, device=x.device), dtype)
        return minimize(member, any_state, method="enumerate").x
    if start is None and method == "beam":
        start = torch.zeros(len(x), *domain.shape, dtype=dtype, device=x.device)  # undecided
    if start is not None:
        found = minimize(member, start, method=method, steps=steps, width=width)
        report_unrest(found.converged, steps)
        return found.x
    generator = require_generator(generator, x.device)
    starts = check_count("predict", "starts", starts)
    y0 = domain.sample(starts * len(x), generator=generator, dtype=dtype)
    found = minimize(member, y0, method=method, steps=steps, width=width)
    best = found.energy.reshape(-1, len(x)).argmin(0), torch.arange(len(x), device=found.x.device)
    report_unrest(found.converged.reshape(-1, len(x))[best], steps)
    return found.x.reshape(-1, len(x), *domain.shape)[best]


def _enumerated(domain: Discrete, method: str | None) -> bool:
    return method == "enumerate" or (method is None and domain.size <= 1 << 12)


def predict_interval(
    model: Any,
    x: Tensor,
    kernel: Kernel,
    *,
    level: float = 0.9,
    steps: int = 200,
    burn_in: int = 100,
    chains: int = 16,
    start: Tensor | None = None,
    generator: torch.Generator,
) -> Interval:
    """Samples of p(y | x) for every input: mean, median and a central interval for each entry of y.

    If the model is right, the interval covers the true output in a share `level` of the cases; on held-out data
    that share tells whether it is.

    Args:
        model: a family with `given(x)`.
        x: inputs, first axis n.
        kernel: one of `gibbsian.kernels` that fits y.
        level: probability inside the interval.
        steps, burn_in: of each chain.
        chains: for every input.
        start: outputs to start from, `(n, *event)`; reference draws of the domain when left out.
        generator: required.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> line = gb.energies.ConditionalEnergy(lambda x, y: 0.5 * (y - x).square().sum(1), gb.domains.Real(1))
    >>> found = predict_interval(line, torch.tensor([[5.0]]), gb.kernels.HMC(0.5, 3), generator=g)
    >>> bool(found.lower < 5.0) and bool(found.upper > 5.0)
    True
    """
    check_number("predict_interval", "level", level, 0.0, 1.0, open_low=True, open_high=True)
    chains = check_count("predict_interval", "chains", chains)
    _check_inputs(_family(model), x)
    member, n = model.given(x), len(x)
    if start is None:
        y0 = model.domain.sample(chains * n, generator=generator, dtype=_precision(model, x))
    else:
        model.domain.check_shape(start, "start")
        y0 = start.repeat(chains, *[1] * (start.dim() - 1))
    trace = sample(member, kernel, y0, steps=steps, burn_in=burn_in, generator=generator, progress=False)
    pooled = trace.samples.reshape(-1, n, *model.domain.shape)  # type: ignore[union-attr]
    ends = torch.tensor([(1 - level) / 2, 0.5, (1 + level) / 2], dtype=pooled.dtype, device=pooled.device)
    lower, median, upper = torch.quantile(pooled, ends, dim=0)
    return Interval(pooled.mean(0), median, lower, upper)


def _precision(model: Any, x: Tensor) -> torch.dtype:
    """That of the model's parameters, else of the inputs."""
    own = (p.dtype for p in model.parameters() if p.is_floating_point())
    return next(own, x.dtype if x.is_floating_point() else torch.get_default_dtype())
