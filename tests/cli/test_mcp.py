"""The tools for assistants, asked by the client of the protocol's own package, over a real process."""

import asyncio
import itertools
import json
import os
import shutil
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from mcp import ClientSession, StdioServerParameters, stdio_client
from mcp.server.mcpserver.exceptions import ToolError

import tinytf
from tinytf_cli.mcp_server import Bench, answering, fitted, tools

ASSETS = Path(tinytf.__file__).parent / "assets"
TEXT = "The cat sat on the"


def asked(root: Path | None, ask: Callable[[ClientSession], Awaitable[Any]]) -> Any:
    """What ``ask`` gets from a server in a process of its own."""

    async def session() -> Any:
        roots = [] if root is None else ["--root", str(root)]
        server = StdioServerParameters(command=sys.executable, args=["-m", "tinytf", "mcp", *roots], env={**os.environ})
        async with stdio_client(server) as streams, ClientSession(*streams) as client:
            await client.initialize()
            return await ask(client)

    return asyncio.run(session())


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    (inside := folder / "inside").mkdir()
    shutil.copytree(ASSETS / "tiny", inside / "mine")
    shutil.copytree(ASSETS / "tiny", folder / "outside")
    (inside / "link").symlink_to(folder / "outside")
    return inside


@pytest.mark.slow
def test_every_tool_answers_with_the_data_of_its_command_also_when_all_are_asked_at_once(root: Path) -> None:
    model = tinytf.load("tiny")
    calls: dict[str, tuple[dict[str, Any], Any]] = {
        "trace": ({"text": TEXT, "at": ["L1H2.weights"]}, model.traced(TEXT, at=["L1H2.weights"])),
        "explain": ({"text": TEXT, "address": "L1H2.scores[2,1]"}, model.explain(TEXT, "L1H2.scores[2,1]")),
        "diff": ({"text": TEXT, "other_text": "The dog sat on the"}, model.diff(TEXT, "The dog sat on the")),
        "lens": ({"text": TEXT, "track": ["mat"]}, model.lens(TEXT, track=["mat"], position="-1")),
        "attribute": (
            {"text": TEXT, "token": "mat", "versus": "rug"},
            model.attribute(TEXT, token="mat", versus="rug"),
        ),
        "ablate": ({"text": TEXT, "at": ["L1H2"]}, model.ablate(TEXT, ["L1H2"])),
        "patch": (
            {"clean": TEXT, "corrupt": "The dog sat on the", "at": ["L2.in"], "answer": "mat", "versus": "rug"},
            model.patch(TEXT, "The dog sat on the", ["L2.in"], answer="mat", versus="rug"),
        ),
        "score": ({"text": TEXT}, model.score(TEXT)),
    }

    async def ask(client: ClientSession) -> Any:
        listed = await client.list_tools()
        both = ({"text": TEXT, "other_model": "mine"}, {"text": TEXT, "model": "mine", "other_model": "tiny"})
        at_once = [client.call_tool(name, arguments) for name, (arguments, _) in calls.items()]
        *answers, ported, back = await asyncio.gather(*at_once, *(client.call_tool("diff", pair) for pair in both))
        return listed.tools, dict(zip(calls, answers, strict=True)), (ported, back)

    listed, answers, ported = asked(root, ask)
    assert [tool.name for tool in listed] == list(calls)
    for tool in listed:
        assert tool.description
        assert tool.annotations.read_only_hint
        assert {"text", "clean"} & set(tool.input_schema["required"])
        assert all(member.get("description") for member in tool.input_schema["properties"].values())
    for name, (_, report) in calls.items():
        data = json.loads(answers[name].content[0].text)
        expected = json.loads(json.dumps({"holds": report.holds, **report.to_dict()}))
        left_out = data.pop("left_out", {})
        assert data.get("sentence") == expected.get("sentence")
        assert set(data) == set(expected)
        if not left_out:
            assert data == expected
    assert all(json.loads(one.content[0].text)["holds"] for one in ported)


@pytest.mark.slow
def test_paths_stay_below_the_roots_and_errors_are_one_line(root: Path) -> None:
    names = ["../outside", str(root.parent / "outside"), "link", "hub:gpt2", "/etc", "nothing"]

    async def ask(client: ClientSession) -> Any:
        refused = [await client.call_tool("score", {"text": TEXT, "model": name}) for name in names]
        opened = await client.call_tool("score", {"text": TEXT, "model": str(root / "mine")})
        wrong = await client.call_tool("explain", {"text": TEXT, "address": "L9.ffn[0,0]"})
        one = await client.call_tool("ablate", {"text": TEXT, "at": "L1H2"})
        return refused, opened, wrong, one

    refused, opened, wrong, one = asked(root, ask)
    for result in refused:
        assert result.is_error
        assert "there is no model" in result.content[0].text or "nothing is downloaded" in result.content[0].text
    assert not opened.is_error
    assert "there is no layer 9: the model has 4 layers" in wrong.content[0].text
    assert "Traceback" not in wrong.content[0].text
    assert one.structured_content["at"] == ["L1H2"]  # which needs no list
    assert json.loads(one.content[0].text) == one.structured_content


