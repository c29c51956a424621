"""A table as it comes: text, dates, gaps, a log-normal amount, a rare class, and people with several rows."""

import csv

import numpy as np

ROWS, PEOPLE = 30_000, 12_000
COLUMNS = (
    "person",
    "region",
    "occupation",
    "channel",
    "product",
    "joined",
    "last_visit",
    "amount",
    "age",
    "member",
    "late",
)


def words(prefix, number):
    return np.array([f"{prefix}{k:02d}" for k in range(number)])


def messy(seed=0, rows=ROWS, people=PEOPLE):
    """Return columns of text, as a CSV file has them: 3 % of the rows are late, 8 % of the ages are missing."""
    rng = np.random.default_rng(seed)
    person = np.concatenate([np.arange(people), rng.integers(0, people, rows - people)])
    rng.shuffle(person)
    own = {  # the same in all rows of a person
        "region": rng.choice(40, people, p=_zipf(40)),
        "occupation": rng.choice(12, people, p=_zipf(12)),
        "age": rng.normal(47, 14, people).clip(18, 92).round(),
        "joined": rng.integers(0, 365 * 9, people),
        "member": rng.random(people) < 0.35,
    }
    own = {name: values[person] for name, values in own.items()}
    channel, product = rng.choice(3, rows, p=[0.6, 0.3, 0.1]), rng.choice(20, rows, p=_zipf(20))
    visit, amount = rng.integers(0, 365 * 2, rows), rng.lognormal(6.5, 1.1, rows)
    effects = rng.normal(0, 0.45, 40), rng.normal(0, 0.75, 12), np.array([-0.6, 0.45, 1.35]), rng.normal(0, 0.45, 20)
    margin = effects[0][own["region"]] + effects[1][own["occupation"]] + effects[2][channel] + effects[3][product]
    margin += 1.35 * (np.log(amount) - 6.5) - 0.075 * (own["age"] - 47) - 0.9 * own["member"] - own["joined"] / 1000
    margin += rng.logistic(size=rows)
    late = margin > np.quantile(margin, 0.97)
    gaps = rng.random(rows) < 0.08
    first, second = np.datetime64("2015-01-01"), np.datetime64("2024-01-01")
    return {
        "person": np.char.add("P", np.char.zfill(person.astype(str), 6)),
        "region": words("R", 40)[own["region"]],
        "occupation": words("job ", 12)[own["occupation"]],
        "channel": np.array(["web", "phone", "shop"])[channel],
        "product": words("item", 20)[product],
        "joined": (first + own["joined"]).astype(str),
        "last_visit": (second + visit).astype(str),
        "amount": np.char.mod("%.2f", amount),
        "age": np.where(gaps, "", np.char.mod("%d", own["age"])),
        "member": np.where(own["member"], "yes", "no"),
        "late": np.where(late, "yes", "no"),
    }


def _zipf(number):
    weights = 1 / np.arange(1, number + 1) ** 0.8
    return weights / weights.sum()


def write(path, table):
    """Write columns as a CSV file."""
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([list(table), *zip(*(column.tolist() for column in table.values()), strict=True)])
    return path
