-- pgonce._merge_pending(p_before): merges one intent whose facts arrived while its record was locked: of those that were put aside
--          or tried before p_before, the first.
-- answers  whether there was one
-- writes   as pgonce._merge_intent; a reason where it still fails
-- note     one in each transaction: locks and waits do not add up
create or replace function pgonce._merge_pending(p_before timestamptz default 'infinity')
returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_next pgonce.region_pending;
begin
    select p.* into v_next from pgonce.region_pending p where p.since < p_before order by p.since limit 1 for update skip locked;
    if not found then
        return false;
    end if;
    begin
        perform pgonce._merge_intent(v_next.tenant, v_next.scope, v_next.key);
    exception when others then
        update pgonce.region_pending p set reason = sqlerrm, since = clock_timestamp()
         where (p.tenant, p.scope, p.key) = (v_next.tenant, v_next.scope, v_next.key);
    end;
    return true;
end
$$;
