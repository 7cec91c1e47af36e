-- pgonce._retry_tenant_jobs(p_queue, p_id, p_tenant): on Citus, what pgonce.retry_jobs does for one tenant, delegated to the server that
--          has its rows.
-- answers  how many
-- locks    their rows
-- writes   ready
create or replace function pgonce._retry_tenant_jobs(p_queue text, p_id bigint, p_tenant text)
returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue text collate "C" := p_queue;
    v_id    bigint;
    v_tried integer;
    v_job   pgonce.job;
    v_count bigint := 0;
    v_more  bigint;
begin
    perform pgonce._force_durable_commit();
    for v_id, v_tried in
        select e.id, least(e.attempts, 1) from pgonce.job_end e
         where e.tenant = p_tenant and e.queue = v_queue and e.status = 'dead' and (p_id is null or e.id = p_id)
         order by e.id for update
    loop
        select j.* into v_job from pgonce.job j where j.tenant = p_tenant and j.id = v_id;
        delete from pgonce.job_end e where e.tenant = p_tenant and e.id = v_id;
        insert into pgonce.job_live (id, state, priority, tenant, queue, key, group_name, attempts)
        values (v_id, 'ready', v_job.priority, p_tenant, v_queue, v_job.key, v_job.group_name, v_tried);
        v_count := v_count + 1;
    end loop;
    -- Events that were given up stay where they are, to hold back later ones.
    update pgonce.job_live l set state = 'ready', attempts = 0, progress = null
     where l.tenant = p_tenant and l.queue = v_queue and l.state = 'retrying' and l.due_at is null and (p_id is null or l.id = p_id);
    get diagnostics v_more = row_count;
    v_count := v_count + v_more;
    if p_id is not null then
        update pgonce.job_live l set state = 'ready', due_at = null
         where l.tenant = p_tenant and l.id = p_id and l.queue = v_queue and l.state in ('retrying', 'scheduled');
        get diagnostics v_more = row_count;
        v_count := v_count + v_more;
    end if;
    return v_count;
end
$$;
