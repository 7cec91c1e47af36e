-- The outbox: an append-only log of events, who reads it and how far, and what left it for trouble.
-- breaking: no

-- Numbers the events. A writer gets its transaction id first and its number after, so that
-- pgonce.outbox_watermark can say which numbers are over.
create sequence pgonce.outbox_seq;

-- One row per event, written once and never changed: whole partitions go when nobody needs them.
-- There is no unique index: the sequence numbers the rows, and the intent makes them single.
create table pgonce.outbox (
    seq        bigint not null,
    xid        xid8 not null,
    created_at timestamptz not null,
    size       integer not null,
    lane       smallint not null,
    message_id uuid not null,
    tenant     text collate "C" not null,
    topic      text collate "C" not null,
    type       text collate "C" not null,
    subject    text collate "C" not null,
    headers    jsonb not null,
    payload    jsonb,
    deliver_at timestamptz
) partition by range (seq);

-- Who committed late is found by transaction, a long backlog is walked by lane.
create index outbox_by_transaction on pgonce.outbox (xid);
create index outbox_by_lane on pgonce.outbox (lane, seq);

-- Catches events when nobody created partitions ahead: a writer is never turned away.
create table pgonce.outbox_default partition of pgonce.outbox default;
create table pgonce.outbox_1 partition of pgonce.outbox for values from (1) to (1000001);
create table pgonce.outbox_1000001 partition of pgonce.outbox for values from (1000001) to (2000001);

create table pgonce.outbox_partition (
    from_seq bigint not null,
    to_seq   bigint not null,
    constraint one_partition_per_number primary key (from_seq),
    constraint partitions_have_a_length check (to_seq > from_seq)
);
insert into pgonce.outbox_partition values (1, 1000001), (1000001, 2000001);

-- "A transaction with this id or a later one has only numbers above this one." Made now and
-- then; it shows how much of the log is over for a cursor, without waiting for anybody.
create table pgonce.outbox_watermark (
    xid xid8 not null,
    seq bigint not null,
    at  timestamptz not null,
    constraint one_mark_per_transaction primary key (xid)
);

-- Which life of the database wrote the log, and how long it is kept. Transaction ids mean something only
-- in the life that gave them: events up to base_seq were here before that life was known, and
-- base_waits are the transactions that may yet write such events.
create table pgonce.outbox_state (
    one               boolean not null default true,
    database_life     bigint,
    base_seq          bigint not null default 0,
    base_waits        text[] not null default '{}',
    partition_rows    bigint not null default 1000000,
    keep              interval not null default interval '1 day',
    max_keep      interval,
    constraint one_life_at_a_time primary key (one),
    constraint there_is_only_one_life check (one),
    constraint partitions_have_rows check (partition_rows > 0),
    constraint kept_for_a_while check (keep >= interval '0'),
    constraint max_keep_is_longer check (max_keep >= keep)
);
insert into pgonce.outbox_state default values;

create table pgonce.outbox_subscription (
    subscription        text collate "C" not null,
    topics          text[],
    types           text[],
    tenants         text[],
    max_attempts    integer not null,
    backoff         interval not null,
    max_backoff interval not null,
    dead_limit      integer not null,
    when_full       text not null,
    created_at      timestamptz not null,
    evicted_at      timestamptz,
    evicted_why     text,
    constraint one_row_per_subscription primary key (subscription),
    constraint subscription_has_a_name check (octet_length(subscription) between 1 and 255),
    constraint attempts_are_positive check (max_attempts > 0),
    constraint backoff_is_positive check (backoff > interval '0' and max_backoff >= backoff),
    constraint dead_limit_is_not_negative check (dead_limit >= 0),
    constraint when_full_is_known check (when_full in ('stop', 'discard'))
);

-- A cursor in the log: everything up to floor is over, and so is what the snapshot "seen" sees.
-- Inside a window that is walked in pages, "upto" is its end and "after" the last number done.
create type pgonce.outbox_position as (
    floor bigint,
    seen  pg_snapshot,
    upto  pg_snapshot,
    after bigint
);

create table pgonce.outbox_cursor (
    subscription    text collate "C" not null,
    lane        smallint not null,
    epoch       bigint not null default 0,
    owner       text,
    lease_until timestamptz,
    cursor       pgonce.outbox_position not null,
    advanced_at timestamptz not null,
    -- The log's last number when this row was written: up to it everything is from this life of the database or before.
    published   bigint not null default 0,
    constraint one_cursor_per_lane primary key (subscription, lane),
    constraint cursor_has_a_subscription foreign key (subscription)
        references pgonce.outbox_subscription (subscription) on delete cascade
) with (fillfactor = 20);

-- The relays of a subscription, so that they share its lanes evenly.
create table pgonce.outbox_relay (
    subscription text collate "C" not null,
    owner    text not null,
    until    timestamptz not null,
    constraint one_row_per_relay primary key (subscription, owner),
    constraint relay_has_a_subscription foreign key (subscription)
        references pgonce.outbox_subscription (subscription) on delete cascade
) with (fillfactor = 20);

-- Events that left the log for one subscription: not due yet, to be tried again, given up, or behind
-- one of these of the same subject. Copies: the log's partitions go their own way.
create table pgonce.parked (
    tenant     text collate "C" not null,
    subscription   text collate "C" not null,
    subject    text collate "C" not null,
    seq        bigint not null,
    lane       smallint not null,
    state      text not null,
    attempts   integer not null default 0,
    due_at     timestamptz,
    parked_at  timestamptz not null,
    reason     text,
    created_at timestamptz not null,
    size       integer not null,
    message_id uuid not null,
    topic      text collate "C" not null,
    type       text collate "C" not null,
    headers    jsonb not null,
    payload    jsonb,
    constraint one_row_per_parked_event primary key (tenant, subscription, subject, seq),
    constraint parked_has_a_subscription foreign key (subscription)
        references pgonce.outbox_subscription (subscription) on delete cascade,
    constraint parked_state_is_known check (state in ('delayed', 'retry', 'dead', 'behind'))
);
create index parked_and_due on pgonce.parked (subscription, due_at, lane) where due_at is not null;
create index parked_by_number on pgonce.parked (subscription, seq);
create index parked_letters on pgonce.parked (subscription, state, seq);
create index parked_by_message on pgonce.parked (message_id);

-- What was never delivered to a subscription, by whose word and why.
create table pgonce.outbox_skipped (
    tenant     text collate "C" not null,
    subscription   text collate "C" not null,
    seq        bigint not null,
    subject    text collate "C" not null,
    message_id uuid not null,
    topic      text collate "C" not null,
    type       text collate "C" not null,
    reason     text not null,
    skipped_by text not null,
    skipped_at timestamptz not null,
    constraint one_row_per_skipped_event primary key (tenant, subscription, seq)
);
create index outbox_skipped_by_time on pgonce.outbox_skipped (skipped_at);
create index outbox_skipped_by_message on pgonce.outbox_skipped (message_id);
create index outbox_skipped_by_subject on pgonce.outbox_skipped (subject);

-- A writer's own events, numbered by the sequence, and no others.
alter table pgonce.outbox enable row level security;
create policy own_transaction on pgonce.outbox for select using (xid = pg_current_xact_id());
create policy numbered_here on pgonce.outbox for insert
    with check (xid = pg_current_xact_id() and seq = currval('pgonce.outbox_seq'));
create policy own_tenant on pgonce.outbox as restrictive for all using (pgonce._tenant_is_allowed(tenant));
