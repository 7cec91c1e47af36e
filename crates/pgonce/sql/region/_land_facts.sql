-- pgonce._land_facts(p_facts): takes in facts that were read from another region: what was committed there before replication
--          began, or what this region itself has forgotten.
-- answers  how many were new
-- writes   pgonce.region_fact, and what pgonce._merge_intent writes
create or replace function pgonce._land_facts(p_facts jsonb)
returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_fact pgonce.region_fact;
    v_new  bigint := 0;
begin
    for v_fact in
        select f.* from jsonb_populate_recordset(null::pgonce.region_fact, p_facts) f
         where not exists (select from pgonce.region_fact o where o.region = f.region and o.epoch = f.epoch and o.seq = f.seq)
    loop
        insert into pgonce.region_fact select v_fact.*;
        -- The partition of this region has no triggers: what it commits by itself is in its record.
        perform pgonce._merge_intent(v_fact.tenant, v_fact.scope, v_fact.key)
          from pgonce.region r where r.is_self and r.id = v_fact.region;
        v_new := v_new + 1;
    end loop;
    return v_new;
end
$$;
