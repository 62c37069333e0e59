"""The live view: what it reads from a folder, whom it answers, what is seen in a browser, and that a run does not feel it."""

import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
import torch
from chromium import browsing, find_chromium

from gibbsian import load
from gibbsian.app import live
from gibbsian.app.cli import main
from gibbsian.app.live.follow import Follower, members
from gibbsian.app.live.hub import Hub
from gibbsian.app.live.serve import viewing
from gibbsian.training.keep import locked
from gibbsian.training.log import Log, read_log

needs_chromium = pytest.mark.skipif(find_chromium() is None, reason="chromium is not installed")
DIGITS = [
    "--fit.steps",
    "60",
    "--fit.epochs",
    "null",
    "--fit.logging.every",
    "10",
    "--fit.checkpoints.every",
    "30",
    "--sample.steps",
    "20",
]
PLANE = """
data: {name: moons, n: 400, steps: [{split: {validation: 100, test: 100}}]}
model: {MLPEnergy: {domain: 2, hidden: [16], confine: 0.5}}
objective: {DenoisingScoreMatching: {sigma: 0.4}}
fit: {steps: 60, batch_size: 50, logging: {every: 10}, checkpoints: {every: 30}}
sample: {steps: 20, kernel: {Langevin: {step_size: 0.3}}}
"""


def heard(viewers: int, *command: str) -> list[str]:
    """What so many viewers hear of a command with `--live`, to its end."""
    out: list[str] = []
    threads: list[Thread] = []

    def look(address: str) -> None:
        for viewer in [urlopen(address + "events", timeout=60) for _ in range(viewers)]:
            threads.append(Thread(target=lambda viewer=viewer: out.append(viewer.read().decode())))
            threads[-1].start()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("webbrowser.open", look)
        assert main([*command, "--no-report", "-q", "--live"]) == 0
    for thread in threads:  # until the end of the server, which is soon after that of the command
        thread.join()
    return out


def told(text: str) -> list[dict[str, Any]]:
    """The news of runs in what a viewer heard."""
    assert text.rstrip().endswith("event: end\ndata: {}")
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith('data: {"run"')]


@pytest.fixture(scope="module")
def watched_run(tmp_path_factory) -> tuple[Path, list[str]]:
    """A machine on digits, trained for a moment with `--live`, and what five viewers heard of it."""
    folder = tmp_path_factory.mktemp("watched") / "digits"
    return folder, heard(5, "train", "digits-rbm", *DIGITS, "--run", str(folder))


