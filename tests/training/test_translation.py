"""Training of two stacks on pairs of texts: teacher forcing, padding, label smoothing, and a run that is resumed."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from architectures import enliven
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import models, pre_tokenizers, processors
from torch import Tensor
from training_runs import changed, files_of, metrics_of, stopping_after

import tinytf
from tinytf.checkpoints.huggingface.memory import read_module
from tinytf.checkpoints.run_config import checkpoints_of
from tinytf.errors import TinytfError, UsageError
from tinytf.generate.samplers import Sampling
from tinytf.model.transformer import Transformer
from tinytf.text.corpus import Corpus, find_files
from tinytf.text.tokenizer import Tokenizer
from tinytf.text_model import TextModel
from tinytf.training.data.examples import IGNORED, Batch
from tinytf.training.data.setup import Setup, prepare
from tinytf.training.data.translation import Pairs, pair_ids
from tinytf.training.plan import plan
from tinytf.training.recipe import Recipe
from tinytf.training.train import report_of, train
from tinytf.training.tuning.faults import first_fault
from tinytf.training.tuning.lora import Adapters
from tinytf.training.tuning.losses import BatchLoss, batch_loss, exact_share
from tinytf.training.tuning.parts import freeze

ROWS = [(f"{word} number {count}", f"{count} {word}") for count in range(30) for word in ("cat", "dog", "white hen")]
RECIPE = Recipe(
    objective="translate",
    model={"d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 16, "dropout": 0.1, "encoder": {"n_layers": 1}},
    vocab_size=270, block=16, batch=4, steps=6, warmup=1, eval_every=3, held_out=0.2, label_smoothing=0.1,
)  # fmt: skip
START, END = 0, 1
GREEDY = Sampling(temperature=0)


def table(folder: Path, rows: list[tuple[str, str]] = ROWS, name: str = "pairs.tsv") -> Path:
    path = folder / name
    path.write_text("source\ttarget\n" + "".join(f"{a}\t{b}\n" for a, b in rows), "utf-8")
    return path


def corpus_in(folder: Path) -> Corpus:
    return find_files([table(folder)], RECIPE.reading)


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    folder = tmp_path_factory.mktemp("pairs")
    made = prepare(corpus_in(folder), RECIPE, folder)
    enliven(made.model, 1)
    return made


@pytest.fixture(scope="module")
def t5() -> Any:
    config = transformers.T5Config(
        vocab_size=40, d_model=24, d_kv=5, d_ff=32, num_layers=1, num_decoder_layers=2, num_heads=4,
        decoder_start_token_id=START, pad_token_id=START, eos_token_id=END, dropout_rate=0.0,
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration(config)
    enliven(model, 3)
    return model.eval()


def some_pairs(*lengths: tuple[int, int]) -> Pairs:
    """Pairs of random ids, each of a source and a target of these lengths, both with an end token."""
    generator, stream = torch.Generator().manual_seed(5), []
    for size in lengths:
        source, target = ([*torch.randint(2, 40, (n - 1,), generator=generator).tolist(), END] for n in size)
        ids = torch.tensor(source + target).numpy().astype("uint32")
        ids[0] |= 1 << 31
        ids[len(source) :] |= 1 << 30
        stream += ids.tolist()
    return Pairs(torch.tensor(stream).numpy().astype("uint32"), START)


def gradients(model: Transformer, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


LENGTHS = [(7, 4), (3, 6), (5, 2)]


def test_loss_and_gradients_of_both_stacks_are_those_of_transformers(t5: Any) -> None:
    batch = some_pairs(*LENGTHS).batch([0, 1, 2])
    assert batch.source is not None
    assert batch.source_mask is not None
    theirs = t5(input_ids=batch.source, attention_mask=batch.source_mask.long(), labels=batch.targets).loss
    model = read_module(t5).load().transformer
    loss = batch_loss(model, batch)
    assert float(loss) == pytest.approx(float(theirs), abs=1e-5)
    t5.zero_grad()
    theirs.backward()
    expected = transformers.T5ForConditionalGeneration(t5.config)  # a model whose weights are the gradients
    with torch.no_grad():
        for weight, of in zip(expected.parameters(), t5.parameters(), strict=True):
            weight.copy_(of.grad)
    ours, named = gradients(model, loss), dict(read_module(expected).load().transformer.named_parameters())
    assert ours.keys() == named.keys()
    assert any(name.startswith("encoder.") and gradient.norm() > 1e-3 for name, gradient in ours.items())
    for name, gradient in ours.items():
        torch.testing.assert_close(gradient, named[name], atol=2e-5, rtol=1e-4, msg=name)


def test_padding_of_either_side_changes_neither_loss_nor_gradient(setup: Setup) -> None:
    pairs = some_pairs(*LENGTHS)
    batch, model = pairs.batch([0, 1, 2]), setup.model
    loss = BatchLoss(model)
    together = loss(*batch.tensors)
    alone = sum(loss(*pairs.batch([number]).tensors) for number in range(3))
    torch.testing.assert_close(together, alone)
    assert batch.padding_mask is not None
    assert batch.source is not None
    assert batch.source_mask is not None
    other = Batch(
        torch.where(batch.padding_mask, batch.ids, 33), batch.targets, batch.padding_mask,
        torch.where(batch.source_mask, batch.source, 34), batch.source_mask,
    )  # fmt: skip
    expected = gradients(model, together)
    for name, gradient in gradients(model, loss(*other.tensors)).items():
        torch.testing.assert_close(gradient, expected[name], msg=name)


def test_label_smoothing_is_that_of_torch_without_padding(setup: Setup) -> None:
    batch, model = some_pairs(*LENGTHS).batch([0, 1, 2]), setup.model
    assert batch.source is not None
    logits = model.unembed(
        model.hidden(batch.ids, padding_mask=batch.padding_mask, source=model.read(batch.source, batch.source_mask))
    )
    expected = F.cross_entropy(
        logits.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORED, label_smoothing=0.1, reduction="sum"
    )
    torch.testing.assert_close(BatchLoss(model, label_smoothing=0.1)(*batch.tensors), expected)
    assert float(expected) != float(BatchLoss(model)(*batch.tensors))


def test_a_target_is_shifted_by_its_start_and_ends_with_its_end() -> None:
    batch = some_pairs((3, 3), (2, 2)).batch([0, 1])
    (first, second), (label, other) = batch.ids.tolist(), batch.targets.tolist()
    assert first == [START, *label[:2]]
    assert label[-1] == END
    assert second[:2] == [START, other[0]]
    assert other[1:] == [END, IGNORED]


@pytest.mark.parametrize(("source", "target"), [("cat number 3", "3 cat"), ("dog", ""), ("  x", "y ")])
def test_a_pair_is_what_the_model_reads_and_writes(setup: Setup, source: str, target: str) -> None:
    """Of a source all tokens, and of a target those that generation would give and end with."""
    model = TextModel("m", setup.model, setup.tokenizer, "")
    (read, written) = Pairs(pair_ids(setup.tokenizer, json.dumps([source, target])), setup.model.config.start_id)[0]
    assert read.tolist() == list(model.encoder.encode(source).ids)
    assert [setup.model.config.start_id, *written.tolist()[:-1]] == list(model.encode(target).ids)
    assert written[-1] == setup.tokenizer.end_id


def test_special_tokens_around_a_target_stay_but_for_its_end() -> None:
    library = LibraryTokenizer(models.WordLevel({"<s>": 0, "</s>": 1, "a": 2, "b": 3}, unk_token="a"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.add_special_tokens(["<s>", "</s>"])
    library.post_processor = processors.TemplateProcessing("<s> $A </s>", None, [("<s>", 0), ("</s>", 1)])
    (read, written) = Pairs(pair_ids(Tokenizer(library), '["a b", "b"]'), 1)[0]  # as BART begins with </s> <s>
    assert (read.tolist(), written.tolist()) == ([0, 2, 3, 1], [0, 3, 1])


def test_what_counts_as_exact_is_what_greedy_decoding_writes(tmp_path: Path) -> None:
    """The word of an odd row is found in its source; the numbers that are held out were never seen."""
    rows = [(f"{word} number {n}", word if n % 2 else str(n)) for n in range(30) for word in ("cat", "dog", "hen")]
    recipe = changed(
        RECIPE, model={**RECIPE.model, "dropout": 0.0}, first_weights="normal", label_smoothing=0.0,
        steps=60, lr=2e-2, eval_every=60, probe_every=0, sample_tokens=0, batch=16,
    )  # fmt: skip
    corpus = find_files([table(tmp_path, rows)], recipe.reading)
    trained = train(corpus, recipe, tmp_path / "run")
    model = tinytf.load(str(tmp_path / "run"))
    held_out = [json.loads(row) for row in corpus.split(recipe.held_out)[1]]
    written = [model.reading(source).generate("", max_tokens=9, sampling=GREEDY) for source, _ in held_out]
    right = sum(text == target for text, (_, target) in zip(written, held_out, strict=True))
    assert 0 < right < len(held_out)
    share = exact_share(model.transformer, trained.setup.examples.held_out())
    assert share == right / len(held_out)
    assert metrics_of(tmp_path / "run")[-1]["held_out_exact"] == share


@pytest.mark.share(4)
@pytest.mark.parametrize("stops", [(2, 3), (3,)], ids=str)
def test_a_run_in_parts_leaves_every_byte_of_a_run_in_one_go(stops: tuple[int, ...], tmp_path: Path) -> None:
    corpus, whole, parts = corpus_in(tmp_path), tmp_path / "whole", tmp_path / "parts"
    train(corpus, RECIPE, whole)
    for number, count in enumerate(stops):
        torch.manual_seed(99)  # another process begins with other random numbers
        train(corpus, RECIPE, parts, resume=number > 0, interrupted=stopping_after(count))
    train(corpus, RECIPE, parts, resume=True)
    theirs, ours = ({n: b for n, b in files_of(run).items() if "checkpoints" not in n} for run in (parts, whole))
    assert theirs == ours
    assert files_of(checkpoints_of(parts)[-1]) == files_of(checkpoints_of(whole)[-1])


def test_a_run_is_planned_reported_and_goes_on_from_another(tmp_path: Path) -> None:
    corpus = corpus_in(tmp_path)
    planned = plan(corpus, RECIPE, tmp_path / "run")
    assert planned.loss == pytest.approx(planned.uniform_loss, abs=0.1)
    report = report_of(tmp_path / "run", RECIPE, train(corpus, RECIPE, tmp_path / "run").setup)
    assert report.history.sample is not None
    assert report.history.sample.prompt.startswith("cat number 24")
    assert report.fields()["held_out_exact"] == 0.0
    begun = tinytf.load(str(tmp_path / "run"))
    more = changed(RECIPE, begun_from=str(tmp_path / "run"), model={}, lr=1e-3)
    train(corpus, more, tmp_path / "more", tokenizer=begun.tokenizer, model=begun.transformer)
    assert metrics_of(tmp_path / "more")[-1]["held_out_loss"] < metrics_of(tmp_path / "run")[-1]["held_out_loss"]


def test_lora_adapts_both_stacks_and_peft_merges_them(t5: Any, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    recipe = changed(RECIPE, model={}, begun_from="t5", lora=2, lr=1e-2, probe_every=0, sample_tokens=0, steps=2)
    model = read_module(copy.deepcopy(t5)).load().transformer
    adapters, batch = Adapters(model, recipe), some_pairs(*LENGTHS).batch([0, 1, 2])
    with torch.no_grad():
        for factor in adapters.up.values():
            factor.normal_(generator=torch.Generator().manual_seed(2))
    adapters.save(tmp_path)
    ours = batch_loss(model, batch)
    assert any(key.startswith("encoder/") for key in adapters.adapted_modules)
    merged = peft.PeftModel.from_pretrained(copy.deepcopy(t5), str(tmp_path / "adapter")).eval()
    theirs = merged(input_ids=batch.source, attention_mask=batch.source_mask.long(), labels=batch.targets).loss
    assert float(ours) == pytest.approx(float(theirs), abs=1e-5)
    assert float(ours) != pytest.approx(float(batch_loss(read_module(t5).load().transformer, batch)), abs=1e-3)


def test_a_layer_of_either_stack_is_frozen_by_its_address(setup: Setup) -> None:
    model = copy.deepcopy(setup.model)
    freeze(model, ["enc.L0.ffn", "L1.cross.q"])
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert frozen == {
        name for name, _ in model.named_parameters() if name.startswith(("encoder.blocks.0.ffn.", "blocks.1.cross.q."))
    }


def test_the_encoder_may_differ_and_shares_its_embeddings_with_the_decoder(setup: Setup) -> None:
    model = setup.model
    assert model.encoder is not None
    assert (len(model.blocks), len(model.encoder.blocks)) == (2, 1)
    assert model.encoder.embed.tokens.weight is model.embed.tokens.weight
    assert not model.encoder.config.causal
    assert model.config.start_id == setup.tokenizer.end_id


def test_a_number_that_is_not_finite_is_found_with_its_source(setup: Setup) -> None:
    batch, weight = some_pairs(*LENGTHS).batch([0, 1, 2]), setup.model.blocks[1].ffn.down.weight
    kept = weight.detach().clone()
    with torch.no_grad():
        weight[0, 0] = torch.nan
    try:
        assert "L1.ffn" in first_fault(setup.model, batch)
    finally:
        with torch.no_grad():
            weight.copy_(kept)


@pytest.mark.parametrize(
    ("content", "name", "changes", "message", "hint"),
    [
        ("some text", "a.txt", {}, "a.txt holds no pairs", "source and target"),
        ("a\tb\nx\ty\n", "a.tsv", {}, "no texts source and target in its rows", "it has a, b; --field A,B"),
        ("a\tb\nx\ty\n", "a.tsv", {"field": "a"}, "no texts a in its rows", "--field A,B"),
        ("source\ttarget\nx\ty\nz\n", "a.tsv", {}, "field target in row 2 of .* is not a text", ""),
        ("source\ttarget\nx\ty\n \tz\n", "a.tsv", {}, "field source in row 2 of .* is blank", ""),
        ('{"source": "a", "target": 3}', "a.jsonl", {}, "no texts source and target", "it has source, target"),
        (
            "source\ttarget\nx\ty\nx x x x x x x\tz\n",
            "a.tsv",
            {"block": 5},
            "has 14 tokens, and a block 5",
            "--block 14",
        ),
    ],
    ids=str,
)
def test_a_table_that_holds_no_pairs_is_refused(
    content: str, name: str, changes: dict[str, Any], message: str, hint: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text(content, "utf-8")
    recipe = changed(RECIPE, vocab_size=0, **changes)
    with pytest.raises(TinytfError, match=message) as error:
        prepare(find_files([path], recipe.reading), recipe, tmp_path)
    assert hint in (error.value.hint or "")


def test_a_field_names_two_columns_of_any_table(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"en": "a, \\"b\\"", "de": "x\\ty", "id": 3}\n', "utf-8")
    corpus = find_files([path], changed(RECIPE, field="en,de").reading)
    assert list(corpus.documents()) == ['["a, \\"b\\"", "x\\ty"]']


@pytest.mark.parametrize("begun_from", ["tiny", "tiny-encoder"])
def test_a_model_of_one_stack_is_not_trained_to_translate(begun_from: str, tmp_path: Path) -> None:
    begun = tinytf.load(begun_from)
    with pytest.raises(UsageError, match="not trained by the translate objective"):
        prepare(corpus_in(tmp_path), RECIPE, tmp_path, begun.tokenizer, begun.transformer)


def test_a_model_of_two_stacks_is_not_trained_on_one_text(setup: Setup, tmp_path: Path) -> None:
    recipe = changed(RECIPE, objective="causal")
    with pytest.raises(UsageError, match="two stacks is not trained by the causal objective"):
        prepare(find_files("a b c"), recipe, tmp_path, setup.tokenizer, setup.model)


@pytest.mark.parametrize("tokenizer", ["char", "wordpiece"])
def test_a_tokenizer_that_cannot_end_or_write_a_target_is_refused(tokenizer: str) -> None:
    with pytest.raises(UsageError, match="does not write every target"):
        changed(RECIPE, tokenizer=tokenizer, vocab_size=0)
