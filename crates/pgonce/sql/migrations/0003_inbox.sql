-- The inbox: what a consumer has accepted, how far it is in ordered sources, what it could not apply
-- yet, and what projections have seen.
-- breaking: no

create type pgonce.inbox_status as enum ('received', 'processing', 'processed', 'failed_retryable', 'failed_final');

-- How long a consumer remembers, and how patient it is. The row ('', '*') holds for consumers that
-- nobody defined. kept_before: markers were promised to be kept for so long until then.
create table pgonce.inbox_contract (
    tenant            text collate "C" not null default '',
    consumer          text collate "C" not null,
    keep              interval,
    redelivery        interval not null,
    keep_stored       interval not null,
    max_attempts      integer not null,
    backoff           interval not null,
    max_backoff   interval not null,
    kept_before       interval,
    kept_before_until timestamptz,
    defined_at        timestamptz not null,
    constraint one_contract_per_consumer primary key (tenant, consumer),
    constraint consumer_has_a_name check (octet_length(consumer) between 1 and 255),
    constraint redelivery_is_not_negative check (redelivery >= interval '0'),
    constraint markers_outlive_every_redelivery check (keep > redelivery),
    constraint stored_messages_are_kept_for_a_while check (keep_stored >= interval '0'),
    constraint attempts_are_positive check (max_attempts > 0),
    constraint backoff_is_positive check (backoff > interval '0' and max_backoff >= backoff)
);
insert into pgonce.inbox_contract (consumer, keep, redelivery, keep_stored, max_attempts, backoff, max_backoff, defined_at)
values ('*', interval '30 days', interval '14 days', interval '30 days', 10, interval '1 second',
    interval '10 minutes', clock_timestamp());

-- One row for each message that a consumer has taken on. Where an id carries the time it was made
-- (UUID version 7) its marker is in the partition of that day, which goes as a whole. The day
-- follows from the id, so the key is as unique with it as without.
create table pgonce.inbox_marker (
    accepted_at timestamptz not null,
    day         date not null,
    tenant      text collate "C" not null,
    consumer    text collate "C" not null,
    source      text collate "C" not null,
    message_id  text collate "C" not null,
    hash        bytea,
    -- The id before the other names: keys differ early, and comparing them is most of the cost.
    constraint one_marker_per_message primary key (tenant, message_id, consumer, source, day)
) partition by range (day);
create table pgonce.inbox_marker_timeless partition of pgonce.inbox_marker for values from (minvalue) to ('1970-01-02');
-- Ids whose day has no partition: nobody made it, or it is long past.
create table pgonce.inbox_marker_default partition of pgonce.inbox_marker default;

insert into pgonce.sweep (name) values ('inbox_marker_timeless'), ('inbox_marker_default');

-- How far a consumer is in a partition of an ordered source; null: it has applied nothing of it.
create table pgonce.inbox_cursor (
    tenant      text collate "C" not null,
    consumer    text collate "C" not null,
    source      text collate "C" not null,
    partition   text collate "C" not null,
    epoch       bigint not null,
    owner       text,
    lease_until timestamptz,
    position    bigint,
    minor       bigint,
    moved_at    timestamptz not null,
    constraint one_cursor_per_partition primary key (tenant, consumer, source, partition)
) with (fillfactor = 20);

-- Messages that are kept before or instead of being applied: webhooks, what failed, what waits
-- behind what failed, and what needs manual action. A payload that is shorter than its size was cut.
create sequence pgonce.inbox_seq;
create table pgonce.inbox_message (
    seq             bigint not null,
    tenant          text collate "C" not null,
    consumer        text collate "C" not null,
    source          text collate "C" not null,
    message_id      text collate "C" not null,
    hash            bytea not null,
    size            bigint not null,
    status          pgonce.inbox_status not null,
    attempts        integer not null default 0,
    fence           bigint not null default 0,
    due_at          timestamptz,
    received_at     timestamptz not null,
    settled_at      timestamptz,
    settled_xid     xid8,
    skipped_at      timestamptz,
    owner           text,
    failure_code    text,
    failure_message text,
    key             text collate "C",
    -- Whether later messages of its key wait for it; not for one whose id came before with another payload.
    holds_key       boolean not null,
    type            text collate "C",
    headers         jsonb not null,
    payload         bytea not null,
    constraint one_row_per_stored_message primary key (tenant, consumer, seq),
    constraint one_stored_message_per_payload unique (tenant, consumer, source, message_id, hash)
);
create index inbox_due on pgonce.inbox_message (consumer, due_at, seq)
    where status in ('received', 'processing', 'failed_retryable');
