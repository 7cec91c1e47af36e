-- The tables of the core: contracts, intents, what was suppressed, where the sweep stands.
-- breaking: no

create type pgonce.status as enum ('processing', 'succeeded', 'failed_retryable', 'failed_final');

-- A scope's contract is data. The row ('', '*') is the contract of scopes nobody defined;
-- without it pgonce is strict and an undefined scope is refused.
create table pgonce.scope (
    tenant               text collate "C" not null default '',
    scope                text collate "C" not null,
    retention            interval not null,
    lease                interval not null default interval '30 seconds',
    busy                 text not null default 'reject',
    wait_timeout         interval not null default interval '5 seconds',
    storage              text not null default 'answer',
    after_expiry         text not null default 'rerun',
    tombstone_for        interval,
    stale                text not null default 'takeover',
    key_source           text not null default 'client',
    boundary             text not null default 'database',
    client_retry         interval not null default interval '0',
    redelivery           interval not null default interval '0',
    reconciliation       interval not null default interval '0',
    audit                interval not null default interval '0',
    max_answer           integer not null default 1048576,
    max_keys             bigint,
    commit_guard         boolean not null default false,
    probe                text,
    retry_queue          text,
    max_attempts         integer not null default 10,
    keep_attempts        integer not null default 20,
    note                 text,
    defined_at           timestamptz not null,
    constraint one_contract_per_scope primary key (tenant, scope),
    constraint scope_has_a_name check (scope <> '' and octet_length(scope) <= 255),
    constraint tenant_fits check (octet_length(tenant) <= 255),
    constraint retention_is_positive check (retention > interval '0'),
    constraint retention_covers_every_horizon
        check (retention >= greatest(client_retry, redelivery, reconciliation, audit)),
    constraint horizons_are_not_negative
        check (least(client_retry, redelivery, reconciliation, audit) >= interval '0'),
    constraint lease_is_positive check (lease > interval '0'),
    constraint wait_is_not_negative check (wait_timeout >= interval '0'),
    constraint max_answer_is_not_negative check (max_answer >= 0),
    constraint max_keys_is_positive check (max_keys > 0),
    constraint attempts_are_positive check (max_attempts > 0 and keep_attempts > 0),
    constraint retry_queue_has_a_name check (octet_length(retry_queue) between 1 and 200 and retry_queue <> '*'),
    constraint tombstone_is_positive check (tombstone_for > interval '0'),
    constraint busy_is_known check (busy in ('reject', 'wait', 'accept')),
    constraint storage_is_known check (storage in ('answer', 'reference', 'status', 'error')),
    constraint after_expiry_is_known check (after_expiry in ('rerun', 'gone')),
    constraint stale_is_known check (stale in ('takeover', 'hold', 'refuse')),
    constraint key_source_is_known check (key_source in ('client', 'derived', 'message', 'file')),
    constraint boundary_is_known check (boundary in ('database', 'external', 'messages'))
);

-- Mostly empty: whether any contract limits its keys costs a claim next to nothing.
create index contracts_with_max_keys on pgonce.scope (scope) where max_keys is not null;

-- One row per intent. In atomic mode it is written once, finished; only leased work is ever
-- seen in 'processing'. Fences: odd for an attempt that lives in one transaction, even for a
-- lease; see intent/_next_fence.sql. Numbers come first and what an atomic success leaves null comes
-- last, so that its row is short: no padding, no room for nulls.
-- No check constraints: PostgreSQL prepares each of them anew for every statement, and six of
-- them doubled the cost of the insert. The functions check what comes in, the trigger
-- every_transition_is_checked guards every change, and a large answer moves out of the row.
create table pgonce.intent (
    fence           bigint not null,
    first_at        timestamptz not null,
    expires_at      timestamptz,
    attempts        integer not null,
    status          pgonce.status not null,
    tenant          text collate "C" not null,
    scope           text collate "C" not null,
    key             text collate "C" not null,
    fingerprint     bytea not null,
    answer          jsonb,
    ref_type        text,
    ref_id          text,
    correlation_id  text,
    owner           text,
    last_at         timestamptz,
    lease_until     timestamptz,
    failure_code    text,
    failure_message text,
    gone_at         timestamptz,
    constraint one_row_per_intent primary key (tenant, scope, key)
) with (toast_tuple_target = 256);

-- What leases are numbered from: it never goes back, whatever is purged.
create sequence pgonce.lease_number;

-- Which installation this is: the cluster, the database and its tables, and the server's timeline. Where one of
-- them is another (restored, promoted, upgraded, failed over to a logical replica) a new epoch begins, and with
-- it the numbers of leases. evicted_by is the last transaction that removed an answer before its expiry: caches of
-- answers look for it.
create table pgonce.installation (
    one        boolean not null default true,
    life       bigint not null,
    timeline   bigint not null,
    epoch      bigint not null,
    since      timestamptz not null,
    evicted_by xid8 not null default '0',
    constraint one_installation primary key (one),
    constraint there_is_only_one_installation check (one)
);

-- Only leased and retryable rows are in here: an atomic success never touches this index.
create index unfinished_intents on pgonce.intent (coalesce(lease_until, last_at))
    where expires_at is null;

