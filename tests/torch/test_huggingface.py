"""Private training in the loop of the Hugging Face `Trainer`: steps, statements, checkpoints, and what is refused."""

import copy
import json
import math
import pickle
import re

import pytest

torch = pytest.importorskip("torch")
for package in ("opacus", "transformers", "accelerate"):
    pytest.importorskip(package)

from torch.utils.data import DataLoader, Subset  # noqa: E402
from transformers import (  # noqa: E402
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    TrainerCallback,
    TrainingArguments,
)

import clipsilon as cs  # noqa: E402
from clipsilon.engine.checkpoint import CheckpointError  # noqa: E402
from clipsilon.torch import PrivacyEngine  # noqa: E402
from clipsilon.torch.state_check import CheckError  # noqa: E402
from clipsilon.torch.trainers.huggingface import PRIVATE_STATE, PrivateTrainer, record_losses  # noqa: E402

torch.set_num_threads(1)
LENGTH = 6


def texts(count=40, seed=0):
    """Sentences of six tokens, whose label is whether the first one is in the upper half of the vocabulary."""
    tokens = torch.randint(20, (count, LENGTH), generator=torch.Generator().manual_seed(seed))
    return [{"input_ids": row, "labels": int(row[0] >= 10)} for row in tokens]


def sentences(count=40, seed=0):
    """Sentences of two to six tokens, each the number after the one before; padding is not covered by the loss."""
    start = torch.randint(19, (count, 1), generator=torch.Generator().manual_seed(seed))
    tokens = (start + torch.arange(LENGTH)) % 19 + 1
    sizes = torch.randint(2, LENGTH + 1, (count,), generator=torch.Generator().manual_seed(seed + 1))
    covered = torch.arange(LENGTH) < sizes[:, None]
    rows = zip(tokens * covered, covered, strict=True)
    return [
        {"input_ids": row, "attention_mask": mask.long(), "labels": torch.where(mask, row, -100)} for row, mask in rows
    ]


def classifier(dropout=0.0):
    torch.manual_seed(0)
    sizes = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    rest = {"intermediate_size": 8, "max_position_embeddings": LENGTH, "hidden_dropout_prob": dropout}
    return BertForSequenceClassification(BertConfig(**sizes, **rest, attention_probs_dropout_prob=dropout))


def language_model(tied=True):
    torch.manual_seed(0)
    sizes = {"vocab_size": 20, "n_positions": LENGTH, "n_embd": 8, "n_layer": 1, "n_head": 2}
    rest = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(**sizes, **rest, tie_word_embeddings=tied))


def arguments(folder, **settings):
    chosen = {
        "per_device_train_batch_size": 8,
        "max_steps": 6,
        "learning_rate": 0.01,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "logging_steps": 2,
    }
    return TrainingArguments(output_dir=str(folder), **{**chosen, **settings})


def trainer_of(folder, model=None, data=None, privacy=None, kind=PrivateTrainer, others=None, **settings):
    chosen = {"noise_multiplier": 1.0, "delta": 1e-3, **(privacy or {})}
    chosen = chosen if "target_epsilon" not in chosen else privacy
    return kind(
        classifier() if model is None else model,
        arguments(folder, **settings),
        train_dataset=texts() if data is None else data,
        privacy=chosen,
        **(others or {}),
    )


def seeds():
    return {"noise_generator": torch.Generator().manual_seed(1)}


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def rule(batch, noise_multiplier=1.0):
    return cs.DPSGD(cs.schedules.Constant(1.0), clip=1.0, noise_std=noise_multiplier / batch, batch=batch)


# Training


@pytest.mark.parametrize("model", [classifier, language_model])
def test_the_loss_falls(tmp_path, model):
    make = texts if model is classifier else sentences
    data, held_out = make(200), make(100, seed=5)
    privacy = {"noise_multiplier": 0.3, **seeds()}
    settings = {"max_steps": 40, "per_device_train_batch_size": 40, "learning_rate": 0.03, "data_seed": 0}
    trainer = trainer_of(tmp_path, model(), data, privacy, others={"eval_dataset": held_out}, **settings)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < before - 0.05


