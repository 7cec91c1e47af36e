-- pgonce._kept_since(p_consumer, p_tenant): markers of this consumer that are older may go.
-- answers  -infinity where they are kept for ever, or were once promised to be
-- note     times of more than 5000 years are no dates any more, and the error would stop the purge for everybody
create or replace function pgonce._kept_since(p_consumer text, p_tenant text)
returns timestamptz
language sql volatile
begin atomic
    select case when c.keep is null or c.kept_before_until = 'infinity' then '-infinity'
                when c.kept_before_until > pgonce.now() then pgonce.now() - least(greatest(c.keep, c.kept_before), interval '5000 years')
                else pgonce.now() - least(c.keep, interval '5000 years') end
      from pgonce._inbox_rules(p_consumer, p_tenant) c;
end;
