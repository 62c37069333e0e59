"""Networks of images: plain convolutions, and residual blocks."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gibbsian.capabilities import Jet
from gibbsian.errors import ArgumentError, check_count
from gibbsian.nets.layers import LayerOptions, Layers, sizes_of
from gibbsian.recorded import Recorded


class ConvNet(Recorded):
    """Convolutions of stride two and a dense head: `(batch, channels, height, width)` → `(batch, outputs)`.

    Args:
        shape: (channels, height, width) of an image.
        channels: of every convolution; each halves the image.
        head: width of the dense layer before the outputs.
        outputs, activation, spectral_norm, generator: as for `MLP`.

    >>> ConvNet((1, 28, 28), outputs=10)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        channels: Sequence[int] = (16, 32, 64, 64),
        head: int = 64,
        outputs: int = 1,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__()
        widths = sizes_of("channels", channels)
        sizes_of("shape, head, outputs", (*shape, head, outputs), 5)
        make = Layers(**options)
        at, height, width = shape
        layers: list[nn.Module] = []
        with make.drawn():
            for i, wide in enumerate(widths):
                layers += [make.conv(at, wide, 5 if i == 0 else 3, stride=2), make.activation()]
                at, height, width = wide, (height + 1) // 2, (width + 1) // 2
            layers += [nn.Flatten(), make.linear(at * height * width, head)]
            layers += [make.activation(), make.linear(head, outputs)]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        first, *rest = self.layers
        if not _patchwise(first, x):
            return self.layers(x)
        x = of_pixels(first, x)
        for layer in rest:
            x = layer(x)
        return x

    def taylor_parts(self) -> tuple[nn.Module, ...]:
        return (self.layers,)

    def taylor(self, jet: Jet, propagate: Callable[[Any, Jet], Jet]) -> Jet:
        return propagate(self.layers, jet)


_FEW = 32  # entries of a patch


def _plain(conv: nn.Conv2d) -> bool:
    """Whether a convolution is one that `conv_by_product` knows: square, over all channels, between zeros, and unhooked."""
    usual = conv.groups == 1 and conv.dilation == (1, 1) and conv.padding_mode == "zeros"
    square = all(pair[0] == pair[1] for pair in (conv.kernel_size, conv.stride, conv.padding))  # nor is padding a word
    return usual and square and not (conv._forward_hooks or conv._forward_pre_hooks)


def _patchwise(conv: nn.Module, x: Tensor) -> bool:
    """Whether a layer is computed as a product of patches."""
    if not (x.is_cuda and torch.compiler.is_compiling() and isinstance(conv, nn.Conv2d)):
        return False
    return conv.weight[0].numel() <= _FEW and _plain(conv)


def of_pixels(conv: Any, x: Tensor) -> Tensor:
    """The first convolution of a network. Images of few channels have no fast convolution on CUDA, and those of one channel, which are
    laid out both ways at once, come out of it the other way than the next ones want them: copies of all that it computes, a sixth of
    the time of a wide network. So where patches can be fused with what comes before it is a product."""
    if not _patchwise(conv, x):
        return conv(x)
    return conv_by_product(x, conv.weight, conv.bias, conv.stride[0], conv.padding[0])


def conv_by_product(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int) -> Tensor:
    """`F.conv2d` as a product of patches and weights; channels come last in what comes out.

    >>> x, w = torch.randn(2, 1, 5, 5), torch.randn(4, 1, 3, 3)
    >>> torch.allclose(conv_by_product(x, w, None, 1, 1), F.conv2d(x, w, padding=1), atol=1e-5)
    True
    """
    n, k = len(x), weight.shape[2]
    x = F.pad(x, [padding] * 4)
    height, width = (side - k + 1 for side in x.shape[2:])
    # few at a time: of more than eight the compiler makes a kernel each
    patches = torch.stack([x[..., j : j + width : stride] for j in range(k)], 2)
    patches = torch.stack([patches[..., i : i + height : stride, :] for i in range(k)], 2)
    height, width = patches.shape[-2:]
    patches = patches.flatten(1, 3).permute(0, 2, 3, 1).flatten(0, 2)
    spare = -patches.shape[1] % 8  # fast products want eights
    out = F.linear(F.pad(patches, (0, spare)), F.pad(weight.flatten(1), (0, spare)), bias)
    return out.view(n, height, width, -1).permute(0, 3, 1, 2)


class _Halve(torch.autograd.Function):
    """Means of 2×2 pixels. Their gradient is the outer one, enlarged: torch's own kernel for it takes ten times as long
    as the memory does, on CUDA with channels last an eighth of all time."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return F.avg_pool2d(x, 2)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Tensor:
        last = (0.25 * outer[0]).permute(0, 2, 3, 1)  # not F.interpolate: autocast would have it in f32
        n, h, w, c = last.shape
        return last[:, :, None, :, None].expand(n, h, 2, w, 2, c).reshape(n, 2 * h, 2 * w, c).permute(0, 3, 1, 2)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Tensor:
        return F.avg_pool2d(tangents[0], 2)


def evened(x: Tensor) -> Tensor:
    """Images with their last row and column twice where there is an odd number of them. Means that end beyond an image
    (`ceil_mode`) would be the same, but torch's compiler (2.13) counts the places that are not there in their gradients."""
    x = torch.cat([x, x[:, :, -1:]], 2) if x.shape[2] % 2 else x
    return torch.cat([x, x[..., -1:]], 3) if x.shape[3] % 2 else x


