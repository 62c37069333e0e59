"""What a run of a kernel returns."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gibbsian.drawing.html import card
from gibbsian.drawing.landscape import chains
from gibbsian.drawing.style import axes
from gibbsian.drawing.traces import ranks, traces
from gibbsian.errors import ArgumentError, CapabilityError
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

    def gather(self) -> "Trace":
        """The chains of all processes, where they are spread; these themselves elsewhere."""
        return self

    def to_arviz(self, name: str = "x") -> Any:
        """The kept draws as ArviZ's DataTree, with acceptance and divergences as sample statistics."""
        if self.samples is None or self.draw_acceptance is None or self.draw_diverged is None:
            raise CapabilityError("nothing to export: the draws were not kept; call sample(..., keep=True)")
        from arviz_base import from_dict

        chain_first = lambda t: t.transpose(0, 1).cpu().numpy()  # noqa: E731
        stats = {"acceptance_rate": chain_first(self.draw_acceptance), "diverging": chain_first(self.draw_diverged)}
        stats |= {name: chain_first(values) for name, values in self.stats.items()}
        return from_dict({"posterior": {name: chain_first(self.samples)}, "sample_stats": stats})

    def plot(self, ax: Any = None, *, entry: int = 0, count: int = 6, show: str = "traces") -> Any:
        """The chains as a picture, on matplotlib's axes `ax` or new ones, which are returned.

        Args:
            entry: which number of the flattened event.
            count: chains drawn.
            show: "traces" (one number along each chain), "ranks" (flat where chains have mixed), or "paths" (two
                coordinates, `entry` and the next).

        >>> import matplotlib.figure, gibbsian as gb, torch
        >>> g = torch.Generator().manual_seed(0)
        >>> trace = gb.sample(gb.energies.Ring(), gb.kernels.RandomWalk(0.5), torch.ones(3, 2), steps=50, generator=g)
        >>> ax = trace.plot(matplotlib.figure.Figure().subplots(), show="ranks")
        """
        if show not in {"traces", "ranks", "paths"}:
            raise ArgumentError(f"show={show!r}: expected 'traces', 'ranks' or 'paths'")
        if self.samples is None:
            raise CapabilityError("the draws of this trace were not kept; call sample(..., keep=True)")
        ax = axes(ax)
        if show == "paths":
            return chains(self.samples, ax, plane=(entry, entry + 1), count=count)
        return (ranks if show == "ranks" else traces)(self.samples, ax, entry=entry, count=count)

    def _repr_html_(self) -> str:
        kept = tuple(self.samples.shape) if self.samples is not None else "not kept"
        rows = [
            ("kernel", type(self.kernel).__name__),
            ("steps", f"{self.steps} of {len(self.last)} chains"),
            ("samples", str(kept)),
        ]
        acceptance, divergent = float(self.acceptance), int((self.divergences > 0).sum())
        rows += [("acceptance", f"{100 * acceptance:.0f} %")] if acceptance == acceptance else []
        rows += [("divergent chains", str(divergent))] if divergent else []
        return card("Trace", rows + self._mixing(), note=self.reason)

    def _mixing(self) -> list[tuple[str, str]]:
        """Whether the kept draws have mixed, in words; of at most 64 chains and 64 numbers, to be quick."""
        if self.samples is None or len(self.samples) < 8:
            return []
        found = summarize(self.samples[:, :64].flatten(2)[..., :64])
        r_hat, ess = (found[name][torch.isfinite(found[name])] for name in ("r_hat", "ess"))
        if not len(r_hat) or not len(ess):
            return []
        mixed = "mixed" if float(r_hat.max()) <= 1.01 else "not mixed: run longer"
        return [("largest R-hat", f"{float(r_hat.max()):.3f}  ({mixed})"), ("smallest ESS", f"{float(ess.min()):.0f}")]

    def __repr__(self) -> str:
        kept = tuple(self.samples.shape) if self.samples is not None else "not kept"
        return (
            f"Trace({type(self.kernel).__name__}, {self.steps} steps, {len(self.last)} chains, samples {kept}, "
            f"acceptance {float(self.acceptance):.3g}, {int((self.divergences > 0).sum())} divergent chains)"
        )
