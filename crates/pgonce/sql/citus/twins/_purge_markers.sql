-- pgonce._purge_markers(p_consumer, p_since, p_limit, p_tenant): on Citus, what pgonce._purge_inbox does for one consumer of one
--          tenant, on the server that has its markers.
-- answers  how many markers it removed
-- locks    the markers it removes, and none that is in use
-- writes   pgonce.inbox_marker: only those from before p_since
create or replace function pgonce._purge_markers(p_consumer text, p_since timestamptz, p_limit integer, p_tenant text)
returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_row  record;
    v_done bigint := 0;
begin
    for v_row in
        select m.source, m.message_id, m.day from pgonce.inbox_marker m
         where m.tenant = p_tenant and m.consumer = p_consumer collate "C" and m.accepted_at < p_since
         limit p_limit for update skip locked
    loop
        delete from pgonce.inbox_marker m
         where m.tenant = p_tenant and m.consumer = p_consumer collate "C" and m.source = v_row.source
           and m.message_id = v_row.message_id and m.day = v_row.day;
        v_done := v_done + 1;
    end loop;
    return v_done;
end
$$;
