"""The features that published FID and KID are of, for who has their weights."""

import math
import pickle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gibbsian.errors import ArgumentError, CapabilityError, DataError, ShapeError, check_number

LAYERS = (64, 192, 768, 2048)
_BEYOND = 0.25  # of the range from black to white, that draws may leave it by: more is another range


class Inception(nn.Module):
    """Features of the Inception network of 2015, of images as models have them: `fid(real, fake, Inception(weights))`.

    The network is torch-fidelity's (`pip install torch-fidelity`), which torchmetrics has too: images are resized to 299×299 as in
    the program that published figures come from. Nothing is fetched: `weights` is its file weights-inception-2015-12-05-6726825d.pth,
    which has to hold tensors alone. Values from `low` to `high` become bytes, as where pictures are saved: rounded, and cut off
    beyond. Figures are comparable with published ones for as many draws (50000 as a rule) and the same reference rows. For other
    pictures than photographs, such as digits, features of a classifier of these say more.

    Reference: Szegedy et al. 2016; Heusel et al. 2017; Obukhov et al. 2020 (torch-fidelity).

    Args:
        weights: the file.
        low, high: the values of black and of white; rows of bytes are taken as they are.
        layer: the number of features, by which torch-fidelity calls its layers: 64, 192, 768 or 2048.
    """

    def __init__(self, weights: str | Path, *, low: float = 0.0, high: float = 1.0, layer: int = 2048) -> None:
        super().__init__()
        check_number(self, "low", low, -math.inf)
        check_number(self, "high", high, low, open_low=True)
        if layer not in LAYERS:
            raise ArgumentError(f"Inception(layer={layer!r}): layer must be one of {', '.join(map(str, LAYERS))}")
        self.low, self.high = float(low), float(high)
        self.network = _network(Path(weights), layer)
        self.train(False)

    def train(self, mode: bool = True) -> "Inception":
        """It is never trained: normalization keeps its statistics."""
        return super().train(False)

    def forward(self, x: Tensor) -> Tensor:
        (features,) = self.network(self.as_bytes(x))
        return features

    def as_bytes(self, x: Tensor) -> Tensor:
        """Images `(n, 1 or 3, height, width)` as bytes of three colors."""
        if x.dim() != 4 or x.shape[1] not in (1, 3):
            raise ShapeError(f"Inception takes images (n, 1 or 3, height, width), got {tuple(x.shape)}")
        x = x.expand(-1, 3, -1, -1)
        if x.dtype == torch.uint8:
            return x
        least, most = float(x.min()), float(x.max())
        room = _BEYOND * (self.high - self.low)
        if not (least >= self.low - room and most <= self.high + room):
            raise DataError(
                f"values of the images run from {least:g} to {most:g}, and Inception(low={self.low:g}, high={self.high:g}) takes others; "
                "say by low and high which values are black and white"
            )
        return ((x - self.low) * (255 / (self.high - self.low))).round().clamp(0, 255).to(torch.uint8)


def _network(weights: Path, layer: int) -> Any:
    try:
        from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3
    except ImportError as error:
        raise CapabilityError(
            f"Inception needs the package torch-fidelity ({error}): pip install torch-fidelity"
        ) from error
    if not weights.is_file():
        raise DataError(
            f"{weights} is no file; fetch weights-inception-2015-12-05-6726825d.pth, which torch-fidelity names, by hand"
        )
    try:
        torch.load(weights, map_location="cpu", weights_only=True)  # the package itself would run what a pickle says
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise DataError(
            f"{weights} is no file of weights, or holds more than tensors; it is not read further"
        ) from error
    try:
        return FeatureExtractorInceptionV3("inception", [str(layer)], feature_extractor_weights_path=str(weights))
    except (RuntimeError, TypeError, AttributeError) as error:
        raise DataError(f"{weights} holds other weights than those of torch-fidelity's Inception") from error
