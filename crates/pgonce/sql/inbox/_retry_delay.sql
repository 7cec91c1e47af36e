-- pgonce._retry_delay(p_rules, p_attempts): how long a message that has failed so often waits: a pause that
--          doubles, up to the contract's longest, with jitter.
create or replace function pgonce._retry_delay(p_rules pgonce.inbox_contract, p_attempts integer)
returns interval
language sql volatile
return least((p_rules).backoff * power(2, least(greatest(p_attempts, 1) - 1, 40)), (p_rules).max_backoff)
    * (0.5 + random() / 2);
