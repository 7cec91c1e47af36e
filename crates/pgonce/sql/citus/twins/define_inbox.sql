-- pgonce.define_inbox on Citus: as inbox/define_inbox.sql; the contract is written on every server.
-- note     it reads every shard to know whether the consumer has markers
create or replace function pgonce.define_inbox(p_consumer text, p_keep interval default interval '30 days',
    p_redelivery interval default interval '14 days', p_keep_stored interval default interval '30 days',
    p_max_attempts integer default 10, p_backoff interval default interval '1 second',
    p_max_backoff interval default interval '10 minutes', p_tenant text default '')
returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_before pgonce.inbox_contract := pgonce._inbox_rules(p_consumer, p_tenant);
    v_before_until timestamptz;
    v_kept   interval;
    v_now    timestamptz := pgonce.now();
    v_marked boolean;
begin
    if (octet_length(p_consumer) between 1 and 255 and octet_length(p_tenant) <= 255) is not true then
        perform pgonce._raise_message_fenced(p_consumer, 'x', 'x', p_tenant);
    end if;
    if v_before.kept_before_until > v_now then
        v_kept := v_before.kept_before;
        v_before_until := v_before.kept_before_until;
    end if;
    select true into v_marked from pgonce.inbox_marker m
     where (m.consumer = p_consumer collate "C" or p_consumer = '*') and (p_tenant = '' or m.tenant = p_tenant) limit 1;
    if v_marked is null and p_consumer <> '*' then
        null;  -- nothing was promised to a consumer that has no markers yet
    elsif v_before.keep is null and p_keep is not null then
        v_before_until := 'infinity';
    elsif v_before.keep > p_keep and v_before_until is distinct from 'infinity' then
        v_kept := greatest(v_kept, v_before.keep);
        v_before_until := greatest(v_before_until, v_now + v_before.keep);
    end if;
    insert into pgonce.inbox_contract as c (tenant, consumer, keep, redelivery, keep_stored, max_attempts, backoff, max_backoff,
        kept_before, kept_before_until, defined_at)
    values (p_tenant, p_consumer, p_keep, p_redelivery, p_keep_stored, p_max_attempts, p_backoff, p_max_backoff,
        v_kept, v_before_until, v_now)
    on conflict (tenant, consumer) do update
        set keep = excluded.keep, redelivery = excluded.redelivery, keep_stored = excluded.keep_stored,
            max_attempts = excluded.max_attempts, backoff = excluded.backoff, max_backoff = excluded.max_backoff,
            kept_before = excluded.kept_before, kept_before_until = excluded.kept_before_until,
            defined_at = excluded.defined_at;
end
$$;
