"""How efficient noise-contrastive estimation is: n·Var of its estimates against theory.

    python benchmarks/nce_efficiency.py [--studies 4000] [--n 1000] [--save benchmarks/results/nce_efficiency.json]

Data and noise are both N(0, 1), ν noise draws per datum; estimated are the precision and log Z of
E(x) = ½λx², at the minimum of `objectives.NoiseContrastive` (Newton's method, gradients by autograd). Theory:
n·Var → (1 + 1/ν)·Fisher⁻¹, which is 2(1 + 1/ν) for the precision and ½(1 + 1/ν) for log Z.

Many studies run at once: an event is (value, name of its study), and every study has its own λ and log Z.
"""

import argparse
import math

import torch
from timing import save
from torch import Tensor

import gibbsian as gb
from gibbsian.objectives.noise_contrastive import LearnedLogZ, NoiseState

F64 = torch.float64


class Studies(gb.Energy):
    """E = ½λ[study]·value² + c[study]."""

    def __init__(self, studies: int) -> None:
        super().__init__(gb.domains.Real(2))
        self.precision = torch.nn.Parameter(torch.ones(studies, dtype=F64))
        self.c = torch.nn.Parameter(torch.full((studies,), 0.5 * math.log(2 * math.pi), dtype=F64))

    def forward(self, x: Tensor) -> Tensor:
        study = x[:, 1].long()
        return 0.5 * self.precision[study] * x[:, 0].square() + self.c[study]


class Drawn:
    """Standard normal noise, drawn beforehand so that every Newton step sees the same."""

    def __init__(self, y: Tensor) -> None:
        self.y = y

    def sample(self, shape: tuple[int, ...]) -> Tensor:
        return self.y

    def log_prob(self, x: Tensor) -> Tensor:
        return -0.5 * x[:, 0].square() - 0.5 * math.log(2 * math.pi)


def estimates(ratio: int, studies: int, n: int, generator: torch.Generator) -> Tensor:
    """Estimated precision and log Z of every study, `(studies, 2)`."""
    names = torch.arange(studies, dtype=F64).repeat_interleave(n)
    x = torch.stack([torch.randn(studies * n, generator=generator, dtype=F64), names], 1)
    y = torch.randn(ratio * studies * n, generator=generator, dtype=F64)
    objective = gb.objectives.NoiseContrastive(Drawn(torch.stack([y, names.repeat(ratio)], 1)), ratio)
    energy, state = Studies(studies), NoiseState(LearnedLogZ(torch.zeros((), dtype=F64)), None)
    parameters = [energy.precision, energy.c]
    for _ in range(6):
        value = objective(energy, x, state, generator).value * studies
        g1, g2 = torch.autograd.grad(value, parameters, create_graph=True)
        h11, h12 = torch.autograd.grad(g1.sum(), parameters, retain_graph=True)
        (h22,) = torch.autograd.grad(g2.sum(), energy.c)
        det = h11 * h22 - h12 * h12
        with torch.no_grad():
            energy.precision -= (h22 * g1 - h12 * g2) / det
            energy.c -= (h11 * g2 - h12 * g1) / det
    return torch.stack([p.detach() for p in parameters], 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--studies", type=int, default=4000)
    parser.add_argument("--n", type=int, default=1000)
    parser.add_argument("--save", help="write the results as JSON")
    options = parser.parse_args()
    found_rows = []
    print(f"{options.studies} studies of n = {options.n}; a variance from them has a relative error of "
          f"{100 * math.sqrt(2 / options.studies):.1f} %")  # fmt: skip
    print(f"{'ν':>4s}{'n·Var(λ)':>12s}{'theory':>9s}{'ratio':>8s}{'n·Var(c)':>12s}{'theory':>9s}{'ratio':>8s}")
    for ratio in (1, 4, 10):
        g = torch.Generator().manual_seed(ratio)
        block = min(200, options.studies)
        found = torch.cat([estimates(ratio, block, options.n, g) for _ in range(options.studies // block)])
        spread = options.n * found.var(0)
        theory = torch.tensor([2.0, 0.5]) * (1 + 1 / ratio)
        row = [v for pair in zip(spread.tolist(), theory.tolist(), strict=True) for v in (*pair, pair[0] / pair[1])]
        print(f"{ratio:4d}{row[0]:12.3f}{row[1]:9.3f}{row[2]:8.3f}{row[3]:12.3f}{row[4]:9.3f}{row[5]:8.3f}", flush=True)
        found_rows.append({"ratio": ratio, "precision": row[2], "log_z": row[5]})
    error = math.sqrt(2 / options.studies)
    save({"studies": options.studies, "n": options.n, "relative_error": error, "rows": found_rows}, options.save)


if __name__ == "__main__":
    main()
