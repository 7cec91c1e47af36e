-- pgonce.cancel_job on Citus: as queue/cancel_job.sql, delegated.
-- writes   its row of pgonce.job_end, with the reason; acts of operators are not recorded on Citus
create or replace function pgonce.cancel_job(p_id bigint, p_reason text default null, p_tenant text default '')
returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_job     pgonce.job_live;
    v_end     pgonce.job_end;
    v_expires timestamptz;
begin
    perform pgonce._force_durable_commit();
    select l.* into v_job from pgonce.job_live l where l.tenant = p_tenant and l.id = p_id for update;
    if found then
        perform pgonce._end_job(v_job, 'cancelled', 'cancelled', p_reason);
        return true;
    end if;
    select e.* into v_end from pgonce.job_end e where e.tenant = p_tenant and e.id = p_id and e.status = 'dead' for update;
    if not found then
        return false;
    end if;
    v_expires := pgonce.now() + (pgonce._job_rules(v_end.queue)).keep;
    update pgonce.job_end e set status = 'cancelled', expires_at = v_expires where e.tenant = p_tenant and e.id = p_id;
    return true;
end
$$;
