"""`gibbsian doctor`: is everything here in order?"""

import argparse
import importlib.metadata
import platform
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.text import Text
from torch import Tensor

import gibbsian
from gibbsian import energies, kernels, models, objectives, partition, testing
from gibbsian.app.cli.show import Output
from gibbsian.data.fetch import cache_folder
from gibbsian.energy import Energy
from gibbsian.errors import GibbsianError
from gibbsian.random import stream
from gibbsian.sampling.sample import sample
from gibbsian.sampling.trace import Trace
from gibbsian.training.fit import fit, load

_PACKAGES = (
    "torch", "numpy", "scipy", "safetensors", "matplotlib", "pillow", "scikit-learn", "jsonargparse", "jinja2", "pooch",
)  # fmt: skip
_EXTRAS = {
    "zuko": "flows",
    "arviz-base": "arviz",
    "arviz-stats": "arviz",
    "tensorboard": "tensorboard",
    "pandas": "tables",
    "pyarrow": "parquet",
    "datasets": "datasets",
    "optuna": "search",
    "wandb": "wandb",
}


def run_doctor(options: argparse.Namespace, rest: list[str]) -> int:
    """Versions, devices, checks; 1 where a check fails."""
    out = Output(options)
    versions = {"gibbsian": gibbsian.__version__, "python": platform.python_version()}
    versions |= {name: _version(name) or "missing" for name in _PACKAGES}
    extras = {
        name: _version(name) or f"not installed (pip install 'gibbsian[{extra}]')" for name, extra in _EXTRAS.items()
    }
    devices = _devices()
    disk = shutil.disk_usage(".")
    places = {"disk here": f"{disk.free / 2**30:.0f} GiB free", "cache of data": str(cache_folder())}
    out.table([*versions.items(), *extras.items()], title="versions")
    out.table([*devices.items(), *places.items()], title="machine")
    results = [_result(name, check) for name, check in _checks(compiler=not options.fast).items()]
    verdict = {True: Text("good", "green"), False: Text("BAD", "red")}
    shown = [(r["check"], verdict[r["good"]], str(r["found"]), f"{r['seconds']:.1f} s") for r in results]
    out.table(shown, title="checks against exact answers", header=("check", "", "found", "time"))
    bad = sum(not r["good"] for r in results)
    failed = f"{bad} of {len(results)} checks failed: please report this, with the table above"
    out.say(failed if bad else "everything is in order")
    out.document({"versions": versions, "extras": extras, "devices": devices, "checks": results, "good": not bad})
    return 1 if bad else 0


def _devices() -> dict[str, str]:
    devices = {"cpu": f"{torch.get_num_threads()} threads, {platform.processor() or platform.machine()}"}
    for i in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(i)
        devices[f"cuda:{i}"] = f"{torch.cuda.get_device_name(i)}, {free / 2**30:.0f} of {total / 2**30:.0f} GiB free"
    return devices


def _checks(compiler: bool) -> dict[str, Callable[[], str]]:
    return {
        "Gibbs on a Boltzmann machine": _gibbs,
        "AIS on a Boltzmann machine": _ais,
        **{f"{type(k).__name__} on a skewed law": partial(_invariance, energies.Bimodal, k) for k in _KERNELS},
        "MAMS on a banana": partial(_invariance, energies.Banana, kernels.MAMS(0.5, 3)),
        "discrete kernels on an Ising ring": _discrete,
        "saving and loading": _saving,
        **({"the compiler": _compiler} if compiler else {}),
    }


def _result(name: str, check: Callable[[], str]) -> dict[str, Any]:
    begun = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            text, good = check(), True
    except (GibbsianError, RuntimeError, OSError, AssertionError) as error:
        text, good = " ".join(str(error).split())[:200], False
    return {"check": name, "good": good, "found": text, "seconds": round(time.perf_counter() - begun, 2)}


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


class Wrong(GibbsianError):
    """A check found an answer that is not the exact one."""


def _machine() -> models.RBM:
    rbm = models.RBM(10, 6)
    g = stream(0, "doctor")
    with torch.no_grad():
        for parameter in rbm.parameters():
            parameter.copy_(0.7 * torch.randn(parameter.shape, generator=g))
    return rbm


