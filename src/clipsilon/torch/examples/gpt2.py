"""A GPT-2 that turns a restaurant's meaning into a sentence: small and new, or the user's own pretrained one.

A record is one row of tokens: the meaning, a mark, the sentence, an end. Only the sentence and its end are learned.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from clipsilon._core import checks
from clipsilon.torch.examples.language import Record
from clipsilon.torch.examples.training import Plan, Training, prepared, stops

IGNORED = -100  # the target of a token that is not learned, as PyTorch's losses have it


class Tokens(Protocol):
    """Text as numbers and back."""

    size: int  # of the vocabulary
    mark: int  # between a meaning and its sentence
    end: int

    def encode(self, text: str) -> list[int]:
        """The tokens of a text."""

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens."""


class Words:
    """Every word is a token, and so is a full stop; brackets and commas are left out.

    The vocabulary is public: give it public texts.
    """

    def __init__(self, texts: Sequence[str]):
        words = sorted({word for text in texts for word in _words(text)})
        self._words = ["<end>", "<mark>", "<unknown>", *words]
        self._numbers = {word: number for number, word in enumerate(self._words)}
        self.end, self.mark, self.size = 0, 1, len(self._words)

    def encode(self, text: str) -> list[int]:
        """The tokens of a text."""
        return [self._numbers.get(word, 2) for word in _words(text)]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens."""
        return " ".join(self._words[token] for token in tokens).replace(" .", ".")


def _words(text: str) -> list[str]:
    return re.findall(r"[^\s\[\],.]+|\.", text)


class Pieces:
    """The tokens of a pretrained GPT-2, from the user's folder."""

    def __init__(self, folder: str | PathLike[str]):
        from transformers import AutoTokenizer

        self._tokenizer: Any = AutoTokenizer.from_pretrained(Path(folder), local_files_only=True)
        self.size, self.end = len(self._tokenizer), self._tokenizer.eos_token_id
        self.mark = self.encode("\n")[0]

    def encode(self, text: str) -> list[int]:
        """The tokens of a text."""
        return list(self._tokenizer.encode(text))

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens."""
        return str(self._tokenizer.decode(tokens))


def new_gpt2(vocabulary: int, length: int, seed: int, width: int = 32, depth: int = 2) -> nn.Module:
    """A small GPT-2 with parameters at random, which depend on the seed alone; 33 thousand for our restaurants."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=checks.count("vocabulary", vocabulary),
        n_positions=checks.count("length", length),
        n_embd=width,
        n_layer=depth,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
        tie_word_embeddings=False,
        use_cache=False,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: nn.Module = GPT2LMHeadModel(config)
    return model


def own_gpt2(folder: str | PathLike[str]) -> nn.Module:
    """A pretrained GPT-2 from the user's folder, its last layer untied from the first: Opacus takes each once."""
    from transformers import GPT2LMHeadModel

    model: Any = GPT2LMHeadModel.from_pretrained(Path(folder), local_files_only=True)
    model.config.tie_word_embeddings, model.config.use_cache = False, False
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    return model  # type: ignore[no-any-return]


class Texts(NamedTuple):
    """Records as rows of tokens and of targets, (records, length); rows that are too short end in `end`."""

    inputs: Tensor
    targets: Tensor


def texts(records: Sequence[Record], tokens: Tokens, length: int) -> Texts:
    """Records as rows; what does not fit is cut off."""
    inputs = torch.full((len(records), length), tokens.end)
    targets = torch.full((len(records), length), IGNORED)
    for number, record in enumerate(records):
        meaning = [*tokens.encode(record.meaning), tokens.mark]
        row = torch.tensor([*meaning, *tokens.encode(record.sentence), tokens.end][: length + 1])
        inputs[number, : len(row) - 1] = row[:-1]
        targets[number, len(meaning) - 1 : len(row) - 1] = row[len(meaning) :]
    return Texts(inputs, targets)


def scores(model: Any, inputs: Tensor) -> Tensor:
    """The scores of the next token, at each place; each record has its own row of places, as ghost clipping needs."""
    places = torch.arange(inputs.shape[1], device=inputs.device).repeat(len(inputs), 1)
    found: Tensor = model(input_ids=inputs, position_ids=places, attention_mask=torch.ones_like(inputs)).logits
    return found


def train_gpt2(
    plan: Plan, model: nn.Module, train: Texts, test: Texts, every: int
) -> tuple[Any, list[tuple[int, float]]]:
    """The trained model, and its test loss at every so many steps, from 0."""
    training = prepared(plan, model, TensorDataset(*train))
    losses = [(0, test_loss(training.model.eval(), test))]
    losses += [(done, test_loss(training.model, test)) for done in stops(training, plan.steps, every, _loss)]
    return training.model.eval(), losses


def _loss(training: Training, batch: list[Tensor]) -> Any:
    inputs, targets = batch
    found = scores(training.model, inputs)
    shape = {} if isinstance(training.criterion, nn.Module) else {"shape": found.shape}  # private: a loss a record
    return training.criterion(found.flatten(0, 1), targets.flatten(), **shape)


@torch.no_grad()  # type: ignore[untyped-decorator]
def test_loss(model: Any, test: Texts) -> float:
    """The mean loss of a learned token, in nats."""
    total = nn.CrossEntropyLoss(reduction="sum", ignore_index=IGNORED)
    pieces = zip(test.inputs.split(500), test.targets.split(500), strict=True)
    summed = sum(float(total(scores(model, inputs).flatten(0, 1), targets.flatten())) for inputs, targets in pieces)
    return summed / int((test.targets != IGNORED).sum())


@torch.no_grad()  # type: ignore[untyped-decorator]
def describe(model: Any, tokens: Tokens, meanings: Sequence[str], length: int) -> list[str]:
    """A sentence for each meaning: always the likeliest next token."""
    starts = [[*tokens.encode(meaning), tokens.mark][:length] for meaning in meanings]
    rows = torch.full((len(starts), length + 1), tokens.end)
    for row, start in zip(rows, starts, strict=True):
        row[: len(start)] = torch.tensor(start)
    first = torch.tensor([len(start) for start in starts])
    for place in range(int(first.min()), length + 1):
        likeliest = scores(model, rows[:, :place])[:, -1].argmax(1)
        rows[:, place] = torch.where(place >= first, likeliest, rows[:, place])
    return [_until_end(tokens, row[len(start) :].tolist()) for row, start in zip(rows, starts, strict=True)]


def _until_end(tokens: Tokens, row: list[int]) -> str:
    return tokens.decode(row[: row.index(tokens.end)] if tokens.end in row else row)
