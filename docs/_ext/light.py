"""Pages that weigh little: of the theme's style sheets only the rules that some page can meet, and icons without their script and font."""

import re
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pydata_sphinx_theme
from PIL import Image
from sphinx.application import Sphinx

RULE = re.compile(r"([^{}]+)\{([^{}]*)\}")
SHEETS = ("styles/pydata-sphinx-theme.css", "sphinx-design.min.css", "mystnb.*.css", "basic.css")
ICONS = Path(pydata_sphinx_theme.__file__).parent / "theme/pydata_sphinx_theme/static/scripts/fontawesome.js"


def purged(sheet: str, words: set[str]) -> str:
    """The rules of a sheet, but those whose selectors all name a class that no page and no script has."""

    def dead(selector: str) -> bool:
        return bool(set(re.findall(r"\.(-?[a-zA-Z_][\w-]*)", re.sub(r":not\([^)]*\)", "", selector))) - words)

    def kept(rule: re.Match[str]) -> str:
        selectors = rule[1]
        if selectors.lstrip().startswith("@") or re.search(r":(is|where|has)\(", selectors):
            return rule[0]
        return "" if all(dead(selector) for selector in selectors.split(",")) else rule[0]

    return RULE.sub(kept, re.sub(r"/\*.*?\*/", "", sheet, flags=re.S))


def drawn(names: set[str]) -> str:
    """Rules that draw icons as masks in the color of the text, from the outlines in the theme's script."""
    script, rules = ICONS.read_text(), []
    for name in sorted(names):
        named = rf'(?:"?\b{name}"?:\[(\d+),(\d+),\[[^\]]*\]|\[(\d+),(\d+),\[[^\]]*"{name}"[^\]]*\])'  # by its name, or by an older one
        found = re.search(named + r',"[0-9a-f]+","([^"]+)"', script)
        if found:
            width, height, path = (part for part in found.groups() if part)
            picture = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"><path d="{path}"/></svg>'
            rules.append(
                f'.fa-{name}::before{{--fa:"";-webkit-mask-image:url("data:image/svg+xml,{quote(picture)}");mask-image:url("data:image/svg+xml,{quote(picture)}")}}'
            )
    shape = "display:inline-block;width:1.25em;height:1em;background:currentColor;mask:center/contain no-repeat;-webkit-mask:center/contain no-repeat"
    return f'.fa-solid::before,.fa-regular::before{{content:""!important;{shape}}}' + "".join(rules)


def shrink(picture: Path) -> None:
    """A picture in 256 colors of its own, where that is smaller."""
    with Image.open(picture) as whole:
        few = whole.convert("RGBA").quantize(256, method=Image.Quantize.FASTOCTREE)
    lighter = BytesIO()
    few.save(lighter, "PNG", optimize=True)
    if lighter.tell() < 0.8 * picture.stat().st_size:
        picture.write_bytes(lighter.getvalue())


WIDE = 2.2  # width over height of pictures of several panels, which a phone shows in part
HEADING = re.compile(r"<h[12]>(.*?)<a ", re.S)
PICTURE = re.compile(r'<img[^>]*_images/([^"/]+)"[^>]*>')


def describe_pictures(out: Path) -> None:
    """Pictures of several panels in a row have the class `wide`; those that cells drew are named after their section."""
    wide = set()
    for picture in (out / "_images").glob("*.png"):
        with Image.open(picture) as image:
            if image.width > WIDE * image.height:
                wide.add(picture.name)

    def described(found: re.Match[str]) -> str:
        tag, before = found[0], found.string[: found.start()]
        titles = HEADING.findall(before)
        title = re.sub(r"<[^>]+>", "", titles[-1]).strip().replace('"', "&quot;") if titles else "figure"
        tag = re.sub(r'alt="[./]*_images/[^"]*"', lambda _: f'alt="Figure: {title}"', tag)
        if found[1] not in wide or 'class="wide' in tag:
            return tag
        return (
            tag.replace('class="', 'class="wide ', 1)
            if 'class="' in tag
            else tag.replace("<img", '<img class="wide"', 1)
        )

    for page in out.rglob("*.html"):
        text = page.read_text()
        changed = PICTURE.sub(described, text) if "_images/" in text else text
        if changed != text:
            page.write_text(changed)


def lighten(app: Sphinx, error: Exception | None) -> None:
    """Rewrite what was copied."""
    if error or app.builder.name != "html":
        return
    out = Path(app.outdir)
    static = out / "_static"
    (static / "scripts" / "fontawesome.js").write_text("// Icons are drawn by the style sheet.\n")
    texts = [
        p.read_text() for p in [*out.rglob("*.html"), *static.rglob("*.js")] if "lab" not in p.relative_to(out).parts
    ]
    words = set(re.findall(r"[\w-]+", "\n".join(texts)))
    for pattern in SHEETS:
        for sheet in static.glob(pattern):
            sheet.write_text(purged(sheet.read_text(), words))
    for picture in (out / "_images").glob("*.png"):
        if picture.stat().st_size > 100_000:
            shrink(picture)
    describe_pictures(out)
    theme = static / SHEETS[0]
    sheet = re.sub(r"@font-face\{[^{}]*Font Awesome[^{}]*\}", "", theme.read_text())
    theme.write_text(sheet + drawn({word.removeprefix("fa-") for word in words if word.startswith("fa-")}))


def setup(app: Sphinx) -> dict[str, Any]:
    """When the pages are written."""
    app.connect("build-finished", lighten)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
