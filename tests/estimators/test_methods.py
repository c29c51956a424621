"""From a method's name to a plan of calibrated rules; no kernel is compiled for these tests."""

from dataclasses import replace

import numpy as np
import pytest

import clipsilon as cs
from clipsilon.estimators import METHODS
from clipsilon.estimators.defaults import defaults
from clipsilon.estimators.methods import Budget, Choices, Method
from clipsilon.estimators.plans import Task, TrainingPhase, TrainingPlan, make_plan, statement_of
from clipsilon.rules.presets import PRESETS

RECORDS, COLUMNS = 400, 4
ZERO_OUT = Budget(3.0, 1e-5, "zero-out")
LOCAL = ["ldpsgd", "ldpasgd"]
FULL = ["dpgd", "clipped-dpgd", "noisy-selection"]


def made(method, choices=Choices(), budget=ZERO_OUT, loss=cs.losses.Logistic()):  # noqa: B008
    """Return the only phase of a plan."""
    plan = make_plan(Task(method=method, choices=choices, budget=budget, records=RECORDS, columns=COLUMNS, loss=loss))
    (phase,) = plan.phases
    return phase


def refusal(method, batch, adjacency):
    """Return why a combination is refused, or None."""
    if adjacency == "add-remove":  # settings follow from the number of records, which it hides
        return "adjacency must be 'replace-one' or 'zero-out' here, where settings follow from the number of records"
    if method in (*LOCAL, *FULL) and batch is not None:
        return f"batch must be left out for method '{method}'"
    if method in LOCAL and adjacency != "replace-one":
        return "adjacency must be 'replace-one' for"
    if method == "gamma-dpsgd" and adjacency == "replace-one":
        return "method must be one that can be certified"
    return None


def test_every_private_preset_has_a_name():
    assert {method.preset for method in METHODS.values()} == {
        preset for name, preset in PRESETS.items() if name != "SGD"
    }


@pytest.mark.parametrize("adjacency", ["zero-out", "add-remove", "replace-one"])
@pytest.mark.parametrize("batch", [None, 40])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_keeps_to_its_budget(method, batch, adjacency):
    choices = Choices(batch=batch, epochs=None if method in LOCAL else 5)
    budget = ZERO_OUT._replace(adjacency=adjacency)
    reason = refusal(method, batch, adjacency)
    if reason is not None:
        with pytest.raises(ValueError, match=reason):
            made(method, choices, budget)
        return
    phase = made(method, choices, budget)
    rule, steps = phase.rule, phase.steps
    assert 0.98 * 3.0 <= cs.account(rule, RECORDS, steps, 1e-5, adjacency).certified <= 3.0
    assert steps == (RECORDS if method in LOCAL else 5 if batch is None else 50)


def test_epochs_of_a_rule_with_a_public_rate():
    rule = cs.DPSGD(cs.schedules.Constant(0.1), 1.0, 1.0, batch=40, rate=0.05)
    assert made(rule, Choices(epochs=3)).steps == 60  # whatever the batch size is


def test_choices_are_followed():
    phase = made("dpsgd", Choices(clip=0.3, batch=100, epochs=2.5, step=0.7))
    rule = phase.rule
    assert (rule.clip, rule.sampling, rule.step, phase.steps) == ((0.3,), (100, None), (0.7,), 10)
    assert type(rule.sampling) is cs.sampling.Poisson
    assert made("dpsgd", Choices(step=cs.schedules.Power(1, 0.5))).rule.step == (1, 0.5)
    assert made("dpgd", Choices(clip=0.3)).rule.clip == (0.3,)


def test_a_clip_that_is_not_a_number_is_answered_with_what_to_write():
    for method in ("dpsgd", "adaptive-dpsgd"):
        with pytest.raises(ValueError, match="^clip must be .* or left out, got .adaptive.: method=.adaptive-dpsgd. "):
            made(method, Choices(clip="adaptive"))
    with pytest.raises(ValueError, match="^clip must be .*, got Power.*: .* give a Rule that has it as method"):
        made("dpsgd", Choices(clip=cs.schedules.Power(1.0, 0.5)))
    with pytest.raises(ValueError, match="^clip must be a finite number, got 'large'"):
        made("dpsgd", Choices(clip="large"))


