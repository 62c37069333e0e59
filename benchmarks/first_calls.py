"""First compiled calls, each in a process of its own: new (nothing on disk, nor the header that the compiler prepares for C++ once
for all), cold (no cache on disk) and warm (the cache of the process before).

    python benchmarks/first_calls.py --save results/first_calls.json
    python benchmarks/first_calls.py --kernels NUTS HMC

What counts is the call of `gibbsian.sample(..., compile=True)`, imports left out: seconds of wall time, and of the processors,
those of the C++ compiler and of other processes that it starts included, which a busy machine does not change.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings

from timing import save

CHAINS, STEPS = 4, 200
KERNELS = ["random walk", "ULA", "MALA", "HMC", "NUTS", "ChEES", "MCLMC", "Gibbs"]


def setting(name: str):
    """Energy, kernel and start: eight schools, or an RBM of 20 × 10 units."""
    import torch

    import gibbsian as gb

    k, g = gb.kernels, torch.Generator().manual_seed(0)
    if name == "Gibbs":
        rbm = gb.models.RBM(20, 10)
        return rbm, k.Gibbs(), (torch.rand(CHAINS, 20, generator=g) < 0.5).float()
    y = torch.tensor([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    sigma = torch.tensor([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])

    def eight_schools(x):
        mu, log_tau, eta = x[:, 0], x[:, 1], x[:, 2:]
        theta = mu[:, None] + log_tau.exp()[:, None] * eta
        prior = mu**2 / 50 + torch.log1p((log_tau.exp() / 5) ** 2) - log_tau + 0.5 * (eta**2).sum(1)
        return prior + 0.5 * (((y - theta) / sigma) ** 2).sum(1)

    kernels = {
        "random walk": k.RandomWalk(0.3), "ULA": k.Langevin(0.1), "MALA": k.MALA(0.3), "HMC": k.HMC(0.2, leapfrog_steps=10),
        "NUTS": k.NUTS(0.3), "ChEES": k.ChEES(0.2, trajectory=1.5), "MCLMC": k.MCLMC(0.5, length=3.0),
    }  # fmt: skip
    energy = gb.as_energy(eight_schools, gb.domains.Real(10))
    return energy, kernels[name], 0.1 * torch.randn(CHAINS, 10, generator=g)


def processor_seconds() -> float:
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)


def child(name: str) -> None:
    """One first call, and one more like it."""
    import torch

    import gibbsian as gb

    warnings.simplefilter("ignore")
    energy, kernel, x0 = setting(name)
    found = {}
    for call in ("first", "second"):
        wall, used = time.perf_counter(), processor_seconds()
        trace = gb.sample(energy, kernel, x0, steps=STEPS, generator=torch.Generator().manual_seed(1), compile=True)
        found[call] = {"seconds": time.perf_counter() - wall, "processor": processor_seconds() - used}
    print(json.dumps({**found, "compiled": trace.compiled, "note": trace.compile_note}))


def run(name: str, caches: str, temporary: str) -> dict:
    """A first call in a process that keeps what it compiles in one folder, and the compiler's header in another."""
    place = {"TORCHINDUCTOR_CACHE_DIR": f"{caches}/inductor", "XDG_CACHE_HOME": caches, "TMPDIR": temporary}
    command = [sys.executable, __file__, "--child", name]
    out = subprocess.run(command, env={**os.environ, **place}, capture_output=True, text=True, check=True)
    return json.loads(out.stdout.splitlines()[-1])


def measure(name: str) -> dict:
    """New, cold and warm, in processes that share empty folders."""
    with tempfile.TemporaryDirectory() as folder:
        for part in ("header", "once", "again"):
            os.mkdir(f"{folder}/{part}")
        caches = {"new": "once", "cold": "again", "warm": "again"}
        runs = {kind: run(name, f"{folder}/{place}", f"{folder}/header") for kind, place in caches.items()}
    warm = runs["warm"]
    row = {"kernel": name, "compiled": warm["compiled"], "note": warm["note"]}
    for kind, one in runs.items():
        row |= {f"{kind}_s": one["first"]["seconds"], f"{kind}_cpu_s": one["first"]["processor"]}
    return row | {"then_ms": 1000 * warm["second"]["processor"]}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", nargs="+", default=KERNELS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--save", help="write the results as JSON")
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child)
        sys.exit()
    rows = []
    for name in arguments.kernels:
        rows.append(measure(name))
        print({key: round(v, 2) if isinstance(v, float) else v for key, v in rows[-1].items()}, flush=True)
    save({"chains": CHAINS, "steps": STEPS, "load": os.getloadavg()[0], "rows": rows}, arguments.save)
