"""Are the contacts of PF13354 numbered rightly, and is its published distance a fair judge?

    GIBBSIAN_DATA=... python benchmarks/sequence_numbering.py --save benchmarks/results/sequence_numbering.json

Its distances are the smallest over many structures of the family. Here TEM-1, whose structure 1FQG is at hand, is aligned to the columns of
PF13354 (Needleman-Wunsch on the log-odds of the family's profile), and contacts by mean field are judged by both, and by the published
distances moved by a column or two: a numbering that is wrong would not notice.
"""

import argparse
import json
import warnings
from pathlib import Path

import numpy as np
import torch
from sequences import FAMILIES, chance, folder, precisions, touching

from gibbsian import sequences
from gibbsian.errors import DataWarning

GAP = -2.0


def aligned(profile: torch.Tensor, wild: torch.Tensor) -> dict[int, int]:
    """The residue of a sequence at every column that has one: the best path, the ends of the sequence being free."""
    odds = (profile[:, wild] / profile.mean(0)[wild]).log().T.numpy()  # (residues, columns)
    n, m = odds.shape
    best, came = np.zeros((n + 1, m + 1)), np.zeros((n + 1, m + 1), dtype=int)
    best[0] = GAP * np.arange(m + 1)
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            ways = best[i - 1, j - 1] + odds[i - 1, j - 1], best[i - 1, j] + GAP, best[i, j - 1] + GAP
            came[i, j] = int(np.argmax(ways))
            best[i, j] = ways[came[i, j]]
    i, j, out = int(np.argmax(best[:, m])), m, {}
    while i and j:
        if came[i, j] == 0:
            out[j - 1] = i - 1
        i, j = i - (came[i, j] != 2), j - (came[i, j] != 1)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--save")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", DataWarning)  # letters that stand for several
    family = sequences.read(folder() / FAMILIES["PF13354"][0], insertions=False, progress=False)
    family = family.select(torch.arange(options.rows) * len(family) // options.rows)
    relatives = sequences.read(folder() / FAMILIES["BLAT_ECOLX"][0], identity=None, insertions=False)
    residue = aligned(family.profile(0.5 / family.effective).double(), relatives.states[0].long())
    columns = torch.tensor(sorted(residue))
    places = torch.tensor([residue[int(c)] for c in columns])
    published = touching("PF13354", family.sites)
    found = sequences.contacts(sequences.fit_potts(family, "mean-field", progress=False))
    out: dict = {"rows": len(family), "sites": family.sites, "aligned": len(columns), "judges": {}}
    out["judges"]["smallest over structures"] = {"chance": chance(published), "precision": precisions(found, published)}
    for name, column in (("1FQG, heavy atoms", "heavy_atom"), ("1FQG, Cβ", "cb")):
        own = torch.full_like(published, torch.nan)
        own[columns[:, None], columns] = touching("BLAT_ECOLX", relatives.sites, column)[places[:, None], places]
        touch = (own > 0) & (torch.ones_like(own).triu(5) > 0)
        out["judges"][name] = {"chance": chance(own), "precision": precisions(found, own)}
        out["judges"][name]["touch by the smallest too"] = round(float(published[touch].nanmean()), 4)
    for shift in (-2, -1, 1, 2):
        moved = published.roll((shift, shift), (0, 1))
        out["judges"][f"smallest, moved by {shift:+d}"] = {
            "chance": chance(moved),
            "precision": precisions(found, moved),
        }
    for name, one in out["judges"].items():
        print(f"{name:28s}", one)
    if options.save:
        Path(options.save).write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
