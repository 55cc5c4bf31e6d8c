-- stepseven, schema 3: many workers on one database.
--
-- * `worker.modules`: what the worker can execute, as JSON {workflow: {"digest": …, "since_us": …}}: the digest of its source, and
--   since when that source is known. Of two live workers the one with the newer source takes the runs.
-- * `run.epoch`: the store's epoch when the run was admitted. After a backup was restored the store's is raised: what an older run
--   has no record of may have been done all the same. `store.restored_us`: when that was last said.

ALTER TABLE run ADD COLUMN epoch INTEGER NOT NULL DEFAULT 1;
ALTER TABLE store ADD COLUMN restored_us INTEGER;
CREATE INDEX run_queued ON run (no) WHERE status = 'queued';
CREATE INDEX run_stopping ON run (no) WHERE status = 'cancelling' OR status = 'failing';

-- The same view as before, but it tells `Run.fetch` from `run.ask`: LIKE does not see the case of a letter.
DROP VIEW checkpoint;
CREATE VIEW checkpoint AS
SELECT run.id AS run_id, run.client_id, run.workflow, run.status, run.waiting_for,
       run.open_questions AS open_questions_count, run.goal, run.updated_us,
       CASE WHEN run.document IS NOT NULL AND run.open_questions = 0 THEN run.document ELSE
       (WITH
        mine AS (
            SELECT * FROM step WHERE step.id BETWEEN run.no << 24 AND (run.no << 24) + 16777215
        ), map AS (  -- maps of the run itself; a map within an item counts with its item
            SELECT key, CAST(json_extract(result, '$.of') AS INTEGER) AS items
              FROM mine WHERE name = 'run.map' AND branch = ''
        ), latest AS (  -- the newest generation of each record, and the item it lies in: the first part of its branch
            SELECT id, name, state, max(generation),
                   CASE WHEN branch LIKE '%]%' THEN substr(branch, 1, instr(branch, ']')) ELSE '' END AS item
              FROM mine WHERE substr(name, 1, 4) <> 'run.' AND substr(name, 1, 7) <> 'client.' GROUP BY branch, name, key
        ), per_item AS (  -- an item is finished with a step when all its records of that name are
            SELECT name, item, substr(item, 1, instr(item, '[') - 1) AS base, min(id) AS first_id, max(id) AS last_id,
                   min(state IN ('done', 'skipped')) AS finished, min(state = 'done') AS done, count(*) AS records
              FROM latest GROUP BY name, item
        ), in_maps AS (
            SELECT b.name, sum(map.items) AS items
              FROM (SELECT DISTINCT name, base FROM per_item WHERE item <> '') AS b JOIN map ON map.key = b.base GROUP BY b.name
        ), asked AS (
            SELECT * FROM question WHERE run_no = run.no
        ), named AS (  -- `items`: only when all of its records lie in maps
            SELECT name, min(first_id) AS first_id, max(last_id) AS last_id, sum(finished) AS finished, sum(done) AS done,
                   count(*) AS seen, max(records) AS records,
                   CASE WHEN min(item <> '') THEN (SELECT items FROM in_maps WHERE in_maps.name = per_item.name) END AS items
              FROM per_item GROUP BY name ORDER BY first_id LIMIT 60
        ), cut AS (
            SELECT (SELECT count(DISTINCT name) FROM per_item) > 60 AS names,
                   (SELECT count(*) FROM (SELECT DISTINCT branch, name, key FROM attempt
                     WHERE run_no = run.no AND outcome IN ('failed', 'unknown'))) > 20 AS failures,
                   (SELECT count(*) FROM asked WHERE status = 'open' AND folded_into IS NULL) > 20 AS questions,
                   (SELECT count(*) FROM asked WHERE status = 'answered' AND folded_into IS NULL) > 30 AS decisions,
                   (SELECT count(DISTINCT key) FROM fact WHERE client_id = run.client_id AND run_id = run.id) > 40 AS facts
        ), tried AS (
            SELECT branch, name, key, max(n) AS n, json_group_array(coalesce(approach, 'as written')) AS approaches,
                   max(started_us) AS at_us
              FROM (SELECT * FROM attempt WHERE run_no = run.no AND outcome IN ('failed', 'unknown') ORDER BY n)
             GROUP BY branch, name, key ORDER BY at_us DESC LIMIT 20
        ), known AS (  -- what the run found out about its client: set by it, or remembered from an answer
            SELECT key, CASE WHEN length(value) <= 300 THEN json_object('value', json(value), 'version', max(version))
                             ELSE json_object('value', substr(value, 1, 200) || '…', 'version', max(version)) END AS value
              FROM fact WHERE client_id = run.client_id AND run_id = run.id GROUP BY key LIMIT 40
        ), whole AS (
            SELECT json_object(
                'run_id', run.id, 'client_id', run.client_id, 'workflow', run.workflow, 'goal', substr(run.goal, 1, 1000),
                'status', run.status,
                'inputs', CASE WHEN length(run.inputs) <= 4000 THEN json(run.inputs)
                               ELSE json_object('…', substr(run.inputs, 1, 2000) || '…') END,
                'facts', (SELECT json_group_object(key, json(value)) FROM (SELECT * FROM (
                    SELECT key, value FROM known
                    UNION ALL
                    SELECT key, CASE WHEN length(result) <= 400 THEN result
                                     ELSE json_object('value', substr(result, 1, 200) || '…') END
                      FROM mine WHERE name = 'client.get' AND branch = '' AND result <> 'null'
                       AND key NOT IN (SELECT key FROM known) LIMIT 40)
                    UNION ALL SELECT '…', '"cut"' FROM cut WHERE facts)),
                'steps_complete', (SELECT json_group_array(name) FROM (
                    SELECT name FROM named WHERE finished >= coalesce(items, seen)
                       AND NOT EXISTS (SELECT 1 FROM asked WHERE asked.step = named.name AND status = 'open')
                       AND (SELECT started_us FROM mine WHERE mine.id = last_id) >= coalesce((
                           SELECT max(started_us) FROM attempt WHERE attempt.run_no = run.no AND attempt.name = named.name), 0)
                    UNION ALL SELECT '…' FROM cut WHERE names)),
                'artifacts', (SELECT json_group_object(name, json(value)) FROM (
                    SELECT named.name, CASE WHEN items IS NOT NULL THEN
                        json_object('done', done, 'of', items, 'latest', coalesce(
                            substr(last.summary, 1, 200), substr(last.result, 1, 120)))
                      WHEN seen > 1 OR records > 1 THEN
                        json_object('done', done, 'latest', coalesce(substr(last.summary, 1, 200), substr(last.result, 1, 120)))
                      ELSE json_object('summary', coalesce(substr(last.summary, 1, 200), substr(last.result, 1, 120)),
                            'ref', last.artifact) END AS value
                      FROM named JOIN mine AS last ON last.id = named.last_id
                    UNION ALL SELECT '…', '"cut"' FROM cut WHERE names)),
                'failures', (SELECT json_group_array(json(value)) FROM (SELECT * FROM (
                    SELECT json_object('step', tried.name, 'kind', a.kind, 'reason', substr(a.reason, 1, 300),
                                       'approaches', json(tried.approaches)) AS value
                      FROM tried JOIN attempt AS a ON a.run_no = run.no AND a.branch = tried.branch
                       AND a.name = tried.name AND a.key = tried.key AND a.n = tried.n ORDER BY tried.at_us)
                    UNION ALL SELECT '"…"' FROM cut WHERE failures)),
                'open_questions', (SELECT json_group_array(json(value)) FROM (SELECT * FROM (
                    SELECT json_object('id', id, 'text', substr(text, 1, 400)) AS value FROM asked
                     WHERE status = 'open' AND folded_into IS NULL ORDER BY created_us LIMIT 20)
                    UNION ALL SELECT '"…"' FROM cut WHERE questions)),
                'decisions', (SELECT json_group_array(json(value)) FROM (SELECT * FROM (
                    SELECT json_object('text', substr(text, 1, 200), 'answer', json(CASE WHEN length(answer) <= 300 THEN answer
                               ELSE json_quote(substr(answer, 1, 200) || '…') END), 'by', answered_by) AS value
                      FROM asked WHERE status = 'answered' AND folded_into IS NULL ORDER BY answered_us DESC LIMIT 30)
                    UNION ALL SELECT '"…"' FROM cut WHERE decisions)),
                'next_step', run.next_step,
                'remaining', json(coalesce(run.remaining, '[]')),
                'spend', json_object(
                    'usd', ((SELECT coalesce(sum(usd), 0) FROM mine)
                        + (SELECT coalesce(sum(usd), 0) FROM attempt WHERE run_no = run.no)) / 1e6,
                    'tokens', (SELECT coalesce(sum(tokens), 0) FROM mine)
                        + (SELECT coalesce(sum(tokens), 0) FROM attempt WHERE run_no = run.no))) AS document
        )
        SELECT CASE WHEN length(CAST(document AS BLOB)) <= 65536 THEN document ELSE json_object(
            'run_id', run.id, 'client_id', run.client_id, 'workflow', run.workflow, 'status', run.status,
            'goal', substr(run.goal, 1, 200), 'inputs', json_object('…', 'cut'), 'facts', json_object('…', 'cut'),
            'steps_complete', (SELECT json_group_array(substr(name, 1, 60)) FROM named WHERE finished >= coalesce(items, seen)),
            'artifacts', json_object('…', 'cut'), 'failures', json_array('…'),
            'open_questions', (SELECT json_group_array(json_object('id', id, 'text', text)) FROM (
                SELECT id, substr(text, 1, 200) AS text FROM asked
                 WHERE status = 'open' AND folded_into IS NULL ORDER BY created_us LIMIT 5)),
            'decisions', json_array('…'), 'next_step', run.next_step, 'remaining', json_array('…'),
            'spend', json_extract(document, '$.spend')) END
          FROM whole) END AS document
  FROM run;
