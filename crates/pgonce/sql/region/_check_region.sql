-- pgonce._check_region(p_tenant, p_scope, p_key, p_writing): may an intent without an answer be worked on in this region?
-- answers  true, or it raises
-- locks    p_writing, in a transaction that is not READ COMMITTED: the row of this region, shared
-- raises   P4110 its home is another region: the detail is JSON with its name, its address and whether to forward; P4111
--          this region has not joined yet, leaves, or was restored or promoted since and may have forgotten what it did; its
--          home is about to move here; or what other regions did with it is not merged yet. 40001 the home may have moved
--          since the snapshot of this transaction
-- note     a claim asks it, and so does the trigger of pgonce.intent when the attempt writes (p_writing): between the two the
--          home may have moved, and the command that moves it waits for those that have written, not for those that will.
--          What has called a provider here goes on here: only this region knows of the call, and who moves its home waits for it. Not
--          where it is from before this region joined: others may have begun it anew
create or replace function pgonce._check_region(p_tenant text, p_scope text, p_key text, p_writing boolean default false)
returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_self pgonce.region;
    v_rule record;
    v_home pgonce.region;
    v_here boolean;
begin
    if p_writing and current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
        perform from pgonce.region r where r.is_self for share;
    end if;
    select r.* into v_self from pgonce.region r where r.is_self;
    v_here := not p_writing and v_self.state in ('active', 'leaving') and exists (
        select from pgonce.intent i join pgonce.external_call c on c.tenant = i.tenant and c.scope = i.scope and c.key = i.key
         where i.tenant = p_tenant collate "C" and i.scope = p_scope collate "C" and i.key = p_key collate "C"
           and i.expires_at is null and i.last_at >= v_self.joined_at and c.status <> 'requested' and c.ended_at is null);
    if v_self.state <> 'active' and not v_here or v_self.epoch <> pgonce._installation_epoch() then
        raise exception 'region "%" %', v_self.name, case v_self.state when 'leaving' then 'is leaving the others'
            when 'active' then 'has not joined the others since it was restored or promoted' else 'has not joined the others' end
            using errcode = 'P4111', detail = 'It may not know what it or others have done.',
            hint = 'Run pgonce region join again; until then send requests to another region.';
    elsif exists (select from pgonce.region_pending p
         where p.tenant = p_tenant collate "C" and p.scope = p_scope collate "C" and p.key = p_key collate "C") then
        raise exception 'what other regions did with this intent is not merged yet' using errcode = 'P4111',
            detail = 'Its record was locked when their facts arrived.',
            hint = 'Try again in a second: pgonce serve merges it.';
    elsif v_here then
        return true;
    end if;
    for v_rule in
        select h.*, n.pending from (values (true), (false)) n (pending), pgonce._home_of(p_tenant, p_scope, p_key, n.pending) h
         where n.pending or exists (select from pgonce.region_rule u where u.pending)
         order by n.pending desc
    loop
        select r.* into v_home from pgonce.region r where r.id = v_rule.home;
        if v_home.is_self or v_rule.mode = 'local' and (p_writing or v_rule.max_lag is null
           or v_home.last_beat_at > pgonce.now() - v_rule.max_lag and not v_home.missed) then
            continue;
        elsif not v_rule.pending then
            raise exception 'the home of this intent moves to this region' using errcode = 'P4111',
                detail = format('Region "%s" may still be at work on it.', v_home.name),
                hint = 'Try again in a second. If it stays so: pgonce region status shows the rule that is pending, pgonce region rule ends it.';
        end if;
        raise exception 'the home of this intent is region "%"', v_home.name using errcode = 'P4110',
            detail = json_build_object('home', v_home.name, 'address', v_home.address, 'forward', v_rule.mode <> 'read_only'),
            hint = case v_rule.mode when 'local' then 'This region lags behind it: send the request there.'
                        else 'Send the request there.' end;
    end loop;
    return true;
end
$$;
