-- pgonce.set_strict(p_on): turns strict mode on or off: it refuses claims in scopes without a contract. Owner
--          only.
-- answers  nothing
-- locks    the contract of scope "*"
-- writes   on: puts the contract of scope "*" aside, as "*off", and replaces pgonce._scope_is_allowed; off: restores both.
--          Nothing where the mode is that already
-- raises   22023 p_on is null
-- example  select pgonce.set_strict(true);
--          select pgonce.set_strict(false);
create or replace function pgonce.set_strict(p_on boolean)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    if p_on is null then
        raise exception 'strict mode is on or off, not null' using errcode = '22023',
            hint = 'For example: select pgonce.set_strict(true).';
    elsif p_on then
        -- Put aside, so that it comes back as it was.
        update pgonce.scope s set scope = '*off' where s.tenant = '' and s.scope = '*';
    else
        update pgonce.scope s set scope = '*' where s.tenant = '' and s.scope = '*off'
           and not exists (select from pgonce.scope o where o.tenant = '' and o.scope = '*');
    end if;
    perform pgonce._set_claim_switch();
end
$$;
revoke execute on function pgonce.set_strict(boolean) from public;
