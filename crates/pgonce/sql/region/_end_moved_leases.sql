-- pgonce._end_moved_leases(): ends leases of intents whose home is not this region any more, where they ran out.
-- answers  null where none is left; else what is waited for
-- locks    the rows that it ends; it waits for none
-- writes   a lease that ran out and that the contract abandons is abandoned
-- note     a lease that has not run out may be finished or renewed by its holder. One whose holder vanished is waited for until
--          recovery or an operator has settled it, and what has called a provider until a later attempt has finished it: another region knows nothing of it,
--          and would do it anew. So would the next life of a key with a call that is not decided, or that was freed and keeps a call
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
    v_called   bigint := 0;
    v_calls    bigint := 0;
    v_until    timestamptz;
begin
    select r.* into v_self from pgonce.region r where r.is_self;
    for v_row in
        select i.* from pgonce.intent i
         where i.expires_at is null
           -- What pgonce._record_fact lets pass: the two say the same.
           and (i.status = 'processing' or i.vanished_at is not null
                or exists (select from pgonce.external_call c where c.tenant = i.tenant and c.scope = i.scope and c.key = i.key
                    and c.status <> 'requested' and c.ended_at is null))
           and (v_self.state <> 'active' or exists (
                select from (values (true), (false)) n (pending), pgonce._home_of(i.tenant, i.scope, i.key, n.pending) h
                 where h.home <> v_self.id and h.mode <> 'local'))
    loop
        if v_row.status <> 'processing' then
            v_stuck := v_stuck + (v_row.vanished_at is not null)::integer;
            v_called := v_called + (v_row.vanished_at is null)::integer;
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
        v_contract := pgonce._contract_of(v_row.tenant, v_row.scope, true);
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
    select count(*) into v_calls
      from (select c.tenant, c.scope, c.key from pgonce.external_call c
             where c.status in ('sent', 'unknown')
               and not exists (select from pgonce.intent i where i.tenant = c.tenant and i.scope = c.scope and i.key = c.key
                    and i.expires_at is null)
            union all
            -- Among all calls: only when no intent is left.
            select c.tenant, c.scope, c.key from pgonce.external_call c
             where v_live + v_stuck + v_called = 0 and c.status = 'confirmed' and c.ended_at is null and c.expires_at > pgonce.now()
               and not exists (select from pgonce.intent i where i.tenant = c.tenant and i.scope = c.scope and i.key = c.key)) c
     where v_self.state <> 'active' or exists (
                select from (values (true), (false)) n (pending), pgonce._home_of(c.tenant, c.scope, c.key, n.pending) h
                 where h.home <> v_self.id and h.mode <> 'local');
    return case when v_live + v_stuck + v_called + v_calls > 0 then concat_ws('; ',
        case when v_live > 0 then format('%s held under a lease, the last until %s', v_live, v_until) end,
        case when v_stuck > 0 then format('%s whose holder vanished and that an operator or recovery must settle, fail or release by force (pgonce stuck)', v_stuck) end,
        case when v_called > 0 then format('%s that have called a provider and that the next attempt or an operator must finish (pgonce external list)', v_called) end,
        case when v_calls > 0 then format('%s calls to providers that an operator or a reconciler must decide (pgonce external list)', v_calls) end) end;
end
$$;
