-- pgonce._verdict_of(p_tenant, p_scope, p_key): what the facts of an intent say together, whichever order they came in.
-- answers  the facts, each once, in the order of their times, then of their regions. verdict: kept, the answer that counts
--          now (at most one); surplus, an effect beside the one that kept_by names; refused, a failure beside another answer;
--          over, of an earlier life of the key; evicted. life_end: when the answers of its life have all expired
-- note     a life of a key is a chain of facts, each from before all earlier ones have expired; an eviction ends it. In
--          a life the first success is kept, or else the first failure
create or replace function pgonce._verdict_of(p_tenant text, p_scope text, p_key text)
returns table (fact pgonce.region_fact, verdict text, kept_by pgonce.region_fact, life_end timestamptz)
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_facts pgonce.region_fact[] := array(
        select distinct on (f.at, f.region, f.epoch, f.seq) f from pgonce.region_fact f
         where f.tenant = p_tenant collate "C" and f.scope = p_scope collate "C" and f.key = p_key collate "C"
           and f.kind in ('finished', 'evicted')
         order by f.at, f.region, f.epoch, f.seq);
    v_next  pgonce.region_fact;
    v_life  pgonce.region_fact[] := '{}';
    v_first integer := 1;
    v_kept  integer;
    v_end   timestamptz;
begin
    for v_last in 1 .. coalesce(cardinality(v_facts), 0) loop
        fact := v_facts[v_last];
        v_end := greatest(v_end, fact.expires_at);
        v_next := v_facts[v_last + 1];
        continue when v_next.at < v_end and fact.kind = 'finished' and v_next.kind = 'finished';
        -- The life v_first .. v_last is whole.
        select i into v_kept from generate_series(v_first, v_last) i
         order by v_facts[i].record ->> 'status' = 'succeeded' desc nulls last, i limit 1;
        for v_each in v_first .. v_last loop
            fact := v_facts[v_each];
            kept_by := v_facts[v_kept];
            life_end := v_end;
            verdict := case when fact.kind = 'evicted' then 'evicted'
                when v_each <> v_kept then case fact.record ->> 'status' when 'succeeded' then 'surplus' else 'refused' end
                when v_last < cardinality(v_facts) then 'over'
                else 'kept' end;
            return next;
        end loop;
        v_first := v_last + 1;
        v_end := null;
    end loop;
end
$$;
