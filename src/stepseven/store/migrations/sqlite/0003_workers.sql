-- stepseven, schema 3: many workers on one database.
--
-- * `worker.modules`: what the worker can execute, as JSON {workflow: {"digest": …, "since_us": …}}: the digest of its source, and
--   since when that source is known. Of two live workers the one with the newer source takes the runs.
-- * `run.epoch`: the store's epoch when the run was admitted. After a backup was restored the store's is raised: what an older run
--   has no record of may have been done all the same.

ALTER TABLE run ADD COLUMN epoch INTEGER NOT NULL DEFAULT 1;
CREATE INDEX run_queued ON run (no) WHERE status = 'queued';
CREATE INDEX run_stopping ON run (no) WHERE status = 'cancelling' OR status = 'failing';
