-- stepseven, schema 4: people are told, and others report over HTTP.
--
-- * `question.ladder_us`: when the next thing is due for an open question (tell somebody, remind, hand over); NULL: nothing is.
--   `question.rung`: how often it was handed over; `question.person_id`: with whom it is now. A link in a message is of one rung
--   and dies with it. `question.objections`: what was said after it had its answer, as JSON. `question.callback`: where its answer
--   is sent to.
-- * `person.clients`: whose questions are theirs, as JSON list (NULL: everybody's). `person.rank`: who is asked first.
--   `remind_us`, `hand_over_us`: after how much of their working time. `away_until_us`: not before.
-- * `delivery`: one message to one person (or one callback), with its tries. While a try is under way, `next_us` is when another
--   may be made. `delivery.body`: what a callback says; a person's message is written from the question when it is sent.
-- * `token.name`: who it is, in answers and lists; `token.used_us`: of a token that signs in once, when it did. `session.csrf`: hash
--   of what a form has to bring. `token.run_no`: it executes this run and knows no other; `token.parent_id`: who asked for it.
-- * `run.token_id`: which token started it, if one did: what reports a run does not decide what people are asked in it.
-- * `ticket`: a step that somebody outside has begun, by the hash of its token. `reply`: what was said to a request with an
--   `Idempotency-Key`: the same request is told the same.
-- * `workflow`: each one that a worker ever could execute; others are executed elsewhere.
-- * `resource.looks`: how often it was tried since it is open. `resource.trial_us`: since when a run tries it; while it is open,
--   when a waiting run was last woken to do so. `resource.next_us`: when it may be tried; when it is closed, since when.
-- * `store.link_key`: what links in messages are signed with.

ALTER TABLE person ADD COLUMN clients TEXT;
ALTER TABLE person ADD COLUMN rank INTEGER NOT NULL DEFAULT 0;
ALTER TABLE person ADD COLUMN remind_us INTEGER;
ALTER TABLE person ADD COLUMN hand_over_us INTEGER;
ALTER TABLE person ADD COLUMN away_until_us INTEGER;
ALTER TABLE person ADD COLUMN removed_us INTEGER;

ALTER TABLE question ADD COLUMN ladder_us INTEGER;
ALTER TABLE question ADD COLUMN rung INTEGER NOT NULL DEFAULT 0;
ALTER TABLE question ADD COLUMN person_id TEXT;
ALTER TABLE question ADD COLUMN objections TEXT;
ALTER TABLE question ADD COLUMN callback TEXT;

ALTER TABLE delivery ADD COLUMN rung INTEGER NOT NULL DEFAULT 0;
ALTER TABLE delivery ADD COLUMN body TEXT;

ALTER TABLE token ADD COLUMN name TEXT;
ALTER TABLE token ADD COLUMN person_id TEXT;
ALTER TABLE token ADD COLUMN expires_us INTEGER;
ALTER TABLE token ADD COLUMN used_us INTEGER;
ALTER TABLE token ADD COLUMN run_no INTEGER;
ALTER TABLE token ADD COLUMN parent_id TEXT;

ALTER TABLE run ADD COLUMN token_id TEXT;

ALTER TABLE session ADD COLUMN name TEXT;
ALTER TABLE session ADD COLUMN csrf TEXT;
ALTER TABLE session ADD COLUMN token_id TEXT;

ALTER TABLE resource ADD COLUMN looks INTEGER NOT NULL DEFAULT 0;
ALTER TABLE resource ADD COLUMN trial_us INTEGER;

ALTER TABLE store ADD COLUMN link_key TEXT;

CREATE TABLE ticket (
    run_no        INTEGER NOT NULL,
    branch        TEXT NOT NULL,
    name          TEXT NOT NULL,
    key           TEXT NOT NULL,
    n             INTEGER NOT NULL,
    hash          TEXT PRIMARY KEY,
    fence         INTEGER NOT NULL,
    settings      TEXT NOT NULL,
    lease_until_us INTEGER,
    opened_us     INTEGER NOT NULL,
    closed_us     INTEGER
);
CREATE TABLE workflow (
    name          TEXT PRIMARY KEY,
    since_us      INTEGER NOT NULL
);
CREATE TABLE reply (
    token_id      TEXT NOT NULL,
    key           TEXT NOT NULL,
    request       TEXT NOT NULL,
    client_id     TEXT,
    status        INTEGER NOT NULL,
    body          TEXT NOT NULL,
    created_us    INTEGER NOT NULL,
    PRIMARY KEY (token_id, key)
);
CREATE INDEX question_ladder ON question (ladder_us) WHERE status = 'open' AND ladder_us IS NOT NULL;
CREATE INDEX question_incident ON question (incident_id) WHERE incident_id IS NOT NULL;
CREATE INDEX incident_cause ON incident (kind, signature, created_us);
CREATE INDEX delivery_question ON delivery (question_id) WHERE question_id IS NOT NULL;
CREATE INDEX delivery_run ON delivery (run_no) WHERE run_no IS NOT NULL;
CREATE INDEX question_callback ON question (callback) WHERE callback IS NOT NULL;
CREATE INDEX question_created ON question (created_us);
CREATE INDEX ticket_open ON ticket (run_no, name, key) WHERE closed_us IS NULL;
CREATE INDEX ticket_lease ON ticket (lease_until_us) WHERE closed_us IS NULL;
CREATE INDEX reply_created ON reply (created_us);
