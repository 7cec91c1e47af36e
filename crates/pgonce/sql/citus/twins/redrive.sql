-- pgonce.redrive on Citus: as outbox/redrive.sql, dead letter by dead letter, each on its server.
-- writes   ready, all at once: p_rate is not used. Acts of operators are not recorded on Citus
-- note     it reads every shard to find them
create or replace function pgonce.redrive(p_subscription text, p_subject text default null,
    p_since timestamptz default null, p_tenant text default null, p_reason text default null, p_rate integer default 200)
returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue   text collate "C" := 'outbox/' || (pgonce._require_subscription(p_subscription)).subscription;
    -- Not with a collation of its own: the tenant beside it would get that too.
    v_name    text collate "default" := v_queue;
    v_subject text collate "C" := p_subject;
    v_tenant  text collate "default" := p_tenant;
    v_tenants text[];
    v_ids     bigint[];
    v_count   bigint;
    v_all     bigint := 0;
begin
    select array_agg(l.tenant::text order by l.id), array_agg(l.id order by l.id) into v_tenants, v_ids from pgonce.job_live l
     where l.queue = v_queue and l.state = 'retrying' and l.due_at is null
       and (v_tenant is null or l.tenant = v_tenant) and (v_subject is null or l.key = v_subject)
       and (p_since is null or (l.progress ->> 'dead_at')::timestamptz >= p_since);
    for v_at in 1..coalesce(cardinality(v_ids), 0) loop
        select n into v_count from pgonce._retry_tenant_jobs(v_name, v_ids[v_at], v_tenants[v_at]) n;
        v_all := v_all + v_count;
    end loop;
    return v_all;
end
$$;
