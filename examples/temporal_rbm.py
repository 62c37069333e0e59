"""A temporal RBM on folk tunes: what comes next, how likely it is, and tunes of its own.

    python examples/temporal_rbm.py PATH/TO/Nottingham.mat [--out out/temporal_rbm]

About six minutes on one core. Piano rolls (Boulanger-Lewandowski et al. 2012; `traindata`, `validdata`,
`testdata` of the file), each frame given the four before it. With eight hidden units everything is exact: training by
maximum likelihood, E[v | u], the log-likelihood a frame, draws. Compared with ridge regression on the same past, its
penalty tuned on the validation set, and with the last frame again. During training the past is lightly corrupted, so
that the machine has seen pasts with wrong notes in them before it must go on from its own.
"""

import argparse
import os
import time
from pathlib import Path

os.environ.setdefault("MPLBACKEND", "Agg")

import matplotlib.pyplot as plt
import torch
from scipy.io import loadmat
from torch import Tensor

import gibbsian as gb
from gibbsian import models, objectives, partition

ORDER, HIDDEN = 4, 8


def read(path: Path) -> list[list[Tensor]]:
    """Sequences `(time, keys)` of 0 and 1 for training, validation and test: the keys that sound in at least one of a
    thousand frames of the training set. Of the others nothing can be learned, not even that they should stop."""
    file = loadmat(path)
    parts = ([torch.as_tensor(roll, dtype=torch.float32) for roll in file[name].flat]
             for name in ("traindata", "validdata", "testdata"))  # fmt: skip
    sets = [[roll for roll in part if len(roll) > ORDER] for part in parts]
    used = torch.cat(sets[0]).mean(0) >= 0.001
    return [[roll[:, used] for roll in part] for part in sets]


class Ridge:
    """Linear autoregression with an unpenalized constant."""

    def __init__(self, past: Tensor, frame: Tensor, penalty: float) -> None:
        u = self._design(past)
        square = penalty * torch.eye(u.shape[1], dtype=torch.float64)
        square[-1, -1] = 0
        self.weights = torch.linalg.solve((u.T @ u).double() + square, (u.T @ frame).double()).float()

    @staticmethod
    def _design(past: Tensor) -> Tensor:
        return torch.cat([past.flatten(1), torch.ones(len(past), 1)], 1)

    def __call__(self, past: Tensor) -> Tensor:
        return self._design(past) @ self.weights


def corrupted(batch: tuple[Tensor, Tensor], g: torch.Generator) -> tuple[Tensor, Tensor]:
    """Pasts with the errors that a machine makes when it goes on from its own frames: one note in fifty missing, one
    silent key in five hundred sounding; and in one past of seven, from some frame on, clusters of neighboring keys or
    notes of another tune. Otherwise nothing says that what is out of place should fall silent again."""
    past, frame = batch
    (n, order, keys), u = past.shape, torch.rand(past.shape, generator=g)
    wrong = torch.where(past > 0, u > 0.02, u < 0.002).to(past.dtype)
    near = (torch.arange(keys) - torch.randint(keys, (n, 1, 1), generator=g)).abs() < 6
    cluster = near & (torch.rand(n, 1, keys, generator=g) < 0.8 * torch.rand(n, 1, 1, generator=g))
    tune = (wrong[torch.randperm(n, generator=g)] > 0) & (torch.rand(n, 1, keys, generator=g) < 0.5)
    extra = torch.where(torch.rand(n, 1, 1, generator=g) < 0.5, cluster, tune)
    extra = extra & (torch.arange(order)[:, None] >= torch.randint(order, (n, 1, 1), generator=g))
    extra = extra & (torch.rand(n, 1, 1, generator=g) < 1 / 7)
    return torch.maximum(wrong, extra.to(past.dtype)), frame


def train(rolls: list[Tensor], updates: int) -> models.TemporalRBM:
    model = models.TemporalRBM(rolls[0].shape[1], HIDDEN, ORDER)
    data = model.windows(rolls)
    model.initialize_visible_bias(data[1])
    names = ("weight", "past_visible", "past_hidden")
    parts = [objectives.ExactLikelihood(), objectives.WeightDecay(1e-5, names=names)]
    objective = objectives.Conditional(objectives.Weighted(parts))
    gb.fit(model, objective, data, steps=updates, batch_size=100, lr=0.01, schedule="linear", transform=corrupted)
    return model


def expected(model: models.TemporalRBM, past: Tensor) -> Tensor:
    """E[v | u], exactly."""
    return torch.cat([model.given(part).exact_mean() for part in past.split(256)])


