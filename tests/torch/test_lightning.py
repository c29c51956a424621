"""Private training in the loop of Lightning: steps, statements, checkpoints, and what is refused."""

import logging
import math
import re

import pytest

torch = pytest.importorskip("torch")
for package in ("opacus", "lightning"):
    pytest.importorskip(package)

from lightning.pytorch import Callback, LightningModule, Trainer  # noqa: E402
from lightning.pytorch.callbacks import LearningRateFinder, ModelCheckpoint  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

import clipsilon as cs  # noqa: E402
from clipsilon.engine.checkpoint import CheckpointError  # noqa: E402
from clipsilon.torch import PrivacyEngine  # noqa: E402
from clipsilon.torch.state_check import CheckError  # noqa: E402
from clipsilon.torch.trainers.lightning import PrivateTraining  # noqa: E402
from private_training import flat, network, records  # noqa: E402

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Classifier(LightningModule):
    """A small network, whose loss is the mean over records."""

    def __init__(self):
        super().__init__()
        self.model = network()

    def training_step(self, batch, number):
        x, y = batch
        return functional.binary_cross_entropy_with_logits(self.model(x), y)

    def validation_step(self, batch, number):
        x, y = batch
        self.log("loss", functional.binary_cross_entropy_with_logits(self.model(x), y))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.05)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2)]


def trainer_of(folder, *callbacks, **settings):
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
    chosen = {**quiet, "max_epochs": 2, "num_sanity_val_steps": 0, "enable_checkpointing": False, **settings}
    return Trainer(default_root_dir=folder, callbacks=list(callbacks), **chosen)


def fit(folder, module=None, data=None, privacy=None, batch=5, callbacks=(), engine=None, seeded=False, **settings):
    """Fit, and return the callback and the trainer; eight steps are a pass."""
    ckpt_path, val = settings.pop("ckpt_path", None), settings.pop("val", None)
    chosen = {"noise_multiplier": 1.0, "delta": 1e-3, **(privacy or {})}
    chosen = privacy if "target_epsilon" in chosen else chosen
    if seeded:
        chosen["noise_generator"] = torch.Generator().manual_seed(1)
    private = PrivateTraining(chosen, engine=engine)
    generator = torch.Generator().manual_seed(2) if seeded else None
    loader = DataLoader(records() if data is None else data, batch_size=batch, generator=generator)
    trainer = trainer_of(folder, private, *callbacks, **settings)
    trainer.fit(Classifier() if module is None else module, loader, val, ckpt_path=ckpt_path)
    return private, trainer


def rule(batch=5, noise_multiplier=1.0):
    return cs.DPSGD(cs.schedules.Constant(1.0), clip=1.0, noise_std=noise_multiplier / batch, batch=batch)


def loss_of(module, data):
    x, y = data[:]
    with torch.no_grad():
        return float(functional.binary_cross_entropy_with_logits(module.model(x), y))


# Training


def test_the_loss_falls(tmp_path):
    module, held_out = Classifier(), records(200, seed=4)
    before = loss_of(module, held_out)
    fit(tmp_path, module, records(200), {"noise_multiplier": 0.5}, batch=20, seeded=True, max_epochs=3)
    assert loss_of(module, held_out) < 0.8 * before


def test_the_statement_is_that_of_the_rule_and_the_steps(tmp_path):
    private, trainer = fit(tmp_path)
    stated = private.engine.statement()
    assert private.engine.steps == trainer.global_step == 16
    assert stated.certified == cs.account(rule(), 40, 16, 1e-3).certified < math.inf
    assert float(trainer.callback_metrics["epsilon"]) == pytest.approx(stated.certified, rel=1e-6)
    assert not any("could not be checked" in reason for reason in stated.reasons)


def test_a_limit_of_batches_is_a_limit_of_steps(tmp_path):
    private, _ = fit(tmp_path, limit_train_batches=3)
    assert private.engine.steps == 6
    assert private.engine.statement().certified == cs.account(rule(), 40, 6, 1e-3).certified


