-- pgonce._home_of(p_tenant, p_scope, p_key, p_pending): where an intent belongs, and what other regions may do.
-- answers  one row: mode; max_lag; the number of its home. The rule of the tenant's scope, of the scope, of '*', else mode
--          home by key. p_pending: a rule that is pending goes before the one in force
-- note     the home is the region whose hash with the key (or the tenant) is the highest: it is the same in every region
--          that knows the same regions, and when one leaves only its own intents move. SHA-256 of UTF-8, so that neither
--          the encoding nor the version of the server matters
create or replace function pgonce._home_of(p_tenant text, p_scope text, p_key text, p_pending boolean default true)
returns table (mode text, max_lag interval, home smallint)
language sql stable security definer set search_path = pg_catalog, pg_temp
begin atomic
    select r.mode, r.max_lag,
           (select g.id from pgonce.region g where g.state = 'active'
             order by r.home = g.name collate "C" desc,
                      sha256(convert_to(g.id || '/' || case r.home when 'tenant' then p_tenant else p_tenant || '/' || p_scope || '/' || p_key end, 'UTF8')) desc
             limit 1)
      from (select u.mode, u.max_lag, u.home, 0 as rank, u.pending from pgonce.region_rule u
             where u.tenant = p_tenant collate "C" and u.scope = p_scope collate "C" and u.pending <= p_pending
            union all
            select u.mode, u.max_lag, u.home, 1, u.pending from pgonce.region_rule u
             where u.tenant = '' and u.scope = p_scope collate "C" and u.pending <= p_pending
            union all
            select u.mode, u.max_lag, u.home, 2, u.pending from pgonce.region_rule u
             where u.tenant = '' and u.scope = '*' and u.pending <= p_pending
            union all
            select 'home', null, 'key' collate "C", 3, false
             order by 4, 5 desc limit 1) r;
end;
