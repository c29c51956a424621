"""The kernel cache saves a second process from compiling, and never returns stale code."""

import gc
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from numba.core import event
from numba.core.errors import TypingError

import clipsilon as cs
from clipsilon._core import kernel_cache
from clipsilon._core.parts import fingerprint
from clipsilon.engine.means import mean_gradient

SOURCES = Path(cs.__file__).parent

JOB = textwrap.dedent("""
    import numpy as np
    import clipsilon as cs
    from clipsilon.engine.loop import advance
    problem = cs.Problem(np.array([1.0, 2.0]), loss=cs.losses.Quadratic(a=2.0))
    theta = cs.run(problem, cs.SGD(cs.schedules.Constant(0.5)), steps=1, seed=0).theta[0, -1, 0]
    print(theta, sum(advance.stats.cache_hits.values()), sum(advance.stats.cache_misses.values()))
""")

# A kernel that compiles in one second, unlike the loop, which takes ten: the mean of a·z.
MEAN = textwrap.dedent("""
    import numpy as np
    import clipsilon as cs
    from clipsilon.engine.means import _mean_gradient, mean_gradient
    problem = cs.Problem(np.array([1.0, 2.0]), loss=cs.losses.Quadratic(a=2.0))
    mean = mean_gradient(problem, np.zeros(1), np.zeros(1), 1)[0]
    print(mean, sum(_mean_gradient.stats.cache_hits.values()), sum(_mean_gradient.stats.cache_misses.values()))
""")


