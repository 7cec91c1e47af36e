-- pgonce._others_snapshot(): the current snapshot, in which the caller's own transaction has not ended.
-- answers  pg_current_snapshot() calls the own transaction ended where others with higher ids have ended: a reader of the log
--          would pass by what it publishes itself afterwards
create or replace function pgonce._others_snapshot()
returns pg_snapshot
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_now pg_snapshot := pg_current_snapshot();
    v_own xid8 := pg_current_xact_id_if_assigned();
begin
    if v_own < pg_snapshot_xmax(v_now) then
        return (select format('%s:%s:%s', least(pg_snapshot_xmin(v_now), v_own), pg_snapshot_xmax(v_now),
                              string_agg(w.id::text, ',' order by w.id))
                  from (select x as id from pg_snapshot_xip(v_now) x union select v_own) w)::pg_snapshot;
    end if;
    return v_now;
end
$$;
