-- pgonce.ledger_repair(p_reason, p_tenant): sets the rows of accounts to what their entries and pending groups
--          make, and keeps who did it and why.
-- answers  the accounts that were wrong: repaired true, it is right now; false, its entries themselves were
--          changed or removed, and it was left alone
-- locks    the accounts that are wrong, in the order of their names
-- writes   their rows; a row of pgonce.operator_act for each
-- raises   22023 no reason given
-- note     entries and groups are never changed
-- example  select * from pgonce.ledger_repair('after a restore of single tables');
create or replace function pgonce.ledger_repair(p_reason text, p_tenant text default null)
returns table (tenant text, account text, shard smallint, repaired boolean)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_found   record;
    v_head    record;
begin
    if nullif(btrim(p_reason), '') is null then
        raise exception 'a repair needs a reason' using errcode = '22023', hint = 'It is kept with your name.';
    end if;
    for v_found in
        select h.tenant, h.account, h.shard from pgonce._ledger_heads(p_tenant) h
         where h.cached <> h.computed order by h.tenant collate "C", h.account collate "C", h.shard
    loop
        perform from pgonce.ledger_account a
          where a.tenant = v_found.tenant and a.account = v_found.account and a.shard = v_found.shard for no key update;
        -- What was posted meanwhile is seen only now.
        select h.* into v_head from pgonce._ledger_heads(v_found.tenant, v_found.account) h
         where h.shard = v_found.shard and h.cached <> h.computed;
        continue when not found;
        tenant := v_found.tenant;
        account := v_found.account;
        shard := v_found.shard;
        repaired := not exists (select from pgonce._ledger_broken(v_found.tenant, v_found.account) b
            where b.shard = v_found.shard);
        if repaired then
            update pgonce.ledger_account a
               set balance = (v_head.computed ->> 'balance')::numeric, entries = (v_head.computed ->> 'entries')::bigint,
                   head = decode(v_head.computed ->> 'head', 'hex'), held_debit = (v_head.computed ->> 'held_debit')::numeric,
                   held_credit = (v_head.computed ->> 'held_credit')::numeric
             where a.tenant = v_found.tenant and a.account = v_found.account and a.shard = v_found.shard;
            perform pgonce._audit_act('repair', 'ledger', v_found.account, p_reason,
                jsonb_build_object('shard', v_found.shard, 'before', v_head.cached, 'after', v_head.computed), v_found.tenant);
        end if;
        return next;
    end loop;
end
$$;
