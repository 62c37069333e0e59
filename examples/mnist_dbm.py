"""A deep Boltzmann machine 784-500-1000 on MNIST: pre-train, train jointly, bound its test likelihood, classify.

    GIBBSIAN_DATA=folder python examples/mnist_dbm.py --out out/mnist_dbm
    GIBBSIAN_DATA=folder python examples/mnist_dbm.py --sizes 784 200 200 --updates 6000 ... (a smaller one, on a CPU)

The data folder holds mnist/{train,t10k}-{images-idx3,labels-idx1}-ubyte.gz, and binarized_mnist/*.mat,
the fixed binarization of the density literature, on which the likelihood is measured. Batches are binarized anew from
gray values; --fixed trains on the fixed binarization instead. Salakhutdinov & Hinton (2009) report a test bound of -84.62
nats and 0.95 % errors after discriminative fine-tuning. Writes results.json, the weights, and pictures of fantasies,
filters and completed digits of which the right half was hidden.
"""

import argparse
import json
import time
from pathlib import Path

import torch
from mnist_rbm import read, read_gray

import gibbsian as gb
from gibbsian import kernels, models, objectives, partition
from gibbsian.data import binarize, load
from gibbsian.training import Engine, Logging


def read_labels(split: str) -> torch.Tensor:
    return getattr(load("mnist", offline=True), split).y


