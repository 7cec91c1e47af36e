-- 0005_transition: state machines as data, the commands that moved entities, and timers.
-- breaking: no

-- Which states may follow which. An empty from_state is that of an entity which does not exist yet.
create table pgonce.transition_rule (
    tenant     text collate "C" not null default '',
    machine    text collate "C" not null,
    from_state text collate "C" not null,
    to_state   text collate "C" not null,
    guard      text,
    topic      text,
    constraint one_row_per_rule primary key (tenant, machine, from_state, to_state)
);

-- Where entities are.
create table pgonce.transition_entity (
    tenant  text collate "C" not null,
    machine text collate "C" not null,
    entity  text collate "C" not null,
    state   text collate "C" not null,
    version bigint not null,
    since   timestamptz not null,
    constraint one_row_per_entity primary key (tenant, machine, entity)
) with (fillfactor = 70);

-- Every command, applied or rejected: once decided, it stays so.
create sequence pgonce.transition_seq;
create table pgonce.transition_command (
    tenant     text collate "C" not null,
    machine    text collate "C" not null,
    command    text collate "C" not null,
    seq        bigint not null,
    entity     text collate "C" not null,
    from_state text collate "C" not null,
    to_state   text collate "C" not null,
    version    bigint not null,
    outcome    text collate "C" not null,
    digest     bytea not null,
    data       jsonb,
    who        text not null,
    at         timestamptz not null,
    constraint one_row_per_command primary key (tenant, machine, command)
);
create unique index one_command_per_version on pgonce.transition_command (tenant, machine, entity, version)
    where outcome = 'applied';
create index transition_timelines on pgonce.transition_command (tenant, machine, entity, seq);

-- At most one timer of a kind is active for an entity.
create table pgonce.transition_timer (
    tenant   text collate "C" not null,
    machine  text collate "C" not null,
    entity   text collate "C" not null,
    kind     text collate "C" not null,
    number   bigint not null,
    to_state text collate "C" not null,
    due_at   timestamptz not null,
    set_at   timestamptz not null,
    ended_at timestamptz,
    outcome  text,
    constraint one_row_per_timer primary key (tenant, machine, entity, kind, number)
);
create unique index one_active_timer_per_entity_and_kind on pgonce.transition_timer (tenant, machine, entity, kind)
    where ended_at is null;
create index timers_due on pgonce.transition_timer (due_at) where ended_at is null;
