-- pgonce.retry_jobs(p_queue, p_id, p_reason, p_tenant): tries dead letters again: one, or every one of the queue where p_id is
--          null. A job that waits for its retry is tried at once.
-- answers  how many
-- locks    their rows
-- writes   ready; a row of pgonce.operator_act for each
-- raises   nothing
-- note     they go on with attempt 2, the rest of the attempts before them: one that was made may have reached the outside world
-- example  select pgonce.retry_jobs('mail', p_reason => 'the mail server is back');
create or replace function pgonce.retry_jobs(p_queue text, p_id bigint default null, p_reason text default null,
    p_tenant text default null)
returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_end   pgonce.job_end;
    v_job   pgonce.job_live;
    v_count bigint := 0;
begin
    perform pgonce._force_durable_commit();
    for v_end in
        select e.* from pgonce.job_end e
         where e.queue = p_queue collate "C" and e.status = 'dead' and (p_id is null or e.id = p_id)
           and (p_tenant is null or e.tenant = p_tenant collate "C")
         order by e.id for update
    loop
        delete from pgonce.job_end e where e.tenant = v_end.tenant and e.id = v_end.id;
        insert into pgonce.job_live (id, state, priority, tenant, queue, key, group_name, attempts)
        select j.id, 'ready', j.priority, j.tenant, j.queue, j.key, j.group_name, least(v_end.attempts, 1) from pgonce.job j
         where j.tenant = v_end.tenant and j.id = v_end.id;
        perform pgonce._audit_job('retry', v_end.tenant, v_end.queue, v_end.id, p_reason, to_jsonb(v_end) - 'result');
        v_count := v_count + 1;
    end loop;
    for v_job in
        update pgonce.job_live l set state = 'ready', due_at = null
         where l.id = p_id and l.queue = p_queue collate "C" and l.state in ('retrying', 'scheduled')
           and (p_tenant is null or l.tenant = p_tenant collate "C")
        returning l.*
    loop
        perform pgonce._audit_job('retry', v_job.tenant, v_job.queue, v_job.id, p_reason, to_jsonb(v_job));
        v_count := v_count + 1;
    end loop;
    return v_count;
end
$$;
