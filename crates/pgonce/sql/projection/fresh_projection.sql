-- pgonce.fresh_projection(p_projection): makes the empty tables pg_temp.pgonce_rebuilt, as the live one, and
--          pg_temp.pgonce_rebuilt_gate. They go with the transaction.
create or replace function pgonce.fresh_projection(p_projection pgonce.projection)
returns void
language plpgsql volatile
as $$
begin
    if to_regclass('pg_temp.pgonce_rebuilt') is not null then
        execute 'drop table pg_temp.pgonce_rebuilt, pg_temp.pgonce_rebuilt_gate';
    end if;
    execute format('create temporary table pgonce_rebuilt (like %s including defaults including generated
        including identity including constraints including indexes) on commit drop', p_projection.into_table::regclass);
    execute 'create temporary table pgonce_rebuilt_gate (tenant text collate "C", name text collate "C", version bigint,
        primary key (tenant, name)) on commit drop';
end
$$;
