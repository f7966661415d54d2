"""The chat objective: what of a conversation is learned, and the loss of it, beside transformers."""

import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import AddedToken

from tinytf.checkpoints.huggingface.export import export
from tinytf.config import ModelConfig
from tinytf.errors import TrainingError, UsageError
from tinytf.model.transformer import Transformer
from tinytf.runs.reader import read_history
from tinytf.sources import find_source
from tinytf.text.chat import ChatTemplate, Conversation
from tinytf.text.corpus import Reading, find_files
from tinytf.text.tokenizer import Tokenizer
from tinytf.text.train import train_bpe
from tinytf.training.data.chats import FIRST, LEARNED, ChatTurns, Turns, conversation_ids, pack
from tinytf.training.data.examples import IGNORED, Batch
from tinytf.training.data.setup import prepare
from tinytf.training.plan import plan
from tinytf.training.recipe import Recipe
from tinytf.training.train import train
from tinytf.training.tuning.losses import BatchLoss, batch_loss
from tinytf.training.tuning.processes import Processes

FOLDER = Path(__file__).parents[1] / "text" / "chat_templates"
CHATML = (FOLDER / "chatml.jinja").read_text("utf-8")
MARKED = """{% for message in messages %}{% if message.role == "assistant" %}<|im_start|>assistant
{% generation %}{{ message.content }}<|im_end|>{% endgeneration %}

{% else %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endif %}{% endfor %}"""
MODEL = {"d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 24, "context": 128}


def talk(number: int, turns: int) -> list[dict[str, str]]:
    asked = [{"role": "user", "content": f"What is {number} and {turn}?"} for turn in range(turns)]
    said = [{"role": "assistant", "content": f"It is {number + turn}, of course."} for turn in range(turns)]
    return [message for pair in zip(asked, said, strict=True) for message in pair]


TALKS = [[{"role": "system", "content": "Be brief."}, *talk(number, 1 + number % 3)] for number in range(12)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    made = train_bpe([message["content"] for one in TALKS for message in one], 300)
    made.library.add_special_tokens([AddedToken("<|im_start|>"), AddedToken("<|im_end|>")])
    ends = [made.library.token_to_id("<|im_end|>")]
    return Tokenizer(made.library, ends, chat=ChatTemplate({"default": CHATML}, {"eos_token": "<|im_end|>"}))


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    path = tmp_path / "chats.jsonl"
    path.write_text("\n".join(json.dumps({"messages": one}) for one in TALKS), "utf-8")
    return path


def recipe(**changes) -> Recipe:
    fields = {"objective": "chat", "block": 64, "batch": 4, "steps": 6, "warmup": 2, "eval_every": 3, "held_out": 0.2}
    return Recipe(**{"model": MODEL, **fields, **changes})


def alone(model: Callable, batch: Batch) -> Iterator[tuple[int, float]]:
    """Of each conversation of a batch, without those beside it: how many targets it has, and their summed loss."""
    texts = torch.ones_like(batch.ids) if batch.padding_mask is None else batch.padding_mask
    for ids, targets, numbers in zip(batch.ids, batch.targets, texts, strict=True):
        for number in range(1, int(numbers.max()) + 1):
            of_one = numbers == number
            with torch.no_grad():
                made = model(ids[None, of_one])
            logits = getattr(made, "logits", made)[0].double()
            loss = torch.nn.functional.cross_entropy(logits, targets[of_one], reduction="sum", ignore_index=IGNORED)
            yield int((targets[of_one] != IGNORED).sum()), float(loss)


def loss_of_each_alone(model: Callable, batch: Batch) -> float:
    counts, losses = zip(*alone(model, batch), strict=True)
    return sum(losses) / sum(counts)


def test_the_tokens_learned_are_those_that_a_template_of_transformers_marks(tokenizer: Tokenizer) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import PreTrainedTokenizerFast
    reference = PreTrainedTokenizerFast(tokenizer_object=tokenizer.library)
    for messages in TALKS:
        theirs = reference.apply_chat_template(
            messages, chat_template=MARKED, return_dict=True, return_assistant_tokens_mask=True
        )
        ours = conversation_ids(tokenizer, json.dumps(messages))
        assert (ours & np.uint32((1 << 30) - 1)).tolist() == theirs["input_ids"]
        assert ((ours & LEARNED) > 0).astype(int).tolist() == theirs["assistant_masks"]


def test_the_loss_is_that_of_transformers_for_the_same_ids_and_labels(tokenizer, chats, tmp_path) -> None:
    setup = prepare(find_files([chats], Reading(form="chat", field="")), recipe(), tmp_path, tokenizer)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in setup.model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    export(setup.model, tokenizer, tmp_path / "exported")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AutoModelForCausalLM

        reference = AutoModelForCausalLM.from_pretrained(tmp_path / "exported", attn_implementation="eager")
    for batch in [setup.examples.batch(0), *setup.examples.held_out()]:
        assert float(batch_loss(setup.model, batch).detach()) == pytest.approx(
            loss_of_each_alone(reference, batch), rel=1e-5
        )
        assert 0 < int((batch.targets != IGNORED).sum()) < batch.targets.numel() / 2


@pytest.mark.parametrize("stepped", [False, True])
def test_conversations_that_share_a_row_do_not_see_each_other(tokenizer, chats, tmp_path, stepped: bool) -> None:
    settings = {"positions": "rotary", "window": 20, **({"attention_cap": 5.0} if stepped else {})}
    asked = recipe(model={**MODEL, **settings}, batch=12)
    setup = prepare(find_files([chats], Reading(form="chat", field="")), asked, tmp_path, tokenizer)
    batch = setup.examples.batch(0)
    assert batch.padding_mask is not None
    assert len(batch.ids) < 12
    losses = sorted(loss for _, loss in alone(setup.model, batch))
    turns = ChatTurns(setup.examples.train.stream, setup.examples.train.stream, asked)  # a row for each
    drawn = turns.batch(0)
    assert drawn.padding_mask is None
    assert losses == pytest.approx(sorted(loss for _, loss in alone(setup.model, drawn)), rel=1e-5)
    assert float(batch_loss(setup.model, batch).detach()) == pytest.approx(
        float(batch_loss(setup.model, drawn).detach()), rel=1e-5
    )


def test_no_row_is_shared_where_the_place_of_a_token_is_learned(tokenizer, chats, tmp_path) -> None:
    corpus = find_files([chats], Reading(form="chat", field=""))
    model = {**MODEL, "positions": "learned", "norm": "layernorm", "gated": False}
    learned = prepare(corpus, recipe(model=model, batch=12), tmp_path / "learned", tokenizer)
    assert learned.examples.batch(0).padding_mask is None
    assert len(learned.examples.batch(0).ids) == 12


def test_rows_are_filled_from_the_longest_on_and_what_is_left_is_told() -> None:
    assert pack([3, 9, 5, 2, 4], 9) == [[1], [2, 4], [0, 3]]
    stream = np.zeros(30, dtype=np.uint32)
    stream[[0, 10, 16]] |= FIRST  # of 10, 6 and 14 tokens
    stream[[9, 15, 29]] |= LEARNED
    apart, together = (Turns(stream, 64, packs) for packs in (False, True))
    assert apart.padding([0, 1, 2]) == (39 - 27, 39)
    assert together.padding([0, 1, 2, 1]) == (3 * 13 - 32, 39)


def test_a_long_conversation_is_learned_in_parts_and_each_token_once(tokenizer: Tokenizer) -> None:
    stream = np.concatenate([conversation_ids(tokenizer, json.dumps(one)) for one in TALKS])
    learned = int((stream & LEARNED > 0).sum())
    for block in (8, 16, 1000):
        examples = ChatTurns(stream, stream, recipe(block=block))
        batches = list(examples.held_out())
        assert examples.held_out_batches == len(batches)
        assert sum(int((batch.targets != IGNORED).sum()) for batch in batches) == learned
        assert all(batch.ids.shape[1] <= block for batch in batches)
        assert all((batch.targets != IGNORED).any(1).all() for batch in batches)


def test_a_run_keeps_the_template_and_resumes_to_the_same_bytes(tokenizer, chats, tmp_path) -> None:
    corpus = find_files([chats], recipe().reading)
    for name, until in (("whole", 6), ("stopped", 3)):
        asked = iter([False] * (until - 1) + [True] * 9)
        train(corpus, recipe(), tmp_path / name, tokenizer=tokenizer, interrupted=lambda asked=asked: next(asked))
    train(corpus, recipe(), tmp_path / "stopped", resume=True)
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "stopped")]
    assert files[0] == files[1]
    kept = find_source(str(tmp_path / "whole")).vocabulary().tokenizer
    assert kept.end_ids == tokenizer.end_ids
    question = Conversation.of("What is 1 and 2?")
    assert kept.converse(question).ids == tokenizer.converse(question).ids
    sampled = json.loads((tmp_path / "whole" / "samples.jsonl").read_text("utf-8").splitlines()[0])
    assert "assistant" in sampled["prompt"]


