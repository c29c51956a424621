"""The models and data of paper 3's experiments."""

import copy
import os
import pickle

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("opacus")

from opacus.validators import ModuleValidator  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

from clipsilon.torch import PrivacyEngine  # noqa: E402
from clipsilon.torch.examples import images  # noqa: E402
from clipsilon.torch.examples.images import Images  # noqa: E402
from clipsilon.torch.examples.models import MODELS, Shape, image_model  # noqa: E402
from clipsilon.torch.examples.training import (  # noqa: E402
    TrainingConfig,
    _schedule,
    accuracy,
    apply_layers,
    prepare_training,
    train_images,
    train_with_pauses,
)
from private_training import make_private  # noqa: E402

torch.set_num_threads(1)

SMALL = Shape(1, 8, 10)


@pytest.fixture(scope="module")
def digits():
    return images.digits()


def test_digits(digits):
    assert digits.train[0].shape == (1437, 1, 8, 8)
    assert digits.test[0].shape == (360, 1, 8, 8)
    assert digits.shape == SMALL
    assert float(digits.train[0].min()) == -1.0
    assert float(digits.train[0].max()) == 1.0
    assert torch.bincount(digits.test[1]).min() >= 30  # every digit is tested
    again = images.digits()
    assert all(torch.equal(one, other) for one, other in zip(digits.train, again.train, strict=True))


def test_printed_digits_depend_on_the_seed_alone():
    pixels, labels = images.printed_digits(30, seed=3)
    same, other = images.printed_digits(30, seed=3), images.printed_digits(30, seed=4)
    assert pixels.shape == (30, 1, 8, 8)
    assert pixels.dtype == torch.float32
    assert torch.equal(pixels, same[0])
    assert torch.equal(labels, same[1])
    assert not torch.equal(pixels, other[0])
    assert -1 <= float(pixels.min()) < 0 < float(pixels.max()) <= 1
    assert float(pixels.flatten(1).std(1).min()) > 0.1  # none is empty


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("shape", [SMALL, Shape(3, 32, 100)])
def test_a_model_returns_scores_and_opacus_supports_it(name, shape):
    model = image_model(name, shape, seed=0)
    x = torch.randn(5, shape.channels, shape.size, shape.size, generator=torch.Generator().manual_seed(0))
    assert model(x).shape == (5, shape.classes)
    assert ModuleValidator.validate(model) == []
    with torch.no_grad():  # each record on its own gives what it gives among others
        torch.testing.assert_close(torch.cat([model(row[None]) for row in x]), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "least", "most"), [("CNN", 10_000, 50_000), ("ViT", 10_000, 50_000)])
def test_models_of_digits_are_small(name, least, most):
    assert least <= sum(p.numel() for p in image_model(name, SMALL, 0).parameters()) <= most


def test_first_parameters_depend_on_the_seed_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one, same, other = (image_model("CNN", SMALL, seed)[0].weight for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), before)


def test_unknown_models():
    with pytest.raises(ValueError, match="model must be one of 'CNN', 'strided CNN', 'ViT', got 'MLP'."):
        image_model("MLP", SMALL, 0)
    with pytest.raises(ValueError, match="images must have a side that is a multiple of 4, got 9."):
        image_model("CNN", Shape(1, 9, 10), 0)


def train_one_pass(model, x, y, mode, **update):
    """Return parameters and error after one pass in float64, without noise."""
    model = copy.deepcopy(model)
    loader = torch.utils.data.DataLoader(TensorDataset(x, y), batch_size=8, generator=torch.Generator().manual_seed(0))
    optimizer, criterion = torch.optim.SGD(model.parameters(), lr=0.5), torch.nn.CrossEntropyLoss()
    made = make_private(
        PrivacyEngine(),
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        criterion=criterion,
        noise_multiplier=0.0,
        clip=0.5,
        grad_sample_mode=mode,
        **update,
    )
    private, optimizer, loader = made[0], made[1], made[-1]
    criterion = made[2] if mode == "ghost" else criterion
    for images_, labels in loader:
        optimizer.zero_grad()
        criterion(private(images_), labels).backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()], optimizer.error


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "update", [{"algorithm": "dpsgd"}, {"algorithm": "dice"}, {"algorithm": "dice", "residual_cap": 0.9}]
)
def test_ghost_and_hooks_agree_on_the_models(name, update):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20, 1, 8, 8, generator=generator, dtype=torch.float64)
    y = torch.randint(10, (20,), generator=generator)
    model = image_model(name, SMALL, 0).double()
    ghost, hooks = train_one_pass(model, x, y, "ghost", **update), train_one_pass(model, x, y, "hooks", **update)
    for one, other in zip((*ghost[0], *ghost[1]), (*hooks[0], *hooks[1]), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)
    moved = max(float((p - q.detach()).abs().max()) for p, q in zip(ghost[0], model.parameters(), strict=True))
    assert moved > 1e-3


