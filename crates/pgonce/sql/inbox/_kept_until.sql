-- pgonce._kept_until(p_consumer, p_tenant, p_accepted_at): until when a marker of this consumer is kept, as the contract is now.
-- answers  infinity where it is for ever; never null
-- note     when to look again: whether it may go is for pgonce._kept_since. One from the future counts as accepted now
create or replace function pgonce._kept_until(p_consumer text, p_tenant text, p_accepted_at timestamptz)
returns timestamptz
language sql volatile
begin atomic
    select case when c.keep is null or c.kept_before_until = 'infinity' then 'infinity'
                when c.kept_before_until > pgonce.now()
                then least(a.at + greatest(k.keep, least(c.kept_before, interval '5000 years')), greatest(c.kept_before_until, a.at + k.keep))
                else a.at + k.keep end
      from pgonce._inbox_rules(p_consumer, p_tenant) c
     cross join lateral (select least(c.keep, interval '5000 years') as keep) k
     cross join lateral (select least(p_accepted_at, pgonce.now()) as at) a;
end;
