-- pgonce._replay_of(p_scope, p_key, p_fingerprint, p_tenant): the stored answer as pgonce.answer_of reads it, for a cache.
-- answers  one row where there is an answer to replay: the answer, the fence that made it, for how many milliseconds more it
--          is kept, a day at most, and pgonce._replay_state of the same moment
-- locks    nothing
-- writes   nothing
create or replace function pgonce._replay_of(p_scope text, p_key text, p_fingerprint bytea, p_tenant text)
returns table (answer jsonb, ref_type text, ref_id text, attempts integer, fence bigint, left_ms bigint, state text, now_ms bigint)
language sql stable
begin atomic
    select i.answer, i.ref_type, i.ref_id, i.attempts, i.fence,
           floor(extract(epoch from least(i.expires_at, s.at + interval '1 day') - s.at) * 1000)::bigint, s.state, s.now_ms
      from (select set_config('pgonce.key', p_key, true) as key offset 0) as one  -- first: see the policy by_key
     cross join lateral (select r.state, r.now_ms, pgonce.now() as at from pgonce._replay_state() r offset 0) s
     cross join lateral (
        select n.answer, n.ref_type, n.ref_id, n.attempts, n.fence, n.expires_at
          from pgonce.intent n
         where n.tenant = p_tenant and n.scope = p_scope and n.key = one.key
           and n.status = 'succeeded' and n.fingerprint = p_fingerprint
           and n.gone_at is null and n.expires_at > s.at
        offset 0) i;
end;
