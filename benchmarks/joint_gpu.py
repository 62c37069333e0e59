"""Training a joint energy model on one GPU: gibbsian captured in bf16 and channels-last against the same training written
as plain eager PyTorch in f32; interleaved within one run, and the test accuracy of both after equally many updates.

    GIBBSIAN_DATA=folder PYTHONPATH=src:benchmarks:examples python benchmarks/joint_gpu.py --save benchmarks/results/joint_gpu.json

Work: Fashion-MNIST, a residual network without batch norm, 20 sampler steps an update, replay buffer of 10000 slots with
5 % begun anew. `quick`: widths 64, 128, 256 with one block each, the image halved by the first convolution, 128 images a
batch; `small`, the network of examples/jem.py: widths 32, 64, 128 with one block each and 128 images a batch; `large`: 64,
128, 128 with two blocks and 256 images; `wide`: WRN-10-8 and 256 images; `broad`: WRN-10-16 and 128 images. "plain f32"
switches TF32 off; "plain, TF32" leaves PyTorch's default for convolutions on. "fused" is gibbsian with `net.compile()`
before, which takes a minute.
"""

import argparse
import statistics
import time
import warnings
from typing import Any

import torch
from images import augmented, read
from timing import save
from torch import Tensor
from torch.nn import functional as F

import gibbsian as gb
from gibbsian import domains, kernels, models, objectives
from gibbsian.energies.neural_conv import ResidualNet, WideResidualNet

warnings.simplefilter("ignore")
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
WALL, STEPS, NOISE, SLOTS = 1.15, 20, 0.01, 10_000
CONFIGS = {
    "tiny": (lambda: ResidualNet((1, 28, 28), (8, 16), 1, outputs=10, pool=False), 16),  # for a look on the CPU
    "quick": (lambda: ResidualNet((1, 28, 28), (64, 128, 256), 1, outputs=10, stride=2, pool=False), 128),
    "small": (lambda: ResidualNet((1, 28, 28), (32, 64, 128), 1, outputs=10, pool=False), 128),
    "large": (lambda: ResidualNet((1, 28, 28), (64, 128, 128), 2, outputs=10, pool=False), 256),
    "wide": (lambda: WideResidualNet((1, 28, 28), 10, 8, outputs=10, pool=False), 256),
    "broad": (lambda: WideResidualNet((1, 28, 28), 10, 16, outputs=10, pool=False), 128),
}


def sync() -> None:
    if CUDA:
        torch.cuda.synchronize()


