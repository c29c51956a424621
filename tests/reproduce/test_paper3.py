"""Paper 3's experiments with networks: their requirements, their noise, and verdicts from made-up numbers."""

import importlib.util
import math
import subprocess
import sys

import numpy as np
import pytest

from clipsilon.reproduce import runner
from clipsilon.reproduce.paper3.networks import (
    Scale,
    best_step,
    format_spread,
    image,
    image_accuracy,
    image_scale,
    load,
    paper_multiplier,
    pretrained,
    privacy,
)
from clipsilon.reproduce.paper3.texts import Written, text_scale, write

IMAGES = ("paper3-table2", "paper3-table2-certified", "paper3-fig1", "paper3-fig2")
TEXTS = ("paper3-fig3", "paper3-table3", "paper3-fig4")
KNOWN = {each.name: each for each in runner.catalogue()}
FULL = Scale("digits", 1437, 240, 48, 8.0, 1e-5, 5)

LEAST_SCORES = {"BLEU": 40.0, "NIST": 5.0, "ROUGE-L": 60.0, "CIDEr": 1.0}


class Shelf:
    """A laboratory in which accuracy and loss are a formula of the plan, without training."""

    quick = False

    def __init__(self, worth):
        self.worth = worth  # quality of a plan: larger is better

    def keep(self, function, *arguments):
        if function.__name__ == "pretrained":
            return {}
        if function.__name__ == "image_accuracy":
            return 50.0 + self.worth(arguments[2])
        losses = [4.0, 3.0 - self.worth(arguments[3]) / 10]
        return Written(
            [0, 10], losses, {name: least + self.worth(arguments[3]) for name, least in LEAST_SCORES.items()}
        )


def made(name, worth, monkeypatch):
    for variable in ("CLIPSILON_CIFAR", "CLIPSILON_E2E", "CLIPSILON_GPT2"):
        monkeypatch.delenv(variable, raising=False)
    return KNOWN[name].make(Shelf(worth))


def verdicts(result):
    return [finding.verdict for finding in result.findings]


def test_all_are_listed():
    assert {*IMAGES, *TEXTS} <= set(KNOWN)


def test_without_pytorch_they_are_listed_and_say_what_they_need():
    code = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('torch', 'opacus', 'transformers'):\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "from clipsilon.reproduce import runner\n"
        "print([each.name for each in runner.catalogue() if each.name.startswith('paper3-')])\n"
    )
    listed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert all(repr(name) in listed for name in (*IMAGES, *TEXTS))


@pytest.mark.parametrize(
    ("name", "missing", "extra"),
    [
        ("paper3-table2", "opacus", "torch"),
        ("paper3-fig1", "torch", "torch"),
        ("paper3-fig4", "sacrebleu", "language"),
    ],
)
def test_what_is_missing_is_named(monkeypatch, name, missing, extra):
    monkeypatch.setattr(importlib.util, "find_spec", lambda each: None if each == missing else object())
    message = rf"{name} needs {missing}: run pip install 'clipsilon\[{extra}\]'."
    with pytest.raises(ValueError, match=message):
        runner.check_extras([KNOWN[name]])


def test_networks_run_when_they_are_named():
    assert not {*IMAGES, *TEXTS} & {each.name for each in runner.choose([])}
    assert {*IMAGES, *TEXTS} <= {each.name for each in runner.choose(["paper3"])}


@pytest.fixture
def torch():
    pytest.importorskip("opacus")
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    return torch


@pytest.fixture
def language(torch):
    for package in ("transformers", "sacrebleu", "rouge_score"):
        pytest.importorskip(package)


def test_the_papers_noise(torch):
    """App. C.4's formula, written out; for C2 = 3·C1 Theorem 3.8's G̃ = C1² + 2·C2²."""
    unit = math.sqrt(48 * math.log(1e5)) / (1437 * 8.0) * 240
    assert paper_multiplier(FULL) == pytest.approx(math.sqrt(96) * unit, rel=1e-9)
    assert paper_multiplier(FULL, 3.0) == pytest.approx(math.sqrt(32 * (1 + 2 * 9)) * unit, rel=1e-9)


