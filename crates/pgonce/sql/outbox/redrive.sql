-- pgonce.redrive(p_subscription, p_subject, p_since, p_tenant, p_reason, p_rate): retries dead letters, in order:
--          each subject's first, then what is behind it.
-- answers  how many subjects move again
-- locks    the parked events
-- writes   dead letters of the subscription come due, p_rate of them a second, with all their attempts before them. p_subject null: of
--          every subject; p_since: only those parked since then. A row of pgonce.operator_act records who and why, where anything
--          moves
-- raises   42704 no such subscription; 22023 p_rate is not positive
-- note     the rate leaves room for other events of the lanes: what moves again takes as long as the answer divided by p_rate. What
--          is behind a subject's first goes as soon as that is delivered
-- example  select pgonce.create_subscription('billing');
--          select pgonce.redrive('billing', 'order-7');
--          select pgonce.redrive('billing', p_rate => 1000);
drop function if exists pgonce.redrive(text, text, timestamptz, text, text);
create or replace function pgonce.redrive(p_subscription text, p_subject text default null,
    p_since timestamptz default null, p_tenant text default null, p_reason text default null, p_rate integer default 200)
returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_now   timestamptz := pgonce.now();
    v_count bigint;
begin
    perform pgonce._require_subscription(p_subscription);
    if (p_rate > 0) is not true then
        raise exception 'a redrive moves at least one subject a second, not %', coalesce(p_rate::text, 'null') using errcode = '22023',
            hint = 'For example p_rate => 200.';
    end if;
    with dead as materialized (
        select k.tenant, k.subject, k.seq, row_number() over (order by k.seq) - 1 as place from pgonce.parked k
         where k.subscription = p_subscription collate "C" and k.state = 'dead'
           and (p_subject is null or k.subject = p_subject collate "C") and (p_tenant is null or k.tenant = p_tenant collate "C")
           and (p_since is null or k.parked_at >= p_since)
    )
    -- Ten times a second, so that a relay has several to deliver at a time.
    update pgonce.parked k set state = 'retry', attempts = 0, due_at = v_now + d.place * 10 / p_rate * interval '100 milliseconds'
      from dead d
     where k.tenant = d.tenant and k.subscription = p_subscription collate "C" and k.subject = d.subject and k.seq = d.seq
       and k.state = 'dead';
    get diagnostics v_count = row_count;
    if v_count > 0 then
        perform pgonce._audit_act('redrive', 'outbox ' || p_subscription, p_subject, p_reason, jsonb_build_object('moved', v_count), p_tenant);
    end if;
    return v_count;
end
$$;
