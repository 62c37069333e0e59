"""Training a joint energy model on one GPU: gibbsian captured in bf16 and channels-last against the same training written
as plain eager PyTorch in f32; interleaved within one run, and the test accuracy of both after equally many updates.

    GIBBSIAN_DATA=folder PYTHONPATH=src:benchmarks:examples python benchmarks/joint_gpu.py --save benchmarks/results/joint_gpu.json

Work: Fashion-MNIST, the training of examples/jem.py (cross-entropy; persistent chains in a buffer of ten times as many,
20 sampler steps that fall from 2 to .05, slopes clipped, 5 % begun anew, seven of ten of them at Gaussians with the moments
of the classes; noise on the images that the energy term sees) with as many chains as images. `quick`: widths 64, 128, 256
with one block each, the image halved by the first convolution, 128 images a batch; `small`: widths 32, 64, 128 with one
block each and 128 images; `example`, the network of examples/jem.py: 64, 128, 256; `large`: 64, 128, 128 with two blocks
and 256 images; `wide`: WRN-10-8 and 256 images; `broad`: WRN-10-16 and 128 images. "plain f32" switches TF32 off; "plain,
TF32" leaves PyTorch's default for convolutions on. `--fused`: gibbsian with
`Engine(fuse=True)`, which compiles for a minute at first. `--paired 8 --configs tiny --updates 1000` compares the accuracies of both over seeds instead, on a CPU in an hour.
"""

import argparse
import copy
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
from gibbsian.nets import ResidualNet, WideResidualNet
from gibbsian.training import Checkpoints, Engine, Logging

warnings.simplefilter("ignore")
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
WALL, STEPS, FIRST, LAST, NOISE, SLOPE = 1.09, 20, 2.0, 0.05, 0.01, 0.1
REINIT, FAR, BLUR, WEIGHT, PENALTY = 0.05, 0.3, 0.03, 0.2, 0.01
CONFIGS = {
    "tiny": (lambda: ResidualNet((1, 28, 28), (8, 16, 16), 1, outputs=10, stride=2, pool=False), 32),  # for a CPU
    "quick": (lambda: ResidualNet((1, 28, 28), (64, 128, 256), 1, outputs=10, stride=2, pool=False), 128),
    "small": (lambda: ResidualNet((1, 28, 28), (32, 64, 128), 1, outputs=10, pool=False), 128),
    "example": (lambda: ResidualNet((1, 28, 28), (64, 128, 256), 1, outputs=10, pool=False), 128),
    "large": (lambda: ResidualNet((1, 28, 28), (64, 128, 128), 2, outputs=10, pool=False), 256),
    "wide": (lambda: WideResidualNet((1, 28, 28), 10, 8, outputs=10, pool=False), 256),
    "broad": (lambda: WideResidualNet((1, 28, 28), 10, 16, outputs=10, pool=False), 128),
}


def sync() -> None:
    if CUDA:
        torch.cuda.synchronize()


