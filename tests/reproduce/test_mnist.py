"""The experiments on MNIST: verdicts from made-up numbers, and a training on small files."""

import numpy as np
import pytest

import clipsilon as cs
from clipsilon.datasets import mnist_digits
from clipsilon.reproduce import runner
from clipsilon.reproduce.paper3 import mnist, networks
from small_mnist import DIGESTS, FILES

NAMES = ("mnist-noise", "mnist-epsilon-2", "mnist-epsilon-8")
KNOWN = {each.name: each for each in runner.catalogue()}


@pytest.fixture(autouse=True)
def torch():
    pytest.importorskip("opacus")
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)


class Shelf:
    """A laboratory in which accuracy is a formula of the plan, without training."""

    def __init__(self, worth, quick=False):
        self.worth, self.quick, self.plans = worth, quick, []

    def keep(self, function, *arguments):
        if function.__name__ == "pretrained_on_print":
            return {"weight": np.zeros(1)}, 80.0
        _, _, plan, _, frozen = arguments
        assert frozen == -1  # the last layer alone is trained
        self.plans.append(plan)
        return 96.0 + self.worth(plan) + 0.01 * (plan.seed % 5)


def torch_layers(activation):
    """Return a layer with the same parameters each time, and an activation."""
    from torch import nn

    layers = nn.Sequential(nn.Conv2d(1, 2, 3), getattr(nn, activation)())
    for p in layers.parameters():
        nn.init.constant_(p, 0.5)
    return layers


def verdicts(name, worth):
    return [finding.verdict for finding in KNOWN[name].make(Shelf(worth)).findings]


def is_dice(plan):
    return plan.algorithm == "dice"


def test_they_run_when_they_are_named():
    assert set(NAMES) == {each.name for each in runner.choose(["mnist"])}
    assert not set(NAMES) & {each.name for each in runner.choose([])}
    assert not set(NAMES) & {each.name for each in runner.choose(["paper3"])}  # which needs no file of the user's


def test_verdicts_at_the_same_noise():
    assert verdicts("mnist-noise", lambda plan: 1.0 * is_dice(plan)) == ["holds with a remark"] * 2
    assert verdicts("mnist-noise", lambda plan: -1.0 * is_dice(plan)) == ["does not hold"] * 2
    assert verdicts("mnist-noise", lambda plan: 0.01 * is_dice(plan)) == ["does not hold"] * 2  # within the errors


def test_all_algorithms_have_the_same_noise():
    shelf = Shelf(lambda plan: 0.0)
    KNOWN["mnist-noise"].make(shelf)
    assert {plan.noise_multiplier for plan in shelf.plans} == {networks.paper_multiplier(mnist.mnist_scale(shelf, 2.0))}
    assert {plan.seed for plan in shelf.plans} == {0, 1, 2, 3, 4, 100}


@pytest.mark.parametrize(("name", "epsilon"), [("mnist-epsilon-2", 2.0), ("mnist-epsilon-8", 8.0)])
def test_all_algorithms_have_the_same_certificate(name, epsilon):
    table = KNOWN[name].make(Shelf(lambda plan: 0.0)).tables[0]
    certified = [float(row[-1]) for row in table.rows if row[0] != "printed digits only"]
    assert len(certified) == 2 * len(mnist.ALGORITHMS)
    assert all(0.98 * epsilon <= each <= epsilon for each in certified)


def test_verdicts_at_the_same_certificate():
    assert verdicts("mnist-epsilon-2", lambda plan: 0.6) == ["holds", "does not hold", "does not hold"]
    assert verdicts("mnist-epsilon-2", lambda plan: 0.4) == ["does not hold"] * 3
    assert verdicts("mnist-epsilon-8", lambda plan: 1.0 * is_dice(plan)) == ["holds with a remark"] * 2
    (goal, *_) = KNOWN["mnist-epsilon-2"].make(Shelf(lambda plan: 0.6 + (plan.residual_cap or 0.0))).findings
    assert goal.measured == "DiceSGD, cap 1.2·C, the best algorithm, reaches 97.82 ± 0.01 %."


def test_a_quick_look_has_one_seed():
    result = KNOWN["mnist-noise"].make(Shelf(lambda plan: 0.0, quick=True))
    assert [row[:2] for row in result.tables[0].rows[1:]] == [[title, "strided CNN"] for title in mnist.ALGORITHMS]
    assert {row[3] for row in result.tables[0].rows[1:]} == {"96.00"}


def test_a_training_on_small_files(tmp_path, monkeypatch):
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    monkeypatch.setattr(mnist_digits, "_DIGESTS", DIGESTS)
    monkeypatch.setenv(mnist_digits.FOLDER, str(tmp_path))
    networks.stored_images.cache_clear()
    start, before = mnist.pretrained_on_print("ViT", 2, 20)
    assert 0.0 <= before <= 100.0
    scale = mnist.mnist_scale(Shelf(None), 2.0)._replace(batch=8, steps=2)
    for update in mnist.ALGORITHMS.values():
        plan = scale.plan(step=0.1, seed=0, clip=mnist.CLIP, noise_multiplier=1.0, **update)
        assert networks.image_accuracy("mnist", "ViT", plan, start, -1) in {10.0 * k for k in range(11)}
    networks.stored_images.cache_clear()


def test_outputs_are_computed_once_for_each_body(monkeypatch):
    """Also for bodies that differ in a parameter, or in a layer without parameters, alone."""
    calls = []
    monkeypatch.setattr("clipsilon.torch.examples.training.apply_layers", lambda *parts: calls.append(parts) or parts)
    monkeypatch.setattr(networks, "_frozen", {})
    tanh, relu = (torch_layers(kind) for kind in ("Tanh", "ReLU"))
    assert networks.stored_outputs("digits", tanh[:0]) is networks.stored_images("digits")
    first = networks.stored_outputs("digits", tanh)
    assert networks.stored_outputs("digits", tanh) is first
    assert first == (tanh, networks.stored_images("digits"))
    assert networks.stored_outputs("digits", relu)[0] is relu
    relu[0].bias.data[0] += 1.0
    networks.stored_outputs("digits", relu)
    assert len(calls) == 3
    assert len(networks._frozen) == 1


def test_missing_files_are_noticed_first(tmp_path, monkeypatch):
    monkeypatch.setenv(mnist_digits.FOLDER, str(tmp_path))
    networks.stored_images.cache_clear()
    monkeypatch.setattr("clipsilon.torch.examples.printed.distorted_digits", None)
    with pytest.raises(cs.datasets.DataError, match="folder must hold train-images-idx3-ubyte"):
        mnist.pretrained_on_print("strided CNN", 1, 1)
