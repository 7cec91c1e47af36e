-- pgonce._ledger_genesis(p_account): what the hash chain of an account's shard begins with.
-- answers  a hash over what the account is: an entry cannot move to another account, nor an account to another
--          currency, without breaking the chain
create or replace function pgonce._ledger_genesis(p_account pgonce.ledger_account)
returns bytea
language sql immutable parallel safe
return sha256(convert_to(jsonb_build_array((p_account).tenant, (p_account).account, (p_account).shard, (p_account).shards,
    (p_account).currency, (p_account).normal)::text, 'UTF8') || timestamptz_send((p_account).opened_at));
