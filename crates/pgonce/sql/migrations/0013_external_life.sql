-- 0013_external_life: a call to a provider belongs to one life of its key; what was never sent can be purged; a provider that
-- nobody defined has limits.
-- breaking: no

-- begun_at: the first_at of the intent that it belongs to. ended_at: the retention of that intent is over. first_fence: the attempt
-- that made the row; what an earlier one says is about another call. All are null in rows from before.
alter table pgonce.external_call add column begun_at timestamptz;
alter table pgonce.external_call add column ended_at timestamptz;
alter table pgonce.external_call add column first_fence bigint;

-- Null: nobody defined it. Then the row has only the state of its limits, and the rules are those of '*'.
alter table pgonce.external_provider alter column defined_at drop not null;

-- Only where there are rows: on Citus the table is not written at all.
do $$
begin
    if exists (select from pgonce.external_call c where c.status = 'requested') then
        update pgonce.external_call c set expires_at = c.requested_at where c.status = 'requested';
    end if;
end $$;
