"""Files that this tool wrote are recognised, and no others."""

import pytest
from click.testing import CliRunner
from matplotlib.figure import Figure

from clipsilon.cli import main as cli
from clipsilon.report.drawing import save
from clipsilon.report.ownership import check_replaceable, check_report_folder, is_own_file
from clipsilon.report.page import frame


@pytest.mark.parametrize("suffix", [".svg", ".png", ".pdf"])
def test_own_figures_are_recognised(tmp_path, suffix):
    own, foreign = tmp_path / f"own{suffix}", tmp_path / f"foreign{suffix}"
    save(Figure(), own)
    Figure().savefig(foreign)
    assert is_own_file(own)
    check_replaceable(own)
    assert not is_own_file(foreign)
    with pytest.raises(ValueError, match="plot must not replace .*, which clipsilon did not write"):
        check_replaceable(foreign, "plot")


def test_own_pages_are_recognised(tmp_path):
    path = tmp_path / "page.html"
    path.write_text(frame("A title", ["<p>Text</p>"]), encoding="utf-8")
    assert is_own_file(path)
    path.write_text("<title>clipsilon 0.1.0</title> I like clipsilon.", encoding="utf-8")
    assert not is_own_file(path)


def test_new_files_and_folders_are_free(tmp_path):
    check_replaceable(tmp_path / "new.txt")
    check_report_folder(tmp_path / "new", ["a"])
    (tmp_path / "a").mkdir()
    check_report_folder(tmp_path, ["a"])  # an empty folder holds nothing to lose


def test_other_files_are_not(tmp_path):
    (tmp_path / "text.txt").write_text("clipsilon 0.1.0")
    with pytest.raises(ValueError, match="must not replace"):
        check_replaceable(tmp_path / "text.txt")
    with pytest.raises(ValueError, match="output must be a folder, got the file"):
        check_report_folder(tmp_path / "text.txt", [])
    (tmp_path / "link.html").symlink_to(tmp_path / "nowhere.html")
    with pytest.raises(ValueError, match="must not replace"):
        check_replaceable(tmp_path / "link.html")


@pytest.mark.parametrize("command", [["bias", "--problem", "quadratic"], ["audit", "DPSGD"]])
def test_a_plot_does_not_replace_a_picture_of_others(tmp_path, command):
    path = tmp_path / "holiday.png"
    path.write_bytes(b"a picture")
    refused = CliRunner().invoke(cli.main, [*command, "--plot", str(path)])
    assert refused.exit_code == 1
    assert refused.stdout == ""
    assert (
        refused.stderr == f"Error: plot must not replace {path}, which clipsilon did not write: choose another name.\n"
    )
    assert path.read_bytes() == b"a picture"


def test_an_output_that_cannot_be_written_is_refused_before_anything_is_computed(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    for place in ("file/figure.png", "file/new/figure.png"):
        with pytest.raises(ValueError, match="^plot must be where files can be written, got "):
            check_replaceable(tmp_path / place, "plot")
    monkeypatch.setattr("clipsilon._core.storage.tempfile.TemporaryFile", refuse)  # tests may run as root
    with pytest.raises(ValueError, match="^plot must be where files can be written, got "):
        check_replaceable(tmp_path / "new" / "figure.png", "plot")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_file_that_cannot_be_replaced_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "figure.svg"
    path.write_bytes(b"<dc:title>clipsilon ")
    check_replaceable(path, "plot")
    monkeypatch.setattr("clipsilon._core.storage.os.access", lambda path, mode: False)
    with pytest.raises(ValueError, match="^plot must be where files can be written, got "):
        check_replaceable(path, "plot")


def refuse(**arguments):
    raise PermissionError
