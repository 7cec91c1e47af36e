-- pgonce._ledger_hash(p_before, p_digest, p_seq, p_line, p_at, p_amount, p_balance): the hash of an entry, over
--          the hash of the entry before and the digest of its group.
-- note     every part has a fixed length or says its own
create or replace function pgonce._ledger_hash(p_before bytea, p_digest bytea, p_seq bigint, p_line smallint,
    p_at timestamptz, p_amount numeric, p_balance numeric)
returns bytea
language sql immutable parallel safe
return sha256(p_before || p_digest || int8send(p_seq) || int2send(p_line) || timestamptz_send(p_at)
    || numeric_send(p_amount) || numeric_send(p_balance));
