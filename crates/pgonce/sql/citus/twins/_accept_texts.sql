-- pgonce._accept_texts(p_consumer, p_source, p_message_ids, p_hashes, p_tenant): pgonce.accept_batch on Citus, for drivers that
--          pass arrays as texts: Citus delegates no call with a cast to an array.
-- answers  as pgonce.accept_batch
-- raises   as pgonce.accept_batch
create or replace function pgonce._accept_texts(p_consumer text, p_source text, p_message_ids text, p_hashes text, p_tenant text)
returns setof text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
    return query select a from pgonce.accept_batch(p_consumer, p_source, p_message_ids::text[], p_hashes::bytea[], p_tenant) a;
end
$$;