def test_the_statement_is_that_of_the_rule_and_the_steps(tmp_path):
    trainer = trainer_of(tmp_path)
    metrics = trainer.train().metrics
    stated = trainer.engine.statement()
    assert trainer.engine.steps == 6
    assert stated.certified == cs.account(rule(8), 40, 6, 1e-3).certified < math.inf
    assert (metrics["epsilon"], metrics["delta"]) == (stated.certified, 1e-3)
    assert trainer.state.log_history[-1]["epsilon"] == stated.certified
    assert not any("could not be checked" in reason for reason in stated.reasons)


def test_a_model_of_language_is_checked_as_a_whole(tmp_path):
    trainer = trainer_of(tmp_path, language_model(), sentences())
    trainer.train()
    stated = trainer.engine.statement()
    assert stated.certified == cs.account(rule(8), 40, 6, 1e-3).certified < math.inf
    assert not any("could not be checked" in reason for reason in stated.reasons)


def test_dropout_is_allowed(tmp_path):
    trainer = trainer_of(tmp_path, classifier(dropout=0.2))
    trainer.train()
    assert trainer.engine.statement().certified < math.inf


def test_a_target_sets_the_noise_for_all_steps(tmp_path):
    privacy = {"target_epsilon": 3.0, "target_delta": 1e-3}
    trainer = trainer_of(tmp_path, privacy=privacy, max_steps=-1, num_train_epochs=1.5)
    stated = trainer.get_train_dataloader() and trainer.engine.statement(steps=10)
    assert 2.99 < stated.certified <= 3.0
    trainer.train()
    assert trainer.engine.steps == 8
    assert trainer.engine.statement().certified < 3.0


CORRELATED = {"algorithm": "correlated", "poisson_sampling": False, "noise_multiplier": 4.0}


def test_correlated_noise_is_planned_for_all_steps(tmp_path):
    """Two passes of five steps, of which six are taken: pieces, evaluation and a checkpoint change nothing."""
    data, size = texts(), {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    evaluated = {"others": {"eval_dataset": texts(30, seed=7)}, "eval_strategy": "steps", "eval_steps": 2}
    trainer = trainer_of(tmp_path / "a", data=data, privacy=CORRELATED, **size, **evaluated)
    trainer.train()
    stated = trainer.engine.statement()
    assert (trainer.engine.steps, stated.steps) == (6, 10)
    assert stated.certified < math.inf
    interrupted(tmp_path / "b", 3, privacy=CORRELATED)
    resumed = trainer_of(tmp_path / "b", classifier(0.2), privacy=CORRELATED)
    resumed.train(resume_from_checkpoint=True)
    assert (resumed.engine.steps, resumed.engine.statement().certified) == (6, stated.certified)


def test_the_engine_decides_about_neighbours(tmp_path):
    trainer = trainer_of(tmp_path, others={"engine": PrivacyEngine(adjacency="zero-out")})
    trainer.train()
    assert trainer.engine.statement().certified == cs.account(rule(8), 40, 6, 1e-3, "zero-out").certified


def test_every_call_of_train_counts(tmp_path):
    trainer = trainer_of(tmp_path)
    trainer.train()
    trainer.train()
    assert trainer.engine.steps == 12
    assert trainer.engine.statement().certified == cs.account(rule(8), 40, 12, 1e-3).certified


def update_of(folder, model, data, privacy=None, **settings):
    """Return the change of the parameters by one step of plain gradient descent without noise, on all records."""
    privacy = {"noise_multiplier": 0.0, "clip": 0.05, **(privacy or {})}
    size = {"max_steps": 1, "optim": "sgd", "learning_rate": 1.0, "lr_scheduler_type": "constant", **settings}
    size = {"per_device_train_batch_size": len(data), **size}
    before = flat(model)
    trainer_of(folder, model, data, privacy, **size).train()
    return flat(model) - before


def test_a_record_of_language_has_the_mean_over_its_own_tokens(tmp_path):
    data, model = sentences(12), language_model().double()
    expected = 0
    for record in data:
        inputs = {name: value[None] for name, value in record.items()}
        model.zero_grad()
        model(**inputs).loss.backward()  # of one record: the mean over its tokens
        gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
        expected = expected - gradient * min(1, 0.05 / gradient.norm()) / len(data)
    found = update_of(tmp_path, model, data)
    assert torch.allclose(found, expected, rtol=0, atol=1e-6)
    assert found.norm() > 1e-3


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_gradients_accumulated_over_pieces_are_those_of_the_batch(tmp_path, mode):
    data, privacy = sentences(12), {"grad_sample_mode": mode}
    whole = update_of(tmp_path / "a", language_model(tied=False).double(), data, privacy)
    settings = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 3}
    pieces = update_of(tmp_path / "b", language_model(tied=False).double(), data, privacy, **settings)
    assert torch.allclose(whole, pieces, rtol=0, atol=1e-6)
    assert whole.norm() > 1e-3


