"""A table of generated loans, and models that `clipsilon fit` fits to it."""

import csv

import numpy as np

from command_line import run

RECORDS = 4000
COLUMNS = ("age", "income", "rate")


def records():
    """Columns of different sizes; a target of two words, one of three numbers, and one of prices."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(RECORDS, 3))
    score = x @ [2.0, -1.0, 0.5]
    return {
        "age": 50 + 10 * x[:, 0],
        "income": 3e4 + 1e4 * x[:, 1],
        "rate": 1e-3 * x[:, 2],
        "paid": np.where(score + rng.logistic(size=RECORDS) > 0, "yes", "no"),
        "grade": np.digitize(score + rng.normal(size=RECORDS), [-1.0, 1.0]),
        "price": 200 + 20 * score + rng.normal(size=RECORDS),
    }


TARGETS = ("paid", "grade", "price")


def others(target):
    return [word for name in TARGETS if name != target for word in ("--ignore", name)]


def write(path, table):
    with path.open("w", newline="") as file:
        rows = zip(*(np.asarray(column).tolist() for column in table.values()), strict=True)
        csv.writer(file).writerows([table, *rows])
    return path


def fitted(data, target, *words, output="model.json", epsilon=2):
    path = data.parent / output
    done = run("fit", data, "--target", target, "--epsilon", epsilon, *others(target), *words, "--output", path)
    assert done.exit_code == 0, done.output
    return done, path
