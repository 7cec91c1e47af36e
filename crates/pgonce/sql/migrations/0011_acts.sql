-- 0011_acts: one table for what operators do to every part.
-- breaking: no

-- Replaced by functions that write pgonce.operator_act. What depends on the second is loaded again with the routines.
drop function if exists pgonce._audit_inbox(pgonce.inbox_message, text, text);
drop function if exists pgonce._audit_act(text, text, text, text, jsonb, text) cascade;

-- Only where there are rows: on Citus the table is not written at all. First the locks: an operator who has acted, and has not
-- committed yet, would add a row after its table was read.
do $$
begin
    lock table pgonce.inbox_audit, pgonce.ledger_audit in access exclusive mode;
    lock table pgonce.outbox_skipped in share row exclusive mode;
    if exists (select from pgonce.inbox_audit) then
        insert into pgonce.operator_act (acted_at, role, act, tenant, scope, key, reason, forced, before)
        select a.at, a.who, a.act, a.tenant, 'inbox ' || a.consumer, case a.seq when 0 then '*' else a.seq::text end,
               coalesce(a.reason, ''), false, jsonb_strip_nulls(jsonb_build_object('status', a.status, 'attempts', a.attempts,
                   'failure_code', a.failure_code, 'failure_message', a.failure_message))
          from pgonce.inbox_audit a order by a.entry;
    end if;
    if exists (select from pgonce.ledger_audit) then
        insert into pgonce.operator_act (acted_at, role, act, tenant, scope, key, reason, forced, before)
        select a.at, a.who, a.act, a.tenant, 'ledger', a.account, a.reason, false,
               jsonb_build_object('shard', a.shard, 'before', a.before, 'after', a.after)
          from pgonce.ledger_audit a order by a.entry;
    end if;
    -- What was skipped stays where it is, since deliveries are looked up in it; that an operator did it is an act.
    if exists (select from pgonce.outbox_skipped) then
        insert into pgonce.operator_act (acted_at, role, act, tenant, scope, key, reason, forced, before)
        select s.skipped_at, s.skipped_by, 'skip', s.tenant, 'outbox ' || s.subscription, s.seq::text, s.reason, false,
               jsonb_build_object('subject', s.subject, 'message_id', s.message_id)
          from pgonce.outbox_skipped s where s.reason not like 'the dead letters were full: %' order by s.skipped_at;
    end if;
end $$;
drop table pgonce.inbox_audit;
drop table pgonce.ledger_audit;
drop sequence pgonce.ledger_audit_seq;

-- What came from elsewhere has later numbers than its time.
create index operator_acts_by_time on pgonce.operator_act (acted_at, number);
