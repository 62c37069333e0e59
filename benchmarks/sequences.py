"""Families of sequences beside adabmDCA and pydca: contacts, mutants of TEM-1, and Boltzmann learning.

    GIBBSIAN_DATA=... python benchmarks/sequences.py --peers PYTHON --save benchmarks/results/sequences.json
    GIBBSIAN_DATA=... python benchmarks/sequences.py --gpu --parts contacts --save benchmarks/results/sequences_gpu.json

PYTHON is the interpreter of an environment with adabmDCA and pydca; where they lie elsewhere, PEERS_PATH names the folder. One core (`OMP_NUM_THREADS=1`); CPU seconds from the file
to the scores of all pairs, imports left out, on both sides. Families of more rows than `--rows` are cut to that many, every
k-th, the same file for all. Contacts: below 8 Å, |i - j| > 4, between the nearest heavy atoms of one structure; for PF13354 there are
only the smallest distances over the structures of the family, by which more than twice as many pairs of the same fold touch. So the share
of all pairs that touch, "chance", stands beside every precision, and the stricter one between Cβ atoms where it is known.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import indent

import pandas as pd
import torch

import gibbsian
from gibbsian import sequences
from gibbsian.errors import DataWarning, TrainingWarning
from gibbsian.sequences import Contacts, Family

FAMILIES = {
    "RF00167": ("RF00167.fasta.gz", "rna", "heavy_atom"),
    "PF00014": ("PF00014_mgap6.fasta.gz", "protein", "heavy_atom"),
    "PF00071": ("PF00071.fasta.gz", "protein", "heavy_atom"),
    "PF13354": ("PF13354_wo_ref_seqs.fasta.gz", "protein", "family_minimum"),
    "BLAT_ECOLX": ("BLAT_ECOLX.a2m.gz", "protein", "heavy_atom"),
}
# what runs in the peers' environment; `scores` is a list of [i, j, score]
PEERS = {
    "mean field, pydca": """
from pydca.meanfield_dca.meanfield_dca import MeanFieldDCA
begin()
scores = [[i, j, s] for (i, j), s in MeanFieldDCA(FILE, KIND, pseudocount=0.5, seqid=0.8).compute_sorted_FN_APC()]
""",
    "mean field, adabmDCA": """
from adabmDCA.api.contacts import predict_contacts
begin()
m = predict_contacts(fasta_path=FILE, alphabet=KIND, pseudocount=0.5, device=DEVICE).scores
m = m.tolist()
scores = [[i, j, m[i][j]] for i in range(len(m)) for j in range(i + 1, len(m))]
""",
    "pseudo-likelihood, pydca": """
from pydca.plmdca.plmdca import PlmDCA
begin()
found = PlmDCA(FILE, KIND, seqid=0.8, max_iterations=100, num_threads=1).compute_sorted_FN_APC()
scores = [[i, j, s] for (i, j), s in found]
""",
}
PEER = """
import json, logging, sys, time, warnings
import numpy
warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
FILE, KIND, DEVICE = sys.argv[1:4]
CLOCK = time.process_time if DEVICE == "cpu" else time.perf_counter
times = []
def begin():
    times.append(CLOCK())
for _ in range(1 if DEVICE == "cpu" else 2):  # a GPU is warm the second time
    {body}
print(json.dumps({{"seconds": CLOCK() - times[-1], "scores": [[int(i), int(j), float(s)] for i, j, s in scores]}}))
"""
BOLTZMANN = """
import json, logging, sys, time, warnings
warnings.simplefilter("ignore")
from adabmDCA.api.training import train_model
seconds = []
for steps in (2, {steps}):
    begun = time.process_time()
    train_model(sys.argv[1], alphabet=sys.argv[2], learning_rate=0.05, n_sweeps=10, sampler="gibbs", n_chains={chains},
        target_pearson=0.999, max_gradient_steps=steps, max_epochs=steps, checkpoint_interval=None, device="cpu")
    seconds.append(time.process_time() - begun)
print(json.dumps({{"seconds": (seconds[1] - seconds[0]) / ({steps} - 2)}}))
"""
# its own settings, to a correlation of 0.95 or for {most} seconds
BOLTZMANN_GPU = """
import json, sys, time, warnings
warnings.simplefilter("ignore")
from adabmDCA.api.contacts import predict_contacts
from adabmDCA.api.training import train_model
seen = []
def look(one):
    seen.append((one.gradient_steps, one.metrics.get("Pearson", one.metrics.get("pearson"))))
