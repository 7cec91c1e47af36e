-- pgonce.accept_batch(p_consumer, p_source, p_message_ids, p_hashes, p_tenant): which of these messages may
--          this consumer apply now? To be called in the transaction of the effect; the answer can be
--          joined in its very statement.
-- answers  the ids that are new; each once, however often it is in the batch
-- locks    the messages' markers, as pgonce.accept
-- writes   one row of pgonce.inbox_marker for each new one
-- raises   P4050 an id came before with another payload; 22023 a name that does not fit
create or replace function pgonce.accept_batch(p_consumer text, p_source text, p_message_ids text[],
    p_hashes bytea[] default null, p_tenant text default '')
returns setof text
language plpgsql volatile
as $$
declare
    v_new      integer[];
    v_conflict integer[];
begin
    select array_agg(m.ordinal order by m.ordinal) filter (where m.verdict = 'new'),
           array_agg(m.ordinal order by m.ordinal) filter (where m.verdict = 'conflict')
      into v_new, v_conflict
      from pgonce.mark_messages(p_consumer, p_source, p_message_ids, p_hashes, p_tenant) m;
    if v_conflict is not null then
        perform pgonce.refuse_reuse(p_consumer, p_source, array(select p_message_ids[n] from unnest(v_conflict) n), p_tenant);
    end if;
    return query select p_message_ids[n] from unnest(v_new) n;
end
$$;
