"""Pages that weigh little: of the theme's style sheets only the rules that some page can meet, and icons without their script and font."""

import re
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import quote

from PIL import Image
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

RULE = re.compile(r"([^{}]+)\{([^{}]*)\}")
SHEETS = ("styles/pydata-sphinx-theme.css", "sphinx-design.min.css", "mystnb.*.css", "basic.css")
PEN = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24" fill="none" stroke="#000" stroke-width="2.6" stroke-linecap="round" '
    'stroke-linejoin="round">{}</svg>'
)
ICONS = {
    "angle-left": '<path d="M15 4l-8 8 8 8"/>',
    "angle-right": '<path d="M9 4l8 8-8 8"/>',
    "arrow-up": '<path d="M12 21V4M5 11l7-7 7 7"/>',
    "bars": '<path d="M3 5h18M3 12h18M3 19h18"/>',
    "circle-half-stroke": '<circle cx="12" cy="12" r="9"/><path d="M12 3a9 9 0 0 1 0 18z" fill="#000"/>',
    "house": '<path d="M2 12l10-9 10 9M5 10.5V21h14V10.5"/>',
    "list": '<path d="M8 5h13M8 12h13M8 19h13M3 5h.01M3 12h.01M3 19h.01"/>',
    "magnifying-glass": '<circle cx="10" cy="10" r="6.5"/><path d="M15 15l7 7"/>',
    "moon": '<path d="M20.5 14.5A8.7 8.7 0 1 1 9.5 3.5a7 7 0 0 0 11 11z"/>',
    "outdent": '<path d="M3 5h18M12 12h9M3 19h18M7 8.5L3 12l4 3.5"/>',
    "sun": '<circle cx="12" cy="12" r="4.5"/><path d="M12 1.5v2M12 20.5v2M1.5 12h2M20.5 12h2M4.6 4.6L6 6M18 18l1.4 1.4M4.6 19.4L6 18M18 6l1.4-1.4"/>',
    "xmark": '<path d="M5 5l14 14M19 5L5 19"/>',
}  # outlines of our own: where those of the theme are kept changes with its versions
MODIFIERS = {"solid", "regular", "lg"}


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
    """Rules that draw icons as masks in the color of the text; refused where a page has one that is none of `ICONS`."""
    unknown = names - set(ICONS) - MODIFIERS
    if unknown:
        raise ExtensionError(
            f"pages have icons without an outline: {', '.join(sorted(unknown))}; draw them in {Path(__file__).name}"
        )
    shape = "display:inline-block;width:1.25em;height:1em;background:currentColor;mask:center/contain no-repeat;-webkit-mask:center/contain no-repeat"
    rules = [f'.fa-solid::before,.fa-regular::before{{content:""!important;{shape}}}']
    for name in sorted(names - MODIFIERS):
        mask = f'url("data:image/svg+xml,{quote(PEN.format(ICONS[name]))}")'
        rules.append(f'.fa-{name}::before{{--fa:"";-webkit-mask-image:{mask};mask-image:{mask}}}')
    return "".join(rules)


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
