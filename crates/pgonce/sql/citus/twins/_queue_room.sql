-- pgonce._queue_room on Citus: as queue/_queue_room.sql, for one tenant: a limit of a queue holds for each tenant.
-- locks    nothing: the caller holds the row of pgonce.job_bucket
create or replace function pgonce._queue_room(p_rules pgonce.job_queue, p_queue text, p_limit integer, p_tenant text)
returns integer
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    -- Whatever the others of its arguments are compared with: Citus takes a tenant with another collation for another one.
    v_tenant text collate "default" := p_tenant;
    v_room   bigint := p_limit;
    v_now    timestamptz := pgonce.now();
    v_tokens double precision;
    v_filled timestamptz;
begin
    if (p_rules).max_running is not null then
        select count(*) into v_room from pgonce.job_live l
         where l.tenant = v_tenant and l.queue = p_queue collate "C" and l.state = 'limited';
        v_room := (p_rules).max_running - v_room;
    end if;
    if (p_rules).rate is not null and v_room > 0 then
        select b.tokens, b.filled_at into v_tokens, v_filled from pgonce.job_bucket b
         where b.tenant = v_tenant and b.queue = p_queue collate "C";
        v_tokens := least((p_rules).rate, v_tokens + (p_rules).rate
            * (extract(epoch from greatest(v_now - v_filled, interval '0')) / extract(epoch from (p_rules).rate_per))::double precision);
        v_filled := greatest(v_filled, v_now);
        update pgonce.job_bucket b set tokens = v_tokens, filled_at = v_filled
         where b.tenant = v_tenant and b.queue = p_queue collate "C";
        v_room := least(v_room, floor(v_tokens)::bigint);
    end if;
    return greatest(least(v_room, p_limit), 0);
end
$$;
