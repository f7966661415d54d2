"""Conversations of every kind that chat templates tell apart, some of which each of them refuses."""

from typing import Any


def says(role: str, content: Any, **more: Any) -> dict[str, Any]:
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
_CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich", "days": [1, 2]}}}
_FIRST, _ANSWER = says("user", "What is the capital of France?"), says("assistant", "Paris.")

CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one question": [_FIRST],
    "a system message": [says("system", "Be brief."), _FIRST],
    "several turns": [says("system", "Be brief."), _FIRST, _ANSWER, says("user", "And of Italy?")],
    "an answer": [_FIRST, _ANSWER],
    "an answer to continue": [_FIRST, says("assistant", "The capital is ")],
    "unicode": [says("user", "猫 と 🐈‍⬛, naïve e\u0301 <|im_end|> {{ 1 + 1 }} {% raw %} \\n 'quoted'")],
    "empty": [says("user", "")],
    "space around": [says("system", " \n be \n"), says("user", "\n  hello\n\n"), says("assistant", " hi "), _FIRST],
    "the user twice": [_FIRST, _FIRST],
    "the assistant first": [_ANSWER, _FIRST],
    "the system in between": [_FIRST, _ANSWER, says("system", "Be brief."), _FIRST],
    "an unknown role": [says("critic", "No."), _FIRST],
    "no content": [{"role": "user"}],
    "nothing in it": [says("user", None)],
    "a list of parts": [says("user", [{"type": "text", "text": "What is it?"}])],
    "reasoning": [_FIRST, says("assistant", "Paris.", reasoning_content="It is\n")],
    "reasoning by an older name": [_FIRST, says("assistant", "Paris.", thinking="It is"), says("user", "Why?")],
    "reasoning in the text": [_FIRST, says("assistant", "<think>\nParis?\n</think>\n\nParis."), says("user", "Why?")],
    "a call": [says("user", "The weather?"), says("assistant", None, tool_calls=[_CALL]), says("tool", '{"t": 21}')],
    "two calls": [says("user", "The weather?"), says("assistant", "Wait.", tool_calls=[_CALL, _CALL])],
}
