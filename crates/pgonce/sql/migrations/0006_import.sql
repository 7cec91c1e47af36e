-- 0006_import: files that are imported row by row, each row once, and what became of each row.
-- breaking: no

-- One file of a job. `row_count` rows have their result; `bytes` and `lines` are where the next row begins in the
-- uncompressed input, and `chain` sums up the hashes of all rows before it. `runner` names the process that may go on.
create table pgonce.import (
    tenant       text collate "C" not null,
    job          text collate "C" not null,
    number       integer not null,
    file_hash    bytea,
    source       text not null,
    settings     jsonb not null,
    state        text collate "C" not null,
    runner       uuid not null,
    backend      integer not null,
    leased_until timestamptz not null,
    row_count    bigint not null default 0,
    applied      bigint not null default 0,
    skipped      bigint not null default 0,
    changed      bigint not null default 0,
    failed       bigint not null default 0,
    bytes        bigint not null default 0,
    lines        bigint not null default 0,
    chain        bigint not null default 0,
    started_at   timestamptz not null,
    ended_at     timestamptz,
    constraint one_row_per_import primary key (tenant, job, number),
    constraint import_state_is_known check (state in ('running', 'done', 'cancelled'))
) with (fillfactor = 70);

-- Rows that got their result in one transaction. Those in neither range were applied. A hash has 8 bytes.
create table pgonce.import_chunk (
    tenant    text collate "C" not null,
    job       text collate "C" not null,
    number    integer not null,
    first_row bigint not null,
    last_row  bigint not null,
    skipped   int8multirange not null,
    failed    int8multirange not null,
    hashes    bytea not null,
    at        timestamptz not null,
    constraint one_chunk_per_row primary key (tenant, job, number, first_row)
);
alter table pgonce.import_chunk alter column hashes set storage external;

-- Rows that need attention: failed ones, and those whose key came before with other content.
create table pgonce.import_row (
    tenant text collate "C" not null,
    job    text collate "C" not null,
    number integer not null,
    row    bigint not null,
    line   bigint not null,
    status text collate "C" not null,
    key    text,
    field  text,
    code   text not null,
    reason text not null,
    constraint one_result_per_row primary key (tenant, job, number, row)
);

-- The natural keys that a job has passed to its function, with the hash of the row.
create table pgonce.import_key (
    tenant text collate "C" not null,
    job    text collate "C" not null,
    key    text collate "C" not null,
    hash   bytea not null,
    number integer not null,
    row    bigint not null,
    constraint one_call_per_key primary key (tenant, job, key)
);
