"""Invalid input to clipsilon.torch raises one clear sentence, before anything changes."""

import inspect
import re
import subprocess
import sys

import opacus
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, Subset

from clipsilon import PrivacyWarning
from clipsilon.engine.checkpoint import CheckpointError
from clipsilon.torch import PrivacyEngine
from private_training import Training, network, records


class Endless(IterableDataset):
    def __iter__(self):
        yield from iter(())


def private(model=None, loader=None, engine=None, optimizer=None, **settings):
    model = network() if model is None else model
    return (engine or PrivacyEngine()).make_private(
        module=model,
        optimizer=optimizer or torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(records(), batch_size=5) if loader is None else loader,
        **{"noise_multiplier": 1.0, **settings},
    )


SETTINGS = {
    "criterion must be given for grad_sample_mode='ghost'": {"grad_sample_mode": "ghost"},
    "grad_sample_mode must be one of 'hooks', 'ghost', got 'ew'": {"grad_sample_mode": "ew"},
    "loss_reduction must be one of 'mean', 'sum', got 'none'": {"loss_reduction": "none"},
    "algorithm must be one of 'dpsgd', 'dice', 'correlated', got 'adam'": {"algorithm": "adam"},
    "clipping must be one of 'flat', 'automatic', 'per-layer', 'adaptive', got 'per_layer'": {"clipping": "per_layer"},
    "clip must be a number above 0, got 0": {"clip": 0},
    r"error_clip must be at least clip \(1.0\), else the error is not fed back, got 0.5": {
        "algorithm": "dice",
        "error_clip": 0.5,
    },
    r"residual_cap must be at least clip \(1.0\), got 0.5": {"algorithm": "dice", "residual_cap": 0.5},
    "residual_cap must be None for algorithm='dpsgd', got 2.0": {"residual_cap": 2.0},
    "error_clip must be None for algorithm='dpsgd', got 2.0": {"error_clip": 2.0},
    "residual_cap must be None for automatic clipping": {
        "algorithm": "dice",
        "residual_cap": 2.0,
        "clipping": "automatic",
    },
    "noise_multiplier must be a number of at least 0, got -1": {"noise_multiplier": -1},
    "poisson_sampling must be True or False, got 'yes'": {"poisson_sampling": "yes"},
}


@pytest.mark.parametrize("message", SETTINGS)
def test_settings(message):
    with pytest.raises(ValueError, match=f"^{message}"):
        private(**SETTINGS[message])


@pytest.mark.parametrize("wrap", [lambda data: data, lambda data: Subset(data, range(5))])
def test_a_subset_that_repeats_a_record_needs_groups(wrap):
    """A record would take part more often than is accounted for."""
    items = [0, 1, 2, 3, -40, 5]
    loader = DataLoader(wrap(Subset(records(), items)), batch_size=2)
    with pytest.raises(ValueError, match="must have each record once, .* got a Subset with repeated indices"):
        private(loader=loader)
    people = [item % 40 for item in items][: len(loader.dataset)]
    private(loader=loader, groups=people)
    private(loader=DataLoader(Subset(records(), [3, 1, -1]), batch_size=2))


def frozen_normalisation():
    model = nn.Sequential(nn.BatchNorm1d(4, affine=False), nn.Linear(4, 1))
    return model.double()


MODELS = {
    r"module must treat records one by one, .* got BatchNorm1d \(0\), .*: use nn.GroupNorm;": lambda: nn.Sequential(
        nn.BatchNorm1d(4)
    ),
    r"module must treat records one by one, .* got BatchNorm1d \(0\), .*: use nn.GroupNorm\.$": frozen_normalisation,
    "module must treat records one by one, .* got InstanceNorm1d .*: leave track_running_stats out": lambda: (
        nn.InstanceNorm1d(4, track_running_stats=True)
    ),
    r"module must be in training mode, got one in evaluation mode; call module.train\(\)": lambda: network().eval(),
    "module must have parameters to train, got none": lambda: nn.ReLU(),
}


