"""What the image examples share: reading sets, weak augmentation, a judge, pictures, a clock, runs that move to another machine."""

import copy
import io
import math
import shutil
import tarfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import gibbsian as gb
from gibbsian import metrics
from gibbsian.data import load
from gibbsian.drawing.images import tile
from gibbsian.objectives.redrawn import shifted
from gibbsian.training import Checkpoints, Engine, Logging, checkpoint
from gibbsian.trees import like_tuple

SETS = {"mnist": "mnist", "fashion": "fashion-mnist", "cifar": "cifar10"}
PART = 15 * 2**20  # bytes of a file that is to be moved


def read(name: str, split: str, limit: int | None = None) -> tuple[Tensor, Tensor]:
    """Images `(rows, channels, height, width)` in [-1, 1] and labels of a set in $GIBBSIAN_DATA; split "train" or "test"."""
    part = getattr(load(SETS[name], offline=True), split)
    x = part.x[:limit].float() / 127.5 - 1
    return x if x.dim() == 4 else x[:, None], part.y[:limit]


def set_up(chosen: Any) -> tuple[str, Path, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The device, the folder for results, and training and test images and labels there; `chosen` has out, data, limit."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True  # all batches have one shape
    out = Path(chosen.out)
    out.mkdir(parents=True, exist_ok=True)
    train, test = ([t.to(device) for t in read(chosen.data, part, chosen.limit)] for part in ("train", "test"))
    return device, out, (train[0], train[1]), (test[0], test[1])


def augmented(x: Tensor, generator: torch.Generator, *, shift: int = 0, flip: bool = False) -> Tensor:
    """Every image moved by up to `shift` pixels, and mirrored half of the time; nothing waits for the device."""
    return shifted(x, shift, generator, flip=flip)


class Clock:
    """A training budget in seconds: a learning rate that falls along with it, and a hook that ends the run.

    It begins at the first look of the hook, when steps have been captured: what that takes depends on the model.
    """

    def __init__(self, seconds: float, lr: float, warm: int = 200) -> None:
        self.seconds, self.lr, self.warm = seconds, lr, warm
        self.begun: float | None = None

    def elapsed(self) -> float:
        """Seconds since the first look."""
        return 0.0 if self.begun is None else time.perf_counter() - self.begun

    def rate(self, step: int) -> float:
        """Warm-up by steps, then half a cosine wave in time."""
        t = min(1.0, self.elapsed() / self.seconds)
        return self.lr * min(1.0, (step + 1) / self.warm) * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * t)))

    def over(self, run: Any) -> bool:
        """Is the time up?"""
        if self.begun is None:
            float(run.metrics["loss"])  # waits for the device
            self.begun = time.perf_counter()
        return self.elapsed() > self.seconds


def updates_a_second(fitted: Callable[[list[Any]], Any], marks: tuple[int, int]) -> float:
    """From the time between two updates, after all is captured; `fitted` trains with the hooks that it is given."""
    seen: list[float] = []

    def look(run: Any) -> bool:
        float(run.metrics["loss"])  # waits for the device
        seen.append(time.perf_counter())
        return len(seen) == 2

    fitted([(list(marks), look)])
    return (marks[1] - marks[0]) / (seen[1] - seen[0])


def gone_on(folder: Path, data: Any, hooks: list[Any], steps: int | None = None) -> Any:
    """A run that goes on where `data` lies, without what else it was trained with; one of `gibbsian train` was validated."""
    device = (data[0] if isinstance(data, tuple) else data).device
    how: dict[str, Any] = {"validation": False, "transform": False, "loggers": (), "progress": False}
    return gb.resume(folder, data, steps, device=device, hooks=hooks, **how)


def fit_for(
    clock: Clock, energy: Any, objective: Any, data: Any, chosen: Any, *, fuse: bool = False, **more: Any
) -> Any:
    """Training until the clock is over, captured (networks compiled with `fuse`) and in bfloat16 on a GPU; `chosen` has batch, lr, ema and seed."""
    fast = torch.cuda.is_available()
    return gb.fit(
        energy,
        objective,
        data,
        steps=10_000_000,
        batch_size=chosen.batch,
        lr=chosen.lr,
        schedule=clock.rate,
        clip=1.0,
        ema=chosen.ema,
        seed=chosen.seed,
        engine=Engine(precision="bf16" if fast else None, compile=fast, fuse=fast and fuse),
        checkpoints=Checkpoints(every=1_000_000),
        logging=Logging(every=500 if fast else 10),
        hooks=[(25, clock.over)],
        progress=False,
        **more,
    )


