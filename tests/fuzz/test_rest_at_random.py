"""REST called with whatever its own description allows, and with what it does not, by schemathesis."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error

from tests.fuzz.conftest import Target

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "10"))


def ask(target: Target, case: Any) -> None:
    answer = case.call(headers={**(case.headers or {}), **target.headers})
    case.validate_response(answer, checks=[not_a_server_error])
    assert answer.status_code != 401, "the token was lost on the way"
    if answer.status_code >= 400:
        assert json.loads(answer.text)["error"]["code"]
    assert "Traceback" not in answer.text


@pytest.mark.parametrize("mode", GenerationMode)
def test_every_call_is_answered_with_success_or_a_refusal_that_has_a_code(
    target: Target, mode: GenerationMode, subtests: pytest.Subtests
) -> None:
    schema = schemathesis.openapi.from_url(f"{target.served.url}/v1/openapi.json", headers=target.headers)
    # But for the call that could revoke the token that all others carry.
    found: Any = schema.exclude(path_regex="^/v1/tokens/").get_all_operations()
    operations = [each.ok() for each in found]
    assert len(operations) > 20
    for operation in operations:
        with subtests.test(operation.label):
            strategy: st.SearchStrategy[Any] = operation.as_strategy(generation_mode=mode)

            @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
            @given(strategy)
            def asked(case: Any) -> None:
                ask(target, case)

            try:
                asked()
            except Unsatisfiable:
                # A call without parameters and body cannot be made wrong.
                assert mode is GenerationMode.NEGATIVE


def test_the_service_is_well_after_all_of_it(target: Target) -> None:
    assert target.served.client().get("/healthz") == {"status": "ok"}
    log = target.served.log.read_text()
    assert "Traceback" not in log
    assert target.secret not in log, "secrets are not logged"
