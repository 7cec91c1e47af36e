-- 0017_parked_in_order: a look at the parked events of one subject takes as long however many of them wait for their time, and how much of its
-- events a projection began without is counted in messages where a consumer has stored them. Recovery finds its work by scope.
-- A claim of stored messages of no key looks at those that are due and at no others.
-- An event that an application writes by itself fits what readers do with it: names that an index takes, its own lane, and a size that
-- is not less than its text.
-- breaking: no

-- Each holds relays up for the time that it takes to read the table once. What stands in a subject's way, and which of those that
-- wait for their time comes first.
create index parked_in_order on pgonce.parked (tenant, subscription, subject, seq) where state <> 'delayed';
create index parked_by_time on pgonce.parked (tenant, subscription, subject, due_at, seq) where state = 'delayed';

-- What recovery may act on, by scope: see recovery/_take_stale.sql. Only leases and what they left are in here. It holds writers of
-- intents up for the time that it takes to read the table once.
create index recoverable_intents on pgonce.intent (scope, coalesce(lease_until, last_at))
    where expires_at is null and (status = 'processing' or vanished_at is not null)
      and failure_code is distinct from 'needs_manual_action';

-- Those that wait for nothing but their time, however many of a blocked key came before them.
create index inbox_due_alone on pgonce.inbox_message (consumer, due_at, seq)
    where key is null and status in ('received', 'processing', 'failed_retryable');

-- It was a number of the log. Not where there is none: on Citus nobody may write the table.
do $$ begin
    if exists (select from pgonce.projection p where p.from_consumer is not null and p.begins_after <> 0) then
        update pgonce.projection p set begins_after = 0 where p.from_consumer is not null;
    end if;
end $$;

-- The routine of this name comes later; the policy needs to know that there is one.
create or replace function pgonce._lane_of(p_tenant text, p_subject text)
returns smallint
language sql immutable parallel safe
return (hashtextextended((p_tenant || chr(31) || p_subject) collate "C", 20260103) & 15)::smallint;

-- Not where the tables are distributed already: there are no roles for parts.
do $$ begin
    if to_regclass('pgonce.tenant_epoch') is null then
        alter policy numbered_here on pgonce.outbox
            with check (xid = pg_current_xact_id() and seq = currval('pgonce.outbox_seq')
                and created_at > '-infinity' and created_at < pgonce.now() + interval '1 minute'
                and octet_length(topic) between 1 and 255 and octet_length(type) between 1 and 255
                and octet_length(subject) between 1 and 255 and octet_length(tenant) <= 255
                and lane = pgonce._lane_of(tenant, subject) and jsonb_typeof(headers) = 'object'
                -- The largest headers and the largest payload.
                and size between octet_length(headers::text) + coalesce(octet_length(payload::text), 0) and 65536 + 1048576);
    end if;
end $$;
