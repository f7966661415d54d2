"""Conversations, and the chat template of a model, which makes one text of their messages."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tinytf.errors import CheckpointError, UsageError
from tinytf.files import CONFIGURATION, read_bytes

FILE, FOLDER = "chat_template.jinja", "additional_chat_templates"
_DEFAULT, _TOOLS = "default", "tool_use"
_REASONING = ("reasoning_content", "thinking", "reasoning")
_MARKS = 0xF0000
"""Characters for private use: two for each message, put around its content to find it in the text."""
_FORM = '[{"role": "user", "content": "What is the capital of France?"}]'


@dataclass(frozen=True)
class Conversation:
    """Messages, each with a ``role`` and a ``content``, and the ``tools`` that the model may call.

    Raises UsageError for what is not a list of messages.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.messages, list | tuple) or not self.messages:
            raise UsageError("a conversation is a list of one or more messages", f"such as {_FORM}")
        for number, message in enumerate(self.messages, 1):
            if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
                raise UsageError(f"message {number} is no object with a role and a content", f"such as {_FORM}")
        if self.tools is not None and not isinstance(self.tools, list | tuple):
            raise UsageError("the tools are no list", "each is an object with a name, a description and parameters")

    def __hash__(self) -> int:
        return hash(tuple(message["role"] for message in self.messages))

    def __str__(self) -> str:
        return "\n".join(f"{message['role']}: {message.get('content') or ''}" for message in self.messages)

    @classmethod
    def of(cls, text: str, system: str | None = None) -> Self:
        """One message of the user, after that of the system."""
        before = [] if system is None else [{"role": "system", "content": system}]
        return cls([*before, {"role": "user", "content": text}])

    @classmethod
    def from_json(cls, text: str, system: str | None = None) -> Self:
        """The messages of a JSON list, or of an object with ``messages`` and ``tools``."""
        try:
            data = json.loads(text)
        except ValueError as error:
            raise UsageError(f"the conversation is not JSON: {error}", f"such as {_FORM}") from None
        except RecursionError:
            raise UsageError("the conversation is nested too deeply", f"such as {_FORM}") from None
        tools = data.get("tools") if isinstance(data, dict) else None
        found = cls(data.get("messages", ()) if isinstance(data, dict) else data, tools)
        if system is None:
            return found
        if found.messages[0]["role"] == "system":
            raise UsageError("the conversation begins with a system message of its own", "leave out --system")
        return cls([{"role": "system", "content": system}, *found.messages], tools)

    @property
    def is_open(self) -> bool:
        """Whether the model's turn comes next; else the last message is the model's own."""
        return self.messages[-1]["role"] != "assistant"

    @property
    def in_words(self) -> str:
        count = len(self.messages)
        return f"{count:,} message{'s' if count > 1 else ''}{', then the assistant' if self.is_open else ''}"


Written = str | Conversation
"""What a model reads: a text, or a conversation."""


@dataclass(frozen=True)
class Said:
    """``text[start:end]`` is what the message ``number`` says, counted from 0."""

    number: int
    role: str
    start: int
    end: int


