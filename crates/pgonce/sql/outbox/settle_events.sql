-- pgonce.settle_events(p_subscription, p_batch, p_failed): records that the events of a batch of pgonce.claim_events are
--          applied, except those that failed. Call it in the transaction of their effects.
-- answers  how many events it records as applied
-- locks    the row of the lane
-- writes   the lane's cursor; each element {"seq", "reason", "permanent", "after_ms"} of p_failed is parked: it comes again
--          after a growing pause, at least after_ms, and is a dead letter after the subscription's max_attempts, or at once
--          where permanent is true. Events of its subject that come after it wait behind it: apply none of these
-- raises   P4012 the batch was settled before, or another consumer has the lane: roll back, claim again; P4060 the
--          subscription's dead letters are full; 22023 an event of p_failed is not in the batch; 42704 no such subscription; 42501 the
--          session's role is bound to a tenant
-- example  select pgonce.create_subscription('mails', 'start');
--          select pgonce.publish('mails', 'wanted', 'ada', '{}');
--          select pgonce.settle_events('mails', c.batch) from pgonce.claim_events('mails', 'host-7') c;
create or replace function pgonce.settle_events(p_subscription text, p_batch jsonb, p_failed jsonb default '[]')
returns integer
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_lane    integer := (p_batch ->> 'lane')::integer;
    v_epoch   bigint := (p_batch ->> 'epoch')::bigint;
    v_now     text;
    v_applied integer;
    v_results jsonb;
begin
    perform pgonce._refuse_bound('a subscription belongs');
    select c.cursor::text into v_now from pgonce.outbox_cursor c
     where c.subscription = p_subscription collate "C" and c.lane = v_lane for update;
    -- The epoch alone would let two workers of one owner settle the same batch, each with effects of its own.
    if v_now <> (p_batch ->> 'from') collate "C" or exists (
        select from jsonb_to_recordset(p_batch -> 'events') as g (seq bigint, parked integer)
         where g.parked is not null and not exists (
               select from pgonce.parked k
                where k.subscription = p_subscription collate "C" and k.seq = g.seq and k.lane = v_lane and k.attempts = g.parked))
    then
        raise exception 'the batch of lane % of subscription "%" was settled before', v_lane, p_subscription
            using errcode = 'P4012', detail = format('It begins at %s, the lane is at %s.', p_batch ->> 'from', v_now),
            hint = 'Roll back: these events were applied by another worker, or an operator has moved them. Claim again.';
    elsif exists (select from jsonb_to_recordset(p_failed) as f (seq bigint)
             where not coalesce(p_batch -> 'events' @> jsonb_build_array(jsonb_build_object('seq', f.seq)), false)) then
        raise exception 'an event of p_failed is not in the batch' using errcode = '22023',
            hint = 'For example [{"seq": 7, "reason": "no such account"}], with a seq of the events that came with the batch.';
    end if;
    with given as (
        select g.n, g.event ->> 'tenant' as tenant, g.event ->> 'subject' as subject, (g.event ->> 'seq')::bigint as seq, f.failure
          from jsonb_array_elements(p_batch -> 'events') with ordinality as g (event, n)
          left join jsonb_array_elements(p_failed) as f (failure) on (f.failure ->> 'seq')::bigint = (g.event ->> 'seq')::bigint
    ), results as (
        select r.seq, case when r.failure is null then case when r.is_behind then 'hold' else 'sent' end
                           when r.is_behind then 'hold'
                           when (r.failure ->> 'permanent')::boolean then 'dead'
                           else 'retry' end as what,
               r.failure ->> 'reason' as reason, (r.failure ->> 'after_ms')::bigint as after_ms
          from (select g.*, coalesce(bool_or(g.failure is not null) over (partition by g.tenant, g.subject order by g.n
                       rows between unbounded preceding and 1 preceding), false) as is_behind from given g) r
    )
    select count(*) filter (where r.what = 'sent'), coalesce(jsonb_agg(jsonb_build_object('seq', r.seq, 'what', r.what,
               'reason', r.reason, 'after_ms', r.after_ms)), '[]') || coalesce(p_batch -> 'others', '[]')
      into v_applied, v_results from results r;
    perform pgonce._settle_lane(p_subscription collate "C", v_lane, v_epoch, p_batch ->> 'to', v_results);
    return v_applied;
end
$$;
