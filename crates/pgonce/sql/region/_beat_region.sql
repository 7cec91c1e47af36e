-- pgonce._beat_region(): sends a heartbeat to the other regions: by it they know how far behind they are, and that they have
--          everything that was committed before it.
-- answers  its number, one after that of the heartbeat before; null where this is no region, or one that must join again
-- locks    against other heartbeats of this region
-- writes   a row that travels, in the place of the last one
create or replace function pgonce._beat_region()
returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_self pgonce.region;
    v_beat bigint;
begin
    select r.* into v_self from pgonce.region r where r.is_self and r.epoch = pgonce._installation_epoch();
    if not found then
        return null;
    end if;
    perform pg_advisory_xact_lock(pgonce._lock_id('', 'pgonce.regions', 'beat'));
    with last as (
        delete from pgonce.region_fact f
         where f.region = v_self.id and f.kind = 'beat' and f.tenant = '' and f.scope = '' and f.key = ''
        returning f.seq)
    select coalesce(max(l.seq), 0) + 1 into v_beat from last l;
    insert into pgonce.region_fact (region, epoch, seq, kind, tenant, scope, key, at)
    values (v_self.id, v_self.epoch, v_beat, 'beat', '', '', '', pgonce.now());
    return v_beat;
end
$$;
