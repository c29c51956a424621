"""The runner and the page of all results, with made-up experiments."""

import json
import re
from html.parser import HTMLParser

import pytest
from click.testing import CliRunner

import made_up
from clipsilon.cli import main as cli
from clipsilon.report.terminal import progress_printer
from clipsilon.report.text import to_html
from clipsilon.reproduce import runner
from clipsilon.reproduce.base import Experiment, Result
from clipsilon.reproduce.page import page

VOID = {"meta", "link", "img", "br", "input"}


class Reader(HTMLParser):
    """Collect the elements and data of a page, and check that every element is closed correctly."""

    def __init__(self, text):
        super().__init__()
        self.open, self.found, self.data = [], [], {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        if self.open and self.open[-1][0] == "script" and "id" in self.open[-1][1]:
            self.data[self.open[-1][1]["id"]] = json.loads(data)

    def all(self, tag, name):
        return [about[name] for kind, about in self.found if kind == tag and name in about]


@pytest.fixture
def shelf(monkeypatch):
    """Replace the experiments of the package by the made-up ones."""
    monkeypatch.setattr(runner, "catalogue", lambda: made_up.EXPERIMENTS)


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    return folder, runner.reproduce(made_up.EXPERIMENTS, made_up.Bench(), folder)


def test_everything_is_on_the_page(report):
    folder, done = report
    text = (folder / "index.html").read_text(encoding="utf-8")
    read = Reader(text)
    ids = [about["id"] for _, about in read.found if "id" in about]
    assert len(ids) == len(set(ids))
    assert {each.name for each in made_up.EXPERIMENTS} <= set(ids)
    keys = [f"{each.experiment.name}/chart-{k + 1}" for each in done for k in range(len(each.result.charts))]
    assert list(read.data) == [f"data-{key}" for key in keys]
    assert set(read.all("figure", "data-chart")) == set(read.data)
    for address in read.all("a", "href") + read.all("img", "src"):
        assert (folder / address).is_file() if not address.startswith("#") else address[1:] in ids
    for each in done:
        assert each.result.verdict in text
        assert f"clipsilon reproduce {each.experiment.name}" in text
    assert "Only in a made-up world." in text
    assert "0.1, 0.2" in text


def test_a_verdict_stands_beside_its_statement(report):
    """No verdict is anywhere else, and a remark follows the statement that it is about."""
    text = (report[0] / "index.html").read_text(encoding="utf-8")
    badge = r'<span class="verdict \w+">[✓✗] (?P<verdict>[\w ]+)</span>'
    listed = re.findall(rf'<li>{badge}<div><span class="statement">(.*?)</span>(?:<span class="remark">(.*?)<)?', text)
    measured = "<dl><dt>Measured</dt><dd>.*?</dd>(?:<dt>Remark</dt><dd>(.*?)</dd>)?</dl></li>"
    detailed = re.findall(rf'<li><p class="judged">{badge}<span>(.*?)</span></p>{measured}', text)
    findings = [finding for each in report[1] for finding in each.result.findings]
    expected = [(finding.verdict, to_html(finding.statement), finding.remark) for finding in findings]
    assert listed == expected
    assert detailed == expected
    assert len(re.findall(badge, text)) == 2 * len(findings)


@pytest.mark.parametrize("name", ["index.html", "made-up-curves/notes.txt", "made-up-curves"])
def test_what_others_wrote_is_left_alone(shelf, tmp_path, monkeypatch, name):
    foreign = tmp_path / "out" / name
    foreign.parent.mkdir(parents=True)
    foreign.write_text("<title>mine</title>", encoding="utf-8")
    before = contents(tmp_path)
    refused = command("--output", str(tmp_path / "out"))
    assert refused.exit_code == 1
    assert refused.output == (
        f"Error: output must not replace {tmp_path / 'out' / name.removesuffix('/notes.txt')}, which clipsilon did not "
        "write: choose another name.\n"
    )
    assert contents(tmp_path) == before
    bench = made_up.Bench()
    with pytest.raises(ValueError, match="which clipsilon did not write"):
        runner.reproduce(made_up.EXPERIMENTS, bench, tmp_path / "out")
    assert bench.calls == []  # refused before anything was computed


def test_own_page_is_replaced_and_neighbours_stay(tmp_path):
    runner.reproduce(made_up.EXPERIMENTS, made_up.Bench(), tmp_path)
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    (tmp_path / "other").mkdir()
    first = (tmp_path / "index.html").read_bytes()
    runner.reproduce(made_up.EXPERIMENTS[1:], made_up.Bench(), tmp_path)
    assert (tmp_path / "index.html").read_bytes() != first
    assert (tmp_path / "notes.txt").read_text(encoding="utf-8") == "mine"
    (tmp_path / "index.html").unlink()  # as if the first report had been killed before its page was written
    runner.reproduce(made_up.EXPERIMENTS, made_up.Bench(), tmp_path)
    assert (tmp_path / "index.html").read_bytes() == first


def test_nothing_is_fetched_and_nothing_gets_out_of_its_place(report):
    text = (report[0] / "index.html").read_text(encoding="utf-8")
    assert "throw 1</script>" not in text
    assert "<b>&\"'" not in text
    assert set(re.findall(r"https?://[^\s\"'<)]+", text)) == {"http://www.w3.org/2000/svg"}  # a namespace
    for way in ("@import", "url(", "fetch(", "XMLHttpRequest", "//cdn"):
        assert way not in text


def test_numbers_of_the_page_are_those_of_the_charts(report):
    read = Reader((report[0] / "index.html").read_text(encoding="utf-8"))
    chart = report[1][0].result.charts[0]
    series = read.data["data-made-up-curves/chart-1"]["series"]
    assert series[0]["y"] == pytest.approx(chart.series[0].y.tolist(), rel=1e-7)
    assert series[3]["y"] == [1.0, 0.0, None, None]
    assert series[3]["colour"] == "#123456"
    assert series[0]["colour"] == "var(--cd55e00)"
    assert series[3]["name"] == made_up.EVIL


def test_files_do_not_depend_on_the_run(report, tmp_path):
    runner.reproduce(made_up.EXPERIMENTS, made_up.Bench(), tmp_path)
    assert contents(tmp_path) == contents(report[0])


def test_what_was_done_is_there_after_a_stop(tmp_path):
    def stop(lab):
        raise KeyboardInterrupt

    experiments = [made_up.EXPERIMENTS[0], Experiment("stops", 1, "", "", {}, stop), made_up.EXPERIMENTS[1]]
    with pytest.raises(KeyboardInterrupt):
        runner.reproduce(experiments, made_up.Bench(), tmp_path)
    text = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert 'id="made-up-curves"' in text
    assert 'id="made-up-nothing"' not in text
    assert (tmp_path / "made-up-curves" / "chart-1.svg").is_file()


def test_a_page_of_nothing():
    assert Reader(page([], quick=True)).all("figure", "data-chart") == []


def test_the_worst_finding_decides(report):
    assert [each.result.verdict for each in report[1]] == ["holds with a remark", "does not hold"]


def test_choose(shelf):
    first, second = made_up.EXPERIMENTS
    assert runner.choose([]) == [first, second]
    assert runner.choose(["made-up-nothing"]) == [second]
    assert runner.choose(["made-up-n", "made-up"]) == [first, second]
    with pytest.raises(ValueError, match="got 'made-up-curve5'; did you mean made-up-curves"):
        runner.choose(["made-up-curve5"])
    with pytest.raises(ValueError, match="got 'xyz'; clipsilon reproduce --list shows all."):
        runner.choose(["xyz"])


def test_experiments_stand_as_in_the_papers(monkeypatch):
    places = [
        (1, "Fig. 1, first panel"),
        (1, "Fig. 1, second panel"),
        (1, "Fig. 1, fourth panel"),
        (1, "Fig. 2"),
        (1, "Fig. 10"),
        (3, "App. B.1"),
        (3, "Table 1"),
        (None, "claims"),
    ]
    made = [Experiment(str(k), paper, where, "", {}, made_up.nothing) for k, (paper, where) in enumerate(places)]
    monkeypatch.setattr(runner, "EXPERIMENTS", {each.name: each for each in reversed(made)})
    assert runner.catalogue() == made


def test_every_experiment_of_the_package_can_be_listed():
    experiments = runner.catalogue()
    papers = [each.paper or 99 for each in experiments]
    assert papers == sorted(papers)
    for each in experiments:
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", each.name), each.name
        assert each.story, each.name
        assert each.title, each.name


def command(*words):
    return CliRunner().invoke(cli.main, ["reproduce", *words], catch_exceptions=False)


def test_command(shelf, tmp_path, monkeypatch):
    monkeypatch.setenv("CLIPSILON_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("clipsilon.reproduce.laboratory.Laboratory.keep", lambda lab, make, *about: make(*about))
    out = tmp_path / "out"
    done = command("--quick", "--output", str(out))
    assert done.exit_code == 0, done.output
    assert done.stderr.splitlines() == [
        "[1/2] made-up-curves: 2 of 2 statements hold",
        "[2/2] made-up-nothing: 0 of 1 statements hold",
    ]
    lines = [[cell.strip() for cell in line.split("│")[2:4]] for line in done.stdout.splitlines() if "│" in line]
    first = lines.index(["holds", "PCSGD ends at the bias."])
    assert lines[first + 1 : first + 4] == [
        ["holds with a remark", "DiceSGD does not."],  # each verdict beside its statement, without mark-up
        ["", "Remark: Only in a made-up world."],
        ["does not hold", f"Nothing {made_up.EVIL}"],
    ]
    assert done.stdout.endswith(f"wrote {out / 'index.html'}\n")
    assert "clipsilon reproduce made-up-curves --quick" in (out / "index.html").read_text(encoding="utf-8")
    assert command("made-up-nothing", "--quiet", "--output", str(out)).stderr == ""
    assert 'id="made-up-curves"' not in (out / "index.html").read_text(encoding="utf-8")


def test_time_left_is_guessed_from_some_experiments(monkeypatch, capsys, report):
    now = iter([0.0, 100.0, 200.0, 300.0, 400.0, 500.0])
    monkeypatch.setattr("clipsilon.report.terminal.time.monotonic", lambda: next(now))
    tell = progress_printer(5)
    for _ in range(5):
        tell(report[1][0])
    guesses = [line.rpartition(", ")[2] for line in capsys.readouterr().err.splitlines()]
    assert guesses[2:4] == ["about 3 min left", "about 2 min left"]
    assert all(line.endswith("2 of 2 statements hold") for line in (guesses[0], guesses[1], guesses[4]))


def test_command_lists_and_refuses(shelf, tmp_path):
    listed = command("--list").output
    assert "made-up-curves" in listed
    assert "Paper 1, Fig. 9" in listed
    refused = command("made-up-curvez", "--output", str(tmp_path / "none"))
    assert refused.exit_code == 1
    assert refused.output.startswith("Error: NAME must be an experiment or a prefix of some, got 'made-up-curvez'")
    assert refused.output.count("\n") == 1
    assert not (tmp_path / "none").exists()


def test_command_can_be_stopped(monkeypatch, tmp_path):
    def stop(lab):
        raise KeyboardInterrupt

    shelf = [made_up.EXPERIMENTS[1], Experiment("stops", 1, "", "", {}, stop)]
    monkeypatch.setattr(runner, "catalogue", lambda: shelf)
    done = command("--output", str(tmp_path))
    assert done.exit_code == 130
    assert done.stderr.endswith(
        f"Stopped; {tmp_path} holds the finished results; the same command resumes from there.\n"
    )
    assert 'id="made-up-nothing"' in (tmp_path / "index.html").read_text(encoding="utf-8")


def test_a_result_needs_no_chart(tmp_path):
    bare = Experiment("bare", 3, "Thm 1", "Bare", {}, lambda lab: Result(made_up.nothing(lab).findings))
    done = runner.reproduce([bare], made_up.Bench(), tmp_path)
    assert sorted(contents(tmp_path)) == ["bare/result.json", "index.html"]
    for quick in (False, True):
        runner.reproduce([bare], made_up.Bench(quick), tmp_path)
        assert json.loads((tmp_path / "bare/result.json").read_text(encoding="utf-8"))["quick"] is quick
    assert done[0].result.charts == ()