def halve(x: Tensor) -> Tensor:
    """Images of half the size, by means of 2×2 pixels; odd ones keep half a pixel at the end."""
    x = evened(x)
    return _Halve.apply(x) if x.is_cuda and not torch.compiler.is_compiling() else F.avg_pool2d(x, 2)


def means(x: Tensor) -> Tensor:
    """Means over places, `(batch, channels)`, in single precision at least.

    Of images with channels last over rows of channels: a gradient that is laid out otherwise costs a copy in every layer below.
    """
    places = x.flatten(2)
    dtype = torch.promote_types(x.dtype, torch.float32)
    return places.transpose(1, 2).mean(1, dtype=dtype) if _channels_last(x) else places.mean(2, dtype=dtype)


def _channels_last(x: Tensor) -> bool:
    if torch._C._functorch.is_batchedtensor(x):  # inside vmap nobody can tell
        return False
    return x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()


def _whole(head: Any, x: Tensor, dtype: torch.dtype, places: int = 0) -> Tensor:
    """The last layer with weights in a precision, computed in a whole one: three digits would be all that an energy had. Rows x of
    so many `places`, each with all of its channels, meet weights in that order."""
    half = dtype != torch.promote_types(dtype, torch.float32)
    if not half and not places:
        return head(x)
    weight, bias = head.weight, head.bias
    if places:
        weight = weight.unflatten(1, (-1, places)).transpose(1, 2).flatten(1)
    if half:
        x, weight, bias = x.float(), weight.to(dtype).float(), bias.to(dtype).float()
    with torch.autocast(x.device.type, enabled=False) if half else nullcontext():
        return _by_places(x, weight, bias, places) if x.is_cuda and places else F.linear(x, weight, bias)


def _by_places(x: Tensor, weight: Tensor, bias: Tensor, places: int) -> Tensor:
    """`F.linear` of rows as a sum of products, one a place: one long product with few outputs leaves most of a GPU idle.

    >>> x, w, b = torch.randn(2, 12), torch.randn(3, 12), torch.randn(3)
    >>> torch.allclose(_by_places(x, w, b, 4), F.linear(x, w, b), atol=1e-5)
    True
    """
    x, weight = (t.unflatten(1, (places, -1)).transpose(0, 1) for t in (x, weight))
    return torch.bmm(x, weight.transpose(1, 2)).sum(0) + bias


def _outputs(head: Any, x: Tensor, pool: bool) -> Tensor:
    """The last layer, of means over places or of all of them. Where channels come last they do so in its rows too, and gradients come
    back as images went in."""
    if pool:
        return _whole(head, means(x), x.dtype)
    hooked = head._forward_hooks or head._forward_pre_hooks
    if not _channels_last(x) or not isinstance(head, nn.Linear) or hooked:
        return _whole(head, x.flatten(1), x.dtype)
    return _whole(head, x.permute(0, 2, 3, 1).flatten(1), x.dtype, x[0, 0].numel())


