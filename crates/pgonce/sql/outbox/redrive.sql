-- pgonce.redrive(p_subscription, p_subject, p_since, p_tenant, p_reason): retries dead letters, in order:
--          each subject's first, then what is behind it.
-- answers  how many subjects move again
-- locks    the parked events
-- writes   dead letters of the subscription come due, with all their attempts before them. p_subject null: of
--          every subject; p_since: only those parked since then. A row of pgonce.operator_act records who and why, where anything
--          moves
-- raises   42704 no such subscription
-- example  select pgonce.create_subscription('billing');
--          select pgonce.redrive('billing', 'order-7');
create or replace function pgonce.redrive(p_subscription text, p_subject text default null,
    p_since timestamptz default null, p_tenant text default null, p_reason text default null)
returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_count bigint;
begin
    perform pgonce._require_subscription(p_subscription);
    update pgonce.parked k set state = 'retry', attempts = 0, due_at = pgonce.now()
     where k.subscription = p_subscription collate "C" and k.state = 'dead'
       and (p_subject is null or k.subject = p_subject collate "C") and (p_tenant is null or k.tenant = p_tenant collate "C")
       and (p_since is null or k.parked_at >= p_since);
    get diagnostics v_count = row_count;
    if v_count > 0 then
        perform pgonce._audit_act('redrive', 'outbox ' || p_subscription, p_subject, p_reason, jsonb_build_object('moved', v_count), p_tenant);
    end if;
    return v_count;
end
$$;
