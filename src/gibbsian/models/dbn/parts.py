"""Parts of deep belief networks on their own: the RBM of two neighboring layers, where it starts, and the classifier."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gibbsian.domains import Domain
from gibbsian.models.dbn.directed import Directed, Upward
from gibbsian.models.joint import JointEnergy
from gibbsian.models.rbm.machine import RBM
from gibbsian.random import stream
from gibbsian.units import Bernoulli, Unit


def machine_of(layers: Sequence[Directed], top: RBM, stage: int) -> RBM:
    """The RBM of two neighboring layers, with the network's own parameters: G, g and r of a directed layer."""
    if stage == len(layers):
        return top
    layer = layers[stage]
    machine = RBM(layer.lower, layer.upper)
    machine.visible, machine.hidden = layer.lower, layer.upper
    machine.weight, machine.visible_bias, machine.hidden_bias = layer.weight, layer.bias, layer.recognition_bias
    return machine


def can_tie(below: Unit, above: Unit) -> bool:
    """Does the hidden layer of a machine repeat the kind of the layer two below it, with room for its units?"""
    room = above.size == below.size or (above.size > below.size and isinstance(above, Bernoulli))
    return type(above) is type(below) and room and not below.real


def tie(machine: RBM, below: Directed) -> None:
    """Turn the RBM below over: W = W_belowᵀ, b = c_below, c = b_below.

    Further hidden units keep small weights, with their mean input at first, ½Σw, taken out of the visible bias, so
    that the law changes to second order only. Label weights start at 0, where labels change nothing.
    """
    n, skip = below.lower.size, machine.visible.size - below.upper.size
    machine.weight[:skip] = 0
    machine.weight[skip:, :n] = below.weight.T
    machine.hidden_bias.zero_()
    machine.hidden_bias[:n] = below.bias
    machine.visible_bias.zero_()
    machine.visible_bias[skip:] = below.recognition_bias
    machine.visible_bias.sub_(0.5 * machine.weight[:, n:].sum(1))


def classifier_of(
    layers: Sequence[Directed], top: RBM, labels: int, classes: int, domain: Domain, generator: torch.Generator | None
) -> JointEnergy:
    """A feed-forward network of the means of every hidden layer and one linear layer of logits; the first `labels`
    visible units of the top machine, where there are any, are those of the label."""
    generator = stream(0, "init") if generator is None else generator
    label, rest = top.weight[:labels], top.weight[labels:]
    ups = [Upward(layer.lower, layer.upper) for layer in layers]
    ups.append(Upward(layers[-1].upper, top.hidden))
    last = nn.utils.skip_init(nn.Linear, top.hidden.size, classes)
    weights: list[tuple[Tensor, Tensor]] = [(la.recognition_weight, la.recognition_bias) for la in layers]
    weights.append((rest, top.hidden_bias))
    with torch.no_grad():
        for up, (weight, bias) in zip(ups, weights, strict=True):
            up.weight.copy_(weight)
            up.bias.copy_(bias)
        if not labels:
            nn.init.normal_(last.weight, 0.0, 0.01, generator=generator)
            nn.init.zeros_(last.bias)
        else:
            ups[-1].bias.add_(label.mean(0))  # an undecided label
            last.weight.copy_(label)
            last.bias.copy_(top.visible_bias[:classes])
    flat = [nn.Flatten()] if len(top.hidden.domain.shape) > 1 else []
    return JointEnergy(nn.Sequential(*ups, *flat, last).to(top.weight), domain)
