"""A classifier that is also a generative model: a joint energy on MNIST or Fashion-MNIST.

    GIBBSIAN_DATA=folder python examples/jem.py --data fashion --seconds 200 --out out/jem_fashion

Trains a residual network without batch norm as p(x, y) (cross-entropy plus persistent contrastive divergence), and the
same network on cross-entropy alone for as many updates. Writes results.json: test accuracy and calibration of both,
detection of foreign images, what refinement does to attacked images, how another classifier reads generated images;
pictures: samples.png (a column a class, from chains of the replay buffer), fresh.png (the same by longer chains from where most
chains begin, Gaussian draws with the moments of the classes: start.png), noise.png (from uniform noise), buffer.png; and
model.pt, the averaged weights and the replay buffer.

The data folder holds mnist/ and fashion_mnist/ with the four idx.gz files each.
"""

import argparse
import functools
import json
import time

import torch
from images import Clock, augmented, fit_for, probabilities, read, save_png, set_up, share_read, train_classifier
from torch import Tensor
from torch.nn import functional as F

import gibbsian as gb
from gibbsian import domains, hybrid, kernels, metrics, models, objectives
from gibbsian.energies import ResidualNet

SECONDS = {"mnist": 200.0, "fashion": 300.0}
FAR = {"mnist": [0.4, 0.1], "fashion": [0.0, 0.0]}  # chains from afar tell digits from other images, and cost samples


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=["mnist", "fashion"], default="mnist")
    parser.add_argument("--out", default="out/jem")
    parser.add_argument("--seconds", type=float, help="of the training of the joint energy")
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--blocks", type=int, default=1)
    parser.add_argument("--stride", type=int, default=1, help="of the first convolution")
    parser.add_argument("--batch", type=int, default=512, help="images an update")
    parser.add_argument("--chains", type=int, default=128, help="chains an update")
    parser.add_argument("--fused", action="store_true", help="compile the network too; takes a minute")
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--weight", type=float, default=0.2, help="of the energy term; 1 is the joint likelihood")
    parser.add_argument("--steps", type=int, default=20, help="sampler steps an update")
    parser.add_argument("--step-size", type=float, default=2.0)
    parser.add_argument("--last-step-size", type=float, default=0.05, help="sampler steps fall to this")
    parser.add_argument("--noise", type=float, default=0.01, help="of the sampler")
    parser.add_argument("--score-clip", type=float, default=0.1, help="largest slope of a pixel in a sampler step")
    parser.add_argument("--buffer", type=int, default=1280)
    parser.add_argument("--reinit", type=float, default=0.05)
    parser.add_argument("--far", type=float, nargs=2, help="shares of chains that begin at smooth and at uniform noise")
    parser.add_argument("--penalty", type=float, default=0.01, help="on squared energies")
    parser.add_argument("--blur", type=float, default=0.03, help="noise on the images that the energy term sees")
    parser.add_argument("--shift", type=int, default=1, help="augmentation: pixels")
    parser.add_argument("--ema", type=float, default=0.999)
    parser.add_argument("--epsilon", type=float, default=0.2, help="largest change of a pixel in the attack, of 2")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, help="rows of each set, for a quick look")
    chosen = parser.parse_args()
    chosen.far = chosen.far or FAR[chosen.data]
    return chosen


def quality(p: Tensor, y: Tensor) -> dict[str, float]:
    """Accuracy, expected calibration error with 15 bins, and mean log loss."""
    return {
        "accuracy": float((p.argmax(1) == y).double().mean()),
        "ece": float(metrics.expected_calibration_error(p, y, bins=15)),
        "log_loss": float(-p.gather(1, y[:, None]).clamp(min=1e-12).log().mean()),
    }


def attacked(model: models.JointEnergy, x: Tensor, y: Tensor, epsilon: float, steps: int = 10) -> Tensor:
    """Projected gradient ascent on the cross-entropy, each pixel within ±epsilon and [-1, 1]."""
    low, high = (x - epsilon).clamp(min=-1), (x + epsilon).clamp(max=1)
    moved = x
    for _ in range(steps):
        moved = moved.detach().requires_grad_()
        (slope,) = torch.autograd.grad(F.cross_entropy(model.logits(moved), y), moved)
        moved = torch.minimum(torch.maximum(moved + 2.5 * epsilon / steps * slope.sign(), low), high)
    return moved.detach()