@pytest.fixture
def package(tmp_path):
    """Return a copy of the package that can be edited, and a function that runs a job with it and its own cache."""
    shutil.copytree(SOURCES, tmp_path / "src" / "clipsilon", ignore=shutil.ignore_patterns("__pycache__"))
    environment = {
        **os.environ,
        "PYTHONPATH": str(tmp_path / "src"),
        "CLIPSILON_CACHE": str(tmp_path / "cache"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }

    def run(job=JOB):
        done = subprocess.run([sys.executable, "-c", job], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return [float(word) for word in done.stdout.split()]

    return tmp_path / "src" / "clipsilon", run


def edit(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert old in text
    stamp = path.stat()
    path.write_text(text.replace(old, new), encoding="utf-8")
    os.utime(path, (stamp.st_atime, stamp.st_mtime))  # an edit that keeps the modification time must be noticed, too


def test_a_second_process_does_not_compile(package):
    _, run = package
    first = run()
    assert first[1:] == [0, 1]
    assert run() == [first[0], 1, 0], "the second process compiled again"


def test_an_edit_is_always_seen(package):
    sources, run = package
    assert run(MEAN) == [3.0, 0, 1]
    assert run(MEAN) == [3.0, 1, 0], "the second process compiled again"
    # Edit the loss, which the kernel's file does not mention.
    edit(sources / "problems" / "losses" / "quadratic.py", "out[j] = theta[j] + loss.a * features[j]", "out[j] = 7.0")
    assert run(MEAN) == [7.0, 0, 1], "stale code ran"
    # Edit a part that the kernel's file imports.
    edit(sources / "rules" / "clipping.py", "+= weight * vector[j]", "+= 2.0 * weight * vector[j]")
    assert run(MEAN) == [14.0, 0, 1], "stale code ran"
    edit(sources / "rules" / "clipping.py", "+= 2.0 * weight * vector[j]", "+= weight * vector[j]")
    assert run(MEAN) == [7.0, 1, 0], "going back should find the earlier kernel"


USERS = textwrap.dedent("""
    from typing import NamedTuple
    import numpy as np
    import clipsilon as cs
    from clipsilon.engine.means import _mean_gradient, mean_gradient

    class Mine(NamedTuple):
        pass

    @cs.implements(cs.losses.value, Mine)
    def _(loss, theta, features, label): return 0.0

    @cs.implements(cs.losses.gradient, Mine)
    def _(loss, theta, features, label, out): out[0] = SLOPE

    problem = cs.Problem(np.array([1.0, 2.0]), np.zeros(2), loss=Mine())
    mean = mean_gradient(problem, np.zeros(1), np.zeros(1), 1)[0]
    print(mean, sum(_mean_gradient.stats.cache_hits.values()), sum(_mean_gradient.stats.cache_misses.values()))
""")


def test_a_users_part_is_never_stale(package):
    _, run = package
    assert run(USERS.replace("SLOPE", "1.0")) == [1.0, 0, 1]
    assert run(USERS.replace("SLOPE", "2.0")) == [2.0, 0, 1]


NESTED = textwrap.dedent("""
    from typing import NamedTuple
    import numpy as np
    import clipsilon as cs
    from clipsilon.engine.loop import advance

    class Mine(NamedTuple):
        pass

    @cs.implements(cs.losses.margin_value, Mine)
    def _(loss, margin, label): return SLOPE * abs(margin)

    @cs.implements(cs.losses.slope, Mine)
    def _(loss, margin, label): return SLOPE * np.sign(margin)

    problem = cs.Problem(np.array([1.0, 1.0]), np.zeros(2), loss=cs.losses.clipped_loss(Mine(), 10.0))
    theta = cs.run(problem, cs.SGD(cs.schedules.Constant(1.0)), steps=1, start=5.0, seed=0).theta[0, -1, 0]
    print(theta, sum(advance.stats.cache_hits.values()), sum(advance.stats.cache_misses.values()))
""")


@pytest.mark.verify
def test_a_users_part_inside_a_part_of_the_package_is_never_stale(package, tmp_path):
    _, run = package
    assert run(NESTED.replace("SLOPE", "1.0")) == [4.0, 0, 1]
    assert run(NESTED.replace("SLOPE", "2.0")) == [3.0, 0, 1]
    # Only helpers of the loop that do not depend on parts are stored.
    assert not [file for file in (tmp_path / "cache").rglob("*.kernel") if b"Mine" in file.read_bytes()]


def mean_of(loss):
    """Return the mean gradient at 0 over two records of 1, by a kernel that compiles ten times as fast as the loop."""
    return mean_gradient(cs.Problem(np.ones(2), np.zeros(2), loss=loss), np.zeros(1), np.zeros(1), 1)[0]


def test_a_redefined_part_is_a_new_part():
    def make(slope):
        from typing import NamedTuple

        class Again(NamedTuple):
            pass

        @cs.implements(cs.losses.value, Again)
        def _(loss, theta, features, label):
            return 0.0

        @cs.implements(cs.losses.gradient, Again)
        def _(loss, theta, features, label, out):
            out[0] = slope

        return Again()

    assert [mean_of(make(slope)) for slope in (1.0, 2.0)] == [1.0, 2.0]


def test_a_redefined_part_inside_another_is_a_new_part():
    def make(rate):
        from typing import NamedTuple

        class Inside(NamedTuple):
            pass

        @cs.implements(cs.losses.margin_value, Inside)
        def _(loss, margin, label):
            return rate * margin

        @cs.implements(cs.losses.slope, Inside)
        def _(loss, margin, label):
            return rate

        return cs.losses.clipped_loss(Inside(), 10.0)

    assert [mean_of(make(rate)) for rate in (1.0, 2.0)] == [1.0, 2.0]
    assert fingerprint(make(1.0)) != fingerprint(make(2.0)), "the fingerprint ignores the code of the nested part"


@pytest.mark.verify
def test_a_cache_that_cannot_be_written_only_costs_time(package, monkeypatch):
    _, run = package
    job = "import os; os.environ['CLIPSILON_CACHE'] = '/proc/nowhere'\n" + JOB
    assert run(job)[1:] == [0, 1]


@pytest.mark.verify
def test_a_damaged_kernel_is_compiled_again(package, tmp_path):
    _, run = package
    first = run()
    for kernel in (tmp_path / "cache").rglob("*.kernel"):
        kernel.write_bytes(kernel.read_bytes()[:100])
    assert run() == first


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_is_told_once_why_it_takes_long(terminal, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    kernel_cache._tell.cache_clear()
    for _ in range(2):
        kernel_cache._tell()
    kernel_cache._tell.cache_clear()
    told = "clipsilon: compiling; each kind of model takes some seconds once.\n"
    assert capsys.readouterr().err == told * terminal


@pytest.mark.parametrize("fails", [False, True])
def test_garbage_is_not_collected_while_a_kernel_is_compiled(fails, tmp_path, monkeypatch):
    monkeypatch.setenv("CLIPSILON_CACHE", str(tmp_path))
    seen = []

    class Listener(event.Listener):
        def on_start(self, started):
            seen.append(gc.isenabled())

        def on_end(self, ended): ...

    def double(value):
        return 2 * value if not fails else value.nothing

    assert gc.isenabled()
    with event.install_listener("numba:compile", Listener()):
        if fails:
            with pytest.raises(TypingError, match="nothing"):
                kernel_cache.kernel(double)(1.0)
        else:
            assert kernel_cache.kernel(double)(1.0) == 2.0
    assert seen
    assert not any(seen)
    assert gc.isenabled()