def noisy(batch: tuple[Tensor, Tensor], generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x = augmented(batch[0], generator, shift=1, flip=True)
    noise = torch.randn(x.shape, generator=generator, device=x.device)
    return (x + 0.03 * noise).clamp(-WALL, WALL), batch[1]


class Plain:
    """The training as one would write it down: eager, f32, contiguous."""

    def __init__(self, net: torch.nn.Module, data: tuple[Tensor, Tensor], batch: int, tf32: bool) -> None:
        self.net, self.data, self.batch, self.tf32 = net.to(DEVICE), data, batch, tf32
        self.optimiser = torch.optim.Adam(net.parameters(), lr=5e-4)
        self.g = torch.Generator(DEVICE).manual_seed(0)
        self.buffer = self.fresh(SLOTS)

    def fresh(self, n: int) -> Tensor:
        return WALL * (2 * torch.rand(n, 1, 28, 28, generator=self.g, device=DEVICE) - 1)

    def chains(self) -> Tensor:
        slots = torch.randint(SLOTS, (self.batch,), generator=self.g, device=DEVICE)
        anew = torch.rand(self.batch, 1, 1, 1, generator=self.g, device=DEVICE) < 0.05
        x = torch.where(anew, self.fresh(self.batch), self.buffer[slots])
        for _ in range(STEPS):
            x.requires_grad_()
            (slope,) = torch.autograd.grad(torch.logsumexp(self.net(x), 1).sum(), x)
            x = (x + slope + NOISE * torch.randn(x.shape, generator=self.g, device=DEVICE)).detach()
            x = x.clamp(-WALL, WALL)
        self.buffer[slots] = x
        return x

    def __call__(self, updates: int) -> None:
        before = torch.backends.cudnn.allow_tf32
        torch.backends.cudnn.allow_tf32 = self.tf32
        for _ in range(updates):
            rows = torch.randint(len(self.data[0]), (self.batch,), generator=self.g, device=DEVICE)
            x, y = noisy((self.data[0][rows], self.data[1][rows]), self.g)
            samples = self.chains()
            logits = self.net(x)
            low, high = -torch.logsumexp(logits, 1), -torch.logsumexp(self.net(samples), 1)
            loss = F.cross_entropy(logits, y) + low.mean() - high.mean()
            loss = loss + 0.001 * (low.square().mean() + high.square().mean())
            self.optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
            self.optimiser.step()
        torch.backends.cudnn.allow_tf32 = before


def accuracy(net: torch.nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return float(torch.cat([net(part).argmax(1) for part in x.split(1000)]).eq(y).double().mean())


def interleaved(config: str, fused: bool, data: Any, test: Any, rounds: int, updates: int) -> dict[str, Any]:
    """gibbsian's training, stopped after every `updates` steps for the plain ones to take their turn."""
    make, batch = CONFIGS[config]
    plain = {"plain f32": Plain(make(), data, batch, False), "plain, TF32": Plain(make(), data, batch, True)}
    ours = "gibbsian, fused" if fused else "gibbsian"
    times: dict[str, list[float]] = {ours: [], **{name: [] for name in plain}}
    warm = 30
    for name, work in plain.items():
        work(warm if name == "plain f32" else 5)
    mark = [0.0]

    def turn(run: Any) -> None:
        if run.step < warm or (run.step - warm) % updates:
            return
        sync()
        if run.step > warm:
            times[ours].append((time.perf_counter() - mark[0]) / updates)
            for name, work in plain.items():
                count = updates if name == "plain f32" else max(1, updates // 5)
                begun = time.perf_counter()
                work(count)
                sync()
                times[name].append((time.perf_counter() - begun) / count)
        mark[0] = time.perf_counter()

    net = make().to(DEVICE, memory_format=torch.channels_last)
    joint = models.JointEnergy(net, domains.Box((1, 28, 28), -WALL, WALL))
    if fused:
        net.compile(dynamic=False)
    chains = objectives.PersistentContrastiveDivergence(
        kernels.ShortRunLangevin(1.0, NOISE), steps=STEPS, chains=batch, buffer=SLOTS, reinit=0.05, penalty=0.001
    )
    gb.fit(
        joint,
        objectives.Weighted([objectives.CrossEntropy(), chains]),
        data,
        transform=noisy,
        steps=warm + rounds * updates,
        batch_size=batch,
        lr=5e-4,
        clip=1.0,
        precision="bf16",
        compile=CUDA,
        hooks=[turn],
        log_every=1000,
        checkpoint_every=10**6,
        progress=False,
    )
    base = statistics.median(times["plain f32"])
    rows = {
        name: {
            "ms_an_update": 1e3 * statistics.median(t),
            "best_ms": 1e3 * min(t),
            "images_a_second": batch / statistics.median(t),
            "times_plain_f32": base / statistics.median(t),
            "ratio_quartiles": statistics.quantiles([b / a for a, b in zip(t, times["plain f32"], strict=True)], n=4),
        }
        for name, t in times.items()
    }
    rows[ours]["test_accuracy"] = accuracy(net, *test)
    rows["plain f32"]["test_accuracy"] = accuracy(plain["plain f32"].net, *test)
    print(f"\n{config}{', fused' if fused else ''}: {batch} images a batch, {rounds} rounds of {updates} updates")
    for name, row in rows.items():
        print(
            f"{name:16s}{row['ms_an_update']:10.2f} ms{row['images_a_second']:12.0f} images/s"
            f"{row['times_plain_f32']:8.2f} ×   accuracy {row.get('test_accuracy', float('nan')):.4f}"
        )
    return {"config": config, "fused": fused, "batch": batch, "rounds": rounds, "updates": updates, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configs", nargs="+", choices=list(CONFIGS), default=["quick", "small", "wide"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--updates", type=int, default=60, help="a round")
    parser.add_argument("--fused", action="store_true", help="also with net.compile()")
    parser.add_argument("--limit", type=int, help="training images, for a quick look")
    parser.add_argument("--save")
    chosen = parser.parse_args()
    torch.backends.cudnn.benchmark = True  # for all of them
    data = tuple(t.to(DEVICE) for t in read("fashion", "train", chosen.limit))
    test = tuple(t.to(DEVICE) for t in read("fashion", "test", chosen.limit))
    results = []
    for config in chosen.configs:
        for fused in (False, True) if chosen.fused else (False,):
            results.append(interleaved(config, fused, data, test, chosen.rounds, chosen.updates))
    device = torch.cuda.get_device_name() if CUDA else "cpu"
    save([{"device": device, "torch": torch.__version__, "results": results}], chosen.save)


if __name__ == "__main__":
    main()
