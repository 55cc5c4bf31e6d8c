"""For the tests of those who build on stepseven: a layer in memory, under a clock that is moved by hand.

    async with testing.layer() as layer:
        outcome = await layer.run(renewal(quarter="Q3"), client="acme")
        await layer.answer_next("yes")
        layer.clock.advance(timedelta(days=3))
        outcome = await layer.resume(outcome.run_id)

``stepseven.testing.conformance`` is the suite every store passes.
"""

from stepseven.testing.clock import Clock, FakeEdge
from stepseven.testing.layers import TestLayer, layer

__all__ = ["Clock", "FakeEdge", "TestLayer", "layer"]