@pytest.mark.parametrize(
    "rounds", [pytest.param(2, id="all at once"), pytest.param(0, id="every pair", marks=pytest.mark.exhaustive)]
)
def test_calls_in_threads_answer_what_they_answer_one_after_the_other(root: Path, rounds: int) -> None:
    bench = Bench((root,))
    asks = {name: answering(function, bench) for name, function in tools(bench).items()}
    pair = {"clean": TEXT, "corrupt": "The dog sat on the", "answer": "mat", "versus": "rug"}
    calls: list[tuple[str, dict[str, Any]]] = [
        ("trace", {"text": TEXT}),
        ("trace", {"text": TEXT, "model": "mine"}),
        ("explain", {"text": TEXT, "address": "L1H2.scores[2,1]"}),
        ("diff", {"text": TEXT, "other_text": "The dog sat on the"}),
        ("lens", {"text": TEXT, "track": ["mat"]}),
        ("attribute", {"text": TEXT}),
        ("ablate", {"text": TEXT}),
        ("patch", {**pair}),
        ("score", {"text": TEXT, "model": "tiny-encoder"}),
        ("score", {"text": TEXT}),
    ]

    def ask(number: int) -> str:
        name, arguments = calls[number]
        try:
            return str(asks[name](**arguments).content[0].text)  # type: ignore[union-attr]
        except ToolError as error:
            return str(error)

    alone = [ask(number) for number in range(len(calls))]
    together = [[*range(len(calls))] * rounds] if rounds else itertools.product(range(len(calls)), repeat=2)
    for numbers in together:
        with ThreadPoolExecutor(len(numbers)) as threads:
            assert [*threads.map(ask, numbers)] == [alone[number] for number in numbers]


def test_a_long_answer_loses_its_largest_lists_alone_and_says_where() -> None:
    report = tinytf.load("tiny").traced("The cat sat on the mat. " * 10)
    whole = json.loads(json.dumps(report.to_dict(), default=str))
    data = fitted(whole)
    assert 12_000 < len(json.dumps(data, ensure_ascii=False, separators=(",", ":"))) <= 24_000
    assert data["predictions"] == whole["predictions"]
    assert data["layers"] == whole["layers"]
    assert data["left_out"]["steps"] == f"the first {len(data['steps'])} of {len(whole['steps'])} are here"
    assert data["steps"] == whole["steps"][: len(data["steps"])]
    assert data["values"].keys() == whole["values"].keys()
    assert fitted({"numbers": [1, 2, 3]}) == {"numbers": [1, 2, 3]}
    assert fitted({"rows": [[*range(40)]] * 10, "few": [1, 2]}, 200) == {
        "rows": [[*range(10)]] * 5, "few": [1, 2], "left_out": {"rows": "the first 5 × 10 of 10 × 40 are here"},
    }  # fmt: skip


def test_every_tool_reads_a_source_for_two_stacks_and_generates_its_target() -> None:
    source, other, target = "the third of May 1994", "the third of June 1994", {"target_text": "1994-0"}
    bound = tinytf.load("tiny-translator").reading(source)
    asked, more = (
        tools(Bench(())),
        {"explain": {"address": "source[May,2]", "depth": 3}, "patch": {"at": ["enc.L0.out"]}},
    )
    more["diff"] = {"other_text": other}
    for name, ask in asked.items():
        texts = {"clean": source, "corrupt": other} if name == "patch" else {"text": source}
        report = ask(**texts, **more.get(name, {}), **target, model="tiny-translator")
        assert report.holds, name
        assert report.to_dict().get("text", "1994-0") == "1994-0", name
        assert ask(**texts, **more.get(name, {}), model="tiny-translator").holds, name
    found = asked["explain"](text=source, address="source[May,2]", depth=3, model="tiny-translator").to_dict()
    assert [cell["address"][:4] for cell in found["explanations"]] == ["sour", "enc.", "enc."]
    assert asked["score"](text=source, model="tiny-translator").to_dict()["text"] == bound.generate("")
