"""Several processes: whatever was created before a fork, two processes never share noise or coins."""

import os
import pickle
import sys

import numpy as np
import pytest

import clipsilon as cs
from clipsilon.estimators import PrivateLogisticRegression, PrivateScaler

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="no fork"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::clipsilon.PrivacyWarning"),  # of estimators: one object, several fits
]
RNG = np.random.default_rng(0)
X = RNG.normal(size=(600, 2))
Y = (X[:, 0] > 0).astype(int)
STEP = cs.schedules.Constant(0.1)


def in_fork(function):
    """Return what a function returns in a forked process."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with os.fdopen(send, "wb") as file:
                pickle.dump(function(), file)
        finally:
            os._exit(0)
    os.close(send)
    with os.fdopen(receive, "rb") as file:
        found = pickle.loads(file.read())
    os.waitpid(child, 0)
    return found


def ways():
    """Everything that draws, made before the fork."""
    still = cs.Problem(np.zeros((600, 2)), Y, loss=cs.losses.Logistic())
    problem = cs.Problem(X, Y, loss=cs.losses.Logistic())
    independent, correlated = (
        cs.DPSGD(STEP, 1.0, 0.1, batch=10),
        cs.CorrelatedSGD(STEP, 1.0, 0.1, sampling="full"),
    )
    coins = cs.DPSGD(STEP, 1.0, 0.0, batch=10)
    model, scaler = PrivateLogisticRegression(epsilon=1.0, classes=[0, 1], epochs=3), PrivateScaler(epsilon=20.0)
    return {
        "noise": lambda: cs.run(still, independent, 3).output,
        "correlated noise": lambda: cs.run(still, correlated, 3).output,
        "coins": lambda: cs.run(problem, coins, 3).output,
        "estimator": lambda: model.fit(X, Y).theta_,
        "scaler": lambda: scaler.fit(X).scale_,
        "report": lambda: cs.local.report([0.5, -0.5], ([1.0, 2.0], 1), cs.losses.MallowsLogistic(), mu=1.0),
    }


WAYS = ways()


@pytest.mark.parametrize("way", WAYS)
def test_forked_processes_draw_differently(way):
    """Equal by chance with a probability below 1e-8: noise has more than 30 random bits, and 1,800 coins differ more."""
    function = WAYS[way]
    before = function()
    found = [before, *(in_fork(function) for _ in range(3)), function()]
    assert len({np.asarray(one).tobytes() for one in found}) == len(found)


def test_streams_have_keys_of_their_own():
    states = [cs.engine.streams.spawn(None, 2) for _ in range(2)]
    keys = [pickle.dumps(generator.bit_generator.state) for many in states for streams in many for generator in streams]
    assert len(set(keys)) == len(keys) == 12


def test_a_checkpoint_that_two_processes_resume_is_one_release(tmp_path):
    """The noise is in the file: both continue the same run on the same records, and on others they refuse to."""
    path = tmp_path / "run.ckpt"
    problem = cs.Problem(X, Y, loss=cs.losses.Logistic())
    rule = cs.CorrelatedSGD(STEP, 1.0, 0.1, sampling="full")
    kept = {}

    class Stop(cs.engine.progress.Progress):
        def show(self, done):
            kept.setdefault("file", path.read_bytes())

    expected = cs.run(problem, rule, 20, checkpoint=path, progress=Stop(False, "", 20)).output
    results = []
    for _ in range(2):
        path.write_bytes(kept["file"])  # as it was at the beginning: no seed, but keys
        results.append(in_fork(lambda: cs.run(problem, rule, 20, checkpoint=path).output))
    for found in results:
        np.testing.assert_array_equal(found, expected)
    changed = X.copy()
    changed[0, 0] += 1e-9
    for other in (
        cs.Problem(changed, Y, loss=cs.losses.Logistic()),
        cs.Problem(X, 1 - Y, loss=cs.losses.Logistic()),
        cs.Problem(X, Y, loss=cs.losses.Logistic(), weights=np.full(600, 0.5)),
    ):
        path.write_bytes(kept["file"])
        with pytest.raises(cs.CheckpointError, match="another run"):
            cs.run(other, rule, 20, checkpoint=path)
    with pytest.raises(cs.CheckpointError, match="another run"):
        cs.run(problem, cs.CorrelatedSGD(STEP, 1.0, 0.2, sampling="full"), 20, checkpoint=path)