def test_pieces_count_as_one_step_of_one_batch(tmp_path):
    trainer = trainer_of(tmp_path, per_device_train_batch_size=2, gradient_accumulation_steps=4)
    trainer.train()
    assert trainer.engine.steps == trainer.state.global_step == 6
    assert trainer.engine.statement().certified == cs.account(rule(8), 40, 6, 1e-3).certified


def test_ghost_clipping_makes_the_update_of_hooks(tmp_path):
    for make, data in ((classifier, texts(12)), (lambda: language_model(tied=False), sentences(12))):
        hooks = update_of(tmp_path / "a", make().double(), data)
        ghost = update_of(tmp_path / "b", make().double(), data, {"grad_sample_mode": "ghost"})
        assert torch.allclose(hooks, ghost, rtol=0, atol=1e-5)


def test_a_loss_of_the_user_has_one_entry_per_record_with_ghost_clipping(tmp_path):
    def losses(outputs, labels, num_items_in_batch):
        return (outputs.logits[:, 1] - labels).square()

    others = {"compute_loss_func": losses}
    trainer = trainer_of(tmp_path, privacy={"grad_sample_mode": "ghost"}, others=others)
    trainer.train()
    assert trainer.engine.statement().certified < math.inf


# Evaluation


class Watch(TrainerCallback):
    """Keeps what was on the model after each evaluation during the training."""

    def __init__(self):
        self.seen = []

    def on_evaluate(self, args, state, control, model=None, **kwargs):
        layers = [layer for layer in model.modules() if getattr(layer, "activations", None)]
        samples = [p for p in model.parameters() if getattr(p, "grad_sample", None) is not None]
        self.seen.append(
            (len(layers), len(samples), all(p.grad is None or not p.grad.any() for p in model.parameters()))
        )


def test_evaluation_leaves_nothing_and_counts_nothing(tmp_path):
    watch, others = Watch(), {"eval_dataset": texts(30, seed=7)}
    trainer = trainer_of(tmp_path, others={**others, "callbacks": [watch]}, eval_strategy="steps", eval_steps=2)
    trainer.train()
    trainer.evaluate()
    trainer.predict(texts(10, seed=8))
    assert watch.seen == [(0, 0, True)] * 4
    assert trainer.engine.steps == 6
    assert trainer.engine.statement().certified == cs.account(rule(8), 40, 6, 1e-3).certified


def test_evaluation_does_not_change_the_training(tmp_path):
    ends = []
    for others, settings in (
        ({}, {}),
        ({"eval_dataset": texts(30, seed=7)}, {"eval_strategy": "steps", "eval_steps": 1}),
    ):
        trainer = trainer_of(tmp_path, privacy=seeds(), data_seed=0, others=others, **settings)
        trainer.train()
        ends.append(flat(trainer.model))
    assert torch.equal(*ends)


def test_training_losses_are_logged_only_where_wanted(tmp_path):
    for wanted in (False, True):
        trainer = trainer_of(tmp_path / str(wanted), others={"log_loss": wanted}, save_strategy="steps", save_steps=6)
        output = trainer.train()
        metrics = output.metrics
        assert math.isfinite(output.training_loss) is wanted
        state = json.loads((tmp_path / str(wanted) / "checkpoint-6" / "trainer_state.json").read_text("utf-8"))
        assert any("loss" in entry for entry in state["log_history"]) is wanted
        assert ("train_loss" in metrics) is wanted
        assert state["total_flos"] == 0  # they would show how many records were drawn
        assert not any("grad_norm" in entry and not wanted for entry in state["log_history"])


# Checkpoints


class Stop(TrainerCallback):
    """Ends the training after a number of steps, as if it was interrupted after a checkpoint."""

    def __init__(self, after):
        self.after = after

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step >= self.after


