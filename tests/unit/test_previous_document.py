"""The document a run pins about the one before it: small, honest about what it leaves out, and read back as it was."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepseven import ArtifactGone
from stepseven.decide.previous import MAX_BYTES, Found, document, previous_of, shortened

ANY = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x))


def found(n: int, text: str) -> Found:
    """So many rows of each kind, each with *text* wherever it can be."""
    value = json.dumps(text, ensure_ascii=False)
    fact = {"version": 1, "source": text[:300], "run_id": "r" * 200, "set_by": text[:300], "set_us": 1, "valid_until_us": None}
    asked = {
        "text": text, "answer": value, "answered_by": text[:200], "answered_us": 2**53, "run_id": "r" * 200,
        "kind": "ask", "step": "s" * 80, "note": text,
    }  # fmt: skip
    run = {
        "run_id": "r" * 200, "workflow": "w" * 80, "status": "waiting", "waiting_for": "person", "open_questions_count": 1,
        "goal": text, "updated_us": 2**53,
    }  # fmt: skip
    tried = {"name": "s" * 80, "kind": "fixable", "reason": text, "approach": text[:80], "started_us": 1, "ended_us": 2}
    return Found(
        run={
            "id": "r" * 200, "status": "done", "ended_us": 2**53, "goal": text, "value": value, "pruned_us": None,
            "inputs": json.dumps({f"{i}{'i' * 60}": text for i in range(n)}, ensure_ascii=False),
        },
        results=[{"name": f"{i}{'s' * 70}", "text": value, "summary": text[:2000]} for i in range(n)],
        decisions=[asked] * n, failures=[tried] * n, facts=[{**fact, "key": f"{i}{'k' * 190}", "value": value} for i in range(n)],
        facts_since=[
            {"key": f"{i}{'k' * 190}", "version": 2, "value": value, "source": text[:300], "set_us": 3, "old_version": 1,
             "old_value": value} for i in range(n)
        ],
        decisions_since=[asked] * n, runs_since=[run] * n,
    )  # fmt: skip


@pytest.mark.parametrize("n", [0, 1, 12, 400])
@pytest.mark.parametrize("text", ["", "x" * 500, "日" * 5000, '\x01"\\' * 3000, "🙂" * 2500])
def test_the_document_is_never_over_its_limit(n: int, text: str) -> None:
    """However many rows there are, however long and in whichever script: at most 64 KiB, what is missing is counted."""
    made = document(found(n, text))
    assert len(json.dumps(made, ensure_ascii=False).encode()) <= MAX_BYTES - 2048  # the hashes of what is cut come on top
    shown = len(made["facts"]) + made["left_out"].get("facts", 0)
    assert shown == n
    for section in ("artifacts", "inputs", "summaries"):
        whole = 0 if section == "summaries" and not text else n
        assert len(made[section]) + made["left_out"].get(section, 0) == whole


def test_a_cut_value_is_named_wherever_code_may_rely_on_it() -> None:
    """Inputs, artifacts, facts and changed facts that are not whole are listed; short ones are not."""
    assert document(found(1, "short"))["cut"] == []
    made = document(found(1, "x" * 3000))
    assert {name.rstrip("isk") for name in made["cut"]} == {
        "inputs.0", "artifacts.0", "summaries.0", "facts.0", "changed.facts.0",
    }  # fmt: skip


@pytest.mark.parametrize("text", ["x", "x" * 500])
@pytest.mark.parametrize("there, gone", [(0, 3), (3, 3), (0, 4000), (400, 4000)])
def test_results_that_are_gone_are_named_within_the_share(there: int, gone: int, text: str) -> None:
    """A pruned result is in `cut`, and never among the artifacts; those whose names do not fit are counted, too."""
    rows = found(there, text)
    lost = [{"name": f"gone{i}", "text": None, "summary": None} for i in range(gone)]
    made = document(replace(rows, results=[*lost, *rows.results]))
    assert len(json.dumps(made, ensure_ascii=False).encode()) <= MAX_BYTES - 2048
    named = [name for name in made["cut"] if name.startswith("artifacts.gone")]
    assert len(made["artifacts"]) + len(named) + made["left_out"].get("artifacts", 0) == there + gone
    if gone == 3:
        assert named == ["artifacts.gone0", "artifacts.gone1", "artifacts.gone2"]
    before = previous_of(made, "acme", None, lambda value: value)
    if named:
        with pytest.raises(ArtifactGone, match="gone0"):
            before.artifact("gone0")


@given(value=ANY, most=st.integers(20, 300))
def test_what_is_shortened_fits_and_says_so(value: Any, most: int) -> None:
    """A value that fits stays itself; any other becomes a text that fits and ends with the mark."""
    shown = shortened(value, most)
    assert len(json.dumps(shown, ensure_ascii=False).encode("utf-8", "surrogatepass")) <= most
    if shown is not value:
        assert shown.endswith("…")


def test_what_is_read_back_is_what_was_found() -> None:
    """Every section of the document has its place in the value."""
    told = json.loads(json.dumps(document(found(2, "t"))))
    before = previous_of(told, "acme", "v", lambda value: value)
    assert before.value == "v"
    assert [f.client_id for f in before.facts.values()] == ["acme", "acme"]
    assert (len(before.decisions), len(before.failures), len(before.changed.facts)) == (2, 2, 2)
    assert (len(before.changed.decisions), len(before.changed.runs)) == (2, 2)
    assert before.changed.runs[0].client_id == "acme"
