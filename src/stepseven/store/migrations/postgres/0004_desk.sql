-- stepseven, schema 4 on PostgreSQL: people are told, and others report over HTTP.
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

ALTER TABLE stepseven.person ADD COLUMN clients text;
ALTER TABLE stepseven.person ADD COLUMN rank bigint NOT NULL DEFAULT 0;
ALTER TABLE stepseven.person ADD COLUMN remind_us bigint;
ALTER TABLE stepseven.person ADD COLUMN hand_over_us bigint;
ALTER TABLE stepseven.person ADD COLUMN away_until_us bigint;
ALTER TABLE stepseven.person ADD COLUMN removed_us bigint;

ALTER TABLE stepseven.question ADD COLUMN ladder_us bigint;
ALTER TABLE stepseven.question ADD COLUMN rung bigint NOT NULL DEFAULT 0;
ALTER TABLE stepseven.question ADD COLUMN person_id text COLLATE "C";
ALTER TABLE stepseven.question ADD COLUMN objections text;
ALTER TABLE stepseven.question ADD COLUMN callback text;

ALTER TABLE stepseven.delivery ADD COLUMN rung bigint NOT NULL DEFAULT 0;
ALTER TABLE stepseven.delivery ADD COLUMN body text;

ALTER TABLE stepseven.token ADD COLUMN name text COLLATE "C";
ALTER TABLE stepseven.token ADD COLUMN person_id text COLLATE "C";
ALTER TABLE stepseven.token ADD COLUMN expires_us bigint;
ALTER TABLE stepseven.token ADD COLUMN used_us bigint;
ALTER TABLE stepseven.token ADD COLUMN run_no bigint;
ALTER TABLE stepseven.token ADD COLUMN parent_id text COLLATE "C";

ALTER TABLE stepseven.run ADD COLUMN token_id text COLLATE "C";

ALTER TABLE stepseven.session ADD COLUMN name text COLLATE "C";
ALTER TABLE stepseven.session ADD COLUMN csrf text COLLATE "C";
ALTER TABLE stepseven.session ADD COLUMN token_id text COLLATE "C";

ALTER TABLE stepseven.resource ADD COLUMN looks bigint NOT NULL DEFAULT 0;
ALTER TABLE stepseven.resource ADD COLUMN trial_us bigint;

ALTER TABLE stepseven.store ADD COLUMN link_key text;

CREATE TABLE stepseven.ticket (
    run_no        bigint NOT NULL,
    branch        text COLLATE "C" NOT NULL,
    name          text COLLATE "C" NOT NULL,
    key           text COLLATE "C" NOT NULL,
    n             bigint NOT NULL,
    hash          text COLLATE "C" PRIMARY KEY,
    fence         bigint NOT NULL,
    settings      text NOT NULL,
    lease_until_us bigint,
    opened_us     bigint NOT NULL,
    closed_us     bigint
);
CREATE TABLE stepseven.workflow (
    name          text COLLATE "C" PRIMARY KEY,
    since_us      bigint NOT NULL
);
CREATE TABLE stepseven.reply (
    token_id      text COLLATE "C" NOT NULL,
    key           text COLLATE "C" NOT NULL,
    request       text COLLATE "C" NOT NULL,
    client_id     text COLLATE "C",
    status        bigint NOT NULL,
    body          text NOT NULL,
    created_us    bigint NOT NULL,
    PRIMARY KEY (token_id, key)
);
CREATE INDEX question_ladder ON stepseven.question (ladder_us) WHERE status = 'open' AND ladder_us IS NOT NULL;
CREATE INDEX question_incident ON stepseven.question (incident_id) WHERE incident_id IS NOT NULL;
CREATE INDEX incident_cause ON stepseven.incident (kind, signature, created_us);
CREATE INDEX delivery_question ON stepseven.delivery (question_id) WHERE question_id IS NOT NULL;
CREATE INDEX delivery_run ON stepseven.delivery (run_no) WHERE run_no IS NOT NULL;
CREATE INDEX question_callback ON stepseven.question (callback) WHERE callback IS NOT NULL;
CREATE INDEX question_created ON stepseven.question (created_us);
CREATE INDEX ticket_open ON stepseven.ticket (run_no, name, key) WHERE closed_us IS NULL;
CREATE INDEX ticket_lease ON stepseven.ticket (lease_until_us) WHERE closed_us IS NULL;
CREATE INDEX reply_created ON stepseven.reply (created_us);
