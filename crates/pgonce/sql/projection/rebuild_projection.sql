-- pgonce.rebuild_projection(p_projection): makes a projection anew from its events, and puts that in its place, in one
--          transaction: readers see the old rows or the new ones, and nobody is kept from reading.
-- answers  events that were applied, and rows that were removed and added: 0 and 0 where it was right
-- locks    the projection alone, but only for what came while it was being built, and the exchange
-- writes   the rows of the table that differ; its gates or markers: what was replayed is not applied again
-- raises   42704 no such projection; P4031 the log does not reach back to where it begins; 25001 it was not
--          called at READ COMMITTED
create or replace function pgonce.rebuild_projection(p_projection text)
returns table (events bigint, removed bigint, added bigint)
language plpgsql volatile
as $$
declare
    v_projection pgonce.projection := pgonce.known_projection(p_projection);
    v_live       regclass := v_projection.into_table::regclass;
    v_columns    text;
    v_key        text;
    v_seen       pg_snapshot;
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'a rebuild has to see what commits meanwhile' using errcode = '25001',
            hint = 'Call it in a transaction at READ COMMITTED.';
    end if;
    perform pgonce.fresh_projection(v_projection);
    v_seen := pg_current_snapshot();
    events := pgonce.build_projection(v_projection, null, false);
    -- From here on nobody applies: whatever the live one has is committed, and so are its events.
    perform pg_advisory_xact_lock(pgonce.projection_lock(p_projection, ''));
    events := events + pgonce.build_projection(v_projection, v_seen, false);

    v_columns := pgonce.projection_columns(v_live, false);
    v_key := pgonce.projection_columns(v_live, true);
    execute format('delete from %1$s where (%2$s) in (select %2$s from (select %3$s from %1$s except select %3$s from pg_temp.pgonce_rebuilt) d)',
        v_live, v_key, v_columns);
    get diagnostics removed = row_count;
    execute format('insert into %1$s (%2$s) overriding system value select %2$s from pg_temp.pgonce_rebuilt r
        where (%3$s) not in (select %3$s from %1$s)', v_live, v_columns, v_key);
    get diagnostics added = row_count;

    if v_projection.gate = 'version' then
        delete from pgonce.projection_gate g where g.projection = p_projection;
        execute 'insert into pgonce.projection_gate select r.tenant, $1, r.name, r.version from pg_temp.pgonce_rebuilt_gate r'
            using p_projection;
    else
        execute 'insert into pgonce.inbox_marker (accepted_at, day, tenant, consumer, source, message_id)
            select pgonce.now(), pgonce.day_of(r.name), r.tenant, $1, ''event'', r.name from pg_temp.pgonce_rebuilt_gate r
             order by r.name on conflict do nothing' using 'projection:' || p_projection;
    end if;
    update pgonce.projection p set rebuilt_at = pgonce.now(), rebuilt_rows = added
     where p.tenant = '' and p.projection = p_projection;
    return next;
end
$$;
