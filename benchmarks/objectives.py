"""Score-matching steps against hand-written PyTorch, TorchEBM and ebmkit: the same work, one thread, interleaved.

    make bench-objectives          (installs the peers into an environment of their own)

Work: loss and gradients of an MLP 784-512-512-1 with SiLU on a batch of 128: denoising, and sliced score matching
with one and with five projections. Times are of this process's CPU, so that neighbors on the machine count less.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import importlib.util
import time
import warnings
from collections.abc import Callable

import torch
from timing import Contender, interleave, save

import gibbsian as gb
from gibbsian.objectives import DenoisingScoreMatching, SlicedScoreMatching

torch.set_num_threads(1)
warnings.simplefilter("ignore")
HAVE = {name: importlib.util.find_spec(name) is not None for name in ("torchebm", "ebm")}
SIGMA = 0.3
ENERGY = gb.energies.MLPEnergy(784, (512, 512))
PARAMETERS = list(ENERGY.parameters())
X = torch.randn(128, 784, generator=torch.Generator().manual_seed(0))


def steps(loss: Callable[[], torch.Tensor], pruned: bool = False) -> Callable[[int], None]:
    def run(n: int) -> None:
        for _ in range(n):
            ENERGY.zero_grad()
            loss().backward(inputs=PARAMETERS if pruned else None)

    return run


def ours(objective: gb.objectives.Objective) -> Callable[[int], None]:
    g = torch.Generator().manual_seed(0)
    return steps(lambda: objective(ENERGY, X, (), g).value, pruned=True)


def denoising_by_hand() -> torch.Tensor:
    noise = torch.randn_like(X)
    x = (X + SIGMA * noise).requires_grad_(True)
    (gradient,) = torch.autograd.grad(ENERGY.net(x).sum(), x, create_graph=True)
    loss = 0.5 * (noise / SIGMA - gradient).square().sum(1).mean()
    if not torch.isfinite(loss):
        raise RuntimeError("diverged")
    return loss


def sliced_by_hand(projections: int) -> Callable[[], torch.Tensor]:
    def loss() -> torch.Tensor:
        x = X.clone().requires_grad_(True)
        (gradient,) = torch.autograd.grad(ENERGY.net(x).sum(), x, create_graph=True)
        trace = 0.0
        for _ in range(projections):
            v = torch.randn_like(x)
            (product,) = torch.autograd.grad((gradient * v).sum(), x, create_graph=True)
            trace = trace - (product * v).sum(1)
        value = (trace / projections + 0.5 * gradient.square().sum(1)).mean()
        if not torch.isfinite(value):
            raise RuntimeError("diverged")
        return value

    return loss


def torchebm_model() -> object:
    from torchebm.core import BaseModel

    class Model(BaseModel):
        def __init__(self) -> None:
            super().__init__()
            self.net = ENERGY.net

        def forward(self, x: torch.Tensor, **options: object) -> torch.Tensor:
            return self.net(x).squeeze(-1)

    return Model()


def peers(kind: str, projections: int = 1) -> list[Contender]:
    found: list[Contender] = []
    if HAVE["torchebm"]:
        from torchebm.losses import DenoisingScoreMatching as D
        from torchebm.losses import SlicedScoreMatching as S

        model = torchebm_model()
        loss = D(model, noise_scale=SIGMA) if kind == "denoising" else S(model, n_projections=projections)
        found.append(("TorchEBM", steps(lambda: loss(X)), 4))
    if HAVE["ebm"]:
        from ebm.losses.score_matching import DenoisingScoreMatching as D2
        from ebm.losses.score_matching import SlicedScoreMatching as S2

        other = D2(SIGMA) if kind == "denoising" else S2(projections)
        found.append(("ebmkit", steps(lambda: other(lambda x: ENERGY.net(x).squeeze(-1), X).loss), 4))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--save", help="write the results as JSON")
    options = parser.parse_args()
    how = {"rounds": options.rounds, "clock": time.process_time}
    by_hand, mine = "hand-written", "gibbsian"
    results = [
        interleave(
            "denoising score matching",
            [
                (by_hand, steps(denoising_by_hand), 4),
                (mine, ours(DenoisingScoreMatching(SIGMA)), 4),
                *peers("denoising"),
            ],
            base=by_hand,
            **how,
        )
    ]
    for projections in (1, 5):
        results.append(
            interleave(
                f"sliced score matching, {projections} projection{'s' * (projections > 1)}",
                [
                    (by_hand, steps(sliced_by_hand(projections)), 4),
                    (mine, ours(SlicedScoreMatching(projections)), 4),
                    *peers("sliced", projections),
                ],
                base=by_hand,
                **how,
            )
        )
    results.append(
        interleave(
            "five projections against one",
            [(f"{p} projections", ours(SlicedScoreMatching(p)), 4) for p in (1, 5)],
            base="1 projections",
            **how,
        )
    )
    save(results, options.save)


if __name__ == "__main__":
    main()
