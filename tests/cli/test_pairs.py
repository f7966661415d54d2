"""Two texts read as one by a cross-encoder: ids, token types, logits and gradients are transformers'."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from architectures import enliven, furthest
from driving import Tinytf, is_a_clean_error

from tinytf.gradients.loss import Targets
from tinytf.gradients.trace import record_gradients
from tinytf.loading import Model, load
from tinytf.text.chat import TextPair
from tinytf.trace.check import check

FIRST, SECOND = "who sat ?", "the cat sat ."
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "who", "sat", "?", "the", "cat", ".", "mat"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cross-encoder")
    (folder / "words.txt").write_text("\n".join(WORDS), "utf-8")
    transformers.BertTokenizer(str(folder / "words.txt")).save_pretrained(folder)
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
    config = transformers.BertConfig(vocab_size=len(WORDS), max_position_embeddings=32, num_labels=3, **sizes)
    model = transformers.BertForSequenceClassification(config)
    enliven(model, 7)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return load(str(folder))


def test_a_pair_is_what_transformers_makes_of_it(folder: Path, model: Model) -> None:
    theirs = transformers.BertForSequenceClassification.from_pretrained(folder, attn_implementation="eager").eval()
    given = transformers.AutoTokenizer.from_pretrained(folder)(FIRST, SECOND, return_tensors="pt")
    pair, alone = model.traces([TextPair(FIRST, SECOND), FIRST])  # in one batch, padded
    assert pair.encoding.ids == given.input_ids[0].tolist()
    assert pair.encoding.types == given.token_type_ids[0].tolist()
    assert [pair.encoding.text[token.start : token.end] for token in pair.encoding.tokens if not token.special] == [
        *FIRST.split(), *SECOND.split()
    ]  # fmt: skip
    assert check(pair).holds
    expected = theirs(**given, output_hidden_states=True)
    assert furthest(pair.last_hidden, expected.hidden_states[-1][0]) < 1e-5
    assert furthest(pair["logits"][0], expected.logits[0]) < 1e-5
    assert not any(alone.encoding.types)
    assert torch.allclose(alone.last_hidden, model.trace(FIRST).last_hidden, atol=1e-6)


def test_types_reach_explanation_gradients_interventions_and_code(model: Model) -> None:
    trace = model.trace(TextPair(FIRST, SECOND))
    assert all(found.holds for found in model.explain(trace, "embed.types[6,3]", depth=1))
    gradients = record_gradients(model.transformer, trace.encoding, Targets((0,), (1,)))
    assert furthest(gradients.last_hidden, trace.last_hidden) < 1e-6
    table = gradients.parameters["embed.types.weight"]
    assert bool((table.abs().sum(1) > 0).all())  # both rows were looked up
    assert model.ablate(trace, "L1H2").check.holds
    assert model.code(trace).holds


def test_the_command_line_reads_a_pair(folder: Path, tinytf: Tinytf) -> None:
    ran = tinytf("trace", FIRST, "--pair", SECOND, "-m", folder, "--json")
    tokens = json.loads(ran.out)["tokens"]
    assert [token["type"] for token in tokens] == [0] * 5 + [1] * 5
    shown = tinytf("tokens", FIRST, "--pair", SECOND, "-m", folder).out
    assert "a pair: [CLS] text [SEP] text [SEP]" in shown
    drawn = tinytf("trace", FIRST, "--pair", SECOND, "-m", folder).out
    assert f"tinytf attribute '{FIRST}' -m {folder} --pair '{SECOND}'" in " ".join(drawn.split())
    for given, said in (
        (("trace", FIRST, "--pair", SECOND), "a pair of texts is for encoders"),
        (("trace", FIRST, "--pair", " ", "-m", folder), "one text of the pair is empty"),
        (("trace", FIRST, "--pair", SECOND, "--chat", "-m", folder), "--pair is a second text"),
        (("trace", FIRST, "--pair", SECOND, "-m", folder, "--through", "transformers"), "one text, not a pair"),
        (("generate", FIRST, "--pair", SECOND), "one text, not a pair"),
        (("blame", FIRST, "--pair", SECOND, "-m", folder, "--versus", folder), "on single texts, not on pairs"),
    ):
        ran = tinytf(*given)
        assert is_a_clean_error(ran)
        assert said in ran.err
