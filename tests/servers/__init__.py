"""Real servers for the tests: a private PostgreSQL, a PgBouncer before it, and a line that breaks on demand.

Everything listens on the loopback network alone, on free ports, keeps its files in a temporary folder of its own, and is
ended by its pid. ``python -m tests.servers`` shows what can be done by hand.
"""
