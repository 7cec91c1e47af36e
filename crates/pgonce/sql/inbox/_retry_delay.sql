-- pgonce._retry_delay(p_rules, p_attempts): how long a message that has failed so often waits: a pause that
--          doubles, up to the contract's longest, with jitter.
create or replace function pgonce._retry_delay(p_rules pgonce.inbox_contract, p_attempts integer)
returns interval
language sql volatile
return pgonce._backoff((p_rules).backoff, (p_rules).max_backoff, p_attempts);
