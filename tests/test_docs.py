"""Check the documentation: every Python block runs, tutorials show what their blocks print, links and file names exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
AT_THE_TOP = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")]
PAGES = [*AT_THE_TOP, *sorted((ROOT / "docs").rglob("*.md"))]
FENCED = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
INLINE_CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\]\(<?([^)\s>]+)>?(?:\s[^)]*)?\)|^\[[^\]]+\]:\s*(\S+)|(?:src|href)=\"([^\"]+)\"", re.MULTILINE)
ELSEWHERE = re.compile(r"[a-zA-Z][a-zA-Z+.-]*:|#")  # a scheme such as https:, or an anchor on the same page


FILE = re.compile(r"`((?:benchmarks|src|tests)/[\w./-]+\.(?:json|py))`")
BOLD_NUMBER = re.compile(r"\*\*([\d.]+)\*\*")
# Packages that blocks with these words need besides; Opacus needs torch.
NEEDED = {
    "import torch": "opacus",
    "clipsilon.torch": "opacus",
    "trainers.huggingface": "accelerate",
    "trainers.lightning": "lightning",
    "peft": "peft",
    "examples.adapters": "peft",
}


def name(page):
    return page.relative_to(ROOT).as_posix()


def blocks(text):
    """Return each Python block, padded to its line of the page so that errors point there."""
    found = [match for match in FENCED.finditer(text) if match[1] == "python"]
    return ["\n" * text.count("\n", 0, match.start(2)) + match[2] for match in found]


def shown(text):
    """Return the text block that follows each Python block, None if there is none."""
    outputs = {match.start(): match[2].strip() for match in FENCED.finditer(text) if match[1] == "text"}
    ends = [match.end() for match in FENCED.finditer(text) if match[1] == "python"]
    return [outputs.get(end + len(text[end:]) - len(text[end:].lstrip())) for end in ends]


def links(text):
    prose = INLINE_CODE.sub("", FENCED.sub("", text))
    found = (next(filter(None, groups)) for groups in LINK.findall(prose))
    return [link.split("#")[0] for link in found if not ELSEWHERE.match(link)]


@pytest.mark.parametrize("page", [page for page in PAGES if "```python" in page.read_text("utf-8")], ids=name)
def test_blocks_run(page, tmp_path, monkeypatch, capsys):
    """Run the blocks in order, in one namespace per page, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    text = page.read_text("utf-8")
    found = blocks(text)
    assert len(found) == text.count("```python"), "a block is not closed, or not at the start of a line"
    for word, package in NEEDED.items():
        if any(word in block for block in found):
            pytest.importorskip(package)
    namespace = {"__name__": f"documentation_{page.stem}"}
    for block, output in zip(found, shown(text), strict=True):
        exec(compile(block, str(page), "exec", dont_inherit=True), namespace)
        printed = "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines()).strip()
        assert page.parent.name != "tutorials" or printed == (output or ""), "the page shows what was not printed"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_to_files(page):
    missing = [link for link in links(page.read_text("utf-8")) if not (page.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent != ROOT], ids=name)
def test_files_named_on_pages_exist(page):
    missing = [file for file in FILE.findall(page.read_text("utf-8")) if not (ROOT / file).exists()]
    assert not missing


def test_the_summary_of_peers_quotes_ratios_of_the_tables():
    summary, tables = (ROOT / "docs" / "peers.md").read_text("utf-8").split("<!-- table: begin", 1)
    ratios = {line.split("|")[3].split()[0] for line in tables.splitlines() if line.startswith("| ")}
    quoted = BOLD_NUMBER.findall(summary)
    assert quoted  # or the pattern no longer finds them
    assert not set(quoted) - ratios


def test_links_are_found():
    prose = '[a](b.md#c) `[x](y)` ![p](q.svg "title") [w](https://w.org) [h](#h) <img src="r.png">\n[n]: s.md\n'
    fenced = "```\n[z](z)\n```\n"
    assert links(prose + fenced) == ["b.md", "q.svg", "r.png", "s.md"]


def test_outputs_belong_to_the_block_before_them():
    assert shown("```python\na\n```\n\n```text\nb \n```\n```python\nc\n```\nd\n```text\ne\n```\n") == ["b", None]


def test_blocks_keep_their_line_numbers():
    assert blocks("a\n```python\nb\n```\n```\nc\n```\n") == ["\n\nb\n"]
