-- pgonce.alter_subscription on Citus: as outbox/alter_subscription.sql; a filter applies to what is published from now on.
-- writes   the subscription and its queue, on every server; acts of operators are not recorded on Citus
-- raises   42704 no such subscription; 22023 or 23514 a value that does not fit; P4105 a limit of dead letters
create or replace function pgonce.alter_subscription(p_subscription text, p_topics text[] default null,
    p_types text[] default null, p_tenants text[] default null, p_max_attempts integer default null,
    p_backoff interval default null, p_max_backoff interval default null,
    p_dead_limit integer default null, p_when_full text default null)
returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_row  pgonce.outbox_subscription := pgonce._require_subscription(p_subscription);
    v_name text collate "C" := 'outbox/' || p_subscription;
begin
    perform pgonce._refuse_dead_limit(p_dead_limit, p_when_full);
    v_row.topics := case when p_topics is null then v_row.topics else pgonce._like_patterns(p_topics) end;
    v_row.types := case when p_types is null then v_row.types else pgonce._like_patterns(p_types) end;
    v_row.tenants := case when p_tenants is null then v_row.tenants else pgonce._like_patterns(p_tenants) end;
    v_row.max_attempts := coalesce(p_max_attempts, v_row.max_attempts);
    v_row.backoff := coalesce(p_backoff, v_row.backoff);
    v_row.max_backoff := coalesce(p_max_backoff, v_row.max_backoff);
    update pgonce.outbox_subscription c
       set topics = v_row.topics, types = v_row.types, tenants = v_row.tenants, max_attempts = v_row.max_attempts,
           backoff = v_row.backoff, max_backoff = v_row.max_backoff
     where c.subscription = v_row.subscription;
    update pgonce.job_queue q set max_attempts = v_row.max_attempts, backoff = v_row.backoff, max_backoff = v_row.max_backoff
     where q.tenant = '' and q.queue = v_name;
end
$$;
