-- pgonce.define_inbox(p_consumer, ...): creates the contract of a consumer, or replaces it: how long it
--          remembers messages, and how it retries.
-- answers  nothing
-- locks    the contract's row
-- writes   the contract; where it changes, a row of pgonce.operator_act. p_keep: how long after a message was accepted its copies are recognised, null:
--          forever; longer than p_redelivery, the longest time in which the source may deliver again.
--          p_keep_stored: how long stored messages stay after they are done. p_max_attempts, p_backoff,
--          p_max_backoff: how a message that fails is retried
-- raises   22023 or 23514 a value that does not fit
-- note     a shorter p_keep applies to what comes from now on: markers that exist stay for as long as they
--          were promised to
-- example  select pgonce.define_inbox('billing', p_keep => '30 days', p_redelivery => '14 days');
create or replace function pgonce.define_inbox(p_consumer text, p_keep interval default interval '30 days',
    p_redelivery interval default interval '14 days', p_keep_stored interval default interval '30 days',
    p_max_attempts integer default 10, p_backoff interval default interval '1 second',
    p_max_backoff interval default interval '10 minutes', p_tenant text default '')
returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_before pgonce.inbox_contract := pgonce._inbox_rules(p_consumer, p_tenant);
    v_after  pgonce.inbox_contract;
    -- These follow from the others.
    v_derived constant text[] := '{kept_before,kept_before_until}';
    v_old    jsonb := (select to_jsonb(c) - v_derived from pgonce.inbox_contract c
        where c.tenant = p_tenant collate "C" and c.consumer = p_consumer collate "C");
begin
    if (octet_length(p_consumer) between 1 and 255 and octet_length(p_tenant) <= 255) is not true then
        perform pgonce._raise_message_fenced(p_consumer, 'x', 'x', p_tenant);
    elsif p_consumer collate "C" = '*' and p_tenant collate "C" <> '' then
        raise exception 'the contract of consumer "*" is not for one tenant' using errcode = '22023',
            hint = 'Define it without a tenant, or the contract of a consumer with one.';
    end if;
    v_after := row(p_tenant, p_consumer, p_keep, p_redelivery, p_keep_stored, p_max_attempts, p_backoff,
        p_max_backoff, null, null, pgonce.now())::pgonce.inbox_contract;
    if v_before.kept_before_until > pgonce.now() then
        v_after.kept_before := v_before.kept_before;
        v_after.kept_before_until := v_before.kept_before_until;
    end if;
    if p_consumer collate "C" <> '*' and not exists (select from pgonce.inbox_marker m
            where m.consumer = p_consumer collate "C" and (p_tenant collate "C" = '' or m.tenant = p_tenant collate "C")) then
        null;  -- nothing was promised to a consumer that has no markers yet
    elsif v_before.keep is null and p_keep is not null then
        v_after.kept_before_until := 'infinity';
    elsif v_before.keep > p_keep and v_after.kept_before_until is distinct from 'infinity' then
        v_after.kept_before := greatest(v_after.kept_before, v_before.keep);
        v_after.kept_before_until := greatest(v_after.kept_before_until, pgonce.now() + least(v_before.keep, interval '5000 years'));
    end if;
    insert into pgonce.inbox_contract select (v_after).*
    on conflict on constraint one_contract_per_consumer do update
        set keep = excluded.keep, redelivery = excluded.redelivery, keep_stored = excluded.keep_stored,
            max_attempts = excluded.max_attempts, backoff = excluded.backoff, max_backoff = excluded.max_backoff,
            kept_before = excluded.kept_before, kept_before_until = excluded.kept_before_until,
            defined_at = excluded.defined_at;
    perform pgonce._audit_rules('inbox ' || p_consumer, v_old, to_jsonb(v_after) - v_derived, p_tenant => p_tenant);
end
$$;
