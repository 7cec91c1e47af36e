-- pgonce.skip on Citus: as outbox/skip.sql; p_seq is the number of the event's job. It is kept as cancelled, with the reason, for 30 days.
-- raises   22023 no reason given, or events of several tenants have this number
-- note     it reads every shard to find the event's tenant; pgonce.cancel_job is for those who know it
create or replace function pgonce.skip(p_subscription text, p_seq bigint, p_reason text)
returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue   text collate "C" := 'outbox/' || p_subscription;
    v_tenants text[];
    v_done    boolean;
begin
    if coalesce(p_reason, '') = '' then
        raise exception 'a skip needs a reason' using errcode = '22023',
            hint = 'Say why this event is never to be delivered; it is kept with your name.';
    end if;
    select coalesce(array_agg(l.tenant::text), '{}') into v_tenants from pgonce.job_live l
     where l.queue = v_queue and l.id = p_seq and l.state in ('retrying', 'scheduled');
    if cardinality(v_tenants) > 1 then
        raise exception 'events of several tenants have the number %', p_seq using errcode = '22023',
            hint = format('Name the tenant: select pgonce.cancel_job(%s, %L, %L).', p_seq, p_reason, v_tenants[1]);
    elsif cardinality(v_tenants) = 0 then
        return false;
    end if;
    select c into v_done from pgonce.cancel_job(p_seq, p_reason, v_tenants[1]) c;
    return v_done;
end
$$;
