"""What the command line prints: tables for people, JSON for programs, warnings as one line."""

import argparse
import json
import math
import sys
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:  # a listing need not wait for what reports are made with
    from gibbsian.app.report.verdict import Finding


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

    def findings(self, said: "Iterable[Finding]") -> None:
        """What came out, in words."""
        styles = {"good": "green", "bad": "red", "open": "yellow"}
        for finding in said:
            if not self.quiet and not self.as_json:
                self.console.print(
                    Text.assemble((f"{finding.mark} ", styles[finding.level]), finding.text), soft_wrap=True
                )

    def next(self, commands: Sequence[str]) -> None:
        """What to do next."""
        for i, command in enumerate(commands):
            if not self.quiet and not self.as_json:
                self.console.print(Text(("next: " if i == 0 else "      ") + command), soft_wrap=True)

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
