"""`gibbsian sequences`: from an alignment to a machine, its contacts, mutations, new sequences and a report."""

import argparse
import csv
import io
import json
import math
import shlex
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from gibbsian import sequences
from gibbsian.app.cli.show import Output
from gibbsian.app.files import free_folder, write_whole
from gibbsian.app.report.sequences import Workbench, sequences_verdict, write_sequences
from gibbsian.errors import ArgumentError, CheckpointError, DataError
from gibbsian.models import Potts
from gibbsian.placement import device_named
from gibbsian.random import stream
from gibbsian.sequences import Family
from gibbsian.sequences.mutations import changes


def run_sequences(options: argparse.Namespace, rest: list[str]) -> int:
    """Read, learn, and write everything that is asked of a family."""
    out = Output(options)
    automatic = "cuda" if torch.cuda.is_available() else "cpu"
    name = automatic if options.device == "auto" else options.device
    device = device_named(name, "--device", "say auto, cpu or cuda")
    family, touching = _family(options, device, out)
    touching = _structure(options, family) if options.distances else touching
    folder = _folder(options)
    wild = _wild(options, family)
    scan = _scan(options, wild[1], family)
    out.say(f"{family!r}")
    begun = time.perf_counter()
    model, potts = _learn(options, family, device, out)
    seconds = time.perf_counter() - begun
    judged = _judged(options, scan, potts, wild[1], family)
    generator = stream(options.seed, "sequences", device)
    drawn = sequences.sample_sequences(
        model, family, options.n, sweeps=options.sweeps, generator=generator, progress=out.progress
    )
    bench = Workbench(
        title=_stem(options.file),
        command="gibbsian " + shlex.join(options.arguments),
        family=family,
        model=model,
        learned=_learned(model, potts),
        method=options.method,
        seconds=seconds,
        drawn=drawn,
        checks=sequences.compare(family, drawn),
        entropy=None
        if options.no_entropy
        else sequences.entropy(
            model, family, drawn=drawn, chains=200, max_betas=500, generator=generator, progress=out.progress
        ),
        contacts=sequences.contacts(potts) if potts is not None else None,
        mutations=sequences.mutation_table(potts, wild[1]).cpu() if potts is not None else None,
        wild=wild,
        touching=touching,
        first=options.first,
        scan=judged,
    )
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder, bench, scan)
    found = write_sequences(folder, bench)
    rows = [(name, str(value)) for name, value in found["facts"]]
    out.table(rows, title=bench.title)
    out.findings(sequences_verdict(bench))
    out.say(f"report: {folder / 'report.html'}")
    out.say(f"in {folder}: {', '.join(sorted(one.name for one in folder.iterdir()))}")
    out.document({"folder": str(folder), **found})
    return 0


def _folder(options: argparse.Namespace) -> Path:
    folder = Path(options.run) if options.run else free_folder(f"sequences-{_stem(options.file)}")
    if folder.exists() and any(folder.iterdir() if folder.is_dir() else [folder]):
        raise CheckpointError(f"{folder} already holds files; say another --run")
    return folder


def _stem(file: str) -> str:
    return Path(file).name.removesuffix(".gz").rsplit(".", 1)[0]


def _family(options: argparse.Namespace, device: torch.device, out: Output) -> tuple[Family, Tensor | None]:
    if options.file == "demo" and not Path("demo").exists():
        family, touching = sequences.demo_family(generator=stream(options.seed, "demo"))
        return family.reweighted(options.identity, device=device, progress=out.progress), touching
    family = sequences.read(
        options.file,
        options.alphabet,
        identity=options.identity,
        most_gaps=options.most_gaps,
        insertions=None if options.insertions is None else options.insertions == "drop",
        device=device,
        progress=out.progress,
    )
    if not family.varies:
        raise DataError(f"{options.file} holds no two sequences that differ ({len(family)} in all); give a family")
    return family, None


def _wild(options: argparse.Namespace, family: Family) -> tuple[str, Tensor]:
    """The sequence whose mutants are scored: the first, or that of the given name."""
    if options.wild is None:
        return (family.names[0] if family.names else "the first sequence"), family.states[0]
    if options.wild not in family.names:
        raise ArgumentError(f"--wild {options.wild}: no sequence has this name; the first is {family.names[0]!r}")
    return options.wild, family.states[family.names.index(options.wild)]


def _learn(options: argparse.Namespace, family: Family, device: torch.device, out: Output) -> tuple[Any, Potts | None]:
    """The machine, and once more where it is a Potts machine."""
    given = {} if options.steps is None else {"steps": options.steps}
    if options.method == "rbm":
        rbm = sequences.fit_rbm(
            family, options.hidden, seed=options.seed, device=device, progress=out.progress, **given
        )
        return rbm, None
    potts = sequences.fit_potts(family, options.method, device=device, progress=out.progress, **given)
    return potts, potts


def _learned(model: Any, potts: Potts | None) -> dict[str, Tensor]:
    """What logos are drawn of: fields, or the weights of the strongest hidden units."""
    if potts is not None:
        return {"fields in the zero-sum gauge": potts.zero_sum().field}
    return {f"hidden unit {i + 1}, weights": w for i, w in enumerate(sequences.hidden_weights(model)[:8])}