def test_shared_parameters():
    """Ghost mode measures the gradient of a layer as rows or per record, and adds up parts of one kind only."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Conv1d(4, 4, 1))
    model[1].bias = model[0].bias
    with pytest.raises(
        ValueError, match=r"got Linear \(0\), which shares parameters with Conv1d \(1\): use hooks mode"
    ):
        private(model, criterion=nn.MSELoss(), grad_sample_mode="ghost")
    private(model)


@pytest.mark.parametrize("message", MODELS)
def test_models(message):
    model = MODELS[message]()
    with pytest.raises(ValueError, match=f"^{message}"):
        private(model, optimizer=torch.optim.SGD([torch.zeros(1)], lr=0.1))
    assert not any(module._forward_hooks for module in model.modules())


def test_a_module_of_another_type():
    with pytest.raises(TypeError, match="module must be a Module"):
        private("model", optimizer=torch.optim.SGD([torch.zeros(1)], lr=0.1))


def test_loaders():
    with pytest.raises(ValueError, match="data_loader must be a DataLoader of a dataset with a length, got .*Endless"):
        private(loader=DataLoader(Endless(), batch_size=5))
    with pytest.raises(ValueError, match="data_loader must be a DataLoader of a dataset with a length"):
        private(loader=[records()[:]])
    with pytest.raises(ValueError, match="data_loader.batch_size must be a whole number of at least 1, got None"):
        private(loader=DataLoader(records(), batch_size=None))
    with pytest.raises(ValueError, match=r"batch must be at most the number of records \(40\), got 41"):
        private(loader=DataLoader(records(), batch_size=41))


def test_optimisers():
    model = network()
    with pytest.raises(ValueError, match="optimizer must hold parameters of the module only"):
        private(model, optimizer=torch.optim.SGD(network().parameters(), lr=0.1))
    with pytest.raises(ValueError, match="optimizer must have all of the module's parameters that require gradients"):
        private(model, optimizer=torch.optim.SGD(model[0].parameters(), lr=0.1))
    _, twice, _ = private()
    with pytest.raises(ValueError, match="optimizer must be a plain torch optimiser, got float"):
        private(optimizer=0.1)
    with pytest.raises(ValueError, match="optimizer must be a plain torch optimiser, got HooksOptimizer"):
        private(model, optimizer=twice)
    with pytest.raises(ValueError, match="optimizer must need one gradient per step, got LBFGS"):
        private(model, optimizer=torch.optim.LBFGS(model.parameters()))


def test_engines():
    engine = PrivacyEngine()
    with pytest.raises(ValueError, match="make_private must be called first"):
        engine.get_epsilon(1e-5)
    model = network()
    private(model, engine=engine)
    with pytest.raises(ValueError, match="A PrivacyEngine is for one training"):
        private(engine=engine)
    with pytest.raises(ValueError, match="module must not be private already"):
        private(model)
    with pytest.raises(ValueError, match="adjacency must be one of"):
        PrivacyEngine(adjacency="swap")
    with pytest.raises(ValueError, match="noise_multiplier must be left out"):
        engine.make_private_with_epsilon(target_epsilon=1, target_delta=1e-5, epochs=1, noise_multiplier=1.0)


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_a_step_follows_every_backward_pass(mode):
    training = Training(mode)
    batch = training.loader.dataset[:]
    with pytest.raises(RuntimeError, match="backward pass|no gradient per record"):
        training.optimizer.step()
    training.loss(batch).backward()
    with pytest.raises(RuntimeError, match=r"optimizer.step\(\) must follow every backward pass"):
        training.loss(batch).backward() or training.optimizer.step()


def test_a_batch_that_is_in_the_error_cannot_be_forgotten():
    training = Training("ghost")
    training.loss(training.loader.dataset[:]).backward()
    with pytest.raises(RuntimeError, match="step\\(\\) must come before optimizer.zero_grad"):
        training.optimizer.zero_grad()


def parts(training, path):
    return {"path": path, "module": training.private, "optimizer": training.optimizer}


def test_checkpoints(tmp_path):
    dice = Training(algorithm="dice").run(1)
    dice.engine.save_checkpoint(**parts(dice, tmp_path / "dice"))
    before = dice.theta()
    others = {
        "another algorithm: DiceSGD with SGD, and not DPSGD with SGD": Training(algorithm="dpsgd"),
        "another clip": Training(clip=0.5, error_clip=1.0),
        "another feedback": Training(residual_cap=2.0),
        "another noise": Training(noise_multiplier=1.0),
        "another sampling": Training(poisson_sampling=False),
        "another records": Training(data=records(30)),
        "of a model with other parameters": Training(model=nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)).double()),
    }
    for message, other in others.items():
        theta = other.theta()
        with pytest.raises(CheckpointError, match=message):
            other.engine.load_checkpoint(**parts(other, tmp_path / "dice"))
        assert torch.equal(other.theta(), theta)
        assert other.engine.steps == 0
    (tmp_path / "torn").write_bytes((tmp_path / "dice").read_bytes()[:500])
    torch.save({"weights": 1}, tmp_path / "other")
    for name in ("torn", "other"):
        with pytest.raises(CheckpointError, match="is not a checkpoint"):
            dice.engine.load_checkpoint(**parts(dice, tmp_path / name))
    assert torch.equal(dice.theta(), before)
    assert (tmp_path / "dice").stat().st_mode & 0o077 == 0


def test_a_state_within_a_batch_is_not_saved(tmp_path):
    training = Training("ghost")
    training.loss(training.loader.dataset[:]).backward()
    with pytest.raises(RuntimeError, match="between steps only"):
        training.engine.save_checkpoint(**parts(training, tmp_path / "c"))


WITHOUT = """
import importlib.abc, sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name in ("torch", "opacus"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
import clipsilon
try:
    import clipsilon.torch
except ImportError as error:
    print(error)
"""


def test_clipsilon_does_not_need_torch():
    shown = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True)
    assert shown.stdout == "clipsilon.torch needs PyTorch and Opacus: run pip install 'clipsilon[torch]'.\n"


def test_clipsilon_alone_does_not_import_torch():
    code = "import sys, clipsilon; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def test_a_seed_is_not_a_generator():
    with pytest.raises(TypeError, match="^noise_generator must be a Generator, got <class 'int'>"):
        private(noise_generator=5)


def test_add_remove_neighbours_are_refused_at_once():
    """Not only by the statement, after the training: the rate follows from the number of records."""
    message = "^adjacency must be 'replace-one' or 'zero-out' here, where settings follow from the number of records"
    with pytest.raises(ValueError, match=message):
        PrivacyEngine(adjacency="add-remove")


def arguments_of(function):
    """Return the names of a function's arguments, without those that it takes as they come."""
    found = inspect.signature(function).parameters.values()
    return {p.name for p in found if p.kind is not p.VAR_KEYWORD} - {"self"}


# Arguments that Opacus's methods pass on to its accountants and optimisers, or had in other versions.
PASSED_ON = {
    "get_epsilon": {"alphas"},
    "make_private": {"strict", "normalize_clipping", "target_unclipped_quantile", "min_clipbound", "max_clipbound"},
    "make_private_with_epsilon": {"total_steps", "clipbound_learning_rate", "unclipped_num_std"},
}


@pytest.mark.parametrize(
    "name",
    ["__init__", "make_private", "make_private_with_epsilon", "get_epsilon", "save_checkpoint", "load_checkpoint"],
)
def test_names_of_opacus_are_understood_or_answered(name):
    """Each argument of Opacus's engine exists here, or is refused with a sentence that says what to write."""
    own = arguments_of(getattr(PrivacyEngine, name))
    if name == "make_private_with_epsilon":
        own |= arguments_of(PrivacyEngine.make_private)
    others = (arguments_of(getattr(opacus.PrivacyEngine, name)) | PASSED_ON.get(name, set())) - own
    assert others
    for other in others:
        call = PrivacyEngine if name == "__init__" else getattr(PrivacyEngine(), name)
        given = {"target_epsilon": 1.0, "target_delta": 1e-5, "epochs": 1} if name.endswith("epsilon") else {}
        with pytest.raises(TypeError, match=f"has no argument {other}: (it is called|leave it out:|write) "):
            call(**{other: 1.0}, **({} if name == "get_epsilon" else given))


def test_a_model_is_made_compatible_as_with_opacus():
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1), nn.Flatten(0)).double()
    parts = {"optimizer": None, "data_loader": DataLoader(records(), batch_size=5)}
    assert not PrivacyEngine().is_compatible(module=model, **parts)
    with pytest.raises(ValueError, match="BatchNorm1d"):
        PrivacyEngine().validate(module=model, **parts)
    fixed = PrivacyEngine.get_compatible_module(model)
    assert isinstance(fixed[0], nn.GroupNorm)
    assert {p.dtype for p in fixed.parameters()} == {torch.float64}
    assert PrivacyEngine().is_compatible(module=fixed, **parts)
    private(fixed)


