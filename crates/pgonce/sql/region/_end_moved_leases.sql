-- pgonce._end_moved_leases(): ends leases of intents whose home is not this region any more, where they ran out.
-- answers  null where none is left; else what is waited for
-- locks    the rows that it ends; it waits for none
-- writes   a lease that ran out and that the contract abandons is abandoned
-- note     a lease that has not run out may be finished or renewed by its holder. One whose holder vanished is waited for until
--          recovery or an operator has settled it: another region knows nothing of it, and would do it anew
create or replace function pgonce._end_moved_leases()
returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_self     pgonce.region;
    v_row      pgonce.intent;
    v_contract pgonce.scope;
    v_now      timestamptz;
    v_live     bigint := 0;
    v_stuck    bigint := 0;
    v_until    timestamptz;
begin
    select r.* into v_self from pgonce.region r where r.is_self;
    for v_row in
        select i.* from pgonce.intent i
         where i.expires_at is null and (i.status = 'processing' or i.vanished_at is not null)
           and (v_self.state <> 'active' or exists (
                select from (values (true), (false)) n (pending), pgonce._home_of(i.tenant, i.scope, i.key, n.pending) h
                 where h.home <> v_self.id and h.mode <> 'local'))
    loop
        if v_row.status <> 'processing' then
            v_stuck := v_stuck + 1;
            continue;
        end if;
        perform from pgonce.intent i
         where i.tenant = v_row.tenant and i.scope = v_row.scope and i.key = v_row.key and i.status = 'processing'
           and i.fence = v_row.fence and i.lease_until <= pgonce.now() for update skip locked;
        if not found then
            v_live := v_live + 1;
            v_until := greatest(v_until, v_row.lease_until);
            continue;
        end if;
        v_contract := pgonce._contract(v_row.tenant, v_row.scope);
        v_now := pgonce.now();
        if v_contract.stale = 'refuse' then
            update pgonce.intent i
               set status = 'failed_final', lease_until = null, last_at = v_now, expires_at = v_now + v_contract.retention,
                   failure_code = 'abandoned', failure_message = 'the holder vanished; whether its effect happened is not known'
             where i.tenant = v_row.tenant and i.scope = v_row.scope and i.key = v_row.key;
        else
            v_stuck := v_stuck + 1;
        end if;
    end loop;
    return case when v_live + v_stuck > 0 then concat_ws('; ',
        case when v_live > 0 then format('%s held under a lease, the last until %s', v_live, v_until) end,
        case when v_stuck > 0 then format('%s whose holder vanished and that an operator or recovery must settle, fail or release by force (pgonce stuck)', v_stuck) end) end;
end
$$;
