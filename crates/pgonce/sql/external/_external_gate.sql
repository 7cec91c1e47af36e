-- pgonce._external_gate(p_provider): may a request be sent to this provider now?
-- answers  null: yes; else the time to wait, since its rate is used up or its circuit is open
-- locks    the provider's row, where it has limits, until the end of the transaction
-- writes   takes one of its rate; lets one request try where the time of an open circuit is over
create or replace function pgonce._external_gate(p_provider text)
returns interval
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_row    pgonce.external_provider;
    v_now    timestamptz;
    v_tokens double precision;
begin
    select p.* into v_row from pgonce.external_provider p
     where p.provider = p_provider collate "C" and (p.rate is not null or p.trip_after is not null)
       for no key update;
    if not found then
        return null;
    end if;
    v_now := pgonce.now();
    if v_row.open_until > v_now then
        return v_row.open_until - v_now;
    end if;
    if v_row.rate is not null then
        v_tokens := least(v_row.rate, coalesce(v_row.tokens, v_row.rate) + v_row.rate
            * (extract(epoch from greatest(v_now - coalesce(v_row.filled_at, v_now), interval '0')) / extract(epoch from v_row.rate_per))::double precision);
        if v_tokens < 1 then
            return v_row.rate_per * ((1 - v_tokens) / v_row.rate);
        end if;
    end if;
    update pgonce.external_provider p
       set tokens = v_tokens - 1, filled_at = case when v_row.rate is not null then greatest(v_row.filled_at, v_now) end,
           open_until = case when v_row.failures >= v_row.trip_after then v_now + v_row.trip_for end
     where p.provider = v_row.provider;
    return null;
end
$$;