def moved(batch: tuple[Tensor, Tensor], generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return augmented(batch[0], generator, shift=1, flip=True), batch[1]


class Plain:
    """The training as one would write it down: eager, f32, contiguous."""

    def __init__(self, net: torch.nn.Module, data: tuple[Tensor, Tensor], batch: int, tf32: bool) -> None:
        self.net, self.data, self.batch, self.tf32 = net.to(DEVICE), data, batch, tf32
        self.optimizer = torch.optim.Adam(net.parameters(), lr=5e-4)
        self.g = torch.Generator(DEVICE).manual_seed(0)
        self.steps = [FIRST * (LAST / FIRST) ** (k / (STEPS - 1)) for k in range(STEPS)]
        first = data[0][: self.batch], data[1][: self.batch]
        self.buffer = torch.cat([self.fresh(*first) for _ in range(10)])

    def fresh(self, x: Tensor, y: Tensor) -> Tensor:
        flat = x.flatten(1)
        means = torch.zeros(10, 784, device=DEVICE).index_add_(0, y, flat)
        means = (means / y.bincount(minlength=10).clamp(min=1)[:, None])[y]
        rows = torch.randint(len(x), (len(x),), generator=self.g, device=DEVICE)
        z = torch.randn(len(x), len(x), generator=self.g, device=DEVICE)
        near = (means[rows] + z @ (flat - means) / len(x) ** 0.5).view_as(x).clamp(-WALL, WALL)
        far = WALL * (2 * torch.rand(x.shape, generator=self.g, device=DEVICE) - 1)
        return torch.where(torch.rand(len(x), 1, 1, 1, generator=self.g, device=DEVICE) < FAR, far, near)

    def chains(self, x: Tensor, y: Tensor) -> Tensor:
        slots = torch.randperm(len(self.buffer), generator=self.g, device=DEVICE)[: self.batch]
        anew = torch.rand(self.batch, 1, 1, 1, generator=self.g, device=DEVICE) < REINIT
        x = torch.where(anew, self.fresh(x, y), self.buffer[slots])
        for step in self.steps:
            x.requires_grad_()
            (slope,) = torch.autograd.grad(torch.logsumexp(self.net(x), 1).sum(), x)
            noise = NOISE * torch.randn(x.shape, generator=self.g, device=DEVICE)
            x = (x + step * slope.clamp(-SLOPE, SLOPE) + noise).clamp(-WALL, WALL).detach()
        self.buffer[slots] = x
        return x

    def __call__(self, updates: int) -> None:
        before = torch.backends.cudnn.allow_tf32
        torch.backends.cudnn.allow_tf32 = self.tf32
        for _ in range(updates):
            rows = torch.randint(len(self.data[0]), (self.batch,), generator=self.g, device=DEVICE)
            x, y = moved((self.data[0][rows], self.data[1][rows]), self.g)
            blurred = (x + BLUR * torch.randn(x.shape, generator=self.g, device=DEVICE)).clamp(-WALL, WALL)
            samples = self.chains(blurred, y)
            low = -torch.logsumexp(self.net(blurred), 1)
            high = -torch.logsumexp(self.net(samples), 1)
            contrast = low.mean() - high.mean() + PENALTY * (low.square().mean() + high.square().mean())
            loss = F.cross_entropy(self.net(x), y) + WEIGHT * contrast
            self.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
            self.optimizer.step()
        torch.backends.cudnn.allow_tf32 = before


def accuracy(net: torch.nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return float(torch.cat([net(part).argmax(1) for part in x.split(1000)]).eq(y).double().mean())


def ours_trains(net: torch.nn.Module, data: Any, batch: int, steps: int, *, fuse: bool = False, **options: Any) -> None:
    """The same by gibbsian: bf16, and on CUDA captured."""
    chains = objectives.PersistentContrastiveDivergence(
        kernels.ShortRunLangevin(FIRST, NOISE, SLOPE, last=LAST, cycle=STEPS),
        steps=STEPS,
        chains=batch,
        buffer=10 * batch,
        reinit=REINIT,
        start={"gaussian": 1 - FAR, "reference": FAR},
        penalty=PENALTY,
    )
    gb.fit(
        models.JointEnergy(net, domains.Box((1, 28, 28), -WALL, WALL)),
        objectives.Weighted([objectives.CrossEntropy(), objectives.Blurred(chains, BLUR)], [1.0, WEIGHT]),
        data,
        transform=moved,
        steps=steps,
        batch_size=batch,
        lr=5e-4,
        clip=1.0,
        engine=Engine(precision="bf16", compile=CUDA, fuse=CUDA and fuse),
        logging=Logging(every=1000),
        checkpoints=Checkpoints(every=10**6),
        progress=False,
        **options,
    )


def paired(config: str, data: Any, test: Any, seeds: int, updates: int) -> dict[str, Any]:
    """Test accuracies of both after equally many updates from the same weights, and their mean difference."""
    make, batch = CONFIGS[config]
    pairs = []
    for seed in range(seeds):
        torch.manual_seed(seed)
        net = make()
        twin = copy.deepcopy(net).to(DEVICE, memory_format=torch.channels_last)
        plain = Plain(net, data, batch, False)
        plain.g.manual_seed(seed)
        plain(updates)
        ours_trains(twin, data, batch, updates, seed=seed)
        pairs.append({"plain f32": accuracy(net, *test), "gibbsian": accuracy(twin, *test)})
        print(seed, pairs[-1], flush=True)
    gains = [pair["gibbsian"] - pair["plain f32"] for pair in pairs]
    error = statistics.stdev(gains) / len(gains) ** 0.5
    print(f"{config}, {updates} updates: gibbsian - plain {statistics.mean(gains):+.4f} ± {error:.4f} (standard error)")
    return {"config": config, "updates": updates, "pairs": pairs, "mean": statistics.mean(gains), "error": error}


def interleaved(config: str, fused: bool, data: Any, test: Any, rounds: int, updates: int, warm: int) -> dict[str, Any]:
    """gibbsian's training, stopped after every `updates` steps for the plain ones to take their turn."""
    make, batch = CONFIGS[config]
    plain = {"plain f32": Plain(make(), data, batch, False), "plain, TF32": Plain(make(), data, batch, True)}
    ours = "gibbsian, fused" if fused else "gibbsian"
    times: dict[str, list[float]] = {ours: [], **{name: [] for name in plain}}
    for name, work in plain.items():
        work(warm if name == "plain f32" else 5)
    mark = [0.0]

    def turn(run: Any) -> None:
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
    ends = range(warm, warm + rounds * updates + 1, updates)
    ours_trains(net, data, batch, warm + rounds * updates, fuse=fused, hooks=[(ends, turn)])
    ratios = {name: [b / a for a, b in zip(t, times["plain f32"], strict=True)] for name, t in times.items()}
    rows = {
        name: {
            "ms_an_update": 1e3 * statistics.median(t),
            "best_ms": 1e3 * min(t),
            "images_a_second": batch / statistics.median(t),
            "times_plain_f32": statistics.median(ratios[name]),  # within rounds, which see the same machine
            "ratio_quartiles": statistics.quantiles(ratios[name], n=4),
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
    parser.add_argument("--warm", type=int, default=30, help="updates before the first round")
    parser.add_argument("--fused", action="store_true", help="with Engine(fuse=True)")
    parser.add_argument("--paired", type=int, help="compare test accuracies instead, over so many seeds")
    parser.add_argument("--limit", type=int, help="training images, for a quick look")
    parser.add_argument("--save")
    chosen = parser.parse_args()
    torch.backends.cudnn.benchmark = True  # for all of them
    data = tuple(t.to(DEVICE) for t in read("fashion", "train", chosen.limit))
    test = tuple(t.to(DEVICE) for t in read("fashion", "test", chosen.limit))
    if chosen.paired:
        results = [paired(name, data, test, chosen.paired, chosen.updates) for name in chosen.configs]
    else:
        how = chosen.rounds, chosen.updates, chosen.warm
        results = [interleaved(n, chosen.fused, data, test, *how) for n in chosen.configs]
    device = torch.cuda.get_device_name() if CUDA else "cpu"
    training = "that of examples/jem.py"
    save([{"device": device, "torch": torch.__version__, "training": training, "results": results}], chosen.save)


if __name__ == "__main__":
    main()