@pytest.fixture(scope="module")
def runs(tmp_path_factory, watched_run) -> dict[str, Path]:
    """The machine on digits, and an energy in the plane."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "plane.yaml").write_text(PLANE)
    assert main(["train", f"{folder}/plane.yaml", "--run", f"{folder}/plane", "--no-report", "-q"]) == 0
    return {"digits": watched_run[0], "plane": folder / "plane"}


@pytest.fixture(scope="module")
def browser():
    with browsing() as one:
        yield one


def print_of(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(p): (p.stat().st_mtime_ns, p.stat().st_size) for p in sorted(folder.rglob("*"))}


def steps(one: Follower) -> list[int]:
    return [record["step"] for record in one.records]


# --- following a folder -----------------------------------------------------------------------------


def test_the_log_is_read_as_it_grows_and_as_it_is_rewritten(tmp_path):
    log = Log(tmp_path, [])
    one = Follower(tmp_path)
    one.poll()
    assert one.records == []
    for step in (10, 20):
        log.write({"step": step, "loss": float("nan") if step == 20 else 1.5})
        assert one.poll()
    assert steps(one) == [10, 20]
    assert one.records[1]["loss"] == "nan"  # JSON has no other word for it
    half = b'{"step": 30, "lo'
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(half)
        file.flush()
        one.poll()
        assert steps(one) == [10, 20]  # a line is read when it is whole
        file.write(b'ss": NaN}\nno json\n[1]\n{"loss": 3}\n')
    one.poll()
    assert steps(one) == [10, 20, 30]  # what is damaged is left out
    assert "NaN}" not in json.dumps(one.records)  # which a page could not read
    log.close()
    again = Log(tmp_path, read_log(tmp_path, lines=1))  # a run that is resumed from step 10
    assert one.poll()
    assert steps(one) == [10]
    again.close()
    longer = [{"step": step, "loss": 1.0} for step in range(1, 50)]  # than what was read
    Log(tmp_path, longer).close()
    assert one.poll()
    assert steps(one) == list(range(1, 50))
    assert one.generation == 2


def test_a_run_is_training_while_it_is_locked_and_looking_takes_no_lock(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text(json.dumps({"tree": {"settings": {"fields": {"steps": 100}}}}))
    log = Log(tmp_path, [])
    log.write({"step": 40, "loss": 1.0, "seconds": 2.0})
    log.close()
    one = Follower(tmp_path)
    long_ago = time.time() - 3600
    os.utime(tmp_path / "metrics.jsonl", (long_ago, long_ago))

    def state() -> str:
        one.poll()
        return str(one.facts["state"])

    assert state() == "stopped"
    with locked(tmp_path):
        assert state() == "training"
        assert one.facts["total"] == 100
    assert state() == "stopped"
    with monkeypatch.context() as forbidden:  # it would keep a training from beginning
        forbidden.setattr("fcntl.flock", lambda *_: pytest.fail("the lock was asked for"))
        forbidden.setattr("fcntl.lockf", lambda *_: pytest.fail("the lock was asked for"))
        assert state() == "stopped"
    os.utime(tmp_path / "metrics.jsonl")
    assert state() == "training"  # on another machine, for all we know
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 100}\n')
    assert state() == "done"


def test_many_records_are_thinned_but_no_event_and_not_the_last(tmp_path):
    records = [{"step": i, "loss": 0.0} for i in range(1, 20_001)]
    records[7] = {"step": 8, "event": "rollback", "message": "once"}
    Log(tmp_path, records).close()
    one = Follower(tmp_path)
    one.poll()
    some = one.since(0)
    assert len(some) < 5000
    assert some[-1]["step"] == 20_000
    assert any("event" in record for record in some)
    assert one.since(19_990) == records[19_990:]


def test_a_comparison_is_followed_run_by_run_as_they_begin(tmp_path, runs):
    (tmp_path / "comparison.json").write_text("{}")
    assert members(tmp_path) == []
    hub = Hub([tmp_path])
    news = hub.listen(0.05)
    assert next(news) is None
    shutil.copytree(runs["digits"], tmp_path / "first")
    told = next(one for one in news if one is not None)
    assert told["facts"]["total"] == 60
    assert told["records"][-1]["step"] == 60
    news.close()
    hub.close()


def test_curves_need_no_torch(runs):
    code = (
        "import sys; from pathlib import Path; from urllib.request import urlopen; from gibbsian.app.live.serve import viewing\n"
        "with viewing([Path(sys.argv[1])]) as server:\n"
        "    news = urlopen(server.address + 'events')\n"
        "    print(b''.join(news.readline() for _ in range(6)).count(b'event: '), 'torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, runs["digits"]], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "False"]


# --- whom it answers --------------------------------------------------------------------------------


def ask(address: str, path: str | None = None, *, method: str = "GET", **headers: str) -> tuple[int, str]:
    """Status and text of a request to `path`, or to what the address names."""
    parts = urlsplit(address)
    link = http.client.HTTPConnection(parts.hostname, parts.port, timeout=10)
    link.putrequest(
        method, parts.path if path is None else path, skip_host="Host" in headers, skip_accept_encoding=True
    )
    for name, value in headers.items():
        link.putheader(name.replace("_", "-"), value)
    link.endheaders()
    answer = link.getresponse()
    found = answer.status, answer.read().decode()
    link.close()
    return found


@pytest.fixture(scope="module")
def address(runs):
    with viewing([runs["digits"]]) as server:
        yield server.address


def test_only_those_with_the_token_get_anything(address):
    token = urlsplit(address).path.strip("/")
    assert len(token) > 20
    assert ask(address)[0] == 200
    wrong = [f"/{token[:-1]}/", f"/{token}x/", f"/{token}", "/", "//", "/events", "/look/samples/0/60", "/%00/"]
    for path in wrong:
        status, text = ask(address, path)
        assert status == 403, path
        assert token not in text


def test_no_path_leads_out_of_the_page(address, runs):
    base = urlsplit(address).path
    for path in (
        "../config.json", "..%2fconfig.json", "ui/../../serve.py", "ui/%2e%2e/style.css", "/etc/passwd", "ui/", "ui", "//etc/passwd",
        f"{runs['digits']}/config.json", "index.html/..", "..\\serve.py", "ui/dom.js%00.html", "__init__.py",
    ):  # fmt: skip
        assert ask(address, base + path)[0] == 404, path
    for path in ("ui/dom.js", "lab.css", "live.css", "main.js", "index.html", "ui/dom.js?x=../.."):
        assert ask(address, base + path)[0] == 200, path


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:80",
        "127.0.0.1.evil.example",
        "localhost.evil",
        "8.8.8.8",
        "",
        "[",
        "a b",
        "@127.0.0.1:1@x",
    ],
)
def test_foreign_hosts_are_refused(address, host):
    assert ask(address, Host=host)[0] == 403


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9000", "127.0.0.1:1", "[::1]:22"])
def test_a_tunnel_may_have_another_port(address, host):
    assert ask(address, Host=host)[0] == 200


def test_pages_of_other_origins_are_refused(address):
    here = address[: address.index("/", 8)]
    assert ask(address, Origin=here)[0] == 200
    for origin in ("http://evil.example", "null", here.replace("http", "https"), f"{here}1", "http://localhost", ""):
        assert ask(address, Origin=origin)[0] == 403, origin
    assert ask(address, Sec_Fetch_Site="same-origin")[0] == 200
    for site in ("cross-site", "same-site"):
        assert ask(address, Sec_Fetch_Site=site)[0] == 403


def test_it_only_reads(address):
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"):
        assert ask(address, method=method)[0] == 501, method


def test_odd_questions_are_refused(address):
    base = urlsplit(address).path
    for odd in ("look/", "look/samples/0", "look/samples/0/x", "look/samples/-1/60", "look/code/0/60", "look/samples/0/60/1",
                "look/samples/0/%C2%B2", "look/samples/0/../60", "look/model/0/1e3", f"look/model/0/{'9' * 400}"):  # fmt: skip
        assert ask(address, base + odd)[0] == 400, odd
    with urlopen(address + "events"):  # the runs are known once somebody listens
        for missing in ("look/samples/9/60", "look/samples/0/61", "look/model/0/999"):
            assert ask(address, base + missing)[0] == 404, missing


@pytest.mark.parametrize(
    "raw",
    [b"\0\0\0\0\r\n\r\n", b"GET /TOKEN/look/samples/0/\xb2 HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET /\xe9/ HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET / HTTP/1.1 x y\r\n\r\n", b"\x16\x03\x01\x02\r\n\r\n",
     b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n", b"GET http://[ HTTP/1.1\r\nHost: localhost\r\n\r\n",
     b"GET / HTTP/1.1\r\nHost localhost\r\n\r\n", b"\r\n\r\n"],
)  # fmt: skip
def test_malformed_requests_get_an_error_and_the_server_goes_on(address, raw):
    parts = urlsplit(address)
    raw = raw.replace(b"TOKEN", parts.path.strip("/").encode())
    with socket.create_connection((parts.hostname, parts.port), timeout=10) as link:
        link.sendall(raw)
        link.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := link.recv(65536):
            answer += piece
    assert b" 200 " not in answer.split(b"\r\n")[0]
    assert b"Traceback" not in answer
    assert ask(address)[0] == 200


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_the_loopback_address_of_ipv6(runs):
    with viewing([runs["digits"]], host="::1") as server:
        assert server.address.startswith("http://[::1]:")
        here = f"[::1]:{server.server_address[1]}"
        assert ask(server.address)[0] == 200
        assert ask(server.address, Host=here, Origin=f"http://{here}")[0] == 200
        for host in ("[::2]", "8.8.8.8", "evil.example", "[::1"):  # reached from here alone: other numbers are others
            assert ask(server.address, Host=host)[0] == 403, host
        assert ask(server.address, Host=here, Origin="http://[::1]:1")[0] == 403


def test_all_addresses_of_the_machine_where_that_is_asked_for(runs):
    with viewing([runs["digits"]], host="0.0.0.0") as server:
        parts = urlsplit(server.address)
        assert parts.hostname == socket.gethostname().lower()  # 0.0.0.0 is nothing to be opened
        near = f"http://127.0.0.1:{parts.port}"
        for host in ("127.0.0.1", "192.0.2.7:8000", "[2001:db8::1]", socket.gethostname(), "localhost"):
            assert ask(near, parts.path, Host=host)[0] == 200, host
        for host in ("evil.example", "192.0.2.7.evil.example", "x" + socket.gethostname()):  # names of others, rebound
            assert ask(near, parts.path, Host=host)[0] == 403, host
        assert ask(near, "/")[0] == 403  # and never without the token


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "::1"])
def test_the_command_binds_where_it_is_told_to(runs, host, capsys, monkeypatch):
    if ":" in host and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    bound = []

    def serve(server, poll_interval):
        bound.append(server.server_address[0])
        raise KeyboardInterrupt

    monkeypatch.setattr("gibbsian.app.live.serve.Viewing.serve_forever", serve)
    assert main(["watch", str(runs["digits"]), "--no-browser", "--json", "--host", host]) == 0
    assert bound == [{"localhost": "127.0.0.1"}.get(host, host)]
    address = json.loads(capsys.readouterr().out)["address"]
    assert re.fullmatch(r"http://(\[::1\]|[\w.-]+):\d+/[\w-]{20,}/", address)


def test_headers_keep_other_pages_and_scripts_away(address):
    with urlopen(address) as answer:
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Frame-Options"] == "DENY"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert "Access-Control-Allow-Origin" not in answer.headers
        assert "Python" not in answer.headers["Server"]


# --- what is seen -----------------------------------------------------------------------------------


def test_pictures_show_what_is_in_the_folder(runs):
    from gibbsian.app.live.pictures import Pictures

    pictures = Pictures()
    found = pictures.answer(runs["plane"], "model", 60)
    table = found["landscape"]
    n, (left, right, bottom, top) = table["n"], table["view"]
    energy = load(runs["plane"], 60).requires_grad_(False)
    r, k = 17, 71
    at = torch.tensor([[left + (k + 0.5) / n * (right - left), bottom + (r + 0.5) / n * (top - bottom)]])
    assert table["energy"][r * n + k] == pytest.approx(float(energy(at)), abs=1e-4)
    assert len(found["chains"]["paths"]) == 64
    assert found["chains"]["r_hat"] > 0.9
    bins = found["energies"]
    width = (bins["high"] - bins["low"]) / len(bins["sets"]["training"])
    assert 0.97 < width * sum(bins["sets"]["training"]) <= 1.0001
    drawn = pictures.answer(runs["plane"], "samples", 60)
    assert len(drawn["points"]) == 2 * 500
    machine = pictures.answer(runs["digits"], "model", 60)
    assert machine["filters"]["uri"].startswith("data:image/png")
    assert pictures.answer(runs["digits"], "samples", 60)["image"].startswith("data:image/png")
    assert "why" in pictures.answer(runs["digits"], "samples", 61)
    assert "why" in pictures.answer(runs["digits"], "model", 61)
    assert "why" in pictures.answer(runs["digits"].parent, "model", 60)


def shown(browser) -> None:
    """Wait until all that can be seen is there."""
    browser.run(
        "new Promise((done) => { const all = (c) => [c.samples, c.model].every((l) => l.node.hidden || l.found);"
        " const look = () => window.live?.cards.length && live.cards.every(all) && document.querySelector('.curves canvas')"
        " ? setTimeout(done, 100) : setTimeout(look, 30); look(); })"
    )


@needs_chromium
def test_the_page_shows_runs_side_by_side_without_an_error(runs, browser):
    before = [print_of(folder) for folder in runs.values()]
    browser.errors.clear()
    with viewing([runs["digits"], runs["plane"]], nice=0) as server:
        for width, dark in ((1280, False), (390, True)):
            browser.open(server.address, width=width, dark=dark)
            shown(browser)
            assert not browser.faults()
            assert browser.run("[...document.querySelectorAll('canvas')].every((c) => c.ariaLabel?.length > 3)")
            assert browser.run("[...document.querySelectorAll('input')].every((i) => i.labels.length)")
        assert browser.run("live.cards.map((c) => c.facts.name)") == ["digits-rbm", "plane"]
        assert browser.run("live.cards[0].samples.step") == 60
        browser.run("live.cards[0].samples.chosen(0); new Promise((done) => setTimeout(done, 400))")
        assert browser.run("[live.cards[0].samples.step, document.images[0].alt]") == [1, "64 samples at update 1"]
        browser.run("document.getElementById('same-axes').click(); new Promise((done) => setTimeout(done, 100))")
        axes = browser.run("live.cards.map((c) => c.curves.shown.get('loss').axes.y)")
        assert axes[0] == axes[1]
        assert not browser.errors
    assert [print_of(folder) for folder in runs.values()] == before  # looking changes nothing


@needs_chromium
def test_the_page_follows_a_log_with_its_events(tmp_path, runs, browser):
    folder = tmp_path / "run<b>"
    shutil.copytree(runs["digits"], folder)
    shutil.rmtree(folder / "checkpoints")
    shutil.rmtree(folder / "snapshots")
    (folder / "command.json").unlink()
    log = Log(folder, [])
    browser.errors.clear()
    with viewing([folder]) as server:
        browser.open(server.address)
        browser.wait(0.3)
        assert browser.run("live.cards[0].name.textContent") == "run<b>"
        log.write({"step": 10, "loss": 2.0, "seconds": 1.0, "steps_per_second": 10.0})
        browser.wait(1.0)
        assert browser.run("live.cards[0].curves.shown.get('loss').ys") == [2]
        log.write({"step": 20, "loss": float("inf"), "seconds": 2.0, "steps_per_second": 10.0})
        log.write({"step": 30, "loss": 1.0, "seconds": 3.0, "steps_per_second": 10.0})
        log.write({"event": "rollback", "step": 10, "message": "<img src=x onerror=alert(1)> diverged"})
        log.write({"step": 20, "loss": 1.5, "seconds": 4.0, "steps_per_second": 10.0})
        browser.wait(1.0)
        assert browser.run("live.cards[0].curves.shown.get('loss').ys") == [2, None, 1, None, 1.5]
        assert "onerror" in browser.run("document.querySelector('.happened').textContent")
        assert browser.run("document.querySelectorAll('.happened img').length") == 0
        assert browser.run("document.querySelector('.facts').textContent").startswith("20of 60 updates")
        server.hub.close()
        browser.wait(0.3)
        assert "has ended" in browser.run("document.getElementById('link').textContent")
        assert not browser.errors
    log.close()


# --- the commands -----------------------------------------------------------------------------------


def test_watch_refuses_what_is_no_run_and_ports_that_are_taken(tmp_path, runs, capsys):
    assert main(["watch", str(tmp_path), "--no-browser"]) == 1
    assert "is no run" in capsys.readouterr().err
    (tmp_path / "table.yaml").touch()
    assert main(["watch", str(tmp_path), "--no-browser"]) == 1
    assert "table" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["watch", str(runs["digits"]), "--no-browser", "--port", str(taken.getsockname()[1])]) == 2
    assert "cannot be had" in capsys.readouterr().err
    assert main(["watch", str(runs["digits"]), "--no-browser", "--host", "no.such.host.invalid"]) == 2
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    assert main(["train", str(tmp_path / "rows.csv"), "--live"]) == 2


def test_watch_serves_until_it_is_interrupted(runs):
    command = [
        sys.executable,
        "-m",
        "gibbsian",
        "watch",
        str(runs["digits"]),
        str(runs["plane"]),
        "--no-browser",
        "--json",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = json.loads(process.stdout.readline())["address"]
        assert urlsplit(address).hostname == "127.0.0.1"
        with urlopen(address + "events", timeout=20) as news:
            names = [
                json.loads(line[6:])["facts"]["name"]
                for line in [news.readline() for _ in range(9)]
                if b'"run"' in line
            ]
            assert names == ["digits-rbm", "plane"]
            process.send_signal(2)
            assert news.read().decode().rstrip().endswith("event: end\ndata: {}")
        assert process.wait(10) == 0


def test_what_is_read_is_never_run_as_a_program():
    page = Path(live.__file__).parent / "page"
    for path in page.glob("*.js"):
        assert not re.search(r"\beval\b|new Function|innerHTML|insertAdjacentHTML", path.read_text()), path


def test_a_live_training_tells_five_viewers_all_its_records_and_ends_with_them(watched_run):
    folder, said = watched_run
    written = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert len(said) == 5
    for text in said:
        news = told(text)
        assert [record for one in news for record in one["records"]] == written
        assert news[0]["facts"]["state"] == "waiting"
        assert news[-1]["facts"]["state"] == "done"


def test_being_watched_by_five_changes_no_bit_of_a_run(watched_run, tmp_path):
    assert main(["train", "digits-rbm", *DIGITS, "--run", str(tmp_path / "alone"), "--no-report", "-q"]) == 0
    weights = [load(folder).state_dict() for folder in (watched_run[0], tmp_path / "alone")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[1])
    timeless = [
        [{k: v for k, v in one.items() if "second" not in k} for one in read_log(folder)]
        for folder in (watched_run[0], tmp_path / "alone")
    ]
    assert timeless[0] == timeless[1]


def test_a_run_that_goes_on_is_followed_to_its_new_end(tmp_path, runs):
    folder = tmp_path / "run"
    shutil.copytree(runs["plane"], folder)
    (text,) = heard(1, "resume", str(folder), "--steps", "90")
    news = told(text)
    assert [news[0]["facts"][key] for key in ("total", "state")] == [60, "done"]
    assert [news[-1]["facts"][key] for key in ("total", "state")] == [90, "done"]
    last = [one for one in news if one["anew"]][-1]  # a log that is written anew is told anew
    steps = [record["step"] for one in news[news.index(last) :] for record in one["records"]]
    assert steps == sorted(steps)
    assert steps[-1] == 90
