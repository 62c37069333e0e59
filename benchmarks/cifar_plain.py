"""What plain PyTorch needs for the updates of examples/cifar_jem.py: seconds an update beside gibbsian's, interleaved.

    PYTHONPATH=src:benchmarks:examples python benchmarks/cifar_plain.py --save benchmarks/results/cifar_plain.json

The same network, batch, chains and sampler steps on random images (times do not depend on what is in them): cross-entropy
with smoothed labels on moved images, 15 Langevin steps of 128 chains of a buffer, the contrast of energies with its
penalty, a clipped step of AdamW, averaged weights. "plain f32" switches TF32 off, "plain, TF32" leaves PyTorch's default
for convolutions, "plain, bf16" runs under autocast in channels-last: what a careful person writes by hand in eager mode.
"""

import argparse
import contextlib
import statistics
import sys
import time
from typing import Any

import torch
from cifar_jem import WALL, network, objective, options
from images import augmented
from timing import save
from torch import Tensor
from torch.nn import functional as F

import gibbsian as gb
from gibbsian.training import Checkpoints, Engine, Logging

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"


def sync() -> None:
    if CUDA:
        torch.cuda.synchronize()


class Plain:
    """The training as one would write it down."""

    def __init__(self, chosen: argparse.Namespace, data: tuple[Tensor, Tensor], tf32: bool, half: bool) -> None:
        self.chosen, self.data, self.tf32, self.half = chosen, data, tf32, half
        self.net = network(chosen, DEVICE).net
        if not half:
            self.net = self.net.to(memory_format=torch.contiguous_format)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=chosen.lr, weight_decay=chosen.decay)
        self.average = torch.optim.swa_utils.AveragedModel(
            self.net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(chosen.ema)
        )
        self.steps = [2.0 * (0.05 / 2.0) ** (k / max(1, chosen.steps - 1)) for k in range(chosen.steps)]
        self.buffer = self.fresh(data[0][: chosen.buffer])

    def fresh(self, x: Tensor) -> Tensor:
        """Gaussian draws with the moments of a batch, without its covariance matrix."""
        flat = x.flatten(1)
        z = torch.randn(len(x), len(x), device=DEVICE)
        return (flat.mean(0) + z @ (flat - flat.mean(0)) / len(x) ** 0.5).view_as(x).clamp(-WALL, WALL)

    def chains(self, x: Tensor) -> Tensor:
        n = self.chosen.chains
        slots = torch.randperm(len(self.buffer), device=DEVICE)[:n]
        x = torch.where(torch.rand(n, 1, 1, 1, device=DEVICE) < 0.05, self.fresh(x)[:n], self.buffer[slots])
        for step in self.steps:
            x.requires_grad_()
            (slope,) = torch.autograd.grad(torch.logsumexp(self.net(x).float(), 1).sum(), x)
            x = (x + step * slope.clamp(-0.1, 0.1) + 0.01 * torch.randn_like(x)).clamp(-WALL, WALL).detach()
        self.buffer[slots] = x
        return x

    def __call__(self, updates: int) -> None:
        before, torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.allow_tf32, self.tf32
        g = torch.Generator(DEVICE)
        mixed = torch.autocast(DEVICE, torch.bfloat16) if self.half else contextlib.nullcontext()
        for _ in range(updates):
            rows = torch.randint(len(self.data[0]), (self.chosen.batch,), device=DEVICE)
            x, y = self.data[0][rows], self.data[1][rows]
            with mixed:
                blurred = (x + 0.03 * torch.randn_like(x)).clamp(-WALL, WALL)
                samples = self.chains(blurred)
                low = -torch.logsumexp(self.net(blurred).float(), 1)
                high = -torch.logsumexp(self.net(samples).float(), 1)
                logits = self.net(augmented(x, g, shift=self.chosen.shift, flip=True)).float()
            contrast = low.mean() - high.mean() + 0.01 * (low.square().mean() + high.square().mean())
            classes = F.cross_entropy(logits, y, label_smoothing=self.chosen.smoothing)
            self.optimizer.zero_grad()
            (classes + self.chosen.weight * contrast).backward()
            torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
            self.optimizer.step()
            self.average.update_parameters(self.net)
        torch.backends.cudnn.allow_tf32 = before


def interleaved(chosen: argparse.Namespace, rounds: int, updates: int) -> dict[str, Any]:
    """gibbsian's training, stopped after every `updates` steps for the plain ones to take their turn."""
    x = (2 * torch.rand(5000 if CUDA else 64, 3, 32, 32) - 1).to(DEVICE, memory_format=torch.channels_last)
    data = x, torch.randint(10, (len(x),), device=DEVICE)
    plain = {
        name: Plain(chosen, data, tf32, half)
        for name, tf32, half in (("plain f32", False, False), ("plain, TF32", True, False), ("plain, bf16", True, True))
    }
    times: dict[str, list[float]] = {"gibbsian": [], **{name: [] for name in plain}}
    for work in plain.values():
        work(3)
    warm, mark = 4 * updates, [0.0]

    def turn(run: Any) -> None:
        sync()
        if run.step > warm:
            times["gibbsian"].append((time.perf_counter() - mark[0]) / updates)
            for name, work in plain.items():
                count, begun = max(1, updates // 5), time.perf_counter()
                work(count)
                sync()
                times[name].append((time.perf_counter() - begun) / count)
        mark[0] = time.perf_counter()

    gb.fit(
        network(chosen, DEVICE),
        objective(chosen, density=True),
        data,
        steps=warm + rounds * updates,
        batch_size=chosen.batch,
        lr=chosen.lr,
        optimizer={"name": "adamw", "weight_decay": chosen.decay},
        clip=1.0,
        ema=chosen.ema,
        guard=False,
        engine=Engine(precision="bf16" if CUDA else None, compile=CUDA),
        checkpoints=Checkpoints(every=10**6),
        logging=Logging(every=1000),
        hooks=[(updates, turn)],
        progress=False,
    )
    ours = statistics.median(times["gibbsian"])
    return {
        name: {
            "ms_an_update": 1e3 * statistics.median(t),
            "best_ms": 1e3 * min(t),
            "times_gibbsian": statistics.median(t) / ours,
        }
        for name, t in times.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--turn", type=int, default=25, help="updates of gibbsian a turn; the others take a fifth")
    parser.add_argument("--tiny", action="store_true", help="a small network, for a CPU")
    parser.add_argument("--save")
    given = parser.parse_args()
    sys.argv = sys.argv[:1]  # the example's own settings
    chosen = options()
    if given.tiny:
        chosen.widths, chosen.blocks, chosen.batch, chosen.chains, chosen.buffer, chosen.steps = [8, 8], 1, 16, 8, 32, 3
    found = interleaved(chosen, given.rounds, given.turn)
    for name, row in found.items():
        print(f"{name:12} {row['ms_an_update']:8.2f} ms an update, {row['times_gibbsian']:.2f} times gibbsian")
    save({"device": torch.cuda.get_device_name() if CUDA else "cpu", "rows": found}, given.save)


if __name__ == "__main__":
    main()
