"""Chat templates are untrusted Jinja programs: run as in transformers, in a sandbox in a worker process.

Source: ``render_jinja_template`` of transformers 5.23 for the environment, and for what a template may call.
"""

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import CallBlock, Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tinytf.errors import CheckpointError, UsageError
from tinytf.files import MEBI, SMALL
from tinytf.text.worker import Worker

CHARACTERS = 8 * MEBI
"""The most characters that a template may write."""
_WORKER = Worker("the chat template")


class _Generation(Extension):
    """``{% generation %}`` marks the model's text for training; here its contents are written unchanged."""

    tags = {"generation"}  # noqa: RUF012 - as jinja declares it

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("_inside"), [], [], body).set_lineno(line)

    def _inside(self, caller: Callable[[], str]) -> str:
        return caller()


def _refuse(message: str) -> None:
    raise UsageError(f"the chat template refuses this conversation: {message}", "change the messages")


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@lru_cache(maxsize=16)
def _compiled(source: str) -> jinja2.Template:
    if len(source) > SMALL:
        raise _stopped(f"has {len(source):,} characters")
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(source)


def render_template(source: str, values: Mapping[str, Any]) -> str:
    """The text that a template renders from ``values``.

    Raises UsageError if the template itself refuses the values, CheckpointError if it is damaged or exceeds its budget.
    """
    return _WORKER(_render, source, dict(values))


def _render(source: str, values: Mapping[str, Any]) -> str:
    """In the worker process: the text that a template renders."""
    try:
        parts, size = [], 0
        for part in _compiled(source).generate(**values):
            parts.append(part)
            size += len(part)
            if size > CHARACTERS:
                raise _stopped(f"writes more than {CHARACTERS:,} characters")
        return "".join(parts)
    except (UsageError, CheckpointError, MemoryError):
        raise
    except RecursionError:
        raise _stopped("calls itself endlessly") from None
    except jinja2.TemplateSyntaxError as error:
        raise CheckpointError(f"the chat template is damaged in line {error.lineno}: {error.message}") from None
    except Exception as error:  # whatever the Python code that jinja compiles raises
        raise CheckpointError(
            f"the chat template fails: {error}", "check that the messages have the fields it reads"
        ) from None


def _stopped(reason: str) -> CheckpointError:
    return CheckpointError(
        f"the chat template {reason}, and was stopped", "it comes with the model; do you trust that?"
    )