def interrupted(folder, after, **more):
    settings = {"save_strategy": "steps", "save_steps": 1, **more}
    privacy = settings.pop("privacy", {})
    trainer = trainer_of(folder, classifier(0.2), privacy=privacy, others={"callbacks": [Stop(after)]}, **settings)
    trainer.train()
    return trainer


@pytest.mark.parametrize("algorithm", [{}, {"algorithm": "dice", "residual_cap": 1.5}], ids=str)
@pytest.mark.parametrize("after", [3, 5])
def test_resuming_continues_bit_for_bit(tmp_path, after, algorithm):
    """Five steps are a pass: the first checkpoint is within one, the second at its end."""
    whole = trainer_of(tmp_path / "a", classifier(0.2), privacy={**algorithm, **seeds()}, max_steps=8, data_seed=0)
    whole.train()
    interrupted(tmp_path / "b", after, max_steps=8, privacy={**algorithm, **seeds()}, data_seed=0)
    settings = {"max_steps": 8, "data_seed": 0}
    torch.manual_seed(9)  # which the checkpoint restores
    resumed = trainer_of(tmp_path / "b", classifier(0.2), privacy={**algorithm, **seeds()}, **settings)
    resumed.train(resume_from_checkpoint=True)
    assert torch.equal(flat(resumed.model), flat(whole.model))
    assert resumed.engine.steps == 8
    assert resumed.engine.statement().nominal == whole.engine.statement().nominal < math.inf


def test_a_resumed_training_certifies_all_steps(tmp_path):
    interrupted(tmp_path, 3)
    resumed = trainer_of(tmp_path, classifier(0.2))
    metrics = resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3")).metrics
    assert metrics["epsilon"] == cs.account(rule(8), 40, 6, 1e-3).certified


def test_a_budget_is_charged_once(tmp_path):
    budget = cs.Budget(tmp_path / "b.json", epsilon=50.0, delta=1e-2, adjacency="replace-one")
    interrupted(tmp_path, 3, privacy={"budget": budget})
    spent = budget.spent()
    resumed = trainer_of(tmp_path, classifier(0.2), privacy={"budget": budget})
    resumed.train(resume_from_checkpoint=True)
    assert budget.spent() == spent


def test_a_budget_that_was_not_charged_is_refused(tmp_path):
    """A training that is resumed is not charged again, so nothing would be."""
    interrupted(tmp_path, 3)
    budget = cs.Budget(tmp_path / "b.json", epsilon=50.0, delta=1e-2, adjacency="replace-one")
    for given in (budget, tmp_path / "b.json"):
        with pytest.raises(ValueError, match="privacy must have the budget .* was charged to, None, got"):
            trainer_of(tmp_path, classifier(0.2), privacy={"budget": given}).train(resume_from_checkpoint=True)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copied_model_does_not_tell_the_size_of_a_batch(tmp_path, copied):
    trainer = trainer_of(tmp_path)
    trainer.train()
    hooks = [hook for layer in copied(trainer.model).modules() for hook in layer._forward_pre_hooks.values()]
    assert hooks
    assert {hook.__self__.count for hook in hooks} == {0}
    assert len({id(hook.__self__) for hook in hooks}) == 1


def test_the_own_files_of_the_optimizer_are_not_written(tmp_path):
    interrupted(tmp_path, 1)
    names = {path.name for path in (tmp_path / "checkpoint-1").iterdir()}
    assert PRIVATE_STATE in names
    assert not names & {"optimizer.pt", "optimizer.bin", "scheduler.pt"}


def test_resuming_with_other_settings_is_refused(tmp_path):
    interrupted(tmp_path, 3)
    for other in ({"per_device_train_batch_size": 4}, {"privacy": {"noise_multiplier": 0.5}}, {"data": texts(39)}):
        with pytest.raises(CheckpointError, match="has another"):
            trainer_of(tmp_path, classifier(0.2), **other).train(resume_from_checkpoint=True)


