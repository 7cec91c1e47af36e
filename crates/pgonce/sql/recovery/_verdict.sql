-- pgonce._verdict(p_intent): did it happen once? In words, from what is recorded and nothing else.
-- answers  a sentence or two
create or replace function pgonce._verdict(p_intent pgonce.intent)
returns text
language sql stable
return case
    when p_intent.gone_at is not null
        then 'It finished, and its answer is no longer kept: a retry gets: gone.'
    when p_intent.status = 'succeeded' and p_intent.expires_at <= pgonce.now()
        then 'It happened once. Its retention is over: the contract says what a retry gets.'
    when p_intent.status = 'succeeded'
        then 'It happened once. Every retry gets the stored answer.'
    -- An application may call a failure of its own so.
    when p_intent.failure_code = 'abandoned' and p_intent.status = 'failed_final'
     and (p_intent.fence % 2 = 0 or p_intent.vanished_at is not null)
        then 'Its holder vanished and it was given up: ' || coalesce(p_intent.failure_message, 'it may have happened') || '. Every retry is refused.'
    -- Of a lease: what an attempt in one transaction did was rolled back.
    when p_intent.status = 'failed_final' and p_intent.fence % 2 = 0 and left(p_intent.failure_code, 6) = 'http_5'
        then 'The service failed on the way; whether it happened is not known. Every retry gets the same answer.'
    when p_intent.status = 'failed_final' and exists (select from pgonce.external_call c
          where c.tenant = p_intent.tenant and c.scope = p_intent.scope and c.key = p_intent.key and c.ended_at is null
            and (c.status in ('sent', 'unknown', 'confirmed') or c.disputed is not null))
        then 'It was refused, finally, and every retry gets the same refusal; but a call to a provider happened, or may have: look at its calls.'
    when p_intent.status = 'failed_final'
        then 'It was refused, finally. Every retry gets the same refusal.'
    when p_intent.status = 'failed_retryable' and p_intent.vanished_at is not null
        then 'An earlier holder vanished, and the last attempt failed. Nothing is acknowledged; what was done outside this database is not known: the next attempt takes over.'
    when p_intent.status = 'failed_retryable'
        then 'The last attempt failed and nothing is acknowledged: the next attempt may try again.'
    when p_intent.lease_until > pgonce.now()
        then 'Somebody is at it now: the lease holds until lease_until.'
    when p_intent.failure_code = 'needs_manual_action'
        then 'Its holder stopped on the way, and an operator must decide: ' || coalesce(p_intent.failure_message, 'it may have happened') || '.'
    else 'Its holder stopped on the way. Nothing is acknowledged; what it did outside this database is not known.'
end;
