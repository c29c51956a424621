"""Every part and preset the package registers, with arguments to make one: what the contract tests loop over."""

import numpy as np

import clipsilon as cs
from clipsilon._core.parts import implemented, is_ours
from clipsilon.problems.losses import gradient, value
from clipsilon.problems.losses.base import margin_value, slope
from clipsilon.problems.regions import project
from clipsilon.problems.responses import respond
from clipsilon.rules.clipping import add_clipped, at_step, initial_state
from clipsilon.rules.presets import PRESETS
from clipsilon.rules.sampling import draw
from clipsilon.rules.schedules import size

TURN = np.roll(np.eye(4), 1, axis=0)  # all directions move equally far

ARGUMENTS = {
    "Quadratic": {"a": 1.5},
    "Logistic": {"l2": 0.1, "positive_weight": 2.0},
    "SquaredError": {"l2": 0.2},
    "Huber": {"c": 0.7, "l2": 0.05},
    "Pinball": {"quantile": 0.8, "l2": 0.05},
    "PoissonDeviance": {"l2": 0.1},
    "GammaDeviance": {"l2": 0.1},
    "HuberRegression": {"c": 1.2},
    "Softmax": {"classes": 3, "l2": 0.1},
    "Clipped": {"loss": cs.losses.Logistic(positive_weight=2.0), "clip": 0.6},
    "Anticipating": {"loss": cs.losses.Logistic(0.1, 2.0), "response": cs.responses.LocationShift(0.3)},
    "Slow": {"response": cs.responses.LocationShift(0.3), "speed": 0.4},
    "LocationShift": {"beta": 0.3},
    "BestResponse": {"beta": 0.4, "floor": 0.5},
    "LinearShift": {"strength": 0.3, "columns": [0, 2]},
    "MatrixShift": {"strengths": [[*map(list, 0.2 * TURN)], [*map(list, 0.5 * TURN)]], "saturation": 2.5},
    "FixedIntercept": {"response": cs.responses.BestResponse(0.4, 0.5)},
    "Box": {"low": -0.6, "high": 0.4},
    "Ball": {"size": 0.8},
    "Constant": {"gamma": 0.05},
    "InverseTime": {"a0": 2, "a1": 30},
    "Power": {"eta": 0.1, "alpha": 0.5},
    "Piecewise": {"starts": [1, 8, 20], "values": [0.1, 0.04, 0.02]},
    "Scheduled": {"threshold": cs.schedules.Power(0.9, 0.1)},
    "Norm": {"threshold": 0.9},
    "_CountedNorm": {"threshold": 0.9},
    "Adaptive": {"start": 0.9, "quantile": 0.8, "rate": 0.3, "count_noise": 2.0},
    "PerClass": {"threshold": 0.6, "classes": 2},
    "Uniform": {"batch": 3},
    "Poisson": {"batch": 5},
    "Epochs": {"batch": 7},
    "SinglePass": {"batch": 7},
    "InOrder": {"batch": 7},
    "Cyclic": {"batch": 7},
}


def make(kind):
    return kind(**ARGUMENTS.get(kind.__name__, {}))


def every(*operations):
    """One of each registered part that implements any of the operations."""
    kinds = {kind: None for op in operations for kind in implemented(op) if is_ours(kind)}
    return [make(kind) for kind in kinds]


def name(part):
    return type(part).__name__


LOSSES = every(value, margin_value, gradient, slope)
RESPONSES = every(respond)
REGIONS = every(project)
STEPS = every(size)
CLIPS = [at_step(clip, 1, initial_state(clip)) for clip in every(add_clipped, at_step)]  # as in force in step 1
SAMPLINGS = every(draw)


STEP = cs.schedules.InverseTime(2, 30)


def local_rules(budget, step=STEP, **more):
    """One rule of each preset for losses that know their sensitivity."""
    return {"LDPSGD": cs.LDPSGD(step, budget, **more), "LDPASGD": cs.LDPASGD(step, budget, **more)}


def other_rules(step=STEP):
    """One rule of each preset that takes no Gaussian noise, or no sampling, of choice."""
    return {
        "CorrelatedSGD": cs.CorrelatedSGD(step, clip=0.8, noise_std=0.5, batch=3, sampling="cyclic"),
        "DPGD": cs.DPGD(step, lipschitz=2.5, noise_std=0.2),
        "ClippedDPGD": cs.ClippedDPGD(step, clip=0.8, noise_std=0.2),
        "NoisySelection": cs.NoisySelection(step, lipschitz=2.5, noise_std=0.2, selection_epsilon=3.0),
        "AdaptiveDPSGD": cs.AdaptiveDPSGD(step, 0.8, 1.5, batch=5, quantile=0.7, count_noise=1.2),
        "GammaDPSGD": cs.GammaDPSGD(step, clip=0.8, scale=0.6, batch=5),
        "TrackedSGD": cs.TrackedSGD(step, clip=0.4, noise_std=0.2, batch=5),
    }


def rules(noise_std=0.2, step=STEP, **more):
    """One rule of each preset that takes any loss."""
    dice = {"clip": 0.8, "error_clip": 1.1, "noise_std": noise_std}
    chosen = {
        "SGD": {"noise_std": noise_std},
        "PCSGD": {"clip": 0.8, "noise_std": noise_std},
        "DPSGD": {"clip": 0.8, "noise_std": noise_std, "batch": 5},
        "DiceSGD": dice,
        "AdamDiceSGD": {**dice, "residual_cap": 1.7},
        "AutoDiceSGD": {"noise_std": noise_std},
    }
    if more.get("sampling") == "full":
        more["batch"] = 1
    others = set(local_rules(1.0)) | set(other_rules())
    assert set(chosen) | others == set(PRESETS), "a new preset needs arguments here"
    return {preset: PRESETS[preset](step, **{**arguments, **more}) for preset, arguments in chosen.items()}
