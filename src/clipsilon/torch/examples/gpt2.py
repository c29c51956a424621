"""A GPT-2 that turns a restaurant's meaning into a sentence: a small new one, or the user's pretrained one.

A record is one row of tokens: the meaning, a separator, the sentence, an end token. The loss covers the sentence and
the end token only.
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
from clipsilon.torch.examples.training import Training, TrainingConfig, prepare_training, train_with_pauses

IGNORED = -100  # the target of tokens that the loss does not cover, as in PyTorch


class Tokens(Protocol):
    """A tokenizer.

    Attributes
    ----------
    size : int
        Number of tokens in the vocabulary.
    mark : int
        The token that separates a meaning from its sentence.
    end : int
        The token that ends a sentence.
    """

    size: int
    mark: int
    end: int

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens."""


class Words:
    """Tokens for words and full stops; brackets and commas are left out.

    The vocabulary is released with the model: build it from public texts.
    """

    def __init__(self, texts: Sequence[str]):
        words = sorted({word for text in texts for word in _words(text)})
        self._words = ["<end>", "<mark>", "<unknown>", *words]
        self._numbers = {word: number for number, word in enumerate(self._words)}
        self.end, self.mark, self.size = 0, 1, len(self._words)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        return [self._numbers.get(word, 2) for word in _words(text)]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens."""
        return " ".join(self._words[token] for token in tokens).replace(" .", ".")


def _words(text: str) -> list[str]:
    return re.findall(r"[^\s\[\],.]+|\.", text)


class Pieces:
    """Tokens of a pretrained GPT-2, from the user's folder."""

    def __init__(self, folder: str | PathLike[str]):
        from transformers import AutoTokenizer

        self._tokenizer: Any = AutoTokenizer.from_pretrained(Path(folder), local_files_only=True)
        self.size, self.end = len(self._tokenizer), self._tokenizer.eos_token_id
        self.mark = self.encode("\n")[0]

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        return list(self._tokenizer.encode(text))

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens."""
        return str(self._tokenizer.decode(tokens))


def new_gpt2(vocabulary: int, length: int, seed: int, width: int = 32, depth: int = 2) -> nn.Module:
    """Return a small, randomly initialised GPT-2; 33,000 parameters for the synthetic restaurants.

    Parameters
    ----------
    vocabulary : int
        Number of tokens in the vocabulary.
    length : int
        Longest row, in tokens.
    seed : int
        Seed of the initial parameters.
    width, depth : int
        Entries per token, and number of attention blocks.

    Returns
    -------
    nn.Module
        A `GPT2LMHeadModel` without dropout and with untied embeddings.
    """
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


def load_gpt2(folder: str | PathLike[str]) -> nn.Module:
    """Load a pretrained GPT-2 from a folder and untie its last layer from the first: ghost clipping needs it."""
    from transformers import GPT2LMHeadModel

    model: Any = GPT2LMHeadModel.from_pretrained(Path(folder), local_files_only=True)
    model.config.tie_word_embeddings, model.config.use_cache = False, False
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    return model  # type: ignore[no-any-return]


class TokenRows(NamedTuple):
    """Records as rows of tokens and of targets, (records, length); short rows are filled up with the end token."""

    inputs: Tensor
    targets: Tensor


def encode_records(records: Sequence[Record], tokens: Tokens, length: int) -> TokenRows:
    """Encode records as rows of tokens.

    Parameters
    ----------
    records : sequence of Record
        Meanings and sentences.
    tokens : Tokens
        The tokenizer.
    length : int
        Length of the rows; longer records are truncated.

    Returns
    -------
    TokenRows
        Tokens, and the token that follows each, or `IGNORED` where the loss does not cover it.
    """
    inputs = torch.full((len(records), length), tokens.end)
    targets = torch.full((len(records), length), IGNORED)
    for number, record in enumerate(records):
        meaning = [*tokens.encode(record.meaning), tokens.mark]
        row = torch.tensor([*meaning, *tokens.encode(record.sentence), tokens.end][: length + 1])
        inputs[number, : len(row) - 1] = row[:-1]
        targets[number, len(meaning) - 1 : len(row) - 1] = row[len(meaning) :]
    return TokenRows(inputs, targets)


def next_token_scores(model: nn.Module, inputs: Tensor) -> Tensor:
    """Return the scores of the next token at each place.

    Each record has its own row of position ids, as ghost clipping needs.
    """
    places = torch.arange(inputs.shape[1], device=inputs.device).repeat(len(inputs), 1)
    found: Tensor = model(input_ids=inputs, position_ids=places, attention_mask=torch.ones_like(inputs)).logits
    return found


def train_gpt2(
    config: TrainingConfig, model: nn.Module, train: TokenRows, test: TokenRows, every: int
) -> tuple[nn.Module, list[tuple[int, float]]]:
    """Train a GPT-2 and record its test loss.

    Parameters
    ----------
    config : TrainingConfig
        The settings.
    model : nn.Module
        The model, which is trained in place.
    train, test : TokenRows
        Records to train on and to test on.
    every : int
        Steps between two measurements of the test loss.

    Returns
    -------
    tuple
        The trained model, in evaluation mode, and pairs of steps taken and test loss, from step 0.
    """
    training = prepare_training(config, model, TensorDataset(*train))
    losses = [(0, test_loss(training.model.eval(), test))]
    pauses = train_with_pauses(training, config.steps, every, _loss)
    losses += [(done, test_loss(training.model, test)) for done in pauses]
    return training.model.eval(), losses


def _loss(training: Training, batch: list[Tensor]) -> Any:
    inputs, targets = batch
    found = next_token_scores(training.model, inputs)
    shape = {} if isinstance(training.criterion, nn.Module) else {"shape": found.shape}  # private: one loss per record
    return training.criterion(found.flatten(0, 1), targets.flatten(), **shape)


@torch.no_grad()  # type: ignore[untyped-decorator]
def test_loss(model: nn.Module, test: TokenRows) -> float:
    """Return the mean loss per token that the loss covers, in nats."""
    total = nn.CrossEntropyLoss(reduction="sum", ignore_index=IGNORED)
    pieces = zip(test.inputs.split(500), test.targets.split(500), strict=True)
    summed = sum(
        float(total(next_token_scores(model, inputs).flatten(0, 1), targets.flatten())) for inputs, targets in pieces
    )
    return summed / int((test.targets != IGNORED).sum())


@torch.no_grad()  # type: ignore[untyped-decorator]
def describe(model: nn.Module, tokens: Tokens, meanings: Sequence[str], length: int) -> list[str]:
    """Generate a sentence for each meaning by greedy decoding.

    Parameters
    ----------
    model : nn.Module
        The model, in evaluation mode.
    tokens : Tokens
        Its tokenizer.
    meanings : sequence of str
        Meaning representations.
    length : int
        Longest row, in tokens.

    Returns
    -------
    list of str
        One sentence per meaning.
    """
    starts = [[*tokens.encode(meaning), tokens.mark][:length] for meaning in meanings]
    rows = torch.full((len(starts), length + 1), tokens.end)
    for row, start in zip(rows, starts, strict=True):
        row[: len(start)] = torch.tensor(start)
    first = torch.tensor([len(start) for start in starts])
    for place in range(int(first.min()), length + 1):
        likeliest = next_token_scores(model, rows[:, :place])[:, -1].argmax(1)
        rows[:, place] = torch.where(place >= first, likeliest, rows[:, place])
    return [_until_end(tokens, row[len(start) :].tolist()) for row, start in zip(rows, starts, strict=True)]


def _until_end(tokens: Tokens, row: list[int]) -> str:
    return tokens.decode(row[: row.index(tokens.end)] if tokens.end in row else row)
