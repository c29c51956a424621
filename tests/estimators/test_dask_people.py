"""People with several rows in Dask's chunks: as in memory, or refused."""

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas
import pytest

from clipsilon.estimators import PrivateLogisticRegression, PrivateScaler

RNG = np.random.default_rng(8)
PEOPLE = 400
WHO = np.sort(np.concatenate((np.arange(PEOPLE), RNG.integers(0, PEOPLE, 600))))
X = RNG.normal(size=(1000, 3))
Y = (X @ [2.0, -1.0, 0.5] + RNG.logistic(size=1000) > 0).astype(int)
# Chunks that end where a person does, and in which the rows of a person are not together.
CUTS = np.searchsorted(WHO, [130, 131, 290])
SIZES = np.diff([0, *CUTS, 1000])
MIXED = np.concatenate([RNG.permutation(part) for part in np.split(np.arange(1000), CUTS)])


def fit(method, where, max_rows=None, **more):
    x, y, who, weights = where(X[MIXED]), where(Y[MIXED]), where(WHO[MIXED]), where(np.linspace(0, 1, 1000))
    how = {"method": method, "random_state": 3, "classes": [0, 1], "epsilon": 5.0, "max_rows": max_rows}
    return PrivateLogisticRegression(**how, **more).fit(x, y, weights, groups=who)


def chunked(array):
    return da.from_array(array, chunks=(tuple(SIZES), *([3] if array.ndim > 1 else [])))


@pytest.mark.filterwarnings("ignore::clipsilon.PrivacyWarning")
@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("clipped-dpgd", {"epochs": 5}),
        ("dpsgd", {"batch": 60, "epochs": 2, "max_rows": 2}),
        ("tracked", {"batch": 60, "epochs": 2}),
        ("correlated", {"batch": 60, "epochs": 2}),
    ],
)
def test_a_fit_equals_the_one_in_memory(method, more):
    there, here = fit(method, chunked, **more), fit(method, lambda array: array, **more)
    np.testing.assert_allclose(there.theta_, here.theta_, rtol=1e-6, atol=1e-9)
    assert there.statement_.to_dict() == here.statement_.to_dict()
    assert (there.statement_.unit, there.statement_.records) == ("person", PEOPLE)


def test_people_in_several_chunks_are_refused():
    place = 1 + int(np.flatnonzero(WHO[1:] == WHO[:-1])[40])
    split = (place, 1000 - place)
    arrays = [da.from_array(array, chunks=(split, *([3] if array.ndim > 1 else []))) for array in (X, Y, WHO)]
    model = PrivateLogisticRegression(classes=[0, 1])
    with pytest.raises(
        ValueError, match=r"in one chunk, got 1 person\(s\) in several: .* shuffle\(on=…\) or set_index"
    ):
        model.fit(*arrays[:2], groups=arrays[2])
    assert not hasattr(model, "statement_")


@pytest.mark.filterwarnings("ignore::clipsilon.PrivacyWarning")
def test_a_shuffle_brings_people_together():
    frame = pandas.DataFrame(X[RNG.permutation(1000)], columns=list("abc")).assign(y=Y, who=RNG.permutation(WHO))
    table = dd.from_pandas(frame, npartitions=4).shuffle(on="who").persist()
    model = PrivateLogisticRegression(classes=[0, 1], random_state=0, method="clipped-dpgd", epochs=3)
    model.fit(table[["a", "b", "c"]], table["y"], groups=table["who"])
    assert model.statement_.records == PEOPLE


def test_a_row_without_a_person_is_refused():
    who = WHO.astype(float)
    who[5] = np.nan
    with pytest.raises(ValueError, match="groups must name the person of every row"):
        PrivateLogisticRegression(classes=[0, 1]).fit(chunked(X), chunked(Y), groups=chunked(who))


def test_a_scaler_that_learns_is_refused():
    with pytest.raises(ValueError, match="groups must be None for a Dask collection here"):
        PrivateScaler().fit(chunked(X), groups=chunked(WHO))


@pytest.mark.filterwarnings("ignore::clipsilon.PrivacyWarning")
def test_rows_that_change_places_are_refused():
    """A source that returns its rows in another order would give them to somebody else."""
    calls = []

    def read(block):
        calls.append(len(block))
        return block if len(calls) < 8 else block[::-1]

    x = chunked(X[MIXED]).map_blocks(read, dtype=float, meta=np.empty((0, 3)))
    model = PrivateLogisticRegression(classes=[0, 1], random_state=0, method="clipped-dpgd", epochs=20)
    with pytest.raises(ValueError, match="must be the same"):
        model.fit(x, chunked(Y[MIXED]), groups=chunked(WHO[MIXED]))
