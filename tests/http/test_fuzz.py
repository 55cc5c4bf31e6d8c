"""The API tried with whatever its own description allows, and with what it does not: no fault, and every answer as described."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from stepseven import Layer, Run, workflow
from tests.http.desk import served, token
from tests.servers.databases import url

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
IN_CI, IN_SOAK = 4, 80  #: cases of each operation and mode
STREAMS = {"get_events"}  # of a run that does not end, it does not end


@workflow
async def fuzz_asking(run: Run) -> str:
    """Asks once."""
    return str(await run.ask("May I?", options=["yes", "no"]))


@dataclass
class Target:
    schema: Any
    headers: dict[str, str]
    ids: dict[str, list[str]]


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    """A server with something in it, and a token that may everything."""

    async def fill() -> tuple[str, list[str]]:
        async with Layer(url(tmp_path)) as layer:
            for n in range(3):
                await layer.run(fuzz_asking(), client="acme", run_id=f"r{n}")
            return await token(layer, "admin"), [question.id for question in await layer.questions()]

    text, questions = asyncio.run(fill())
    with served(tmp_path) as server:
        headers = {"Authorization": f"Bearer {text}"}
        outside = {"workflow": "fuzz_elsewhere", "client_id": "acme", "run_id": "out", "steps": ["fetch"]}
        assert httpx.post(f"{server.url}/v1/runs", json=outside, headers=headers).status_code == 201
        ids = {"run_id": ["r0", "r1", "out"], "question_id": questions, "client_id": ["acme"], "step": ["fetch"]}
        yield Target(schemathesis.openapi.from_url(f"{server.url}/openapi.json"), headers, ids)


def try_all(target: Target, examples: int) -> int:
    """Every operation, with so many cases that fit its description and so many that do not; how many requests that were."""
    count = 0
    for found in target.schema.get_all_operations():
        operation = found.ok()
        if operation.definition.raw["operationId"] in STREAMS:
            continue
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            cases = operation.as_strategy(generation_mode=mode)

            @settings(max_examples=examples, database=None, suppress_health_check=list(HealthCheck), derandomize=True)
            @given(case=cases, data=st.data())
            def one(case: Any, data: Any) -> None:
                nonlocal count
                for name, known in target.ids.items():
                    if name in (case.path_parameters or {}) and data.draw(st.booleans()):
                        case.path_parameters[name] = data.draw(st.sampled_from(known))
                count += 1
                response = case.call(headers=target.headers, timeout=30)
                case.validate_response(response, checks=CHECKS)

            try:
                one()
            except Unsatisfiable:  # it takes nothing that could be wrong
                assert mode is GenerationMode.NEGATIVE
    return count


def test_whatever_is_sent_there_is_no_fault(target: Target) -> None:
    """A couple of hundred requests: none is answered with a fault of ours, and every answer is as the description says."""
    assert try_all(target, IN_CI) > 100


@pytest.mark.soak
def test_whatever_is_sent_for_long_there_is_no_fault(target: Target) -> None:
    """The same with thousands."""
    assert try_all(target, IN_SOAK) > 2000


def along_the_links(target: Target, examples: int) -> None:
    """Chains of requests, each with what the one before told: the links of the description."""
    machine = target.schema.exclude(operation_id=sorted(STREAMS)).as_state_machine()

    class Following(machine):
        def get_call_kwargs(self, case: Any) -> dict[str, Any]:
            return {"headers": target.headers, "timeout": 30}

        def validate_response(self, response: Any, case: Any, **more: Any) -> None:
            case.validate_response(response, checks=CHECKS)

    Following.run(settings=settings(max_examples=examples, stateful_step_count=8, database=None, derandomize=True,
                                    suppress_health_check=list(HealthCheck)))  # fmt: skip


@pytest.mark.soak
def test_whatever_follows_whatever_there_is_no_fault(target: Target) -> None:
    """Hundreds of chains along the links."""
    along_the_links(target, 300)
