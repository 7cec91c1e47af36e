-- pgonce.verify_projection(p_projection): builds a projection anew beside the live one, of the events that the live
--          one has applied, and compares the two. To be called in a transaction at REPEATABLE READ: it sees
--          one moment, and nobody waits for it.
-- answers  rows of both and what differs: missing rows the live one should have, surplus ones it should not;
--          a hash of each; pending: events that the live one has not applied yet
-- writes   nothing that lasts
-- raises   42704 no such projection; P4031 the log does not reach back to where it begins; 25001 it was not
--          called at REPEATABLE READ
create or replace function pgonce.verify_projection(p_projection text)
returns table (live_rows bigint, rebuilt_rows bigint, missing bigint, surplus bigint, live_hash text,
    rebuilt_hash text, pending bigint)
language plpgsql volatile
as $$
declare
    v_projection pgonce.projection := pgonce.known_projection(p_projection);
    v_live       regclass := v_projection.into_table::regclass;
    v_columns    text := pgonce.projection_columns(v_live, false);
begin
    if current_setting('transaction_isolation') not in ('repeatable read', 'serializable') then
        raise exception 'a projection is verified as of one moment' using errcode = '25001',
            hint = 'Call it in a transaction at REPEATABLE READ.';
    end if;
    perform pgonce.fresh_projection(v_projection);
    perform pgonce.build_projection(v_projection, null, true);
    select count(*) into pending from pgonce.projection_events(v_projection, null) e
     where not pgonce.projection_has(v_projection, e);
    execute format('select (select count(*) from %1$s), (select count(*) from pg_temp.pgonce_rebuilt),
        (select count(*) from (select %2$s from pg_temp.pgonce_rebuilt except all select %2$s from %1$s) m),
        (select count(*) from (select %2$s from %1$s except all select %2$s from pg_temp.pgonce_rebuilt) s),
        (select coalesce(sum(hashtextextended(t::text, 0)::numeric), 0)::text from (select %2$s from %1$s) t),
        (select coalesce(sum(hashtextextended(t::text, 0)::numeric), 0)::text from (select %2$s from pg_temp.pgonce_rebuilt) t)',
        v_live, v_columns) into live_rows, rebuilt_rows, missing, surplus, live_hash, rebuilt_hash;
    return next;
end
$$;
