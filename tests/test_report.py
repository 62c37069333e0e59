"""The report is one file that opens anywhere: no network, pictures that show, nothing on the browser's console."""

import json
import re
from html.parser import HTMLParser

import pytest
import torch
from chromium import browsing, find_chromium

from gibbsian.app.cli import main
from gibbsian.app.report import figures, write_report
from gibbsian.app.report.words import brief

TEXT = {
    "digits": """
about: bits <b>& more</b>
data: {name: digits, steps: [flatten, {rescale: {old: [0, 16]}}, binarize, {split: {validation: 50, test: 100}}]}
model: {RBM: {visible: 64, hidden: 100}}
objective: {ContrastiveDivergence: {kernel: Gibbs}}
fit: {steps: 12, batch_size: 50, logging: {every: 3, validate_every: 4}}
sample: {steps: 30, show: 16}
""",
    "plane": """
data: {name: moons, n: 600, steps: [{split: {validation: 50, test: 100}}]}
model: {MLPEnergy: {domain: 2, hidden: [16], confine: 0.5}}
objective: {DenoisingScoreMatching: {sigma: 0.4}}
fit: {steps: 12, batch_size: 50, logging: {every: 3, validate_every: 4}}
sample: {steps: 30, kernel: {MALA: {step_size: 0.4}}}
""",
}


@pytest.fixture(scope="module", params=TEXT)
def run(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    (folder / "r.yaml").write_text(TEXT[request.param])
    assert main(["train", str(folder / "r.yaml"), "--run", str(folder / "run"), "-q"]) == 0
    return folder / "run"


class Page(HTMLParser):
    """Tags that are opened and closed in order, and what they refer to."""

    def __init__(self, text):
        super().__init__()
        self.open, self.links, self.ids = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.handle_startendtag(tag, attributes)
        if tag not in {"meta", "link", "img", "br"}:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        found = dict(attributes)
        self.links += [found[key] for key in ("src", "href", "xlink:href") if key in found]
        self.ids += [found["id"]] if "id" in found else []

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_nothing_else(run):
    text = (run / "report.html").read_text()
    page = Page(text)
    assert not page.open
    for link in page.links:
        assert link.startswith(("data:", "#")), link
        if link.startswith("#"):
            assert link[1:] in page.ids
    assert not re.findall(r"""(?:src|href)=["']https?:""", text)
    scripts = re.findall(r"<script([^>]*)>", text)
    assert scripts
    assert set(scripts) <= {"", ' type="application/json"'}  # the page's own, and numbers for it
    assert len(page.ids) == len(set(page.ids))
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text


def test_the_page_says_what_was_done_and_found(run):
    text = (run / "report.html").read_text()
    found = json.loads((run / "evaluation.json").read_text())
    assert f"{found['likelihood']['value']:.2f}" in text
    assert f"[{found['likelihood']['lower']:.2f}" in text
    for words in ("Learning curves", "Energies", "Do it again", "gibbsian train", "seed 0", "torch", "step 12"):
        assert words in text, words
    assert "<b>& more" not in text  # escaped
    assert text.count("data:image/png") >= 4


def test_the_report_is_made_again_from_the_folder(run):
    before = json.loads((run / "evaluation.json").read_text())
    path, found = write_report(run)
    assert path == run / "report.html"
    assert found == before
    fresh = write_report(run, fresh=True)[1]
    assert fresh["likelihood"]["value"] == pytest.approx(before["likelihood"]["value"], abs=1e-6)


def test_the_page_stays_small(run):
    assert (run / "report.html").stat().st_size < 2e6
    many = [(step, float(step)) for step in range(100_000)]  # longer runs have no larger pages
    (line,) = figures.chart({"loss": many}, y="loss")["series"]
    assert len(line["points"]) < 700
    assert line["points"][-1] == [99_999.0, 99_999.0]


@pytest.fixture(scope="module")
def browser():
    with browsing() as one:
        yield one


@pytest.mark.skipif(find_chromium() is None, reason="no chromium to open the page in")
@pytest.mark.parametrize("width", [390, 1200])
def test_the_page_opens_in_a_browser(run, browser, width, tmp_path):
    from PIL import Image

    browser.open((run / "report.html").as_uri(), width=width)
    assert not browser.faults()
    assert browser.run("document.querySelectorAll('img, figure svg').length") >= 4
    browser.picture(tmp_path / "shot.png", whole=True)
    with Image.open(tmp_path / "shot.png") as image:
        assert len(set(image.convert("L").resize((60, 60)).get_flattened_data())) > 20  # not an empty page


def test_pixels_are_kept(tmp_path):
    import base64
    import io

    import numpy as np
    from PIL import Image

    images = torch.stack([torch.eye(4), 1 - torch.eye(4), torch.ones(4, 4)])
    uri = figures.pixel_grid(images, columns=2)
    picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))))
    factor = picture.shape[0] // 9
    small = picture[::factor, ::factor]
    assert small.shape == (9, 9, 4)
    assert (small[:4, :4, 0] == 255 * np.eye(4)).all()
    assert (small[:4, 5:, 0] == 255 * (1 - np.eye(4))).all()
    assert (small[4, :, 3] == 0).all()  # clear between pictures
    assert (small[5:, 5:, 3] == 0).all()


def test_ids_of_pictures_do_not_meet_and_inks_follow_the_page():
    one, two = (figures.curve([(0, 1.0), (1, 2.0)], [(1, "rollback")], label="a", name=n) for n in ("x", "y"))
    ids = [set(re.findall(r'id="([^"]+)"', text)) for text in (one, two)]
    assert not ids[0] & ids[1]
    assert "var(--ink)" in one
    assert "var(--c0)" in one
    assert "<?xml" not in one


def test_brief_leaves_defaults_out():
    import gibbsian as gb

    objective = gb.objectives.PersistentContrastiveDivergence(gb.kernels.Gibbs(), steps=5)
    assert brief(objective) == "PersistentContrastiveDivergence (kernel Gibbs, steps 5)"
