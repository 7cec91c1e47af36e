-- The trigger of pgonce.intent in a region: what finishes, or is removed before its expiry, becomes a fact that travels.
-- writes   one row of pgonce.region_fact
-- locks    the calls to providers of an attempt that writes without a lease, shared
-- raises   as pgonce._check_region: an attempt that was claimed before its home moved, and writes after. Not where the row is held by a
--          lease, its holder vanished, or it has called a provider: who moves the home waits for it, by the same conditions
--          (pgonce._end_moved_leases), and it can be settled here only
-- note     under the epoch of the installation, not of the region: one that was restored and has not joined again must not use
--          a number twice. Not where it repeats a fact that is here: then it is the merge that wrote the record
create or replace function pgonce._record_fact()
returns trigger
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_kind text := case tg_op when 'DELETE' then 'evicted' else 'finished' end;
    v_row  pgonce.intent := case tg_op when 'DELETE' then old else new end;
    v_at   timestamptz := coalesce(v_row.last_at, v_row.first_at);
    v_free boolean := tg_op = 'INSERT' or tg_op = 'UPDATE' and old.status <> 'processing' and old.vanished_at is null;
begin
    if v_free and tg_op = 'UPDATE' then
        -- Locked, so that in a transaction with an older snapshot what was decided since is an error.
        perform from pgonce.external_call c
          where c.tenant = old.tenant and c.scope = old.scope and c.key = old.key and c.status <> 'requested' and c.ended_at is null
            for share;
        v_free := not found;
    end if;
    if tg_op <> 'DELETE' and new.expires_at is null then
        -- A lease begins.
        if v_free then
            perform pgonce._check_region(new.tenant, new.scope, new.key, true);
        end if;
        return null;
    end if;
    if not exists (select from pgonce.region_fact f
         where f.tenant = v_row.tenant and f.scope = v_row.scope and f.key = v_row.key and f.kind = v_kind
           and (f.at = v_at and (f.record ->> 'fence')::bigint = v_row.fence or f.at > v_at and v_kind = 'evicted')) then
        if v_free then
            perform pgonce._check_region(new.tenant, new.scope, new.key, true);
        end if;
        insert into pgonce.region_fact (region, epoch, seq, kind, tenant, scope, key, at, expires_at, record)
        select r.id, pgonce._installation_epoch(), nextval('pgonce.region_seq'), v_kind, v_row.tenant, v_row.scope, v_row.key,
               case v_kind when 'evicted' then pgonce.now() else v_at end, v_row.expires_at,
               -- An answer that is JSON's null is not the same as none.
               case v_kind when 'finished' then to_jsonb(v_row) - case when v_row.answer is null then 'answer' else '' end end
          from pgonce.region r where r.is_self;
    end if;
    return null;
end
$$;
