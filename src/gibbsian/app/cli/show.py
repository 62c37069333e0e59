"""What the command line prints: tables for people, JSON for programs, warnings as one line."""

import argparse
import json
import math
import sys
import warnings
from collections.abc import Iterable, Sequence
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
        width = len(header) or max((len(row) for row in rows), default=1)
        for i in range(width):
            table.add_column(header[i] if header else "", style="cyan" if i == 0 else "", no_wrap=i == 0)
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
    rows: list[tuple[str, str]] = []
    for key, name in (
        ("likelihood", f"{found['part']} log-likelihood"),
        ("train_likelihood", "training log-likelihood"),
    ):
        if key in found:
            ll = found[key]
            upper = "open" if ll["upper"] is None else f"{ll['upper']:.2f}"
            rows.append((name, f"{ll['value']:.2f} nats a row, in [{ll['lower']:.2f}, {upper}]  ({ll['rows']} rows)"))
    if "baseline" in found:
        rows.append((found["baseline"]["what"], f"{found['baseline']['value']:.2f}  (the simplest model)"))
    if "log_z" in found:
        z = found["log_z"]
        ess = f", {z['ess']:.0f} effective weights" if "ess" in z else ""
        rows.append(("log Z", f"{z['value']:.3f} ± {z['stderr']:.2g}  ({z['method']}{ess})"))
    if "learned_log_z" in found:
        rows.append(("log Z as learned", f"{found['learned_log_z']:.3f}"))
    if "why_no_likelihood" in found:
        rows.append(("likelihood", f"none: {found['why_no_likelihood']}"))
    if "classes" in found:
        c = found["classes"]
        rows.append(("accuracy", f"{100 * c['accuracy']:.2f} %, calibration error {c['calibration_error']:.3f}"))
    if "anomalies" in found:
        rows.append(("anomalies", _rates(found["anomalies"])))
    for name, rates in found.get("outside", {}).items():
        rows.append((f"against {name}", _rates(rates) if "auroc" in rates else rates["missing"]))
    if "two_sample" in found:
        t = found["two_sample"]
        rows.append(("samples and data", f"{t['method']} {t['value']:.4f}, p = {t['p_value']:.3f}"))
    return rows


def _rates(rates: dict[str, float]) -> str:
    return f"AUROC {rates['auroc']:.3f}, AUPR {rates['aupr']:.3f}, FPR95 {rates['fpr95']:.3f}"
