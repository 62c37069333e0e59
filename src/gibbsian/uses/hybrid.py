"""What a joint energy model is for besides its energy: images of given classes, and refined classification.

x ~ p(x | y) ∝ exp f(x)[y],      p(y | x) = softmax f(x)
"""

from typing import Any

import torch
from torch import Tensor

from gibbsian.capabilities import JointModel, require
from gibbsian.errors import ArgumentError, DataError, check_count, check_tensor
from gibbsian.kernels.base import Kernel
from gibbsian.objectives.starts import like_classes
from gibbsian.placement import check_rows
from gibbsian.random import require_generator
from gibbsian.sampling.sample import sample
from gibbsian.uses.rejection import Rejecting, rejecting

__all__ = ["Rejecting", "classify", "generate", "like_classes", "refine", "rejecting"]

_BLOCK = 2048  # rows classified at a time


def _joint(model: Any) -> Any:
    return require(model, JointModel, "a hybrid of classifier and density", "make one with models.JointEnergy")


def generate(
    model: Any, labels: Tensor, kernel: Kernel, steps: int, *, pool: Tensor | None = None, generator: torch.Generator
) -> Tensor:
    """Draws of given classes `(len(labels), *event)`: `steps` steps of a kernel on E(·, y).

    Chains begin at reference draws of the domain, or in a `pool` such as the replay buffer of a training run: at
    rows drawn with weights p(y|x), no row twice for one class, which makes draws of p(x) draws of p(x|y). Short-run
    chains from noise need many more steps, and find what the model holds for probable from afar; those of the
    buffer were there in training.

    Reference: Grathwohl et al. 2020.

    Args:
        model: the joint energy, best the averaged one (`run.ema`).
        labels: one class a draw.
        kernel: the one of the training, or a gentler one.
        steps: how many; 0 with a pool returns its rows.
        pool: chains `(slots, *event)` to begin from, as `run.chains`.
        generator: the source of randomness.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> joint = gb.models.JointEnergy(gb.energies.MLP(2, (8,), outputs=3), gb.domains.Real(2))
    >>> y = torch.tensor([0, 1, 2, 2])
    >>> generate(joint, y, gb.kernels.ShortRunLangevin(1.0, 0.01), steps=20, generator=g).shape
    torch.Size([4, 2])
    """
    check_tensor(labels, "labels", "(draws,)", whole=True)
    if labels.dim() != 1 or len(labels) == 0:
        raise ArgumentError(f"labels have shape {tuple(labels.shape)}, expected (draws,): one class a draw")
    member = _joint(model).given(labels)
    like = next(model.parameters(), torch.zeros(()))
    require_generator(generator, like.device)
    if pool is None:
        x = model.domain.sample(len(labels), generator=generator, dtype=like.dtype)
    else:
        check_rows(model, pool, "pool")
        whole = labels.to(pool.device, torch.long)  # bytes would be read as a mask
        x = pool[_rows_of(model, pool, whole, generator)]
    if check_count("generate", "steps", steps, 0) == 0 and pool is not None:
        return x
    return sample(member, kernel, x, steps=steps, keep=False, generator=generator, progress=False).last


def _rows_of(model: Any, pool: Tensor, labels: Tensor, generator: torch.Generator) -> Tensor:
    """For every label a row of the pool, drawn with weights p(y|x), no row twice for one class."""
    wanted = int(labels.bincount().max())
    if wanted > len(pool):
        raise DataError(f"one class is wanted {wanted} times, but the pool has {len(pool)} rows; give a larger one")
    with torch.no_grad():
        log_p = torch.cat([model.class_log_prob(part) for part in pool.split(_BLOCK)])
    u = torch.rand(log_p.shape, generator=generator, device=log_p.device, dtype=log_p.dtype)
    best = (log_p - torch.log(-torch.log(u))).topk(wanted, dim=0).indices  # Gumbel: draws without replacement
    return best[earlier(labels), labels]


def earlier(labels: Tensor) -> Tensor:
    """How often the label of every row came before.

    >>> earlier(torch.tensor([2, 0, 2, 2, 0])).tolist()
    [0, 0, 1, 2, 1]
    """
    counts, order = labels.bincount(), labels.argsort(stable=True)
    first = counts.cumsum(0) - counts  # where the rows of a label begin in order
    return torch.empty_like(order).index_copy_(
        0, order, torch.arange(len(order), device=order.device) - first[labels[order]]
    )


def refine(energy: Any, x: Tensor, kernel: Kernel, steps: int, *, generator: torch.Generator) -> Tensor:
    """x after `steps` steps towards lower energy E(x): what was added to fool a classifier is washed away.

    Reference: Grathwohl et al. 2020, section 5.4.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> joint = gb.models.JointEnergy(gb.energies.MLP(2, (8,), outputs=3), gb.domains.Real(2))
    >>> refine(joint, torch.zeros(5, 2), gb.kernels.ShortRunLangevin(1.0, 0.01), steps=5, generator=g).shape
    torch.Size([5, 2])
    """
    if check_count("refine", "steps", steps, 0) == 0:
        return x
    return sample(energy, kernel, x, steps=steps, keep=False, generator=generator, progress=False).last


def classify(
    model: Any,
    x: Tensor,
    *,
    kernel: Kernel | None = None,
    steps: int = 0,
    draws: int = 1,
    generator: torch.Generator | None = None,
) -> Tensor:
    """p(y|x), `(batch, classes)`, optionally after refining x by a few steps of a kernel on E(x).

    With several `draws` the probabilities of that many refinements of each row are averaged.

    Args:
        model: the joint energy.
        x: `(batch, *event)`.
        kernel, steps: how x is refined before; none by default.
        draws: refinements a row.
        generator: needed where x is refined.

    >>> import gibbsian as gb
    >>> joint = gb.models.JointEnergy(gb.energies.MLP(2, (8,), outputs=3), gb.domains.Real(2))
    >>> classify(joint, torch.zeros(5, 2)).shape
    torch.Size([5, 3])
    """
    check_rows(_joint(model), x)
    steps, draws = check_count("classify", "steps", steps, 0), check_count("classify", "draws", draws)
    if steps and kernel is None:
        raise ArgumentError(f"classify(steps={steps}) needs a kernel, such as kernels.ShortRunLangevin(1.0, 0.01)")

    def probabilities(part: Tensor) -> Tensor:
        if steps and kernel is not None:
            part = refine(model, part, kernel, steps, generator=require_generator(generator, x.device))
        with torch.no_grad():
            return model.class_log_prob(part).exp()

    times = range(draws if steps else 1)
    return torch.cat([torch.stack([probabilities(part) for _ in times]).mean(0) for part in x.split(_BLOCK)])