def test_resuming_without_the_private_state_is_refused(tmp_path):
    interrupted(tmp_path, 3, save_only_model=True)
    with pytest.raises(ValueError, match=f"must name a folder with {PRIVATE_STATE}"):
        trainer_of(tmp_path, classifier(0.2)).train(resume_from_checkpoint=True)
    with pytest.raises(ValueError, match=f"must name a folder with {PRIVATE_STATE}"):
        trainer_of(tmp_path / "empty", classifier(0.2)).train(resume_from_checkpoint=True)


def test_two_trainings_from_one_checkpoint_certify_nothing(tmp_path):
    interrupted(tmp_path, 3)
    for certified in (True, False):
        resumed = trainer_of(tmp_path, classifier(0.2))
        resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
        assert (resumed.engine.statement().certified < math.inf) is certified


def test_the_best_model_has_the_statement_of_all_steps(tmp_path):
    settings = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    settings |= {"load_best_model_at_end": True, "metric_for_best_model": "eval_loss"}
    trainer = trainer_of(tmp_path, others={"eval_dataset": texts(30, seed=7)}, **settings)
    trainer.train()
    assert trainer.engine.steps == 6
    assert trainer.engine.statement().certified == cs.account(rule(8), 40, 6, 1e-3).certified
    trainer.train()
    assert trainer.engine.steps == 12


