-- pgonce._merge_pending(p_limit): merges intents whose facts arrived while their record was locked.
-- answers  how many are still to be merged
-- writes   as pgonce._merge_intent; a reason where it still fails
create or replace function pgonce._merge_pending(p_limit integer default 100)
returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_next record;
begin
    for v_next in select p.* from pgonce.region_pending p order by p.since limit p_limit for update skip locked loop
        begin
            perform pgonce._merge_intent(v_next.tenant, v_next.scope, v_next.key);
        exception when others then
            update pgonce.region_pending p set reason = sqlerrm, since = clock_timestamp()
             where (p.tenant, p.scope, p.key) = (v_next.tenant, v_next.scope, v_next.key);
        end;
    end loop;
    return (select count(*) from pgonce.region_pending);
end
$$;