def test_a_target_sets_the_noise_for_all_steps(tmp_path):
    private, _ = fit(tmp_path, privacy={"target_epsilon": 3.0, "target_delta": 1e-3})
    assert 2.99 < private.engine.statement().certified <= 3.0
    with pytest.raises(ValueError, match="max_epochs of the Trainer must be given"):
        fit(tmp_path, privacy={"target_epsilon": 3.0, "target_delta": 1e-3}, max_epochs=-1)


def test_correlated_noise_is_planned_for_all_steps(tmp_path):
    """A pass that is cut short goes on where the last step was made."""
    chosen = {"algorithm": "correlated", "poisson_sampling": False, "noise_multiplier": 4.0}
    private, _ = fit(tmp_path, privacy=chosen, limit_train_batches=5, callbacks=[Stop(7)])
    stated = private.engine.statement()
    assert (private.engine.steps, stated.steps) == (7, 16)
    assert stated.certified < math.inf
    resumed, _ = fit(tmp_path, privacy=chosen, ckpt_path=tmp_path / "stopped.ckpt")
    assert resumed.engine.statement().certified == stated.certified


def test_the_engine_decides_about_neighbours(tmp_path):
    private, _ = fit(tmp_path, engine=PrivacyEngine(adjacency="zero-out"))
    assert private.engine.statement().certified == cs.account(rule(), 40, 16, 1e-3, "zero-out").certified


def test_the_update_is_that_of_the_engine(tmp_path):
    """One step of plain gradient descent on all records, without noise."""

    class Descent(Classifier):
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1.0)

    module, data = Descent(), records(6)
    expected = 0
    for x, y in data:
        gradients = torch.autograd.grad(
            functional.binary_cross_entropy_with_logits(module.model(x[None]), y[None]), list(module.model.parameters())
        )
        gradient = flat(gradients)
        expected = expected - gradient * min(1, 0.1 / gradient.norm()) / 6
    before = flat(module.parameters())
    fit(tmp_path, module, data, {"noise_multiplier": 0.0, "clip": 0.1}, batch=6, max_epochs=1)
    assert torch.allclose(flat(module.parameters()) - before, expected, rtol=0, atol=1e-9)


class Scored(nn.Module):
    """A model that returns its loss, as those of transformers do."""

    def __init__(self):
        super().__init__()
        self.layers = network()

    def forward(self, x, y):
        scores = self.layers(x)
        return {"loss": functional.binary_cross_entropy_with_logits(scores, y), "scores": scores}


def test_a_loss_of_the_model_itself_is_checked(tmp_path):
    class Returning(Classifier):
        def __init__(self):
            super().__init__()
            self.model = Scored()

        def training_step(self, batch, number):
            return self.model(*batch)["loss"]

    private, _ = fit(tmp_path, Returning())
    assert private.engine.statement().certified == cs.account(rule(), 40, 16, 1e-3).certified < math.inf


def test_manual_optimization(tmp_path):
    class Manual(Classifier):
        automatic_optimization = False

        def training_step(self, batch, number):
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(super().training_step(batch, number))
            optimizer.step()

    private, _ = fit(tmp_path, Manual())
    assert private.engine.statement().certified == cs.account(rule(), 40, 16, 1e-3).certified


# Evaluation


class Watch(Callback):
    """Keeps what was on the model after each validation."""

    def __init__(self):
        self.seen = []

    def on_validation_end(self, trainer, pl_module):
        layers = [layer for layer in pl_module.modules() if getattr(layer, "activations", None)]
        samples = [p for p in pl_module.parameters() if getattr(p, "grad_sample", None) is not None]
        self.seen.append((len(layers), len(samples)))


def test_evaluation_leaves_nothing_and_counts_nothing(tmp_path):
    watch, val = Watch(), DataLoader(records(30, seed=3), batch_size=7)
    private, trainer = fit(tmp_path, callbacks=[watch], val=val)
    assert watch.seen == [(0, 0)] * 2
    assert private.engine.steps == 16
    module = trainer.lightning_module
    assert "model" not in module.__dict__  # the plain model is back
    assert type(module.model) is nn.Sequential


