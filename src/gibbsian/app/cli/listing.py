"""`gibbsian list`: what there is."""

import argparse

from gibbsian.app import catalog
from gibbsian.app.cli.show import Output

__all__ = ["run"]


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Kinds as tables, single names in full."""
    out = Output(options)
    kinds = [what for what in options.what if what in catalog.KINDS]
    names = [what for what in options.what if what not in catalog.KINDS]
    document = {}
    for name in names:
        text = catalog.describe(name)
        document[name] = text
        if not out.as_json:
            print(text)
    for kind in kinds or ([] if names else catalog.KINDS):
        entries = catalog.entries(kind)
        document[kind] = [{"name": e.name, "about": e.about, "home": e.home} for e in entries]  # type: ignore[assignment]
        rows = [(e.name, e.about) for e in entries]
        if kind == "data":
            rows = [(e.name, f"{e.home}: {e.about}") for e in entries]
        out.table(rows, title=f"{kind}: {catalog.KINDS[kind]}")
    out.document(document)
    return 0
