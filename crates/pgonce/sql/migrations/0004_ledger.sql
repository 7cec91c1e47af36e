-- 0004_ledger: accounts, balanced groups of entries, and pending groups.
-- breaking: no

-- An account, or one shard of it. The balance is debits less credits, whatever the normal side is. `entries`
-- and `head` are the position and the hash of the last entry; `moved_at` is its time. Updated in place: the
-- free space of each page keeps updates off the index.
create table pgonce.ledger_account (
    tenant      text collate "C" not null,
    account     text collate "C" not null,
    shard       smallint not null,
    shards      smallint not null,
    currency    text collate "C" not null,
    normal      text collate "C" not null,
    floor       numeric(38, 0),
    balance     numeric(38, 0) not null default 0,
    held_debit  numeric(38, 0) not null default 0,
    held_credit numeric(38, 0) not null default 0,
    entries     bigint not null default 0,
    head        bytea not null,
    opened_at   timestamptz not null,
    moved_at    timestamptz not null,
    closed_at   timestamptz,
    constraint one_row_per_account_and_shard primary key (tenant, account, shard)
) with (fillfactor = 40);

-- One logical operation: its accounts, and what it does to each. A debit is positive, a credit negative.
create table pgonce.ledger_group (
    tenant             text collate "C" not null,
    source             text collate "C" not null,
    operation          text collate "C" not null,
    recorded_at        timestamptz not null,
    pending            boolean not null,
    digest             bytea not null,
    accounts           text[] collate "C" not null,
    amounts            numeric[] not null,
    memo               jsonb,
    reverses_source    text collate "C",
    reverses_operation text collate "C",
    constraint one_group_per_operation primary key (tenant, source, operation)
);
create unique index one_reversal_per_group on pgonce.ledger_group (tenant, reverses_source, reverses_operation)
    where reverses_source is not null;

-- What a group did to an account: its position there, the balance after it, and a hash over all of that, its
-- group and the entry before.
create table pgonce.ledger_entry (
    tenant    text collate "C" not null,
    account   text collate "C" not null,
    shard     smallint not null,
    seq       bigint not null,
    line      smallint not null,
    posted_at timestamptz not null,
    source    text collate "C" not null,
    operation text collate "C" not null,
    amount    numeric(38, 0) not null,
    balance   numeric(38, 0) not null,
    hash      bytea not null,
    constraint one_entry_per_position primary key (tenant, account, shard, seq)
);

-- What became of a group that was recorded as pending. `pick` chose the shards that hold its amounts.
create table pgonce.ledger_pending (
    tenant     text collate "C" not null,
    source     text collate "C" not null,
    operation  text collate "C" not null,
    fence      bigint not null,
    pick       integer not null,
    state      text collate "C" not null,
    settled_at timestamptz,
    constraint one_outcome_per_pending_group primary key (tenant, source, operation),
    constraint pending_state_is_known check (state in ('pending', 'posted', 'voided'))
) with (fillfactor = 80);

-- What people did to accounts.
create sequence pgonce.ledger_audit_seq;
create table pgonce.ledger_audit (
    tenant  text collate "C" not null,
    entry   bigint not null,
    account text collate "C" not null,
    shard   smallint not null,
    at      timestamptz not null,
    who     text not null,
    act     text not null,
    reason  text not null,
    before  jsonb not null,
    after   jsonb not null,
    constraint one_row_per_ledger_act primary key (tenant, entry)
);
create index ledger_audit_by_time on pgonce.ledger_audit (at);
