-- pgonce._begin_build(p_projection, p_purpose): begins to build a projection anew, in a fresh table beside the live one.
--          Go on with pgonce._step_build, each in a transaction of its own, until it answers 0; then
--          pgonce._end_rebuild or pgonce._end_verify.
-- writes   an empty table as the live one, in the same schema; the build. One that was there is given up
-- raises   42704 no such projection; 23514 a purpose that is neither rebuild nor verify; P4031 its events do not reach back to
--          where the projection begins; 42501 the role may not create tables there
create or replace function pgonce._begin_build(p_projection text, p_purpose text)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_projection pgonce.projection := pgonce._require_projection(p_projection);
    v_fresh      text;
begin
    perform pgonce._drop_build(p_projection, p_purpose);
    perform from pgonce._projection_page(v_projection, 0, 0, 1);
    select format('%I.%I', n.nspname, 'pgonce_' || p_purpose || '_' || left(md5(p_projection), 12)) into v_fresh
      from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = v_projection.into_table::regclass;
    insert into pgonce.projection_build (projection, purpose, fresh, seen, started_at)
    values (p_projection, p_purpose, v_fresh, pg_current_snapshot(), pgonce.now());
    execute format('create table %s (like %s including defaults including generated including identity
        including constraints including indexes)', v_fresh, v_projection.into_table::regclass);
end
$$;
