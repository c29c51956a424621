"""Restaurants, their tokens, and a small GPT-2."""

import re

import pytest

torch = pytest.importorskip("torch")
for package in ("opacus", "transformers"):
    pytest.importorskip(package)

from opacus.validators import ModuleValidator  # noqa: E402

from clipsilon.torch.examples import gpt2, language  # noqa: E402
from clipsilon.torch.examples.training import TrainingConfig  # noqa: E402

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def records():
    return language.restaurants(400, seed=0)


@pytest.fixture(scope="module")
def words(records):
    return gpt2.Words([text for record in records for text in record])


def test_the_generator_is_deterministic(records):
    assert language.restaurants(400, seed=0) == records
    assert language.restaurants(400, seed=1) != records
    with pytest.raises(ValueError, match="count must be a whole number of at least 1, got 0."):
        language.restaurants(0)


def test_a_sentence_expresses_its_meaning_and_no_more(records):
    for meaning, sentence in records:
        said = dict(re.findall(r"([\w ]+)\[([^\]]+)\]", meaning))
        assert {"name", "eatType", "food"} <= {key.strip() for key in said}
        assert all(value in sentence for value in said.values())
        assert ("prices" in sentence) == ("priceRange" in meaning)
        assert ("rating" in sentence) == ("customer rating" in meaning)
        assert (" in the " in sentence) == ("area" in meaning)
        assert sentence in language.references(meaning)


def test_meanings_and_phrasings_vary(records):
    assert len({record.meaning for record in records}) > 200
    openings = {re.sub(r"[A-Z]\w+", "X", record.sentence.split(" ")[0]) for record in records}
    assert openings == {"X", "the", "for"}


def test_e2e_files(tmp_path):
    path = tmp_path / "trainset.csv"
    text = (
        'mr,ref\n"name[Aromi], food[Indian]","Aromi serves Indian food, and is ""kind"". £20."\n"name[Zizzi]",Zizzi.\n'
    )
    path.write_text(text, encoding="utf-8")
    found = language.read_e2e(path)
    assert found[0] == ("name[Aromi], food[Indian]", 'Aromi serves Indian food, and is "kind". £20.')
    assert language.group_by_meaning([*found, language.Record("name[Zizzi]", "Go to Zizzi.")])["name[Zizzi]"] == [
        "Zizzi.",
        "Go to Zizzi.",
    ]
    path.write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"trainset.csv must have the columns mr and ref, got \['a', 'b'\]."):
        language.read_e2e(path)
    path.write_text("mr,ref\nname[Aromi],\n", encoding="utf-8")
    with pytest.raises(
        ValueError, match="trainset.csv must have a meaning and a sentence in each row, got an empty one."
    ):
        language.read_e2e(path)


def test_tokens_and_back(words, records):
    for record in records[:50]:
        assert words.decode(words.encode(record.sentence)) == record.sentence
    assert words.encode("name[Zebra]")[-1] == words.encode("unheard")[0]


def test_rows_learn_the_sentence_only(words, records):
    record = records[0]
    rows = gpt2.encode_records([record], words, 45)
    meaning, sentence = words.encode(record.meaning), words.encode(record.sentence)
    learned = rows.targets[0] != gpt2.IGNORED
    assert rows.targets[0][learned].tolist() == [*sentence, words.end]
    assert int(learned.nonzero()[0]) == len(meaning)  # the mark's place, whose next token is the first to learn
    assert rows.inputs[0, : len(meaning) + 1].tolist() == [*meaning, words.mark]
    shifted = rows.inputs[0, len(meaning) + 1 : len(meaning) + 1 + len(sentence)]
    assert shifted.tolist() == sentence
    short = gpt2.encode_records([record], words, len(meaning) + 3)
    assert short.targets[0][short.targets[0] != gpt2.IGNORED].tolist() == sentence[:3]


def test_gpt2_is_small_and_opacus_supports_it(words):
    model = gpt2.new_gpt2(words.size, 45, seed=0)
    assert 10_000 < sum(p.numel() for p in model.parameters()) < 50_000
    assert ModuleValidator.validate(model) == []
    again = gpt2.new_gpt2(words.size, 45, seed=0)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), again.parameters(), strict=True))


