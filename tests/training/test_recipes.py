"""The shipped recipes, each run end to end at a small size, and the defaults of training a model on."""

import json
import sys
from pathlib import Path

import pytest
from tokenizers import AddedToken

import tinytf

sys.path.insert(0, str(Path(__file__).parent))
from training_command import trained
from training_runs import STORY

from tinytf.checkpoints.run import save_run
from tinytf.config import ModelConfig
from tinytf.model.transformer import Transformer
from tinytf.runs.reader import read_history
from tinytf.text.chat import ChatTemplate
from tinytf.text.tokenizer import Tokenizer
from tinytf.text.train import train_bpe
from tinytf.trace.check import check
from tinytf.training.recipe import SHIPPED, Recipe

TALKS = [[{"role": "user", "content": f"Who sat on the {what}?"}, {"role": "assistant", "content": f"The {who}."}]
         for who in ("cat", "dog", "hen") for what in ("mat", "log")]  # fmt: skip
CHATML = (Path(__file__).parents[1] / "text" / "chat_templates" / "chatml.jinja").read_text("utf-8")
FEW = ("--steps", "4", "--batch", "2", "--eval-every", "2", "--probe-every", "2")
SMALL = ("--d-model", "16", "--n-layers", "2", "--n-heads", "2", "--vocab-size", "270", "--block", "32")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "story.txt"
    path.write_text(STORY, "utf-8")
    return path


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    path = tmp_path / "chats.jsonl"
    path.write_text("\n".join(json.dumps({"messages": talk}) for talk in TALKS), "utf-8")
    return path


@pytest.fixture
def instruct(tmp_path: Path) -> Path:
    """A run that can be talked to."""
    made = train_bpe([STORY], 280)
    made.library.add_special_tokens([AddedToken("<|im_start|>"), AddedToken("<|im_end|>")])
    tokenizer = Tokenizer(
        made.library, [made.library.token_to_id("<|im_end|>")], chat=ChatTemplate({"default": CHATML})
    )
    config = ModelConfig.of(vocab_size=tokenizer.vocab_size, d_model=16, n_layers=1, n_heads=2, d_ff=32, context=512)
    save_run(tmp_path / "instruct", Transformer.initialised(config, 0), tokenizer)
    return tmp_path / "instruct"


def test_every_shipped_recipe_is_tried_here() -> None:
    assert {path.stem for path in SHIPPED.glob("*.toml")} == {
        "bert", "book", "chat", "finetune", "induction", "translate",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["book", "induction"])
def test_a_new_model_by_a_recipe(name: str, text: Path, tmp_path: Path) -> None:
    ran = trained(str(text), "--recipe", name, "--out", str(tmp_path / "run"), *SMALL, *FEW)
    assert ran.status == 0, ran.said
    history = read_history(tmp_path / "run")
    assert history.step.tolist() == [1, 2, 3, 4]
    assert len(history.held_out) == 2
    stored = json.loads((tmp_path / "run" / "recipe.json").read_text("utf-8"))
    assert stored["first_weights"] == {"book": "even", "induction": "look_back"}[name]


def test_two_stacks_by_a_recipe_open_and_translate(tmp_path: Path) -> None:
    pairs, run = tmp_path / "pairs.csv", tmp_path / "run"
    pairs.write_text("en,number\n" + "".join(f"{word} {n},{n} {word}\n" for n in range(9) for word in ("cat", "dog")))
    ran = trained(str(pairs), "--recipe", "translate", "--field", "en,number", "--out", str(run), *SMALL, *FEW)
    assert ran.status == 0, ran.said
    assert "exact 0.0 %" in ran.said
    assert [step for step, _ in read_history(run).exact] == [2, 4]
    opened = tinytf.load(str(run))
    assert opened.config.encoder is not None
    assert opened.encoder.config.n_layers == opened.config.n_layers == 2
    assert check(opened.reading("cat 3").trace("3 cat")).holds


@pytest.mark.parametrize(("name", "more"), [("finetune", ("--block", "32")), ("chat", ())])
def test_a_model_that_is_trained_on_by_a_recipe(name, more, text, chats, instruct, tmp_path) -> None:
    corpus = chats if name == "chat" else text
    ran = trained(str(corpus), "--recipe", name, "--from", str(instruct), "--out", str(tmp_path / "run"), *FEW, *more)
    assert ran.status == 0, ran.said
    assert read_history(tmp_path / "run").lr.max() == 1e-3  # the most, for a model so narrow
    refused = trained(str(corpus), "--recipe", name, "--out", str(tmp_path / "none"))
    assert (refused.status, refused.said.splitlines()) == (
        2, [f"tinytf: error: the recipe {name} continues training a model", "hint: name it with --from MODEL"],
    )  # fmt: skip


def test_a_model_that_is_trained_on_has_small_steps_unless_others_are_asked_for() -> None:
    assert Recipe.from_dict({}).lr == 3e-3
    widths = {16: 1.2e-2, 64: 6e-3, 128: 3e-3, 768: 5e-4}
    assert {width: Recipe.from_dict({"model": {"d_model": width}}).lr for width in widths} == widths
    assert Recipe.from_dict({"model": {"d_model": 64}, "lr": 1e-3}).lr == 1e-3
    assert Recipe.from_dict({"begun_from": "tiny"}).lr == 5e-5
    assert Recipe.from_dict({"begun_from": "tiny", "lora": 8}).lr == 2e-3
    assert Recipe.from_dict({"begun_from": "tiny", "lr": 1e-3}).lr == 1e-3
    assert Recipe.from_dict({"begun_from": "tiny"}).warmup == 100


def test_a_recipe_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    ran = trained("x.txt", "--recipe", "books", "--out", str(tmp_path / "run"))
    assert ran.status == 2
    assert ran.said.endswith(
        "hint: a recipe is a TOML file, or one of bert, book, chat, finetune, induction, translate\n"
    )
