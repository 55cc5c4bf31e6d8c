-- stepseven, schema 2: what is known about a client outlives its runs.
--
-- * `step.facts`: which facts the step's code read while it ran, as JSON {key: version}; what the workflow itself reads is a
--   record of its own (`client.get`).
-- * `run.pruned_us`: when an ended run was shrunk to its summaries, decisions and receipts.
-- * `client.note`: who paused the client and why. `client.forgotten_us`: when all that was known of it was deleted.

ALTER TABLE step ADD COLUMN facts TEXT;
ALTER TABLE run ADD COLUMN pruned_us INTEGER;
ALTER TABLE client ADD COLUMN note TEXT;
ALTER TABLE client ADD COLUMN forgotten_us INTEGER;
CREATE INDEX run_ended ON run (ended_us) WHERE ended_us IS NOT NULL AND pruned_us IS NULL;
