"""The site in a real browser: pages without errors, pictures that load, links that lead somewhere, nothing wider than a phone.

The suite builds a few pages; `make docs-test` gives the whole site in $GIBBSIAN_SITE, and all of it is crawled.
"""

import functools
import http.server
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin

import pytest
from chromium import browsing, find_chromium

ROOT = Path(__file__).parents[1]
FEW = "start/install start/five-minutes howto/own-energy api/domains more/faq more/glossary"
WHOLE = os.environ.get("GIBBSIAN_SITE")
MOST = 1_000_000  # bytes of a page with everything it loads, but for the gallery and what frames hold


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of a built site: the one that was given, or a few pages built here, a warning being an error."""
    if WHOLE:
        return Path(WHOLE).resolve()
    pytest.importorskip("sphinx")
    pytest.importorskip("myst_nb")
    out = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-q",
        "-b",
        "html",
        "-d",
        out / "trees",
        ROOT / "docs",
        out / "html",
    ]
    built = subprocess.run(command, env=os.environ | {"GIBBSIAN_DOCS_PAGES": FEW}, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-3000:]
    return out / "html"


@pytest.fixture(scope="module")
def served(site):
    """The address of the site."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def pages_of(site):
    found = [p.relative_to(site).as_posix() for p in site.rglob("*.html")]
    return sorted(p for p in found if not p.startswith(("lab/", "_static/")))


def test_every_page_is_sound_in_a_browser(site, served):
    """On a phone and, every fourth page, on a wide screen: console, pictures, width, weight."""
    if find_chromium() is None:
        pytest.skip("chromium is not installed")
    wrong, pages = [], pages_of(site)
    assert len(pages) >= 8
    with browsing() as browser:
        for number, page in enumerate(pages):
            for width in (390, 1280) if number % 4 == 0 else (390,):
                browser.errors.clear()
                browser.open(f"{served}/{page}", width=width, dark=number % 2 == 0, still=True)
                found = browser.run(LOOK)
                wrong += [f"{page}: {error}" for error in browser.errors]
                wrong += [f"{page}: picture {src}" for src in found["broken"]]
                wrong += [f"{page}: from elsewhere: {src}" for src in found["elsewhere"] if not src.startswith(served)]
                if found["width"] > width:
                    wrong.append(f"{page}: {found['width']} pixels wide at {width}: {found['widest']}")
                if found["weight"] > MOST and "gallery" not in page:
                    wrong.append(f"{page}: {found['weight']} bytes")
    assert not wrong, "\n".join(wrong)


LOOK = """(async () => {
  document.querySelectorAll("img[loading=lazy]").forEach((i) => (i.loading = "eager"));
  await Promise.all([...document.images].map((i) => i.complete || new Promise((done) => { i.onload = i.onerror = done; })));
  await document.fonts.ready;
  const wide = document.documentElement.clientWidth;
  const widest = [...document.querySelectorAll(".bd-article *")].find((e) => {
    if (e.getBoundingClientRect().right <= wide + 1) return false;
    for (let up = e.parentElement; up; up = up.parentElement) {
      if (["auto", "scroll", "hidden", "clip"].includes(getComputedStyle(up).overflowX)) return false;
    }
    return true;
  });
  const loaded = performance.getEntriesByType("resource").filter((r) => r.initiatorType !== "iframe");
  return {
    broken: [...document.images].filter((i) => !i.naturalWidth && !i.closest("[hidden]")).map((i) => i.src),
    elsewhere: loaded.map((r) => r.name).filter((n) => !n.startsWith("data:")),
    width: document.documentElement.scrollWidth,
    widest: widest ? widest.outerHTML.slice(0, 200) : "",
    weight: [...loaded, ...performance.getEntriesByType("navigation")].reduce((sum, r) => sum + r.decodedBodySize, 0),
  };
})()"""


def test_links_within_the_site_lead_somewhere(site):
    """Every address of every page, with its anchor; pages that a build of a few leaves out may be missing."""
    texts = {page: (site / page).read_text() for page in pages_of(site)}
    anchors = {page: set(re.findall(r'\b(?:id|name)="([^"]+)"', text)) for page, text in texts.items()}
    dead = []
    for page, text in texts.items():
        for target in re.findall(r'(?:href|src)="([^"]+)"', re.sub(r"<script.*?</script>", "", text, flags=re.S)):
            if re.match(r"[a-z]+:|//", target):
                continue
            address, anchor = urldefrag(urljoin(page, target))
            address, anchor = unquote(address.partition("?")[0]) or page, unquote(anchor)
            address += "index.html" if address.endswith("/") else ""
            if not (site / address).exists():
                dead += [f"{page}: {target}"] if WHOLE else []
            elif anchor and address in anchors and anchor not in anchors[address]:
                dead.append(f"{page}: {target} has no such place")
    assert not dead, "\n".join(sorted(set(dead)))


@pytest.mark.skipif(not WHOLE, reason="the reference is built by `make docs-test`")
def test_the_reference_holds_every_public_name(site):
    """Each name of every `__all__` has a place on a page of the reference."""
    import gibbsian as gb

    pages = "".join(page.read_text() for page in (site / "api").glob("*.html"))
    for room in gb.__all__:
        module = getattr(gb, room)
        for name in getattr(module, "__all__", [] if hasattr(module, "__path__") else [room]):
            assert re.search(rf'id="gibbsian[\w.]*\.{name}"', pages), f"{room}.{name}"


def test_every_icon_has_an_outline(site):
    """One without is a black square."""
    sheet = (site / "_static/styles/pydata-sphinx-theme.css").read_text()
    pages = "".join(path.read_text() for path in [*site.glob("start/*.html"), *site.glob("howto/*.html")])
    icons = {
        name
        for names in re.findall(r'class="fa-(?:solid|regular) ([^"]+)"', pages)
        for name in re.findall(r"fa-([a-z-]+)", names)
    }
    assert {"magnifying-glass", "bars", "moon"} <= icons - {"lg"}
    for name in icons - {"lg"}:
        assert re.search(rf"\.fa-{name}::before\{{[^}}]*[^-]mask-image:url\(\"data:image/svg", sheet), name
