"""`gibbsian lab`: experiments that move, in the browser."""

import argparse
import json
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from gibbsian.app.lab.bundle import bundle
from gibbsian.app.lab.serve import address_of, make_server, page


def run_lab(options: argparse.Namespace, rest: Sequence[str]) -> int:
    """Serve the lab until Ctrl-C, or write it as one file."""
    if options.out:
        path = Path(options.out)
        path.write_text(bundle(), encoding="utf-8")
        _say(options, f"the lab is in {path}: open it in a browser", {"file": str(path), "bytes": path.stat().st_size})
        return 0
    with make_server(page(), options.port) as server:
        address = address_of(server) + (f"#{options.section}" if options.section else "")
        _say(options, f"the lab is at {address}  (Ctrl-C ends it)", {"address": address})
        if not options.no_browser:
            webbrowser.open(address)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:  # the usual way to end it
            return 0
    return 0


def _say(options: argparse.Namespace, text: str, facts: dict[str, object]) -> None:
    if options.json:
        print(json.dumps(facts), flush=True)
    elif not options.quiet:
        print(text, flush=True)
