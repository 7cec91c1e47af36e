-- pgonce._begin_fresh(p_scope, p_key, p_fingerprint, p_tenant, p_look): an atomic claim for
--          callers who can send it together with BEGIN but cannot read an answer there.
-- answers  nothing: you hold the intent, it is fresh, its fence is 1
-- locks    the intent's advisory lock until the end of the transaction
-- raises   P4029 anything else than fresh: roll back and call pgonce.claim, which says what
--          P4000 P4001 P4003 22023 bad input
-- note     p_look false is the optimistic claim: for a first attempt that is known to be one; the
--          insert at the end decides
create or replace function pgonce._begin_fresh(p_scope text, p_key text, p_fingerprint bytea,
    p_tenant text default '', p_look boolean default true)
returns void
language plpgsql volatile
as $$
declare
    v_fresh boolean;
begin
    if p_look and pgonce._names_fit(p_tenant, p_scope, p_key, p_fingerprint) then
        -- The look-up alone says "fresh" most of the time, and costs a quarter less.
        select g.outcome operator(pg_catalog.=) 'fresh' into v_fresh
          from pgonce._claim_fast(p_scope, p_key, p_fingerprint, p_tenant) g;
        if v_fresh is null then
            select c.outcome operator(pg_catalog.=) 'fresh' into v_fresh
              from pgonce.claim(p_scope, p_key, p_fingerprint, p_tenant => p_tenant) c;
        end if;
    else
        select h.holds into v_fresh
          from pgonce._claim_optimistic(p_scope, p_key, p_fingerprint, p_tenant) h;
    end if;
    if v_fresh is not true then
        raise exception 'the intent is not fresh' using errcode = 'P4029',
            hint = 'Roll back and call pgonce.claim: it answers replay, refused, retry or busy.';
    end if;
end
$$;