def cifar_rows(count, classes, seed):
    rng = np.random.default_rng(seed)
    return rng.integers(256, size=(count, 3072)).astype(np.uint8), rng.integers(classes, size=count)


def write_python(folder, classes):
    """Tiny files in the Python format: pickles of protocol 2, with keys of bytes, as Python 2 wrote them."""
    names = [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"] if classes == 10 else ["train", "test"]
    rows = [cifar_rows(4, classes, seed) for seed in range(len(names))]
    for name, (pixels, labels) in zip(names, rows, strict=True):
        key = b"labels" if classes == 10 else b"fine_labels"
        content = {b"data": pixels, key: labels.tolist(), b"filenames": [b"a.png"] * 4, b"batch_label": b"one"}
        old = pickle.dumps(content, protocol=2).replace(b"numpy._core", b"numpy.core")  # the module's name in 2009
        assert b"numpy.core" in old
        (folder / name).write_bytes(old)
    return rows


def write_binary(folder, classes):
    names = (
        [*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"]
        if classes == 10
        else ["train.bin", "test.bin"]
    )
    rows = [cifar_rows(4, classes, seed) for seed in range(len(names))]
    for name, (pixels, labels) in zip(names, rows, strict=True):
        first = [labels[:, None]] if classes == 10 else [labels[:, None] // 5, labels[:, None]]
        (folder / name).write_bytes(np.hstack([*first, pixels]).astype(np.uint8).tobytes())
    return rows


@pytest.mark.parametrize("write", [write_python, write_binary])
@pytest.mark.parametrize("classes", [10, 100])
def test_cifar_in_both_formats(tmp_path, monkeypatch, write, classes):
    rows = write(tmp_path, classes)
    monkeypatch.setenv(images.FOLDER, str(tmp_path))
    found = images.cifar()
    assert found.shape == Shape(3, 32, classes)
    pixels, labels = np.concatenate([row[0] for row in rows[:-1]]), np.concatenate([row[1] for row in rows[:-1]])
    np.testing.assert_allclose(found.train[0].numpy().reshape(-1, 3072), pixels / 127.5 - 1, atol=1e-6)
    assert found.train[1].tolist() == labels.tolist()
    assert found.test[1].tolist() == rows[-1][1].tolist()
    # the first 1,024 bytes are the red channel, row by row
    assert found.train[0][0, 0, 0, 1] == pytest.approx(pixels[0, 1] / 127.5 - 1, abs=1e-6)
    assert found.train[0][0, 1, 0, 0] == pytest.approx(pixels[0, 1024] / 127.5 - 1, abs=1e-6)


def test_missing_cifar(tmp_path):
    with pytest.raises(ValueError, match="folder must hold the files of CIFAR-10 or CIFAR-100"):
        images.cifar(tmp_path)


def test_malformed_cifar(tmp_path):
    write_binary(tmp_path, 10)
    (tmp_path / "test_batch.bin").write_bytes(b"123")
    with pytest.raises(ValueError, match="test_batch.bin must hold rows of 3073 bytes, got 3 bytes in all."):
        images.cifar(tmp_path)
    (tmp_path / "test_batch.bin").write_bytes(bytes([11]) + bytes(3072))
    with pytest.raises(ValueError, match="test_batch.bin must hold images of 32 × 32 pixels with labels below 10"):
        images.cifar(tmp_path)
    write_python(tmp_path, 10)
    (tmp_path / "test_batch").write_bytes(pickle.dumps({b"data": 1}, protocol=2))
    with pytest.raises(ValueError, match="test_batch must be a file of CIFAR's Python format"):
        images.cifar(tmp_path)


class Evil:
    def __reduce__(self):
        return os.system, ("echo pickled code ran",)


def test_a_pickle_cannot_run_code(tmp_path, capfd):
    write_python(tmp_path, 10)
    (tmp_path / "test_batch").write_bytes(pickle.dumps(Evil(), protocol=2))
    with pytest.raises(ValueError, match="test_batch must be a file of CIFAR's Python format, got .*system in it."):
        images.cifar(tmp_path)
    assert "pickled code ran" not in capfd.readouterr().out


def test_training_learns_and_is_reproducible(digits):
    config = TrainingConfig("dice", 3.0, 240, 12, seed=5, clip=0.1, noise_multiplier=0.5)
    first, again = (train_images(config, image_model("CNN", SMALL, 0), digits) for _ in range(2))
    other = train_images(config._replace(seed=6), image_model("CNN", SMALL, 0), digits)
    assert first == again
    assert first != other
    assert first > 0.5  # chance finds 0.1


def test_training_without_privacy(digits):
    assert (
        train_images(TrainingConfig("sgd", 3e-3, 240, 24, optimizer="Adam"), image_model("CNN", SMALL, 0), digits) > 0.8
    )


def test_pauses(digits):
    some = Images((digits.train[0][:50], digits.train[1][:50]), digits.test, 10)
    config = TrainingConfig("dpsgd", 0.1, 20, 7)
    training = prepare_training(config, image_model("CNN", SMALL, 0).eval(), TensorDataset(*some.train))
    seen = []
    for number in train_with_pauses(
        training, 7, 3, lambda training, batch: training.criterion(training.model(batch[0]), batch[1])
    ):
        seen.append(number)
        assert not training.model.training
    assert seen == [3, 6, 7]


def test_the_step_size_rises_and_falls():
    shares = [_schedule(2, 6)(done) for done in range(6)]
    assert shares == [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    assert [_schedule(0, 6)(done) for done in range(6)] == [1.0] * 6


def test_accuracy():
    def model(x):
        return x

    scores = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    assert accuracy(model, scores, torch.tensor([0, 1, 1, 0])) == 0.75


def test_a_config_has_the_engine_s_settings():
    assert "error_clip" not in TrainingConfig("dpsgd", 1.0, 10, 1).settings()
    assert TrainingConfig("dice", 1.0, 10, 1, clip=0.1, residual_cap=0.2).settings()["residual_cap"] == 0.2
    with pytest.raises(ValueError, match="optimizer must be one of 'SGD', 'Adam', 'AdamW', got 'LBFGS'."):
        prepare_training(
            TrainingConfig("sgd", 1.0, 10, 1, optimizer="LBFGS"),
            image_model("CNN", SMALL, 0),
            TensorDataset(torch.zeros(1)),
        )


@pytest.mark.parametrize("algorithm", ["sgd", "dpsgd", "dice", "correlated"])
@pytest.mark.parametrize(("name", "frozen"), [("CNN", 7), ("ViT", 2), ("ViT", -1)])
def test_training_on_outputs_is_training_with_frozen_layers(digits, algorithm, name, frozen):
    """The same batches and noise, so that only rounding differs."""
    config = TrainingConfig(algorithm, 0.1, 240, 3, noise_multiplier=0.1)
    whole, divided = image_model(name, SMALL, 0), image_model(name, SMALL, 0)
    before = copy.deepcopy(whole.state_dict())
    whole[:frozen].requires_grad_(False)
    train_images(config, whole, digits)
    train_images(config, divided[frozen:], apply_layers(divided[:frozen], digits))
    for key, value in whole.state_dict().items():
        torch.testing.assert_close(divided.state_dict()[key], value, rtol=0, atol=1e-5)
        is_moved = float((value - before[key]).abs().max()) > 1e-4
        assert is_moved == (key.split(".")[0] in dict(whole[frozen:].named_children()))


def test_outputs_of_layers(digits):
    body = image_model("ViT", SMALL, 0)[:-1]
    found = apply_layers(body, digits)
    assert found.train[0].shape == (1437, 32)
    assert found.test[0].shape == (360, 32)
    assert not found.train[0].requires_grad
    torch.testing.assert_close(found.train[0][-3:], body(digits.train[0][-3:]).detach(), rtol=1e-5, atol=1e-6)
    assert torch.equal(found.train[1], digits.train[1])
    assert torch.equal(found.test[1], digits.test[1])


@pytest.mark.parametrize("batch", [1, 7, 50])
def test_batches_hold_the_rows_that_were_drawn(batch):
    numbers = torch.arange(50)
    training = prepare_training(
        TrainingConfig("sgd", 0.1, batch, 1), torch.nn.Linear(1, 1), TensorDataset(numbers[:, None], 10 * numbers)
    )
    batches = list(training.loader)
    assert [len(one) for one, _ in batches] == [batch] * (50 // batch) + [50 % batch] * (50 % batch > 0)
    assert all(torch.equal(10 * one[:, 0], other) for one, other in batches)
    assert torch.equal(torch.cat([other for _, other in batches]).sort().values, 10 * numbers)


def test_private_batches_may_be_empty():
    x, y = torch.randn(8, 2), torch.randint(2, (8,))
    training = prepare_training(TrainingConfig("dpsgd", 0.1, 1, 1), torch.nn.Linear(2, 2), TensorDataset(x, y))
    sizes = [
        tuple(map(len, batch)) for _ in range(5) for batch in training.loader
    ]  # of 40, none is empty with probability 5e-8
    assert (0, 0) in sizes
    assert all(one == other for one, other in sizes)
    assert max(sizes) > (1, 1)
