"""Whatever the OpenAPI document allows or forbids, no answer is a server error."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error

from blink_numba.frontend.openapi import document

schema = schemathesis.openapi.from_dict(document())


@pytest.fixture(autouse=True)
def _served(server):
    schema.config.update(base_url=server.url)


@schema.parametrize()
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_server_error(case, server):
    case.call_and_validate(base_url=server.url, checks=[not_a_server_error], timeout=30)
