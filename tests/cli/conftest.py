"""The generated table as a file, and a model of it."""

import pytest

from fitted_tables import fitted, records, write


@pytest.fixture
def data(tmp_path):
    return write(tmp_path / "data.csv", records())


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    data = write(tmp_path_factory.mktemp("content") / "data.csv", records())
    return fitted(data, "paid")[1].read_text("utf-8")
