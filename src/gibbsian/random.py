"""Randomness is an argument: named streams from one seed, and draws that do not depend on how they are cut.

Nothing in gibbsian reads or moves the global random state.
"""

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gibbsian.errors import RandomnessError, check_count

__all__ = [
    "QuickSeed",
    "check_draws",
    "isolated",
    "normals",
    "normals_like",
    "quick_uniforms",
    "require_generator",
    "stream",
    "uniforms",
]

_LANE = 16  # torch draws CPU normals in groups of 16: rows of a multiple of 16 do not depend on the cut


def stream(seed: int, name: str, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator for the consumer `name`, derived from `seed`.

    Two names give independent streams, so adding a consumer shifts nobody else's numbers.

    >>> a, b = stream(0, "data"), stream(0, "chains")
    >>> bool(torch.rand(1, generator=a) == torch.rand(1, generator=b))
    False
    """
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator(device=device).manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def require_generator(generator: torch.Generator | None, device: torch.device | None = None) -> torch.Generator:
    """Check that a generator was given and that it lives where the numbers are needed, if that matters."""
    if generator is None:
        raise RandomnessError(
            "no generator was given, and gibbsian never uses the global random state; "
            "pass generator=torch.Generator().manual_seed(0), or gibbsian.random.stream(seed, name)"
        )
    if not isinstance(generator, torch.Generator):
        raise RandomnessError(
            f"generator is a {type(generator).__name__}, expected a torch.Generator; "
            "make one with torch.Generator().manual_seed(seed)"
        )
    if device is not None and generator.device.type != device.type:
        raise RandomnessError(
            f"the generator lives on {generator.device} but the tensors on {device}; "
            f"make it with torch.Generator({device.type!r})"
        )
    return generator


def check_draws(n: int, generator: torch.Generator | None, device: torch.device | None = None) -> int:
    """The number of draws that is asked for, a whole one from 1 on, once the generator fits too."""
    require_generator(generator, device)
    return check_count("sample", "n", n)


@contextmanager
def isolated(generator: torch.Generator) -> Iterator[None]:
    """Run code that knows only the global random state (layer constructors, distributions) from a generator.

    Inside, the global state of the CPU and of the generator's device is seeded from the generator; afterwards
    it is what it was before.

    >>> before = torch.get_rng_state()
    >>> with isolated(torch.Generator().manual_seed(0)):
    ...     layer = torch.nn.Linear(3, 3)
    >>> torch.equal(before, torch.get_rng_state())
    True
    """
    device = require_generator(generator).device
    seed = int(torch.randint(1 << 62, (), generator=generator, device=device))
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.random.default_generator.manual_seed(seed)  # torch.manual_seed would touch every device
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


def normals_like(like: Tensor, *shape: int, generator: torch.Generator) -> Tensor:
    """Standard normals in the precision and on the device of a tensor, where the generator must live too."""
    require_generator(generator, like.device)
    return torch.randn(shape, generator=generator, dtype=like.dtype, device=like.device)


def _rows(steps: int, count: int) -> tuple[int, int]:
    return steps, math.ceil(count / _LANE) * _LANE


def normals(steps: int, count: int, generator: torch.Generator, *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Standard normals of shape (steps, count): on the CPU any cut along `steps` gives the same numbers.

    >>> g = torch.Generator().manual_seed(0)
    >>> whole = normals(3, 5, g, dtype=torch.float32, device=torch.device("cpu"))
    >>> g = torch.Generator().manual_seed(0)
    >>> parts = [normals(k, 5, g, dtype=torch.float32, device=torch.device("cpu")) for k in (1, 2)]
    >>> torch.equal(whole, torch.cat(parts))
    True
    """
    return torch.randn(_rows(steps, count), generator=generator, dtype=dtype, device=device)[:, :count]


def uniforms(steps: int, count: int, generator: torch.Generator, *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Uniforms on [0, 1) of shape (steps, count): on the CPU any cut along `steps` gives the same numbers."""
    return torch.rand(_rows(steps, count), generator=generator, dtype=dtype, device=device)[:, :count]


class QuickSeed(NamedTuple):
    """Where a call of `quick_uniforms` begins: a seed of SFC64, and ½ with the last bits that all its numbers share."""

    value: int
    middle: float

    @classmethod
    def of(cls, generator: torch.Generator) -> "QuickSeed":
        """The next one of a generator."""
        value, last = divmod(int(torch.randint(1 << 62, (), generator=generator)), 256)
        return cls(value, 0.5 + last * 2.0**-24)


def quick_uniforms(count: int, generator: torch.Generator, *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Uniforms on [0, 1), `(count,)`, to be compared with probabilities; on the CPU a third of the cost of `torch.rand`.

    There the generator seeds a small fast one (SFC64), which gives every number its leading 16 bits; the 8 bits after
    them, of the grid of 2⁻²⁴ that `torch.rand` has, are drawn once for the call. Whether u < p is independent for two
    numbers but for an event of probability 2⁻³². Where numbers themselves are used, or must not depend on the cut,
    take `uniforms`.

    >>> g = torch.Generator().manual_seed(0)
    >>> u = quick_uniforms(10000, g, dtype=torch.float32, device=torch.device("cpu"))
    >>> bool(u.min() >= 0) and bool(u.max() < 1), round(float(u.mean()), 1)
    (True, 0.5)
    """
    if dtype != torch.float32 or device.type != "cpu":
        return torch.rand(count, generator=generator, dtype=dtype, device=device)
    seed = QuickSeed.of(generator)
    leading = np.random.SFC64(seed.value).random_raw((count + 3) // 4).view(np.int16)
    u = torch.from_numpy(leading)[:count].to(dtype)
    return torch.add(torch.tensor(seed.middle), u, alpha=2.0**-16, out=u)  # exact but for one rounding
