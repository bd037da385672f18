"""Errors in OpenAI's shape: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from blink_numba.errors import ParameterError

LONGEST_SHOWN = 1000  # characters of what a client sent that an error or the log repeats


def shortened(text: str) -> str:
    """A text, without its middle if it is long."""
    if len(text) <= LONGEST_SHOWN:
        return text
    return f"{text[: LONGEST_SHOWN // 2]} … {text[-LONGEST_SHOWN // 2 :]}"


class ApiError(Exception):
    """An answer other than 200.

    Parameters
    ----------
    status : int
        HTTP status.
    message : str
        What is wrong and what would be right.
    param : str, optional
        The parameter at fault.
    code : str, optional
        OpenAI's code where it has one.
    retry_after_s : int, optional
        Sent as ``Retry-After``.
    headers : dict, optional
        Further headers of the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code = status, code
        self.message, self.param = shortened(message), None if param is None else shortened(param)
        self.headers = dict(headers or {})
        if retry_after_s is not None:
            self.headers["retry-after"] = str(retry_after_s)

    @property
    def kind(self) -> str:
        """OpenAI's error type of the status."""
        if self.status == 401:
            return "authentication_error"
        if self.status == 404:
            return "not_found_error"
        if self.status == 503:
            return "overloaded_error"
        return "invalid_request_error" if self.status < 500 else "server_error"

    def body(self) -> bytes:
        """The JSON body."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return json.dumps({"error": error}, ensure_ascii=False).encode()


def invalid(param: str | None, message: str, code: str | None = None) -> ApiError:
    """A 400 that names its parameter."""
    return ApiError(400, message, param=param, code=code)


def from_validation(error: ValidationError) -> ApiError:
    """What pydantic found first, as a 400 that names the parameter."""
    findings = error.errors(include_url=False, include_context=True)
    # Where a value may have several forms, the form that it came closest to tells most.
    field = findings[0]["loc"][:1]
    finding = max([one for one in findings if one["loc"][:1] == field], key=lambda one: len(one["loc"]))
    kind = finding["type"]
    if kind == "json_invalid":
        reason = finding.get("ctx", {}).get("error", "not JSON")
        return ApiError(400, f"the body is not valid JSON: {reason}")
    cause = finding.get("ctx", {}).get("error")
    param = cause.param if isinstance(cause, ParameterError) else parameter_path(finding["loc"]) or None
    if kind == "extra_forbidden":
        return invalid(
            param, f"the parameter {param!r} is unknown or not supported here", "unsupported_parameter"
        )
    if kind == "missing":
        return invalid(param, f"the parameter {param!r} is required", "missing_required_parameter")
    message = finding["msg"].removeprefix("Value error, ")
    return invalid(param, f"{param}: {message}" if param else message)


_UNION_TAGS = ("str", "int", "float", "bool", "none", "dict", "list")


def parameter_path(location: Iterable[Any]) -> str:
    """Path of a parameter such as ``messages[0].role`` from pydantic's location."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part in _UNION_TAGS or "[" in part or part.startswith("function-") or part[:1].isupper():
            continue  # which branch of a union was tried
        else:
            path += f".{part}" if path else part
    return path