# What is refused


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bf16": True}, "args.bf16 must be False, got True: rounding"),
        ({"bf16_full_eval": True}, "args.bf16_full_eval must be False"),
        ({"gradient_checkpointing": True}, "args.gradient_checkpointing must be False"),
        ({"max_grad_norm": 0.5}, "write privacy={'clip': 0.5} to clip each record"),
        ({"label_smoothing_factor": 0.1}, "args.label_smoothing_factor must be 0.0, got 0.1"),
        ({"train_sampling_strategy": "group_by_length"}, "args.train_sampling_strategy must be 'random'"),
        ({"auto_find_batch_size": True}, "args.auto_find_batch_size must be False"),
        ({"neftune_noise_alpha": 5.0}, "args.neftune_noise_alpha must be None"),
        ({"include_num_input_tokens_seen": "all"}, "args.include_num_input_tokens_seen must be 'no'"),
        ({"torch_compile": True}, "args.torch_compile must be False"),
    ],
)
def test_settings_that_change_the_guarantee_are_refused(tmp_path, settings, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        trainer_of(tmp_path, **settings)


def test_harmless_settings_are_allowed(tmp_path):
    settings = {"dataloader_drop_last": True, "max_grad_norm": 0.0, "weight_decay": 0.1, "seed": 5, "warmup_steps": 2}
    trainer = trainer_of(tmp_path, data=texts(41), **settings)
    trainer.train()
    assert trainer.engine.statement().certified == cs.account(rule(8), 41, 6, 1e-3).certified


@pytest.mark.parametrize(
    ("privacy", "message"),
    [
        ({}, "privacy must have noise_multiplier, or target_epsilon and target_delta"),
        ({"noise_multiplier": 1.0, "epochs": 3}, "privacy must not have epochs"),
        ({"noise_multiplier": 1.0, "data_loader": None}, "privacy must not have data_loader"),
    ],
)
def test_wrong_privacy_is_refused(tmp_path, privacy, message):
    with pytest.raises(ValueError, match=message):
        PrivateTrainer(classifier(), arguments(tmp_path), train_dataset=texts(), privacy=privacy)


def test_other_refusals(tmp_path):
    data = texts()
    with pytest.raises(ValueError, match="eval_dataset must be of other people than train_dataset"):
        trainer_of(tmp_path, data=data, others={"eval_dataset": {"train": data}})
    with pytest.raises(ValueError, match="model_init must be None"):
        trainer_of(tmp_path, others={"model_init": classifier})
    with pytest.raises(ValueError, match="trial must be None"):
        trainer_of(tmp_path).train(trial={"learning_rate": 1.0})
    with pytest.raises(TypeError, match="privacy must be a dictionary"):
        PrivateTrainer(classifier(), arguments(tmp_path), privacy=1.0)
    with pytest.raises(ValueError, match="train_dataset must be given to train, got None"):
        PrivateTrainer(classifier(), arguments(tmp_path), privacy={"noise_multiplier": 1.0}).train()
    groups = {"groups": list(range(40))}
    with pytest.raises(ValueError, match="gradient_accumulation_steps must be 1 with groups"):
        trainer_of(tmp_path, privacy=groups, gradient_accumulation_steps=2)


def test_people_with_several_rows(tmp_path):
    trainer = trainer_of(tmp_path, privacy={"groups": [k // 2 for k in range(40)]}, per_device_train_batch_size=4)
    trainer.train()
    stated = trainer.engine.statement()
    assert (stated.unit, stated.records) == ("person", 20)
    assert stated.certified == cs.account(rule(4), 20, 6, 1e-3).certified


# Attacks: careless code that must not end with a finite ε


class TokenMean(PrivateTrainer):
    """Averages over the tokens of all records."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")[:, 1:]
        logits = model(**inputs).logits[:, :-1]
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


class OwnModel(PrivateTrainer):
    """Calls the plain model."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return self.model(**inputs).loss


class OwnLoader(PrivateTrainer):
    """Draws its own batches."""

    def get_train_dataloader(self):
        return DataLoader(self.train_dataset, batch_size=8, shuffle=True, collate_fn=self.data_collator)


class Largest(PrivateTrainer):
    """Trains on the hardest record of each batch."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        return record_losses(model(**inputs).logits, labels, shift=False).max()


class PlainStep(TrainerCallback):
    """Steps with gradients that have neither clip nor noise."""

    def on_pre_optimizer_step(self, args, state, control, optimizer=None, **kwargs):
        optimizer.optimizer.original_optimizer.step()


class SecondStep(TrainerCallback):
    """Steps twice per batch."""

    def on_pre_optimizer_step(self, args, state, control, optimizer=None, **kwargs):
        optimizer.step()


def test_a_mean_over_all_tokens_is_refused(tmp_path):
    trainer = trainer_of(tmp_path, language_model(), sentences(), kind=TokenMean)
    with pytest.raises(CheckError, match="average over each record's own tokens first"):
        trainer.train()
    assert trainer.engine.statement(steps=1).certified == math.inf


def test_the_hardest_record_is_refused(tmp_path):
    with pytest.raises(CheckError, match="mean or the sum of one loss per record"):
        trainer_of(tmp_path, kind=Largest).train()


def test_a_model_that_is_called_past_the_checks_certifies_nothing(tmp_path):
    trainer = trainer_of(tmp_path, kind=OwnModel)
    trainer.train()
    assert trainer.engine.statement().certified == math.inf


def test_batches_of_another_loader_certify_nothing(tmp_path):
    trainer = trainer_of(tmp_path, kind=OwnLoader)
    with pytest.warns(cs.PrivacyWarning, match="did not draw"):
        assert trainer.train().metrics["epsilon"] == math.inf


@pytest.mark.parametrize(
    ("callback", "message"), [(PlainStep, "must not step by itself"), (SecondStep, "no gradient per record")]
)
def test_callbacks_that_step_are_refused(tmp_path, callback, message):
    with pytest.raises(RuntimeError, match=message):
        trainer_of(tmp_path, others={"callbacks": [callback()]}).train()


def test_an_optimizer_that_steps_during_the_backward_pass_is_refused(tmp_path):
    for register in (torch.Tensor.register_post_accumulate_grad_hook, torch.Tensor.register_hook):
        model = classifier()
        register(model.classifier.weight, lambda _: None)
        with pytest.raises(ValueError, match="must have no hooks .* got one on classifier.weight"):
            trainer_of(tmp_path, model).train()


def test_another_model_in_the_place_of_the_private_one_is_refused(tmp_path):
    trainer = trainer_of(tmp_path)
    trainer.get_train_dataloader()
    trainer.model = copy.deepcopy(trainer.model)
    with pytest.raises(RuntimeError, match="trainer.model must stay the model that was given"):
        trainer.train()


def test_seeds_certify_nothing(tmp_path):
    for seeded in ({"data_seed": 0}, {"privacy": seeds()}):
        trainer = trainer_of(tmp_path, **seeded)
        trainer.train()
        assert trainer.engine.statement().certified == math.inf > trainer.engine.statement().nominal


def test_two_trainers_on_the_same_records_certify_nothing(tmp_path):
    data = texts()
    for certified in (True, False):
        trainer = trainer_of(tmp_path, data=Subset(data, range(30)))
        trainer.train()
        assert (trainer.engine.statement().certified < math.inf) is certified
