-- Regions: several databases that share intents by logical replication.
-- breaking: no

-- The regions that this one knows, itself included; empty where regions are not used. epoch: of this region, the epoch it
-- joined with (another one was restored or promoted since, and must join again); of another, the newest that is known.
-- beat: the number of the last heartbeat of another region; missed: one did not arrive, and facts may be missing with it.
create table pgonce.region (
    id           smallint not null,
    name         text collate "C" not null,
    address      text not null default '',
    is_self      boolean not null,
    state        text not null default 'joining',
    epoch        bigint not null default 0,
    last_beat_at timestamptz,
    beat         bigint,
    missed       boolean not null default false,
    joined_at    timestamptz not null,
    constraint one_row_per_region primary key (id),
    constraint one_name_per_region unique (name),
    constraint region_number_fits check (id between 1 and 63),
    constraint region_has_a_name check (octet_length(name) between 1 and 63),
    constraint region_state_is_known check (state in ('joining', 'active', 'leaving', 'lost'))
);
create unique index one_region_is_this_one on pgonce.region (is_self) where is_self;

-- Where the intents of a scope may be worked on; scope '*' is for all that have no rule of their own. A rule that is pending
-- forbids already, and permits nothing yet: work under the rule in force may not have ended in another region.
create table pgonce.region_rule (
    tenant  text collate "C" not null default '',
    scope   text collate "C" not null,
    mode    text not null,
    home    text collate "C" not null,
    max_lag interval,
    pending boolean not null default false,
    constraint one_rule_per_scope primary key (tenant, scope, pending),
    constraint region_mode_is_known check (mode in ('home', 'local', 'read_only')),
    constraint max_lag_is_positive check (max_lag > interval '0')
);

-- What each region committed, a partition for each: a region writes and publishes its own partition only, and receives those
-- of the others. So no row travels twice, no loop is possible, and no insert can conflict: nothing here is unique.
-- The number of a fact is its region, the epoch of its region and seq. record: the row of pgonce.intent.
create table pgonce.region_fact (
    region     smallint not null,
    epoch      bigint not null,
    seq        bigint not null,
    kind       text collate "C" not null,
    tenant     text collate "C" not null,
    scope      text collate "C" not null,
    key        text collate "C" not null,
    at         timestamptz not null,
    expires_at timestamptz,
    record     jsonb
) partition by list (region);
create index facts_by_intent on pgonce.region_fact (tenant, scope, key);
create index facts_by_number on pgonce.region_fact (epoch, seq);
create sequence pgonce.region_seq;

-- Intents whose facts arrived and could not be merged at once: their record was locked, say.
create table pgonce.region_pending (
    tenant text collate "C" not null,
    scope  text collate "C" not null,
    key    text collate "C" not null,
    reason text not null,
    since  timestamptz not null,
    constraint one_row_per_pending_intent primary key (tenant, scope, key)
);

-- Intents that two regions committed: each row is an effect too many, beside the one that was kept.
create table pgonce.region_task (
    tenant      text collate "C" not null,
    scope       text collate "C" not null,
    key         text collate "C" not null,
    region      smallint not null,
    epoch       bigint not null,
    seq         bigint not null,
    kept        jsonb not null,
    surplus     jsonb not null,
    found_at    timestamptz not null,
    resolved_at timestamptz,
    resolution  text,
    constraint one_task_per_effect primary key (tenant, scope, key, region, epoch, seq)
);
