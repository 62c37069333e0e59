"""Tables for the benchmarks: read, cut down, cells hidden; and the same tables as plain numbers for peers."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

MIXED = {  # label column or None, columns left out because they repeat others
    "abalone": ("Sex", ()),
    "adult_train": ("income", ("education-num", "fnlwgt")),
    "credit_approval": ("class", ()),
    "diamonds": ("cut", ()),
    "heart_cleveland": ("num", ()),
    "penguins": ("species", ()),
    "titanic": ("survived", ("alive", "class", "who", "adult_male", "embark_town", "alone", "deck")),
}
NUMERIC = ("white wine", "parkinsons", "cardio", "satellite", "WDBC")


def folder() -> Path:
    """Where the data lie."""
    return Path(os.environ.get("GIBBSIAN_DATA", "."))


def mixed(name: str, rows: int | None = None, seed: int = 0, *, shuffled: bool = False) -> pd.DataFrame:
    """A table of mixed columns, cut down to so many rows drawn at random; with `shuffled`, in random order where it is shorter too."""
    table = pd.read_csv(folder() / "tables" / f"{name}.csv.gz", na_values=["?"])
    label, left_out = MIXED[name]
    assert label in table.columns, (name, list(table.columns))
    table = table.drop(columns=[c for c in left_out if c in table.columns])
    for column in table.columns:
        if table[column].dtype == bool:
            table[column] = table[column].map({True: "yes", False: "no"})
    if rows is not None and (shuffled or len(table) > rows):
        table = table.sample(min(rows, len(table)), random_state=seed)
    return table.reset_index(drop=True)


def numeric(name: str) -> np.ndarray:
    """A table of reals, columns that repeat others or do not vary left out."""
    if name == "white wine":
        x = pd.read_csv(folder() / "wine_quality" / "winequality-white.csv", sep=";").iloc[:, :11].to_numpy(float)
    elif name == "parkinsons":
        x = pd.read_csv(folder() / "parkinsons" / "parkinsons_updrs.data").iloc[:, 3:].to_numpy(float)
    else:
        path = next((folder() / "adbench").glob(f"*_{name}.npz"))
        with np.load(path, allow_pickle=True) as file:
            x = file["X"][file["y"] == 0].astype(float)
    x = x[:, x.std(0) > 1e-9]
    kept: list[int] = []
    for j in range(x.shape[1]):
        if all(abs(np.corrcoef(x[:, j], x[:, k])[0, 1]) <= 0.98 for k in kept):
            kept.append(j)
    return x[:, kept]


class Hidden(NamedTuple):
    """A table with cells hidden, and which."""

    table: pd.DataFrame
    truth: pd.DataFrame
    gone: np.ndarray


def hide(table: pd.DataFrame, share: float, seed: int, *, at_random: bool = True) -> Hidden:
    """Hide a share of the cells: all alike, or high numbers and rare names five and three times as often as others."""
    rng = np.random.default_rng(seed)
    chance = np.full(table.shape, share)
    if not at_random:
        for j, name in enumerate(table.columns):
            column = table[name]
            if is_number(column):
                odds = np.where(column > column.median(), 5.0, 1.0)
            else:
                odds = np.where(column != column.mode().iloc[0], 3.0, 1.0)
            chance[:, j] = share * odds / odds.mean()
    gone = (rng.random(table.shape) < chance) & table.notna().to_numpy()
    gone[gone.all(1), 0] = False
    return Hidden(table.mask(gone), table, gone)


def taken(kept: Sequence[dict[str, Any]], **what: Any) -> list[dict[str, Any]]:
    """The records of an earlier run that are of this."""
    return [record for record in kept if all(record.get(key) == value for key, value in what.items())]


def is_number(column: pd.Series) -> bool:
    return bool(pd.api.types.is_numeric_dtype(column))


class Plain:
    """A table as standardized numbers and one-of-K columns, and back."""

    def __init__(self, table: pd.DataFrame) -> None:
        self.numbers = [c for c in table.columns if is_number(table[c])]
        self.names = [c for c in table.columns if c not in self.numbers]
        self.mean, self.spread = table[self.numbers].mean(), table[self.numbers].std().replace(0, 1).fillna(1)
        self.known = {c: sorted(table[c].dropna().unique(), key=str) for c in self.names}

    def encode(self, table: pd.DataFrame) -> np.ndarray:
        parts: list[Any] = [((table[self.numbers] - self.mean) / self.spread).to_numpy(float)]
        for c in self.names:
            hot = np.stack([(table[c] == value).to_numpy(float) for value in self.known[c]], 1)
            hot[table[c].isna().to_numpy()] = np.nan
            parts.append(hot)
        return np.concatenate(parts, 1)

    def decode(self, x: np.ndarray, like: pd.DataFrame) -> pd.DataFrame:
        made = pd.DataFrame(x[:, : len(self.numbers)], columns=self.numbers) * self.spread + self.mean
        at = len(self.numbers)
        for c in self.names:
            size = len(self.known[c])
            made[c] = np.array(self.known[c], dtype=object)[x[:, at : at + size].argmax(1)]
            at += size
        return made[list(like.columns)]

    def ordinal(self, table: pd.DataFrame) -> np.ndarray:
        """Numbers, and names by their place: for trees."""
        codes = [table[c].map({v: float(i) for i, v in enumerate(self.known[c])}).to_numpy(float) for c in self.names]
        return np.column_stack([table[self.numbers].to_numpy(float), *codes])
