"""The lab as a page: in a browser, from a server and from the disk; its command; what is shipped."""

import base64
import json
import re
import subprocess
import sys
from urllib.error import HTTPError
from urllib.request import urlopen

import numpy as np
import pytest
from chromium import browsing, find_chromium

import gibbsian as gb
from gibbsian.app.cli import main
from gibbsian.app.lab import make_weights
from gibbsian.app.lab.bundle import bundle
from gibbsian.app.lab.serve import page, serving

needs_chromium = pytest.mark.skipif(find_chromium() is None, reason="chromium is not installed")
SEEN = "document.querySelector('#stage canvas').getContext('2d').getImageData(0, 0, 300, 300).data"


@pytest.fixture(scope="module")
def browser():
    with browsing() as browser:
        yield browser


@pytest.fixture(scope="module")
def address():
    with serving(page()) as address:
        yield address


def settled(browser, steps: int = 3) -> None:
    """Wait until the experiment has moved and drawn."""
    browser.run(
        "new Promise((done) => { const look = () => { const b = window.lab?.bench();"
        f" b && b.steps >= {steps} && b.frames.length > 2 ? done() : setTimeout(look, 20); }}; look(); }})"
    )


def sections() -> list[str]:
    ids = re.findall(
        r'^  id: "(\w+)"', "\n".join(p.read_text() for p in (page() / "sections").glob("*.js")), re.MULTILINE
    )
    return sorted(ids)


@needs_chromium
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_every_section_moves_without_an_error_and_fits_its_window(browser, address, width, dark):
    browser.open(address, width=width, dark=dark)
    settled(browser)
    found = browser.run("window.lab.sections")
    assert sorted(found) == sections()
    for section in found:
        browser.run(f"location.hash = '{section}'; new Promise((done) => setTimeout(done, 60))")
        settled(browser)
        assert browser.run("window.lab.bench().experiment.id") == section
        faults = [one for one in browser.faults() if "empty canvas" not in one]  # a curve may have no point yet
        assert not faults, section
        assert browser.run(f"new Set({SEEN}).size > 4"), f"{section} shows nothing"
        assert browser.run(
            "[...document.querySelectorAll('canvas')].every((c) => c.getAttribute('aria-label')?.length > 3)"
        )
        assert browser.run(
            "[...document.querySelectorAll('input, select')].every((i) => i.labels?.length || i.ariaLabel)"
        )
        browser.run("document.querySelectorAll('.presets button').forEach((b) => { b.click(); lab.bench().step(); })")
    assert not browser.errors


@needs_chromium
def test_settings_come_from_the_address_and_go_there(browser, address):
    browser.open(f"{address}#landscape?law=ring&kernel=hmc&chains=50&step=0.3&seed=7&embed=1&law=ring")
    settled(browser)
    assert browser.run("lab.bench().values.kernel + lab.bench().sim.chains.count") == "hmc50"
    assert browser.run("getComputedStyle(document.querySelector('header')).display") == "none"
    browser.run("lab.bench().set({ leapfrog: 3 }); new Promise((done) => setTimeout(done, 20))")
    asked = browser.run("location.hash")
    assert "leapfrog=3" in asked
    assert "seed=7" in asked
    assert "embed=1" in asked
    browser.open(f"{address}#landscape?law=nothing&step=1e9&chains=-4&kernel=<b>")
    settled(browser)
    assert browser.run("[lab.bench().values.law, lab.bench().values.step, lab.bench().values.kernel]") == [
        "hills",
        3,
        "mala",
    ]
    for odd in (
        "landscape?law=formula&formula=x%20%2B",
        "landscape?law=%E0%A4%A",
        "nowhere?=&&%",
        "digits?drawn=%00%23<b>",
    ):
        browser.open(f"{address}#{odd}")
        settled(browser)
    assert not browser.errors


