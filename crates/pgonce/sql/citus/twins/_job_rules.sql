-- pgonce._job_rules on Citus: as queue/_job_rules.sql, in PL/pgSQL: Citus copies no function to other servers whose body names a
--          table.
create or replace function pgonce._job_rules(p_queue text)
returns pgonce.job_queue
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_rules pgonce.job_queue;
begin
    select q.* into v_rules from pgonce.job_queue q
     where q.tenant = '' and q.queue in ('*', p_queue)
     order by q.queue = p_queue desc limit 1;
    return v_rules;
end
$$;
