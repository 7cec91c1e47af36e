-- 0012_vanished: an intent remembers that a holder vanished until it is known how its work ended; and in regions, no attempts are left
-- of records that are gone.
-- breaking: no

-- Attempts that stayed when replication removed or replaced their record: the next life of the key could not have recorded its own.
-- Before the first change of a table since there are regions, as it may take long: the migrations of an upgrade are one transaction,
-- and nobody writes a table that it has altered.
do $$
begin
    if exists (select from pgonce.region) then
        delete from pgonce.attempt a
         where not exists (select from pgonce.intent i where i.tenant = a.tenant and i.scope = a.scope and i.key = a.key
             and (i.attempts > 1 or i.fence > 1 and i.fence % 2 = 1));
    end if;
end $$;

-- Null is not stored, so no row is rewritten. What is unfinished and was taken over before is not known: its row says nothing of it.
alter table pgonce.intent add column vanished_at timestamptz;
