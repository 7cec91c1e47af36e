-- pgonce._lock_queue(p_rules, p_queue, p_tenant): on Citus, the lock of those who claim jobs of a tenant's queue that have limits or keys.
-- answers  whether this transaction has it, until it ends
-- locks    a row of pgonce.job_bucket, without waiting for one that is locked: where the row is, there is the lock, on whatever
--          server this runs
-- writes   that row where it is missing, with all that the queue's rate allows
create or replace function pgonce._lock_queue(p_rules pgonce.job_queue, p_queue text, p_tenant text)
returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    -- Whatever the others of its arguments are compared with: Citus takes a tenant with another collation for another one.
    v_tenant text collate "default" := p_tenant;
    v_tokens double precision := coalesce((p_rules).rate, 0);
    v_now    timestamptz := pgonce.now();
begin
    perform 1 from pgonce.job_bucket b where b.tenant = v_tenant and b.queue = p_queue collate "C";
    if not found then
        insert into pgonce.job_bucket (tenant, queue, tokens, filled_at) values (v_tenant, p_queue, v_tokens, v_now)
        on conflict (tenant, queue) do nothing;
    end if;
    perform 1 from pgonce.job_bucket b where b.tenant = v_tenant and b.queue = p_queue collate "C" for update skip locked;
    return found;
end
$$;
