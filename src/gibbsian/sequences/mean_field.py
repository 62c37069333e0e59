"""Mean-field inference: couplings from the inverse covariance of a family."""

import torch

from gibbsian.errors import CapabilityError
from gibbsian.models import Potts
from gibbsian.sequences.family import Family


def fit_mean_field(family: Family, pseudocount: float, device: str | torch.device = "cpu") -> Potts:
    """J = -C⁻¹ off the diagonal, over all states but the last, which is the reference; h from the profile."""
    single, c = family.frequencies(pseudocount, device=device)
    sites, q = single.shape
    c -= single[:, :, None, None] * single
    c = c[:, :-1, :, :-1].reshape(sites * (q - 1), -1)
    try:
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(c))  # in half of the time of `inv`
    except torch.linalg.LinAlgError as error:
        raise CapabilityError(
            f"the covariance of the family cannot be inverted ({error}); use a pseudocount above 0, such as 0.5"
        ) from error
    j = inverse.neg_().reshape(sites, q - 1, sites, q - 1)
    j.diagonal(dim1=0, dim2=2).zero_()
    h = (single / single[:, -1:]).log()
    h[:, :-1] -= (j.reshape(len(c), -1) @ single[:, :-1].flatten()).reshape(sites, q - 1)
    potts = Potts(sites, q).to(device).requires_grad_(False)
    potts.field.copy_(h)
    potts.coupling.zero_()
    potts.coupling[:, :-1, :, :-1] = j
    potts.coupling.copy_(potts.symmetric())
    return potts
