"""The few places in which the two databases differ."""

from __future__ import annotations

from stepseven._dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """Everything in which the two databases differ, as text that a statement takes in."""

    param: str  #: what ``:name`` becomes (a replacement for ``re.sub``)
    mark: str  #: a parameter given by position (the hottest statement: a dict costs more than its binding)
    schema: str  #: ``stepseven.`` or nothing
    hold: str  #: keeps the run from being taken until this statement commits
    hold_r: str  #: the same, of the row called ``r`` in a join
    lock: str  #: nobody else may change or name the row until this transaction ends
    skip_locked: str  #: two workers take two runs, instead of one waiting
    clock: str  #: what leases go by, in microseconds since 1970: the same for all that could take a run
    heard: str  #: when a worker (of table ``worker``) was last heard, or could not have been: by that clock
    lazily: str  #: a condition that is always true: the commit does not wait for the disk, and no lock is waited for long
    alone: str  #: the commit waits for the disk, and the lock ``{}`` is held: all in one statement; never an empty text
    started: str  #: tells when the server was started, in microseconds
    version: str  #: the database's own version
    size: str  #: how many bytes our tables take there, with their indexes
    arrival: str  #: in which order the rows of ``effect`` came
    items: str  #: the items of a list that is given as a JSON text, as a subquery; ``{}`` is the parameter


SQLITE = Dialect(
    lazily="", alone="", started="", version="sqlite_version()", arrival="rowid",
    size="(SELECT p.page_count * s.page_size FROM pragma_page_count() AS p, pragma_page_size() AS s)",
    param=r":\1", mark="?", schema="", hold="", hold_r="", lock="", skip_locked="",  # one writer at a time anyway
    clock=":now", heard="beat_us", items="SELECT value FROM json_each({})",  # all processes are on one machine, with one clock
)  # fmt: skip
POSTGRES = Dialect(
    param=r"%(\1)s", mark="%s", schema="stepseven.", hold="FOR SHARE", hold_r="FOR SHARE OF r", lock="FOR UPDATE",
    skip_locked="FOR UPDATE SKIP LOCKED",
    version="current_setting('server_version')", arrival="arrival",
    size="""(SELECT CAST(coalesce(sum(pg_total_relation_size(c.oid)), 0) AS bigint) FROM pg_class AS c
        WHERE c.relnamespace = to_regnamespace('stepseven') AND c.relkind = 'r')""",
    # Within the statement: a transaction around it would cost as much again.
    lazily="AND set_config('synchronous_commit', 'off', true) || set_config('lock_timeout', '250ms', true) <> ''",
    # One after the other, as they stand there: it waits for the lock within the limit, and looks at nothing before that.
    alone="""set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on'
        ELSE current_setting('synchronous_commit') END, true) || set_config('lock_timeout', '250ms', true)
        || CAST(pg_advisory_xact_lock({}) AS text)""",
    started="RETURNING CAST(extract(epoch FROM pg_postmaster_start_time()) * 1000000 AS bigint) AS started",
    clock="CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)",
    # While the server was away nobody could be heard: after its return every worker has a lease's time to say that it lives.
    heard="greatest(beat_us, CAST(extract(epoch FROM pg_postmaster_start_time()) * 1000000 AS bigint))",
    items="SELECT json_array_elements_text(CAST({} AS json))",
)  # fmt: skip
