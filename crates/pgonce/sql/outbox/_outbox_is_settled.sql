-- pgonce._outbox_is_settled(): after a re-base, has everybody ended who may write below base_seq?
-- answers  true: read. Windows begin only then; it is the one time that a relay waits for somebody,
--          and only for those who were publishing at that moment
-- writes   forgets whom it waited for, once they have ended; false once more then, so that a caller who
--          gets true has a snapshot that sees them
create or replace function pgonce._outbox_is_settled()
returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    if exists (select from pgonce.outbox_state l where l.base_waits = '{}') then
        return true;
    end if;
    update pgonce.outbox_state l set base_waits = '{}'
     where not exists (select from pg_locks k
                        where k.relation = 'pgonce.outbox'::regclass and k.mode = 'RowExclusiveLock'
                          and k.virtualtransaction = any (l.base_waits));
    return false;
end
$$;
