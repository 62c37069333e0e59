"""The live parts of a training run: what one step needs, and what is saved, restored and rolled back."""

import dataclasses
import logging
import math
import warnings
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gibbsian.errors import ArgumentError, CheckpointError, DataError, DivergenceError, TrainingWarning
from gibbsian.objectives.base import Loss, Objective, observed, state_modules
from gibbsian.random import stream
from gibbsian.training import checkpoint, folder
from gibbsian.training.captured import CapturedStep
from gibbsian.training.distributed import join
from gibbsian.training.ema import Ema
from gibbsian.training.feed import Feed, make_feed
from gibbsian.training.guard import Watch
from gibbsian.training.log import Log
from gibbsian.training.optimise import build_optimiser, rate_at, value_at
from gibbsian.training.run import Run, Settings

__all__ = ["Job"]

logger = logging.getLogger("gibbsian")


class Job:
    """A run in progress: energy, objective, data, optimiser, average, guard and log."""

    def __init__(
        self,
        energy: Any,
        objective: Objective,
        data: Any,
        settings: Settings,
        *,
        epochs: int | None,
        device: torch.device | str | None,
        run_dir: Path | None,
        transform: Any,
    ) -> None:
        self.world, where = join(device)
        self.device = where or _device_of(energy, data)
        self.given, self.settings, self.transform = objective, settings, transform
        energy.to(self.device)
        self.run = run = Run(energy, objective, (), run_dir, [])
        self.feed = self.make_feed(data)
        if epochs is not None:
            settings = self.settings = dataclasses.replace(settings, steps=_steps_in(epochs, self.feed))
        run.state = objective.init(energy, self.feed.first(), self.stream("init"))
        modules = [energy, *state_modules(run.state)]
        self.world.copy_from_first(modules)
        trainable = {id(p): p for module in modules for p in module.parameters() if p.requires_grad}
        self.parameters = list(trainable.values())
        own = {id(p) for p in energy.parameters()}
        self.split = sum(key in own for key in trainable)  # the energy's parameters come first
        if not self.parameters:
            raise ArgumentError(
                f"{type(energy).__name__} has no trainable parameters and {type(objective).__name__} learns "
                "nothing by itself; give an energy with some, for example gibbsian.as_energy(module, domain)"
            )
        self.rate = rate_at(settings.schedule, settings.lr, settings.steps)
        self.optimiser, self.options = build_optimiser(
            settings.optimiser, self.parameters, settings.lr, capturable=settings.compile and self.device.type == "cuda"
        )
        self.base_rates = [float(group["lr"]) for group in self.optimiser.param_groups]
        self.generator = self.stream("chains")
        self.ema = None if settings.ema is None else Ema(energy, settings.ema)
        run.ema = self.ema.energy if self.ema else None
        self.watch = Watch(settings.guard) if settings.guard else None
        self.captured = CapturedStep(self) if settings.compile else None
        self.log = Log(None, run.history)
        self.loss_sum, self.summed = torch.zeros((), dtype=torch.float64, device=self.device), 0
        self.best: tuple[int, float] | None = None
        self.saved_at: int | None = None

    def make_feed(self, data: Any) -> Feed:
        """Batches of `data` for this process, checked by the objective."""
        energy, objective = self.run.energy, self.given

        def check(batch: Any) -> None:
            objective.check(energy, batch)
            _check_precision(energy, observed(batch))

        return make_feed(
            data,
            self.settings.batch_size,
            seed=self.settings.seed,
            device=self.device,
            check=check,
            transform=self.transform,
            rank=self.world.rank,
            world=self.world.size,
        )

    def stream(self, name: str, tries: int = 0) -> torch.Generator:
        """A random stream of this process; another one after each rollback."""
        rank = self.world.rank
        full = f"{name}/{rank}/{tries}" if rank or tries else name
        return stream(self.settings.seed, full, self.device)

    # --- one step -----------------------------------------------------------------------------------

    def set_rate(self) -> float:
        """Set the learning rate and scheduled options of the coming step; returns the rate."""
        soft = self.watch.guard.factors(self.watch.tries)[0] if self.watch else 1.0
        rate = self.rate(self.run.step) * soft
        for group, base in zip(self.optimiser.param_groups, self.base_rates, strict=True):
            own = base * (rate / self.settings.lr)
            if isinstance(group["lr"], Tensor):  # a captured step reads it where it is
                group["lr"].fill_(own)
            else:
                group["lr"] = own
            for name, schedule in self.options.items():
                group[name] = value_at(schedule, self.run.step)
        return rate

    def precision(self, *, cache: bool = True) -> AbstractContextManager[Any]:
        """The context of the forward pass."""
        if self.settings.precision == "bf16":
            return torch.autocast(self.device.type, dtype=torch.bfloat16, cache_enabled=cache)
        return nullcontext()

    def differentiate(self, batch: Any) -> tuple[Loss | None, str | None]:
        """The loss on a batch, with its gradients in place; or what diverged."""
        run = self.run
        captured = self.captured.differentiate(batch) if self.captured else None
        if captured is not None:
            return captured, None
        try:
            with self.precision():
                loss = run.objective(run.energy, batch, run.state, self.generator)
            self.backward(loss)
        except (DivergenceError, torch.linalg.LinAlgError) as error:
            return None, str(error)
        return loss._replace(value=loss.value.detach(), other=None), None  # lets go of the graph

    def backward(self, loss: Loss) -> None:
        """Gradients of the loss; of two losses where there are two players."""
        if not loss.value.requires_grad:
            raise ArgumentError(
                f"the loss of {type(self.run.objective).__name__} depends on no trainable parameter of "
                f"{type(self.run.energy).__name__}; check requires_grad, and that forward uses its parameters"
            )
        if loss.other is None:
            loss.value.backward()
            return
        own, theirs = self.parameters[: self.split], self.parameters[self.split :]
        gradients = [
            *torch.autograd.grad(loss.value, own, retain_graph=True, allow_unused=True),
            *torch.autograd.grad(loss.other, theirs, allow_unused=True),
        ]
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient

    def clip_gradients(self, *, measure: bool) -> Tensor | None:
        """Clip the gradients where that is asked for; their norm before that, where it is needed."""
        if self.settings.clip is not None:
            return torch.nn.utils.clip_grad_norm_(self.parameters, self.settings.clip)
        if not measure:
            return None
        return torch.nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])

    def numbers(self, loss: Loss, norm: Tensor | None) -> dict[str, float]:
        """Loss, gradient norm and metrics as numbers, means over processes; waits once for the device."""
        tensors = {"loss": loss.value, **loss.metrics}
        if norm is not None:
            tensors["gradient_norm"] = norm
        values = torch.stack([t.detach().double().mean() for t in tensors.values()]).tolist()
        return self.world.mean(dict(zip(tensors, values, strict=True)), self.device)

    def trouble(self, numbers: dict[str, float]) -> str | None:
        """Why these numbers mean that the run has diverged, or None."""
        if self.watch is not None:
            return self.watch.look(numbers)
        return None if math.isfinite(numbers["loss"]) else f"the loss is {numbers['loss']}"

    def finish_step(self, loss: Loss) -> None:
        """Move the parameters and the average, keep the objective's state, count the step."""
        run = self.run
        run.step += 1
        if self.captured is not None and loss is self.captured.loss:
            run.state = self.captured.update()
        else:
            self.optimiser.step()
            self.drop_gradients()
            run.state = loss.state
        run.metrics = {"loss": loss.value.detach(), **loss.metrics}
        self.loss_sum += run.metrics["loss"]
        self.summed += 1
        if self.ema is not None:
            self.ema.update(run.energy, run.step)

    def drop_gradients(self) -> None:
        """Forget the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    def mean_loss(self) -> float:
        """The mean of the losses since this was last asked."""
        mean = self.world.mean({"loss": float(self.loss_sum) / max(1, self.summed)}, self.device)
        self.loss_sum.zero_()
        self.summed = 0
        return mean["loss"]

    def warn(self, numbers: dict[str, float]) -> None:
        """Tell the user about early signs of trouble, each once."""
        for text in self.watch.warnings(numbers, self.run.objective) if self.watch else []:
            self.event("warning", text)
            if self.world.first:
                warnings.warn(f"step {self.run.step}: {text}", TrainingWarning, stacklevel=4)

    def event(self, name: str, message: str, **more: Any) -> None:
        """Put something that happened into the log."""
        self.log.write({"event": name, "step": self.run.step, **more, "message": message})

    # --- saving and going back ----------------------------------------------------------------------

    def capture(self) -> dict[str, Any]:
        """Everything that the next step depends on; under `own` what each process has to itself."""
        run, feed = self.run, self.feed
        return {
            "step": run.step,
            "device": self.device.type,
            "position": (feed.epoch, feed.index),
            "energy": dict(run.energy.state_dict()),
            "frozen": [name for name, p in run.energy.named_parameters() if not p.requires_grad],
            "ema": dict(self.ema.energy.state_dict()) if self.ema else None,
            "optimiser": self.optimiser.state_dict(),
            "watch": self.watch.state() if self.watch else None,
            "best": self.best,
            "lines": len(run.history),
            "own": {
                "state": run.state,
                "chains": self.generator.get_state(),
                "transform": feed.noise.get_state(),
            },
        }

    def restore(self, tree: dict[str, Any]) -> None:
        """Go back (or forward) to what was captured and frozen."""
        run, own = self.run, tree["own"]
        run.step = tree["step"]
        checkpoint.load_module(run.energy, tree["energy"], tree["frozen"])
        if self.ema is not None:
            checkpoint.load_module(self.ema.energy, tree["ema"])
        self.load_optimiser(tree["optimiser"])
        self.drop_gradients()
        if self.captured is not None:
            self.captured.reset()
        run.state = checkpoint.thaw(own["state"], run.state, self.device)
        if tree["device"] == self.device.type:
            self.generator.set_state(own["chains"].cpu())
            self.feed.noise.set_state(own["transform"].cpu())
        epoch, index = tree["position"]
        self.feed.seek(epoch, index, salt=self.watch.tries if self.watch else 0)

    def load_optimiser(self, saved: dict[str, Any]) -> None:
        """The optimiser's saved state; how it computes stays as it was built for this device."""
        how: list[dict[str, Any]] = [
            {key: group[key] for key in ("lr", "fused", "foreach", "capturable") if key in group}
            for group in self.optimiser.param_groups
        ]
        try:
            self.optimiser.load_state_dict(checkpoint.freeze(saved))
        except (ValueError, KeyError) as error:
            raise CheckpointError(f"the saved optimiser does not fit this one: {error}") from error
        for group, own in zip(self.optimiser.param_groups, how, strict=True):
            group.update(own)

    def resume(self, tree: dict[str, Any]) -> None:
        """Go on from a checkpoint, which holds what every process had to itself."""
        ranks = tree["ranks"]
        if len(ranks) != self.world.size:
            raise CheckpointError(
                f"the run was saved by {len(ranks)} processes and is resumed by {self.world.size}; "
                f"launch {len(ranks)}, or train the energy of gibbsian.load(folder) anew"
            )
        if self.world.mean({"step": float(tree["step"])}, self.device)["step"] != tree["step"]:
            raise CheckpointError(
                f"the processes see different checkpoints, this one that of step {tree['step']}; "
                "put the run folder on a disk that all of them share"
            )
        if tree["device"] != self.device.type:
            text = f"the run was saved on {tree['device']} and goes on on {self.device.type}"
            warnings.warn(f"{text}: its random numbers begin anew", TrainingWarning, stacklevel=3)
            self.generator = stream(self.settings.seed, f"chains/{self.world.rank}/from/{tree['step']}", self.device)
        if self.watch is not None and tree["watch"] is not None:
            self.watch.load(tree["watch"])
            self.run.objective = self.watch.guard.soften(self.given, self.watch.tries)
        self.best = tree["best"]
        self.restore({**tree, "own": ranks[self.world.rank]})
        self.saved_at = self.run.step

    def snapshot(self) -> None:
        """Keep this state in memory to roll back to, if it is time and its weights are finite."""
        if self.watch is None or not self.watch.wants_snapshot(self.run.step):
            return
        if bool(torch.isfinite(torch.nn.utils.get_total_norm(self.parameters))):
            self.watch.keep(self.run.step, checkpoint.freeze(self.capture()))

    def roll_back(self, reason: str | None) -> None:
        """Let the guard go back to a good state, with new streams and gentler settings, or give up."""
        run, watch, failed = self.run, self.watch, self.run.step + 1
        if watch is None:
            raise DivergenceError(f"step {failed}: {reason}; the guard is off, so the run stops here")
        if watch.tries >= watch.guard.tries:
            raise DivergenceError(
                f"step {failed}: {reason}; given up after {watch.tries} rollbacks "
                f"({'; '.join(watch.trail)}); start with a much lower learning rate, more sampler steps, "
                "or a smaller step size"
            )
        snapshot = watch.roll_back(failed, str(reason))
        self.restore(snapshot)
        run.objective = watch.guard.soften(self.given, watch.tries)
        self.generator = self.stream("chains", watch.tries)
        self.loss_sum.zero_()
        self.summed, self.saved_at = 0, None
        self.event("rollback", watch.trail[-1], attempt=watch.tries, failed=failed)
        if self.world.first:
            logger.warning("rolled back: %s", watch.trail[-1])
            if run.folder is not None:  # checkpoints of what came to nothing
                checkpoint.prune(run.folder, [s for s in checkpoint.steps_saved(run.folder) if s <= run.step])

    def save(self) -> None:
        """Write a checkpoint with the states of all processes, and remove old ones."""
        run = self.run
        if run.folder is None or self.saved_at == run.step:
            return
        tree = self.capture()
        tree["ranks"] = self.world.gather(checkpoint.freeze(tree.pop("own")))
        self.saved_at = run.step
        if self.world.first:
            checkpoint.save_checkpoint(run.folder, run.step, tree)
            past = [step for step in checkpoint.steps_saved(run.folder) if step <= run.step]
            best = [self.best[0]] if self.best else []
            checkpoint.prune(run.folder, {*past[-self.settings.keep_last :], *best})
        self.world.wait(self.device)

    def create_folder(self) -> None:
        """Write configuration and first checkpoint into a new run folder, where one is wanted."""
        run = self.run
        if run.folder is None:
            return
        tree = self.capture()
        tree["ranks"] = self.world.gather(checkpoint.freeze(tree.pop("own")))
        self.saved_at = run.step
        if self.world.first:
            rows = self.feed.rows
            config = {"energy": run.energy, "objective": self.given, "settings": self.settings, "rows": rows}
            folder.create(run.folder, config, tree, self.device)
        self.world.wait(self.device)


def _device_of(energy: nn.Module, data: Any) -> torch.device:
    """Where the energy lives; one without tensors lives where the data does."""
    for tensor in (*energy.parameters(), *energy.buffers()):
        return tensor.device
    first = data[0] if isinstance(data, tuple) and data else data
    return first.device if isinstance(first, Tensor) else torch.device("cpu")


def _steps_in(epochs: int, feed: Feed) -> int:
    if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1:
        raise ArgumentError(f"epochs={epochs!r}: must be a whole number from 1 on")
    if not feed.per_epoch:
        raise ArgumentError("this data does not say how many batches it has; give steps instead of epochs")
    return epochs * feed.per_epoch


def _check_precision(energy: nn.Module, x: Tensor) -> None:
    """Refuse data in another precision than the parameters: nothing is cast silently."""
    for name, p in energy.named_parameters():
        if p.is_floating_point() and p.dtype != x.dtype:
            raise DataError(
                f"the data is {x.dtype} but the energy's {name} is {p.dtype}; convert one of them, "
                f"for example data.to({p.dtype}) or energy.to({x.dtype})"
            )
