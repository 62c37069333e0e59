"""The page of a family of sequences: what was learned from it, and how far to trust that."""

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

import gibbsian
from gibbsian import plots, sequences
from gibbsian.app.files import write_whole
from gibbsian.app.report import figures
from gibbsian.app.report.verdict import LEVELS, Finding
from gibbsian.app.report.words import duration, render
from gibbsian.sequences import Checks, Contacts, Entropy, Family

_STATISTICS = {"one": "one site", "two": "two sites", "three": "three sites"}
_WIDE = 60  # sites in a row of a logo


class Workbench(NamedTuple):
    """All that is shown of a family; `learned` are numbers of sites and letters by name, for logos."""

    title: str
    command: str
    family: Family
    model: Any
    learned: dict[str, Tensor]
    method: str
    seconds: float
    drawn: Family
    checks: Checks
    entropy: Entropy | None
    contacts: Contacts | None
    mutations: Tensor | None
    wild: tuple[str, Tensor]
    touching: Tensor | None
    first: int
    scan: dict[str, float] | None = None  # rank correlation of the scores with every column of a table of mutants


def write_sequences(folder: Path, bench: Workbench) -> dict[str, Any]:
    """Write `report.html`; returns the numbers that it shows."""
    facts, said = _facts(bench), sequences_verdict(bench)
    page = render(
        "sequences.html.j2",
        {
            "title": bench.title,
            "facts": facts,
            "verdict": said,
            "contacts": _contacts(bench),
            "checks": _checks(bench),
            "logos": _logos(bench),
            "mutations": _mutations(bench),
            "command": bench.command,
            "version": gibbsian.__version__,
            "made": time.strftime("%d %B %Y, %H:%M"),
        },
    )
    write_whole(folder / "report.html", page)
    numbers = {"precision": _precisions(bench), "statistics": _numbers(bench.checks), "scan": bench.scan or {}}
    return {"facts": facts, "verdict": [one._asdict() for one in said], **numbers}


def sequences_verdict(bench: Workbench) -> list[Finding]:
    """What came out of a family, in words, bad news first."""
    said = [
        *_generative(bench.checks, bench.method),
        _novel(bench.checks),
        *_touching(bench),
        *_mutants(bench),
        *_enough(bench.family),
    ]
    return sorted(said, key=lambda one: LEVELS.index(one.level))


def _generative(checks: Checks, method: str) -> Iterator[Finding]:
    r, slope = checks.two.pearson, checks.two.slope
    numbers = f"correlation {r:.2f}, slope {slope:.2f}"
    longer = "more sweeps (--sweeps) or longer learning (--steps) may help"
    advice = longer if method in {"boltzmann", "rbm"} else "learn by --method boltzmann to draw new ones"
    if r >= 0.9 and 0.8 <= slope <= 1.25:
        yield Finding("good", f"pairs of sites of drawn sequences are those of natural ones: {numbers}")
    elif r >= 0.7:
        yield Finding(
            "open", f"pairs of sites of drawn sequences are those of natural ones in part: {numbers}; {advice}"
        )
    else:
        yield Finding("bad", f"pairs of sites of drawn sequences are not those of natural ones: {numbers}; {advice}")


def _novel(checks: Checks) -> Finding:
    near, own = float(checks.nearest.mean()), float(checks.nearest_natural.mean())
    numbers = (
        f"{100 * near:.0f} % identity with the nearest natural one, natural ones {100 * own:.0f} % among themselves"
    )
    if near > own + 0.1:
        return Finding(
            "bad", f"drawn sequences are nearly copies: {numbers}; take a smaller machine or a stronger penalty"
        )
    return Finding("good", f"drawn sequences are new: {numbers}")


def _touching(bench: Workbench) -> Iterator[Finding]:
    found = _precisions(bench)
    if not found or bench.touching is None or bench.contacts is None:
        return
    pairs = bench.contacts.pairs  # all that could be named
    chance = sequences.precision(bench.contacts, bench.touching.to(pairs.device), len(pairs))
    share = found["L/5"]
    text = f"of the strongest L/5 pairs {100 * share:.0f} % touch (chance: {100 * chance:.0f} %)"
    yield Finding("good" if share >= 0.5 else "open" if share > 2 * chance else "bad", text)


def _mutants(bench: Workbench) -> Iterator[Finding]:
    if bench.method == "mean-field" and bench.mutations is not None:
        yield Finding(
            "bad",
            "mutants are scored by mean field, whose couplings name contacts and are far too strong for scores: its ranking is worse "
            "than that of the frequencies of letters; learn by --method pseudo-likelihood",
        )


def _enough(family: Family) -> Iterator[Finding]:
    if family.effective < family.sites:
        yield Finding("open", f"there are few sequences for so many sites, {family.effective:.0f} effective ones for "
                              f"{family.sites}: couplings are weak evidence")  # fmt: skip