def test_privacy_of_a_plan(torch):
    noise = paper_multiplier(FULL)
    assert privacy(FULL, FULL.plan("sgd", 1.0, 0)) == ("none", "∞")
    claimed, certified = privacy(FULL, FULL.plan("dice", 1.0, 0, clip=0.1, noise_multiplier=noise))
    assert float(claimed) == pytest.approx(8.0 * math.sqrt((1 + 2 * 240**2) / 3), rel=1e-3)  # as printed, C = B·C2
    assert float(certified) > 1e5
    automatic = FULL.plan("dice", 1.0, 0, clip=0.1, clipping="automatic", noise_multiplier=noise)
    assert privacy(FULL, automatic)[0] == "8"
    clipped = FULL.plan("dpsgd", 1.0, 0, clip=0.1, noise_multiplier=noise)
    assert privacy(FULL, clipped) == privacy(FULL, clipped._replace(clip=1.0))


def test_the_best_step():
    values = {0.1: 3.0, 0.3: math.nan, 1.0: 5.0, 3.0: 5.0}
    assert best_step(lambda step, seed: values[step], list(values), 2) == 1.0
    uneven = {(1.0, 100): 9.0, (1.0, 101): 0.0, (2.0, 100): 5.0, (2.0, 101): 5.0}
    assert best_step(lambda *run: uneven[run], [1.0, 2.0], 1) == 1.0
    assert best_step(lambda *run: uneven[run], [1.0, 2.0], 2) == 2.0
    assert best_step(None, [7.0], 2) == 7.0  # a single candidate


def test_a_spread():
    assert format_spread([1.0, 2.0, 6.0]) == "3.0 (1.0–6.0)"


def test_table_2_compares_at_the_same_noise(torch, monkeypatch):
    plans = []

    def worth(plan):
        plans.append(plan)
        return (
            {"sgd": 9.0, "dpsgd": 1.0, "dice": 2.0}[plan.algorithm]
            if plan.clip < 1 or plan.algorithm != "dice"
            else 0.5
        )

    result = made("paper3-table2", worth, monkeypatch)
    # CNN and ViT, each at C = 1 and at C = 0.1
    assert verdicts(result) == ["does not hold", "holds with a remark"] * 2
    noisy = [plan for plan in plans if plan.algorithm != "sgd"]
    assert {plan.noise_multiplier for plan in noisy} == {paper_multiplier(FULL)}
    reported = {plan.seed for plan in noisy}
    assert reported == {0, 1, 2, 3, 4, 100, 101}
    assert "51.0 (51.0–51.0) %" in result.findings[1].measured
    assert len(result.tables[0].rows) == 2 * (1 + 2 * 2)


def test_table_2_certified_is_at_the_same_certificate(torch, monkeypatch):
    result = made(
        "paper3-table2-certified",
        lambda plan: 5.0 if plan.algorithm == "dpsgd" else -(plan.residual_cap or 9),
        monkeypatch,
    )
    assert verdicts(result) == ["does not hold"]
    certified = [float(row[-1]) for row in result.tables[0].rows]
    assert all(0.98 * 8 <= epsilon <= 8 for epsilon in certified)
    assert "cap 1.2·C" in result.findings[0].measured
    better = made("paper3-table2-certified", lambda plan: 6.0 if plan.residual_cap == 0.2 else 0.0, monkeypatch)
    assert verdicts(better) == ["holds with a remark"]
    assert "cap 2·C" in better.findings[0].measured


def test_figure_1_looks_for_the_best_ratio(torch, monkeypatch):
    equal = made("paper3-fig1", lambda plan: -plan.error_clip / plan.clip - plan.clip, monkeypatch)
    assert verdicts(equal) == ["holds with a remark"] * 2
    other = made("paper3-fig1", lambda plan: plan.error_clip / plan.clip + plan.clip, monkeypatch)
    assert verdicts(other) == ["does not hold"] * 2
    assert len(equal.charts[0].series) == 4
    np.testing.assert_allclose(equal.charts[0].series[3].y, [50 - ratio - 0.1 for ratio in (1, 3, 10, 30)])


def test_figure_2_looks_for_the_best_step(torch, monkeypatch):
    inner = made("paper3-fig2", lambda plan: -abs(math.log(plan.step * plan.clip / 0.3)) - plan.clip, monkeypatch)
    assert verdicts(inner) == ["holds with a remark"] * 2
    edge = made("paper3-fig2", lambda plan: plan.step * plan.clip + plan.clip, monkeypatch)
    assert verdicts(edge) == ["does not hold"] * 2


