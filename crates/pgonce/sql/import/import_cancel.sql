-- pgonce.import_cancel(p_job, p_tenant): stops the unfinished imports of a job.
-- answers  how many; what was applied stays applied
-- locks    the imports
-- writes   their state; the process that runs one stops before its next rows; a row of pgonce.operator_act
-- raises   nothing
-- note     to go on, import the file again
-- example  select pgonce.import_cancel('customers');
create or replace function pgonce.import_cancel(p_job text, p_tenant text default '')
returns bigint
language sql volatile security definer set search_path = pg_catalog, pg_temp
begin atomic
    with c as (
        update pgonce.import i set state = 'cancelled', ended_at = pgonce.now()
         where i.tenant = p_tenant collate "C" and i.job = p_job collate "C" and i.state = 'running'
        returning 1
    ), n as (
        select count(*) as stopped from c
    )
    select n.stopped from n
     cross join lateral (select pgonce._audit_act('cancel', 'import ' || p_job, null, null,
                             jsonb_build_object('stopped', n.stopped), p_tenant) where n.stopped > 0) a
    union all
    select 0 from n where n.stopped = 0;
end;
