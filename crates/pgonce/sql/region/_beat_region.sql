-- pgonce._beat_region(): sends a heartbeat to the other regions: by it they know how far behind they are.
-- answers  its time; null where this is no region, or one that must join again
-- writes   a row that travels and is removed at once
create or replace function pgonce._beat_region()
returns timestamptz
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_at timestamptz;
begin
    insert into pgonce.region_fact (region, epoch, seq, kind, tenant, scope, key, at)
    select r.id, r.epoch, 0, 'beat', '', '', '', pgonce.now() from pgonce.region r
     where r.is_self and r.epoch = pgonce._installation_epoch()
    returning at into v_at;
    delete from pgonce.region_fact f using pgonce.region r
     where r.is_self and f.region = r.id and f.kind = 'beat' and f.tenant = '' and f.scope = '' and f.key = '';
    perform pgonce._merge_pending();
    return v_at;
end
$$;
