"""Proposals: what `clipsilon schema` makes of columns as they come."""

import datetime
import tomllib

import numpy as np
import pandas as pd
import pytest

import clipsilon as cs
from clipsilon.tables import Category, Date, Number, YesNo, propose_schema
from clipsilon.tables.propose import NOT_PRIVATE
from messy_tables import COLUMNS, messy

N = 1000
RNG = np.random.default_rng(0)


def proposed(values, name="a", **others):
    proposal = propose_schema({name: values, "filler": ["x", "y"] * (len(values) // 2), **others})
    return proposal.schema.columns.get(name), proposal.remarks.get(name, proposal.remarks.get("ignore", "")), proposal


def some(*values):
    return [values[k % len(values)] for k in range(N)]


CASES = {
    "ages": (RNG.integers(18, 80, N), Number(18, 79), ""),
    "ages with gaps": (np.where(np.arange(N) % 10 == 0, "", RNG.integers(18, 80, N).astype(str)), Number, "10 % of the rows have a gap."),
    "fractions": (RNG.random(N), Number(0, 1), ""),
    "negative numbers": (RNG.normal(-50, 10, N), Number, ""),
    "few whole numbers": (some(1, 2, 3), Number(1, 3), "Only 3 different numbers: if they are codes, make this a category."),
    "yes and no": (some("Yes", "No"), YesNo("Yes", "No"), ""),
    "yes, no and gaps": (some("y", "n", ""), YesNo("y", "n", gap="n"), "33 % of the rows have a gap."),
    "true and false": (np.arange(N) % 2 == 0, YesNo("True", "False"), ""),
    "zero and one": (some(0, 1), YesNo("1", "0"), ""),
    "two words": (some("M", "F"), Category(["F", "M"]), ""),
    "one value and gaps": (some("x", ""), Category(["x"]), "50 % of the rows have a gap."),
    "rare levels": ([*some("b", "a")[:-3], "c", "d", "d"], Category(["a", "b"]), "2 rarer level(s), in 3 row(s), are not listed and count as other."),
    "dates": ([f"2020-{k % 12 + 1:02d}-{k % 28 + 1:02d}" for k in range(N)], Date(datetime.date(2020, 1, 1), datetime.date(2020, 12, 31)), ""),
    "times": ([f"2020-02-{k % 28 + 1:02d} 10:{k % 60:02d}:00" for k in range(N)], Date(datetime.date(2020, 2, 1), datetime.date(2020, 2, 29)), ""),
    "German dates": ([f"{k % 28 + 1:02d}.{k % 12 + 1:02d}.{2015 + k % 9}" for k in range(N)], Date(datetime.date(2015, 1, 1), datetime.date(2023, 12, 31), pattern="%d.%m.%Y"), ""),
    "American dates": ([f"{k % 12 + 1:02d}/{k % 28 + 1:02d}/{2015 + k % 9}" for k in range(N)], Date(datetime.date(2015, 1, 1), datetime.date(2023, 12, 31), pattern="%m/%d/%Y"), ""),
    "ambiguous dates": ([f"{k % 12 + 1:02d}/{k % 11 + 1:02d}/{2015 + k % 9}" for k in range(N)], Date, "Days and months cannot be told apart: it may be %m/%d/%Y."),
    "dates as numbers": ([20150101 + 100 * (k % 12) + k % 28 for k in range(N)], Date(datetime.date(2015, 1, 1), datetime.date(2015, 12, 31), pattern="%Y%m%d"), ""),
    "years": ([1950 + k % 60 for k in range(N)], Number(1950, 2009), ""),
}  # fmt: skip


@pytest.mark.parametrize(("values", "expected", "remark"), CASES.values(), ids=CASES)
def test_kinds(values, expected, remark):
    found, said, _ = proposed(values)
    assert isinstance(found, expected) if isinstance(expected, type) else found == expected
    assert said == remark


LEFT_OUT = {
    "nothing": ([""] * N, "has no values"),
    "one value": (["x"] * N, "has the same value in every row"),
    "numbers of rows": (np.arange(N), "has a different value in (nearly) every row, as ids, names and notes have"),
    "names": (
        [f"Ann {k}" for k in range(N)],
        "has a different value in (nearly) every row, as ids, names and notes have",
    ),
    "rare words": ([f"word {k % 150}" for k in range(N)], "has no value in 10 or more rows"),
}


@pytest.mark.parametrize(("values", "remark"), LEFT_OUT.values(), ids=LEFT_OUT)
def test_columns_that_are_left_out(values, remark):
    found, said, proposal = proposed(values)
    assert found is None
    assert said == f"Left out: a {remark}."
    assert proposal.schema.ignore == ("a",)
    assert proposal.people == ()


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("customer_id", RNG.integers(0, 10**9, 300)[RNG.integers(0, 300, N)]),
        ("patientId", [f"p-{k % 400:x}" for k in range(N)]),
        ("number", 5000 + RNG.integers(0, 400, N)),
        ("who", [f"Ann {k % 400}" for k in range(N)]),
    ],
)
def test_ids_that_repeat_are_pointed_out(name, values):
    found, said, proposal = proposed(values, name)
    assert found is None
    assert said.startswith(
        f"Left out: {name} has values that repeat and look like ids; if it names the person of a row"
    )
    assert proposal.people == (name,)
    assert propose_schema({name: values, "b": some(1, 2, 3)}, group=name).people == ()


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
def test_amounts_are_taken_on_a_scale_of_logarithms(scale):
    found, _, _ = proposed(scale * RNG.lognormal(7, 1.2, N))
    assert found.log
    assert found.low < scale * np.exp(7 - 2.4) < scale * np.exp(7 + 2.4) < found.high
    with_zeros, said, _ = proposed(np.where(np.arange(N) % 50 == 0, 0.0, scale * RNG.lognormal(7, 1.2, N)))
    assert with_zeros.log
    assert said == "Values of 0 or less count as the lowest."
    whole, _, _ = proposed(np.rint(1e3 * RNG.lognormal(3, 1.0, N)))  # as many different values as an id
    assert whole.log


def test_outliers_do_not_stretch_a_range():
    found, _, _ = proposed(np.append(RNG.uniform(20, 30, N - 2), [1e9, -1e9]))
    assert found == Number(20, 30)


def test_the_messy_table():
    table = messy()
    proposal = propose_schema(pd.DataFrame(table), "late")
    assert proposal.people == ("person",)
    proposal = propose_schema(table, "late", "person")
    schema = proposal.schema
    assert (schema.target, schema.group, schema.ignore, proposal.people) == ("late", "person", (), ())
    assert list(schema.columns) == [name for name in COLUMNS if name not in ("person", "late")]
    kinds = {name: kind.name for name, kind in schema.columns.items()}
    assert kinds == {
        **dict.fromkeys(["region", "occupation", "channel", "product"], "category"),
        **{"joined": "date", "last_visit": "date", "amount": "number", "age": "number", "member": "yes/no"},
    }
    assert schema.columns["amount"].log
    assert schema.columns["age"].gap is not None
    assert proposal.remarks["age"].endswith("% of the rows have a gap.")
    text = proposal.to_toml("messy.csv")
    assert cs.Schema.from_dict(tomllib.loads(text)) == schema
    assert " ".join(NOT_PRIVATE.split()) in " ".join(text.replace("\n# ", " ").split())


def test_nothing_to_learn_from():
    with pytest.raises(ValueError, match="^columns must have one to learn from, got none: a has no values.$"):
        propose_schema({"a": ["", ""], "y": [1, 2]}, "y")
    for role in ("target", "group"):
        with pytest.raises(ValueError, match=f"^{role} must be one of 'a', got 'z'.$"):
            propose_schema({"a": [1, 2]}, **{role: "z"})
