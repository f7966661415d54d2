"""--chat: a text as a message of the user, messages from a file or a pipe, and what is refused."""

import json
import os
from pathlib import Path

import pytest
from driving import Tinytf

from tinytf.loading import load

TEMPLATE = (
    "{% for m in messages %}({{ m.role }}) {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}(assistant){% endif %}"
)
TURNS = [{"role": "user", "content": "The cat"}, {"role": "assistant", "content": "sat"}]


@pytest.fixture
def chatty(llama: Path, tmp_path: Path) -> Path:
    """The small Llama, with a chat template."""
    folder = tmp_path / "chatty"
    folder.mkdir()
    for path in llama.iterdir():
        os.link(path, folder / path.name)
    (folder / "chat_template.jinja").write_text(TEMPLATE, "utf-8")
    return folder


def asked(ran) -> list[tuple[str | None, str]]:
    """Who says what in the tokens of a JSON object: runs of one role."""
    found: list[tuple[str | None, str]] = []
    for token in json.loads(ran.out)["tokens"]:
        data = bytes.fromhex(token["bytes"]).decode()
        if found and found[-1][0] == token["role"]:
            found[-1] = (token["role"], found[-1][1] + data)
        else:
            found.append((token["role"], data))
    return found


def test_a_text_is_a_message_of_the_user(tinytf: Tinytf, chatty: Path):
    ran = tinytf("tokens", "-m", chatty, "--chat", "The cat", "--system", "Be a dog", "--json")
    assert json.loads(ran.out)["text"] == "(system) Be a dog\n(user) The cat\n(assistant)"
    said = [(role, text.strip()) for role, text in asked(ran) if role]
    assert said == [("system", "Be a dog"), ("user", "The cat")]
    assert json.loads(ran.out)["added"] == "chat template: 2 messages, then the assistant"


@pytest.mark.parametrize("way", ["file", "pipe", "dash", "lines", "object"])
def test_messages_come_from_a_file_or_a_pipe(way, tinytf: Tinytf, chatty: Path, tmp_path: Path):
    data = json.dumps({"messages": TURNS} if way == "object" else TURNS)
    (tmp_path / "said.json").write_text(data, "utf-8")
    words = {"file": [tmp_path / "said.json"], "dash": ["-"], "lines": ["-", "--lines"]}.get(way, [])
    ran = tinytf("tokens", "-m", chatty, "--chat", *words, "--json", stdin=data.encode())
    assert ran.status == 0
    found = json.loads(ran.out)
    assert (found["texts"][0] if way == "lines" else found)["text"] == "(user) The cat\n(assistant) sat\n"


def test_a_pipe_without_messages_is_a_message(tinytf: Tinytf, chatty: Path):
    ran = tinytf("tokens", "-m", chatty, "--chat", "--json", stdin=b"[1, 2] is a list\n")
    assert json.loads(ran.out)["text"] == "(user) [1, 2] is a list\n(assistant)"


def test_what_follows_a_conversation_is_what_follows_its_text(tinytf: Tinytf, chatty: Path, tmp_path: Path):
    (tmp_path / "said.json").write_text(json.dumps(TURNS), "utf-8")
    bare = load(str(chatty), device="cpu").generate("(user) The cat\n(assistant)", max_tokens=5)
    assert tinytf("generate", "-m", chatty, "--chat", "The cat", "--max-tokens", 5).out.rstrip("\n") == bare.rstrip(
        "\n"
    )
    going_on = load(str(chatty), device="cpu").generate("(user) The cat\n(assistant) sat", max_tokens=5)
    said = tinytf("generate", "-m", chatty, "--chat", tmp_path / "said.json", "--max-tokens", 5)
    assert said.out.rstrip("\n") == going_on.rstrip("\n")


@pytest.mark.parametrize("command", [
    ["trace"], ["attention"], ["lens"], ["attribute"], ["grad"], ["score"], ["ablate", "--at", "L0H0"],
    ["explain", "logits[-1,0]"], ["neurons"], ["rollout"],
])  # fmt: skip
def test_every_command_that_takes_a_text_takes_a_conversation(command, tinytf: Tinytf, chatty: Path):
    name, *more = command
    ran = tinytf(name, *([more[0]] if name == "explain" else []), "The cat", "-m", chatty, "--chat",
                 *(more if name != "explain" else []), "--json")  # fmt: skip
    assert ran.status == 0, ran.err
    assert json.loads(ran.out)["text"] == written("The cat")


def written(text: str) -> str:
    """A message of the user, as the template of the tests has it."""
    return f"(user) {text}\n(assistant)"


def test_two_conversations_are_compared_and_patched(tinytf: Tinytf, chatty: Path):
    ran = tinytf("diff", "The cat", "The dog", "-m", chatty, "--chat", "--json")
    assert ran.status == 0, ran.err
    data = json.loads(ran.out)
    assert [data[side]["text"] for side in ("first", "second")] == [written("The cat"), written("The dog")]
    words = ("--at", "L0", "--answer", "#5", "--versus", "#6")
    ran = tinytf("patch", "the cat", "the dog", "-m", chatty, "--chat", *words, "--json")
    assert ran.status == 0, ran.err
    data = json.loads(ran.out)
    assert [data[side]["text"] for side in ("clean", "corrupt")] == [written("the cat"), written("the dog")]
    refused = tinytf("diff", "The cat", "The dog", "-m", chatty, "--system", "Be a dog")
    assert refused.err.startswith("tinytf: error: --system is the system message of a conversation")


