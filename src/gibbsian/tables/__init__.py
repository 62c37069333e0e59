"""Tables of any columns: a schema, a law of rows with gaps, scores, explanations, imputation, synthetic rows.

`fit_table` learns a `TableModel`; `gibbsian.sklearn.TableEnergy` is the same as an estimator. The walk through the
room: a table becomes a `Frame` of cells (`cells`, `frames`), a `Schema` says what its columns are (`columns`, `schema`), a `Codec` turns cells into
numbers that are nearly normal and codes (`coders`, `codec`, `transform`), a family of laws is fitted to those rows with their gaps and
chosen by held-out likelihood (`em`, `located`, `tilted`, `boltzmann`, `parzen`, `stacked`; `families`, `fitting`), how gaps come about is found out (`gaps`), and the model asks the law (`laws`, `model`).

Likelihoods are of the observed part of a row: counting measure for names, truth values and whole numbers, Lebesgue
measure in the units of the table for reals. Missing cells are marginalized, in training and in use.
"""

from gibbsian.tables.coders import TableWarning
from gibbsian.tables.columns import Column
from gibbsian.tables.families import FAMILIES, Options
from gibbsian.tables.fitting import fit_table
from gibbsian.tables.frames import as_frame, as_table
from gibbsian.tables.model import TableModel
from gibbsian.tables.schema import Schema

__all__ = ["FAMILIES", "Column", "Options", "Schema", "TableModel", "TableWarning", "as_frame", "as_table", "fit_table"]