def test_a_clip_adapts_no_faster_than_the_noise_on_its_counts_allows():
    """With a rate of 0.2, whatever the noise, the threshold of a small fit went to where it must end, 2³⁰ times too far."""
    for epsilon in (0.1, 3.0):
        phase = made("adaptive-dpsgd", budget=ZERO_OUT._replace(epsilon=epsilon))
        clip = phase.rule.clip
        assert clip.rate * clip.count_noise / RECORDS * np.sqrt(phase.steps) <= 0.5 + 1e-9
    few = made("adaptive-dpsgd", Choices(epochs=1), ZERO_OUT._replace(epsilon=100.0))
    assert few.rule.clip.rate == 0.2
    assert clip.start == pytest.approx(0.5 * np.sqrt(COLUMNS))
    assert made("adaptive-dpsgd", Choices(clip=0.3)).rule.clip.start == 0.3


def test_a_rule_with_a_clip_that_changes_gets_its_noise():
    clip, noise = cs.clipping.Scheduled(cs.schedules.Power(1.0, 0.5)), cs.noise.Proportional(1.0)
    own = replace(cs.DPSGD(cs.schedules.Constant(1.0), 1.0, 1.0, batch=40), clip=clip, noise=noise)
    phase = made(own, Choices(epochs=5))
    constant = made(cs.DPSGD(cs.schedules.Constant(1.0), 1.0, 1.0, batch=40), Choices(epochs=5))
    assert (phase.rule.clip, phase.steps) == (clip, 50)
    assert phase.rule.noise.multiplier == pytest.approx(constant.rule.noise.std * 40)


@pytest.mark.parametrize(
    ("loss", "labels"),
    [
        (cs.losses.Logistic(), "binary"),
        (cs.losses.Softmax(3), "class"),
        (cs.losses.SquaredError(), "real"),
        (cs.losses.Huber(), "real"),
    ],
)
def test_without_choices_the_default_rule_is_followed(loss, labels):
    settings = defaults(RECORDS, COLUMNS, 3.0, 1e-5, labels)
    phase = made("dpsgd", loss=loss)
    rule = phase.rule
    assert (rule.clip.threshold, rule.output, phase.steps) == (settings.clip, settings.output, settings.steps)
    assert rule.step.gamma == pytest.approx(settings.step.gamma)


def test_default_steps_move_as_far_with_another_clip_and_no_farther_if_there_are_more():
    settings = defaults(RECORDS, COLUMNS, 3.0, 1e-5)
    move = settings.clip * settings.step.gamma
    few, many = settings.steps / 10, settings.steps * 10
    assert made("dpsgd", Choices(clip=0.5)).rule.step.gamma == pytest.approx(move / 0.5)
    assert made("dpsgd", Choices(clip=0.5, epochs=few)).rule.step.gamma == pytest.approx(move / 0.5)
    assert made("dpsgd", Choices(clip=0.5, epochs=many)).rule.step.gamma == pytest.approx(move / 0.5 / 10)
    assert made("auto-dice").rule.step.gamma == pytest.approx(move)


def test_another_clip_or_batch_takes_theta_no_farther():
    phase = made("dpsgd")
    travel = phase.rule.clip.threshold * phase.rule.step.gamma * phase.steps
    for choices in (Choices(clip=7.0), Choices(batch=40), Choices(clip=0.01, batch=100)):
        other = made("dpsgd", choices)
        assert other.rule.clip.threshold * other.rule.step.gamma * other.steps == pytest.approx(travel)


def test_the_capped_error_costs_as_much_as_the_clipped_gradients():
    """With r = C1/√K the noise of full batches is twice as large as for DP-SGD."""
    plain, dice = made("dpsgd", Choices(epochs=25)), made("dice", Choices(epochs=25))
    assert dice.rule.feedback.cap.threshold == pytest.approx(1.2 * plain.rule.clip.threshold)
    assert dice.rule.noise.std == pytest.approx(2 * plain.rule.noise.std, rel=0.01)


def test_a_rule_of_ones_own_gets_its_noise_only():
    own = cs.DiceSGD(cs.schedules.Power(1, 0.5), 0.5, 0.6, 1.0, residual_cap=0.7, batch=20, sampling="epochs")
    phase = made(own, Choices(epochs=3))
    rule, steps = phase.rule, phase.steps
    assert steps == 60
    assert rule == replace(own, noise=rule.noise)
    assert cs.account(rule, RECORDS, steps, 1e-5, "zero-out").certified <= 3.0
    single = cs.DPSGD(cs.schedules.Power(1, 0.5), 0.5, 1.0, batch=20, sampling="single-pass")
    assert made(single).steps == 20