def test_class_weights_with_a_mean_mix_records():
    """Their mean is divided by the weights of all labels of the batch, so that one label changes every gradient."""
    for kind in (nn.CrossEntropyLoss, nn.NLLLoss):
        with pytest.raises(ValueError, match=r"^criterion must not divide .* got .*reduction='sum' and loss_reduction"):
            private(criterion=kind(weight=torch.ones(2)))
        private(criterion=kind(weight=torch.ones(2), reduction="sum"), loss_reduction="sum")
        private(criterion=kind())
        private(criterion=kind(weight=torch.ones(2)), grad_sample_mode="ghost")  # one loss per record


@pytest.mark.parametrize("name", ["target_epsilon", "target_delta"])
def test_messages_name_the_target(name):
    model = network()
    settings = {"target_epsilon": 1.0, "target_delta": 1e-5, "epochs": 1, name: -1}
    parts = {
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "data_loader": DataLoader(records(), batch_size=5),
    }
    with pytest.raises(ValueError, match=f"^{name} must be a number above 0"):
        PrivacyEngine().make_private_with_epsilon(module=model, **parts, **settings)


def test_another_loader_is_detected():
    """The statement would be about Poisson batches that were not drawn."""
    training = Training(noise_multiplier=1.0)
    training.step(training.loader.dataset[:5])
    with pytest.warns(PrivacyWarning, match="batches that the loader of make_private did not draw"):
        stated = training.engine.statement()
    assert stated.certified == stated.epsilon(1e-5) == float("inf")
    assert training.engine.statement(steps=1).nominal < float("inf")  # of batches that it would draw
    assert stated.notes == (stated.reasons[-1],)


