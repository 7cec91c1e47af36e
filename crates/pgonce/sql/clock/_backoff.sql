-- pgonce._backoff(p_first, p_longest, p_times): the pause after so many failures in a row: p_first, doubled with each, up to
--          p_longest, with jitter.
-- answers  half of it to all of it; at most a hundred years, so that the time after it can be stored
-- note     computed in seconds: an interval that is doubled often runs out of its range, and the error would keep the failure
--          from being recorded, for ever
create or replace function pgonce._backoff(p_first interval, p_longest interval, p_times integer)
returns interval
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    return least(extract(epoch from p_first)::double precision * power(2::double precision, least(greatest(p_times, 1), 41) - 1),
        extract(epoch from p_longest)::double precision, 3155760000::double precision)
        * (0.5::double precision + random() / 2::double precision) * interval '1 second';
end
$$;
