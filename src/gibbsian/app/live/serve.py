"""Watching runs from browsers: pages by token, news by server-sent events, pictures on demand. Standard library only.

Only GET is answered; only below the token; only for hosts that this machine is called by (a port may differ, as behind `ssh -L`), and
never for a page of another origin. Files come from a list that is made at the start, so no path leads anywhere else.
"""

import ipaddress
import json
import secrets
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from socketserver import TCPServer
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

from gibbsian.app.curves import CURVES
from gibbsian.app.lab.serve import LOOPBACK, page
from gibbsian.app.live.hub import Hub
from gibbsian.errors import ArgumentError

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}
_VIEWERS = 64  # at once
_SILENCE = 10.0  # seconds, after which a sign of life is sent
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}


def _pages() -> dict[str, Path]:
    """All files there are, by their names below the token: the page's own, and the parts of the lab that it shares."""
    own, lab = Path(str(files("gibbsian.app.live") / "page")), page()
    found = {path.name: path for path in own.iterdir() if path.suffix in _TYPES}
    found |= {f"ui/{path.name}": path for path in (lab / "ui").iterdir() if path.suffix in _TYPES}
    return found | {"": own / "index.html", "lab.css": lab / "style.css"}


class Viewing(ThreadingHTTPServer):
    """A server of one hub; `address` holds the token."""

    daemon_threads = True
    request_queue_size = 64
    block_on_close = False

    def __init__(self, hub: Hub, host: str, port: int, *, token: str | None = None, fd: int | None = None) -> None:
        self.hub, self.token, self.pages = hub, token or secrets.token_urlsafe(16), _pages()
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.names = {"localhost", LOOPBACK, "::1", host.lower(), socket.gethostname().lower()}
        if fd is None:
            super().__init__((host, port), _Answer)
        else:  # a socket that listens already
            super().__init__((host, port), _Answer, bind_and_activate=False)
            self.socket.close()
            self.socket = socket.socket(fileno=fd)
            self.server_address = self.socket.getsockname()

    def server_bind(self) -> None:
        """Bind, without asking the network for names."""
        TCPServer.server_bind(self)

    @property
    def address(self) -> str:
        """Where the page is, such as http://127.0.0.1:8000/token/."""
        host, port = self.server_address[:2]
        shown = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(str(host), str(host))
        return f"http://{f'[{shown}]' if ':' in shown else shown}:{port}/{self.token}/"

    def knows(self, host: str | None) -> bool:
        """Is it a name or number of this machine? A number cannot be made to point here by another's name server."""
        try:
            name = urlsplit(f"//{host or ''}").hostname or ""
            if name.lower() in self.names:
                return True
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return self.server_address[0] not in {LOOPBACK, "::1"}

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Viewers come and go; nothing is said of it."""


class _Answer(BaseHTTPRequestHandler):
    server: Viewing
    server_version, sys_version = "gibbsian", ""
    timeout = 30  # for a request to come in, and for a viewer to take what is sent

    def do_GET(self) -> None:
        path, refused = self.path.split("?")[0], self._refusal()
        if refused is not None:
            return self._refuse(*refused)
        name = path.split("/", 2)[2]
        if name == "events":
            return self._events()
        if name.startswith("look/"):
            return self._look(name.split("/")[1:])
        file = self.server.pages.get(name)
        if file is None:
            return self._refuse(HTTPStatus.NOT_FOUND, "there is nothing here")
        return self._send(file.read_bytes(), _TYPES[file.suffix])

    def _refusal(self) -> tuple[HTTPStatus, str] | None:
        """Why a request gets no answer."""
        host, origin = self.headers.get("Host"), self.headers.get("Origin")
        if not self.server.knows(host):
            return HTTPStatus.FORBIDDEN, "this host is not known here"
        if origin is not None and origin != f"http://{host}":
            return HTTPStatus.FORBIDDEN, "pages of other origins get nothing"
        if self.headers.get("Sec-Fetch-Site", "none") not in {"none", "same-origin"}:
            return HTTPStatus.FORBIDDEN, "pages of other origins get nothing"
        parts = self.path.split("?")[0].split("/", 2)
        given = parts[1] if len(parts) == 3 and not parts[0] else ""
        if not secrets.compare_digest(given.encode("utf-8", "replace"), self.server.token.encode()):
            return (
                HTTPStatus.FORBIDDEN,
                "open the address that `gibbsian watch` said, with its token and the / after it",
            )
        return None

    def _events(self) -> None:
        server = self.server
        if server.hub.listeners >= _VIEWERS:
            return self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, f"{_VIEWERS} viewers are enough")
        self._head("text/event-stream", None)
        news = server.hub.listen(_SILENCE)
        try:
            self._tell("hello", {"curves": CURVES})
            for one in news:
                if one is None:
                    self.wfile.write(b": still here\n\n")
                else:
                    self._tell("run" if one else "end", one)
                self.wfile.flush()
        except OSError:  # the viewer has gone
            self.close_connection = True
        finally:
            news.close()

    def _tell(self, event: str, content: dict[str, Any]) -> None:
        self.wfile.write(f"event: {event}\ndata: {json.dumps(content)}\n\n".encode())

    def _look(self, asked: Sequence[str]) -> None:
        """samples or model / number of the run / step."""
        if len(asked) != 3 or asked[0] not in {"samples", "model"} or not all(one.isascii() and one.isdecimal() and len(one) < 16 for one in asked[1:]):  # fmt: skip
            return self._refuse(HTTPStatus.BAD_REQUEST, "ask for look/samples/RUN/STEP or look/model/RUN/STEP")
        found = self.server.hub.look(asked[0], int(asked[1]), int(asked[2]))
        if found is None:
            return self._refuse(HTTPStatus.NOT_FOUND, "there is no such run or step")
        return self._send(found.encode(), "application/json")

    def _head(self, kind: str, length: int | None, status: HTTPStatus = HTTPStatus.OK) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if length is not None:
            self.send_header("Content-Length", str(length))
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.end_headers()

    def _send(self, content: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        try:
            self._head(kind, len(content), status)
            self.wfile.write(content)
        except OSError:
            self.close_connection = True

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self._send(f"{why}\n".encode(), "text/plain; charset=utf-8", status)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is said of single requests."""


def make_viewing(hub: Hub, host: str = LOOPBACK, port: int = 0) -> Viewing:
    """A server of a hub's runs; port 0 takes any that is free."""
    try:
        return Viewing(hub, host, port)
    except (OSError, OverflowError) as error:
        raise ArgumentError(f"{host} port {port} cannot be had ({error}); give others by --host and --port") from None


@contextmanager
def viewing(folders: Sequence[Path], *, nice: int = 19, host: str = LOOPBACK) -> Iterator[Viewing]:
    """Serve runs for the time of a block; `nice` is the process that makes pictures.

    >>> from urllib.request import urlopen
    >>> with viewing([Path("no such run")]) as server:
    ...     "<title>" in urlopen(server.address).read().decode()
    True
    """
    hub = Hub(folders, nice=nice)
    server = make_viewing(hub, host)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        hub.close()
        server.shutdown()
        server.server_close()
        thread.join()
