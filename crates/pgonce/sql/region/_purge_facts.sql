-- pgonce._purge_facts(p_limit): removes facts of intents that expired everywhere.
-- answers  how many
-- writes   pgonce.region_fact: a fact goes a day after all of its intent have expired, and a day after every region has
--          sent a heartbeat past that: what they committed meanwhile has arrived, and was compared with it
create or replace function pgonce._purge_facts(p_limit integer default 10000)
returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_before timestamptz := least(pgonce.now(), (select min(coalesce(r.last_beat_at, '-infinity')) from pgonce.region r
        where not r.is_self and r.state <> 'lost')) - interval '1 day';
    v_count  bigint;
begin
    delete from pgonce.region_fact f
     where (f.tenant, f.scope, f.key) in (
        select o.tenant, o.scope, o.key from pgonce.region_fact o
         where o.expires_at < v_before
           and not exists (select from pgonce.region_fact n where n.tenant = o.tenant and n.scope = o.scope and n.key = o.key
                and n.expires_at >= v_before)
           and not exists (select from pgonce.region_task t where t.tenant = o.tenant and t.scope = o.scope and t.key = o.key
                and t.resolved_at is null)
         limit p_limit);
    get diagnostics v_count = row_count;
    return v_count;
end
$$;