@needs_chromium
def test_the_same_seed_gives_the_same_chains(browser, address):
    places = []
    for seed in (3, 3, 4):
        browser.open(f"{address}#landscape?seed={seed}&play=0")
        browser.run("for (let i = 0; i < 20; i++) lab.bench().step()")
        places.append(browser.run("Array.from(lab.bench().sim.chains.x.slice(0, 6))"))
    assert places[0] == places[1]
    assert places[0] != places[2]


@needs_chromium
def test_reduced_motion_waits_for_a_hand_and_keys_work(browser, address):
    browser.open(address, still=True)
    browser.wait(0.2)
    assert browser.run("lab.bench().steps") == 0

    def press(key: str, code: str) -> None:
        for kind in ("keyDown", "keyUp"):
            browser.call("Input.dispatchKeyEvent", type=kind, key=key, code=code)

    press("ArrowRight", "ArrowRight")
    assert browser.run("lab.bench().steps") == 1
    press("r", "KeyR")
    assert browser.run("lab.bench().steps") == 0
    press(" ", "Space")
    assert browser.run("lab.bench().playing") is True
    assert not browser.errors


@needs_chromium
def test_formulas_are_refused_in_words_and_never_run(browser, address):
    browser.open(f"{address}#landscape?law=formula")
    settled(browser)
    said = browser.run(
        "(() => { const i = document.querySelector('#set-formula'); i.value = 'alert(1)'; i.dispatchEvent(new Event('input'));"
        " return i.parentNode.querySelector('.error').textContent; })()"
    )
    assert "“alert” is not known" in said
    assert not browser.errors
    for path in page().rglob("*.js"):
        assert not re.search(r"\beval\b|new Function|innerHTML", path.read_text()), path


@needs_chromium
def test_one_file_opens_from_the_disk(browser, tmp_path, capsys):
    out = tmp_path / "lab.html"
    assert main(["lab", "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bytes"] == out.stat().st_size
    for section in sections():
        browser.open(f"{out.as_uri()}#{section}")
        settled(browser)
        assert browser.run("window.lab.bench().experiment.id") == section
    assert not browser.errors
    assert "http://" not in bundle().replace("http://www.w3.org/", "")
    assert "https://" not in bundle()


def test_files_come_with_their_types_and_nothing_else_is_served(address):
    with urlopen(f"{address}main.js") as answer:
        assert answer.headers["Content-Type"].startswith("text/javascript")
    for path in ("core/", "../serve.py", "%2e%2e/serve.py", "..%2fserve.py", "nothing.js"):
        with pytest.raises(HTTPError) as error:
            urlopen(f"{address}{path}")
        assert error.value.code == 404
        error.value.close()


def test_the_command_serves_until_it_is_interrupted():
    script = "import sys; from gibbsian.app.cli import main; sys.exit(main(['lab', 'lattice', '--no-browser']))"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            where = re.search(r"http://127\.0\.0\.1:\d+/", line)
            assert where, line
            assert "#lattice" in line
            with urlopen(where[0]) as answer:
                assert "gibbsian lab" in answer.read().decode()
        finally:
            process.send_signal(2)
        assert process.wait(10) == 0


def test_a_port_that_is_taken_is_refused(address, capsys):
    port = address.rstrip("/").rsplit(":", 1)[1]
    assert main(["lab", "--no-browser", "--port", port]) == 2
    assert "cannot be had" in capsys.readouterr().err
    assert main(["lab", "--no-browser", "--port", "99999999"]) == 2


def test_the_machine_of_the_zoo_is_the_one_that_the_lab_draws_from(tmp_path):
    make_weights.write_zoo(tmp_path)
    shipped = page() / "models" / "zoo-digits-rbm.json"
    assert json.loads((tmp_path / shipped.name).read_text()) == json.loads(shipped.read_text())
    file, rbm = json.loads(shipped.read_text()), gb.zoo.load("digits-rbm")
    weight = np.frombuffer(base64.b64decode(file["weight"]), "<f2").reshape(file["visible"], file["hidden"])
    np.testing.assert_array_equal(weight.astype(np.float32), rbm.weight.detach().float().numpy())