def late():
    return time.perf_counter() - begun > {most}
train_model(sys.argv[1], alphabet=sys.argv[2], max_gradient_steps=1, max_epochs=1, checkpoint_interval=None, device=sys.argv[3])
begun = time.perf_counter()
out = {{}}
try:
    done = train_model(sys.argv[1], alphabet=sys.argv[2], target_pearson=0.95, max_gradient_steps=100000, max_epochs=100000,
        checkpoint_interval=None, device=sys.argv[3], progress=look, is_cancelled=late)
    out["seconds"] = time.perf_counter() - begun
    m = predict_contacts(model=done.model).scores.tolist()
    out["scores"] = [[i, j, m[i][j]] for i in range(len(m)) for j in range(i + 1, len(m))]
except Exception as error:
    out["seconds"], out["missing"] = time.perf_counter() - begun, type(error).__name__
out["updates"], out["pearson"] = seen[-1] if seen else (0, None)
print(json.dumps(out))
"""


def folder() -> Path:
    return Path(os.environ["GIBBSIAN_DATA"]) / "sequence_families"


def touching(name: str, sites: int, column: str | None = None) -> torch.Tensor:
    """1 where two sites touch, 0 where they do not, NaN where nobody knows; by another column of distances where one is given."""
    column = column or FAMILIES[name][2]
    table = pd.read_csv(folder() / f"{name}_distances.csv.gz")
    out = torch.full((sites, sites), torch.nan)
    if column not in table:
        return out
    table = table.dropna(subset=[column])
    distance = torch.tensor(table[column].to_numpy(copy=True))
    out[torch.tensor(table["i"].to_numpy(copy=True)), torch.tensor(table["j"].to_numpy(copy=True))] = (
        distance < 8
    ).float()
    return out


def chance(truth: torch.Tensor) -> float:
    """The share of the known pairs with |i - j| > 4 that touch: the precision of a guess."""
    far = truth.triu(5)[torch.isfinite(truth) & (torch.ones_like(truth).triu(5) > 0)]
    return round(float(far.mean()), 4)


def judged(found: Contacts, truth: torch.Tensor, strict: torch.Tensor) -> dict:
    """Precisions by both distances, the second where it is known."""
    known = bool(torch.isfinite(strict).any())
    return {"precision": precisions(found, truth)} | ({"strict": precisions(found, strict)} if known else {})


def precisions(found: Contacts, truth: torch.Tensor) -> list[float]:
    """Of the best L, L/2, L/5 pairs."""
    sites = len(truth)
    return [round(sequences.precision(found, truth, n), 4) for n in (sites, sites // 2, sites // 5)]


def ranked(scores: list[list[float]], sites: int) -> Contacts:
    """Scores of a peer as contacts."""
    pairs = [(i, j, s) for i, j, s in scores if abs(i - j) > 4]
    pairs.sort(key=lambda one: -one[2])
    index = torch.tensor([[i, j] for i, j, _ in pairs])
    return Contacts(index, torch.tensor([s for *_, s in pairs]), torch.zeros(sites, sites))


def cut(name: str, rows: int, to: Path) -> Path:
    """Every k-th sequence without insertions and odd letters, so that all programs read the same."""
    file, alphabet, _ = FAMILIES[name]
    family = sequences.read(folder() / file, alphabet, identity=None, insertions=False)
    if len(family) > rows:
        family = family.select(torch.arange(rows) * len(family) // rows)
    path = to / f"{name}.fasta"
    Family(family.states, family.alphabet, tuple(f"s{i}" for i in range(len(family)))).write(path)
    return path


def ours(path: Path, alphabet: str, method: str, device: str = "cpu") -> tuple[float, Contacts]:
    """Seconds from the file to the scores: of the CPU, or of the wall where a GPU computes."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    begun = clock()
    family = sequences.read(path, alphabet, device=device, progress=False)
    found = sequences.contacts(sequences.fit_potts(family, method, device=device, progress=False))
    found = Contacts(*(part.cpu() for part in found))  # waits for the device
    return clock() - begun, found


