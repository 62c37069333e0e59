"""A table of patients with gaps: what is missing, what it may have been, who is at risk, and which records look wrong.

    python examples/heart.py heart.csv

The table is UCI's "Heart Disease" (Cleveland, a header, `?` for what is missing); any table will do, the last column is predicted.
"""

import argparse

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from sklearn.metrics import roc_auc_score

from gibbsian.sklearn import TableEnergy
from gibbsian.tables.reading import read_table


def main() -> None:
    """Everything, printed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table")
    parser.add_argument("--label", help="the column that is predicted (default: the last)")
    parser.add_argument("--family", default="auto")
    parser.add_argument("--picture", help="where to write one of the last row's surprises")
    options = parser.parse_args()
    table = read_table(options.table)  # ? and NA and empty cells are missing
    label = options.label or table.columns[-1]
    order = np.random.default_rng(0).permutation(len(table))
    cut = int(0.7 * len(table))
    train, test = (table.iloc[part].reset_index(drop=True) for part in (order[:cut], order[cut:]))

    model = TableEnergy(options.family, random_state=0).fit(train)
    print(model.schema_)
    print(f"\n{model.family_}: {model.scores_}")

    gaps = table[table.isna().any(axis=1)].head(5)
    print(f"\n{int(table.isna().sum().sum())} cells are missing. Filled in:")
    filled, draws = model.impute(gaps), model.impute(gaps, draws=20)
    for row, name in zip(*np.nonzero(gaps.isna().to_numpy()), strict=True):
        several = [str(draw.iloc[row, name]) for draw in draws]
        shares = ", ".join(f"{value} {several.count(value)} times" for value in sorted(set(several)))
        print(f"  row {gaps.index[row]}, {table.columns[name]}: {filled.iloc[row, name]}; of 20 draws {shares}")

    _, names, chance = model.predict(test, label, return_probabilities=True)
    true = (test[label] == names[-1]).to_numpy()
    print(f"\n{label} of new rows, gaps and all: AUROC {roc_auc_score(true, chance[:, -1]):.3f}")

    odd = test.head(1).copy()
    number = next(c for c in model.schema_ if c.numbers and not c.values)
    odd[number.name] = 3 * number.high  # a slip of the pen
    surprise = (model.explain(odd) - model.explain(train).mean()).iloc[0]
    print(f"\nthe first new row with {number.name} = {odd[number.name].iloc[0]:g}:")
    print(f"  p-value {model.p_values(odd)[0]:.3f}, before {model.p_values(test.head(1))[0]:.3f}")
    print(f"  strangest cell: {surprise.idxmax()} (+{surprise.max():.1f} nats)")
    if options.picture:
        picture(surprise, f"the row with {number.name} = {odd[number.name].iloc[0]:g}").savefig(
            options.picture, dpi=110
        )


def picture(surprise: pd.Series, title: str) -> Figure:
    """How much more surprising than usual each cell of a row is, given the others."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    ax = figure.subplots()
    known = surprise.dropna().sort_values()
    ax.barh(known.index, known, color=["#c44e52" if value == known.max() else "0.5" for value in known])
    ax.axvline(0, color="black", lw=0.8)
    ax.set(title=title, xlabel="nats above the usual surprise of its column")
    return figure


if __name__ == "__main__":
    main()
