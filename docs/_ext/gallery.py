"""The gallery, written from the tree: examples and figures by use with thumbnails, and a page for each with its text, picture and source."""

import ast
import os
from pathlib import Path
from typing import Any

from PIL import Image
from sphinx.application import Sphinx

USES = {
    "Tables and labels": ("adult", "heart", "multi_label", "regression_energy", "sequence_tagging"),
    "Images": (
        "with_the_zoo", "cifar_jem", "mnist_rbm", "mnist_dbn", "mnist_dbm", "ncsn", "jem", "energy_matching", "deep_discrete", "gated_rbm",
    ),
    "Natural images": ("ica_patches", "gaussian_rbm", "fields_of_experts"),
    "Spikes and tunes": ("neural_words", "temporal_rbm"),
    "Learning principles": ("hero", "toy_objectives", "discriminator_sampling", "guard", "pictures"),
}  # fmt: skip
PICTURES = {"ncsn": "mnist_ncsn", "pictures": "kernels_on_a_banana", "with_the_zoo": "zoo/classes"}
SHORT = {"cifar", "dbm", "dbn", "ica", "jem", "mnist", "ncsn", "rbm"}
HELPERS = {"images", "drawing", "make_zoo"}
WIDTH = 480


class Entry:
    """A program: where it lies, what it says of itself, and its picture, if there is one."""

    def __init__(self, root: Path, file: Path) -> None:
        words = [word.upper() if word in SHORT else word for word in file.stem.split("_")]
        title = " ".join(words)
        self.name, self.title = file.stem, title[0].upper() + title[1:]
        self.path = file.relative_to(root).as_posix()
        self.doc = ast.get_docstring(ast.parse(file.read_text())) or ""
        self.about = self.doc.split("\n\n")[0].replace("\n", " ")
        self.docs = root / "docs"
        folder = self.docs / "images" / ("figures" if file.parent.name == "figures" else "")
        found = [folder / f"{PICTURES.get(self.name, self.name)}{kind}" for kind in (".png", ".webp")]
        found.append(root / "src/gibbsian/zoo/members" / self.name.replace("_", "-") / "samples.png")
        self.picture = next((picture for picture in found if picture.exists()), None)

    def card(self, thumbnails: Path) -> list[str]:
        """The entry on the gallery's first page."""
        lines = [f":::{{grid-item-card}} {self.title}", f":link: {self.name}.html", ""]
        if self.picture:
            source = thumbnail(self.picture, thumbnails)
            lines += [
                f'<img src="../thumbnails/{source}" alt="{self.title}" loading="lazy" width="480" height="300">',
                "",
            ]
        return [*lines, self.about, ":::", ""]

    def page(self) -> str:
        """The entry in full."""
        shown = f"![{self.title}]({os.path.relpath(self.picture, self.docs / 'gallery')})\n\n" if self.picture else ""
        rest = self.doc.partition("\n\n")[2]
        return (
            f"# {self.title}\n\n{self.about}\n\n{shown}{rest}\n\n## Source\n\n`{self.path}`\n\n"
            f"```{{literalinclude}} ../../{self.path}\n:language: python\n```\n"
        )


def thumbnail(picture: Path, out: Path) -> str:
    """A small copy; its name."""
    target = out / f"{picture.parent.name}-{picture.stem}.webp"
    if not target.exists() or target.stat().st_mtime < picture.stat().st_mtime:
        out.mkdir(parents=True, exist_ok=True)
        with Image.open(picture) as image:
            small = image.convert("RGBA").convert("RGB")
            if image.width > 2 * image.height:  # of many panels in a row the first ones, large enough to be seen
                small = small.crop((0, 0, round(1.6 * image.height), image.height))
            small.thumbnail((WIDTH, WIDTH))
            small.save(target, quality=80)
    return target.name


def write_pages(app: Sphinx) -> None:
    """gallery/*.md, where they changed."""
    docs = Path(app.srcdir)
    root = docs.parent
    there = {f.stem: Entry(root, f) for f in sorted((root / "examples").glob("*.py")) if f.stem not in HELPERS}
    figures = [Entry(root, f) for f in sorted((root / "examples" / "figures").glob("*.py")) if f.stem not in HELPERS]
    groups = {use: [there.pop(name) for name in names if name in there] for use, names in USES.items()}
    groups |= {"Others": list(there.values()), "Figures of the field": figures}
    text = [
        "# Gallery",
        "",
        "Programs that run as they are; each prints the numbers behind its picture. `--help` says what can be changed.",
        "",
    ]
    for use, entries in groups.items():
        if entries:
            text += [f"## {use}", "", "::::{grid} 1 2 2 3", ":gutter: 3", ":class-container: gallery", ""]
            text += [line for entry in entries for line in entry.card(docs / "_extra" / "thumbnails")]
            text += ["::::", ""]
    names = [entry.name for entries in groups.values() for entry in entries]
    text += ["```{toctree}", ":hidden:", "", *names, "```", ""]
    pages = {"index": "\n".join(text)} | {entry.name: entry.page() for entries in groups.values() for entry in entries}
    folder = docs / "gallery"
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.md"):
        if old.stem not in pages:
            old.unlink()
    for name, content in pages.items():
        if not (folder / f"{name}.md").exists() or (folder / f"{name}.md").read_text() != content:
            (folder / f"{name}.md").write_text(content)


def setup(app: Sphinx) -> dict[str, Any]:
    """Write the pages before they are read."""
    app.connect("builder-inited", write_pages)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
