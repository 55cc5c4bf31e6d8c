"""What a run has to know before it begins, as a question. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from stepseven.decide import _phrases as say
from stepseven.decide._situation import Draft, Situation, context_of, draft, run_name


def required(s: Situation, *, fact: str, also: Sequence[str] = ()) -> Draft:
    """A fact the workflow requires is not known: it is asked for once, before anything begins.

    Args:
        s: the run.
        fact: the fact's name.
        also: the other facts asked for at the same time, each by a question of its own.
    """
    client, name = say.who(s.client), fact_name(fact)
    headline = f"What is {say.possessive(client)} {name}?"
    why = f"I need it before I begin {run_name(s)}."
    calm = "Nothing was started yet."
    others = f"I also ask for the {say.listing([fact_name(other) for other in also])}." if also else ""
    keeps = f"Your answer is kept as {say.possessive(client)} {name}, so I will not ask again."
    context = context_of(s, nothing_changed=True) | {"needs": fact}
    return draft(headline, [why, calm, others], [keeps], more=[why, calm, others, keeps], options=(), context=context)


def fact_name(fact: str) -> str:
    """``contact.email`` → ``contact email``: unlike a step's module, what stands before the dot belongs to the name."""
    return say.humanise(fact.replace(".", "_"))
