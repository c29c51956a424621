"""Files about the project agree with each other: versions, Pythons and make targets."""

import re
import tomllib
from pathlib import Path

import clipsilon as cs

ROOT = Path(__file__).resolve().parents[1]


def read(name):
    return (ROOT / name).read_text("utf-8")


def test_the_citation_has_the_version():
    assert f"\nversion: {cs.__version__}\n" in read("CITATION.cff")


def test_the_supported_pythons_are_the_same_everywhere():
    project = tomllib.loads(read("pyproject.toml"))["project"]
    supported = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert project["requires-python"] == f">={supported[0]}"
    assert re.findall(r'- python: "([\d.]+)"', read(".github/workflows/ci.yml")) == supported
    named = f"{', '.join(supported[:-1])} or {supported[-1]}"
    assert f"Python {named}" in read("README.md")
    assert f"Python {named}" in read("CONTRIBUTING.md")


def test_every_make_target_is_explained():
    makefile = read("Makefile")
    targets = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[1].split()
    assert [target for target in targets if not re.search(rf"^{target}:.*  ## \w", makefile, re.MULTILINE)] == []
    guide = read("CONTRIBUTING.md")
    assert [target for target in targets if f"| `make {target}` |" not in guide] == ["clean"]


def test_ci_calls_make_targets_and_installs_a_database():
    commands = re.findall(r"- run: (.*)", read(".github/workflows/ci.yml"))
    targets = {command.split()[1] for command in commands if command.startswith("make ")}
    others = [command for command in commands if not command.startswith("make ")]
    assert len(commands) - len(others) == 5
    assert targets == {"check", "measures", "test", "docs", "verify"}
    assert others == ["sudo apt-get update && sudo apt-get install --yes postgresql"] * 2
