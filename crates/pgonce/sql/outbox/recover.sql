-- pgonce.recover(p_subscription, p_since, p_skipped): retries what a subscription did not get since a time.
-- answers  how many subjects and skipped events move again
-- locks    the rows of its lanes, where p_skipped
-- writes   dead letters that were parked since then come due, as by pgonce.redrive. p_skipped: so does what
--          was skipped since then, by an operator or because the dead letters were full, as far as the log
--          still has it; it is no longer recorded as skipped, and a row of
--          pgonce.operator_act says so
-- raises   42704 no such subscription; 22023 no time given
-- note     within a subject what is parked goes in order. What was skipped comes after later events that were
--          delivered in the meantime
-- example  select pgonce.create_subscription('billing');
--          select pgonce.recover('billing', '2026-01-31 08:00+00', p_skipped => true);
create or replace function pgonce.recover(p_subscription text, p_since timestamptz, p_skipped boolean default false)
returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_count bigint;
    v_more  bigint := 0;
begin
    if p_since is null then
        raise exception 'say since when' using errcode = '22023',
            hint = 'For example: select pgonce.recover(''billing'', now() - interval ''2 hours'').';
    end if;
    v_count := pgonce.redrive(p_subscription, p_since => p_since, p_reason => 'recover');
    if p_skipped then
        perform from pgonce.outbox_cursor c where c.subscription = p_subscription collate "C" order by c.lane for update;
        with back as (
            delete from pgonce.outbox_skipped s using pgonce.outbox o
             where s.subscription = p_subscription collate "C" and s.skipped_at >= p_since
               and o.lane = pgonce._lane_of(s.tenant, s.subject) and o.seq = s.seq
            returning o.*
        )
        insert into pgonce.parked (tenant, subscription, subject, seq, lane, state, due_at, parked_at, reason,
            created_at, size, message_id, topic, type, headers, payload)
        select b.tenant, p_subscription, b.subject, b.seq, b.lane, 'retry', pgonce.now(), pgonce.now(),
               'recovered after it was skipped', b.created_at, b.size, b.message_id, b.topic, b.type, b.headers, b.payload
          from back b
        on conflict on constraint one_row_per_parked_event do nothing;
        get diagnostics v_more = row_count;
        perform pgonce._audit_act('recover', 'outbox ' || p_subscription, null, 'skipped since ' || p_since,
            jsonb_build_object('moved', v_more));
    end if;
    return v_count + v_more;
end
$$;
