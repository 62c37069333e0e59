"""Ten Laplace sources, mixed and found again by four learning principles: Amari distances.

    python benchmarks/ica.py

x = As with A 10 × 10 Gaussian and 20000 rows, whitened; `energies.ICA` with logistic sources learns W by maximum
likelihood, score matching, noise-contrastive estimation and contrastive divergence, each through `gibbsian.fit`. The
Amari distance lies in [0, 1] (`metrics.amari_distance`); 9 times it is the normalization of some other texts. FastICA of
scikit-learn on the same data is the reference. Writes results/ica.json.
"""

import argparse
import json
import math
import time
import warnings
from pathlib import Path

import torch
from sklearn.decomposition import FastICA

import gibbsian as gb
from gibbsian import energies, kernels, metrics, objectives
from gibbsian.training import Logging

PRINCIPLES = {
    "maximum likelihood": (objectives.ExactLikelihood(), 3000, 0.01),
    "score matching": (objectives.ImplicitScoreMatching(), 3000, 0.01),
    "noise contrast": (objectives.NoiseContrastive("gaussian", ratio=10), 3000, 0.01),
    "contrastive divergence": (objectives.ContrastiveDivergence(kernels.HMC(0.2, 5), steps=1), 3000, 0.01),
}


def mixed(dim: int, rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Whitened mixtures, and the mixing seen from the whitened coordinates."""
    g = gb.random.stream(seed, "sources")
    s = torch.distributions.Laplace(0.0, 1.0).icdf(torch.rand(rows, dim, generator=g, dtype=torch.float64))
    a = torch.randn(dim, dim, generator=g, dtype=torch.float64)
    start = energies.ICA(dim).double()
    start.whiten(s @ a.T)
    scale = math.sqrt(3) / math.pi
    z = start.components(s @ a.T).detach() * scale
    return z.float(), (start.weight.detach() @ a * scale).float()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dim", type=int, default=10)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--share", type=float, default=1.0, help="of the steps of each principle")
    parser.add_argument("--out", default=str(Path(__file__).parent / "results" / "ica.json"))
    options = parser.parse_args()
    results: dict[str, dict[str, list[float]]] = {}
    for seed in range(options.seeds):
        x, a = mixed(options.dim, options.rows, seed)
        for name, (objective, steps, lr) in PRINCIPLES.items():
            model = energies.ICA(options.dim)
            model.whiten(x)
            begun = time.process_time()
            steps = max(1, int(options.share * steps))
            gb.fit(
                model,
                objective,
                x,
                steps=steps,
                batch_size=500,
                lr=lr,
                schedule="cosine",
                seed=seed,
                logging=Logging(every=steps),
            )
            found = results.setdefault(name, {"amari": [], "cpu_seconds": []})
            found["amari"].append(round(float(metrics.amari_distance(model.weight, a)), 5))
            found["cpu_seconds"].append(round(time.process_time() - begun, 1))
            print(f"seed {seed}  {name:24s} {found['amari'][-1]:.4f}  {found['cpu_seconds'][-1]:.0f} s", flush=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fast = FastICA(whiten="unit-variance", random_state=seed, tol=1e-6, max_iter=500).fit(x.numpy())
        w = torch.tensor(fast.components_, dtype=torch.float32)
        start = results.setdefault("FastICA (scikit-learn)", {"amari": []})
        start["amari"].append(round(float(metrics.amari_distance(w, a)), 5))
        print(f"seed {seed}  FastICA {start['amari'][-1]:.4f}")
    Path(options.out).parent.mkdir(parents=True, exist_ok=True)
    Path(options.out).write_text(
        json.dumps({"options": {k: v for k, v in vars(options).items() if k != "out"}, "results": results}, indent=1)
        + "\n"
    )


if __name__ == "__main__":
    main()
