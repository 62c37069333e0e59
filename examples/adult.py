"""A census table end to end: learn the law of its rows, then score, explain, fill in, predict and synthesise.

    python examples/adult.py adult_train.csv adult_test.csv

The tables are those of UCI's "Adult" (a header, `?` for what is missing); any two tables of the same columns will do.
"""

import argparse
import time

import numpy as np
from matplotlib.figure import Figure
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import accuracy_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OrdinalEncoder

from gibbsian.sklearn import TableEnergy
from gibbsian.tables.reading import read_table


def main() -> None:
    """Everything, printed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train")
    parser.add_argument("test")
    parser.add_argument("--label", help="the column that is predicted (default: the last)")
    parser.add_argument("--rows", type=int, default=20000, help="rows that are learned from, at most")
    parser.add_argument("--family", default="auto")
    parser.add_argument("--picture", help="where to write one of real and drawn columns")
    options = parser.parse_args()
    train, test = read_table(options.train, most=options.rows), read_table(options.test, most=4000)
    label = options.label or train.columns[-1]

    begun = time.perf_counter()
    model = TableEnergy(options.family, random_state=0).fit(train)
    print(model.schema_, "", sep="\n")
    print(f"{model.family_} learned in {time.perf_counter() - begun:.0f} s; held-out nats a row: {model.scores_}")
    print(f"new rows: {model.score_samples(test).mean():.3f} nats a row")
    print(f"flagged at 5 %: {100 * (model.predict_outliers(test) == -1).mean():.1f} % of them\n")

    least = np.argsort(model.score_samples(test))[:3]
    surprise = model.explain(test.iloc[least]) - model.explain(test.head(300)).mean()
    for i, cells in zip(least, surprise.to_numpy(), strict=True):
        top = [train.columns[j] for j in np.argsort(-np.nan_to_num(cells))[:3]]
        print(f"row {i} is strange for its {', '.join(f'{name} = {test.iloc[i][name]}' for name in top)}")

    hidden = test.copy()
    gone = np.random.default_rng(0).random(len(test)) < 0.3
    hidden.loc[gone, label] = None
    right = (model.impute(hidden)[label] == test[label])[gone].mean()
    print(f"\n{label} hidden in {gone.sum()} rows: {100 * right:.1f} % filled in right")

    drawn = model.sample(len(train))
    for name, rows in (("real", train), ("drawn", drawn)):
        print(f"a classifier trained on {name} rows: {100 * accuracy(rows, test, label):.1f} % of {label} right")
    print(model.sample(3, given={label: train[label].iloc[0]}).to_string())
    if options.picture:
        picture(train, drawn).savefig(options.picture, dpi=110)


def picture(real, drawn) -> Figure:
    """Three numbers and three names of real and of drawn rows."""
    numbers = [name for name in real.columns if real[name].dtype.kind in "if"][:3]
    names = [name for name in real.columns if name not in numbers and real[name].nunique() <= 12][:3]
    figure = Figure(figsize=(10, 5.5), layout="constrained")
    axes = figure.subplots(2, 3, squeeze=False)
    for ax, name in zip(axes[0], numbers, strict=False):
        ax.hist([real[name].dropna(), drawn[name].dropna()], bins=30, density=True, label=["real", "drawn"])
        ax.set(title=name, yticks=[])
    for ax, name in zip(axes[1], names, strict=False):
        shares = [rows[name].dropna().astype(str).value_counts(normalize=True) for rows in (real, drawn)]
        for k, share in enumerate(shares):
            ax.barh(np.arange(len(shares[0])) + 0.4 * k, share.reindex(shares[0].index).fillna(0), height=0.4)
        ax.set_yticks(np.arange(len(shares[0])) + 0.2, [str(value)[:18] for value in shares[0].index], fontsize=7)
        ax.invert_yaxis()
        ax.set(title=name)
    axes[0][0].legend()
    return figure


def accuracy(train, test, label: str) -> float:
    """Of boosted trees trained on one table, on another."""
    encoder = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1, encoded_missing_value=-1)
    names = [name for name in test.columns if name != label and test[name].dtype.kind not in "ifb"]
    columns = make_column_transformer((encoder, names), remainder="passthrough")
    trees = make_pipeline(columns, HistGradientBoostingClassifier(random_state=0))
    known = train[label].notna()
    trees.fit(train[known].drop(columns=label), train[label][known])
    return accuracy_score(test[label], trees.predict(test.drop(columns=label)))


if __name__ == "__main__":
    main()
