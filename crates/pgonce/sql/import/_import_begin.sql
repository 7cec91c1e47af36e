-- pgonce._import_begin(p_job, p_file_hash, p_source, p_settings, p_runner, p_lease, p_tenant, p_number): begins the import
--          of a file, or goes on where it was; where p_number is given, with that import and no other.
-- answers  one row: the import, and how far it is. state done: there is nothing to do
-- locks    the job and the file
-- writes   the import, which belongs to p_runner from now on; unfinished imports of the file for other jobs, which nobody
--          goes on with
-- raises   22023 a bad name or number; P4029 another process imports for this job, or this file; P4098 the import was begun
--          with other settings, or with another file; rows without a key were passed to a function from another file of the job,
--          which is not done; P4082 it was cancelled under this process; 42501 the session's role is
--          bound to another tenant
-- note     without a hash (the input is a stream) it goes on with the job's unfinished import that has none. A process
--          is taken to be dead when its lease is over or its backend has ended, and it is in no transaction that gives
--          rows their results: if it lives, it is fenced out
create or replace function pgonce._import_begin(p_job text, p_file_hash bytea, p_source text, p_settings jsonb, p_runner uuid,
    p_lease interval, p_tenant text, p_number integer)
returns setof pgonce.import
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_import pgonce.import;
    v_busy   boolean := false;
    v_other  text;
begin
    if (octet_length(p_job) between 1 and 200) is not true then
        raise exception 'the name of a job has 1 to 200 bytes' using errcode = '22023', hint = 'Name the job after what it imports.';
    end if;
    perform pgonce._check_tenant(p_tenant);
    -- Always the job first, so that no two wait for each other.
    perform pg_advisory_xact_lock(pgonce._lock_id(p_tenant, 'import', p_job));
    perform pg_advisory_xact_lock(pgonce._lock_id(p_tenant, 'import of file', encode(p_file_hash, 'hex'))) where p_file_hash is not null;
    begin
        -- The lease that a transaction renews is seen when it ends; until then it holds the row.
        perform from pgonce.import i
          where i.tenant = p_tenant and (i.job = p_job or i.file_hash = p_file_hash) and i.state = 'running'
            and i.runner <> p_runner
            for update nowait;
    exception when lock_not_available then
        v_busy := true;
    end;
    select i.job into v_other from pgonce.import i
     where i.tenant = p_tenant and (i.job = p_job or i.file_hash = p_file_hash) and i.state = 'running' and i.runner <> p_runner
       and (v_busy or i.leased_until > pgonce.now()
            and exists (select from pg_stat_get_activity(i.backend) a where a.pid = i.backend))
     order by i.leased_until desc limit 1;
    if found or v_busy then
        raise exception 'another process imports % for job "%"', case when v_other <> p_job then 'this file' else 'a file' end,
            coalesce(v_other, p_job) using errcode = 'P4029', hint = 'Wait until it is done, or cancel it: pgonce import cancel.';
    end if;
    -- Who is taken to be dead for another job is fenced out, as it is for this one below.
    update pgonce.import i set runner = p_runner, leased_until = least(i.leased_until, pgonce.now())
     where i.tenant = p_tenant and i.job <> p_job and i.file_hash = p_file_hash and i.state = 'running' and i.runner <> p_runner;
    select i.* into v_import from pgonce.import i
     where i.tenant = p_tenant and i.job = p_job
       and case when p_number is not null then i.number = p_number
                when p_file_hash is null then i.file_hash is null and i.state <> 'done'
                else i.file_hash = p_file_hash end
     order by i.number desc limit 1 for update;
    if not found and p_number is not null then
        raise exception 'job "%" has no import %', p_job, p_number using errcode = '22023', hint = 'pgonce import list shows the imports.';
    elsif not found then
        -- Rows without a key are known by their place in one file only: in another they would be passed to the function again.
        select i.* into v_import from pgonce.import i
         where i.tenant = p_tenant and i.job = p_job and i.state <> 'done' and i.row_count > 0
           and p_settings ?| '{call,call_batch}' and coalesce(p_settings ->> 'key', '[]') = '[]'
         order by i.number desc limit 1;
        if found then
            raise exception 'import % of job "%" applied rows of another file, and they have no key', v_import.number, p_job
                using errcode = 'P4098', detail = format('It is at row %s of %s.', v_import.row_count, v_import.source),
                hint = 'Nobody knows which rows of this file those are. Import only the rest of it, under another name of the job.';
        end if;
        insert into pgonce.import (tenant, job, number, file_hash, source, settings, state, runner, backend, leased_until, started_at)
        select p_tenant, p_job, coalesce(max(i.number), 0) + 1, p_file_hash, p_source, p_settings, 'running', p_runner,
               pg_backend_pid(), pgonce.now() + p_lease, pgonce.now()
          from pgonce.import i where i.tenant = p_tenant and i.job = p_job
        returning * into v_import;
    elsif v_import.runner = p_runner and v_import.state = 'cancelled' then
        raise exception 'import % of job "%" was cancelled', v_import.number, p_job using errcode = 'P4082',
            hint = 'To go on, import the file again.';
    elsif v_import.settings <> p_settings then
        raise exception 'import % of job "%" was begun with other settings', v_import.number, p_job using errcode = 'P4098',
            detail = 'It was begun with ' || v_import.settings::text || '.',
            hint = 'Give the same target, key and format, or another name of the job.';
    elsif v_import.state <> 'done' and v_import.file_hash is distinct from p_file_hash then
        raise exception 'the file is not the one that import % of job "%" was begun with', v_import.number, p_job
            using errcode = 'P4098', hint = 'Give the same file, or import this one by itself: pgonce import FILE.';
    elsif v_import.state <> 'done' then
        update pgonce.import i set state = 'running', runner = p_runner, backend = pg_backend_pid(),
               leased_until = pgonce.now() + p_lease, ended_at = null
         where i.tenant = p_tenant and i.job = p_job and i.number = v_import.number
        returning * into v_import;
    end if;
    return next v_import;
end
$$;