def test_what_the_user_chose_is_named():
    free = cs.SGD(cs.schedules.Constant(0.1))
    with pytest.raises(ValueError, match="^method must be one that can be certified: .* nothing bounds"):
        made(free, Choices(epochs=5), ZERO_OUT)
    with pytest.raises(ValueError, match="^epochs must be at most .* here, got 1e[+]30"):
        made("dpsgd", Choices(epochs=1e30), ZERO_OUT)
    with pytest.raises(ValueError, match="^adjacency must be one of"):
        made("dpsgd", Choices(), ZERO_OUT._replace(adjacency=np.ones((2, 2))))


@pytest.mark.parametrize(("columns", "main_steps"), [(4, (500, 400)), (64, (900,))])
def test_a_default_fit_has_three_phases_or_two(columns, main_steps):
    """All parts of both rules are pinned, but for the size of the noise, which calibration finds; n·μ is 4,289."""
    plan = make_plan(
        Task(
            method="dpsgd",
            budget=Budget(1.0, 1e-5, "zero-out"),
            records=16_000,
            columns=columns,
            loss=cs.losses.Logistic(),
            has_intercept=True,
            is_rescalable=True,
        )
    )
    std = plan.phases[0].rule.noise.std
    settings = defaults(16_000, columns, 1.0, 1e-5)
    shared = {"batch": 1_000, "sampling": "poisson"}
    main = cs.DPSGD(cs.schedules.Constant(settings.step.gamma / 0.9), settings.clip, std, **shared)
    last = cs.DPSGD(cs.schedules.Constant(4.0), 1.5, std * 1.5 / settings.clip, **shared)
    train = replace(main, output=cs.outputs.Average(3.0), step=plan.phases[0].rule.step)
    first, *others = (TrainingPhase(rule=train, steps=steps) for steps in main_steps)
    rescaling = TrainingPhase(rule=replace(last, output=cs.outputs.Average(3.0)), steps=100, rescales=True)
    assert plan == TrainingPlan(
        phases=(first, rescaling, *others),
        has_intercept=True,
        keeps_length=False,
    )
    assert plan.phases[0].rule.step == pytest.approx(main.step)
    assert plan.steps == 1_000
    statement = statement_of(plan, 16_000, 1e-5, "zero-out")
    assert 0.98 <= statement.certified <= 1.0
    assert (statement.records, statement.steps) == (16_000, 1_000)
    assert statement.reasons[-1].startswith("100 steps set the intercept and the length of the slopes alone")


def test_a_small_fit_has_one_phase_and_keeps_a_length():
    task = Task(method="dpsgd", budget=ZERO_OUT, records=100, columns=4, loss=cs.losses.Logistic(), is_rescalable=True)
    plan = make_plan(task)
    assert (len(plan.phases), plan.keeps_length) == (1, True)
    assert not make_plan(replace(task, largest_weight=1.0)).keeps_length


def test_a_method_states_which_choices_it_takes():
    """Each field of `Choices` that a method takes has an effect on its plan."""
    other = {"clip": 0.3, "batch": 40, "epochs": 7, "step": 0.123}
    for name, method in METHODS.items():
        budget = ZERO_OUT._replace(adjacency="replace-one") if method.is_local else ZERO_OUT
        plain = made(name, budget=budget)
        for choice in method.choices:
            assert made(name, Choices(**{choice: other[choice]}), budget) != plain, (name, choice)


def test_presets_that_average_or_select_keep_their_output():
    outputs = {name: type(made(name).rule.output) for name in METHODS if not METHODS[name].is_local}
    own = {"dpgd": cs.outputs.Average(), "clipped-dpgd": cs.outputs.Average(), "correlated": cs.outputs.TailAverage()}
    assert outputs.pop("noisy-selection") is cs.outputs.Selected
    for name in outputs:
        assert made(name).rule.output == own.get(name, cs.outputs.Average(3.0)), name


def test_a_new_method_is_one_entry(monkeypatch):
    own = Method(
        preset=cs.DPSGD, choices=("epochs",), default_step=lambda move: cs.schedules.Constant(0.25), averages=False
    )
    monkeypatch.setitem(METHODS, "own", own)
    phase = made("own", Choices(epochs=7))
    assert (phase.steps, phase.rule.step, phase.rule.output) == (7, cs.schedules.Constant(0.25), cs.outputs.Last())
    with pytest.raises(ValueError, match="^clip must be left out for method 'own', which has no use for it, got 1.0"):
        made("own", Choices(clip=1.0))
