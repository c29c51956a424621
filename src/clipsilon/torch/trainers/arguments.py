"""Checks of the arguments of trainers, which refuse what would change the guarantee."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

BITS = "rounding to fewer than 32 bits is not covered"
_CALLS = "gradients per record are measured at the layers' own calls"
ONE_PROCESS = "the trainer works in one process; wrap the model yourself and call PrivacyEngine for several"


class Setting(NamedTuple):
    """A setting of a trainer.

    Parameters
    ----------
    name : str
        Its name.
    expected
        The value that it must have.
    why : str
        The reason, and what to write instead.
    """

    name: str
    expected: Any
    why: str


_SETTINGS = [
    Setting("bf16", False, BITS),
    Setting("fp16", False, BITS),
    Setting("bf16_full_eval", False, f"the model would stay in half precision, and {BITS}"),
    Setting("fp16_full_eval", False, f"the model would stay in half precision, and {BITS}"),
    Setting("gradient_checkpointing", False, f"{_CALLS}; gradient_accumulation_steps saves memory, too"),
    Setting("torch_compile", False, _CALLS),
    Setting("use_liger_kernel", False, _CALLS),
    Setting("neftune_noise_alpha", None, "its noise gives no privacy, and hides layers from the checks"),
    Setting("auto_find_batch_size", False, "a batch that is drawn again, or another size, is not accounted for"),
    Setting("label_smoothing_factor", 0.0, "its mean is over all tokens of a batch; give compute_loss_func instead"),
    Setting("train_sampling_strategy", "random", "the engine draws the batches, all records alike"),
    Setting("include_num_input_tokens_seen", "no", "the sizes of batches are not private"),
    Setting("deepspeed", None, ONE_PROCESS),
    Setting("fsdp", None, ONE_PROCESS),
    Setting("parallelism_config", None, ONE_PROCESS),
]
_OWN_CLIP = 1.0  # the default of max_grad_norm, which users who leave it alone have
_TAKEN = ("module", "optimizer", "data_loader", "criterion", "epochs")


def private_arguments(args: Any, *, has_people: bool) -> Any:
    """Return the `TrainingArguments` to train with; raise ValueError if some would change the guarantee.

    The pieces of a batch are the trainer's own, the engine clips, and the private loader resumes within a pass by
    itself, so these three are switched off in the copy that is returned.
    """
    for setting in _SETTINGS:
        value = getattr(args, setting.name, setting.expected)
        if value != setting.expected and (value or setting.expected):
            raise ValueError(f"args.{setting.name} must be {setting.expected!r}, got {value!r}: {setting.why}.")
    if max(args.n_gpu, args.world_size) > 1:
        raise ValueError(
            f"args must be of one process and at most one graphics processor, got {args.world_size} and {args.n_gpu}: "
            f"{ONE_PROCESS}, or set CUDA_VISIBLE_DEVICES=0."
        )
    if args.max_grad_norm not in (0, _OWN_CLIP):
        raise ValueError(
            f"args.max_grad_norm must be left out, got {args.max_grad_norm!r}: it clips the mean of a batch; write "
            f"privacy={{'clip': {args.max_grad_norm!r}}} to clip each record."
        )
    if args.push_to_hub and "checkpoint" in str(getattr(args.hub_strategy, "value", args.hub_strategy)):
        raise ValueError(
            f"args.hub_strategy must be 'every_save' or 'end', got {args.hub_strategy!r}: checkpoints hold the state "
            "of the noise."
        )
    if has_people and args.gradient_accumulation_steps > 1:
        raise ValueError(
            f"args.gradient_accumulation_steps must be 1 with groups, got {args.gradient_accumulation_steps}: a batch "
            "must have all rows of its people."
        )
    changed = copy.copy(args)
    changed.per_device_train_batch_size *= changed.gradient_accumulation_steps
    changed.gradient_accumulation_steps, changed.max_grad_norm, changed.ignore_data_skip = 1, 0.0, True
    return changed


def check_privacy(privacy: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the engine; raise ValueError if some belong to the trainer, or the noise is missing."""
    if not isinstance(privacy, Mapping):
        raise TypeError(f"privacy must be a dictionary of arguments of make_private, got {privacy!r}.")
    taken = [name for name in _TAKEN if name in privacy]
    if taken:
        raise ValueError(f"privacy must not have {taken[0]}, which the trainer gives to the engine itself.")
    if "noise_multiplier" not in privacy and "target_epsilon" not in privacy:
        raise ValueError("privacy must have noise_multiplier, or target_epsilon and target_delta, got neither.")
    return dict(privacy)


def needs_length(privacy: Mapping[str, Any]) -> bool:
    """Return whether the noise depends on the planned number of epochs."""
    return "target_epsilon" in privacy or privacy.get("algorithm") == "correlated"


def check_charged(budget: Any, charged: Path | None) -> None:
    """Raise ValueError if a training that was resumed is not charged to the budget file that was given.

    Parameters
    ----------
    budget : Budget, path-like or None
        What `privacy` has.
    charged : Path or None
        The file that the planned steps were charged to before the checkpoint.
    """
    if budget is None or charged == Path(getattr(budget, "path", budget)).resolve():
        return
    raise ValueError(
        f"privacy must have the budget that the training before the checkpoint was charged to, {charged}, got "
        f"{budget!r}: a training that is resumed is not charged again."
    )


def check_datasets(train: Any, evaluation: Any) -> None:
    """Raise ValueError if a model would be evaluated on the records that it is trained on."""
    parts = evaluation.values() if isinstance(evaluation, Mapping) else [evaluation]
    if train is not None and any(part is train for part in parts):
        raise ValueError(
            "eval_dataset must be of other people than train_dataset, got the same data: logs, early stopping and the "
            "choice of the best model would use it without noise."
        )
