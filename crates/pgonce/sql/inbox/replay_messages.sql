-- pgonce.replay_messages(p_consumer, p_reason, p_into, p_since, p_tenant): applies stored messages again,
--          without their source, in their order.
-- answers  how many
-- locks    their rows
-- writes   with p_into: they are stored for that consumer too, which applies each once; without: this
--          consumer applies again what it has applied, a second effect unless its handler is gated by version
--          or position. p_since: only those received since then. A row of pgonce.operator_act for each
-- raises   22023 no reason given
-- example  select pgonce.replay_messages('billing', 'the new read model', p_into => 'billing-2');
create or replace function pgonce.replay_messages(p_consumer text, p_reason text, p_into text default null,
    p_since timestamptz default null, p_tenant text default null)
returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_message pgonce.inbox_message;
    v_count   bigint := 0;
    v_verdict text;
begin
    if coalesce(p_reason, '') = '' or p_into collate "C" = p_consumer collate "C" then
        raise exception 'a replay needs a reason, and another consumer to be stored for or none' using errcode = '22023',
            hint = 'Say why these messages are to be applied again; it is kept with your name.';
    end if;
    for v_message in
        select m.* from pgonce.inbox_message m
         where m.consumer = p_consumer collate "C" and (p_tenant is null or m.tenant = p_tenant collate "C") and m.status = 'processed'
           and (p_since is null or m.received_at >= p_since)
         order by m.seq for update
    loop
        if p_into is null then
            update pgonce.inbox_message m
               set status = 'received', attempts = 0, due_at = pgonce.now(), settled_at = null, settled_xid = null
             where m.tenant = v_message.tenant and m.consumer = p_consumer collate "C" and m.seq = v_message.seq;
        else
            v_verdict := pgonce.store_message(p_into, v_message.source, v_message.message_id, v_message.payload,
                v_message.key, v_message.type, v_message.headers, v_message.hash, p_tenant => v_message.tenant);
            continue when v_verdict <> 'new';
        end if;
        perform pgonce._audit_inbox(v_message, 'replay', p_reason);
        v_count := v_count + 1;
    end loop;
    return v_count;
end
$$;