-- So that pgonce.find is a look-up. Only rows that have one are in here: others pay nothing.
create index intents_by_correlation on pgonce.intent (correlation_id) where correlation_id is not null;
create index intents_by_reference on pgonce.intent (ref_id) where ref_id is not null;

-- Attempts that another one followed. The last attempt is in pgonce.intent itself: an intent that succeeds at once has no row here.
-- followed_at is when the next attempt began.
create table pgonce.attempt (
    fence       bigint not null,
    started_at  timestamptz not null,
    ended_at    timestamptz not null,
    followed_at timestamptz not null,
    attempt     integer not null,
    tenant      text collate "C" not null,
    scope       text collate "C" not null,
    key         text collate "C" not null,
    outcome     text not null,
    code        text,
    message     text,
    owner       text,
    constraint one_row_per_attempt primary key (tenant, scope, key, fence)
);
create index attempts_by_number on pgonce.attempt (attempt);

-- Duplicates that were turned away without a write; sessions add to it in batches.
create table pgonce.suppressed (
    tenant    text collate "C" not null,
    scope     text collate "C" not null,
    replays   bigint not null default 0,
    refusals  bigint not null default 0,
    busy      bigint not null default 0,
    conflicts bigint not null default 0,
    constraint one_count_per_scope primary key (tenant, scope)
) with (fillfactor = 50);

-- Where the purge sweep goes on. One row per sweep; who holds its lock sweeps.
create table pgonce.sweep (
    tenant     text collate "C" not null default '',
    name       text collate "C" not null,
    next_block bigint not null default 0,
    swept_at   timestamptz,
    constraint one_place_per_sweep primary key (tenant, name)
);

-- Counts that only grow, by minute: what happened between two of them is what charts show.
create table pgonce.sample (
    at         timestamptz not null,
    intents    bigint not null,
    suppressed bigint not null,
    events     bigint not null,
    jobs       bigint not null,
    constraint one_sample_per_minute primary key (at)
);

insert into pgonce.sweep (name) values ('intent');
insert into pgonce.scope (scope, retention, note, defined_at)
values ('*', interval '7 days', 'the contract of scopes that nobody defined', clock_timestamp());

-- Who did what to an intent, by hand or as its contract's recovery says, and why. Never changed; the answer of the intent is not in it.
create table pgonce.operator_act (
    number   bigint generated always as identity primary key,
    acted_at timestamptz not null,
    role     name not null,
    person   text,
    act      text not null,
    tenant   text collate "C" not null,
    scope    text collate "C" not null,
    key      text collate "C" not null,
    reason   text not null,
    forced   boolean not null,
    before   jsonb not null
);
create index operator_acts_by_key on pgonce.operator_act (key);

-- What pgonce.claim answers.
create type pgonce.claimed as (
    outcome         text,
    fence           bigint,
    answer          jsonb,
    ref_type        text,
    ref_id          text,
    failure_code    text,
    failure_message text,
    retry_after     interval,
    attempts        integer
);

-- Atomic claims of scopes with a commit guard, from the claim to the end of its transaction: the row is deleted by the
-- trigger that it fires before the commit, so no other transaction ever sees one. Nothing in it is worth a log.
create unlogged table pgonce.open_claim (
    tenant text collate "C" not null,
    scope  text collate "C" not null,
    key    text collate "C" not null,
    constraint one_open_claim_per_intent primary key (tenant, scope, key)
);

-- Which roles do which part; see pgonce.grant_to.
create table pgonce.role_grant (
    role name not null,
    part text not null,
    constraint one_row_per_part primary key (role, part),
    constraint part_is_known check (part in ('app', 'relay', 'consumer', 'operator', 'viewer'))
);

-- Roles that see one tenant only: this one, or, where it is null, the one that the setting pgonce.tenant names.
create table pgonce.tenant_binding (
    role   name not null,
    tenant text collate "C",
    constraint one_binding_per_role primary key (role),
    constraint bound_tenant_fits check (octet_length(tenant) <= 255)
);

-- An application reads and writes three tables with its own rights, since a function with the owner's rights would cost
-- more than the statement: policies say which rows. Functions with the owner's rights, and the owner, pass.
-- The routine of this name comes later; the policies need to know that there is one.
create function pgonce._tenant_is_allowed(p_tenant text) returns boolean language sql stable parallel safe return true;

alter table pgonce.intent enable row level security;
-- Who knows a key may look it up; nobody can list keys. Not "key =": it must be compared after the setting was made,
-- never be looked up by it.
create policy by_key on pgonce.intent for select using ((key || '') = current_setting('pgonce.key', true));
-- The success of an atomic attempt, written once, is all that an application writes by itself.
create policy finished_at_once on pgonce.intent for insert with check (
    fence = 1 and attempts = 1 and status = 'succeeded' and expires_at > first_at
    and lease_until is null and gone_at is null and failure_code is null);
create policy own_tenant on pgonce.intent as restrictive for all using (pgonce._tenant_is_allowed(tenant));

alter table pgonce.scope enable row level security;
create policy readable on pgonce.scope for select using (true);
create policy own_tenant on pgonce.scope as restrictive for all
    using (tenant = '' or pgonce._tenant_is_allowed(tenant)) with check (pgonce._tenant_is_allowed(tenant));
