"""Which noise goes to which datum: pairs of least transport within a batch.

min over permutations π of Σᵢ ‖x₀_π(i) - x₁ᵢ‖², exactly, or on the device by an entropic plan.
"""

import scipy  # its parts are imported on first use
import torch
from torch import Tensor

PAIRINGS = ("exact", "sinkhorn", "independent")


def transport_costs(x0: Tensor, x1: Tensor) -> Tensor:
    """‖x₀ⱼ - x₁ᵢ‖² as `(data, noise)`, up to terms of i and of j alone, which change no pairing: -2⟨x₁ᵢ - x̄₁, x₀ⱼ - x̄₀⟩."""
    noise, data = (x.detach().flatten(1).to(torch.promote_types(x.dtype, torch.float32)) for x in (x0, x1))
    with torch.autocast(x0.device.type, enabled=False):
        return -2 * (data - data.mean(0)) @ (noise - noise.mean(0)).T


def assigned(x0: Tensor, x1: Tensor) -> Tensor:
    """For every row of x₁ the row of x₀ that the cheapest assignment gives it, each once; the host is needed.

    >>> assigned(torch.tensor([[5.0], [1.0], [3.0]]), torch.tensor([[2.0], [4.0], [9.0]]))
    tensor([1, 2, 0])
    """
    _, rows = scipy.optimize.linear_sum_assignment(transport_costs(x0, x1).cpu().numpy())
    return torch.from_numpy(rows).to(x0.device)


def sinkhorn_rows(
    x0: Tensor, x1: Tensor, generator: torch.Generator, *, entropy: float = 0.05, rounds: int = 50
) -> Tensor:
    """For every row of x₁ a row of x₀ drawn from the entropic plan; nothing waits for the device.

    Every datum is used once, noise as the plan says, nearly so. As `entropy` (in units of the spread of the costs) falls and
    `rounds` grow it becomes the assignment.

    Reference: Cuturi 2013.
    """
    logits = transport_costs(x0, x1)
    logits = logits / -(entropy * logits.std() + torch.finfo(logits.dtype).tiny)
    for _ in range(rounds):
        logits = logits - logits.logsumexp(0)
        logits = logits - logits.logsumexp(1, keepdim=True)
    u = torch.rand(logits.shape, generator=generator, dtype=logits.dtype, device=logits.device)
    return (logits - torch.log(-torch.log(u))).argmax(1)


def paired(how: str, x0: Tensor, x1: Tensor, generator: torch.Generator) -> Tensor:
    """Noise in the order in which it goes with the rows of x₁."""
    if how == "independent" or len(x0) == 1:  # costs of a single pair have no spread
        return x0
    return x0[assigned(x0, x1) if how == "exact" else sinkhorn_rows(x0, x1, generator)]