def error(guess: Tensor, frame: Tensor) -> float:
    return float((guess - frame).square().sum(1).mean())


def draw(out: Path, truth: Tensor, guess: Tensor, made: Tensor, notes: Tensor, usual: float) -> Path:
    figure, axes = plt.subplots(4, 1, figsize=(11, 10), layout="constrained", height_ratios=[1, 1, 1.3, 0.8])
    rows = [
        ("a held-out tune", truth, truth.shape[0]),
        ("E[v | u]: each frame expected from the four true ones before it", guess, truth.shape[0]),
        ("500 frames of the machine's own, after four true ones", made, made.shape[0]),
    ]
    for axis, (title, roll, length) in zip(axes, rows, strict=False):
        axis.imshow(roll.T, aspect="auto", origin="lower", cmap="magma", vmin=0, vmax=1,
                    extent=(0, length, 0, roll.shape[1]), interpolation="nearest")  # fmt: skip
        axis.set_title(title, fontsize=11)
        axis.set_ylabel("key")
    axis = axes[3]
    axis.fill_between(
        range(notes.shape[1]), *notes.quantile(torch.tensor([0.1, 0.9]), 0), alpha=0.25, label="80 % of tunes"
    )
    axis.plot(notes.mean(0), label="mean of generated tunes")
    axis.axhline(usual, color="k", lw=1, ls="--", label="held-out data")
    axis.set(xlabel="frame", ylabel="notes sounding", xlim=(0, notes.shape[1]), ylim=(0, None))
    axis.legend(ncols=3, fontsize=9)
    out.mkdir(parents=True, exist_ok=True)
    path = out / "temporal_rbm.png"
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("out/temporal_rbm"))
    parser.add_argument("--updates", type=int, default=16000)
    arguments = parser.parse_args()
    rolls, valid, test = read(arguments.data)
    print(f"{rolls[0].shape[1]} keys, {sum(map(len, rolls))} frames of training, {sum(map(len, test))} of test")
    begun = time.process_time()
    model = train(rolls, arguments.updates)
    print(f"{arguments.updates} updates in {time.process_time() - begun:.0f} s of one core")
    (past, frame), (v_past, v_frame), (t_past, t_frame) = (model.windows(part) for part in (rolls, valid, test))
    ridges = [Ridge(past, frame, penalty) for penalty in (1.0, 10.0, 100.0, 1000.0)]
    ridge = min(ridges, key=lambda one: error(one(v_past), v_frame))
    guess = expected(model, t_past)
    print("squared error of the next frame, held out, summed over keys:")
    for name, other in (("temporal RBM", guess), ("ridge", ridge(t_past)), ("last frame", t_past[:, -1])):
        print(f"  {name:16s}{error(other, t_frame):8.4f}")
    gain = (ridge(t_past) - t_frame).square().sum(1) - (guess - t_frame).square().sum(1)
    lengths = [len(roll) - ORDER for roll in test]
    tunes = torch.stack([part.mean() for part in gain.split(lengths)])
    print(f"  ridge less RBM, mean over {len(tunes)} tunes {tunes.mean():.4f} ± {tunes.std() / len(tunes) ** 0.5:.4f}")
    some = torch.randperm(len(t_past), generator=gb.random.stream(0, "frames"))[:4000]
    print(
        "log-likelihood a frame, exact:", partition.conditional_log_likelihood(model.given(t_past[some]), t_frame[some])
    )
    g = gb.random.stream(0, "tunes")
    starts = torch.stack([roll[:ORDER] for roll in test])
    made = model.generate(starts, 500, sweeps=None, generator=g)
    notes, usual = made.sum(2), float(t_frame.sum(1).mean())
    print(f"notes sounding: data {usual:.2f}; {len(made)} generated tunes, frames 1-100 {notes[:, :100].mean():.2f}, "
          f"201-300 {notes[:, 200:300].mean():.2f}, 401-500 {notes[:, 400:].mean():.2f}; "
          f"silent for the last 50 frames {float((notes[:, -50:].sum(1) == 0).float().mean()):.3f}")  # fmt: skip
    late = model.windows(made[:, 300:])
    score = partition.conditional_log_likelihood(model.given(late[0][:4000]), late[1][:4000]).value
    print(f"log-likelihood of its own frames 304-500: {float(score):.2f}")
    tune = max(range(len(test)), key=lambda i: -abs(len(test[i]) - 200))
    first = sum(lengths[:tune])
    chosen = guess[first : first + lengths[tune]]
    print(f"written to {draw(arguments.out, test[tune][ORDER:], chosen, made[tune], notes, usual)}")


if __name__ == "__main__":
    main()
