-- The triggers of the partitions of other regions: a heartbeat is noted and not stored, a fact that is here already is
-- skipped, and every other one is merged.
-- writes   pgonce.region, or what pgonce._merge_intent writes; pgonce.region_pending where that fails
-- note     it catches every error: one would stop the subscription. And it waits for locks for a second in two: the rest is put
--          aside at once, so that replication goes on
create or replace function pgonce._land_fact()
returns trigger
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
    if tg_when = 'BEFORE' and new.kind = 'beat' then
        begin
            -- Each has the number after the one before it: where one is missing, facts are missing with it.
            update pgonce.region r set last_beat_at = new.at, epoch = greatest(r.epoch, new.epoch), beat = new.seq,
                   missed = r.missed or coalesce(new.seq not in (r.beat, r.beat + 1), false)
             where r.id = new.region;
        exception when others then
            raise log 'pgonce: heartbeat of region %: %', new.region, sqlerrm;
        end;
        return null;
    elsif tg_when = 'BEFORE' then
        return case when not exists (select from pgonce.region_fact f
            where f.region = new.region and f.epoch = new.epoch and f.seq = new.seq) then new end;
    end if;
    begin
        if (select count(*) from (select from pgonce.region_pending p
             where p.since > clock_timestamp() - interval '1 second' limit 5) as recent) = 5 then
            raise exception 'other records are locked';
        end if;
        perform pgonce._merge_intent(new.tenant, new.scope, new.key);
    exception when others then
        insert into pgonce.region_pending (tenant, scope, key, reason, since)
        values (new.tenant, new.scope, new.key, sqlerrm, clock_timestamp())
        -- The lock keeps a merge that is under way from removing the row before this fact is seen.
        on conflict on constraint one_row_per_pending_intent do update set reason = excluded.reason;
    end;
    return null;
end
$$;