def _distances(path: Path, wanted: str | None) -> tuple[Any, str]:
    """The rows of a table of distances that have one, and the name of its column."""
    import pandas as pd

    try:
        table = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as a table of distances: {error}") from error
    columns = [str(name) for name in table.columns if name not in ("i", "j")]
    column = wanted or next(iter(columns), "")
    if not {"i", "j"} <= set(table.columns) or column not in columns:
        raise DataError(
            f"{path.name} has the columns {', '.join(map(str, table.columns))}; expected i and j, sites from 0, and "
            f"{wanted or 'a distance'}"
        )
    return table.dropna(subset=["i", "j", column]), column


def _structure(options: argparse.Namespace, family: Family) -> Tensor:
    """1 where two sites are nearer than `--below`, 0 where not, NaN where the file does not say."""
    path = Path(options.distances).expanduser()
    table, column = _distances(path, options.column)
    i, j = (torch.tensor(table[name].astype(int).to_numpy(copy=True)) for name in ("i", "j"))
    if len(i) and (int(torch.minimum(i, j).min()) < 0 or int(torch.maximum(i, j).max()) >= family.sites):
        raise DataError(f"{path.name} names sites outside 0 to {family.sites - 1}, those of the alignment")
    near = torch.tensor((table[column] < options.below).to_numpy(copy=True)).float()
    touching = torch.full((family.sites, family.sites), torch.nan)
    touching[i, j], touching[j, i] = near, near
    return touching


def _scan(options: argparse.Namespace, wild: Tensor, family: Family) -> Any:
    """A table of mutants of the wild type, read before anything is learned; None where there is none."""
    if not options.mutants:
        return None
    import pandas as pd

    path = Path(options.mutants).expanduser()
    if options.method == "rbm":
        raise ArgumentError("--mutants are scored by Potts machines; say another --method than rbm")
    try:
        table = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as a table of mutants: {error}") from error
    if "mutant" not in table or not len(table):
        raise DataError(
            f"{path.name} has {len(table)} rows and the columns {', '.join(map(str, table.columns))}; expected mutant, such as "
            "A3C or A3C:G7U, and measurements beside it"
        )
    for mutant in table["mutant"].astype(str):
        list(changes(mutant, wild, family.alphabet, options.first))
    return table


def _judged(
    options: argparse.Namespace, scan: Any, potts: Potts | None, wild: Tensor, family: Family
) -> dict[str, float]:
    """Scores of the mutants, as a column `score` of their table, and their rank correlation with each of the others."""
    if potts is None or scan is None:
        return {}
    names = scan["mutant"].astype(str)
    scores = sequences.mutation_scores(potts, wild, names, first=options.first, alphabet=family.alphabet)
    scan["score"] = scores.cpu().numpy()
    numbers = scan.select_dtypes("number")
    measured = [name for name in numbers if name != "score" and numbers[name].nunique() > 1]
    found = {str(name): float(numbers[name].corr(numbers["score"], method="spearman")) for name in measured}
    return {name: value for name, value in found.items() if not math.isnan(value)}


def _write(folder: Path, bench: Workbench, scan: Any) -> None:
    """The machine, the tables and the new sequences."""
    save_file(
        {name: part.contiguous().cpu() for name, part in bench.model.state_dict().items()}, folder / "model.safetensors"
    )
    bench.drawn.write(folder / "drawn.fasta")
    if scan is not None:
        write_whole(folder / "scan.csv", scan.to_csv(index=False))
    if bench.contacts is not None:
        write_whole(folder / "contacts.csv", _csv(["i", "j", "score", "touching"], _contact_rows(bench)))
    if bench.mutations is not None:
        write_whole(folder / "mutations.csv", _csv(["mutant", "score"], _mutant_rows(bench)))
    write_whole(folder / "command.json", json.dumps({"command": bench.command, "seconds": bench.seconds}, indent=1))


def _contact_rows(bench: Workbench) -> Iterator[list[Any]]:
    """Pairs, strongest first; whether they touch is left empty where nobody knows."""
    found, known = bench.contacts, bench.touching
    for (i, j), score in zip(found.pairs.tolist(), found.values.tolist(), strict=True) if found is not None else ():
        near = math.nan if known is None else float(known[i, j])
        yield [i + bench.first, j + bench.first, f"{score:.6g}", "" if math.isnan(near) else int(near)]


def _mutant_rows(bench: Workbench) -> Iterator[list[str]]:
    """Every letter in the place of every letter of the wild type."""
    letters = bench.family.alphabet.letters
    for site, state in enumerate(bench.wild[1].tolist()):
        old = letters[state]
        for new, score in zip(letters, bench.mutations[site].tolist(), strict=True) if old != "-" else ():  # type: ignore[index]
            if new not in ("-", old):
                yield [f"{old}{site + bench.first}{new}", f"{score:.6g}"]


def _csv(head: list[str], rows: Iterable[list[Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return out.getvalue()
