"""What an error proposes can be typed: its commands and options exist, its numbers are accepted, its names are near."""

import ast
import contextlib
import difflib
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from driving import Tinytf, is_a_clean_error, streams

import tinytf as library
import tinytf_cli
from tinytf.nearest import near_path
from tinytf_cli.command import Command, load
from tinytf_cli.failing import Failure, explained
from tinytf_cli.main import COMMANDS, EVERY, run
from tinytf_cli.ranges import Range

ROOTS = [Path(package.__file__).parent for package in (library, tinytf_cli)]
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*[a-z]\b|(?<![\w-])-[a-zA-Z]\b(?!-)")
OF_ALL = {"--version", "--help", "--debug"}
OTHER_PROGRAMS = re.compile(r"\b(?:iconv|torchrun|less|vllm|llama-[a-z-]+)\b")
PROSE = {"in", "opens", "reads", "shows"}
"""Words after tinytf that are no commands."""


def refused(name: str, *words: str) -> Failure:
    """How a command refuses words, before it does anything."""
    with pytest.raises(click.UsageError) as raised:
        load(name).make_context(f"tinytf {name}", [*words])
    return explained(raised.value)


def options(command: Command) -> dict[str, click.Option]:
    found = [one for one in command.params if isinstance(one, click.Option)]
    return {name: option for option in found for name in (*option.opts, *option.secondary_opts)}


@pytest.mark.share(12)
@pytest.mark.parametrize("name", EVERY)
def test_an_option_without_one_letter_leads_to_an_option_that_is_near(name: str) -> None:
    known = options(load(name))
    for option in (option for option in known if len(option) > 6):
        for typed in (option[:3] + option[4:], option[:-1]):
            if typed in known:
                continue
            hint = refused(name, typed).hint
            meant = re.search(r"--[\w-]+(?=[?( ])|it is an argument", hint.rpartition("did you mean ")[2])
            assert meant, (typed, hint)
            near = difflib.SequenceMatcher(None, typed, meant[0]).ratio()
            assert near >= 0.65 or meant[0] == "it is an argument" or typed in hint, (typed, hint)


@pytest.mark.share(12)
@pytest.mark.parametrize("name", EVERY)
def test_a_number_that_is_proposed_is_accepted_and_every_other_error_says_what_the_option_is(name: str) -> None:
    for option, declared in options(load(name)).items():
        if not option.startswith("--") or not isinstance(declared.type, Range):
            continue
        for typed, meant in {"1k": 1000, "1,000": 1000, "1e3": 1000, "5 tokens": 5, "200%": 2, "ten": None}.items():
            try:
                hint = refused(name, f"{option}={typed}").hint
            except pytest.fail.Exception:  # a real number may be 1e3
                continue
            if "is missing" in refused(name, f"{option}={typed}").message:  # a real number may be 1e3
                continue
            if proposed := re.fullmatch(r"did you mean (\S+)\?", hint):
                assert meant is not None
                assert declared.type.convert(proposed[1], declared, None) in (meant, 1)  # 1,000 may be 1 in decimals
            else:
                assert option in hint or hint == f"see tinytf {name} --help"


@pytest.mark.share(12)
@pytest.mark.parametrize("name", EVERY)
def test_what_a_command_lacks_or_has_too_much_of_is_said_with_what_it_takes(name: str) -> None:
    command = load(name)
    for option, declared in options(command).items():
        if declared.is_flag or not option.startswith("--"):
            continue
        failure = refused(name, option)
        assert failure.message.startswith((f"{option} needs", f"{option}")), failure
        assert failure.hint.startswith(("--", "see tinytf")), failure
    if not any(one.nargs == -1 for one in command.params if isinstance(one, click.Argument)):
        required = [word for one in options(command).values() if one.required for word in (max(one.opts, key=len), "1")]
        failure = refused(name, *required, *"abcdefgh")
        assert failure.hint.startswith(f"it is tinytf {name}"), failure


def hints() -> Iterator[tuple[str, str]]:
    """Every hint that an error is raised with, and where; what is filled in is X."""
    for root in ROOTS:
        for file in root.rglob("*.py"):
            tree = ast.parse(file.read_text("utf-8"))
            constants = {
                target.id: node.value
                for node in tree.body if isinstance(node, ast.Assign)
                for target in node.targets if isinstance(target, ast.Name)
            }  # fmt: skip
            for node in ast.walk(tree):
                if isinstance(node, ast.Call) and re.search(r"(?:Error|Shortage|Usage)$", ast.unparse(node.func)):
                    given = [word.value for word in node.keywords if word.arg == "hint"] or node.args[1:2]
                    for value in given:
                        where = f"{file.name}:{node.lineno}"
                        yield from ((where, text) for text in texts(value, constants))


