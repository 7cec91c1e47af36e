-- pgonce._end_verify(p_projection): takes in what the live projection has applied since the build began, and compares the
--          two. To be called in a transaction at REPEATABLE READ: it sees one moment, and nobody waits for it.
-- answers  rows of both and what differs: missing rows the live one should have, surplus ones it should not;
--          a hash of each; pending: events that the live one has not applied yet
-- writes   the build goes
-- raises   42704 it is not being built; 55000 the build has not looked at everything yet; 25001 it was not called at
--          REPEATABLE READ; P4031 events that it needs went while it was built
create or replace function pgonce._end_verify(p_projection text)
returns table (live_rows bigint, rebuilt_rows bigint, missing bigint, surplus bigint, live_hash text,
    rebuilt_hash text, pending bigint)
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_projection pgonce.projection := pgonce._require_projection(p_projection);
    v_build      pgonce.projection_build := pgonce._require_build(p_projection, 'verify');
    v_live       regclass := v_projection.into_table::regclass;
    v_columns    text := pgonce._projection_columns(v_live);
    v_event      pgonce.projected;
begin
    if current_setting('transaction_isolation') not in ('repeatable read', 'serializable') then
        raise exception 'a projection is verified as of one moment' using errcode = '25001',
            hint = 'Call it in a transaction at REPEATABLE READ.';
    elsif v_build.lane < 16 then
        raise exception 'the build of projection "%" is not done', p_projection using errcode = '55000',
            hint = 'Call pgonce._step_build until it answers 0.';
    end if;
    perform from pgonce._projection_page(v_projection, 0, 0, 1);
    pending := 0;
    for v_event in select e.* from pgonce._projection_rest(v_projection, null) e loop
        if not pgonce._projection_has(v_projection, v_event) then
            pending := pending + 1;
        else
            perform pgonce._build_event(v_projection, v_build, v_event);
        end if;
    end loop;
    -- As texts: json, xml and point have no equality.
    execute format('select (select count(*) from %1$s), (select count(*) from %3$s),
        (select count(*) from (select t::text from (select %2$s from %3$s) t except all select t::text from (select %2$s from %1$s) t) m),
        (select count(*) from (select t::text from (select %2$s from %1$s) t except all select t::text from (select %2$s from %3$s) t) s),
        (select coalesce(sum(hashtextextended(t::text, 0)::numeric), 0)::text from (select %2$s from %1$s) t),
        (select coalesce(sum(hashtextextended(t::text, 0)::numeric), 0)::text from (select %2$s from %3$s) t)',
        v_live, v_columns, v_build.fresh::regclass) into live_rows, rebuilt_rows, missing, surplus, live_hash, rebuilt_hash;
    perform pgonce._drop_build(p_projection, 'verify');
    return next;
end
$$;
