-- pgonce.set_strict(p_on): turns strict mode on or off: it refuses claims in scopes without a contract. Owner
--          only.
-- answers  nothing
-- locks    the contract of scope "*"
-- writes   on: puts the contract of scope "*" aside, as "*off", and replaces pgonce._scope_is_allowed; off: restores both.
--          A row of pgonce.operator_act. Nothing where the mode is that already
-- raises   22023 p_on is null
-- note     what was begun before comes to its end as the contract of scope "*" says
-- example  select pgonce.set_strict(true);
--          select pgonce.set_strict(false);
create or replace function pgonce.set_strict(p_on boolean)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_was boolean := not exists (select from pgonce.scope s where s.tenant = '' and s.scope = '*');
begin
    if p_on is null then
        raise exception 'strict mode is on or off, not null' using errcode = '22023',
            hint = 'For example: select pgonce.set_strict(true).';
    end if;
    -- Of an earlier version, in which '*' could be defined in strict mode: it is the one that holds.
    delete from pgonce.scope s where s.tenant = '' and s.scope = '*off'
       and exists (select from pgonce.scope o where o.tenant = '' and o.scope = '*');
    if p_on then
        -- Put aside, so that it comes back as it was.
        update pgonce.scope s set scope = '*off' where s.tenant = '' and s.scope = '*';
    else
        update pgonce.scope s set scope = '*' where s.tenant = '' and s.scope = '*off';
    end if;
    perform pgonce._set_claim_switch();
    perform pgonce._audit_rules('scope *', jsonb_build_object('strict', v_was), jsonb_build_object('strict', p_on),
        case when p_on then 'strict on' else 'strict off' end);
end
$$;
revoke execute on function pgonce.set_strict(boolean) from public;
