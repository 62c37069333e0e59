"""Progress bars for long work: shown on a terminal, silent elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["progress_bar"]


@contextmanager
def progress_bar(total: int, description: str, enabled: bool | None = None) -> Iterator[Callable[..., None]]:
    """Yields `advance(n, note=None, **shown)`; a note, or extra keywords, are shown beside the bar.

    `enabled=None` shows the bar when stderr is a terminal.

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

    columns = [
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[shown]}"),
        TimeRemainingColumn(),
    ]
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=5) as bar:
        task = bar.add_task(description, total=total, shown="")

        def advance(n: int = 1, note: str | None = None, **shown: float) -> None:
            text = note or " ".join(f"{name} {value:.4g}" for name, value in shown.items())
            if shown or note is not None:
                bar.update(task, advance=n, shown=text)
            else:
                bar.advance(task, n)

        yield advance
