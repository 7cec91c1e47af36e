-- pgonce._external_health(p_provider, p_answered): counts whether a provider answered, for its circuit breaker.
-- locks    the provider's row, where something changes
-- writes   as many failures in a row as trip_after open the circuit for trip_for; an answer closes it
create or replace function pgonce._external_health(p_provider text, p_answered boolean)
returns void
language sql volatile
begin atomic
    update pgonce.external_provider p
       set failures = case when p_answered then 0 else p.failures + 1 end,
           open_until = case when not p_answered and p.failures + 1 >= r.trip_after then pgonce.now() + r.trip_for end
      from pgonce._external_rules(p_provider) r
     where p.provider = p_provider collate "C" and r.trip_after is not null
       and (not p_answered or p.failures > 0 or p.open_until is not null);
end;
