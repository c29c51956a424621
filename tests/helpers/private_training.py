"""Small private trainings for the tests of clipsilon.torch, and one that several processes can run."""

import warnings

import torch
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from clipsilon import PrivacyWarning
from clipsilon.torch import PrivacyEngine

torch.set_num_threads(1)


def records(count=40, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 4, generator=generator, dtype=torch.float64) * torch.tensor([0.5, 1, 2, 4])
    return TensorDataset(x, (x.sum(1) > 0).double())


def network(seed=1):
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1), nn.Flatten(0)).double()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64))
    return model


def make_private(engine, **settings):
    """Make private, without the warning about DiceSGD that has no cap."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "algorithm='dice' without residual_cap", PrivacyWarning)
        return engine.make_private(**settings)


class Training:
    """A small model, made private, and its training loop; by DiceSGD without a cap, unless settings say otherwise."""

    def __init__(
        self, mode="hooks", data=None, model=None, batch=5, optimizer=torch.optim.SGD, lr=0.1, wrap=None, **settings
    ):
        self.engine = PrivacyEngine()
        self.model = network() if model is None else model
        generator = settings.pop("generator", torch.Generator().manual_seed(2))
        data, workers = records() if data is None else data, settings.pop("workers", 0)
        self.loader = DataLoader(data, batch_size=batch, generator=generator, num_workers=workers)
        self.mode, self.criterion = mode, settings.pop("criterion", nn.BCEWithLogitsLoss())
        parts = make_private(
            self.engine,
            module=self.model if wrap is None else wrap(self.model),
            optimizer=optimizer([p for p in self.model.parameters() if p.requires_grad], lr=lr),
            data_loader=self.loader,
            criterion=self.criterion,
            grad_sample_mode=mode,
            **{
                "algorithm": "dice",
                "noise_multiplier": 0.0,
                "noise_generator": torch.Generator().manual_seed(3),
                **settings,
            },
        )
        self.private, self.optimizer, self.loader = parts[0], parts[1], parts[-1]
        if mode == "ghost":
            self.criterion = parts[2]

    def loss(self, batch):
        return self.criterion(self.private(batch[0]), batch[1])

    def step(self, batch):
        self.optimizer.zero_grad()
        self.loss(batch).backward()
        self.optimizer.step()

    def run(self, passes, loader=None):
        for _ in range(passes):
            for batch in loader or self.loader:
                self.step(batch)
        return self

    def theta(self):
        return flat(self.model.parameters())

    def error(self):
        return flat(self.optimizer.error)

    def update(self):
        """Return v + noise of the last step."""
        return flat(p.grad for p in self.optimizer.trained)


def flat(tensors):
    return torch.cat([t.detach().flatten() for t in tensors])


PARALLEL = {"torch": DistributedDataParallel, "opacus": DifferentiallyPrivateDistributedDataParallel}
SETTINGS = [
    ("hooks", "torch", {"algorithm": "dice", "residual_cap": 1.5}),
    ("ghost", "torch", {"algorithm": "dice"}),
    ("ghost", "opacus", {"algorithm": "dice", "residual_cap": 1.5}),
    ("hooks", "opacus", {"algorithm": "dpsgd"}),
    ("hooks", "torch", {"algorithm": "dpsgd", "clipping": "adaptive", "quantile": 0.7}),
    ("ghost", "opacus", {"algorithm": "dpsgd", "clipping": "adaptive", "quantile": 0.7}),
    ("hooks", "opacus", {"algorithm": "correlated", "poisson_sampling": False, "epochs": 2}),
    ("ghost", "torch", {"algorithm": "correlated", "poisson_sampling": False, "epochs": 2}),
]


def train(mode, wrap, settings):
    training = Training(mode, wrap=wrap, optimizer=torch.optim.Adam, noise_multiplier=0.3, **settings).run(2)
    error = training.error() if training.optimizer.error else torch.zeros(0)
    clip = torch.tensor(training.optimizer.max_grad_norm)
    return {"theta": training.theta(), "error": error, "clip": clip, "steps": training.engine.steps}


def run_process(rank, world, folder):
    """Run all settings in one of several processes, and write the results to a file."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world)
    results = [train(mode, PARALLEL[wrap], settings) for mode, wrap, settings in SETTINGS]
    torch.save(results, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()
