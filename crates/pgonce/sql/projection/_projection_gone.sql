-- pgonce._projection_gone(p_from_consumer): how much of what projections are made of is gone: the log's events up to this number,
--          or so many of the messages that a consumer had stored. It only grows.
create or replace function pgonce._projection_gone(p_from_consumer text)
returns bigint
language sql stable security definer set search_path = pg_catalog, pg_temp
begin atomic
    select coalesce(greatest(
        (select w.next_block from pgonce.sweep w
          where w.tenant = '' and w.name = case when p_from_consumer is null then 'outbox_gone' else 'inbox_gone/' || p_from_consumer end),
        (select min(o.from_seq) - 1 from pgonce.outbox_partition o where p_from_consumer is null)), 0);
end;
