-- 0007_queue: jobs, what queues allow, and schedules.
-- breaking: no

-- Where a job is that has not ended. limited: running, in a queue that limits how many run at a time.
create type pgonce.job_state as enum ('ready', 'blocked', 'scheduled', 'retrying', 'running', 'limited');
create type pgonce.job_end_status as enum ('succeeded', 'dead', 'cancelled');

-- What a queue allows. The row '*' holds for queues that nobody defined.
create table pgonce.job_queue (
    tenant       text collate "C" not null default '',
    queue        text collate "C" not null,
    paused       boolean not null default false,
    max_attempts integer not null default 10,
    backoff      interval not null default interval '1 second',
    max_backoff  interval not null default interval '1 hour',
    keep         interval not null default interval '7 days',
    max_running  integer,
    max_per_key  integer not null default 1,
    rate         integer,
    rate_per     interval not null default interval '1 second',
    defined_at   timestamptz not null,
    constraint one_row_per_queue primary key (tenant, queue),
    constraint queue_has_a_name check (octet_length(queue) between 1 and 200),
    constraint job_attempts_are_positive check (max_attempts > 0),
    constraint job_backoff_is_positive check (backoff > interval '0' and max_backoff >= backoff),
    constraint ended_jobs_are_kept_for_a_while check (keep >= interval '0'),
    constraint limits_of_a_queue_are_positive check (max_running > 0 and max_per_key > 0 and rate > 0 and rate_per > interval '0')
);
insert into pgonce.job_queue (queue, defined_at) values ('*', clock_timestamp());

-- What is left of a queue's rate. Apart from the contract, which every claim reads.
create table pgonce.job_bucket (
    tenant    text collate "C" not null default '',
    queue     text collate "C" not null,
    tokens    double precision not null,
    filled_at timestamptz not null,
    constraint one_bucket_per_queue primary key (tenant, queue)
) with (fillfactor = 20);

-- Every job, as it was enqueued. Rows are inserted and, when their time is over, deleted; never updated.
create sequence pgonce.job_seq;
create table pgonce.job (
    id         bigint not null,
    created_at timestamptz not null,
    priority   smallint not null,
    tenant     text collate "C" not null,
    queue      text collate "C" not null,
    unique_key text collate "C",
    key        text collate "C",
    group_name text collate "C",
    payload    jsonb,
    constraint one_row_per_job primary key (tenant, id)
);
create unique index one_job_per_unique_key on pgonce.job (tenant, queue, unique_key) where unique_key is not null;
create index jobs_of_a_group on pgonce.job (tenant, group_name) where group_name is not null;

-- Jobs that have not ended: narrow, and a row goes when its job ends. due_at is when a job that is scheduled becomes
-- ready, or when the lease of one that runs is over.
create table pgonce.job_live (
    id              bigint not null,
    due_at          timestamptz,
    fence           bigint not null default 0,
    state           pgonce.job_state not null,
    attempts        integer not null default 0,
    priority        smallint not null,
    tenant          text collate "C" not null,
    queue           text collate "C" not null,
    key             text collate "C",
    group_name      text collate "C",
    owner           text,
    failure_code    text,
    failure_message text,
    progress        jsonb,
    constraint one_row_per_live_job primary key (tenant, id)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
create index jobs_ready on pgonce.job_live (queue, priority desc, id) where state = 'ready';
create index jobs_due on pgonce.job_live (due_at) where state in ('scheduled', 'retrying', 'running', 'limited');
create index jobs_limited on pgonce.job_live (queue) where state = 'limited';
create index jobs_blocked on pgonce.job_live (queue) where state = 'blocked';
create index jobs_by_key on pgonce.job_live (tenant, queue, key, state, id) where key is not null;
create index jobs_live_of_a_group on pgonce.job_live (tenant, group_name) where group_name is not null;

-- How jobs ended.
create table pgonce.job_end (
    id              bigint not null,
    ended_at        timestamptz not null,
    expires_at      timestamptz,
    status          pgonce.job_end_status not null,
    attempts        integer not null,
    tenant          text collate "C" not null,
    queue           text collate "C" not null,
    owner           text,
    failure_code    text,
    failure_message text,
    result          jsonb,
    constraint one_row_per_ended_job primary key (tenant, id)
);
create index job_ends_expire on pgonce.job_end (expires_at) where expires_at is not null;
create index jobs_dead on pgonce.job_end (queue, id) where status = 'dead';
create index jobs_dead_by_time on pgonce.job_end (ended_at) where status = 'dead';

-- Keys whose next job may have been enqueued, unseen, while the one before it ended.
create table pgonce.job_recheck (
    id     bigint not null,
    tenant text collate "C" not null,
    queue  text collate "C" not null,
    key    text collate "C" not null,
    constraint one_row_per_recheck primary key (tenant, id)
);

-- Jobs that are enqueued again and again.
create table pgonce.job_schedule (
    tenant     text collate "C" not null default '',
    name       text collate "C" not null,
    cron       text not null,
    zone       text not null,
    queue      text collate "C" not null,
    payload    jsonb,
    next_at    timestamptz not null,
    last_at    timestamptz,
    constraint one_row_per_schedule primary key (tenant, name)
);
create index schedules_due on pgonce.job_schedule (next_at);
