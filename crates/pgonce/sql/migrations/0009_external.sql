-- 0009_external: calls to providers outside, what providers report, and what each provider can be asked.
-- breaking: no

-- requested: recorded, not sent. sent: handed to the provider, no answer recorded. unknown: it may have happened.
create type pgonce.external_status as enum ('requested', 'sent', 'unknown', 'confirmed', 'failed');

-- What a provider allows, and how it is doing. The row '*' holds for providers that nobody defined. It belongs to no tenant:
-- a provider's limits are those of our account with it.
create table pgonce.external_provider (
    provider    text collate "C" not null,
    keys_for    interval,
    look_after  interval not null default interval '10 seconds',
    backoff     interval not null default interval '5 seconds',
    max_backoff interval not null default interval '1 hour',
    deadline    interval not null default interval '1 day',
    rate        integer,
    rate_per    interval not null default interval '1 second',
    trip_after  integer,
    trip_for    interval not null default interval '30 seconds',
    keep        interval not null default interval '30 days',
    defined_at  timestamptz not null,
    tokens      double precision,
    filled_at   timestamptz,
    failures    integer not null default 0,
    open_until  timestamptz,
    constraint one_row_per_provider primary key (provider),
    constraint provider_has_a_name check (octet_length(provider) between 1 and 200),
    constraint keys_are_honoured_for_a_while check (keys_for > interval '0'),
    constraint look_ups_come_later_and_later
        check (look_after >= interval '0' and backoff > interval '0' and max_backoff >= backoff and deadline >= interval '0'),
    constraint limits_of_a_provider_are_positive
        check (rate > 0 and rate_per > interval '0' and trip_after > 0 and trip_for > interval '0' and keep >= interval '0')
) with (fillfactor = 20);
insert into pgonce.external_provider (provider, defined_at) values ('*', clock_timestamp());

-- One row per step of a command that calls out. first_sent_at: since when it may have happened. late_looks: those of the looks
-- that began at or after the deadline.
create table pgonce.external_call (
    effect_key      uuid not null,
    send_id         uuid,
    fence           bigint not null,
    requested_at    timestamptz not null,
    first_sent_at   timestamptz,
    sent_at         timestamptz,
    next_look_at    timestamptz,
    deadline_at     timestamptz,
    decided_at      timestamptz,
    expires_at      timestamptz,
    sends           integer not null default 0,
    looks           integer not null default 0,
    late_looks      integer not null default 0,
    status          pgonce.external_status not null,
    decides         boolean not null,
    tenant          text collate "C" not null,
    scope           text collate "C" not null,
    key             text collate "C" not null,
    step            text collate "C" not null,
    provider        text collate "C" not null,
    digest          bytea not null,
    request         jsonb,
    reference       text collate "C",
    response        jsonb,
    failure_code    text,
    failure_message text,
    decided_by      text,
    disputed        text,
    constraint one_call_per_step primary key (tenant, scope, key, step)
);
create unique index one_call_per_effect_key on pgonce.external_call (tenant, effect_key);
create index external_calls_by_time on pgonce.external_call (requested_at, effect_key);
create index external_calls_by_reference on pgonce.external_call (tenant, provider, reference) where reference is not null;
create index external_calls_to_look_up on pgonce.external_call (provider, next_look_at) where next_look_at is not null;
create index external_calls_undecided on pgonce.external_call (deadline_at) where status in ('sent', 'unknown');
create index external_calls_disputed on pgonce.external_call (provider) where disputed is not null;
create index external_calls_expire on pgonce.external_call (expires_at) where expires_at is not null;

-- What providers reported by webhook. applied_at is null while no call has the reference.
create table pgonce.external_event (
    seen_at         timestamptz not null,
    applied_at      timestamptz,
    effect_key      uuid,
    outcome         pgonce.external_status not null,
    tenant          text collate "C" not null,
    provider        text collate "C" not null,
    event_id        text collate "C" not null,
    reference       text collate "C",
    response        jsonb,
    answer          jsonb,
    failure_code    text,
    failure_message text,
    constraint one_row_per_provider_event primary key (tenant, provider, event_id)
);
create index external_events_waiting on pgonce.external_event (tenant, provider, reference) where applied_at is null;
create index external_events_of_a_call on pgonce.external_event (tenant, effect_key) where effect_key is not null;
create index external_events_seen on pgonce.external_event (seen_at);

-- What a command does next with a step: send, done, failed, unknown or wait.
create type pgonce.external_step as (
    action          text,
    effect_key      uuid,
    status          text,
    reference       text,
    response        jsonb,
    failure_code    text,
    failure_message text,
    retry_after     interval,
    sends           integer
);
