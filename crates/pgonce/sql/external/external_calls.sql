-- pgonce.external_calls: calls to providers, with what is known about each. status: requested, sent, unknown, needs_operator,
--          confirmed or failed.
-- note     disputed: the provider said something else after the call was decided, or has called it by two references. One of an
--          earlier life of its key has the effect key in the name of its step
-- example  select provider, step, status, reference, sends from pgonce.external_calls where status = 'needs_operator';
create or replace view pgonce.external_calls as
select c.tenant, c.effect_key, c.provider, c.scope, c.key, c.step, pgonce._external_status(c) as status, c.reference,
       c.sends, c.looks, c.decides, c.failure_code, c.failure_message, c.decided_by, c.disputed,
       c.requested_at, c.sent_at, c.next_look_at, c.deadline_at, c.decided_at, c.request, c.response
  from pgonce.external_call c;
