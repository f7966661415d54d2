"""Conversations, and the chat template of a model, which renders their messages as one text."""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tinytf.errors import CheckpointError, UsageError
from tinytf.files import CONFIGURATION, parse_json, read_bytes

FILE, FOLDER = "chat_template.jinja", "additional_chat_templates"
_DEFAULT, _TOOLS = "default", "tool_use"
_REASONING = ("reasoning_content", "thinking", "reasoning")
_MARKS = 0xF0000
"""The first of the private-use characters, two for each message, that mark its content in the rendered text."""
_THOUGHTS_END = "</think>"
_EXAMPLE = '[{"role": "user", "content": "What is the capital of France?"}]'


@dataclass(frozen=True)
class Conversation:
    """Messages, each with a ``role`` and a ``content``, and the ``tools`` that the model may call.

    ``variables`` are what the chat template gets beside these; ``chat_template`` among them names one of several.
    Raises UsageError for anything but a list of messages.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.messages, list | tuple) or not self.messages:
            raise UsageError("a conversation is a list of one or more messages", f"such as {_EXAMPLE}")
        for number, message in enumerate(self.messages, 1):
            if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
                raise UsageError(f"message {number} is not an object with a role and a content", f"such as {_EXAMPLE}")
        if self.tools is not None and not isinstance(self.tools, list | tuple):
            raise UsageError("the tools are not a list", "each is an object with a name, a description and parameters")

    def __hash__(self) -> int:
        return hash(tuple(message["role"] for message in self.messages))

    def __str__(self) -> str:
        return "\n".join(f"{message['role']}: {message.get('content') or ''}" for message in self.messages)

    @classmethod
    def of(cls, text: str, system: str | None = None) -> Self:
        """A conversation of one user message, after an optional system message."""
        system_messages = [] if system is None else [{"role": "system", "content": system}]
        return cls([*system_messages, {"role": "user", "content": text}])

    @classmethod
    def from_json(cls, text: str, system: str | None = None) -> Self:
        """The messages of a JSON list, or of an object with ``messages`` and ``tools``."""
        try:
            data = parse_json(text)
        except ValueError as error:
            raise UsageError(f"the conversation is not JSON: {error}", f"such as {_EXAMPLE}") from None
        tools = data.get("tools") if isinstance(data, dict) else None
        conversation = cls(data.get("messages", ()) if isinstance(data, dict) else data, tools)
        if system is None:
            return conversation
        if conversation.messages[0]["role"] == "system":
            raise UsageError("the conversation already begins with a system message", "leave out --system")
        return cls([{"role": "system", "content": system}, *conversation.messages], tools)

    @property
    def is_open(self) -> bool:
        """Whether it is the model's turn; if not, the last message is the model's."""
        return self.messages[-1]["role"] != "assistant"

    @property
    def summary(self) -> str:
        count = len(self.messages)
        return f"{count:,} message{'s' if count > 1 else ''}{', then the assistant' if self.is_open else ''}"


@dataclass(frozen=True)
class TextPair:
    """Two texts that an encoder reads as one, such as a question and a passage."""

    first: str
    second: str


class Rendered(str):
    """A text that has its special tokens already, such as a rendered prompt: none is added to it."""

    __slots__ = ()


Written = str | Conversation | TextPair
"""What a model reads: a text, a conversation, or two texts as one."""


@dataclass(frozen=True)
class MessageSpan:
    """``text[start:end]`` is the content of the message ``number``, counted from 0."""

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
        """The templates in the form of tokenizer_config.json."""
        if self.templates.keys() == {_DEFAULT}:
            return self.templates[_DEFAULT]
        return [{"name": name, "template": template} for name, template in self.templates.items()]

    def render(self, conversation: Conversation, *, continued: bool = False) -> tuple[str, tuple[MessageSpan, ...]]:
        """The text of a conversation, as ``apply_chat_template`` of transformers renders it, and its message spans.

        The text ends with the beginning of the assistant's turn, or, after a message of the assistant, with the end of
        that turn; if ``continued``, it ends inside that message. A message has a span only if the template writes it
        unchanged, except for space around it. Raises as ``render_template`` does.
        """
        text = self._render(conversation, conversation.messages)
        spans = self._message_spans(conversation, text)
        if not continued or conversation.is_open:
            return text, spans
        last = spans[-1] if spans and spans[-1].number == len(conversation.messages) - 1 else None
        if last is None:
            raise UsageError(
                "this chat template changes the assistant's last message, so it cannot be continued",
                "end with a message of the user",
            )
        content = conversation.messages[-1]["content"]
        trailing_space = content[len(content.rstrip()) :]
        return text[: last.end + len(trailing_space) * text.startswith(trailing_space, last.end)], spans

    def _render(self, conversation: Conversation, messages: Iterable[Mapping[str, Any]]) -> str:
        from tinytf.text.template import render_template

        values = {
            **self.names,
            "messages": [_for_template(message) for message in messages],
            "tools": conversation.tools,
            "documents": None,
            "add_generation_prompt": conversation.is_open,
            **conversation.variables,
        }
        return render_template(self._template(conversation), values)

    def _template(self, conversation: Conversation) -> str:
        if named := conversation.variables.get("chat_template"):
            return self.templates.get(named, named)  # a template itself, as in transformers
        for name in (*([_TOOLS] if conversation.tools is not None else []), _DEFAULT):
            if name in self.templates:
                return self.templates[name]
        raise CheckpointError(
            f"none of the chat templates is named {_DEFAULT}; their names are {', '.join(self.templates)}"
        )

    def _message_spans(self, conversation: Conversation, plain: str) -> tuple[MessageSpan, ...]:
        """The span of each message, from a second rendering with private-use characters around the contents."""
        text, found = self.marked(conversation)
        roles = [message["role"] for message in conversation.messages]
        return tuple(MessageSpan(n, roles[n], *span) for n, span in found.items()) if text == plain else ()

    def marked(
        self, conversation: Conversation, roles: Container[str] | None = None, *, thoughts: bool = True
    ) -> tuple[str, dict[int, tuple[int, int]]]:
        """The text of a conversation, and the spans in it of the contents between private-use characters, by message.

        Only contents of some ``roles`` are marked; without ``thoughts``, what follows the last ``</think>``. The text
        is that of ``render`` unless the template inspects the contents; it is empty where the template then fails.
        """
        marked_messages = []
        for number, message in enumerate(conversation.messages):
            content = message.get("content")
            if isinstance(content, str) and (roles is None or message["role"] in roles):
                answer = content if thoughts else without_thoughts(content)
                if body := answer.strip():
                    lead, trail = answer.split(body, 1) if answer != body else ("", "")
                    opening, closing = chr(_MARKS + 2 * number), chr(_MARKS + 2 * number + 1)
                    message = {**message, "content": f"{content[: -len(answer)]}{lead}{opening}{body}{closing}{trail}"}
            marked_messages.append(message)
        try:
            text = self._render(conversation, marked_messages)
        except (UsageError, CheckpointError):  # the template inspects the content
            return "", {}
        end_of_marks = _MARKS + 2 * len(marked_messages)
        unmarked, starts, spans = [], dict[int, int](), dict[int, tuple[int, int]]()
        for char in text:
            mark = ord(char) - _MARKS
            if not 0 <= mark < end_of_marks - _MARKS:
                unmarked.append(char)
            elif mark % 2 == 0:
                starts[mark // 2] = len(unmarked)
            elif mark // 2 in starts:
                spans[mark // 2] = (starts[mark // 2], len(unmarked))
        return "".join(unmarked), spans


def without_thoughts(content: str) -> str:
    """What of an answer follows its thoughts; all of it if it has none."""
    return content.rpartition(_THOUGHTS_END)[2]


def _for_template(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message without None values, with its reasoning under every name that templates read."""
    present = {name: value for name, value in message.items() if value is not None}
    reasoning = next((present[name] for name in _REASONING if name in present), None)
    return present if reasoning is None else {"thinking": reasoning, **present, "reasoning_content": reasoning}


def directory_template(directory: Path, settings: Mapping[str, Any], names: Mapping[str, str]) -> ChatTemplate | None:
    """The templates of a directory, from template files, else from tokenizer_config.json; None if it has none.

    Raises CheckpointError for an invalid template.
    """
    files = {_DEFAULT: directory / FILE} if (directory / FILE).exists() else {}
    files |= {path.stem: path for path in sorted((directory / FOLDER).glob("*.jinja"))}
    if files:
        return ChatTemplate({name: _read(path) for name, path in files.items()}, names)
    return template_of(settings.get("chat_template"), names, directory / "tokenizer_config.json")


def template_of(stored: Any, names: Mapping[str, str], path: Path) -> ChatTemplate | None:
    """A template, or several by name as an object or a list of objects, in the form stored in the file at ``path``."""
    if stored is None or stored == "":
        return None
    if isinstance(stored, str):
        return ChatTemplate({_DEFAULT: stored}, names)
    try:
        pairs = stored.items() if isinstance(stored, dict) else [(entry["name"], entry["template"]) for entry in stored]
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
