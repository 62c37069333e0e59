"""What the command line prints: tables for people, JSON for programs, warnings as one line."""

import argparse
import json
import math
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["Output", "results_table"]


class Output:
    """Prints according to --json and --quiet; warnings become single lines on stderr."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.as_json, self.quiet = options.json, options.quiet
        self.console = Console(highlight=False)
        self.progress: bool | None = False if options.quiet or options.json else None
        warnings.showwarning = self._warn  # type: ignore[assignment]
        warnings.simplefilter("ignore")
        warnings.filterwarnings("default", category=UserWarning, module=r"gibbsian")

    def _warn(self, message: Any, category: Any, *rest: Any) -> None:
        print(f"gibbsian: warning: {' '.join(str(message).split())}", file=sys.stderr)

    def say(self, text: str) -> None:
        """A line for people."""
        if not self.quiet and not self.as_json:
            self.console.print(text, soft_wrap=True)

    def table(self, rows: Iterable[Sequence[str | Text]], *, title: str = "", header: Sequence[str] = ()) -> None:
        """A table for people."""
        if self.quiet or self.as_json:
            return
        table = Table(
            title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, show_header=bool(header)
        )
        rows = list(rows)
        columns = header or [""] * max((len(row) for row in rows), default=1)
        table.add_column(columns[0], style="cyan", no_wrap=True)
        for name in columns[1:]:
            table.add_column(name)
        for row in rows:
            table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row))
        self.console.print(table)

    def document(self, content: Any) -> None:
        """JSON for programs."""
        if self.as_json:
            print(json.dumps(plain(content), indent=1))


def plain(value: Any) -> Any:
    """Numbers that JSON has no form for become null."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def results_table(found: dict[str, Any]) -> list[tuple[str, str]]:
    """What an evaluation found, as rows for people."""
    return [(name, text) for key, say in _ROWS.items() if key in found for name, text in say(found[key], found)]


def _log_likelihood(name: str, ll: dict[str, Any]) -> tuple[str, str]:
    upper = "open" if ll["upper"] is None else f"{ll['upper']:.2f}"
    return name, f"{ll['value']:.2f} nats a row, in [{ll['lower']:.2f}, {upper}]  ({ll['rows']} rows)"


def _log_z(z: dict[str, Any]) -> str:
    ess = f", {z['ess']:.0f} effective weights" if "ess" in z else ""
    return f"{z['value']:.3f} ± {z['stderr']:.2g}  ({z['method']}{ess})"


def _outside(sets: dict[str, Any]) -> list[tuple[str, str]]:
    return [(f"against {name}", _rates(r) if "auroc" in r else r["missing"]) for name, r in sets.items()]


def _rates(rates: dict[str, float]) -> str:
    return f"AUROC {rates['auroc']:.3f}, AUPR {rates['aupr']:.3f}, FPR95 {rates['fpr95']:.3f}"


_ROWS: dict[str, Callable[[Any, dict[str, Any]], list[tuple[str, str]]]] = {  # what is shown of each thing found
    "likelihood": lambda ll, found: [_log_likelihood(f"{found['part']} log-likelihood", ll)],
    "train_likelihood": lambda ll, _: [_log_likelihood("training log-likelihood", ll)],
    "baseline": lambda b, _: [(b["what"], f"{b['value']:.2f}  (the simplest model)")],
    "log_z": lambda z, _: [("log Z", _log_z(z))],
    "learned_log_z": lambda z, _: [("log Z as learned", f"{z:.3f}")],
    "why_no_likelihood": lambda why, _: [("likelihood", f"none: {why}")],
    "classes": lambda c, _: [
        ("accuracy", f"{100 * c['accuracy']:.2f} %, calibration error {c['calibration_error']:.3f}")
    ],
    "anomalies": lambda rates, _: [("anomalies", _rates(rates))],
    "outside": lambda sets, _: _outside(sets),
    "two_sample": lambda t, _: [("samples and data", f"{t['method']} {t['value']:.4f}, p = {t['p_value']:.3f}")],
}