def _exact_means(energy: Energy, values: list[float]) -> Tensor:
    """E[x] by a sum over all states of units with these values."""
    states = torch.cartesian_prod(*[torch.tensor(values)] * energy.domain.numel)
    with torch.no_grad():
        return torch.softmax(-energy(states).double(), 0) @ states.double()


def _gibbs() -> str:
    rbm = _machine()
    exact = _exact_means(rbm, [0.0, 1.0])
    g = stream(0, "doctor/gibbs")
    chains = 4000
    last = sample(rbm, kernels.Gibbs(), torch.zeros(chains, 10), steps=200, keep=False, generator=g).last.double()
    z = ((last.mean(0) - exact) / (exact * (1 - exact) / chains).sqrt()).abs().max()
    if z > 5:  # ten normal numbers beyond five deviations: less than one in a hundred thousand
        raise Wrong(f"means of {chains} chains are {float(z):.1f} standard errors from the exact ones")
    return f"means within {float(z):.1f} standard errors"


def _ais() -> str:
    rbm = _machine()
    g = stream(0, "doctor/ais")
    exact = float(partition.exact(rbm).value)
    data = (torch.rand(500, 10, generator=g) < 0.5).float()
    found = partition.ais(rbm, data, chains=200, betas=300, generator=g)
    z = abs(float(found.value) - exact) / float(found.stderr)
    if z > 5:
        raise Wrong(f"log Z is {float(found.value):.3f}, exactly {exact:.3f}")
    return f"log Z {float(found.value):.3f}, exactly {exact:.3f}"


_KERNELS: tuple[Any, ...] = (
    kernels.RandomWalk(1.0),
    kernels.MALA(0.8),
    kernels.HMC(0.5, 4),
    kernels.NUTS(0.5),
    kernels.ChEES(0.5, 2.0),
    kernels.UnderdampedLangevin(0.5, adjusted=True),
)


def _invariance(law: Callable[[], Energy], kernel: Any) -> str:
    g = stream(0, "doctor/invariance")
    report = testing.check_invariance(law(), kernel, chains=4000, generator=g)
    return f"largest deviation {report.z:.2f} of {report.threshold:.2f} allowed, over {report.functions} functions"


def _discrete() -> str:
    ring = models.Ising(6, coupling=0.4, field=0.2)
    exact = float(_exact_means(ring, [-1.0, 1.0]).mean())
    worst = 0.0
    for kernel in (kernels.SiteGibbs(), kernels.GibbsWithGradients(), kernels.DiscreteLangevin(1.0)):
        g = stream(0, f"doctor/{type(kernel).__name__}")
        last = sample(ring, kernel, torch.ones(4000, 6), steps=150, keep=False, generator=g).last.double().mean(1)
        worst = max(worst, abs(float(last.mean()) - exact) / float(last.std() / 4000**0.5))
    if worst > 5:
        raise Wrong(f"a mean is {worst:.1f} standard errors from the exact one")
    return f"means within {worst:.1f} standard errors"


def _saving() -> str:
    with tempfile.TemporaryDirectory() as folder:
        rbm, run = models.RBM(6, 4), Path(folder) / "run"
        x = (torch.rand(60, 6, generator=stream(0, "doctor/data")) < 0.5).float()
        fit(rbm, objectives.ContrastiveDivergence(kernels.Gibbs()), x, steps=5, run_dir=run, progress=False)
        if not torch.equal(load(run)(x), rbm(x)):
            raise Wrong("a model came back with other energies than it was saved with")
    return "a run was saved and came back the same"


def _compiler() -> str:
    def run(compile: bool) -> Trace:
        g = stream(0, "doctor/compiler")
        return sample(energies.Banana(), kernels.MALA(0.3), torch.zeros(8, 2), steps=64, generator=g, compile=compile)

    eager, compiled = run(False), run(True)
    if not torch.allclose(eager.last, compiled.last, atol=1e-3):
        raise Wrong("compiled and eager chains differ")
    if not compiled.compiled:
        return f"not used here: {compiled.compile_note[:120]}"
    return "compiled and eager chains agree"