def test_models_are_blamed_on_conversations(tinytf: Tinytf, chatty: Path, tmp_path: Path):
    lines = tmp_path / "lines.txt"
    lines.write_text("The cat\n" + json.dumps(TURNS) + "\n", "utf-8")
    model = load(str(chatty), device="cpu")
    tokens = [len(model.encode(text).tokens) for text in (written("The cat"), "(user) The cat\n(assistant) sat\n")]
    ran = tinytf("blame", "--texts", lines, "--chat", "-m", chatty, "--versus", chatty, "--json")
    assert ran.status == 0, ran.err
    assert json.loads(ran.out)["positions"] == sum(tokens)
    ran = tinytf("blame", "The cat", "--chat", "-m", chatty, "--versus", chatty, "--json")
    assert (json.loads(ran.out)["positions"], json.loads(ran.out)["text"]) == (tokens[0], written("The cat"))


def test_a_dump_is_compared_on_a_conversation(tinytf: Tinytf, chatty: Path, tmp_path: Path):
    path = tmp_path / "a.safetensors"
    assert tinytf("trace", "The cat", "--chat", "-m", chatty, "-o", path).status == 0
    ran = tinytf("diff", "The cat", "--chat", "-m", chatty, "--versus", path, "--json")
    assert ran.status == 0, ran.err
    assert json.loads(ran.out)["first_difference"] is None
    assert tinytf("diff", "The cat", "-m", chatty, "--versus", path).status == 2


def test_what_cannot_be_a_conversation_is_refused(tinytf: Tinytf, chatty: Path, decoder: Path, tmp_path: Path):
    (tmp_path / "bad.json").write_text("[{", "utf-8")
    for arguments, said in (
        (["-m", decoder, "--chat", "The cat"], "this model has no chat template"),
        (["-m", chatty, "--system", "Be a dog", "The cat"], "--system is the system message of a conversation"),
        (["-m", chatty, "--chat", tmp_path / "none.json"], "there is no"),
        (["-m", chatty, "--chat", tmp_path / "bad.json"], "the conversation is not JSON"),
    ):
        for command in ("tokens", "trace", "generate"):
            ran = tinytf(command, *arguments)
            assert ran.status == 2, ran
            assert ran.err.startswith(f"tinytf: error: {said}")
            assert len(ran.err.splitlines()) == 2


def test_the_table_says_who_says_each_token(tinytf: Tinytf, chatty: Path):
    ran = tinytf("tokens", "-m", chatty, "--chat", "The cat")
    marks = [line.split()[-1] for line in ran.lines if line.strip()[:1].isdigit() and ":" in line]
    assert marks[0] == marks[-1] == "template"
    assert "user" in marks
    coloured = tinytf("tokens", "-m", chatty, "--chat", "The cat", "--color", "always", "--theme", "dark").out
    assert coloured != tinytf("tokens", "-m", chatty, "(user) The cat\n(assistant)", "--color", "always").out


def test_a_line_to_go_on_with_is_about_the_same_conversation(tinytf: Tinytf, chatty: Path):
    ran = tinytf("trace", "-m", chatty, "--chat", "The cat", "--system", "Be a dog")
    line = next(line for line in ran.lines if "tinytf attribute" in line)
    assert line.endswith("--chat --system 'Be a dog'")


def test_a_bare_text_that_is_ended_at_once_is_told_of_with_the_way_to_ask(tinytf: Tinytf, chatty: Path):
    model = load(str(chatty), device="cpu")
    probs = model.trace("The cat")["probs"][-1]
    end = int(probs.argmax())
    (chatty / "generation_config.json").write_text(json.dumps({"eos_token_id": end}), "utf-8")
    ran = tinytf("generate", "-m", chatty, "The cat")
    assert ran.status == 0
    said = f"tinytf: the model answers with {model.tokenizer.shown(end)} (p {probs[end]:.3f}) at once: "
    assert ran.err == f"{said}a bare text is no question to it; ask with --chat\n"
    (chatty / "chat_template.jinja").unlink()
    assert tinytf("generate", "-m", chatty, "The cat").err == ""


def test_a_session_runs_a_conversation_and_its_commands_are_about_it(tinytf: Tinytf, chatty: Path):
    lines = ["run --chat The cat --quiet", "tokens --json", "run The cat --quiet", "tokens --chat --json"]
    ran = tinytf("repl", "-m", chatty, *(word for line in lines for word in ("-c", line)))
    assert ran.status == 0, ran.err
    decoder, found, data = json.JSONDecoder(), [], ran.out.strip()
    while data:
        one, end = decoder.raw_decode(data)
        found, data = [*found, one["text"]], data[end:].strip()
    assert found == ["(user) The cat\n(assistant)"] * 2
    both = tinytf("repl", "-m", chatty, "-c", "run --chat The cat --quiet", "-c", "diff --chat --json 'The dog'")
    data = json.loads(both.out)
    assert [data[side]["text"] for side in ("first", "second")] == [written("The cat"), written("The dog")]


@pytest.mark.parametrize("named", [False, True])
def test_an_exported_model_keeps_its_template(named, tinytf: Tinytf, chatty: Path, tmp_path: Path):
    if named:
        (chatty / "additional_chat_templates").mkdir()
        (chatty / "additional_chat_templates" / "tool_use.jinja").write_text("with tools", "utf-8")
    assert tinytf("export", chatty, "--to", "huggingface", tmp_path / "out").status == 0
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert reference.apply_chat_template(TURNS, tokenize=False) == "(user) The cat\n(assistant) sat\n"
    assert reference.apply_chat_template(TURNS, tools=[], tokenize=False).startswith("with tools") == named
