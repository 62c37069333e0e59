"""Progress bars for long work: shown on a terminal, silent elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["progress_bar"]

_NARROW = 72  # columns; below, the bar itself is left out, and all but the first number


@contextmanager
def progress_bar(
    total: int, description: str, enabled: bool | None = None, console: "Console | None" = None
) -> Iterator[Callable[..., None]]:
    """Yields `advance(n, note=None, **shown)`; a note, or extra keywords, are shown beside the bar.

    `enabled=None` shows the bar when stderr is a terminal; `console` is where, stderr where left out. Narrow terminals get
    numbers without a bar, so that nothing is cut at 44 columns.

    >>> with progress_bar(3, "counting", enabled=False) as advance:
    ...     advance(3, rate=1.0)
    """
    if enabled is None:
        enabled = sys.stderr.isatty()
    if not enabled:
        yield lambda n=1, **shown: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = console or Console(stderr=True)
    narrow = console.width < _NARROW
    columns: list[Any] = [
        TextColumn("{task.description}"),
        *([] if narrow else [BarColumn(bar_width=min(40, console.width - _NARROW + 8))]),
        MofNCompleteColumn(),
        TextColumn("{task.fields[shown]}"),
        TimeRemainingColumn(compact=True),
    ]
    with Progress(*columns, console=console, refresh_per_second=5) as bar:
        task = bar.add_task(description, total=total, shown="")

        def advance(n: int = 1, note: str | None = None, **shown: float) -> None:
            numbers = [f"{name} {value:.3g}" for name, value in shown.items()]
            text = note or " ".join(numbers[:1] if narrow else numbers)
            if shown or note is not None:
                bar.update(task, advance=n, shown=text)
            else:
                bar.advance(task, n)

        yield advance
