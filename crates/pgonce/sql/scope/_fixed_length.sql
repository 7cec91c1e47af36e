-- pgonce._fixed_length(p_interval): an interval without months and years, whose length would depend on the date it
--          is added to.
-- answers  the interval as it is where it has none; else with 30 days for a month, as comparisons count them. At most 5000 years of
--          360 days: a time that is so far away that no timestamp can hold it would fail only when the work is done
create or replace function pgonce._fixed_length(p_interval interval)
returns interval
language sql immutable parallel safe
return case when p_interval > interval '1800000 days' then interval '1800000 days'
    when extract(year from p_interval) = 0 and extract(month from p_interval) = 0 then p_interval
    else justify_hours(make_interval(secs => extract(epoch from p_interval)::double precision)) end;