def binarize_anew(batch: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return (torch.rand(batch.shape, generator=generator, device=batch.device) < batch).to(batch.dtype)


def falling(rate: float, updates: int, hold: float = 0.3) -> torch.Tensor:
    """A rate that is held for a share of the updates and then falls to 0 in a straight line."""
    t = torch.linspace(0, 1, updates, dtype=torch.float64)
    return rate * ((1 - t) / (1 - hold)).clamp(max=1.0)


class Clock:
    """Seconds of every part, the device's work included."""

    def __init__(self, device: str) -> None:
        self.device, self.seconds, self.began = device, {}, time.perf_counter()

    def lap(self, name: str) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()
        now = time.perf_counter()
        self.seconds[name] = round(now - self.began, 1)
        self.began = now
        print(f"{name}: {self.seconds[name]} s", flush=True)

    def stop_after(self, seconds: float):
        """A hook that ends a training when its time is over."""
        began = time.perf_counter()
        return lambda run: run.step % 100 == 0 and time.perf_counter() - began > seconds


def mosaic(images: torch.Tensor, path: Path, columns: int = 10) -> None:
    from matplotlib import image

    x = images.detach().cpu().reshape(-1, columns, 28, 28)
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    x = torch.nn.functional.pad((x - low) / (high - low).clamp(min=1e-6), (1, 1, 1, 1), value=0.5)
    image.imsave(path, x.permute(0, 2, 1, 3).reshape(-1, columns * 30).numpy(), cmap="gray", vmin=0, vmax=1)


def train(dbm: models.DBM, data: torch.Tensor, transform, options: argparse.Namespace, clock: Clock) -> list[dict]:
    """Layer by layer first, then all layers together."""
    device = clock.device
    common = {
        "batch_size": options.batch,
        "seed": options.seed,
        "engine": Engine(precision=options.precision, compile=device == "cuda"),
        "transform": transform,
        "guard": False,
        "progress": False,
    }
    gibbs = kernels.Gibbs()
    chains = [objectives.ContrastiveDivergence(gibbs), objectives.PersistentContrastiveDivergence(gibbs, steps=5)]
    if options.pretrain:
        decayed = [objectives.Weighted((part, objectives.WeightDecay(options.decay))) for part in chains]
        schedule = falling(options.pretrain_lr, options.pretrain)
        gb.pretrain(
            dbm,
            decayed if len(dbm.weights) == 2 else decayed[0],
            data,
            steps=options.pretrain,
            lr=options.pretrain_lr,
            optimizer={"name": "sgd", "momentum": options.momentum},
            schedule=schedule,
            logging=Logging(every=max(1, options.pretrain // 5)),
            **common,
        )
        clock.lap("pretraining")
    objective = objectives.VariationalLikelihood(
        options.iterations, options.sweeps, options.chains, start="data", centering=options.centering or None
    )
    run = gb.fit(
        dbm,
        objectives.Weighted((objective, objectives.WeightDecay(options.decay))),
        data,
        steps=options.updates,
        lr=options.lr,
        schedule=falling(options.lr, options.updates, options.hold),
        ema=options.ema or None,
        logging=Logging(every=max(1, options.updates // 10)),
        hooks=[] if options.seconds is None else [(50, clock.stop_after(options.seconds))],
        optimizer="sgd",
        **common,
    )
    if options.ema:
        dbm.load_state_dict(run.ema.state_dict())
    clock.lap("training")
    return run.history


def evaluate(dbm: models.DBM, train_set: torch.Tensor, test: torch.Tensor, options, clock: Clock) -> dict:
    """The bound on the test likelihood with log Z from both sides."""
    g = gb.random.stream(options.seed, "evaluate", clock.device)
    odd, base = dbm.marginal(1), dbm.layers[0].fit_bias(train_set)  # gray values have the same means
    log_z = partition.ais(odd, base=base, chains=options.ais_chains, betas=options.betas, generator=g, progress=False)
    start = odd.join([h for i, h in enumerate(dbm.draw_hidden(test[: options.ais_chains], generator=g)) if i % 2 == 0])
    states = gb.sample(odd, kernels.Gibbs(), start, steps=options.burn_in, keep=False, generator=g, progress=False).last
    reverse = partition.reverse_ais(odd, states, base=base, betas=options.betas, generator=g, progress=False)
    bound = gb.log_likelihood(dbm, test, log_z)
    error = 3 * float(torch.hypot(bound.data_stderr, bound.log_z_stderr))
    clock.lap("evaluation")
    return {
        "log_z": [float(log_z.lower), float(log_z.value), float(log_z.upper)],
        "ais_stderr": float(log_z.stderr),
        "ais_ess": float(log_z.diagnostics["ess"]),
        "log_z_reverse": float(reverse.value),
        "test_bound": float(bound.value),
        "test_bound_interval": [float(bound.value) - error, float(bound.value) + error],
        "test_bound_with_reverse_log_z": float(bound.value + log_z.value - reverse.value),
        "mean_field_iterations": dbm.infer(test[:1000]).iterations,
    }


def errors(classifier: models.DBMClassifier, x: torch.Tensor, y: torch.Tensor) -> int:
    with torch.no_grad():
        wrong = [
            (classifier.class_log_prob(a).argmax(1) != b).sum()
            for a, b in zip(x.split(2000), y.split(2000), strict=True)
        ]
    return int(torch.stack(wrong).sum())


def classify(dbm: models.DBM, x: torch.Tensor, y: torch.Tensor, options, clock: Clock) -> dict:
    """Fine-tune a network that starts as the machine, on gray values."""
    device = clock.device
    test, test_y = read_gray("test").to(device), read_labels("test").to(device)
    classifier = models.DBMClassifier(dbm, classes=10, iterations=options.iterations)
    objective = objectives.DropoutCrossEntropy(
        adversary=options.adversary, inputs=options.drop_inputs, hidden=options.drop_hidden
    )
    steps = options.classifier_updates

    def watch(average: models.DBMClassifier) -> dict[str, float]:
        seen = {
            "test_errors": float(errors(classifier, test, test_y)),
            "of_average": float(errors(average, test, test_y)),
        }
        print(seen, flush=True)
        return seen

    run = gb.fit(
        classifier,
        objectives.Weighted((objective, objectives.WeightDecay(options.classifier_decay, names=("weights", "above")))),
        (x, y),
        steps=steps,
        batch_size=options.classifier_batch,
        lr=options.classifier_lr,
        schedule=falling(options.classifier_lr, steps, 0.5),
        ema=options.classifier_ema,
        seed=options.seed,
        engine=Engine(compile=device == "cuda"),
        guard=False,
        logging=Logging(every=max(1, steps // 10), validate_every=max(1, steps // 10)),
        validation=watch,
        progress=False,
    )
    result = {
        "test_errors_percent": errors(classifier, test, test_y) / len(test) * 100,
        "test_errors_percent_of_the_average": errors(run.ema, test, test_y) / len(test) * 100,
        "train_errors_percent": errors(classifier, x, y) / len(x) * 100,
        "history": run.history,
    }
    clock.lap("classifier")
    return result


def draw(dbm: models.DBM, test: torch.Tensor, options, clock: Clock, out: Path) -> None:
    """Fantasies from long chains, filters, and digits completed from their left halves."""
    g = gb.random.stream(options.seed, "pictures", clock.device)
    even = dbm.marginal(0)
    start = even.join([test[:100], *dbm.draw_hidden(test[:100], generator=g)[1::2]])
    last = gb.sample(even, kernels.Gibbs(), start, steps=options.burn_in, keep=False, generator=g, progress=False).last
    layers = even.hidden_of(last, generator=g)
    mosaic(dbm.layers[0].mean(dbm.natural(0, dbm.statistics(layers))), out / "fantasies.png")
    mosaic(dbm.weights[0].T[:100], out / "filters.png")
    held = (torch.arange(784, device=test.device) % 28) < 14
    given = test[:30]
    filled = dbm.fill_in(given, held, steps=options.burn_in // 5, generator=g)
    hidden = torch.where(held, given, torch.full_like(given, 0.5))
    rows = torch.stack([given.view(3, 10, -1), hidden.view(3, 10, -1), filled.view(3, 10, -1)], 1)
    mosaic(rows.reshape(-1, 784), out / "completed.png")
    clock.lap("pictures")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--sizes", type=int, nargs="+", default=[784, 500, 1000])
    add("--rows", type=int, default=60_000, help="training digits used")
    add("--fixed", action="store_true", help="train on the fixed binarization")
    add("--batch", type=int, default=100)
    add("--pretrain", type=int, default=60_000, help="updates of every layer; 0 for none")
    add("--pretrain-lr", type=float, default=0.05)
    add("--momentum", type=float, default=0.5, help="while pre-training")
    add("--updates", type=int, default=180_000, help="joint updates")
    add("--lr", type=float, default=0.03)
    add("--hold", type=float, default=0.1, help="share of the updates before the rate falls")
    add("--decay", type=float, default=2e-4)
    add("--iterations", type=int, default=10, help="of mean field")
    add("--sweeps", type=int, default=5)
    add("--chains", type=int, default=100)
    add("--centering", type=float, default=0.01, help="rate of the offsets; 0 for none")
    add("--ema", type=float, default=0.0, help="decay of averaged weights; 0 for none")
    add("--precision", choices=["tf32"], default=None, help="of matrix products, on a GPU")
    add("--seconds", type=float, default=None, help="most seconds of joint training")
    add("--betas", type=int, default=20_000, help="temperatures of AIS")
    add("--ais-chains", type=int, default=500)
    add("--burn-in", type=int, default=5000)
    add("--no-likelihood", action="store_true")
    add("--classifier-updates", type=int, default=60_000, help="0 for no classifier")
    add("--classifier-batch", type=int, default=200)
    add("--classifier-lr", type=float, default=5e-4)
    add("--classifier-decay", type=float, default=1e-6)
    add("--classifier-ema", type=float, default=0.999)
    add("--drop-inputs", type=float, default=0.1)
    add("--drop-hidden", type=float, default=0.3)
    add("--adversary", type=float, default=0.1, help="largest change of a pixel in adversarial examples; 0 for none")
    add("--weights", help="start from these weights instead of training")
    add("--seed", type=int, default=0)
    add("--out", default="out/mnist_dbm")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    clock = Clock(device)
    gray, labels = (part("train")[: options.rows].to(device) for part in (read_gray, read_labels))
    test = read("test")[torch.randperm(10000, generator=gb.random.stream(0, "test"))].to(device)  # sorted by class
    data = torch.cat([read("train"), read("validation")])[: options.rows].to(device) if options.fixed else gray
    dbm = models.DBM(*options.sizes, generator=gb.random.stream(options.seed, "init"))
    dbm.initialize_visible_bias(binarize(gray[:10000].cpu(), "threshold"))
    dbm.to(device)
    clock.lap("reading")
    history: list[dict] = []
    if options.weights:
        dbm.load_state_dict(torch.load(options.weights, weights_only=True))
    else:
        history = train(dbm, data, None if options.fixed else binarize_anew, options, clock)
        torch.save({k: v.cpu() for k, v in dbm.state_dict().items()}, out / "weights.pt")
    result = {"options": vars(options), "device": torch.cuda.get_device_name() if device == "cuda" else "cpu"}
    result["likelihood"] = {} if options.no_likelihood else evaluate(dbm, data, test, options, clock)
    draw(dbm, test, options, clock, out)
    result["classifier"] = classify(dbm, gray, labels, options, clock) if options.classifier_updates else {}
    result["seconds"], result["history"] = clock.seconds, history
    print(json.dumps({k: v for k, v in result.items() if k != "history"}, indent=1))
    (out / "results.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
