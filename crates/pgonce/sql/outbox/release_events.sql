-- pgonce.release_events(p_subscription, p_owner): a consumer of pgonce.claim_events ends. Its lanes are free at once; what it
--          has not settled comes to another.
-- answers  how many lanes it gave back
-- locks    the rows of its lanes
-- writes   owner and lease of its lanes
-- raises   42501 the session's role is bound to a tenant. A consumer that holds nothing gives nothing back
-- example  select pgonce.release_events('mails', 'host-7');
create or replace function pgonce.release_events(p_subscription text, p_owner text)
returns integer
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgonce._refuse_bound('a subscription belongs');
    return pgonce._release_lanes(p_subscription collate "C", p_owner collate "C");
end
$$;