def test_evaluation_does_not_change_the_training(tmp_path):
    ends = []
    for val in (None, DataLoader(records(30, seed=3), batch_size=7)):
        module = Classifier()
        fit(tmp_path, module, seeded=True, val=val)
        ends.append(flat(module.parameters()))
    assert torch.equal(*ends)


# Checkpoints


class Stop(Callback):
    """Saves a checkpoint after a number of steps, and ends the training, as if it was interrupted there."""

    def __init__(self, after):
        self.after = after

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step == self.after:
            trainer.save_checkpoint(f"{trainer.default_root_dir}/stopped.ckpt")
            trainer.should_stop = True


@pytest.mark.parametrize("algorithm", [{}, {"algorithm": "dice", "residual_cap": 1.5}], ids=str)
@pytest.mark.parametrize("after", [5, 8])
def test_resuming_continues_bit_for_bit(tmp_path, after, algorithm):
    """The first checkpoint is within a pass, the second at its end."""
    whole, resumed = Classifier(), Classifier()
    first, _ = fit(tmp_path, whole, privacy=algorithm, seeded=True)
    fit(tmp_path, privacy=algorithm, seeded=True, callbacks=[Stop(after)])
    path = tmp_path / "stopped.ckpt"
    private, trainer = fit(tmp_path, resumed, privacy=algorithm, seeded=True, ckpt_path=path)
    assert torch.equal(flat(whole.parameters()), flat(resumed.parameters()))
    assert private.engine.steps == trainer.global_step == 16
    assert private.engine.statement().nominal == first.engine.statement().nominal < math.inf


def test_a_resumed_training_certifies_all_steps(tmp_path):
    fit(tmp_path, callbacks=[Stop(5)])
    private, _ = fit(tmp_path, ckpt_path=tmp_path / "stopped.ckpt")
    assert private.engine.statement().certified == cs.account(rule(), 40, 16, 1e-3).certified < math.inf


def test_a_budget_is_charged_once(tmp_path):
    """A training that is resumed is not charged again, nor to another file."""
    one, other = (
        cs.Budget(tmp_path / name, epsilon=50.0, delta=1e-2, adjacency="replace-one") for name in ("a.json", "b.json")
    )
    data = records()
    fit(tmp_path, data=data, privacy={"budget": one}, callbacks=[Stop(5)])
    spent = one.spent()
    private, _ = fit(tmp_path, data=data, privacy={"budget": one}, ckpt_path=tmp_path / "stopped.ckpt")
    assert one.spent() == spent
    assert private.engine.statement().certified < math.inf
    with pytest.raises(ValueError, match="privacy must have the budget .* was charged to, .*a.json, got"):
        fit(tmp_path, data=data, privacy={"budget": other}, ckpt_path=tmp_path / "stopped.ckpt")


def test_a_checkpoint_holds_a_plain_model_and_no_other_state_of_the_optimizer(tmp_path):
    fit(tmp_path, callbacks=[Stop(5)])
    saved = torch.load(tmp_path / "stopped.ckpt", weights_only=True)
    assert saved["optimizer_states"] == []
    assert set(saved["state_dict"]) == set(Classifier().state_dict())


def test_resuming_with_other_settings_is_refused(tmp_path):
    fit(tmp_path, callbacks=[Stop(5)])
    for other in ({"batch": 4}, {"privacy": {"noise_multiplier": 0.5}}, {"data": records(39)}):
        with pytest.raises(CheckpointError, match="ckpt_path has another"):
            fit(tmp_path, ckpt_path=tmp_path / "stopped.ckpt", **other)


def test_resuming_from_a_training_that_was_not_private_is_refused(tmp_path):
    trainer = trainer_of(tmp_path, Stop(3))
    trainer.fit(Classifier(), DataLoader(records(), batch_size=5))
    with pytest.raises(ValueError, match="ckpt_path must name a checkpoint of a private training"):
        fit(tmp_path, ckpt_path=tmp_path / "stopped.ckpt")


