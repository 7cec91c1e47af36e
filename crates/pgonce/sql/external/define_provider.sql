-- pgonce.define_provider(p_provider, p_keys_for, p_deadline, p_look_after, p_backoff, p_max_backoff, p_rate, p_rate_per,
--          p_trip_after, p_trip_for, p_keep): says what a provider can do and what it allows. '*' stands for those that nobody
--          defined.
-- answers  nothing
-- locks    the provider's row
-- writes   that row; where it changes, one of pgonce.operator_act
-- raises   22023 no name; 23514 a limit that is not positive
-- note     p_keys_for: how long the provider treats a second request with the same key as the first; a call is sent again
--          within this time only. Null: it knows no keys, and what may have been sent is never sent again. p_look_after: when
--          a call without an answer is looked up first; then after p_backoff, doubled up to p_max_backoff, until p_deadline
--          after it was sent. Zero as p_deadline: ask an operator at once. p_rate requests in p_rate_per; after p_trip_after
--          requests in a row without an answer none for p_trip_for, then one to try. p_keep: for reports that fit no call.
--          A provider has one row for all tenants: its limits are those of one account. Under '*' each provider has a rate and a
--          circuit of its own, in a row that goes when nobody called it for 30 days
-- example  select pgonce.define_provider('bank', p_keys_for => '24 hours', p_rate => 50, p_trip_after => 10);
create or replace function pgonce.define_provider(p_provider text, p_keys_for interval default null,
    p_deadline interval default '1 day', p_look_after interval default '10 seconds', p_backoff interval default '5 seconds',
    p_max_backoff interval default '1 hour', p_rate integer default null, p_rate_per interval default '1 second',
    p_trip_after integer default null, p_trip_for interval default '30 seconds', p_keep interval default '30 days')
returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_before jsonb := (select to_jsonb(p) - '{tokens,filled_at,failures,open_until}'::text[] from pgonce.external_provider p
        where p.provider = p_provider collate "C" and p.defined_at is not null);
begin
    if coalesce(p_provider, '') = '' then
        raise exception 'a provider needs a name' using errcode = '22023', hint = 'For example ''bank''.';
    end if;
    perform pgonce._force_durable_commit();
    insert into pgonce.external_provider as p (provider, keys_for, deadline, look_after, backoff, max_backoff, rate, rate_per,
        trip_after, trip_for, keep, defined_at)
    values (p_provider, p_keys_for, p_deadline, p_look_after, p_backoff, p_max_backoff, p_rate, p_rate_per,
        p_trip_after, p_trip_for, p_keep, pgonce.now())
    on conflict on constraint one_row_per_provider do update
       set keys_for = excluded.keys_for, deadline = excluded.deadline, look_after = excluded.look_after,
           backoff = excluded.backoff, max_backoff = excluded.max_backoff, rate = excluded.rate, rate_per = excluded.rate_per,
           trip_after = excluded.trip_after, trip_for = excluded.trip_for, keep = excluded.keep,
           defined_at = excluded.defined_at,
           -- The same limits again, as a service defines them at every start, let no request more through.
           tokens = case when (p.rate, p.rate_per) is not distinct from (excluded.rate, excluded.rate_per) then p.tokens end,
           filled_at = case when (p.rate, p.rate_per) is not distinct from (excluded.rate, excluded.rate_per) then p.filled_at end,
           failures = case when (p.trip_after, p.trip_for) is not distinct from (excluded.trip_after, excluded.trip_for)
               then p.failures else 0 end,
           open_until = case when (p.trip_after, p.trip_for) is not distinct from (excluded.trip_after, excluded.trip_for)
               then p.open_until end;
    perform pgonce._audit_rules('provider ' || p_provider, v_before,
        (select to_jsonb(p) - '{tokens,filled_at,failures,open_until}'::text[] from pgonce.external_provider p
          where p.provider = p_provider collate "C"));
end
$$;