def _precisions(bench: Workbench) -> dict[str, float]:
    """Of the strongest L, L/2 and L/5 pairs."""
    if bench.contacts is None or bench.touching is None:
        return {}
    sites, known = bench.family.sites, bench.touching
    counts = {"L": sites, "L/2": max(1, sites // 2), "L/5": max(1, sites // 5)}
    return {
        name: sequences.precision(bench.contacts, known.to(bench.contacts.scores.device), n)
        for name, n in counts.items()
    }


def _numbers(checks: Checks) -> dict[str, dict[str, float]]:
    parts = {name: getattr(checks, name) for name in _STATISTICS}
    return {name: {"pearson": one.pearson, "slope": one.slope} for name, one in parts.items()}


def _facts(bench: Workbench) -> list[tuple[str, str]]:
    family, e = bench.family, bench.entropy
    facts = [
        (
            "family",
            f"{len(family)} sequences of {family.sites} sites, {family.alphabet.name}; effective number {family.effective:.0f}",
        ),
        ("model", f"{type(bench.model).__name__} by {bench.method}, in {duration(bench.seconds)}"),
    ]
    found = _precisions(bench)
    if found:
        facts.append(("contacts that are right", ", ".join(f"{name} {value:.2f}" for name, value in found.items())))
    numbers = ", ".join(
        f"{_STATISTICS[k]} {v['pearson']:.3f} ({v['slope']:.2f})" for k, v in _numbers(bench.checks).items()
    )
    facts.append((f"{len(bench.drawn)} drawn sequences, Pearson (slope)", numbers))
    near, own = float(bench.checks.nearest.mean()), float(bench.checks.nearest_natural.mean())
    facts.append(("identity with the nearest natural one", f"{near:.2f}; between natural ones {own:.2f}"))
    if bench.scan:
        told = ", ".join(f"{name} {value:.2f}" for name, value in bench.scan.items())
        facts.append(("scores of mutants, Spearman with", told))
    if e is not None:
        z = e.log_z
        facts.append(
            ("entropy, nats", f"{e.value:.2f} in [{e.lower:.2f}, {e.upper:.2f}], {e.value / family.sites:.2f} a site")
        )
        facts.append(("log Z", f"{float(z.value):.2f} in [{float(z.lower):.2f}, {float(z.upper):.2f}], by {z.method}"))
    return facts


def _contacts(bench: Workbench) -> list[tuple[str, str]]:
    if bench.contacts is None:
        return []
    draw = partial(plots.contact_map, bench.contacts, touching=bench.touching, first=bench.first)
    out = [("the strongest pairs, as many as there are sites", figures.picture(draw, size=(5.2, 5.0), name="contacts"))]
    if bench.touching is not None:
        curve = partial(plots.precision_curve, {bench.method: bench.contacts}, bench.touching)
        out.append(
            ("share of the strongest pairs that touch", figures.picture(curve, size=(5.2, 4.2), name="precision"))
        )
    return out


def _checks(bench: Workbench) -> list[tuple[str, str]]:
    checks = bench.checks
    out = [
        (
            f"statistics of {words}",
            figures.picture(
                partial(plots.agreement, getattr(checks, name), name=words), size=(4.2, 4.0), name=f"check-{name}"
            ),
        )
        for name, words in _STATISTICS.items()
    ]
    out.append(
        (
            "principal components of natural sequences",
            figures.picture(partial(plots.components, checks), size=(4.6, 4.0), name="components"),
        )
    )
    out.append(
        (
            "drawn sequences are new where they are no nearer than natural ones",
            figures.picture(partial(plots.identities, checks), size=(4.6, 3.4), name="identities"),
        )
    )
    return out


def _logos(bench: Workbench) -> list[tuple[str, list[str]]]:
    """The family, the fields of a Potts machine or the hidden units of an RBM, in rows of sites."""
    letters = bench.family.alphabet.letters
    out = [("the family, bits", _rows(plots.information(bench.family), letters.replace("-", ""), bench.first, "logo"))]
    learned = enumerate(bench.learned.items())
    return out + [(name, _rows(one, letters, bench.first, f"logo{i}")) for i, (name, one) in learned]


def _rows(heights: Tensor, letters: str, first: int, name: str) -> list[str]:
    heights = heights.detach().cpu()
    high = float(heights.clamp(min=0).sum(1).max())
    low = float(heights.clamp(max=0).sum(1).min())
    rows = []
    for start in range(0, len(heights), _WIDE):
        part = heights[start : start + _WIDE]

        def draw(ax: Any, part: Tensor = part, start: int = start) -> None:
            plots.logo(part, letters, ax, first=first + start)
            ax.set(
                ylim=(1.05 * low, 1.05 * high),
                xlim=(first + start - 0.7, first + start + min(_WIDE, len(heights)) - 0.3),
            )

        rows.append(figures.picture(draw, size=(11, 1.7), name=f"{name}-{start}"))
    return rows


def _mutations(bench: Workbench) -> str | None:
    """-ΔE of all single mutants of the wild type."""
    if bench.mutations is None:
        return None
    letters, table = bench.family.alphabet.letters, bench.mutations

    def draw(ax: Any) -> None:
        reach = float(table.abs().flatten().sort().values[int(0.98 * (table.numel() - 1))])
        end = bench.first + len(table) - 0.5
        shown = ax.imshow(
            table.T.numpy(), cmap="RdBu", vmin=-reach, vmax=reach, aspect="auto", extent=(bench.first - 0.5, end, len(letters) - 0.5, -0.5)
        )  # fmt: skip
        ax.plot([bench.first + i for i in range(len(table))], bench.wild[1].tolist(), ".", color="0.2", markersize=3)
        ax.set_yticks(range(len(letters)), list(letters), fontsize=7)
        ax.set(xlabel="site")
        ax.get_figure().colorbar(shown, ax=ax, label="-ΔE, higher is fitter")

    return figures.picture(draw, size=(11, 1.2 + 0.14 * len(letters)), name="mutations")
