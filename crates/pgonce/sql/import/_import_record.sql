-- pgonce._import_record(p_job, p_number, p_runner, p_chunk, p_hashes, p_tenant): gives the next rows their results.
-- answers  the rows that have one
-- locks    the import
-- writes   the import, a chunk, and the rows that need attention
-- raises   P4012 another process goes on with the import, or these are not its next rows
-- note     p_chunk: first and last row, skipped and failed as ranges, their counts, where the input is, the lease from
--          now on, and the rows that need attention
create or replace function pgonce._import_record(p_job text, p_number integer, p_runner uuid, p_chunk jsonb, p_hashes bytea,
    p_tenant text)
returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_first   bigint := (p_chunk ->> 'first')::bigint;
    v_last    bigint := (p_chunk ->> 'last')::bigint;
    v_skipped bigint := (p_chunk ->> 'skipped_count')::bigint;
    v_failed  bigint := (p_chunk ->> 'failed_count')::bigint;
    v_done    boolean := (p_chunk ->> 'done')::boolean;
begin
    update pgonce.import i
       set row_count = v_last, applied = i.applied + v_last - v_first + 1 - v_skipped - v_failed, skipped = i.skipped + v_skipped,
           changed = i.changed + (p_chunk ->> 'changed_count')::bigint, failed = i.failed + v_failed,
           bytes = (p_chunk ->> 'bytes')::bigint, lines = (p_chunk ->> 'lines')::bigint, chain = (p_chunk ->> 'chain')::bigint,
           leased_until = coalesce(pgonce.now() + (p_chunk ->> 'lease')::interval, i.leased_until),
           file_hash = coalesce(i.file_hash, decode(p_chunk ->> 'file_hash', 'hex')),
           state = case when v_done then 'done' else i.state end, ended_at = case when v_done then pgonce.now() end
     where i.tenant = p_tenant and i.job = p_job and i.number = p_number and i.runner = p_runner and i.row_count = v_first - 1
       and i.state = 'running';
    if not found then
        raise exception 'row % is not the next one of import % of job "%"', v_first, p_number, p_job using errcode = 'P4012',
            hint = 'Stop: nothing of this process counts any more.';
    end if;
    if v_last >= v_first then
        insert into pgonce.import_chunk (tenant, job, number, first_row, last_row, skipped, failed, hashes, at)
        values (p_tenant, p_job, p_number, v_first, v_last, (p_chunk ->> 'skipped')::int8multirange,
            (p_chunk ->> 'failed')::int8multirange, p_hashes, pgonce.now());
        insert into pgonce.import_row (tenant, job, number, row, line, status, key, field, code, reason)
        select p_tenant, p_job, p_number, d.row, d.line, d.status, d.key, d.field, d.code, d.reason
          from jsonb_to_recordset(p_chunk -> 'details')
            as d (row bigint, line bigint, status text, key text, field text, code text, reason text);
    end if;
    -- That it is done must survive a crash of the server; anything less is done again.
    perform pgonce._force_durable_commit() where v_done;
    return v_last;
end
$$;
