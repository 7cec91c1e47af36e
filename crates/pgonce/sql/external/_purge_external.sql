-- pgonce._purge_external(p_limit): removes calls whose intent is gone, where their own retention is over or they were never sent;
--          old reports of providers; and the state of providers that nobody defined and nobody called for 30 days. At most
--          p_limit of each. What may have happened and is not decided stays.
-- answers  how many calls and reports
-- locks    the rows it removes, and none that is locked
create or replace function pgonce._purge_external(p_limit integer)
returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_calls  bigint;
    v_events bigint;
begin
    delete from pgonce.external_call c
     where c.ctid = any (array(select x.ctid from pgonce.external_call x
           where x.expires_at <= pgonce.now() and x.disputed is null
             and not exists (select from pgonce.intent i where i.tenant = x.tenant and i.scope = x.scope and i.key = x.key
                 and i.gone_at is null)
           order by x.expires_at limit p_limit for update skip locked));
    get diagnostics v_calls = row_count;
    delete from pgonce.external_event e
     where e.ctid = any (array(select x.ctid from pgonce.external_event x
           where x.seen_at <= pgonce.now() - (select min(least(p.keep, interval '5000 years')) from pgonce.external_provider p)
             and x.seen_at <= pgonce.now() - (pgonce._external_rules(x.provider)).keep
           order by x.seen_at limit p_limit for update skip locked));
    get diagnostics v_events = row_count;
    delete from pgonce.external_provider p
     where p.ctid = any (array(select x.ctid from pgonce.external_provider x, pgonce.external_provider r
           where x.defined_at is null and r.provider = '*' and (x.open_until > pgonce.now()) is not true
             and x.filled_at <= pgonce.now() - least(greatest(interval '30 days', r.rate_per), interval '5000 years')
           limit p_limit for update of x skip locked));
    return v_calls + v_events;
end
$$;