def test_scores_look_back_only(words, records):
    rows = gpt2.encode_records(records[:3], words, 45)
    model = gpt2.new_gpt2(words.size, 45, seed=0).eval()
    changed = rows.inputs.clone()
    changed[:, 20:] = words.mark
    with torch.no_grad():
        torch.testing.assert_close(
            gpt2.next_token_scores(model, rows.inputs)[:, :20], gpt2.next_token_scores(model, changed)[:, :20]
        )


@pytest.mark.parametrize("algorithm", ["dpsgd", "dice"])
def test_ghost_and_hooks_agree_on_gpt2(words, records, algorithm):
    from clipsilon.torch import PrivacyEngine
    from private_training import make_private

    rows = gpt2.encode_records(records[:12], words, 30)
    criterion = torch.nn.CrossEntropyLoss()

    def stepped(mode):
        model = gpt2.new_gpt2(words.size, 30, seed=0).double()
        loader = torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(*rows), batch_size=6, generator=torch.Generator().manual_seed(0)
        )
        made = make_private(
            PrivacyEngine(),
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
            data_loader=loader,
            criterion=criterion,
            algorithm=algorithm,
            clip=0.5,
            noise_multiplier=0.0,
            grad_sample_mode=mode,
        )
        for inputs, targets in made[-1]:
            made[1].zero_grad()
            found = gpt2.next_token_scores(made[0], inputs)
            if mode == "ghost":
                loss = made[2](found.flatten(0, 1), targets.flatten(), shape=found.shape)
            else:  # a mean over records of means over tokens
                each = torch.nn.functional.cross_entropy(found.mT, targets, reduction="none")
                loss = (each.sum(1) / (targets != gpt2.IGNORED).sum(1)).mean()
            loss.backward()
            made[1].step()
        return [*model.parameters(), *made[1].error]

    for one, other in zip(stepped("ghost"), stepped("hooks"), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)


def test_training_lowers_the_loss_and_writes(words, records):
    length = 45
    rows = gpt2.encode_records(records, words, length)
    config = TrainingConfig("dice", 1e-2, 50, 12, optimizer="AdamW", noise_multiplier=0.1, warm_up=2)
    model, curve = gpt2.train_gpt2(config, gpt2.new_gpt2(words.size, length, 0), rows, rows, 6)
    assert [done for done, _ in curve] == [0, 6, 12]
    assert curve[-1][1] < 0.8 * curve[0][1]
    assert curve[-1][1] == pytest.approx(gpt2.test_loss(model, rows))
    written = gpt2.describe(model, words, [record.meaning for record in records[:5]], length)
    assert len(written) == 5
    assert all("<" not in text.replace("<unknown>", "") for text in written)


def test_describing_takes_the_likeliest_token_of_each_row(words):
    """A stub model that always predicts the token after the last one, and then the end."""

    class Counts(torch.nn.Module):
        def forward(self, input_ids, **_):
            following = torch.where(input_ids >= words.size - 1, 0, input_ids + 1)
            following = torch.where(input_ids == words.mark, words.size - 3, following)
            return type("Out", (), {"logits": torch.nn.functional.one_hot(following, words.size).float()})

    meanings = ["name[Amber]", "name[Amber], food[French], area[riverside]"]
    last = words.decode([words.size - 3, words.size - 2, words.size - 1])
    assert gpt2.describe(Counts(), words, meanings, 20) == [last, last]


def test_a_pretrained_gpt2_from_a_folder(tmp_path, words, records):
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=words.size, n_positions=45, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    saved = GPT2LMHeadModel(config).eval()
    saved.save_pretrained(tmp_path)
    model = gpt2.load_gpt2(tmp_path).eval()
    assert model.lm_head.weight is not model.transformer.wte.weight
    rows = gpt2.encode_records(records[:5], words, 45)
    with torch.no_grad():
        torch.testing.assert_close(
            gpt2.next_token_scores(model, rows.inputs), gpt2.next_token_scores(saved, rows.inputs)
        )
    config = TrainingConfig("dice", 1e-2, 3, 1, noise_multiplier=0.1)
    _, curve = gpt2.train_gpt2(config, model, rows, rows, 1)
    assert curve[1][1] != curve[0][1]
