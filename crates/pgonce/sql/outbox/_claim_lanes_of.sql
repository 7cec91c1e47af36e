-- pgonce._claim_lanes_of(p_claims): pgonce._claim_lanes for many subscriptions at once, so that the number of idle
--          relays of a process does not matter. To be called first in a transaction.
-- answers  as pgonce._claim_lanes for each element {"subscription", "owner", "lease"} of p_claims, which is its number
--          from 1
-- locks    as pgonce._claim_lanes, in the order of the subscriptions; waits at most a moment: one subscription that
--          somebody has locked must not keep the others. Then each is to be claimed alone
-- raises   as pgonce._claim_lanes, for the first that cannot be claimed; 55P03 a row is locked
create or replace function pgonce._claim_lanes_of(p_claims jsonb)
returns table (claim integer, lane smallint, epoch bigint, cursor text, surplus boolean)
language plpgsql volatile set search_path = pg_catalog, pg_temp set lock_timeout = '100ms'
as $$
declare
    v_claim record;
begin
    for v_claim in
        select c.n, c.claim from jsonb_array_elements(p_claims) with ordinality as c (claim, n)
         order by c.claim ->> 'subscription' collate "C", c.n
    loop
        return query
            select v_claim.n::integer, l.* from pgonce._claim_lanes(v_claim.claim ->> 'subscription', v_claim.claim ->> 'owner',
                (v_claim.claim ->> 'lease')::interval) l;
    end loop;
end
$$;