def test_without_a_template_or_an_answer_there_is_nothing_to_learn(tokenizer, chats, tmp_path) -> None:
    with pytest.raises(UsageError, match="the chat objective needs a chat template"):
        prepare(find_files([chats], recipe().reading), recipe(), tmp_path)
    chats.write_text(json.dumps({"messages": [{"role": "user", "content": "Who is there?"}]}), "utf-8")
    with pytest.raises(TrainingError, match="no conversation has an assistant message after another message"):
        prepare(find_files([chats], recipe().reading), recipe(), tmp_path, tokenizer)


def test_a_process_without_a_row_of_a_packed_batch_adds_nothing_to_the_loss() -> None:
    batch = Batch(torch.tensor([[1, 2, 3]]), torch.tensor([[2, 3, IGNORED]]), None)
    config = ModelConfig.of(vocab_size=8, d_model=8, n_layers=1, n_heads=2, d_ff=8, context=8)
    loss = BatchLoss(Transformer.initialised(config, 0))
    first, second = (Processes(rank, 2).parts(batch)[0] for rank in (0, 1))
    assert torch.equal(first.targets, batch.targets)
    found = loss(second.ids, second.targets, second.padding_mask)
    assert found.item() == 0
    found.backward()
    assert all(not one.grad.any() for one in loss.parameters() if one.grad is not None)


