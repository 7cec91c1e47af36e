-- pgonce.import_result(p_job, p_number, p_row, p_tenant): what became of one row of an import.
-- answers  one row. status: applied, skipped, failed, or pending where it was not reached yet; the first 8 bytes of
--          the row's SHA-256 as hex; for a row that needs attention its line, key, field, code and reason
-- locks    nothing
-- writes   nothing
-- raises   nothing
-- note     rows count from 1, without the header
-- example  select * from pgonce.import_result('customers', 1, 17);
create or replace function pgonce.import_result(p_job text, p_number integer, p_row bigint, p_tenant text default '')
returns table (status text, hash text, line bigint, key text, field text, code text, reason text)
language sql stable security definer set search_path = pg_catalog, pg_temp
begin atomic
    select case when c.first_row is null then 'pending' when p_row <@ c.failed then 'failed'
               when p_row <@ c.skipped then 'skipped' else 'applied' end,
           encode(substr(c.hashes, (p_row - c.first_row)::integer * 8 + 1, 8), 'hex'), r.line, r.key, r.field, r.code, r.reason
      from pgonce.import i
      left join lateral (select * from pgonce.import_chunk c where c.tenant = i.tenant and c.job = i.job and c.number = i.number
             and c.first_row <= p_row order by c.first_row desc limit 1) c on p_row between c.first_row and c.last_row
      left join pgonce.import_row r on r.tenant = i.tenant and r.job = i.job and r.number = i.number and r.row = p_row
     where i.tenant = p_tenant collate "C" and i.job = p_job collate "C" and i.number = p_number;
end;