def train_classifier(
    net: torch.nn.Module,
    data: tuple[Tensor, Tensor],
    transform: Callable[..., Any],
    steps: int,
    *,
    domain: gb.domains.Domain,
    lr: float,
    batch: int = 128,
    seed: int = 0,
) -> Any:
    """A network trained on cross-entropy alone; its averaged weights, as a joint energy."""
    fast = data[0].is_cuda
    run = gb.fit(
        gb.models.JointEnergy(net, domain),
        gb.objectives.CrossEntropy(),
        data,
        transform=transform,
        steps=steps,
        batch_size=batch,
        lr=lr,
        schedule="warm-up cosine",
        ema=0.999,
        seed=seed,
        engine=Engine(precision="bf16" if fast else None, compile=fast),
        logging=Logging(every=max(1, steps // 10)),
        progress=False,
    )
    return run.ema.eval()


def probabilities(model: Any, x: Tensor, **how: Any) -> Tensor:
    """p(y|x) on the CPU in double precision."""
    return gb.hybrid.classify(model, x, **how).double().cpu()


def share_read(p: Tensor, y: Tensor) -> float:
    """The share of images whose most probable class is theirs, p being their `probabilities`."""
    return float((p.argmax(1) == y.cpu()).double().mean())


class Judge:
    """A classifier that has nothing to do with the models: how it reads images, and distances in its features, the means over positions
    of its last layer.

    Args:
        model: a `JointEnergy` of a `ResidualNet`, such as `train_classifier` returns.
        test: images and labels that it has not seen.
        sets: other images by name, to which `distance` can be measured.
    """

    def __init__(self, model: Any, test: tuple[Tensor, Tensor], **sets: Tensor) -> None:
        self.model, self.net = model, copy.deepcopy(model.net)
        self.net.head, self.net.pool = torch.nn.Identity(), True
        self.moments = {n: metrics.feature_moments(x, self.net) for n, x in {"test": test[0], **sets}.items()}
        self.test_features = self.features(test[0])
        self.accuracy = share_read(self.read(test[0]), test[1])

    def read(self, images: Tensor) -> Tensor:
        """p(y|x)."""
        return probabilities(self.model, images.clamp(-1, 1))

    @torch.no_grad()
    def features(self, images: Tensor) -> Tensor:
        return torch.cat([self.net(part) for part in images.clamp(-1, 1).split(1000)])

    def distance(self, images: Tensor, to: str = "test") -> float:
        """Fréchet's."""
        return float(metrics.fid(self.moments[to], images.clamp(-1, 1), self.net).value)

    def distances(self, images: Tensor) -> dict[str, float]:
        """Fréchet's and the kernel distance, to test images."""
        g = torch.Generator(images.device).manual_seed(0)
        kid = metrics.kid(self.test_features, self.features(images), torch.nn.Identity(), generator=g)
        return {"fid": self.distance(images), "kid": float(kid.value), "kid_standard_error": float(kid.standard_error)}


def save_png(images: Tensor, path: Path, columns: int) -> None:
    """Images `(count, 1, height, width)` in [-1, 1] as a mosaic."""
    try:
        from matplotlib.image import imsave
    except ImportError:
        torch.save(images.cpu(), path.with_suffix(".pt"))
        return
    grid = tile(((images[:, 0].float().cpu() + 1) / 2).clamp(0, 1), columns, pad=0.5).numpy()
    imsave(path, grid.repeat(3, 0).repeat(3, 1), cmap="gray", vmin=0.0, vmax=1.0)


def mosaic(images: Tensor, columns: int, pad: float) -> Any:
    """Images `(count, channels, height, width)` in [-1, 1] as one of `(lines, columns, channels)` in [0, 1]."""
    planes = ((images.float().cpu() + 1) / 2).clamp(0, 1)
    return torch.stack([tile(plane, columns, pad=pad) for plane in planes.unbind(1)], -1).numpy()


def panels_png(
    panels: Mapping[str, Tensor], path: Path, title: str, beside: Callable[[Any], None] | None = None
) -> None:
    """A picture for a page: mosaics of a hundred images in [-1, 1] under their titles, and one more panel that `beside` draws."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    count = len(panels) + (beside is not None)
    figure, axes = plt.subplots(1, count, figsize=(4.2 * count, 4.8), layout="constrained")
    for ax, (name, images) in zip(axes, panels.items(), strict=False):
        ax.imshow(mosaic(images[:100], 10, pad=0.5), cmap="gray", vmin=0.0, vmax=1.0)
        ax.set_axis_off()
        ax.set_title(name, fontsize=10)
    if beside is not None:
        beside(axes[-1])
    figure.suptitle(title, fontsize=12)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def images_png(images: Tensor, path: Path, columns: int) -> None:
    """Color images `(count, 3, height, width)` in [-1, 1] as a mosaic."""
    from matplotlib.image import imsave

    imsave(path, mosaic(images, columns, pad=1.0).repeat(2, 0).repeat(2, 1))


# --- a run that is moved to another machine ----------------------------------------------------------


def mapped(tree: Any, change: Callable[[Tensor, str], Tensor], path: str = "") -> Any:
    """A tree with every tensor changed; `change` is told where it stands."""
    if isinstance(tree, Tensor):
        return change(tree, path)
    if isinstance(tree, dict):
        return {key: mapped(part, change, f"{path}/{key}") for key, part in tree.items()}
    if isinstance(tree, list | tuple):
        return like_tuple(type(tree), [mapped(part, change, f"{path}/{i}") for i, part in enumerate(tree)])
    return tree


def carried(run: Path, target: Path, change: Callable[[Tensor, str], Tensor]) -> None:
    """The newest checkpoint of a run in a new run folder, its tensors made small or large."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for name in ("config.json", "config.safetensors", "environment.json", "metrics.jsonl"):
        shutil.copy(run / name, target / name)
    tree = mapped(checkpoint.read_latest(run), change)
    checkpoint.save_checkpoint(target, tree["step"], tree)


def in_files(folder: Path, target: Path) -> None:
    """A folder with all that is in it as files part-0, part-1, ... that are small enough to be moved one by one."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz", compresslevel=1) as tar:
        tar.add(folder, ".")
    for i, start in enumerate(range(0, whole.tell(), PART)):
        (target / f"part-{i}").write_bytes(whole.getvalue()[start : start + PART])


def from_files(parts: Path, target: Path) -> None:
    """The folder that `in_files` took apart."""
    count = len(list(parts.glob("part-*")))
    whole = io.BytesIO(b"".join((parts / f"part-{i}").read_bytes() for i in range(count)))
    with tarfile.open(fileobj=whole) as tar:
        tar.extractall(target, filter="data")