class ResidualBlock(nn.Module):
    """x + conv(φ(conv(φ(x)))), with a linear shortcut where the width or, by a `stride`, the size changes.

    With `after`, φ(x + conv(φ(conv(x)))): the activation comes after the sum.
    With standardized weights x + s·conv(φ(conv(φ(x)))), s = 0 at first: the network begins as a linear one, however deep.
    """

    def __init__(
        self, a: int, b: int, make: Layers, *, standardize: bool = False, stride: int = 1, after: bool = False
    ) -> None:
        super().__init__()
        same = a == b and stride == 1
        self.first, self.second = make.conv(a, b, 3, stride), make.conv(b, b, 3)
        self.shortcut = nn.Identity() if same else make.conv(a, b, 1, stride)
        self.activation, self.after = make.activation(), after
        self.scale: nn.Parameter | None = None
        if standardize:
            self.scale = nn.Parameter(torch.zeros(()))
            self.first, self.second = make.standardized(self.first), make.standardized(self.second)
            self.shortcut = self.shortcut if same else make.standardized(self.shortcut, activated=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.second(self.activation(self.first(x if self.after else self.activation(x))))
        out = self.shortcut(x) + (inner if self.scale is None else self.scale * inner)
        return self.activation(out) if self.after else out


def _stage(before: int, width: int, depth: int, make: Layers, *, standardize: bool, after: bool) -> nn.Sequential:
    """So many blocks of one width, of which the first one changes width and, with `after`, size."""
    first = ResidualBlock(before, width, make, stride=2 if after else 1, standardize=standardize, after=after)
    rest = (ResidualBlock(width, width, make, standardize=standardize, after=after) for _ in range(depth - 1))
    return nn.Sequential(first, *rest)


def _places(shape: tuple[int, int, int], stride: int, stages: int, after: bool) -> int:
    """Pixels that are left of an image after the stages."""
    height, width = ((side - 1) // stride + 1 for side in shape[1:])
    for stage in range(stages):
        if after or (stage and min(height, width) > 1):
            height, width = (height + 1) // 2, (width + 1) // 2
    return height * width


class ResidualNet(Recorded):
    """A residual network without batch norm: `(batch, channels, height, width)` → `(batch, outputs)`.

    Args:
        shape: (channels, height, width) of an image.
        widths: of the stages; the image is halved between them.
        blocks: residual blocks per stage: a number, or one for every stage.
        outputs: 1 for an energy, K for logits.
        stride: of the first convolution. 2 halves the image before the first stage: a quarter of the work, but images
            that are drawn from such a network show its grid.
        pool: average over positions before the outputs. Without, they see where things are, which suits centered images
            such as digits.
        standardize: weights of convolutions as `nets.layers.Standardized` has them, and residual branches that begin at
            zero: for deep or wide networks of color images, with weight decay.
        after: activations after each sum and none at the end, and every stage, the first one too, begins with a block of stride
            two instead of means of pixels: the form of published energies of binary images. A smooth activation halves
            what is small, so the outputs of a new network hardly depend on its inputs.
        activation, spectral_norm, generator: as for `Layers`.

    Reference: He et al. 2016a (activations after the sums), 2016b (before the convolutions); De & Smith 2020 (branches that
    begin at zero).

    >>> ResidualNet((3, 8, 8), widths=(8, 16), outputs=10)(torch.zeros(2, 3, 8, 8)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        widths: Sequence[int] = (64, 128, 128),
        blocks: int | Sequence[int] = 2,
        outputs: int = 1,
        *,
        stride: int = 1,
        pool: bool = True,
        standardize: bool = False,
        after: bool = False,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__()
        wide = sizes_of("widths", widths)
        sizes_of("shape, outputs", (*shape, outputs), 4)
        depths = sizes_of("blocks", [blocks] * len(wide) if isinstance(blocks, int) else blocks, len(wide))
        if stride not in (1, 2):
            raise ArgumentError(f"ResidualNet(stride={stride!r}): 1 or 2")
        make = Layers(**options)
        how: dict[str, bool] = {"standardize": standardize, "after": after}
        with make.drawn():
            self.stem = make.conv(shape[0], wide[0], 3 if stride == 1 else 5, stride)
            self.stem = make.standardized(self.stem, activated=False) if standardize else self.stem
            inputs = (wide[0], *wide[:-1])
            stages = [_stage(*sizes, make, **how) for sizes in zip(inputs, wide, depths, strict=True)]
            places = 1 if pool else _places(shape, stride, len(stages), after)
            self.head = make.linear(wide[-1] * places, outputs)
        self.stages = nn.ModuleList(stages)
        self.activation, self.pool, self.after = nn.Identity() if after else make.activation(), pool, after

    def forward(self, x: Tensor) -> Tensor:
        x = of_pixels(self.stem, x)
        for i, stage in enumerate(self.stages):
            x = stage(halve(x) if i and not self.after and min(x.shape[2:]) > 1 else x)
        x = self.activation(x)
        return _outputs(self.head, x, self.pool)


class WideResidualNet(ResidualNet):
    """A wide residual network without batch norm: three stages of widths 16k, 32k and 64k, (depth - 4)/6 blocks each.

    WRN-28-10 is the classifier that joint energy models were first shown with; WRN-10-2 or WRN-16-2 suit 28×28
    images. Without batch norm, because an energy belongs to one x.

    Reference: Zagoruyko & Komodakis 2016.

    Args:
        shape: (channels, height, width) of an image.
        depth: 6n + 4, n blocks a stage (the 4 are the stem and the shortcuts).
        factor: k, how much wider than the thin network.
        outputs, pool, standardize, activation, spectral_norm, generator: as for `ResidualNet`.

    >>> WideResidualNet((1, 8, 8), depth=10, factor=1, outputs=10)(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        depth: int = 16,
        factor: int = 2,
        outputs: int = 1,
        *,
        pool: bool = True,
        standardize: bool = False,
        **options: Unpack[LayerOptions],
    ) -> None:
        sizes_of("factor", (factor,))
        depth = check_count(self, "depth", depth, 10)
        if (depth - 4) % 6:
            raise ArgumentError(f"WideResidualNet(depth={depth!r}): the depth is 6n + 4: 10, 16, 22, 28, ...")
        widths = (16 * factor, 32 * factor, 64 * factor)
        super().__init__(shape, widths, (depth - 4) // 6, outputs, pool=pool, standardize=standardize, **options)
