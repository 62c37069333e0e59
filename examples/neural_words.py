"""Pairwise maximum entropy of spike words: how much of their structure do pairs explain?

    python examples/neural_words.py [--words words.npz] [--out out/neural_words]

Words of a population of neurons (rows of {0, 1}, the array `x` of an npz file; made ones where none are given) are split into halves. A
pairwise machine is learned from the first by maximum likelihood (an exact sum over all words up to 16 units, Boltzmann learning
beyond) and judged on the second by what it was not told: single words, the number of active units, triplets, and the share of the
multi-information that it explains (Schneidman et al. 2006). Prints couplings that stand out of their errors; writes results.json and
a picture.
"""

import argparse
import json
import os
from pathlib import Path

os.environ.setdefault("MPLBACKEND", "Agg")

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.ticker import MaxNLocator

import gibbsian as gb
from gibbsian import spins


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words")
    parser.add_argument("--out", default="out/neural_words")
    options = parser.parse_args()
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    x = torch.as_tensor(np.load(options.words)["x"]) if options.words else gb.data.load("spike-words").train.x
    x = x.double()
    train, test = x[: len(x) // 2], x[len(x) // 2 :]
    varying = (train.std(0) > 0) & (test.std(0) > 0)
    train, test = train[:, varying], test[:, varying]

    n = train.shape[1]
    found = spins.fit_ising(train, "exact" if n <= 16 else "boltzmann", pseudocount=1)
    checks = spins.check_words(found.machine, test.to(found.machine.bias.dtype), generator=gb.random.stream(0, "words"))
    pairs = torch.triu_indices(n, n, 1)
    w, error = found.coupling[pairs[0], pairs[1]], found.coupling_error[pairs[0], pairs[1]]
    clear = int((w.abs() > 3 * error).sum())
    print(found, checks, f"{clear} of {len(w)} couplings are beyond three standard errors", sep="\n")
    results = {
        "units": n, "rows": [len(train), len(test)], "ratio": checks.ratio, "multi_information_bits": checks.multi_information,
        "independent_entropy_bits": checks.independent_entropy, "pairwise_entropy_bits": checks.pairwise_entropy,
        "word_entropy_bits": checks.word_entropy, "triplet_correlation": float(torch.corrcoef(checks.triplets)[0, 1]),
        "clear_couplings": clear, "couplings": len(w),
    }  # fmt: skip
    (out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    picture(found, checks, len(test), out / "neural_words.png")
    print(f"written to {out}")


def picture(found: spins.InverseIsing, checks: spins.WordChecks, rows: int, path: Path) -> None:
    figure, axes = plt.subplots(1, 4, figsize=(15, 3.6), layout="constrained")
    # pairs that were never active together have couplings of no certain size, which would hide the others: crossed out
    known = found.coupling_error < 1
    most = float(found.coupling[known].abs().max())
    shown = axes[0].imshow(found.coupling.masked_fill(~known, 0.0), cmap="RdBu_r", vmin=-most, vmax=most)
    crossed = (~known).nonzero()
    axes[0].plot(crossed[:, 1], crossed[:, 0], "x", color="0.4", ms=6, label="never together")
    if len(crossed):
        axes[0].legend(loc="lower left", fontsize=8)
    figure.colorbar(shown, ax=axes[0], shrink=0.8, label="coupling")
    axes[0].set(title="couplings", xlabel="neuron", ylabel="neuron")
    axes[0].xaxis.set_major_locator(MaxNLocator(integer=True))
    if checks.words is not None:
        data, pairwise, alone = checks.words
        axes[1].loglog(data, alone, ".", ms=3, color="0.7", label="independent")
        axes[1].loglog(data, pairwise, ".", ms=3, color="C0", label="pairwise")
        ends = [1 / rows, 1]
        axes[1].plot(ends, ends, "k-", lw=0.8)
        axes[1].set(
            title="words", xlabel="frequency in held-out data", ylabel="probability by the model", ylim=(0.01 / rows, 2)
        )
        axes[1].legend()
    else:
        low, high = (float(v) for v in checks.covariances.aminmax())
        off = ~torch.eye(len(found.field), dtype=torch.bool)
        axes[1].plot(checks.covariances[0][off], checks.covariances[1][off], ".", ms=3)
        axes[1].plot([low, high], [low, high], "k-", lw=0.8)
        axes[1].set(title="covariances", xlabel="data", ylabel="pairwise")
    k = torch.arange(checks.activity.shape[1])
    seen = checks.activity[0] > 0
    axes[2].semilogy(k, checks.activity[2], "-", color="0.7", label="independent")
    axes[2].semilogy(k, checks.activity[1], "-", color="C0", label="pairwise")
    bar = (checks.activity[0] / rows).sqrt()
    axes[2].errorbar(k[seen], checks.activity[0][seen], bar[seen], fmt="k.", ms=5, label="data")
    axes[2].set(
        title="how many are active",
        xlabel="active neurons",
        ylabel="probability",
        ylim=(0.3 / rows, 1),
        xlim=(-0.5, float(k[seen].max()) + 1.5),
    )
    axes[2].legend()
    data, model = checks.triplets
    axes[3].errorbar(data, model, xerr=checks.triplet_error, fmt=".", ms=4, lw=0.4, ecolor="0.8")
    low, high = float(checks.triplets.min()), float(checks.triplets.max())
    axes[3].plot([low, high], [low, high], "k-", lw=0.8)
    axes[3].set(title="third moments", xlabel="held-out data, ± one standard error", ylabel="pairwise model")
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
