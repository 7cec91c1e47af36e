-- pgonce._assert_one_node(): refuses to go on where an effect could commit without its record, or a record without its
--          effect: pgonce's tables are on the coordinator of Citus, and others on its workers.
-- answers  true
-- raises   P4104 the database has tables whose rows are on other servers
create or replace function pgonce._assert_one_node()
returns boolean
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_table text;
begin
    select t into v_table from pgonce._remote_tables() t limit 1;
    if found then
        raise exception 'table % is distributed over other servers, and pgonce''s tables are not', v_table using errcode = 'P4104',
            detail = 'Citus commits on a worker and here in two steps: a crash between them would part an effect from its record.',
            hint = 'Run `pgonce migrate up --distribute`; or, where no command writes distributed tables, '
                '`pgonce migrate up --coordinator-only`.';
    end if;
    return true;
end
$$;
