"""The lab on the loopback address. Browsers load ES modules from servers only, so a folder on the disk is not enough."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from threading import Thread

from gibbsian.errors import ArgumentError

LOOPBACK = "127.0.0.1"
_TYPES = {  # not those of the system, which may call scripts plain text
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    "": "application/octet-stream",
}


def page() -> Path:
    """The folder with the lab's files.

    >>> (page() / "index.html").is_file()
    True
    """
    return Path(str(files("gibbsian.app.lab") / "page"))


class _Files(SimpleHTTPRequestHandler):
    """Files of one folder, quietly, and never an old copy."""

    extensions_map = _TYPES

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        super().end_headers()

    def list_directory(self, path: str) -> None:  # type: ignore[override]
        """Folders are not shown."""
        self.send_error(404)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is said of single requests."""


def make_server(folder: Path, port: int = 0) -> ThreadingHTTPServer:
    """A server of a folder's files on the loopback address; port 0 takes any that is free."""
    try:
        return ThreadingHTTPServer((LOOPBACK, port), partial(_Files, directory=str(folder)))
    except (OSError, OverflowError) as error:
        raise ArgumentError(f"port {port} cannot be had ({error}); give another by --port, or none") from None


def address_of(server: ThreadingHTTPServer) -> str:
    """Where a server answers, such as http://127.0.0.1:8000/."""
    return f"http://{LOOPBACK}:{server.server_address[1]}/"


@contextmanager
def serving(folder: Path, port: int = 0) -> Iterator[str]:
    """Serve a folder for the time of a block; gives the address.

    >>> from urllib.request import urlopen
    >>> with serving(page()) as address:
    ...     "<title>" in urlopen(address).read().decode()
    True
    """
    server = make_server(folder, port)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield address_of(server)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
