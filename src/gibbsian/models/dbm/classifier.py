"""A feed-forward classifier that starts as a deep Boltzmann machine."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from gibbsian.capabilities import Filters
from gibbsian.domains import Box
from gibbsian.errors import ArgumentError, check_count
from gibbsian.models.dbm.infer import statistic
from gibbsian.models.dbm.machine import DBM
from gibbsian.models.joint import JointEnergy
from gibbsian.placement import explained
from gibbsian.random import stream
from gibbsian.recorded import Recorded
from gibbsian.units import Bernoulli

Drop = Callable[[Tensor, bool], Tensor]  # of values, and whether they are inputs


class DBMNetwork(Recorded):
    """Logits `(batch, classes)`: the layers of a `DBM` upwards, each inner one with its posterior from above as input.

        hˡ = mean(cˡ + h^{l-1}Wˡ + q(h^{l+1}|v)Uˡ),   U = W^{l+1}ᵀ at first,   logits = h^L V + d

    q(h|v) are mean-field posteriors of the machine as it was, which stays fixed. All else is trained, so at first a
    pass upwards is one more mean-field iteration.
    """

    weights: nn.ParameterList
    above: nn.ParameterList
    biases: nn.ParameterList

    def __init__(
        self, dbm: DBM, classes: int, iterations: int = 10, *, generator: torch.Generator | None = None
    ) -> None:
        if not isinstance(dbm, DBM):
            raise ArgumentError(f"a classifier starts from a DBM, got {dbm!r}")
        check_count(self, "classes", classes, 2)
        check_count(self, "iterations", iterations)
        super().__init__()
        self.classes, self.iterations = classes, iterations
        self.dbm = copy.deepcopy(dbm).requires_grad_(False)
        like = dbm.weights[0].detach()
        generator = stream(0, "init", like.device) if generator is None else generator
        read_out = torch.randn(dbm.layers[-1].size, classes, generator=generator, device=generator.device).to(like)
        self.weights = nn.ParameterList([w.detach().clone() for w in dbm.weights])
        self.above = nn.ParameterList([w.detach().T.clone() for w in list(dbm.weights)[1:]])
        self.biases = nn.ParameterList([b.detach().clone() for b in list(dbm.biases)[1:]])
        self.read_out = nn.Parameter(0.01 * read_out)
        self.read_out_bias = nn.Parameter(like.new_zeros(classes))

    def forward(self, x: Tensor, drop: Drop | None = None) -> Tensor:
        units = list(self.dbm.layers)
        posterior = self.dbm.infer(x, iterations=self.iterations, tolerance=None)
        seen = units[0].statistic(x)
        seen = seen if drop is None else drop(seen, True)
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            natural = torch.addmm(bias, seen, weight)
            if i < len(self.above):
                q = statistic(units[i + 2], posterior.naturals[i + 1])
                natural = torch.addmm(natural, q if drop is None else drop(q, True), self.above[i])
            seen = statistic(units[i + 1], natural)
            seen = seen if drop is None else drop(seen, False)
        return torch.addmm(self.read_out_bias, seen, self.read_out)


class DBMClassifier(JointEnergy):
    """p(y|v) by a network that starts as a `DBM` and is trained by `objectives.CrossEntropy` (or `DropoutCrossEntropy`).

    The first layer sees the data and the mean-field posterior of the second layer, so that the network knows what the
    machine has inferred from above as well (`DBMNetwork`). Gray values in [0, 1] are allowed for Bernoulli units. Use
    small rates: the machine already knows the data, the labels only have to name its states.

    Reference: Salakhutdinov & Hinton 2009, section 3.3.

    Args:
        dbm: a trained machine; the classifier keeps copies.
        classes: how many.
        iterations: of mean field.
        generator: for the initial read-out, N(0, 0.01²); a fixed seed where it is left out.

    >>> import gibbsian as gb
    >>> classifier = DBMClassifier(gb.models.DBM(6, 4, 3), classes=2)
    >>> classifier.class_log_prob(torch.full((5, 6), 0.3)).shape
    torch.Size([5, 2])
    """

    net: DBMNetwork

    def __init__(
        self, dbm: DBM, classes: int, iterations: int = 10, *, generator: torch.Generator | None = None
    ) -> None:
        net = DBMNetwork(dbm, classes, iterations, generator=generator)
        domain = Box(dbm.domain.shape, 0.0, 1.0) if isinstance(dbm.layers[0], Bernoulli) else dbm.domain
        super().__init__(net, domain)

    def filters(self) -> Filters:
        """What each unit of the first hidden layer looks for."""
        return Filters(self.net.weights[0], "Filters of the first layer")

    @explained
    def class_log_prob(self, x: Tensor, drop: Drop | None = None) -> Tensor:
        """log p(y|v), `(batch, classes)`; `drop(values, inputs)` may blank out inputs and hidden units on the way."""
        return torch.log_softmax(self.net(x, drop), 1)

    def dropping(self, drop: Drop) -> "DroppingClassifier":
        """The classifier with `drop` on the way, whatever x is."""
        return DroppingClassifier(self, drop)


class DroppingClassifier:
    """A classifier whose units are dropped."""

    def __init__(self, classifier: DBMClassifier, drop: Drop) -> None:
        self.classifier, self.drop, self.domain = classifier, drop, classifier.domain

    def class_log_prob(self, x: Tensor) -> Tensor:
        """log p(y|v), `(batch, classes)`."""
        return self.classifier.class_log_prob(x, self.drop)
