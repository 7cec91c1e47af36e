-- pgonce._figures(): what waits for somebody, for metrics: calls to providers that are not decided, and intents that are stuck.
-- answers  one row for each count: external_calls by provider and status (sent, unknown, needs_operator, disputed),
--          external_oldest_seconds by provider, stuck by classification. Each counts 10000 rows at most
-- locks    nothing
-- note     with the owner's rights, since it gives nothing but counts
create or replace function pgonce._figures()
returns table (figure text, name text, state text, value double precision)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    return query
    with undecided as materialized (
        select c.provider::text as provider, pgonce._external_status(c) as status, c.first_sent_at
          from pgonce.external_call c where c.status in ('sent', 'unknown') order by c.deadline_at limit 10000)
    select 'external_calls', u.provider, u.status, count(*)::double precision from undecided u group by u.provider, u.status
    union all
    select 'external_oldest_seconds', u.provider, '', extract(epoch from pgonce.now() - min(u.first_sent_at))::double precision
      from undecided u group by u.provider;
    return query
    select 'external_calls', d.provider, 'disputed', count(*)::double precision
      from (select c.provider::text as provider from pgonce.external_call c where c.disputed is not null limit 10000) d
     group by d.provider;
    return query
    select 'stuck', s.classification, '', count(*)::double precision
      from (select i.classification from pgonce.stuck i limit 10000) s group by s.classification;
end
$$;
