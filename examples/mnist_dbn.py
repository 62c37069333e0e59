"""Deep belief networks on MNIST: a classifier that generates digits by class, and a density with its likelihood bound.

    GIBBSIAN_DATA=folder python examples/mnist_dbn.py classify --out out/mnist_dbn
    GIBBSIAN_DATA=folder python examples/mnist_dbn.py density --out out/mnist_dbn_density

classify: 784-500-500-2000 with ten labels beside the last layer but one (Hinton, Osindero & Teh 2006, who report 2.49 %
test error after greedy training and 1.25 % after up-down), greedy training by contrastive divergence, then up-down with
3, 6 and 10 sweeps in the top RBM. density: 784-500-2000 without labels (Salakhutdinov & Murray 2008 report a bound of
-85.97 nats), an RBM by centered PCD, then the top RBM from its tied weights in the same way, and AIS on top.

Gray digits are binarized anew at every step; densities are judged on the fixed binarized test set. The folder holds
mnist/*.gz and binarized_mnist/*.mat as in `gibbsian.data`. `--seconds` gives a time for training in all, from which the
numbers of updates follow by a short measurement; `--sizes` and `--rows` make it small. Writes results.json, samples.png
and filters.png.
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
from matplotlib.figure import Figure

import gibbsian as gb
from gibbsian import data, kernels, models, objectives, partition, plots, schedules
from gibbsian.training import Engine, Logging
from gibbsian.training.pretrain import Encoded

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def digits(rows: int | None) -> tuple[torch.Tensor, ...]:
    """Gray training digits and labels, gray test digits and labels, on the device."""
    mnist = data.load("mnist", offline=True)
    parts = []
    for part in (mnist.train, mnist.test):
        parts += [(part.x.flatten(1).float() / 255).to(DEVICE), part.y.to(DEVICE)]
    return (*(part[:rows] for part in parts[:2]), *parts[2:])


class Clock:
    """Seconds of each part, with the device waited for."""

    def __init__(self) -> None:
        self.parts: dict[str, float] = {}
        self.last = self.now()

    def now(self) -> float:
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def lap(self, name: str) -> float:
        now = self.now()
        self.parts[name] = round(now - self.last, 2)
        self.last = now
        print(f"{name}: {self.parts[name]:.1f} s", flush=True)
        return self.parts[name]


def settings(updates: int, rate: float, options: argparse.Namespace, end: float = 0.0) -> dict:
    """What every call of `fit` shares: a rate that falls linearly, momentum, captured steps."""
    return {
        "steps": updates,
        "batch_size": options.batch,
        "lr": rate,
        "schedule": schedules.linear(rate, end, updates),
        "optimizer": {"name": "sgd", "momentum": options.momentum},
        "engine": Engine(compile=DEVICE == "cuda"),
        "guard": gb.training.Guard(every=500, snapshot_every=5000),
        "logging": Logging(every=max(500, updates // 10 // 500 * 500)),
        "progress": False,
    }


def decayed(objective: objectives.Objective, rate: float, names: tuple[str, ...] = ("weight",)) -> objectives.Objective:
    return objectives.Weighted((objective, objectives.WeightDecay(rate, names=names))) if rate else objective


def error_of(dbn: models.DBN, x: torch.Tensor, y: torch.Tensor, **how) -> float:
    """Share of wrong labels, in per cent."""
    return round(100 * float((dbn.classify(x, **how) != y).double().mean()), 3)


def classify(options: argparse.Namespace, clock: Clock) -> tuple[models.DBN, dict]:
    x, y, test_x, test_y = digits(options.rows)
    dbn = models.DBN(*options.sizes, labels=10).to(DEVICE)
    epoch = math.ceil(len(x) / options.batch)
    greedy = [int(epochs * epoch) for epochs in options.greedy_epochs]
    fine = [int(options.epochs * epoch / 3)] * 3  # with 3, 6 and 10 sweeps
    clock.lap("reading")
    if options.seconds:
        greedy, fine = within(options, (x, y), greedy, fine)
        clock.lap("measuring")
    cd = objectives.Binarized(decayed(objectives.ContrastiveDivergence(kernels.Gibbs()), options.decay))
    stages = [settings(n, options.greedy_rate, options) for n in greedy]
    per_stage = {name: [stage[name] for stage in stages] for name in ("steps", "schedule", "logging")}
    gb.pretrain(dbn, cd, (x, y), seed=options.seed, **{**stages[0], **per_stage})
    clock.lap("greedy")
    result: dict = {"updates": {"greedy": greedy, "up-down": fine}}
    result["greedy_test_error"] = error_of(dbn, test_x, test_y)
    print(f"after greedy training: test error {result['greedy_test_error']} %", flush=True)
    names = ("weight", "recognition_weight")
    at, total = 0, max(1, sum(fine))
    for k, updates in zip((3, 6, 10), fine, strict=True):
        if updates < 1:
            continue
        objective = objectives.Binarized(decayed(objectives.UpDown(steps=k), options.fine_decay, names))
        begin, end = (options.rate * (1 - done / total) for done in (at, at + updates))
        run = gb.fit(dbn, objective, (x, y), seed=options.seed + k, **settings(updates, begin, options, end))
        at += updates
        clock.lap(f"up-down k={k}")
        last = {name: round(value, 3) for name, value in run.history[-1].items() if name in ("wake", "gap", "sleep")}
        result[f"test_error_after_k{k}"] = error_of(dbn, test_x, test_y)
        print(f"after k = {k}: test error {result[f'test_error_after_k{k}']} %, {last}", flush=True)
    g = gb.random.stream(options.seed, "evaluate", DEVICE)
    result |= {
        "test_error": error_of(dbn, test_x, test_y),
        "test_error_20_passes": error_of(dbn, test_x, test_y, passes=20, generator=g),
        "test_error_up_pass": error_of(dbn, test_x, test_y, method="up-pass"),
        "train_error": error_of(dbn, x, y),
    }
    clock.lap("evaluation")
    labels = torch.arange(10, device=DEVICE).repeat_interleave(10)
    draw(dbn.generate(100, steps=options.sweeps, label=labels, mean=True, generator=g), dbn, options)
    clock.lap("samples")
    if options.net_epochs:  # the same weights as the start of a feed-forward classifier
        net = dbn.to_classifier(domain=gb.domains.Box(options.sizes[0]))
        steps = int(options.net_epochs * epoch)
        common = settings(steps, 1e-4, options) | {"optimizer": "adam"}
        gb.fit(net, objectives.CrossEntropy(), (x, y), seed=options.seed, **common)
        with torch.no_grad():
            wrong = net.class_log_prob(test_x).argmax(1) != test_y
        result["back_propagation_test_error"] = round(100 * float(wrong.double().mean()), 3)
        clock.lap("back-propagation")
    return dbn, result


def per_update(train: Callable[[int], object]) -> float:
    """Seconds an update, without what a run costs once: the slope between two lengths."""
    few, many = (500, 3000) if DEVICE == "cuda" else (20, 80)
    train(few)  # compiles
    seconds = []
    for updates in (few, many):
        begun = Clock()
        train(updates)
        seconds.append(begun.now() - begun.last)
    return max((seconds[1] - seconds[0]) / (many - few), 1e-6)


def stage_cost(
    options: argparse.Namespace, stage: int, objective: objectives.Objective, pair, labels: int | None
) -> float:
    """Seconds an update of one stage of greedy training."""
    spare = models.DBN(*options.sizes, labels=labels).to(DEVICE)
    encoded = objectives.Binarized(Encoded(objective, spare, stage))
    return per_update(lambda n: gb.fit(spare.machine(stage), encoded, pair, **settings(n, 1e-4, options)))


def within(options: argparse.Namespace, pair: tuple, greedy: list[int], fine: list[int]) -> tuple[list[int], list[int]]:
    """The numbers of updates, scaled to the time that was given: a quarter of it is for greedy training."""
    cd = decayed(objectives.ContrastiveDivergence(kernels.Gibbs()), options.decay)
    costs = [stage_cost(options, stage, cd, pair, 10) for stage in range(3)]
    spare = models.DBN(*options.sizes, labels=10).to(DEVICE)
    for k in (3, 6, 10):
        objective = objectives.Binarized(objectives.UpDown(steps=k))
        costs.append(per_update(lambda n, o=objective: gb.fit(spare, o, pair, **settings(n, 1e-4, options))))
    print(f"microseconds an update: {[round(1e6 * cost) for cost in costs]}", flush=True)
    shares = (0.25, greedy, costs[:3]), (0.75, fine, costs[3:])
    scaled = [
        [max(1, int(n * share * options.seconds / sum(a * b for a, b in zip(some, cost, strict=True)))) for n in some]
        for share, some, cost in shares
    ]
    return scaled[0], scaled[1]


def density(options: argparse.Namespace, clock: Clock) -> tuple[models.DBN, dict]:
    x, _, _, _ = digits(options.rows)
    fixed = data.load("binarized-mnist", offline=True)
    test = fixed.test.x.flatten(1).float().to(DEVICE)
    dbn = models.DBN(*options.sizes).to(DEVICE)
    clock.lap("reading")
    pcd = objectives.PersistentContrastiveDivergence(
        kernels.Gibbs(), steps=options.sweeps_an_update, chains=options.chains, start="data"
    )
    objective = objectives.Binarized(decayed(objectives.Centered(pcd), options.decay))
    options.momentum = 0.0
    updates, rates = options.updates, options.rates
    if options.seconds:
        costs = [stage_cost(options, stage, objective.objective, x, None) for stage in range(2)]
        print(f"microseconds an update: {[round(1e6 * cost) for cost in costs]}", flush=True)
        updates = [max(1, int(options.seconds / 2 / cost)) for cost in costs]
        clock.lap("measuring")
    stages = [settings(n, rate, options) for n, rate in zip(updates, rates, strict=True)]
    per_stage = {name: [stage[name] for stage in stages] for name in ("steps", "lr", "schedule", "logging")}
    runs = gb.pretrain(dbn, objective, x, seed=options.seed, **{**stages[0], **per_stage})
    clock.lap("training")
    g = gb.random.stream(options.seed, "evaluate", DEVICE)
    binary = data.binarize(x, "sample", generator=g)
    ladder = {"chains": options.ais_chains, "betas": options.betas, "generator": g, "progress": False}
    rbm = runs[0].energy
    below = gb.log_likelihood(rbm, test, partition.ais(rbm, binary, **ladder))
    clock.lap("AIS of the RBM")
    log_z = partition.ais(dbn, binary, **ladder)
    clock.lap("AIS of the top")
    bound = gb.log_likelihood(dbn, test, log_z, samples=options.samples, generator=g)
    seen = gb.log_likelihood(dbn, binary[:10000], log_z, samples=options.samples, generator=g)
    tighter = gb.log_likelihood(dbn, test, log_z, samples=options.samples, importance=True, generator=g)
    start = dbn.encode(1, binary[: options.ais_chains], g)
    chains = gb.sample(dbn.top, kernels.Gibbs(), start, steps=options.sweeps, keep=False, generator=g).last
    reverse = partition.reverse_ais(dbn.top, chains, data=start, betas=options.betas, generator=g)
    clock.lap("bounds")
    result = {
        "updates": updates,
        "rbm_test_log_likelihood": [float(below.lower), float(below.value), float(below.upper)],
        "log_z": [float(log_z.lower), float(log_z.value), float(log_z.upper)],
        "ais_ess": float(log_z.diagnostics["ess"]),
        "log_z_reverse": float(reverse.value),
        "test_bound": float(bound.value),
        "test_bound_interval": [float(bound.lower), float(bound.value + 3 * bound.stderr)],
        "test_bound_with_reverse_log_z": float(bound.value + log_z.value - reverse.value),
        "test_importance_bound": float(tighter.value),
        "train_bound": float(seen.value),
    }
    draw(dbn.generate(100, steps=options.sweeps, start=binary[:100], mean=True, generator=g), dbn, options)
    clock.lap("samples")
    return dbn, result


def draw(images: torch.Tensor, dbn: models.DBN, options: argparse.Namespace) -> None:
    """Ten rows of samples, and the strongest filters of the lowest layer."""
    for name, show in (
        ("samples", lambda ax: plots.samples(images.cpu(), ax, shape=(28, 28), columns=10)),
        ("filters", lambda ax: plots.filters(dbn, ax, shape=(28, 28), count=100, columns=10)),
    ):
        figure = Figure(figsize=(7, 7))
        show(figure.add_subplot())
        figure.savefig(Path(options.out) / f"{name}.png", dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["classify", "density"])
    parser.add_argument("--sizes", type=int, nargs="+", help="784 500 500 2000, or 784 500 2000 for densities")
    parser.add_argument("--rows", type=int, help="train on the first so many digits")
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--seconds", type=float, help="time for training, instead of numbers of updates")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--decay", type=float, default=None, help="weight decay of the RBMs")
    parser.add_argument("--sweeps", type=int, default=2000, help="Gibbs sweeps for samples")
    parser.add_argument("--out", default="out/mnist_dbn")
    only = parser.add_argument_group("classify")
    only.add_argument("--greedy-epochs", type=float, nargs=3, default=[30, 30, 30])
    only.add_argument("--greedy-rate", type=float, default=0.1)
    only.add_argument("--epochs", type=float, default=240, help="of up-down, a third each with 3, 6 and 10 sweeps")
    only.add_argument("--rate", type=float, default=0.1, help="of up-down, falling to 0")
    only.add_argument("--momentum", type=float, default=0.9)
    only.add_argument("--net-epochs", type=float, default=20, help="of back-propagation in the classifier made of it")
    only.add_argument("--fine-decay", type=float, default=0.0, help="weight decay of up-down")
    only = parser.add_argument_group("density")
    only.add_argument("--updates", type=int, nargs=2, default=[150_000, 150_000])
    only.add_argument("--rates", type=float, nargs=2, default=[0.05, 0.03])
    only.add_argument("--sweeps-an-update", type=int, default=1)
    only.add_argument("--chains", type=int, default=100)
    only.add_argument("--betas", type=int, default=20_000, help="temperatures of AIS")
    only.add_argument("--ais-chains", type=int, default=500)
    only.add_argument("--samples", type=int, default=20, help="up-passes a digit for the bound")
    options = parser.parse_args()
    labeled = options.mode == "classify"
    options.sizes = options.sizes or ([784, 500, 500, 2000] if labeled else [784, 500, 2000])
    options.decay = (2e-4 if labeled else 0.0) if options.decay is None else options.decay
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    clock = Clock()
    dbn, result = (classify if labeled else density)(options, clock)
    device = torch.cuda.get_device_name() if DEVICE == "cuda" else "cpu"
    result = {"options": vars(options), "device": device, "seconds": clock.parts, **result}
    print(json.dumps(result, indent=1))
    (out / "results.json").write_text(json.dumps(result, indent=1) + "\n")
    torch.save({name: value.cpu() for name, value in dbn.state_dict().items()}, out / "weights.pt")


if __name__ == "__main__":
    main()