def peer(python: str, body: str, path: Path, alphabet: str, most: float, device: str = "cpu") -> dict | str:
    threads = "1" if device == "cpu" else "8"
    environment = os.environ | {"OMP_NUM_THREADS": threads, "NUMBA_NUM_THREADS": threads, "PYTHONPATH": os.environ.get("PEERS_PATH", "")}  # fmt: skip
    command = [python, "-c", body, str(path), alphabet, device]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=most, env=environment, check=False)
    except subprocess.TimeoutExpired:
        return f"not done in {most:.0f} s"
    if done.returncode:
        return "failed: " + (done.stderr.strip().splitlines() or ["?"])[-1][:200]
    return json.loads(done.stdout.strip().splitlines()[-1])


def contacts_table(
    names: list[str], rows: int, python: str | None, most: float, only: str, record: Callable[[dict], None]
) -> None:
    with tempfile.TemporaryDirectory() as place:
        for name in names:
            path, alphabet = cut(name, rows, Path(place)), FAMILIES[name][1]
            family = sequences.read(path, alphabet, progress=False)
            truth, strict = touching(name, family.sites), touching(name, family.sites, "cb")
            row = {
                "family": name,
                "distance": FAMILIES[name][2],
                "chance": chance(truth),
                "rows": len(family),
                "sites": family.sites,
                "effective": round(family.effective, 1),
                "methods": {},
            }
            if bool(torch.isfinite(strict).any()):
                row["strict chance"] = chance(strict)
            for method in ("mean-field", "pseudo-likelihood", "asymmetric"):
                if not re.search(only, method):
                    continue
                seconds, found = ours(path, alphabet, method)
                row["methods"][f"{method}, gibbsian"] = {"seconds": round(seconds, 2)} | judged(found, truth, strict)
            for label, body in PEERS.items() if python else ():
                if not re.search(only, label):
                    continue
                found = peer(python, PEER.format(body=indent(body.strip(), "    ").strip()), path, alphabet, most)
                if isinstance(found, str):
                    row["methods"][label] = {"missing": found}
                else:
                    scores = ranked(found["scores"], family.sites)
                    row["methods"][label] = {"seconds": round(found["seconds"], 2)} | judged(scores, truth, strict)
            for label, one in row["methods"].items():
                print(f"{name:12s}{label:32s}", one, flush=True)
            record(row)


def boltzmann_table(python: str | None, chains: int, steps: int) -> dict:
    """CPU seconds of an update, 10 sweeps of Gibbs."""
    with tempfile.TemporaryDirectory() as place:
        out = {}
        for name in ("RF00167", "PF00014"):
            path, alphabet = cut(name, 4000, Path(place)), FAMILIES[name][1]
            family = sequences.read(path, alphabet, progress=False)
            seconds = []
            for n in (2, steps):
                begun = time.process_time()
                sequences.fit_potts(family, "boltzmann", chains=chains, steps=n, target=0.999, progress=False)
                seconds.append(time.process_time() - begun)
            row = {"gibbsian": round((seconds[1] - seconds[0]) / (steps - 2), 3)}
            if python:
                found = peer(python, BOLTZMANN.format(steps=steps, chains=chains), path, alphabet, 900)
                row["adabmDCA"] = found if isinstance(found, str) else round(found["seconds"], 3)
            out[name] = {"chains": chains, "sweeps": 10, "seconds an update": row}
            print(name, out[name], flush=True)
    return out


