"""R-hat and effective sample sizes against ArviZ, entry by entry, and what can be streamed against the whole."""

import math
import warnings

import numpy as np
import pytest
import torch
from arviz_stats.base import array_stats

from gibbsian.sampling.diagnostics import summarize
from gibbsian.sampling.streaming import StreamingMoments

F64 = torch.float64


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def autoregressive(draws, chains, entries, rho, seed=0):
    z = torch.randn(draws, chains, entries, generator=gen(seed), dtype=F64)
    x = z.clone()
    for i in range(1, draws):
        x[i] = rho * x[i - 1] + math.sqrt(1 - rho**2) * z[i]
    return x


def of_all_kinds(draws, chains):
    """Independent, sticky and swinging chains, walks, heavy tails, two values, few values, one value, chains apart, a NaN."""
    sticky = autoregressive(draws, chains, 5, 0.9)
    swinging = autoregressive(draws, chains, 5, -0.8, seed=1)
    plain = autoregressive(draws, chains, 5, 0.0, seed=2)
    heavy = plain / torch.rand(plain.shape, generator=gen(3), dtype=F64)
    apart = plain + torch.arange(chains)[:, None]
    wide = plain * (1 + torch.arange(chains)[:, None])
    lost = plain.clone()
    lost[1, 0, 0] = torch.nan
    kinds = [plain, sticky, swinging, plain.cumsum(0), heavy, (sticky > 0).double(), (2 * sticky).round(), apart, wide]
    return torch.cat([*kinds, torch.full_like(plain, 3.0), lost], 2)


def arviz(x):
    axes = {"chain_axis": 1, "draw_axis": 0}
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {
            "r_hat": array_stats.rhat(x.numpy(), **axes),
            "ess": array_stats.ess(x.numpy(), **axes, method="bulk"),
            "ess_tail": array_stats.ess(x.numpy(), **axes, method="tail", prob=(0.05, 0.95)),
            "mcse": array_stats.mcse(x.numpy(), **axes, method="mean"),
        }


@pytest.mark.parametrize(("draws", "chains"), [(4, 3), (5, 3), (6, 4), (9, 1), (12, 2), (101, 3), (200, 4), (121, 1)])
def test_every_entry_has_arviz_numbers(draws, chains):
    x = of_all_kinds(draws, chains)
    summary = summarize(x)
    for name, want in arviz(x).items():
        got = summary[name].numpy()
        endless = (want > 1e12) & (got > 1e12)  # halves that never moved, in other places: infinite but for rounding
        assert np.allclose(np.where(endless, 0, got), np.where(endless, 0, want), rtol=1e-9, equal_nan=True), name


def test_summaries_do_not_depend_on_blocks(monkeypatch):
    x = of_all_kinds(40, 4)
    whole = summarize(x)
    monkeypatch.setattr("gibbsian.sampling.diagnostics._BLOCK", 1)
    for name, value in summarize(x).items():
        assert torch.allclose(value, whole[name], rtol=1e-12, equal_nan=True)


def stream_of(x, pieces=37):
    stream = StreamingMoments(len(x))
    for part in x.split(pieces):
        stream.update(part)
    return stream


@pytest.mark.parametrize("dtype", [torch.int64, torch.bfloat16])
def test_summaries_are_not_rounded_to_the_kind_of_the_draws(dtype):
    draws = torch.randint(2, (900, 4, 2), generator=torch.Generator().manual_seed(0)).to(dtype)
    for summary in (summarize, lambda x: stream_of(x).summary()):
        found, exact = summary(draws), summary(draws.double())
        assert all(torch.equal(found[name], exact[name].float()) for name in exact)


def test_short_streams_are_whole():
    x = of_all_kinds(333, 4)
    for name, value in stream_of(x).summary().items():
        assert torch.equal(value.nan_to_num(), summarize(x)[name].nan_to_num())


@pytest.mark.parametrize(("draws", "chains", "rows"), [(2000, 4, 512), (2001, 20, 228), (700, 1024, 32)])
def test_spaced_draws_are_where_they_should_be(draws, chains, rows):
    """1024/√chains of them (16 to 512), the j-th the first draw of the j-th of as many parts of the run."""
    x = torch.arange(draws, dtype=F64)[:, None, None].expand(draws, chains, 1)
    kept = stream_of(x).spaced
    assert len(kept) == rows
    assert torch.equal(kept[:, 0, 0], torch.tensor([-(-j * draws // rows) for j in range(rows)], dtype=F64))


def test_streamed_ranks_are_those_of_arviz_on_the_spaced_draws():
    x = of_all_kinds(2100, 4)
    stream = stream_of(x)
    want, summary = arviz(stream.spaced), stream.summary()
    for name in ("r_hat", "ess_tail"):
        assert np.allclose(summary[name], want[name], rtol=1e-9, equal_nan=True)


@pytest.mark.parametrize("chains", [4, 25])
def test_streamed_r_hat_is_near_the_whole(chains):
    """Chains that agree: 1 ± 0.001 in theory, ten of that allowed. Means or widths apart: the same verdict, R-hat - 1 to 10 %."""
    x = autoregressive(3000, chains, 5, 0.5)
    assert float((stream_of(x, 500).summary()["r_hat"] - 1).abs().max()) < 0.01
    shifts = torch.linspace(-1, 1, chains, dtype=F64)[:, None]
    for other in (x + shifts, x * (2 + shifts)):
        whole, streamed = summarize(other)["r_hat"] - 1, stream_of(other, 500).summary()["r_hat"] - 1
        assert bool((whole > 0.02).all())
        assert torch.allclose(streamed.mean(), whole.mean(), rtol=0.1)


def test_streamed_sizes_agree_with_arviz():
    """Batch means know the size to √(2/mb) = 4 % an entry, Geyer's sequence to about as much; 20 entries: means within 5 %."""
    x = autoregressive(3200, 16, 20, 0.6)
    assert float(stream_of(x, 400).summary()["ess"].mean() / summarize(x)["ess"].mean()) == pytest.approx(1, abs=0.05)


def test_streams_of_large_draws_hold_fewer_of_them():
    x = torch.zeros(1, 1, 1 << 20).expand(4, 1, 1 << 20)
    stream = StreamingMoments(2000)
    stream.update(x)
    assert stream.spaced.shape[0] == 32
    assert stream.sums.shape[0] == 16
    small = StreamingMoments(2000)
    small.update(x[:, :, :100])
    assert (small.spaced.shape[0], small.sums.shape[0]) == (512, 64)
