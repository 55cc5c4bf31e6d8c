"""A run that takes its process with it."""

from __future__ import annotations

import json

from tests.crash.story import Stage, known

MAIN = "tests.crash.poison:main"


def test_three_ends_without_a_new_record_ask_before_a_fourth(stage: Stage):
    """Three ends in a row without a new record: a ``poison`` question, nothing is started; ``again`` leads to the same end."""
    stage.fresh()
    for life in range(1, 5):
        assert stage.live(main=MAIN).killed
        assert stage.outside.ran["fragile"] == life
        if life == 3:
            break
    # The first life wrote records; the second, third and fourth did not.
    ends = [stage.live(main=MAIN) for _ in range(2)]
    while ends[0].killed:
        ends = [ends[1], stage.live(main=MAIN)]
    tried = stage.outside.ran["fragile"]
    for end in ends:
        told = json.loads(end.out)
        assert told["status"] == "waiting"
        assert [(kind, options) for kind, _, options in told["asked"]] == [("poison", ["again", "stop"])]
    assert "fragile" in told["asked"][0][1]
    assert stage.outside.ran["before"] == 1
    assert tried <= 4
    stage.outside.act("/effect/mend", None, '{"ref": "it"}')
    end = stage.live(main=MAIN, how="again")
    assert json.loads(end.out) == {"status": "done", "value": 4, "asked": []}
    assert (stage.outside.ran["fragile"], stage.outside.ran["before"]) == (tried + 1, 1)
    assert not known(stage.state).begun


def test_other_runs_are_unaffected_by_a_poisoned_one(stage: Stage):
    """While one run waits with a ``poison`` question, another in the same store runs to its end."""
    stage.fresh()
    while stage.live(main=MAIN).killed:
        pass
    stage.outside.said.clear()
    end = stage.live()
    assert end.code == 0
    assert json.loads(stage.live(main=MAIN).out)["status"] == "waiting"
