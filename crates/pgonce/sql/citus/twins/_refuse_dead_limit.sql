-- pgonce._refuse_dead_limit(p_limit, p_when_full): on Citus nobody counts the dead letters of a subscription over all servers.
-- raises   P4105 another limit than the default, or 'discard'
create or replace function pgonce._refuse_dead_limit(p_limit integer, p_when_full text)
returns void
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
    if p_limit <> 10000 or p_when_full collate "C" <> 'stop' then
        raise exception 'on Citus a subscription has no limit of dead letters' using errcode = 'P4105',
            hint = 'Leave p_dead_limit and p_when_full out; pgonce.outbox_backlog counts them.';
    end if;
end
$$;
