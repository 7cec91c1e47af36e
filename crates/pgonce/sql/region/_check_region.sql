-- pgonce._check_region(p_tenant, p_scope, p_key): may an intent without an answer be worked on in this region?
-- answers  true, or it raises
-- raises   P4110 its home is another region: the detail is JSON with its name, its address and whether to forward; P4111
--          this region has not joined yet, or was restored or promoted since and may have forgotten what it did
create or replace function pgonce._check_region(p_tenant text, p_scope text, p_key text)
returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_self pgonce.region;
    v_rule record;
    v_home pgonce.region;
begin
    select r.* into v_self from pgonce.region r where r.is_self;
    if v_self.state <> 'active' or v_self.epoch <> pgonce._installation_epoch() then
        raise exception 'region "%" has not joined the others%', v_self.name,
            case when v_self.state <> 'active' then '' else ' since it was restored or promoted' end using errcode = 'P4111',
            detail = 'It may not know what it or others have done.',
            hint = 'Run pgonce region join again; until then send requests to another region.';
    end if;
    select h.* into v_rule from pgonce._home_of(p_tenant, p_scope, p_key) h;
    if v_rule.home = v_self.id then
        return true;
    end if;
    select r.* into v_home from pgonce.region r where r.id = v_rule.home;
    if v_rule.mode = 'local' and (v_rule.max_lag is null
       or v_home.last_beat_at > pgonce.now() - v_rule.max_lag) then
        return true;
    end if;
    raise exception 'the home of this intent is region "%"', v_home.name using errcode = 'P4110',
        detail = json_build_object('home', v_home.name, 'address', v_home.address, 'forward', v_rule.mode <> 'read_only'),
        hint = case v_rule.mode when 'local' then 'This region lags behind it: send the request there.'
                    else 'Send the request there.' end;
end
$$;
