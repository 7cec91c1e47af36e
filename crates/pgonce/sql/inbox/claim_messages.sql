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
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
    if coalesce(p_owner, '') = '' or (p_lease > interval '0' and p_limit > 0) is not true then
        raise exception 'a worker needs a name, a lease and a limit that are positive' using errcode = '22023',
            hint = 'For example: pgonce.claim_messages(''billing'', ''host-7'', interval ''30 seconds'', 100).';
    end if;
    update pgonce.inbox_message m
       set status = 'failed_final', due_at = null, owner = null, failure_code = 'abandoned',
           failure_message = format('its workers vanished, %s attempts in a row', m.attempts)
     where m.consumer = p_consumer collate "C" and m.status = 'processing' and m.due_at <= pgonce.now()
       and m.attempts >= (pgonce._inbox_rules(m.consumer, m.tenant)).max_attempts;
    return query
        with due as materialized (
            select m.tenant, m.seq from pgonce.inbox_message m
             where m.consumer = p_consumer collate "C" and m.due_at <= pgonce.now()
               and m.status in ('received', 'processing', 'failed_retryable')
               and (m.key is null or not exists (
                    select from pgonce.inbox_message f
                     where f.tenant = m.tenant and f.consumer = m.consumer and f.key = m.key and f.seq < m.seq
                       and f.status <> 'processed' and f.skipped_at is null and f.holds_key))
             order by m.due_at, m.seq
             limit p_limit
               for update of m skip locked
        ), taken as (
            update pgonce.inbox_message m
               set status = 'processing', attempts = m.attempts + 1, fence = pgonce._next_fence(m.fence, true),
                   owner = p_owner, due_at = pgonce.now() + p_lease
              from due d
             where m.tenant = d.tenant and m.consumer = p_consumer collate "C" and m.seq = d.seq
            returning m.*
        )
        select t.tenant::text, t.seq, t.fence, t.attempts, t.source::text, t.message_id::text, t.key::text,
               t.type::text, t.headers, t.payload
          from taken t order by t.seq;
end
$$;
