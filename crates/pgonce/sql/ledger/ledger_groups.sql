-- pgonce.ledger_groups: the groups of the ledger, with what became of them.
-- answers  a row per group; accounts and amounts are its lines, a debit is positive; state is posted, pending
--          or voided; a pending group shows its fence
-- example  select source, operation, state, accounts, amounts from pgonce.ledger_groups where state = 'pending';
create or replace view pgonce.ledger_groups as
select g.tenant, g.source, g.operation, coalesce(p.state, 'posted') as state, g.accounts, g.amounts, g.memo, g.reverses_source,
       g.reverses_operation, p.fence, g.recorded_at, p.settled_at
  from pgonce.ledger_group g
  left join pgonce.ledger_pending p on (p.tenant, p.source, p.operation) = (g.tenant, g.source, g.operation);
