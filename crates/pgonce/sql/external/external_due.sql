-- pgonce.external_due(p_provider, p_limit, p_lease): gives a reconciler calls without a known outcome whose turn it is. Commit,
--          ask the provider about each, and pass what it says to pgonce.external_observe.
-- answers  at most p_limit calls; nobody else gets them before p_lease is over
-- locks    the rows it gives, and none that is locked
-- writes   when each is looked up next: later and later, then at its deadline, and twice more after it
-- raises   22023 a bad limit or lease
-- note     a look-up changes nothing at the provider, so that two at a time would do no harm. One look at the deadline would not
--          do: the process that makes it may end, and the provider be away
-- example  select step, effect_key, reference from pgonce.external_due('bank', 10, '30 seconds');
create or replace function pgonce.external_due(p_provider text, p_limit integer, p_lease interval)
returns table (tenant text, scope text, key text, fingerprint bytea, step text, effect_key uuid, reference text, looks integer,
    sent_at timestamptz)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_rules pgonce.external_provider := pgonce._external_rules(p_provider);
    v_now   timestamptz := pgonce.now();
begin
    if (p_limit between 1 and 10000 and p_lease > interval '0') is not true then
        raise exception 'a reconciler needs a limit of 1 to 10000 calls and a positive lease' using errcode = '22023',
            hint = 'For example: pgonce.external_due(''bank'', 10, interval ''30 seconds'').';
    end if;
    return query
        with due as materialized (
            select c.tenant, c.effect_key from pgonce.external_call c
             where c.provider = p_provider collate "C" and c.next_look_at <= v_now
             order by c.next_look_at limit p_limit
               for update skip locked
        )
        update pgonce.external_call c
           set looks = c.looks + 1, late_looks = c.late_looks + case when c.deadline_at > v_now then 0 else 1 end,
               next_look_at = case
                   when c.deadline_at > v_now then least(c.deadline_at, v_now + greatest(p_lease,
                       pgonce._backoff(v_rules.backoff, v_rules.max_backoff, c.looks + 1)))
                   when c.late_looks < 2 then v_now + greatest(p_lease, v_rules.backoff) end
          from due d
         where c.tenant = d.tenant and c.effect_key = d.effect_key
        returning c.tenant, c.scope, c.key,
            (select i.fingerprint from pgonce.intent i where i.tenant = c.tenant and i.scope = c.scope and i.key = c.key),
            c.step, c.effect_key, c.reference, c.looks, c.sent_at;
end
$$;
