-- pgonce._end_rebuild(p_projection): takes in what came since the build began, and puts the fresh rows in the place of the live
--          ones: readers see the old rows or the new ones, and nobody is kept from reading.
-- answers  events that were applied, and rows that were removed and added: 0 and 0 where it was right
-- locks    the projection alone: nobody applies meanwhile
-- writes   the rows of the live table that differ; its gates or markers: what was replayed is not applied again
-- raises   42704 it is not being built; 55000 the build has not looked at everything yet; 25001 it was not called at READ
--          COMMITTED; P4031 events that it needs went while it was built
create or replace function pgonce._end_rebuild(p_projection text)
returns table (events bigint, removed bigint, added bigint)
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_projection pgonce.projection := pgonce._require_projection(p_projection);
    v_build      pgonce.projection_build := pgonce._require_build(p_projection, 'rebuild');
    v_live       regclass := v_projection.into_table::regclass;
    v_event      pgonce.projected;
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'a rebuild has to see what committed meanwhile' using errcode = '25001',
            hint = 'Call it in a transaction at READ COMMITTED.';
    elsif v_build.lane < 16 then
        raise exception 'the rebuild of projection "%" is not done', p_projection using errcode = '55000',
            hint = 'Call pgonce._step_build until it answers 0.';
    end if;
    perform pgonce._force_durable_commit();
    -- From here on nobody applies: whatever the live one has is committed, and so are its events.
    perform pg_advisory_xact_lock(pgonce._projection_lock(p_projection, ''));
    for v_event in select e.* from pgonce._projection_rest(v_projection, v_build.seen) e loop
        v_build.events := v_build.events + pgonce._build_event(v_projection, v_build, v_event)::integer;
    end loop;
    -- Looked at again after all was read: what went meanwhile may be missing.
    perform from pgonce._projection_page(v_projection, 0, 0, 1);
    -- Joined by the key: the time grows with the rows, not with their square. Compared as stored, which is four times as fast, and
    -- as texts where that differs: json, xml and point have no equality.
    perform set_config('extra_float_digits', '1', true);
    execute format('delete from %1$s l where not exists (select from %2$s f where %3$s
            and (row(%4$s)::record *= row(%5$s)::record or row(%4$s)::text = row(%5$s)::text))',
        v_live, v_build.fresh::regclass, pgonce._projection_match(v_live, 'l', 'f'),
        pgonce._projection_columns(v_live, 'l.'), pgonce._projection_columns(v_live, 'f.'));
    get diagnostics removed = row_count;
    execute format('insert into %1$s (%4$s) overriding system value select %5$s from %2$s f
        where not exists (select from %1$s l where %3$s)', v_live, v_build.fresh::regclass,
        pgonce._projection_match(v_live, 'l', 'f'), pgonce._projection_columns(v_live), pgonce._projection_columns(v_live, 'f.'));
    get diagnostics added = row_count;

    -- Only what differs is written: the live projection waits meanwhile.
    if v_projection.gate = 'version' then
        delete from pgonce.projection_gate g where g.projection = p_projection collate "C" and not exists (
            select from pgonce.projection_build_gate b
             where b.tenant = g.tenant and b.projection = p_projection collate "C" and b.purpose = 'rebuild'
               and b.name = g.entity and b.version = g.version);
        insert into pgonce.projection_gate (tenant, projection, entity, version)
        select b.tenant, p_projection, b.name, b.version from pgonce.projection_build_gate b
         where b.projection = p_projection collate "C" and b.purpose = 'rebuild' and not exists (
            select from pgonce.projection_gate g
             where g.tenant = b.tenant and g.projection = p_projection collate "C" and g.entity = b.name);
    else
        insert into pgonce.inbox_marker (accepted_at, day, tenant, consumer, source, message_id)
        select pgonce.now(), pgonce._day_of(b.name), b.tenant, 'projection:' || p_projection, 'event', b.name
          from pgonce.projection_build_gate b
         where b.projection = p_projection collate "C" and b.purpose = 'rebuild' and not exists (
            select from pgonce.inbox_marker m
             where m.tenant = b.tenant and m.message_id = b.name and m.consumer = 'projection:' || p_projection
               and m.source = 'event' and m.day = pgonce._day_of(b.name))
         order by b.tenant, b.name
        on conflict do nothing;
    end if;
    update pgonce.projection p set rebuilt_at = pgonce.now(), rebuilt_rows = added
     where p.tenant = '' and p.projection = p_projection collate "C";
    perform pgonce._drop_build(p_projection, 'rebuild');
    events := v_build.events;
    return next;
end
$$;
