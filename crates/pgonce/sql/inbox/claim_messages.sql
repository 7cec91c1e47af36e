-- pgonce.claim_messages(p_consumer, p_owner, p_lease, p_limit): gives a worker stored messages that are due,
--          of each key only the first. Commit, apply them, and end each with pgonce.finish_messages in the
--          transaction of its effect, or with pgonce.fail_message.
-- answers  at most p_limit messages, in their order; also those whose worker's lease ran out
-- locks    the rows it gives, and none that another worker holds
-- writes   status processing, one attempt more, a new fence; failed_final for messages whose workers all
--          vanished, the contract's max_attempts in a row
-- raises   22023 a bad owner, lease or limit
-- example  select seq, fence, payload from pgonce.claim_messages('billing', 'host-7', '30 seconds', 100);
create or replace function pgonce.claim_messages(p_consumer text, p_owner text, p_lease interval, p_limit integer)
returns table (tenant text, seq bigint, fence bigint, attempts integer, source text, message_id text, key text,
    type text, headers jsonb, payload bytea)
language sql volatile security definer set search_path = pg_catalog, pg_temp
begin atomic
    select * from pgonce._claim_messages(p_consumer, p_owner, p_lease, p_limit, 1);
end;
