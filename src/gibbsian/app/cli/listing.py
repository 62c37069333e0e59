"""`gibbsian list`: what there is."""

import argparse

from gibbsian.app import catalog
from gibbsian.app.cli.show import Output


def run_list(options: argparse.Namespace, rest: list[str]) -> int:
    """Kinds as tables, single names in full."""
    out = Output(options)
    names = [what for what in options.what if what not in catalog.KINDS]
    kinds = [what for what in options.what or catalog.KINDS if what in catalog.KINDS]
    told = {name: catalog.told(name, out.as_json) for name in names}
    if not out.as_json:
        for text in told.values():
            print(text)
    out.document(told | {kind: _show(kind, out) for kind in kinds})
    return 0


def _show(kind: str, out: Output) -> list[dict[str, str]]:
    entries = catalog.entries(kind)
    rows = [(e.name, f"{e.home}: {e.about}" if kind == "data" else e.about) for e in entries]
    out.table(rows, title=f"{kind}: {catalog.KINDS[kind]}")
    return [vars(entry) for entry in entries]
