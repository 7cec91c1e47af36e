-- pgonce.build_projection(p_projection, p_seen, p_applied): applies events, or those that the snapshot p_seen does not see,
--          to the table pg_temp.pgonce_rebuilt, with gates of its own in pg_temp.pgonce_rebuilt_gate.
-- answers  how many events it applied
-- writes   those two. p_applied: only events that the live projection has applied too
create or replace function pgonce.build_projection(p_projection pgonce.projection, p_seen pg_snapshot,
    p_applied boolean)
returns bigint
language plpgsql volatile
as $$
declare
    v_event pgonce.projected;
    v_into  regclass := 'pg_temp.pgonce_rebuilt'::regclass;
    v_call  text := format('select %s($1, $2)', p_projection.apply);
    v_name  text := case p_projection.gate when 'version' then 'entity' else 'message_id' end;
    v_count bigint := 0;
    v_new   bigint;
begin
    for v_event in select e.* from pgonce.projection_events(p_projection, p_seen) e loop
        if p_applied and not pgonce.projection_has(p_projection, v_event) then
            continue;
        end if;
        execute 'insert into pg_temp.pgonce_rebuilt_gate as g values ($1, $2, $3)
                 on conflict (tenant, name) do update set version = excluded.version where g.version < excluded.version'
            using v_event.tenant, case v_name when 'entity' then v_event.entity else v_event.message_id end,
                  case v_name when 'entity' then v_event.version else 0 end;
        get diagnostics v_new = row_count;
        if v_new > 0 then
            execute v_call using v_into, v_event;
            v_count := v_count + 1;
        end if;
    end loop;
    return v_count;
end
$$;
