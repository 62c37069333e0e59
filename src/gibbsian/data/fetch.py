"""Files of public data sets: from a folder of yours, the cache, or their home on the network.

They are looked for in `$GIBBSIAN_DATA/<set>/`, then in the cache (`$GIBBSIAN_CACHE`, or the system's), and are fetched
otherwise. Every file is held against its SHA-256, wherever it comes from.
"""

import hashlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gibbsian.errors import DataError


def cache_folder() -> Path:
    """Where fetched files are kept."""
    own = os.environ.get("GIBBSIAN_CACHE")
    if own:
        return Path(own).expanduser()
    import pooch  # what is at hand is read without it

    return Path(pooch.os_cache("gibbsian"))


def _places() -> Iterator[Path]:
    """Where files may lie: the folder that the user names, then the cache."""
    given = os.environ.get("GIBBSIAN_DATA")
    if given:
        yield Path(given).expanduser()
    yield cache_folder()


def find(folder: str, file: str, sha256: str) -> Path | None:
    """The path of a file in the folder of its set, checked; None where it is nowhere yet."""
    for place in _places():
        path = place / folder / file
        if path.exists():
            found = hashlib.sha256(path.read_bytes()).hexdigest()
            if found != sha256:
                raise DataError(
                    f"{path} is damaged: its SHA-256 is {found[:12]}…, expected {sha256[:12]}…; delete it, or fetch it again"
                )
            return path
    return None


def fetch(folder: str, file: str, sha256: str, url: str = "", *, offline: bool = False) -> Path:
    """The path of a file in the folder of its set, checked; fetched from its home where it is nowhere yet."""
    path = find(folder, file, sha256)
    if path is not None:
        return path
    looked = " and ".join(str(place / folder) for place in _places())
    if not url:
        raise DataError(f"{file} is not in {looked}, and has no home on the network to fetch it from; put it there")
    if offline:
        raise DataError(f"{file} is not in {looked}, and fetching is switched off; put it there, or allow the network")
    target = cache_folder() / folder
    try:
        _download(url + file, sha256, target, file)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        reason = reason if len(reason) < 160 else reason[:157] + "..."
        raise DataError(
            f"{file} is not in {looked} and could not be fetched from {url + file} ({type(error).__name__}: {reason}); "
            f"connect, or fetch it by hand into {target}"
        ) from error
    return target / file


def _download(url: str, sha256: str, target: Path, file: str) -> None:
    import pooch

    target.mkdir(parents=True, exist_ok=True)
    downloader = pooch.HTTPDownloader(progressbar=_Bar(file) if sys.stderr.isatty() else False, timeout=30)
    logger = pooch.get_logger()
    before = logger.level
    logger.setLevel("ERROR")  # its own lines repeat what the bar shows
    try:
        pooch.retrieve(url, f"sha256:{sha256}", fname=file, path=target, downloader=downloader)
    finally:
        logger.setLevel(before)


class _Bar:
    """A progress bar as pooch drives it."""

    def __init__(self, name: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        columns = [TextColumn(f"fetching {name}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()]
        self.bar = Progress(*columns, console=Console(stderr=True))
        self.total = 0
        self.task: Any = None

    def update(self, n: int) -> None:
        if self.task is None:
            self.bar.start()
            self.task = self.bar.add_task("", total=self.total or None)
        self.bar.update(self.task, advance=n)

    def reset(self) -> None:
        if self.task is not None:
            self.bar.reset(self.task, total=self.total or None)

    def close(self) -> None:
        self.bar.stop()
