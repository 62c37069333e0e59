"""The temporal RBM: a machine over the next frame of a sequence, whose biases follow the frames before it."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gibbsian.errors import ArgumentError, CapabilityError, DataError, ShapeError, check_count
from gibbsian.models.annealing import small_weights
from gibbsian.models.conditional import ConditionalMachine, Phase, Terms, difference
from gibbsian.random import require_generator
from gibbsian.units import Gaussian, Unit, layer_noise


class TemporalRBM(ConditionalMachine):
    """Conditional RBM over a frame v given the `order` frames u before it.

        b(u) = b + uA,   c(u) = c + uB,   then an RBM: F(v | u) = E_v(v; b(u)) - Σⱼ softplus(cⱼ(u) + (φ(v)W)ⱼ)

    The past only shifts biases, so learning is that of an RBM with u held in both phases, and there is one
    partition function per past. A alone is a linear autoregression (logistic for binary frames); the hidden
    units, shared by past and present, say where the future is not one linear function of the past. With order
    0 it is an RBM. For long memory use a recurrent network instead.

    Train it on windows or on whole sequences with `objectives.Conditional`; `generate` goes forward in time,
    `predict` gives E[v | u], `partition.conditional_log_likelihood(model.given(u), v)` the likelihood a frame.

    Reference: Taylor, Hinton & Roweis 2007.

    Args:
        visible: a number of Bernoulli units, or one of `gibbsian.units` (not counts): the frame.
        hidden: a number of Bernoulli units, or units of a finite kind.
        order: frames of the past that are seen.
        generator: for the initial weights, N(0, 0.01²); a fixed seed where it is left out. A and B start at 0.

    Attributes:
        weight: W `(visible.size, hidden.size)`; visible_bias b, hidden_bias c; past_visible: A
            `(order · visible.size, visible.size)`; past_hidden: B `(order · visible.size, hidden.size)`. The
            oldest frame comes first.

    >>> g = torch.Generator().manual_seed(0)
    >>> model = TemporalRBM(visible=4, hidden=3, order=2)
    >>> past = torch.zeros(5, 2, 4)
    >>> model.given(past)(torch.zeros(5, 4)).shape, model.generate(past, steps=7, generator=g).shape
    (torch.Size([5]), torch.Size([5, 7, 4]))
    """

    def __init__(
        self, visible: int | Unit, hidden: int | Unit, order: int, *, generator: torch.Generator | None = None
    ) -> None:
        check_count(self, "order", order, 0)
        super().__init__(visible, hidden)
        self.order = order
        v, h = self.visible.size, self.hidden.size
        weight = small_weights(v, h, generator=generator)
        self.weight = nn.Parameter(weight)
        self.visible_bias = nn.Parameter(weight.new_zeros(v))
        self.hidden_bias = nn.Parameter(weight.new_zeros(h))
        self.past_visible = nn.Parameter(weight.new_zeros(order * v, v))
        self.past_hidden = nn.Parameter(weight.new_zeros(order * v, h))

    # --- the input ----------------------------------------------------------------------------------

    @property
    def past_shape(self) -> tuple[int, ...]:
        """The shape of one past: (order, *event)."""
        return (self.order, *self.domain.shape)

    def check_condition(self, condition: Tensor) -> Tensor:
        self._check_floating(condition, self.domain.shape[-1], "past")
        shape = self.past_shape
        if tuple(condition.shape[-len(shape) :]) != shape or condition.dim() > len(shape) + 1:
            raise ShapeError(f"past has shape {tuple(condition.shape)}, expected {shape} or (rows, *{shape})")
        return condition[None] if condition.dim() == len(shape) else condition

    def terms(self, condition: Tensor) -> Terms:
        u = condition.flatten(1)
        return torch.addmm(self.visible_bias, u, self.past_visible), torch.addmm(self.hidden_bias, u, self.past_hidden)

    def up(self, statistic: Tensor, terms: Terms) -> Tensor:
        return statistic @ self.weight

    def down(self, statistic: Tensor, terms: Terms) -> Tensor:
        return statistic @ self.weight.T

    def logits(self, statistic: Tensor, terms: Terms) -> tuple[Tensor, tuple[Tensor, ...]]:
        return torch.addmm(terms[1], statistic, self.weight), ()

    def contrast_gradients(
        self, condition: Tensor, terms: Terms, data: Phase, samples: Phase, to_visible: Tensor, to_hidden: Tensor
    ) -> list[tuple[Tensor, Tensor]]:
        past = condition.flatten(1).T
        return [
            (self.weight, difference((data.statistic, data.mean), (samples.statistic, samples.mean))),
            (self.past_visible, past @ to_visible),
            (self.past_hidden, past @ to_hidden),
            (self.visible_bias, to_visible.sum(0)),
            (self.hidden_bias, to_hidden.sum(0)),
        ]

    def forward(self, x: Tensor) -> Tensor:
        """Without a past (order 0) the free energy of the frame alone; otherwise refused."""
        if self.order:
            return super().forward(x)
        return self.given(x.new_zeros(len(x), *self.past_shape))(x)

    def windows(self, sequences: "Tensor | Sequence[Tensor]") -> tuple[Tensor, Tensor]:
        """Every frame with its past: `(frames, order, *event)` and `(frames, *event)`.

        Args:
            sequences: a tensor `(sequences, time, *event)`, or a list of `(time, *event)` of any lengths above `order`.
        """
        length = self.order + 1
        each = sequences.unbind(0) if isinstance(sequences, Tensor) else list(sequences)
        event = tuple(self.domain.shape)
        if not each or any(tuple(part.shape[1:]) != event or len(part) < length for part in each):
            got = [tuple(part.shape) for part in each[:3]]
            raise DataError(
                f"sequences have shapes {got}, expected (time, *{event}) with more than {self.order} frames each"
            )
        whole = torch.cat([part.unfold(0, length, 1).movedim(-1, 1) for part in each])
        return whole[:, :-1], whole[:, -1]

    def split(self, batch: "Tensor | Sequence[Tensor]") -> tuple[Tensor, Tensor]:
        """(past, frame) pairs as they are; a tensor of sequences `(batch, time, *event)` becomes its windows."""
        return self.windows(batch) if isinstance(batch, Tensor) else super().split(batch)

    def initialize_past(self, past: Tensor, frame: Tensor, *, ridge: float = 1.0) -> None:
        """Set A and b to the ridge regression of frames on their pasts, and σ to what it leaves: Gaussian frames only.

        The machine then begins as the linear autoregression that it should improve on; hidden units start at
        once to learn what that misses.

        Args:
            past, frame: as `windows` makes them.
            ridge: times the squared size of A, added to the sum of squared errors.
        """
        if not isinstance(self.visible, Gaussian):
            raise CapabilityError(
                f"initialize_past regresses real frames, and these are {type(self.visible).__name__}; use "
                "initialize_visible_bias and learn A"
            )
        self.domain.check(frame, "frame")
        u, v = self.check_condition(past).flatten(1).double(), frame.double()
        if not ridge > 0 or len(v) < 2:
            raise ArgumentError(f"initialize_past(ridge={ridge}) with {len(v)} frames: needs ridge > 0 and two frames")
        mean_u, mean_v = u.mean(0), v.mean(0)
        u, v = u - mean_u, v - mean_v
        a = torch.linalg.solve(u.T @ u + ridge * torch.eye(u.shape[1], dtype=u.dtype, device=u.device), u.T @ v)
        left = (v - u @ a).square().mean(0).sqrt()
        with torch.no_grad():
            self.past_visible.copy_(a)
            self.visible_bias.copy_(mean_v - mean_u @ a)
            self.visible.log_sigma.copy_(left.clamp_min(torch.finfo(frame.dtype).eps).log())

    # --- forward in time ----------------------------------------------------------------------------

    def predict(self, past: Tensor, *, chains: int = 10, sweeps: int = 20, generator: torch.Generator) -> Tensor:
        """E[v | u]: the mean of E[v | h, u] over the second half of Gibbs chains that start at the mean-field
        solution, `(rows, *event)`. The best guess by squared error, as far as the chains mix; with few hidden
        units `given(past).exact_mean()` needs none."""
        require_generator(generator, self.weight.device)
        chains, sweeps = check_count("predict", "chains", chains), check_count("predict", "sweeps", sweeps)
        with torch.no_grad():
            one = self.given(past)
            every, n = one.repeated(chains), len(one.condition)
            v = one.mean_field()[0].repeat(chains, *[1] * len(self.domain.shape))
            total = torch.zeros_like(v)
            noise = every.gibbs_noise(v, 1, generator)
            terms = tuple(part[0] for part in noise[2:])
            for sweep in range(sweeps):
                up, down = (part[0] for part in layer_noise([self.hidden, self.visible], v, 1, generator))
                natural = every.visible_natural(self.hidden.sample(every.hidden_natural(v, *terms), up), *terms)
                v = self.visible.sample(natural, down)
                if sweep >= sweeps // 2:
                    total += self.visible.mean(natural)
            return (total / (sweeps - sweeps // 2)).reshape(chains, n, *self.domain.shape).mean(0)

    def generate(
        self, past: Tensor, steps: int, *, sweeps: int | None = 30, mean: bool = False, generator: torch.Generator
    ) -> Tensor:
        """`steps` further frames `(rows, steps, *event)`, each drawn given those before it.

        Args:
            past: where to begin, `(order, *event)` or one a row.
            steps: frames to draw.
            sweeps: Gibbs sweeps a frame, from the frame before it (from the mean field where order is 0); None for
                exact draws, with up to twelve hidden units.
            mean: keep E[v | E[h | v, u], u] instead of v itself: smoother, less noise than the law has.
            generator: required.
        """
        require_generator(generator, self.weight.device)
        steps = check_count("generate", "steps", steps)
        if sweeps is not None:
            sweeps = check_count("generate", "sweeps", sweeps)
        u = self.check_condition(past)
        frames: list[Tensor] = []
        with torch.no_grad():
            for _ in range(steps):
                given = self.given(u)
                v = u[:, -1] if self.order else given.mean_field()[0]
                if sweeps is None:
                    v = given.exact_sample(generator=generator)
                else:
                    for one in zip(*given.gibbs_noise(v, sweeps, generator), strict=True):
                        v = given.gibbs_sweep(v, one)
                frames.append(given.reconstruct(v) if mean else v)
                u = torch.cat([u, frames[-1][:, None]], 1)[:, 1:] if self.order else u
        return torch.stack(frames, 1)

    def extra_repr(self) -> str:
        return f"order={self.order}"