def main() -> None:
    chosen = options()
    begun = time.perf_counter()
    device, out, (x, y), (held_x, held_y) = set_up(chosen)

    wall = 1.0 + 3 * chosen.blur  # noise takes pixels out of [-1, 1]
    domain = domains.Box((1, 28, 28), -wall, wall)

    def moved(batch: tuple[Tensor, Tensor], generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return augmented(batch[0], generator, shift=chosen.shift, flip=chosen.data == "fashion"), batch[1]

    def network() -> ResidualNet:
        net = ResidualNet((1, 28, 28), chosen.widths, chosen.blocks, outputs=10, stride=chosen.stride, pool=False)
        return net.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]

    kernel = kernels.ShortRunLangevin(
        chosen.step_size, chosen.noise, chosen.score_clip, last=chosen.last_step_size, cycle=chosen.steps
    )
    chains = objectives.PersistentContrastiveDivergence(
        kernel,
        steps=chosen.steps,
        chains=chosen.chains,
        buffer=chosen.buffer,
        reinit=chosen.reinit,
        start={"gaussian": 1 - sum(chosen.far), "smooth": chosen.far[0], "reference": chosen.far[1]},
        penalty=chosen.penalty,
    )
    joint = models.JointEnergy(network(), domain)
    clock = Clock(chosen.seconds or SECONDS[chosen.data], chosen.lr)
    both = objectives.Weighted(
        [objectives.CrossEntropy(), objectives.Blurred(chains, chosen.blur)], [1.0, chosen.weight]
    )
    guard = gb.training.Guard(penalty=chosen.penalty)
    run = fit_for(clock, joint, both, (x, y), chosen, transform=moved, guard=guard, fuse=chosen.fused)
    model, seconds = run.ema.eval(), clock.elapsed()
    print(f"joint energy: {run.step} updates in {seconds:.0f} s, {run.step * chosen.batch / len(x):.1f} epochs")
    plain = train_classifier(
        network(), (x, y), moved, run.step, domain=domain, lr=chosen.lr, batch=chosen.batch, seed=chosen.seed
    )

    g = gb.random.stream(chosen.seed, "evaluate", device)
    truth = held_y.cpu()
    result = {
        "options": vars(chosen),
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "updates": run.step,
        "images_a_second": run.step * chosen.batch / seconds,
        "events": run.events,
        "history": [r for r in run.history if "event" not in r][-40:],
        "joint": quality(probabilities(model, held_x), truth),
        "cross_entropy_alone": quality(probabilities(plain, held_x), truth),
    }

    other = "fashion" if chosen.data == "mnist" else "mnist"
    foreign = read(other, "test", chosen.limit)[0].to(device)
    result["foreign"] = other
    result["auroc"] = {
        name: {
            method: float(metrics.auroc(metrics.ood_scores(m, held_x, method), metrics.ood_scores(m, foreign, method)))
            for method in ("energy", "score_norm", "confidence")
        }
        for name, m in (("joint", model), ("cross_entropy_alone", plain))
    }

    some, some_y = held_x[:1000], held_y[:1000]
    bad = attacked(model, some, some_y, chosen.epsilon)
    accuracy = functools.partial(share_read, y=some_y)
    result["refinement"] = {
        "epsilon": chosen.epsilon,
        "plain network attacked": accuracy(probabilities(plain, attacked(plain, some, some_y, chosen.epsilon))),
        "joint attacked": accuracy(probabilities(model, bad)),
        "joint attacked, 10 steps": accuracy(probabilities(model, bad, kernel=kernel, steps=10, generator=g)),
        "joint attacked, 50 steps": accuracy(probabilities(model, bad, kernel=kernel, steps=50, generator=g)),
        "joint clean, 10 steps": accuracy(probabilities(model, some, kernel=kernel, steps=10, generator=g)),
    }

    pool = run.chains
    with torch.no_grad():  # of the chains from afar some never come down; a hundred do for the pictures of any run
        height, limit = model(pool), model(x[:2000]).quantile(0.99)
    arrived = pool[height.argsort()[: max(100, int((height <= limit).sum()))]]
    classes = torch.arange(10, device=device).repeat(10)
    drawn = hybrid.generate(model, classes, kernel, chosen.steps, pool=arrived, generator=g)
    save_png(drawn, out / "samples.png", 10)
    begin = hybrid.like_classes(x[:5000], y[:5000], 1000, generator=g).clamp(-1, 1)
    fresh = hybrid.generate(model, classes, kernel, 20 * chosen.steps, pool=begin, generator=g)
    save_png(fresh, out / "fresh.png", 10)
    far = hybrid.generate(model, classes, kernel, 20 * chosen.steps, generator=g)
    save_png(far, out / "noise.png", 10)
    save_png(begin[:100], out / "start.png", 10)
    save_png(pool[:200], out / "buffer.png", 20)
    save_png(x[:100], out / "data.png", 10)
    for name, images in (("samples", drawn), ("fresh", fresh), ("from_noise", far)):
        p = probabilities(plain, images.clamp(-1, 1))
        right = (p.argmax(1) == classes.cpu()).double()
        result[name] = {
            "read_as_their_class_by_the_other_network": float(right.mean()),
            "mean_confidence": float(p.amax(1).mean()),
            "per_class": [float(right[classes.cpu() == k].mean()) for k in range(10)],
        }
    result["seconds"] = {"training": seconds, "everything": time.perf_counter() - begun}
    torch.save({"net": model.net.state_dict(), "buffer": pool}, out / "model.pt")
    (out / "results.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({k: v for k, v in result.items() if k not in ("history", "options")}, indent=1))


if __name__ == "__main__":
    main()