def tem1(rows: int | None, device: str = "cpu", identity: float = 0.8, only: str = ".") -> dict:
    """Spearman of -ΔE with the column 2500, settings of plmc: penalties, gaps ignored, weights at 80 % identity."""
    family = sequences.read(folder() / FAMILIES["BLAT_ECOLX"][0], identity=None, insertions=False)
    wild = family.states[:1]
    if rows is not None and len(family) > rows:
        family = family.select(
            torch.cat([torch.zeros(1, dtype=torch.long), torch.arange(1, rows) * len(family) // rows])
        )
    family = family.reweighted(identity, progress=False)
    table = pd.read_csv(folder() / "BLAT_ECOLX_mutants.csv.gz")
    letters = family.alphabet.without_gap()
    site = table["mutant"].str[1:-1].astype(int) - 24
    kept = table[(site >= 0) & (site < family.sites)]
    site = torch.tensor(site[kept.index].to_numpy(copy=True))
    letter = torch.tensor([letters.index(m[-1]) for m in kept["mutant"]])
    out = {
        "rows": len(family),
        "effective": round(family.effective, 1),
        "mutants": len(kept),
        "published": {"ProteinGym, EVmutation": 0.707, "ProteinGym, site-independent": 0.466},
    }
    for name, gaps, l2 in (
        ("plmc's penalties, gaps ignored", "ignored", "plmc"),
        ("λ = 0.01, gap as a letter", "letter", 0.01),
    ):
        if not re.search(only, name):
            continue
        begun = time.perf_counter(), time.process_time()
        potts = sequences.fit_potts(family, gaps=gaps, l2=l2, device=device, progress=False)
        seconds = time.perf_counter() - begun[0], time.process_time() - begun[1]
        states = wild[0].long() - int(gaps == "ignored")
        scores = sequences.mutation_table(potts, states).cpu()[:, 1 if gaps == "letter" else 0 :]
        rho = pd.Series(scores[site, letter].numpy()).corr(kept["2500"].reset_index(drop=True), method="spearman")
        out[name] = {
            "spearman": round(float(rho), 4),
            "wall seconds": round(seconds[0], 1),
            "CPU seconds": round(seconds[1], 1),
        }
        print("TEM-1", name, out[name], flush=True)
    potts = sequences.fit_potts(family, "mean-field", device=device, progress=False)
    scores = sequences.mutation_table(potts, wild[0].long()).cpu()[:, 1:]
    rho = pd.Series(scores[site, letter].numpy()).corr(kept["2500"].reset_index(drop=True), method="spearman")
    out["mean field"] = {"spearman": round(float(rho), 4)}
    print("TEM-1 mean field", out["mean field"], flush=True)
    profile = family.profile(1 / (1 + family.effective)).log()[:, 1:].float()
    rho = pd.Series(profile[site, letter].sub(profile[site, wild[0].long()[site] - 1]).numpy()).corr(
        kept["2500"].reset_index(drop=True), method="spearman"
    )
    out["sites alone"] = {"spearman": round(float(rho), 4)}
    print("TEM-1 sites alone", out["sites alone"], flush=True)
    return out


def gpu_run(
    names: list[str], parts: list[str], most: float, python: str | None, results: dict, save: Callable[[], None], device: str
) -> None:  # fmt: skip
    """Whole families on a GPU: contacts, TEM-1, then Boltzmann learning to a Pearson correlation of 0.95 with log Z from both sides."""
    rows = results.setdefault("families", {})
    with tempfile.TemporaryDirectory() as place:
        for name in names if {"contacts", "boltzmann", "rivals"} & set(parts) else ():
            path, alphabet = cut(name, 10**9, Path(place)), FAMILIES[name][1]
            family = sequences.read(path, alphabet, device=device, progress=False)
            truth = touching(name, family.sites)
            row = rows[name] = rows.get(name, {}) | {"rows": len(family), "sites": family.sites}
            if "contacts" in parts:
                for method in ("mean-field", "pseudo-likelihood", "asymmetric"):
                    for _ in range(2 if method == "mean-field" else 1):
                        seconds, found = ours(path, alphabet, method, device)
                    row[method] = {"seconds": round(seconds, 2), "precision": precisions(found, truth)}
                    print(name, method, row[method], flush=True)
                if python:
                    body = PEER.format(body=indent(PEERS["mean field, adabmDCA"].strip(), "    ").strip())
                    theirs = peer(python, body, path, alphabet, most, device)
                    row["mean-field, adabmDCA"] = told(theirs, truth)
                    print(name, "mean-field, adabmDCA", row["mean-field, adabmDCA"], flush=True)
            if "boltzmann" in parts:
                for so_far in boltzmann_on_gpu(family, truth, device):
                    row["boltzmann"] = so_far
                    save()
                print(name, "boltzmann", row["boltzmann"], flush=True)
            if "rivals" in parts and python:
                theirs = peer(python, BOLTZMANN_GPU.format(most=most), path, alphabet, most + 40, device)
                row["boltzmann, adabmDCA"] = told(theirs, truth)
                print(name, "boltzmann, adabmDCA", row["boltzmann, adabmDCA"], flush=True)
            save()
    if "tem1" in parts:
        results["tem1"] = tem1(None, device)
        save()


def told(found: dict | str, truth: torch.Tensor) -> dict:
    """What a peer said, its scores as precisions."""
    if isinstance(found, str):
        return {"missing": found}
    scores = found.pop("scores", None)
    found["seconds"] = round(found["seconds"], 2)
    return found | ({} if scores is None else {"precision": precisions(ranked(scores, len(truth)), truth)})


def boltzmann_on_gpu(family: Family, truth: torch.Tensor, device: str = "cuda") -> Iterator[dict]:
    """Learned, drawn from, annealed: what is known after each."""
    generator = torch.Generator(device).manual_seed(0)
    begun = time.perf_counter()
    potts = sequences.fit_potts(family, "boltzmann", generator=generator, steps=4000, progress=False)
    found = Contacts(*(part.cpu() for part in sequences.contacts(potts)))  # waits for the device
    out = {"seconds": round(time.perf_counter() - begun, 1), "precision": precisions(found, truth)}
    yield out
    begun = time.perf_counter()
    drawn = sequences.sample_sequences(
        potts, family, 5000, sweeps=300, start="natural", generator=generator, progress=False
    )
    checks = sequences.compare(family, drawn, triples=200)
    out["drawn"] = {
        "seconds": round(time.perf_counter() - begun, 1),
        **{
            n: [round(getattr(checks, n).pearson, 4), round(getattr(checks, n).slope, 3)]
            for n in ("one", "two", "three")
        },
    }
    out["drawn"]["nearest identity"] = [
        round(float(checks.nearest.mean()), 3),
        round(float(checks.nearest_natural.mean()), 3),
    ]
    yield out
    begun = time.perf_counter()
    found = sequences.entropy(
        potts, family, drawn=drawn, chains=500, max_betas=500, generator=generator, progress=False
    )
    z = found.log_z
    out["log Z"] = {
        "value": float(z.value),
        "lower": float(z.lower),
        "upper": float(z.upper),
        "forward": float(z.diagnostics["forward"].value) if "forward" in z.diagnostics else None,
        "reverse": float(z.diagnostics["reverse"].value) if "reverse" in z.diagnostics else None,
    }
    out["entropy"] = {
        "value": found.value,
        "lower": found.lower,
        "upper": found.upper,
        "seconds": round(time.perf_counter() - begun, 1),
    }
    yield out


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peers", help="an interpreter with adabmDCA and pydca")
    parser.add_argument("--families", nargs="*", default=None)
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--timeout", type=float, default=400.0, help="seconds that a peer may take")
    parser.add_argument("--methods", default=".", help="of contacts and TEM-1, a regular expression")
    parser.add_argument(
        "--parts",
        nargs="*",
        default=["contacts", "boltzmann", "tem1"],
        help="on the GPU also rivals: of Boltzmann learning",
    )
    parser.add_argument("--tem1-rows", type=int)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--device", default="cuda", help="of --gpu")
    parser.add_argument("--seconds", type=float, default=60.0, help="on the GPU: that a peer may take")
    parser.add_argument("--save")
    options = parser.parse_args()
    warnings.simplefilter("ignore", DataWarning)
    warnings.simplefilter("ignore", TrainingWarning)
    torch.set_num_threads(1)
    torch.optim.LBFGS(
        [torch.zeros(1, requires_grad=True)]
    )  # the first imports torch's compiler, and imports are left out
    results: dict = {
        "machine": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "gibbsian": gibbsian.__version__,
    }
    if options.save and Path(options.save).exists():  # parts may be run one by one
        results |= json.loads(Path(options.save).read_text())

    def save() -> None:
        if options.save:
            Path(options.save).write_text(json.dumps(results, indent=1) + "\n")

    def record(row: dict) -> None:
        results.setdefault("contacts", [])
        results["contacts"] = [one for one in results["contacts"] if one["family"] != row["family"]] + [row]
        save()

    if options.gpu:
        results |= {
            "machine": torch.cuda.get_device_name() if options.device == "cuda" else "none",
            "torch": torch.__version__,
        }
        torch.set_num_threads(8)
        names = options.families or ["RF00167", "PF00071"]
        gpu_run(names, options.parts, options.seconds, options.peers, results, save, options.device)
        return
    if "contacts" in options.parts:
        contacts_table(
            options.families or list(FAMILIES), options.rows, options.peers, options.timeout, options.methods, record
        )
    if "boltzmann" in options.parts:
        results["boltzmann"] = boltzmann_table(options.peers, 1000, 12)
        save()
    if "tem1" in options.parts:
        results["tem1"] = tem1(options.tem1_rows, only=options.methods)
        save()


if __name__ == "__main__":
    main()
