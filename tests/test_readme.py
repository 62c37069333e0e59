"""The README's Python blocks run as printed, in order, and its links lead somewhere."""

import re
from pathlib import Path

import torch

from gibbsian.app.catalog import entries

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_code_blocks_of_the_readme_run(capsys):
    scope: dict = {}
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert len(blocks) >= 5
    for number, block in enumerate(blocks):
        exec(compile(block, "README.md", "exec"), scope)
        if number == 0:
            holds_what_it_says(block, capsys.readouterr().out, scope["data"])
    assert "LogZ(" in capsys.readouterr().out


def holds_what_it_says(block: str, printed: str, data: torch.Tensor) -> None:
    """The first example: its likelihood, to a fifth of its interval, and that of pixels by themselves."""
    said, low, high, alone = map(
        float, re.search(r"# (-[\d.]+) in \[(-[\d.]+), (-[\d.]+)\], .* have (-[\d.]+)", block).groups()
    )
    assert low < said < high
    found = float(re.match(r"LogLikelihood\((-[\d.]+) ", printed)[1])
    assert abs(found - said) < 0.2 * (high - low)
    rates = (data[:1500].sum(0) + 0.5) / 1501
    by_pixels = torch.distributions.Bernoulli(rates).log_prob(data[1500:]).sum(1).mean()
    assert abs(float(by_pixels) - alone) < 0.1


def test_the_first_example_of_the_site_is_that_of_the_readme():
    first, other = (
        re.search(r"```python\n(.*?)```", (ROOT / page).read_text(), re.S)[1] for page in ("README.md", "docs/index.md")
    )
    assert first == other


def test_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_methods_page_names_what_exists():
    import gibbsian as gb

    names = re.findall(
        r"`(?:gb\.)?((?:energies|kernels|models|objectives|partition|metrics|units|testing|plots|schedules|training|zoo|distributed)\.\w+)",
        (ROOT / "docs" / "methods.md").read_text(),
    )
    assert len(names) > 60
    for name in names:
        module, attribute = name.split(".")
        assert hasattr(getattr(gb, module), attribute), name


def test_methods_page_has_every_kernel_and_objective():
    page = (ROOT / "docs" / "methods.md").read_text()
    for what in ("kernels", "objectives"):
        for entry in entries(what):
            assert re.search(rf"`{what}\.{entry.name}`", page), f"{what}.{entry.name}"


def test_the_version_is_the_same_wherever_it_is_said():
    import gibbsian as gb

    assert f"version: {gb.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"version = {{{gb.__version__}}}" in (ROOT / "docs" / "more" / "cite.md").read_text()
    newest = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert gb.__version__ in newest[:2]  # after a release there may be unreleased changes above it
