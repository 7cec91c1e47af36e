-- pgonce._external_gate(p_provider): may a request be sent to this provider now?
-- answers  null: yes; else the time to wait, since its rate is used up or its circuit is open
-- locks    the provider's row, where it has limits, until the end of the transaction
-- writes   takes one of its rate; lets one request try where the time of an open circuit is over. Where its limits are those of
--          '*', its row is made with the first request
create or replace function pgonce._external_gate(p_provider text)
returns interval
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_rules  pgonce.external_provider := pgonce._external_rules(p_provider);
    v_row    pgonce.external_provider;
    v_now    timestamptz;
    v_tokens double precision;
begin
    if v_rules.rate is null and v_rules.trip_after is null then
        return null;
    end if;
    loop
        select p.* into v_row from pgonce.external_provider p where p.provider = p_provider collate "C" for no key update;
        exit when found;
        insert into pgonce.external_provider (provider, defined_at) values (p_provider, null)
        on conflict on constraint one_row_per_provider do nothing;
    end loop;
    v_now := pgonce.now();
    if v_row.open_until > v_now then
        return v_row.open_until - v_now;
    end if;
    if v_rules.rate is not null then
        v_tokens := least(v_rules.rate, coalesce(v_row.tokens, v_rules.rate) + v_rules.rate
            * (extract(epoch from greatest(v_now - coalesce(v_row.filled_at, v_now), interval '0')) / extract(epoch from v_rules.rate_per))::double precision);
        if v_tokens < 1 then
            return v_rules.rate_per * ((1 - v_tokens) / v_rules.rate);
        end if;
    end if;
    update pgonce.external_provider p
       set tokens = v_tokens - 1, filled_at = greatest(v_row.filled_at, v_now),
           open_until = case when v_row.failures >= v_rules.trip_after then v_now + v_rules.trip_for end
     where p.provider = v_row.provider;
    return null;
end
$$;
