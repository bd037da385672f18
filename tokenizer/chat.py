"""Chat templates: Jinja sources that come with a vocabulary, rendered as ``transformers`` renders them.

They are foreign code, so they run in Jinja's immutable sandbox.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tokenizer.errors import TokenizerError

#: The template of models that mark turns with ``<|im_start|>`` and ``<|im_end|>``.
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


class _Generation(Extension):
    """``{% generation %}`` marks the assistant's part for training masks; here it renders its body."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


@lru_cache(maxsize=64)
def _compile(source: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    helpers: dict[str, Callable[..., Any]] = {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
    }
    environment.globals.update(helpers)
    return environment.from_string(source)


def render(
    source: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool = True,
    tools: Sequence[Mapping[str, Any]] | None = None,
    variables: Mapping[str, Any] | None = None,
) -> str:
    """Text of a conversation.

    Parameters
    ----------
    source : str
        Jinja source of the template.
    messages : sequence of mapping
        Turns, each with ``role`` and ``content``.
    add_generation_prompt : bool
        End with the opening of the assistant's turn.
    tools : sequence of mapping, optional
        JSON schemas of the functions that may be called.
    variables : mapping, optional
        Further names that the template sees (``bos_token``, ``enable_thinking``, ...).

    Raises
    ------
    TokenizerError
        If the template does not compile, or refuses the conversation.
    """
    names = {**(variables or {}), "messages": messages, "tools": tools, "documents": None}
    try:
        return _compile(source).render(add_generation_prompt=add_generation_prompt, **names)
    except TemplateError as error:
        raise TokenizerError(f"the chat template refused the conversation: {error}") from error
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        raise TokenizerError(
            f"the chat template failed on the conversation ({type(error).__name__}: {error}); "
            "every message needs a role and a content that the template understands"
        ) from error
