"""Conversations of every kind that chat templates tell apart, some of which each of them refuses."""

from collections.abc import Mapping
from typing import Any

from tinytf.text.chat import Conversation


def _says(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city <now> & tomorrow, in °C",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "array", "items": {"type": "integer"}},
                "unit": {"type": "string", "enum": ["C", "F"]},
            },
            "required": ["city"],
        },
    },
}
"""A tool that the model may call."""
_CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich", "days": [1, 2]}}}
_NUMBERED = {**_CALL, "id": "abcdef123"}
_AS_TEXT = {"type": "function", "function": {"name": "weather", "arguments": '{"city": "Zürich"}'}}
_FIRST, _ANSWER = _says("user", "What is the capital of France?"), _says("assistant", "Paris.")
_ASKED, _TOLD = _says("user", "The weather?"), _says("tool", '{"t": 21}')

MESSAGES: Mapping[str, list[dict[str, Any]]] = {
    "one question": [_FIRST],
    "a system message": [_says("system", "Be brief."), _FIRST],
    "a system message alone": [_says("system", "Be brief.")],
    "several turns": [_says("system", "Be brief."), _FIRST, _ANSWER, _says("user", "And of Italy?")],
    "an answer": [_FIRST, _ANSWER],
    "an answer to continue": [_FIRST, _says("assistant", "The capital is ")],
    "unicode": [_says("user", "猫 と 🐈‍⬛, naïve e\u0301 <|im_end|> {{ 1 + 1 }} {% raw %} \\n 'quoted'")],
    "empty": [_says("user", "")],
    "space around": [_says("system", " \n be \n"), _says("user", "\n  hello\n\n"), _says("assistant", " hi "), _FIRST],
    "line ends of Windows": [_says("user", "one\r\ntwo\r\n"), _ANSWER, _says("user", "\tthree\r\n\r\n")],
    "the user twice": [_FIRST, _FIRST],
    "the assistant first": [_ANSWER, _FIRST],
    "the system in between": [_FIRST, _ANSWER, _says("system", "Be brief."), _FIRST],
    "an unknown role": [_says("critic", "No."), _FIRST],
    "no content": [{"role": "user"}],
    "nothing in it": [_says("user", None)],
    "a list of parts": [_says("user", [{"type": "text", "text": "What is it?"}])],
    "a picture and a text": [_says("user", [{"type": "image"}, {"type": "text", "text": "What is it?"}])],
    "reasoning": [_FIRST, _says("assistant", "Paris.", reasoning_content="It is\n")],
    "reasoning by an older name": [_FIRST, _says("assistant", "Paris.", thinking="It is"), _says("user", "Why?")],
    "reasoning in the text": [_FIRST, _says("assistant", "<think>\nParis?\n</think>\n\nParis."), _says("user", "Why?")],
    "reasoning before a call": [_ASKED, _says("assistant", "", reasoning_content="Ask.", tool_calls=[_CALL]), _TOLD],
    "a call": [_ASKED, _says("assistant", None, tool_calls=[_CALL]), _TOLD],
    "a call with its number": [
        _ASKED,
        _says("assistant", None, tool_calls=[_NUMBERED]),
        {**_TOLD, "tool_call_id": _NUMBERED["id"]},
    ],
    "a call with a text of arguments": [_ASKED, _says("assistant", "", tool_calls=[_AS_TEXT]), _TOLD],
    "an answer after a call": [
        _ASKED, _says("assistant", None, tool_calls=[_CALL]), _TOLD, _says("assistant", "21 °C."), _FIRST,
    ],
    "two calls": [_ASKED, _says("assistant", "Wait.", tool_calls=[_CALL, _CALL])],
}  # fmt: skip
"""The messages by what they try."""

CONVERSATIONS: Mapping[str, Conversation] = {
    name + ending: Conversation(messages, tools)
    for name, messages in MESSAGES.items()
    for ending, tools in (("", None), (", with a tool", [WEATHER]))
}
"""Each of them without a tool and with one: 54."""
