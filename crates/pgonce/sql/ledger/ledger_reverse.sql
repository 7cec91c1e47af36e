-- pgonce.ledger_reverse(p_source, p_operation, p_of_source, p_of_operation, p_memo, p_tenant): records a group
--          that undoes another one, linked to it.
-- answers  as pgonce.ledger_post
-- locks    as pgonce.ledger_post
-- writes   as pgonce.ledger_post
-- raises   as pgonce.ledger_post; P4078 there is no such group, it is not posted, or another operation
--          reversed it
-- example  select pgonce.ledger_open('safe', 'EUR', 'debit'), pgonce.ledger_open('gifts', 'EUR', 'credit');
--          select * from pgonce.ledger_post('shop', 'gift-1',
--              '[{"account": "safe", "debit": 5}, {"account": "gifts", "credit": 5}]');
--          select * from pgonce.ledger_reverse('shop', 'undo-gift-1', 'shop', 'gift-1', '"given back"');
create or replace function pgonce.ledger_reverse(p_source text, p_operation text, p_of_source text, p_of_operation text,
    p_memo jsonb default null, p_tenant text default '')
returns table (made_now boolean, state text, recorded_at timestamptz)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant   text collate "default" := coalesce(p_tenant, '');
    v_accounts text[];
    v_amounts  numeric[];
    v_other    text;
begin
    select g.accounts, array(select - a from unnest(g.amounts) a) into v_accounts, v_amounts
      from pgonce.ledger_group g
      left join pgonce.ledger_pending p on p.tenant = v_tenant and p.source = g.source and p.operation = g.operation
     where g.tenant = v_tenant and g.source = p_of_source collate "C" and g.operation = p_of_operation collate "C"
       and (not g.pending or p.state = 'posted');
    if v_accounts is null then
        raise exception 'operation "%" of source "%" is not posted', p_of_operation, p_of_source using errcode = 'P4078',
            hint = 'Only what was posted is reversed; what is pending is voided.';
    end if;
    -- Reversals of one group take turns, so that the second sees the first.
    perform pg_advisory_xact_lock(pgonce._lock_id(v_tenant, 'ledger_reverse', jsonb_build_array(p_of_source, p_of_operation)::text));
    select g.operation into v_other from pgonce.ledger_group g
     where g.tenant = v_tenant and g.reverses_source = p_of_source collate "C"
       and g.reverses_operation = p_of_operation collate "C"
       and (g.source, g.operation) <> (p_source collate "C", p_operation collate "C");
    if found then
        raise exception 'operation "%" of source "%" was reversed before, by operation "%"', p_of_operation, p_of_source, v_other
            using errcode = 'P4078', hint = 'A group is reversed once.';
    end if;
    select r.made_now, r.state, r.recorded_at into made_now, state, recorded_at
      from pgonce._ledger_record(v_tenant, p_source collate "C", p_operation, v_accounts, v_amounts, null, p_memo, null, p_of_source,
        p_of_operation) r;
    return next;
end
$$;