def test_a_checkpoint_remembers_that_another_loader_was_used(tmp_path):
    training, resumed = Training(noise_multiplier=1.0), Training(noise_multiplier=1.0)
    training.step(training.loader.dataset[:5])
    training.engine.save_checkpoint(path=tmp_path / "c", module=training.private, optimizer=training.optimizer)
    resumed.engine.load_checkpoint(path=tmp_path / "c", module=resumed.private, optimizer=resumed.optimizer)
    with pytest.warns(PrivacyWarning, match="did not draw"):
        assert resumed.run(1).engine.statement().certified == float("inf")


def test_the_private_loader_is_not_foreign():
    training = Training()
    training.run(2)
    assert training.engine.statement().notes == ()


SHARDED = """
import sys, torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from clipsilon.torch import PrivacyEngine

torch.distributed.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/meet", rank=0, world_size=1)
model = fully_shard(torch.nn.Linear(4, 1), mesh=init_device_mesh("cpu", (1,)))
try:
    PrivacyEngine.validate(module=model)
except ValueError as error:
    print(error)
torch.distributed.destroy_process_group()
"""


def test_sharded_models_are_refused(tmp_path):
    message = "module must have whole parameters in every process, .*; wrap it in DistributedDataParallel."
    shown = subprocess.run([sys.executable, "-c", SHARDED, tmp_path], capture_output=True, text=True, check=True)
    assert re.fullmatch(message, shown.stdout.strip())
    with pytest.raises(ValueError, match=f"^{message}$"):
        private(nn.DataParallel(network()))
