-- pgonce._import_hold(p_job, p_number, p_runner, p_lease, p_tenant): begins a transaction that gives rows their
--          results: from here to its end nobody else can.
-- answers  the rows that have one
-- locks    the import
-- writes   its lease
-- raises   P4012 another process goes on with it; P4082 it was cancelled
create or replace function pgonce._import_hold(p_job text, p_number integer, p_runner uuid, p_lease interval, p_tenant text)
returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_import pgonce.import;
begin
    update pgonce.import i set leased_until = pgonce.now() + p_lease, backend = pg_backend_pid()
     where i.tenant = p_tenant and i.job = p_job and i.number = p_number and i.runner = p_runner
    returning * into v_import;
    if not found then
        raise exception 'another process goes on with import % of job "%"', p_number, p_job using errcode = 'P4012',
            hint = 'Stop: nothing of this process counts any more.';
    elsif v_import.state = 'cancelled' then
        raise exception 'import % of job "%" was cancelled', p_number, p_job using errcode = 'P4082',
            hint = 'What was applied stays. To go on: pgonce import resume.';
    end if;
    return v_import.row_count;
end
$$;
