-- pgonce.alter_subscription(p_subscription, ...): changes the settings of a subscription that are not null. A
--          filter applies to what is read from now on; '{*}' removes it.
-- answers  nothing
-- locks    the subscription's row
-- writes   the subscription's row; where it changes, one of pgonce.operator_act
-- raises   42704 no such subscription; 22023 or 23514 a value that does not fit, such as an empty list
-- example  select pgonce.create_subscription('billing');
--          select pgonce.alter_subscription('billing', p_max_attempts => 20, p_topics => '{*}');
create or replace function pgonce.alter_subscription(p_subscription text, p_topics text[] default null,
    p_types text[] default null, p_tenants text[] default null, p_max_attempts integer default null,
    p_backoff interval default null, p_max_backoff interval default null,
    p_dead_limit integer default null, p_when_full text default null)
returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_before jsonb := to_jsonb(pgonce._require_subscription(p_subscription));
begin
    update pgonce.outbox_subscription c
       set topics = case when p_topics is null then c.topics else pgonce._like_patterns(p_topics) end,
           types = case when p_types is null then c.types else pgonce._like_patterns(p_types) end,
           tenants = case when p_tenants is null then c.tenants else pgonce._like_patterns(p_tenants) end,
           max_attempts = coalesce(p_max_attempts, c.max_attempts),
           backoff = coalesce(p_backoff, c.backoff),
           max_backoff = coalesce(p_max_backoff, c.max_backoff),
           dead_limit = coalesce(p_dead_limit, c.dead_limit),
           when_full = coalesce(p_when_full, c.when_full)
     where c.subscription = p_subscription collate "C";
    perform pgonce._audit_rules('outbox ' || p_subscription, v_before, to_jsonb(pgonce._require_subscription(p_subscription)));
end
$$;
