"""The server of `gibbsian train --live`: `python -m gibbsian.app.live FD HOST FOLDER [MODULE ...]`.

FD is a socket that listens already; the first line of the input is the token, and the end of the input that of the
server, but for pictures that somebody waits for.
"""

import sys
from pathlib import Path
from threading import Thread

from gibbsian.app.live.hub import Hub
from gibbsian.app.live.serve import Viewing

if __name__ == "__main__":
    fd, host, folder, *trusted = sys.argv[1:]
    hub = Hub([Path(folder)], trusted=trusted)
    with Viewing(hub, host, 0, token=sys.stdin.readline().strip(), fd=int(fd)) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True).start()
        sys.stdin.read()
        hub.finish(30.0)
        hub.close()
        server.shutdown()
