"""The OpenAPI document, made from the same models that check the bodies."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from blink_numba import __version__
from blink_numba.frontend.exchange import ADMIN_PATH
from blink_numba.frontend.schema import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest

_BODIES: dict[str, tuple[type[BaseModel], str]] = {
    "/v1/chat/completions": (ChatRequest, "Answer a conversation"),
    "/v1/completions": (CompletionRequest, "Continue a text"),
    "/tokenize": (TokenizeRequest, "Ids of a text or a conversation"),
    "/detokenize": (DetokenizeRequest, "Text of ids"),
}
_READS = {
    "/v1/models": "Models served",
    "/v1/models/{model}": "One model",
    "/health": "200 while the scheduler's heartbeat moves",
    "/metrics": "Prometheus metrics",
    "/version": "Version of the server",
}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


@lru_cache(maxsize=2)
def document(*, admin: bool = False) -> dict[str, Any]:
    """The document, as JSON-ready data; with the administrator's endpoint where it is on."""
    bodies = _BODIES
    if admin:
        from blink_numba.frontend.admin import PolicyRequest

        bodies = {**_BODIES, ADMIN_PATH: (PolicyRequest, "Swap the scheduling policy")}
    models = [body for body, _ in bodies.values()]
    schemas, definitions = models_json_schema(
        [(model, "validation") for model in models], ref_template="#/components/schemas/{model}"
    )
    paths: dict[str, Any] = {}
    for path, (body, summary) in bodies.items():
        paths[path] = {
            "post": {
                "summary": summary,
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": schemas[body, "validation"]}},
                },
                "responses": _responses("400", "401", "404", "408", "413", "415", "503"),
            }
        }
    for path, summary in _READS.items():
        read: dict[str, Any] = {"summary": summary, "responses": _responses("401", "404", "503")}
        if "{model}" in path:
            read["parameters"] = [
                {
                    "name": "model",
                    "in": "path",
                    "required": True,
                    "schema": {"type": "string", "minLength": 1},
                }
            ]
        paths[path] = {"get": read}
    components = {"schemas": {**definitions["$defs"], "Error": _ERROR}}
    if admin:
        paths[ADMIN_PATH]["get"] = {
            "summary": "The scheduling policy in force",
            "responses": _responses("401", "501", "503"),
        }
        paths[ADMIN_PATH]["post"]["responses"] |= _responses("409", "501", "504")
        for operation in paths[ADMIN_PATH].values():
            operation["security"] = [{"adminKey": []}]
        components["securitySchemes"] = {"adminKey": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "blink-numba", "version": __version__},
        "paths": paths,
        "components": components,
    }


def _responses(*errors: str) -> dict[str, Any]:
    refusal = {
        "description": "An error in OpenAI's shape",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    return {"200": {"description": "The answer"}} | dict.fromkeys(errors, refusal)