def test_the_epochs_of_conversations_count_their_tokens_and_no_padding(tokenizer, chats, tmp_path) -> None:
    asked = recipe(steps=6, eval_every=6, batch=4)
    corpus = find_files([chats], asked.reading)
    train(corpus, asked, tmp_path / "run", tokenizer=tokenizer)
    history = read_history(tmp_path / "run")
    setup = prepare(corpus, asked, tmp_path / "again", tokenizer)
    lengths = [stop - start - 1 for start, stop in setup.examples.train.parts]
    drawn = [lengths[number] for step in range(20) for number in setup.examples.drawn(step)]
    assert history.step_tokens == round(sum(drawn) / 20) < 4 * asked.block
    assert history.epochs == 6 * history.step_tokens / setup.counts[0]


@pytest.mark.parametrize("block", [20, 128])
def test_a_dry_run_counts_what_exceeds_the_block_and_how_many_tokens_it_cuts_off(tokenizer, chats, tmp_path, block):
    lengths = [len(tokenizer.converse(Conversation(one)).ids) for one in TALKS]
    found = plan(find_files([chats], recipe().reading), recipe(block=block), tmp_path / "run", tokenizer=tokenizer)
    beyond = [length - block - 1 for length in lengths if length > block + 1]
    assert (found.conversations, found.long_conversations, found.cut_tokens) == (12, len(beyond), sum(beyond))
    assert bool(beyond) == (block == 20)
    assert found.to_dict()["cut_tokens"] == sum(beyond)
