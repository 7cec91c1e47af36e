-- pgonce._claim_messages(p_consumer, p_owner, p_lease, p_limit, p_per_key): what pgonce.claim_messages does, with up to p_per_key
--          messages of a key: for a worker who applies those one after the other, and none behind one that failed.
-- note     a key that waits costs a look at its first message, however many are behind it: what is due first is looked at
--          first, and where too much of that waits, the first message of each key. A message whose worker vanished goes
--          alone: those behind it would count an attempt each time that it ends a process
create or replace function pgonce._claim_messages(p_consumer text, p_owner text, p_lease interval, p_limit integer,
    p_per_key integer)
returns table (tenant text, seq bigint, fence bigint, attempts integer, source text, message_id text, key text,
    type text, headers jsonb, payload bytea)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
    -- Whatever the statistics say: what is looked at is looked up, row by row.
    set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
#variable_conflict use_column
declare
    v_consumer text collate "C" := p_consumer;
    v_now      timestamptz := pgonce.now();
    v_window   bigint := greatest(4 * p_limit::bigint, 100);
    v_seen     bigint;
    v_first    bigint[];
    v_more     bigint[];
begin
    if coalesce(p_owner, '') = '' or (p_lease > interval '0' and p_limit > 0 and p_per_key > 0) is not true then
        raise exception 'a worker needs a name, a lease and a limit that are positive' using errcode = '22023',
            hint = 'For example: pgonce.claim_messages(''billing'', ''host-7'', interval ''30 seconds'', 100).';
    end if;
    with early as materialized (
        select m.tenant, m.seq, m.due_at from pgonce.inbox_message m
         where m.consumer = v_consumer and m.due_at <= v_now and m.status in ('received', 'processing', 'failed_retryable')
         order by m.due_at, m.seq
         limit v_window
    ), first as (
        -- One after the other, until there are enough: what is locked is what is given.
        select m.seq from (select e.tenant, e.seq from early e order by e.due_at, e.seq) e cross join lateral (
            select m.seq from pgonce.inbox_message m
             where m.tenant = e.tenant and m.consumer = v_consumer and m.seq = e.seq
               and m.due_at <= v_now and m.status in ('received', 'processing', 'failed_retryable')
               and (m.key is null or not exists (
                    select from pgonce.inbox_message f
                     where f.tenant = m.tenant and f.consumer = m.consumer and f.key = m.key and f.seq < m.seq
                       and f.status <> 'processed' and f.skipped_at is null and f.holds_key))
               for update of m skip locked) m
         limit p_limit
    )
    select (select count(*) from early), coalesce(array_agg(f.seq), '{}') into v_seen, v_first from first f;
    if v_seen = v_window and cardinality(v_first)::bigint * p_per_key < p_limit then
        with recursive tenants as (
            (select m.tenant from pgonce.inbox_message m
              where m.status <> 'processed' and m.skipped_at is null and m.holds_key order by m.tenant limit 1)
            union all
            select (select m.tenant from pgonce.inbox_message m
                     where m.status <> 'processed' and m.skipped_at is null and m.holds_key and m.tenant > t.tenant
                     order by m.tenant limit 1)
              from tenants t where t.tenant is not null
        ), keys as (
            select t.tenant, k.key, k.seq, k.due_at from tenants t cross join lateral (
                select m.key, m.seq, m.due_at from pgonce.inbox_message m
                 where m.tenant = t.tenant and m.consumer = v_consumer and m.key is not null
                   and m.status <> 'processed' and m.skipped_at is null and m.holds_key
                 order by m.key, m.seq limit 1) k
            union all
            select k.tenant, n.key, n.seq, n.due_at from keys k cross join lateral (
                select m.key, m.seq, m.due_at from pgonce.inbox_message m
                 where m.tenant = k.tenant and m.consumer = v_consumer and m.key > k.key
                   and m.status <> 'processed' and m.skipped_at is null and m.holds_key
                 order by m.key, m.seq limit 1) n
        ), alone as materialized (
            select m.tenant, m.seq, m.due_at from pgonce.inbox_message m
             where m.consumer = v_consumer and m.key is null and m.due_at <= v_now
               and m.status in ('received', 'processing', 'failed_retryable') and m.seq <> all (v_first)
             order by m.due_at, m.seq
             limit p_limit
        ), ready as materialized (
            select k.tenant, k.seq, k.due_at from keys k where k.due_at <= v_now and k.seq <> all (v_first)
            union all
            select a.tenant, a.seq, a.due_at from alone a
        ), first as (
            select m.seq from (select r.tenant, r.seq from ready r order by r.due_at, r.seq) e cross join lateral (
                select m.seq from pgonce.inbox_message m
                 where m.tenant = e.tenant and m.consumer = v_consumer and m.seq = e.seq
                   and m.due_at <= v_now and m.status in ('received', 'processing', 'failed_retryable')
                   for update of m skip locked) m
             limit p_limit - cardinality(v_first)
        )
        select coalesce(array_agg(f.seq), '{}') into v_more from first f;
        v_first := v_first || v_more;
    end if;
    update pgonce.inbox_message m
       set status = 'failed_final', due_at = null, owner = null, failure_code = 'abandoned',
           failure_message = format('its workers vanished, %s attempts in a row', m.attempts)
     where m.consumer = v_consumer and m.seq = any (v_first) and m.status = 'processing'
       and m.attempts >= (pgonce._inbox_rules(m.consumer, m.tenant)).max_attempts;
    return query
        with runs as (
            select m.tenant, m.seq, 1::bigint as place from pgonce.inbox_message m
             where m.consumer = v_consumer and m.seq = any (v_first) and m.status <> 'failed_final'
            union all
            select h.tenant, r.seq, r.place
              from pgonce.inbox_message h cross join lateral (
                    select n.seq, row_number() over w + 1 as place,
                           bool_and(coalesce(n.due_at <= v_now and n.status in ('received', 'failed_retryable'), false)) over w as goes_on
                      from (select m.seq, m.due_at, m.status from pgonce.inbox_message m
                             where m.tenant = h.tenant and m.consumer = v_consumer and m.key = h.key and m.seq > h.seq
                               and m.status <> 'processed' and m.skipped_at is null and m.holds_key
                             order by m.seq limit p_per_key - 1) n
                    window w as (order by n.seq)) r
             where p_per_key > 1 and h.consumer = v_consumer and h.seq = any (v_first) and h.status = 'received' and h.holds_key
               and r.goes_on
        ), chosen as (
            -- The second of a key only after the first of each.
            select r.tenant, r.seq from runs r order by r.place, r.seq limit p_limit
        ), held as (
            select m.tenant, m.seq from chosen c
              join pgonce.inbox_message m on m.tenant = c.tenant and m.consumer = v_consumer and m.seq = c.seq
             where m.due_at <= v_now and m.status in ('received', 'processing', 'failed_retryable')
               for update of m skip locked
        ), taken as (
            update pgonce.inbox_message m
               set status = 'processing', attempts = m.attempts + 1, fence = pgonce._next_fence(m.fence, true),
                   owner = p_owner, due_at = pgonce.now() + p_lease
              from held h
             where m.tenant = h.tenant and m.consumer = v_consumer and m.seq = h.seq
            returning m.*
        )
        select t.tenant::text, t.seq, t.fence, t.attempts, t.source::text, t.message_id::text, t.key::text,
               t.type::text, t.headers, t.payload
          from taken t order by t.seq;
end
$$;
