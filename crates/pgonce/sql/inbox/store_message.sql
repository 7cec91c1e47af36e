-- pgonce.store_message(p_consumer, p_source, p_message_id, p_payload, ...): stores a message without applying
--          it: it is applied from here later, without its source.
-- answers  one of
--            new        it is stored; once this is committed its source may forget it
--            duplicate  it was stored or applied before, and its marker is still there or it is not done yet
--            conflict   its id came before with another payload: it is stored as a poison message, for which nothing waits
-- locks    the message's marker
-- writes   its marker and one row of pgonce.inbox_message, in place of one that is done and whose marker is gone. p_hash: of
--          the whole payload, default SHA-256; p_size: its length, where p_payload was cut. A message without an id that
--          fits can only be poison. p_code and p_reason say why. p_outcome is what it is stored as:
--            receive  to be applied as soon as it is its turn
--            retry    a transient failure: again after a pause, or failed_final after the last attempt
--            poison   it can never be applied as it is: failed_final
-- raises   22023 a name or a value that does not fit
-- example  select pgonce.store_message('billing', 'shop', 'evt-5', '{"id": 5}', p_key => 'order-7');
create or replace function pgonce.store_message(p_consumer text, p_source text, p_message_id text, p_payload bytea,
    p_key text default null, p_type text default null, p_headers jsonb default '{}', p_hash bytea default null,
    p_outcome text default 'receive', p_code text default null, p_reason text default null,
    p_size bigint default null, p_tenant text default '')
returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_rules   pgonce.inbox_contract;
    v_hash    bytea := coalesce(p_hash, sha256(p_payload));
    v_id      text := p_message_id;
    v_verdict text;
    v_now     timestamptz;
    v_row     pgonce.inbox_message;
begin
    if (p_outcome in ('receive', 'retry', 'poison')) is not true or p_payload is null
       or jsonb_typeof(p_headers) is distinct from 'object' then
        raise exception 'a message is stored with a payload, headers that are an object, and an outcome receive, retry or poison, not %',
            coalesce(quote_literal(p_outcome), 'null') using errcode = '22023', hint = 'See the header of pgonce.store_message.';
    end if;
    if p_outcome = 'poison' and (octet_length(v_id) between 1 and 255) is not true then
        -- Named by all there is of it, so that its copies are known.
        v_id := 'without-id:' || encode(sha256(convert_to(coalesce(v_id, ''), 'UTF8') || v_hash), 'hex');
    end if;
    select m.verdict into v_verdict from pgonce._insert_markers(p_consumer, p_source, array[v_id], array[v_hash], p_tenant) m;
    if v_verdict = 'duplicate' then
        return v_verdict;
    end if;
    v_rules := pgonce._inbox_rules(p_consumer, p_tenant);
    v_now := pgonce.now();
    v_row.seq := nextval('pgonce.inbox_seq');
    v_row.tenant := p_tenant;
    v_row.consumer := p_consumer;
    v_row.source := p_source;
    v_row.message_id := v_id;
    v_row.hash := v_hash;
    v_row.size := greatest(coalesce(p_size, 0), octet_length(p_payload));
    v_row.attempts := (p_outcome = 'retry')::integer;
    v_row.fence := 0;
    v_row.received_at := v_now;
    v_row.failure_code := p_code;
    v_row.failure_message := left(p_reason, 4000);
    v_row.key := p_key;
    v_row.holds_key := v_verdict is distinct from 'conflict';
    v_row.type := p_type;
    v_row.headers := p_headers;
    v_row.payload := p_payload;
    if v_verdict = 'conflict' then
        v_row.status := 'failed_final';
        v_row.failure_code := 'P4050';
        v_row.failure_message := 'its id came before with another payload';
    elsif p_outcome = 'poison' or p_outcome = 'retry' and v_rules.max_attempts <= 1 then
        v_row.status := 'failed_final';
    elsif p_outcome = 'retry' then
        v_row.status := 'failed_retryable';
        v_row.due_at := v_now + pgonce._retry_delay(v_rules, 1);
    else
        v_row.status := 'received';
        v_row.due_at := v_now;
    end if;
    -- A row may outlive its marker. Where that one is done, this is a message of its own, with a place of its own among those of its
    -- key; else it is what waits there.
    insert into pgonce.inbox_message as m select (v_row).*
    on conflict on constraint one_stored_message_per_payload do update
        set seq = excluded.seq, size = excluded.size, status = excluded.status, attempts = excluded.attempts, due_at = excluded.due_at,
            received_at = excluded.received_at, settled_at = null, settled_xid = null, skipped_at = null,
            failure_code = excluded.failure_code, failure_message = excluded.failure_message, key = excluded.key,
            holds_key = excluded.holds_key, type = excluded.type, headers = excluded.headers, payload = excluded.payload
      where v_verdict is null and (m.status = 'processed' or m.skipped_at is not null);
    return coalesce(v_verdict, case when found then 'new' else 'duplicate' end);
end
$$;
