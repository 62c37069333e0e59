"""`gibbsian watch`, and `--live` of `gibbsian train`: runs in the browser."""

import argparse
import json
import subprocess
import sys
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gibbsian.app.cli.show import Output
from gibbsian.app.live.hub import Hub
from gibbsian.app.live.serve import make_viewing
from gibbsian.errors import CheckpointError

_SIGNS = ("config.json", "comparison.json", "metrics.jsonl", "recipe.yaml")  # of a run, or of several


def run_watch(options: argparse.Namespace, rest: Sequence[str]) -> int:
    """Serve the runs until Ctrl-C."""
    folders = list(dict.fromkeys(Path(one) for one in options.runs))
    for folder in folders:
        if (folder / "table.yaml").exists():
            raise CheckpointError(f"{folder} holds the law of a table, which has no curves; see its report.html")
        if not any((folder / sign).exists() for sign in _SIGNS):
            raise CheckpointError(f"{folder} is no run; give a folder that `gibbsian train` or gibbsian.fit made")
    hub = Hub(folders, trusted=options.trust)
    with make_viewing(hub, options.host, options.port) as server:
        if options.json:
            print(json.dumps({"address": server.address}), flush=True)
        elif not options.quiet:
            print(f"watch at {server.address}  (Ctrl-C ends it)", flush=True)
        if not options.no_browser:
            webbrowser.open(server.address)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:  # the usual way to end it
            return 0
        finally:
            hub.close()
    return 0


@contextmanager
def watched(out: Output, options: argparse.Namespace, folder: Path) -> Iterator[None]:
    """With `--live` a process beside the training shows its folder for the time of a block.

    The server is a process of its own, so that the training shares no interpreter with viewers. It is given a socket that listens
    already, so that nothing waits for it, and ends soon after its input, however the training ends. (A group of its own keeps
    Ctrl-C from it; a session of its own would make some systems forget the low priority of the pictures.)
    """
    if not options.live:
        yield
        return
    with make_viewing(Hub([]), options.host, options.port) as server:
        fd = server.socket.fileno()
        command = [sys.executable, "-m", "gibbsian.app.live", str(fd), options.host, str(folder), *options.trust]
        # the command's own output would stay open after its end
        own: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[fd], process_group=0, text=True, **own)
        address = server.address
        assert process.stdin is not None
        process.stdin.write(f"{server.token}\n")  # not an argument, which others on the machine could read
        process.stdin.flush()
    out.say(f"watch at {address}")
    if out.as_json:
        print(json.dumps({"address": address}), file=sys.stderr, flush=True)
    if not options.no_browser:
        webbrowser.open(address)
    try:
        yield
    finally:
        process.stdin.close()  # and nothing waits: it ends by itself, once viewers have seen the last pictures
        out.say(f"see it again with: gibbsian watch {folder}")
