-- pgonce._contract_of on Citus: as scope/_contract_of.sql, in one statement: Citus plans each by itself, which costs more than the look-up.
create or replace function pgonce._contract_of(p_tenant text, p_scope text, p_begun boolean)
returns pgonce.scope
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_contract pgonce.scope;
begin
    select s.* into v_contract from pgonce.scope s
     where s.tenant in ('', p_tenant) and (s.scope in ('*', p_scope) or p_begun and s.scope = '*off')
     order by s.scope = p_scope desc, s.tenant desc limit 1;
    if not found then
        raise exception 'scope "%" is not defined', p_scope using errcode = 'P4000',
            detail = 'pgonce is strict here: the contract of scope ''*'' was dropped.',
            hint = format('Define it: select pgonce.define_scope(%L, interval ''7 days'').', p_scope);
    end if;
    return v_contract;
end
$$;