def test_language_compares_at_the_same_noise(language, monkeypatch):
    good = {"sgd": 9.0, "dpsgd": 1.0, "dice": 2.0}
    for name, findings in (("paper3-fig3", 1), ("paper3-table3", 4)):
        assert (
            verdicts(made(name, lambda plan: good[plan.algorithm], monkeypatch)) == ["holds with a remark"] * findings
        )
        assert verdicts(made(name, lambda plan: -good[plan.algorithm], monkeypatch)) == ["does not hold"] * findings
    table = made("paper3-table3", lambda plan: good[plan.algorithm], monkeypatch).tables[0]
    assert table.columns[2:6] == ("BLEU", "NIST", "ROUGE-L", "CIDEr")
    assert [row[2:6] for row in table.rows][1:] == [["41.0", "6.00", "61.0", "2.00"], ["42.0", "7.00", "62.0", "3.00"]]


def test_figure_4_compares_thresholds(language, monkeypatch):
    assert verdicts(made("paper3-fig4", lambda plan: -math.log(plan.clip), monkeypatch)) == ["holds with a remark"]
    assert verdicts(made("paper3-fig4", lambda plan: math.log(plan.clip), monkeypatch)) == ["does not hold"]


def test_cifar_in_the_place_of_digits(torch, tmp_path, monkeypatch):
    """Compute an accuracy from tiny files in the binary format of CIFAR-10."""
    rng = np.random.default_rng(0)
    for name in (*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"):
        rows = np.hstack([rng.integers(10, size=(4, 1)), rng.integers(256, size=(4, 3072))])
        (tmp_path / name).write_bytes(rows.astype(np.uint8).tobytes())
    monkeypatch.setenv("CLIPSILON_CIFAR", str(tmp_path))
    scale = image_scale(Shelf(None))
    assert scale[:6] == (str(tmp_path), 20, 1000, 150, 2.0, 1e-5)
    plan = scale._replace(batch=5, steps=2).plan("dice", 0.1, 0, clip=0.1, noise_multiplier=1.0)
    assert image_accuracy(scale.source, "CNN", plan) in {0.0, 25.0, 50.0, 75.0, 100.0}
    assert image(Shelf(None), "ViT", scale).start is None  # printed digits are not used to pretrain for CIFAR


def test_a_pretrained_body_has_a_new_head(torch):
    start = pretrained("ViT", 2)
    from clipsilon.torch.examples.models import Shape, image_model

    model, untouched = (image_model("ViT", Shape(1, 8, 10), seed=7) for _ in range(2))
    load(model, start)
    body = model.state_dict()
    assert {key for key in body if key not in start} == {"head.weight", "head.bias"}
    assert all(np.array_equal(body[key].numpy(), value) for key, value in start.items())
    assert torch.equal(model.head.weight, untouched.head.weight)


def test_e2e_in_the_place_of_made_up_restaurants(language, tmp_path, monkeypatch):
    row = '"name[Aromi], food[Indian]",Aromi serves Indian food.\n'
    (tmp_path / "trainset.csv").write_text("mr,ref\n" + 7 * row, encoding="utf-8")
    (tmp_path / "testset_w_refs.csv").write_text("mr,ref\n" + row + "name[Zizzi],Zizzi.\n", encoding="utf-8")
    monkeypatch.setenv("CLIPSILON_E2E", str(tmp_path))
    monkeypatch.delenv("CLIPSILON_GPT2", raising=False)
    scale = text_scale(Shelf(None), steps=60)
    assert scale[:6] == (str(tmp_path), 7, 1000, 420, 8.0, 8e-6)
    plan = scale._replace(batch=3, steps=40, warm_up=2).plan("sgd", 2e-2, 0)
    written = write(scale.source, None, scale.records, plan, described=1)
    assert written.iterations == [*range(0, 41, 4)]
    assert written.losses[-1] < written.losses[0]
    assert written.scores["BLEU"] == pytest.approx(100.0)  # it has learned the one sentence that there is
    assert written.scores["ROUGE-L"] == pytest.approx(100.0)


@pytest.mark.verify
def test_digits_at_the_same_noise(torch):
    """DiceSGD's mean test accuracy over five seeds is above DPSGD-GC's at C = 0.1 and the paper's noise.

    Over 20 seeds they are 91.5 and 78.9 %, with deviations of 2.1 and 3.1 a seed: the difference of two means of five
    has a deviation of 1.7, and 12.6 is 7 of those. Should another machine's rounding make other seeds of these, a false
    alarm has a chance of 10⁻¹².
    """
    noise = paper_multiplier(FULL)

    def accuracies(algorithm, step):
        plans = [FULL.plan(algorithm, step / 0.1, seed, clip=0.1, noise_multiplier=noise) for seed in range(5)]
        return [image_accuracy("digits", "CNN", plan) for plan in plans]

    assert np.mean(accuracies("dice", 0.3)) > np.mean(accuracies("dpsgd", 1.0))
