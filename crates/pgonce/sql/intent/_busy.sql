-- pgonce._busy(p_retry_after, p_attempts): the answer "somebody else holds it".
create or replace function pgonce._busy(p_retry_after interval, p_attempts integer)
returns pgonce.claimed
language sql immutable
return row('busy', null, null, null, null, null, null, p_retry_after, p_attempts)::pgonce.claimed;
