-- pgonce._record_old_facts(): what finished before this database was a region becomes facts that travel.
-- answers  how many it recorded
-- writes   pgonce.region_fact
create or replace function pgonce._record_old_facts()
returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_count bigint;
begin
    insert into pgonce.region_fact (region, epoch, seq, kind, tenant, scope, key, at, expires_at, record)
    select r.id, r.epoch, nextval('pgonce.region_seq'), 'finished', i.tenant, i.scope, i.key, coalesce(i.last_at, i.first_at),
           i.expires_at, to_jsonb(i) - case when i.answer is null then 'answer' else '' end
      from pgonce.region r, lateral (
        select n.* from pgonce.intent n
         where n.expires_at > pgonce.now() and n.gone_at is null
           and not exists (select from pgonce.region_fact f where f.tenant = n.tenant and f.scope = n.scope and f.key = n.key
                and f.kind = 'finished' and f.at = coalesce(n.last_at, n.first_at))) i
     where r.is_self;
    get diagnostics v_count = row_count;
    return v_count;
end
$$;
