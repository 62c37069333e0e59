"""An RBM of 500 hidden units on binarized MNIST: train, and know the test likelihood from both sides.

    GIBBSIAN_DATA=folder python examples/mnist_rbm.py --centered --updates 200000 --out out/mnist_rbm

The data folder holds binarized_mnist/binarized_mnist_{train,valid,test}.mat, the fixed binarization of the density
literature (50000/10000/10000 × 784, matrix X), and for --gray MNIST's four files in mnist/: then every batch is
binarized anew from gray values, as Salakhutdinov & Murray (2008) did, who report -86.34 nats for CD-25. The test set is
the fixed one in both cases. Writes results.json, the weights, and a picture: filters, fantasy particles, and test digits
whose hidden half or scattered pixels are completed by clamped Gibbs sampling.
"""

import argparse
import json
import time
from pathlib import Path

import matplotlib
import torch

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import gibbsian as gb
from gibbsian import kernels, models, objectives, partition, plots, schedules
from gibbsian.data import load
from gibbsian.training import Engine, Logging


def read(split: str) -> torch.Tensor:
    """The fixed binarization: "train", "validation" or "test"."""
    return getattr(load("binarized-mnist", offline=True), split).x.flatten(1).float()


def read_gray(split: str = "train") -> torch.Tensor:
    """Gray digits in [0, 1]: "train" or "test"."""
    return getattr(load("mnist", offline=True), split).x.flatten(1).float() / 255


def binarize_anew(batch: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """What `gibbsian.data.binarize` does, without a look at the values, for which the host would wait in every step."""
    return (torch.rand(batch.shape, generator=generator, device=batch.device) < batch).to(batch.dtype)


def complete(rbm: models.RBM, x: torch.Tensor, known: torch.Tensor, g: torch.Generator) -> torch.Tensor:
    """The probabilities of the last sweep of chains that hold the known pixels."""
    start = torch.where(known, x, (torch.rand(x.shape, generator=g, device=x.device) < 0.5).to(x))
    last = gb.sample(rbm, kernels.Gibbs(), start, steps=1000, clamp=known, keep=False, generator=g).last
    mean = rbm.visible_mean(rbm.hidden_mean(last))
    return torch.where(known, x, mean).detach()


def picture(rbm: models.RBM, test: torch.Tensor, fantasies: torch.Tensor, g: torch.Generator, path: Path) -> None:
    figure, axes = plt.subplots(1, 3, figsize=(16, 5.6), layout="constrained")
    plots.image_grid(rbm.weight.detach().T[:100].cpu(), axes[0], shape=(28, 28), symmetric=True, title="filters")
    plots.image_grid(fantasies[:100].cpu(), axes[1], shape=(28, 28), title="fantasy particles")
    x = test[:: len(test) // 20][:20]
    rows, gray = [], torch.full_like(x, 0.35)
    half = (torch.arange(784, device=x.device) < 392).expand_as(x)
    scattered = torch.rand(x.shape, generator=g, device=x.device) < 0.2
    for known in (half, scattered):
        shown, filled = torch.where(known, x, gray), complete(rbm, x, known, g)
        rows += [shown[:10], filled[:10], shown[10:], filled[10:]]
    rows += [x[:10], x[10:]]
    title = "completed from the upper half, from 20 %; truth"
    plots.image_grid(torch.cat(rows).cpu(), axes[2], shape=(28, 28), columns=10, title=title)
    figure.savefig(path, dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=500)
    parser.add_argument("--updates", type=int, default=200_000)
    parser.add_argument("--steps", type=int, default=1, help="Gibbs sweeps an update")
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--chains", type=int, default=100)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--centered", action="store_true")
    parser.add_argument("--gray", action="store_true", help="binarize the gray training digits anew in every batch")
    parser.add_argument("--decay", type=float, default=0.0, help="weight decay")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--betas", type=int, default=20_000, help="temperatures of AIS")
    parser.add_argument("--ais-chains", type=int, default=1000)
    parser.add_argument("--train-only", action="store_true", help="neither judge nor draw")
    parser.add_argument("--out", default="out/mnist_rbm")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)

    train, valid, test = (read(split).to(device) for split in ("train", "validation", "test"))
    train = torch.cat([train, valid])  # as in the paper: all 60000 for training, nothing tuned on them here
    gray = read_gray().to(device) if options.gray else None
    rbm = models.RBM(784, options.hidden)
    rbm.initialize_visible_bias(train.cpu())
    rbm.to(device)
    objective: objectives.Objective = objectives.PersistentContrastiveDivergence(
        kernels.Gibbs(), steps=options.steps, chains=options.chains
    )
    if options.centered:
        objective = objectives.Centered(objective)
    if options.decay:
        objective = objectives.Weighted((objective, objectives.WeightDecay(options.decay)))
    begun = time.perf_counter()
    gb.fit(
        rbm,
        objective,
        train if gray is None else gray,
        transform=None if gray is None else binarize_anew,
        steps=options.updates,
        batch_size=options.batch,
        lr=options.lr,
        optimizer="sgd",
        schedule=schedules.linear(options.lr, 0.0, options.updates),
        seed=options.seed,
        engine=Engine(compile=device == "cuda"),
        guard=False,
        logging=Logging(every=options.updates // 10),
    )
    if device == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - begun
    if options.train_only:
        torch.save({k: v.cpu() for k, v in rbm.state_dict().items()}, out / "weights.pt")
        return

    g = gb.random.stream(options.seed, "evaluate", device)
    begun = time.perf_counter()
    log_z = partition.ais(rbm, data=train, chains=options.ais_chains, betas=options.betas, generator=g)
    # from the other side: long chains started at data are close to the model's law
    samples = gb.sample(rbm, kernels.Gibbs(), train[: options.ais_chains], steps=5000, keep=False, generator=g).last
    reverse = partition.reverse_ais(rbm, samples, data=train, betas=options.betas, generator=g)
    held_out, seen = (gb.log_likelihood(rbm, x, log_z) for x in (test, train))
    result = {
        "options": vars(options),
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "training_seconds": round(seconds, 1),
        "microseconds_an_update": round(seconds / options.updates * 1e6, 1),
        "evaluation_seconds": round(time.perf_counter() - begun, 1),
        "log_z": [float(log_z.lower), float(log_z.value), float(log_z.upper)],
        "ais_stderr": float(log_z.stderr),
        "ais_ess": float(log_z.diagnostics["ess"]),
        "log_z_reverse": float(reverse.value),
        "test_log_likelihood": [float(held_out.lower), float(held_out.value), float(held_out.upper)],
        "test_with_reverse_log_z": float(held_out.value + log_z.value - reverse.value),
        "train_log_likelihood": float(seen.value),
    }
    print(json.dumps(result, indent=1))
    (out / "results.json").write_text(json.dumps(result, indent=1) + "\n")
    picture(rbm, test, samples, g, out / "mnist_rbm.png")
    torch.save({k: v.cpu() for k, v in rbm.state_dict().items()}, out / "weights.pt")


if __name__ == "__main__":
    main()