create index inbox_keys_held on pgonce.inbox_message (tenant, consumer, key, seq)
    where status <> 'processed' and skipped_at is null and holds_key;
create index inbox_poisoned on pgonce.inbox_message (consumer, seq) where status = 'failed_final' and skipped_at is null;
create index inbox_by_consumer on pgonce.inbox_message (consumer, seq);
create index inbox_settled on pgonce.inbox_message (settled_at) where settled_at is not null;

-- What people did to stored messages.
create table pgonce.inbox_audit (
    tenant          text collate "C" not null,
    consumer        text collate "C" not null,
    seq             bigint not null,
    entry           bigint not null,
    at              timestamptz not null,
    who             text not null,
    act             text not null,
    reason          text,
    status          pgonce.inbox_status not null,
    attempts        integer not null,
    failure_code    text,
    failure_message text,
    constraint one_row_per_act primary key (tenant, consumer, seq, entry)
);
create index inbox_audit_by_time on pgonce.inbox_audit (at);

-- Read models that a function of the user's keeps, so that they can be built anew and compared.
create table pgonce.projection (
    tenant        text collate "C" not null default '',
    projection    text collate "C" not null,
    into_table    text not null,
    apply         text not null,
    gate          text not null,
    from_consumer text collate "C",
    topics        text[],
    begins_after  bigint not null,
    defined_at    timestamptz not null,
    rebuilt_at    timestamptz,
    rebuilt_rows  bigint,
    constraint one_row_per_projection primary key (tenant, projection),
    constraint projection_has_a_name check (octet_length(projection) between 1 and 200),
    constraint gate_is_known check (gate in ('version', 'marker'))
);

-- How far an entity, or a stream, is in a projection.
create table pgonce.projection_gate (
    tenant     text collate "C" not null,
    projection text collate "C" not null,
    entity     text collate "C" not null,
    version    bigint not null,
    constraint one_gate_per_entity primary key (tenant, projection, entity)
) with (fillfactor = 70);

-- A projection that is being built anew beside the live one, to replace it or to be compared with it: how far
-- it is in the lanes of the log, and what was committed when it began.
create table pgonce.projection_build (
    tenant     text collate "C" not null default '',
    projection text collate "C" not null,
    purpose    text collate "C" not null,
    fresh      text not null,
    lane       smallint not null default 0,
    after      bigint not null default 0,
    seen       pg_snapshot not null,
    events     bigint not null default 0,
    started_at timestamptz not null,
    constraint one_build_per_purpose primary key (tenant, projection, purpose),
    constraint build_has_a_projection foreign key (tenant, projection)
        references pgonce.projection (tenant, projection) on delete cascade,
    constraint purpose_is_known check (purpose in ('rebuild', 'verify'))
) with (fillfactor = 20);

-- Its gates: an entity's version, or an event that was applied.
create table pgonce.projection_build_gate (
    tenant     text collate "C" not null,
    projection text collate "C" not null,
    purpose    text collate "C" not null,
    name       text collate "C" not null,
    version    bigint not null,
    constraint one_gate_per_name primary key (tenant, projection, purpose, name)
) with (fillfactor = 70);

-- An event as the function of a projection gets it.
create type pgonce.projected as (
    message_id text,
    tenant     text,
    type       text,
    entity     text,
    version    bigint,
    headers    jsonb,
    payload    jsonb
);

alter table pgonce.inbox_marker enable row level security;
create policy marked_now on pgonce.inbox_marker for insert with check (true);
create policy own_tenant on pgonce.inbox_marker as restrictive for all using (pgonce._tenant_is_allowed(tenant));