@dataclass(frozen=True)
class ChatTemplate:
    """The templates of a model by name, and the ``names`` of its special tokens, such as ``bos_token``."""

    templates: Mapping[str, str]
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def stored(self) -> str | list[dict[str, str]]:
        """As a tokenizer_config.json has it."""
        if self.templates.keys() == {_DEFAULT}:
            return self.templates[_DEFAULT]
        return [{"name": name, "template": template} for name, template in self.templates.items()]

    def render(self, conversation: Conversation, *, continued: bool = False) -> tuple[str, tuple[Said, ...]]:
        """The text of a conversation as ``apply_chat_template`` of transformers makes it, and what of it each one said.

        It ends where the assistant's turn begins, or where the last message is the assistant's, after that; with
        ``continued`` inside that message, which goes on. Only a message that the template writes as it is (but for
        space around it) is found. Raises as ``rendered`` does.
        """
        plain = self._rendered(conversation, conversation.messages)
        said = self._find(conversation, plain)
        if not continued or conversation.is_open:
            return plain, said
        last = said[-1] if said and said[-1].number == len(conversation.messages) - 1 else None
        if last is None:
            raise UsageError(
                "this chat template changes the last message, which is the assistant's, and it cannot be continued",
                "end with a message of the user",
            )
        content = conversation.messages[-1]["content"]
        space = content[len(content.rstrip()) :]
        return plain[: last.end + len(space) * plain.startswith(space, last.end)], said

    def _rendered(self, conversation: Conversation, messages: Iterable[Mapping[str, Any]]) -> str:
        from tinytf.text.template import rendered

        values = {
            **self.names,
            "messages": [_as_transformers(message) for message in messages],
            "tools": conversation.tools,
            "documents": None,
            "add_generation_prompt": conversation.is_open,
        }
        return rendered(self._source(conversation.tools is not None), values)

    def _source(self, tools: bool) -> str:
        for name in (*([_TOOLS] if tools else []), _DEFAULT):
            if name in self.templates:
                return self.templates[name]
        raise CheckpointError(f"none of the chat templates is named {_DEFAULT}: {', '.join(self.templates)}")

    def _find(self, conversation: Conversation, plain: str) -> tuple[Said, ...]:
        """Where each content stands: rendered once more, each between two characters that no text has."""
        marked = []
        for number, message in enumerate(conversation.messages):
            content = message.get("content")
            if isinstance(content, str) and (inside := content.strip()):
                before, after = content.split(inside, 1) if content != inside else ("", "")
                first, last = chr(_MARKS + 2 * number), chr(_MARKS + 2 * number + 1)
                message = {**message, "content": f"{before}{first}{inside}{last}{after}"}
            marked.append(message)
        try:
            text = self._rendered(conversation, marked)
        except (UsageError, CheckpointError):  # the template looks into the content
            return ()
        end_of_marks = _MARKS + 2 * len(marked)
        without, opened, said = [], dict[int, int](), []
        for char in text:
            mark = ord(char) - _MARKS
            if not 0 <= mark < end_of_marks - _MARKS:
                without.append(char)
            elif mark % 2 == 0:
                opened[mark // 2] = len(without)
            elif mark // 2 in opened:
                number = mark // 2
                said.append(Said(number, conversation.messages[number]["role"], opened[number], len(without)))
        return tuple(said) if "".join(without) == plain else ()


def _as_transformers(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message without what is None, its reasoning under each of the names that templates read."""
    kept = {name: value for name, value in message.items() if value is not None}
    reasoning = next((kept[name] for name in _REASONING if name in kept), None)
    return kept if reasoning is None else {"thinking": reasoning, **kept, "reasoning_content": reasoning}


def directory_template(directory: Path, settings: Mapping[str, Any], names: Mapping[str, str]) -> ChatTemplate | None:
    """The templates of a directory: of its own files, else of its tokenizer_config.json; None where there are none.

    Raises CheckpointError for what is no template.
    """
    files = {_DEFAULT: directory / FILE} if (directory / FILE).exists() else {}
    files |= {path.stem: path for path in sorted((directory / FOLDER).glob("*.jinja"))}
    if files:
        return ChatTemplate({name: _read(path) for name, path in files.items()}, names)
    return template_of(settings.get("chat_template"), names, directory / "tokenizer_config.json")


def template_of(said: Any, names: Mapping[str, str], path: Path) -> ChatTemplate | None:
    """A template, or several by name, as an object or a list of objects, as the file at ``path`` says it."""
    if said is None or said == "":
        return None
    if isinstance(said, str):
        return ChatTemplate({_DEFAULT: said}, names)
    try:
        pairs = said.items() if isinstance(said, dict) else [(one["name"], one["template"]) for one in said]
        return ChatTemplate({str(name): str(template) for name, template in pairs}, names)
    except (TypeError, KeyError):
        raise CheckpointError(f"{path}: chat_template is neither a text nor a list of named templates") from None


def _read(path: Path) -> str:
    try:
        return read_bytes(path, CONFIGURATION).decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from None