def texts(node: ast.expr, constants: dict[str, ast.expr]) -> Iterator[str]:
    """The texts that an expression may be, as far as they stand in the code."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr():
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
        case ast.IfExp():
            yield from (*texts(node.body, constants), *texts(node.orelse, constants))
        case ast.BoolOp():
            yield from (text for value in node.values for text in texts(value, constants))
        case ast.Name() if node.id in constants:
            yield from texts(constants[node.id], {})


def test_the_commands_and_options_of_every_hint_exist() -> None:
    known = {name: OF_ALL | {*options(load(name))} for name in EVERY}
    wrong, count = [], 0
    for where, hint in hints():
        for clause in re.split(r"[;,] ", "" if OTHER_PROGRAMS.search(hint) else hint):
            called = re.search(r"\btinytf ([a-z][\w-]*)((?: \S+)*)", clause)
            name, rest = called.groups() if called and called[1] not in {*PROSE, "help"} else ("", clause)
            found = _OPTION.findall(rest)
            form = next((f"{name} {option}" for option in found if f"{name} {option}" in EVERY), name)
            having = (known.get(name, set()) | known.get(form, set())) if name else set().union(*known.values())
            wrong += [f"{where}: no command {name!r}: {hint}"] if name and name not in COMMANDS else []
            wrong += [f"{where}: no option {option} of {form!r}: {hint}" for option in found if option not in having]
            count += bool(found or name)
    assert wrong == []
    assert count > 100, "hints are found"


MISSPELT = (
    (("attention", "--pairs", "pair.jsonl", "-m", "tiny"), "pairs.jsonl"),
    (("probe", "--labels", "label.jsonl", "-m", "tiny"), "labels.jsonl"),
    (("record", "bok.txt", "--at", "L0.out", "--out", "new", "-m", "tiny"), "book.txt"),
    (("steer", "pairs.json", "--at", "L0.out", "-m", "tiny"), "pairs.jsonl"),
    (("train", "book.txt", "--recipe", "recip.toml", "--out", "new"), "recipe.toml"),
    (("verify", "workd.toml"), "worked.toml"),
    (("repl", "-f", "bok.txt", "-m", "tiny"), "book.txt"),
    (("runs", "rnu"), "run"),
    (("runs", "--follow", "rnu"), "run"),
    (("features", "the cat", "--sae", "sea", "-m", "tiny"), "sae"),
    (("trace", "the cat", "-m", "modl.gguf"), "model.gguf"),
    (("trace", "the cat", "-m", "./rnu"), "run"),
    (("models", "rnu"), "run"),
)


@pytest.mark.parametrize(("arguments", "meant"), MISSPELT)
def test_a_missing_file_leads_to_the_one_beside_it(
    tinytf: Tinytf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], meant: str
) -> None:
    for name in ("pairs.jsonl", "labels.jsonl", "book.txt", "recipe.toml", "worked.toml", "model.gguf"):
        (tmp_path / name).write_text("the cat sat", "utf-8")
    for name in ("run", "sae"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    ran = tinytf(*arguments)
    assert is_a_clean_error(ran, ran.status)
    assert ran.err.endswith(f"\nhint: did you mean {meant}?\n")


def test_no_file_is_near_by_its_ending_alone_and_none_is_instead_of_one_that_is_there(tmp_path: Path) -> None:
    for name in ("cut.safetensors", "run0", "run1"):
        (tmp_path / name).touch()
    assert near_path(tmp_path / "a.safetensors") == near_path(tmp_path / "run0") == ""
    assert near_path(tmp_path / "cutt.safetensors") == f"did you mean {tmp_path}/cut.safetensors?"


def test_a_folder_that_is_no_model_leads_to_the_one_inside(tinytf: Tinytf, tmp_path: Path, decoder: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "mine").symlink_to(decoder)
    assert f"hint: did you mean {tmp_path}/models/mine?" in tinytf("info", tmp_path / "models").err
    assert f"hint: name its folder: {decoder}\n" in tinytf("info", decoder / "model.safetensors").err
    (tmp_path / "models" / "adapter_config.json").write_text("{}", "utf-8")
    assert f"--adapter {tmp_path}/models\n" in tinytf("info", tmp_path / "models").err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has it")
def test_an_error_that_cannot_be_written_keeps_its_status() -> None:
    statuses = []
    with contextlib.suppress(OSError), open("/dev/full", "w") as full, streams(stderr=full):  # closing it fails
        statuses.append(run(["trace", "--top", "ten"]))
    assert statuses == [2]


@pytest.mark.parametrize(
    "error",
    [
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
        OSError(12, "Cannot allocate memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_too_little_memory_is_no_fault_of_tinytf(error: Exception) -> None:
    assert explained(error).message == "there is not enough memory for this"


@pytest.mark.parametrize("line", ["L0H0.weights", "show L0H0.weights", "L0H0.weights[1,0]"])
def test_an_address_typed_alone_in_a_session_leads_to_print(tinytf: Tinytf, decoder: Path, line: str) -> None:
    ran = tinytf("repl", "-m", decoder, "-c", "run the cat", "-c", line)
    proposed = ran.err.partition("hint: to look at a step: ")[2].strip()
    assert proposed == f"print {line.removeprefix('show ')}"
    assert tinytf("repl", "-m", decoder, "-c", "run the cat", "-c", proposed).status == 0
