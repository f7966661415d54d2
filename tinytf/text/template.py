"""Chat templates are Jinja programs by strangers: run as transformers runs them, in a sandbox in a process of its own.

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
"""How much a template may write."""
_APART = Worker("the chat template")


class _Generation(Extension):
    """``{% generation %}`` marks what the model wrote, for training; what is inside is written as it stands."""

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
        raise _too_much(f"has {len(source):,} characters")
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(source)


def rendered(source: str, values: Mapping[str, Any]) -> str:
    """What a template writes of these values.

    Raises UsageError where the template itself refuses them, and CheckpointError where it is damaged or takes more
    than its budget.
    """
    return _APART(_written, source, dict(values))


def _written(source: str, values: Mapping[str, Any]) -> str:
    """In the other process: what a template writes."""
    try:
        parts, size = [], 0
        for part in _compiled(source).generate(**values):
            parts.append(part)
            size += len(part)
            if size > CHARACTERS:
                raise _too_much(f"writes more than {CHARACTERS:,} characters")
        return "".join(parts)
    except (UsageError, CheckpointError, MemoryError):
        raise
    except RecursionError:
        raise _too_much("calls itself without an end") from None
    except jinja2.TemplateSyntaxError as error:
        raise CheckpointError(f"the chat template is damaged in line {error.lineno}: {error.message}") from None
    except Exception as error:  # whatever the Python raises that jinja makes of a template
        raise CheckpointError(
            f"the chat template fails: {error}", "see whether the messages have what it reads"
        ) from None


def _too_much(what: str) -> CheckpointError:
    return CheckpointError(
        f"the chat template {what}, and was stopped", "it comes with the model: is that to be trusted?"
    )
