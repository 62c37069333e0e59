"""What a run of a kernel returns."""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from gibbsian.errors import CapabilityError
from gibbsian.kernels.base import Kernel
from gibbsian.sampling.diagnostics import summarize
from gibbsian.sampling.streaming import StreamingMoments


@dataclass(frozen=True)
class Trace:
    """What a run of a kernel returns.

    Attributes:
        samples: kept draws `(draws, chains, *event)`, or None when they were not kept.
        last: positions `(chains, *event)` after the last step.
        acceptance: mean acceptance probability over steps and chains, burn-in left out; NaN for unadjusted kernels.
        divergences: for each chain, how many steps met a non-finite or exploding energy or state.
        steps: steps run so far, those of the trace that was resumed counted in.
        stats: what else the kernel tells of every kept draw, `(draws, chains)` by ArviZ's names: `tree_depth`, `n_steps`,
            `energy` (the Hamiltonian), `lp` and `step_size` for NUTS.
        reason: why this kernel was chosen, where the choice was left to `sample(energy, "auto", ...)`.
        compiled: whether steps ran compiled; `compile_note` says why not where that was asked for.
    """

    samples: Tensor | None
    last: Tensor
    acceptance: Tensor
    divergences: Tensor
    steps: int
    kernel: Kernel
    state: Any
    clamp: Tensor | None = None
    moments: StreamingMoments | None = None
    draw_acceptance: Tensor | None = None
    draw_diverged: Tensor | None = None
    stats: dict[str, Tensor] = field(default_factory=dict)
    compiled: bool = False
    compile_note: str = ""
    reason: str = ""

    def summary(self) -> dict[str, Tensor]:
        """Mean, sd, R-hat, effective sample size and Monte-Carlo error of every entry of the event.

        ArviZ's numbers from kept draws (rank-normalized split R-hat, bulk ESS in `ess`, tail ESS in `ess_tail`). Of
        draws that were not kept: `ess` by batch means of all of them, R-hat and `ess_tail` as before, but of equally
        spaced ones (see `StreamingMoments`).
        """
        if self.samples is not None:
            return summarize(self.samples)
        if self.moments is None:
            raise CapabilityError("this trace holds no draws after burn-in; run more steps than burn_in")
        return self.moments.summary()

    def to_arviz(self, name: str = "x") -> Any:
        """The kept draws as ArviZ's DataTree, with acceptance and divergences as sample statistics."""
        if self.samples is None or self.draw_acceptance is None or self.draw_diverged is None:
            raise CapabilityError("nothing to export: the draws were not kept; call sample(..., keep=True)")
        from arviz_base import from_dict

        chain_first = lambda t: t.transpose(0, 1).cpu().numpy()  # noqa: E731
        stats = {"acceptance_rate": chain_first(self.draw_acceptance), "diverging": chain_first(self.draw_diverged)}
        stats |= {name: chain_first(values) for name, values in self.stats.items()}
        return from_dict({"posterior": {name: chain_first(self.samples)}, "sample_stats": stats})

    def __repr__(self) -> str:
        kept = tuple(self.samples.shape) if self.samples is not None else "not kept"
        return (
            f"Trace({type(self.kernel).__name__}, {self.steps} steps, {len(self.last)} chains, samples {kept}, "
            f"acceptance {float(self.acceptance):.3g}, {int((self.divergences > 0).sum())} divergent chains)"
        )
