-- pgonce._history(p_tenant, p_scope, p_key): what is known of one intent, in the order of time: attempts, operator acts and recovery,
--          its calls to providers, its reference, the events of its last transaction with their deliveries, and who consumed them in this database.
-- answers  when, what, who, and in words how it went; nothing where there is neither a record nor an act
-- locks    nothing
-- note     events are found by the transaction that wrote the record last (xmin), under the index of the log: those that leased work
--          published in earlier transactions are not among them, which a row says, nor those of before a dump was restored
create or replace function pgonce._history(p_tenant text, p_scope text, p_key text)
returns table (at timestamptz, what text, who text, detail text)
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_row   pgonce.intent;
    v_xmin  bigint;
    v_since timestamptz;
    v_next  bigint := pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
    v_event record;
begin
    select i.* into v_row from pgonce.intent i
     where i.tenant = p_tenant collate "C" and i.scope = p_scope collate "C" and i.key = p_key collate "C";
    select i.xmin::text::bigint into v_xmin from pgonce.intent i
     where i.tenant = p_tenant collate "C" and i.scope = p_scope collate "C" and i.key = p_key collate "C";
    select coalesce(max(a.followed_at), v_row.first_at) into v_since from pgonce.attempt a
     where a.tenant = v_row.tenant and a.scope = v_row.scope and a.key = v_row.key;
    return query
    select h.* from (
        select a.started_at as at, 'attempt ' || a.attempt as what, a.owner as who,
               concat_ws(' ', a.outcome, 'after ' || date_trunc('milliseconds', a.ended_at - a.started_at),
                   '(' || nullif(concat_ws(': ', a.code, a.message), '') || ')') as detail
          from pgonce.attempt a
         where a.tenant = p_tenant collate "C" and a.scope = p_scope collate "C" and a.key = p_key collate "C"
        union all
        select v_since, 'attempt ' || v_row.attempts, v_row.owner,
               concat_ws(' ', case when v_row.status = 'processing' and v_row.lease_until > pgonce.now() then 'under way'
                                   when v_row.status = 'processing' then 'stopped' else v_row.status::text end,
                   '(' || nullif(concat_ws(': ', v_row.failure_code, v_row.failure_message), '') || ')')
         where v_row.scope is not null
        union all
        select o.acted_at, o.act, concat_ws(', ', o.person, 'role ' || o.role), o.reason || case when o.forced then ' (forced)' else '' end
          from pgonce.operator_act o
         where o.key = p_key collate "C" and o.tenant = p_tenant collate "C" and o.scope = p_scope collate "C"
        union all
        select coalesce(c.first_sent_at, c.requested_at), 'call ' || c.step, c.provider,
               concat_ws(', ', case when c.decided_at is null then pgonce._external_status(c) end,
                   case c.sends when 0 then 'not sent' when 1 then 'sent once' else 'sent ' || c.sends || ' times' end,
                   nullif(c.looks, 0) || ' look-ups', 'effect key ' || c.effect_key,
                   case when c.decided_at is null then 'reference ' || c.reference end)
          from pgonce.external_call c
         where c.tenant = p_tenant collate "C" and c.scope = p_scope collate "C" and c.key = p_key collate "C"
        union all
        select c.decided_at, 'call ' || c.step || ' decided', c.provider,
               concat_ws(', ', c.status, 'by ' || c.decided_by, 'reference ' || c.reference, c.failure_code, 'disputed: ' || c.disputed)
          from pgonce.external_call c
         where c.tenant = p_tenant collate "C" and c.scope = p_scope collate "C" and c.key = p_key collate "C"
           and c.decided_at is not null
        union all
        select greatest(v_row.last_at, v_since), 'reference', null, concat_ws('/', v_row.ref_type, v_row.ref_id)
         where v_row.ref_id is not null) h
     order by h.at, h.what;
    if v_row.status = 'succeeded' and v_row.fence % 2 = 0 and exists (select from pgonce.outbox) then
        return query select coalesce(v_row.last_at, v_row.first_at), 'events', null::text,
            'only those of the last transaction of this leased work are listed'::text;
    end if;
    -- The number of the transaction without its epoch: the last one that had it.
    v_xmin := v_next / 4294967296 * 4294967296 + v_xmin;
    if v_xmin > v_next then
        v_xmin := v_xmin - 4294967296;
    end if;
    for v_event in
        select o.seq, o.created_at, o.topic, o.type, o.subject, o.message_id from pgonce.outbox o
         where v_row.status = 'succeeded' and o.xid = v_xmin::text::xid8 and o.tenant = v_row.tenant
           and o.created_at <= coalesce(v_row.last_at, v_row.first_at)
         order by o.seq limit 20
    loop
        return query select v_event.created_at, 'event', v_event.topic::text,
            format('%s %s, subject %s, number %s', v_event.type, v_event.message_id, v_event.subject, v_event.seq);
        return query
        select v_event.created_at, 'delivery', s.subscription::text, concat_ws(' ', e.fate, 'after ' || e.attempts || ' attempts', e.reason)
          from pgonce.outbox_subscription s
         cross join lateral pgonce.event_status(s.subscription, v_event.seq) e
         where e.fate <> 'unwanted'
         order by s.subscription limit 50;
        return query
        select k.accepted_at, 'consumed', k.consumer::text, 'from ' || k.source
          from pgonce.inbox_marker k
         where k.tenant = v_row.tenant and k.message_id = v_event.message_id::text
         order by k.accepted_at limit 50;
    end loop;
end
$$;