def test_a_fit_after_an_evaluated_checkpoint_is_another_training(tmp_path):
    """It would repeat the noise of the steps that the first training took after the checkpoint."""
    fit(tmp_path, callbacks=[Stop(5)])
    private, module = PrivateTraining({"noise_multiplier": 1.0, "delta": 1e-3}), Classifier()
    trainer, val = trainer_of(tmp_path, private), DataLoader(records(30, seed=3), batch_size=7)
    trainer.validate(module, val, ckpt_path=tmp_path / "stopped.ckpt", verbose=False)
    trainer.fit(module, DataLoader(records(), batch_size=5))
    assert private.engine.steps == trainer.global_step == 16


def test_the_best_model_has_the_statement_of_all_steps(tmp_path):
    best = ModelCheckpoint(tmp_path, monitor="loss")
    val = DataLoader(records(30, seed=3), batch_size=7)
    private, trainer = fit(tmp_path, callbacks=[best], val=val, enable_checkpointing=True)
    trainer.validate(dataloaders=val, ckpt_path="best")
    assert private.engine.steps == 16
    assert private.engine.statement().certified == cs.account(rule(), 40, 16, 1e-3).certified


# What is refused


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"accumulate_grad_batches": 2}, "accumulate_grad_batches of the Trainer must be 1, got 2"),
        ({"gradient_clip_val": 0.5}, "gradient_clip_val of the Trainer must be None, got 0.5"),
        ({"precision": "bf16-mixed"}, "precision of the Trainer must be '32-true' or '64-true', got 'bf16-mixed'"),
        ({"overfit_batches": 2}, "overfit_batches of the Trainer must be 0, got 2"),
        ({"reload_dataloaders_every_n_epochs": 1}, "reload_dataloaders_every_n_epochs of the Trainer must be 0"),
    ],
)
def test_settings_that_change_the_guarantee_are_refused(tmp_path, settings, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        fit(tmp_path, **settings)


def test_other_refusals(tmp_path):
    with pytest.raises(ValueError, match="Lightning needs a loss that is a tensor"):
        PrivateTraining({"noise_multiplier": 1.0, "grad_sample_mode": "ghost"})
    for kind in (LearningRateFinder, type("FineTuneFinder", (LearningRateFinder,), {})):
        with pytest.raises(ValueError, match=f"must not have {kind.__name__}"):
            fit(tmp_path, callbacks=[kind()])
    module = Classifier()
    module.net, module.model = module.model, None
    with pytest.raises(ValueError, match="attribute must name the model that training_step calls, .* got 'model'"):
        fit(tmp_path, module)


def test_a_callback_is_for_one_fit(tmp_path):
    private, _ = fit(tmp_path)
    with pytest.raises(ValueError, match="one training"):
        trainer_of(tmp_path, private).fit(Classifier(), DataLoader(records(), batch_size=5))


# Attacks: careless code that must not end with a finite ε


def test_the_hardest_record_is_refused(tmp_path):
    class Hardest(Classifier):
        def training_step(self, batch, number):
            x, y = batch
            return functional.binary_cross_entropy_with_logits(self.model(x), y, reduction="none").max()

    with pytest.raises(CheckError, match="mean or the sum of one loss per record"):
        fit(tmp_path, Hardest())


def test_a_model_that_is_called_past_the_checks_certifies_nothing(tmp_path):
    class Past(Classifier):
        def training_step(self, batch, number):
            x, y = batch
            return functional.binary_cross_entropy_with_logits(self._modules["model"](x), y)

    private, _ = fit(tmp_path, Past())
    assert private.engine.statement().certified == math.inf


def test_parameters_outside_of_the_model_are_refused(tmp_path):
    class Scaled(Classifier):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))

    with pytest.raises(ValueError, match="optimizer must hold parameters of the module only"):
        fit(tmp_path, Scaled())


def test_a_plain_step_is_refused(tmp_path):
    class Plain(Callback):
        def on_before_zero_grad(self, trainer, pl_module, optimizer):
            optimizer.original_optimizer.step()

    with pytest.raises(RuntimeError, match="must not step by itself"):
        fit(tmp_path, callbacks=[Plain()])


def test_seeds_certify_nothing(tmp_path):
    private, _ = fit(tmp_path, seeded=True)
    assert private.engine.statement().certified == math.inf > private.engine.statement().nominal
