"""Pictures of families of sequences and of what machines learned from them: logos, contact maps, checks of new sequences."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gibbsian.drawing.style import INK, color, legend, tidy
from gibbsian.errors import ArgumentError, ShapeError
from gibbsian.sequences.checks import Agreement, Checks
from gibbsian.sequences.contacts import Contacts
from gibbsian.sequences.family import Family

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.path import Path
    from matplotlib.textpath import TextPath

_GROUPS = ("GSTCYNQ", "AVLIPWFM", "KRH", "DE")  # polar, apolar, positive, negative
_SHADES = ("#3f9470", "#404040", "#2f6c9e", "#b04a5a")
_NUCLEOTIDES = {"A": "#3f9470", "C": "#2f6c9e", "G": "#c49a1a", "U": "#b04a5a", "T": "#b04a5a"}
_PROTEINS = {letter: shade for group, shade in zip(_GROUPS, _SHADES, strict=True) for letter in group}


def logo(heights: Tensor, letters: str, ax: "Axes", *, first: int = 1, label: str = "", least: float = 0.02) -> "Axes":
    """A sequence logo: letters as high as their numbers, stacked at every site, negative ones below the line.

    Args:
        heights: `(sites, letters)`, such as `information(family)`, fields of a Potts machine in the zero-sum gauge, or one row
            of `sequences.hidden_weights`.
        letters: as many, such as `family.alphabet.letters`.
        first: the position of the first site.
        label: of the axis of heights.
        least: letters below this share of the highest stack are left out.

    Reference: Schneider & Stephens 1990.

    >>> import matplotlib.figure
    >>> ax = logo(torch.tensor([[0.5, -0.2], [1.0, 0.1]]), "AC", matplotlib.figure.Figure().subplots())
    """
    from matplotlib.patches import PathPatch
    from matplotlib.textpath import TextPath

    if heights.dim() != 2 or heights.shape[1] != len(letters):
        raise ShapeError(f"heights have shape {tuple(heights.shape)}, expected (sites, {len(letters)}) for {letters}")
    h = heights.detach().double().cpu()
    shades = _NUCLEOTIDES if set(letters) <= set("-ACGUT") else _PROTEINS
    top, bottom = float(h.clamp(min=0).sum(1).max()), float(h.clamp(max=0).sum(1).min())
    shapes = {letter: TextPath((0, 0), letter, size=1) for letter in letters}
    for site, row in enumerate(h.tolist()):
        up = down = 0.0
        for height, letter in sorted(zip(row, letters, strict=True), key=lambda one: abs(one[0])):
            if abs(height) >= least * max(top - bottom, 1e-12):
                low = up if height > 0 else down + height
                ax.add_patch(
                    PathPatch(
                        _placed(shapes[letter], letter, first + site, low, abs(height)),
                        color=shades.get(letter, "#8a8f94"),
                        linewidth=0,
                    )
                )
            if height > 0:
                up += height
            else:
                down += height
    ax.set(xlim=(first - 0.7, first + len(h) - 0.3), ylim=(1.05 * bottom, 1.05 * max(top, 1e-12)), ylabel=label)
    ax.axhline(0, color="0.6", linewidth=0.8)
    return tidy(ax, grid=None)


def _placed(shape: "TextPath", letter: str, center: float, low: float, height: float) -> "Path":
    """A letter stretched to a height of its own and the width of a site; I and the gap stay narrow."""
    from matplotlib.transforms import Affine2D

    box = shape.get_extents()
    width = {"I": 0.3, "-": 0.6}.get(letter, 0.94)
    if letter == "-":  # a stroke in the middle
        low, height = low + 0.4 * height, 0.2 * height
    place = Affine2D().translate(-box.x0, -box.y0).scale(width / box.width, height / box.height)
    return place.translate(center - width / 2, low).transform_path(shape)


def information(family: Family) -> Tensor:
    """Heights of the logo of a family: fᵢ(a)·(log₂ q - Hᵢ) bits, over its letters without the gap.

    >>> from gibbsian.sequences import Alphabet
    >>> information(Family(torch.tensor([[1, 1], [1, 2]]), Alphabet.of("rna")))[0]
    tensor([2., 0., 0., 0.], dtype=torch.float64)
    """
    f = family.profile()
    kept = [a for a, letter in enumerate(family.alphabet.letters) if letter != "-"]
    known = f[:, kept].sum(1, keepdim=True)
    p = f[:, kept] / known.clamp(min=1e-12)
    bits = torch.tensor(float(len(kept))).log2() + torch.special.xlogy(p, p).sum(1, keepdim=True) / torch.log(
        torch.tensor(2.0)
    )
    return p * bits * known  # sites that are mostly gaps say little


def contact_map(
    found: Contacts, ax: "Axes", *, touching: Tensor | None = None, count: int | None = None, first: int = 1
) -> "Axes":
    """Predicted contacts as dots over a structure: right ones above the diagonal in one color, wrong ones in another.

    Args:
        found: from `sequences.contacts`.
        touching: `(sites, sites)`, 1 where two sites touch, 0 where not, NaN where nobody knows: gray squares.
        count: how many of the strongest pairs, as many as there are sites where it is left out.
        first: the position of the first site.

    >>> import gibbsian as gb
    >>> import matplotlib.figure
    >>> found = gb.sequences.contacts(gb.models.Potts(9, 5))
    >>> ax = contact_map(found, matplotlib.figure.Figure().subplots())
    """
    sites = found.scores.shape[0]
    pairs = found.pairs[: sites if count is None else count].cpu()
    if touching is None:
        scores = found.scores.detach().double().cpu()
        reach = (first - 0.5, first + sites - 0.5)
        high = float(scores.flatten().sort().values[int(0.995 * (scores.numel() - 1))])
        ax.imshow(scores.clamp(min=0).numpy(), cmap="Greys", vmax=max(high, 1e-12), extent=(*reach, *reach[::-1]))
        right = torch.ones(len(pairs), dtype=torch.bool)
    else:
        if touching.shape != found.scores.shape:
            raise ShapeError(f"touching has shape {tuple(touching.shape)}, expected {tuple(found.scores.shape)}")
        known = touching.double().cpu()
        both = torch.maximum(known.nan_to_num(-1), known.T.nan_to_num(-1))
        i, j = (both == 1).nonzero().T
        side = 72 * 0.75 * ax.get_figure().get_size_inches().min() / sites  # type: ignore[union-attr]
        ax.scatter(j + first, i + first, s=side**2, marker="s", color="0.85", linewidths=0, label="in the structure")
        value = both[pairs[:, 0], pairs[:, 1]]
        right = value == 1
        unknown = value == -1
        if bool(unknown.any()):
            ax.plot(*(pairs[unknown].flip(1).T + first).numpy(), "o", markersize=3.5, color=color(4), label="not known")
        ax.plot(*(pairs[value == 0].flip(1).T + first).numpy(), "o", markersize=3.5, color=color(1), label="wrong")
    ax.plot(*(pairs[right].flip(1).T + first).numpy(), "o", markersize=3.5, color=color(0), label="right" if touching is not None else "strongest")  # fmt: skip
    ax.set(
        xlabel="site", ylabel="site", xlim=(first - 1, first + sites), ylim=(first + sites, first - 1), aspect="equal"
    )
    legend(ax, loc="lower left", fontsize=8)
    return tidy(ax, grid=None)


def precision_curve(found: Mapping[str, Contacts], touching: Tensor, ax: "Axes", *, most: float = 2.0) -> "Axes":
    """The share of true contacts among the strongest pairs, along their number.

    Args:
        found: contacts by name.
        touching: as in `contact_map`.
        most: pairs at most, times the number of sites.

    >>> import gibbsian as gb
    >>> import matplotlib.figure
    >>> found = gb.sequences.contacts(gb.models.Potts(9, 5))
    >>> ax = precision_curve({"new": found}, torch.eye(9), matplotlib.figure.Figure().subplots())
    """
    if not found:
        raise ArgumentError("precision_curve needs at least one set of contacts, such as {'Potts': contacts(potts)}")
    sites = touching.shape[0]
    for i, (name, one) in enumerate(found.items()):
        values = touching.double().cpu()[one.pairs[:, 0].cpu(), one.pairs[:, 1].cpu()]
        values = values[~values.isnan()][: int(most * sites)]
        rank = torch.arange(1, len(values) + 1)
        ax.plot(rank.numpy(), (values.cumsum(0) / rank).numpy(), color=color(i), linewidth=1.8, label=name)
    everywhere = touching.double().cpu()[one.pairs[:, 0].cpu(), one.pairs[:, 1].cpu()]
    ax.axhline(float(everywhere.nanmean()), color="0.6", linewidth=1, linestyle="dashed", label="any pair")
    for share, text in ((0.2, "L/5"), (0.5, "L/2"), (1.0, "L")):
        ax.axvline(share * sites, color="0.85", linewidth=1, zorder=0)
        ax.text(share * sites, 1.03, text, ha="center", color=INK, fontsize=8)
    ax.set(xlabel="pairs, strongest first", ylabel="share in contact", xscale="log", ylim=(0, 1.02))
    legend(ax, loc="lower left", fontsize=8)
    return tidy(ax)


def components(checks: Checks, ax: "Axes", *, most: int = 4000) -> "Axes":
    """Natural and drawn sequences on the first two principal components of the natural ones.

    >>> import matplotlib.figure
    >>> from gibbsian.sequences import Alphabet, compare
    >>> family = Family(torch.randint(0, 3, (50, 5), generator=torch.Generator().manual_seed(0)), Alphabet("-AB"))
    >>> ax = components(compare(family, family), matplotlib.figure.Figure().subplots())
    """
    natural, drawn = (part[:most].numpy() for part in checks.components)
    ax.plot(*natural.T, "o", markersize=3.2, color=color(6), alpha=0.35, markeredgewidth=0, label="natural")
    ax.plot(*drawn.T, "o", markersize=2.2, color=color(1), alpha=0.5, markeredgewidth=0, label="drawn")
    shares = [f"component {i + 1} ({100 * share:.0f} %)" for i, share in enumerate(checks.explained)]
    ax.set(xlabel=shares[0], ylabel=shares[1])
    legend(ax, fontsize=8)
    return tidy(ax, grid="both")


def agreement(found: Agreement, ax: "Axes", *, name: str, most: int = 20_000) -> "Axes":
    """A statistic of drawn sequences against that of natural ones; some of the numbers where there are many.

    >>> import matplotlib.figure
    >>> found = Agreement(torch.tensor([0.1, 0.2]), torch.tensor([0.1, 0.25]), 1.0, 1.5)
    >>> ax = agreement(found, matplotlib.figure.Figure().subplots(), name="frequencies")
    """
    size = torch.maximum(found.natural.abs(), found.drawn.abs())
    chosen = size.argsort(descending=True)
    if len(chosen) > most:  # the largest tenth of them, and others evenly
        rest = torch.linspace(most // 10, len(chosen) - 1, most - most // 10).long()
        chosen = torch.cat([chosen[: most // 10], chosen[rest]])
    x, y = found.natural[chosen].cpu(), found.drawn[chosen].cpu()
    low, high = (float(end) for end in torch.cat([x, y]).aminmax())
    ax.plot([low, high], [low, high], color="0.7", linewidth=1, linestyle="dashed")
    ax.plot(x.numpy(), y.numpy(), ".", markersize=2.5, color=color(0), alpha=0.4, markeredgewidth=0)
    ax.set(xlabel="natural", ylabel="drawn")
    ax.set_title(f"{name}: Pearson {found.pearson:.3f}, slope {found.slope:.2f}", fontsize="medium", color=INK)
    return tidy(ax, grid="both")


def identities(checks: Checks, ax: "Axes") -> "Axes":
    """How near drawn sequences come to natural ones, beside how near those come to each other.

    >>> import matplotlib.figure
    >>> from gibbsian.sequences import Alphabet, compare
    >>> family = Family(torch.randint(0, 3, (50, 5), generator=torch.Generator().manual_seed(0)), Alphabet("-AB"))
    >>> ax = identities(compare(family, family), matplotlib.figure.Figure().subplots())
    """
    edges = torch.linspace(0, 1, 41).tolist()
    for i, (name, values) in enumerate((("natural", checks.nearest_natural), ("drawn", checks.nearest))):
        shade = color(6 if i == 0 else 1)
        ax.hist(values.numpy(), edges, density=True, color=shade, alpha=0.35)
        ax.hist(values.numpy(), edges, density=True, color=shade, histtype="step", linewidth=1.6, label=name)
    ax.set(xlabel="identity with the nearest natural sequence", ylabel="share", yticks=[])
    legend(ax, fontsize=8)
    return tidy(ax, grid=None)
