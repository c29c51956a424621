"""Names of other libraries are refused with what to write."""

import inspect
import pickle

import pytest

import clipsilon as cs

STEP = cs.schedules.Constant(1.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_grad_norm": 1.0}, "DPSGD has no argument max_grad_norm: it is called clip here."),
        (
            {"clip": 1.0, "noise_multiplier": 1.1},
            "has no argument noise_multiplier: noise_std is the noise on the mean",
        ),
        ({"clip": 1.0, "sample_rate": 0.01}, "has no argument sample_rate: it is called rate here"),
        ({"clip": 1.0, "accountant": "rdp"}, "has no argument accountant: leave it out"),
    ],
)
def test_presets_explain(arguments, message):
    with pytest.raises(TypeError, match=message):
        cs.DPSGD(STEP, batch=250, **arguments)


def test_other_mistakes_are_pythons():
    with pytest.raises(TypeError, match="unexpected keyword argument 'clips'"):
        cs.DPSGD(STEP, clips=1.0, noise_std=1.0, batch=250)
    assert list(inspect.signature(cs.DPSGD).parameters)[:4] == ["step", "clip", "noise_std", "batch"]
    assert pickle.loads(pickle.dumps(cs.DPSGD)) is cs.DPSGD


def test_the_warning_of_a_small_error_clip_points_at_its_caller():
    with pytest.warns(UserWarning, match="error_clip") as caught:
        cs.DiceSGD(STEP, 1.0, 0.5, 1.0)
    assert caught[0].filename == __file__
