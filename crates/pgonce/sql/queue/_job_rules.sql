-- pgonce._job_rules(p_queue): what a queue allows: its own row, else that of '*'.
create or replace function pgonce._job_rules(p_queue text)
returns pgonce.job_queue
-- PL/pgSQL keeps the plan; as a SQL function it would be planned with each call.
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_rules pgonce.job_queue;
begin
    select q.* into v_rules from pgonce.job_queue q
     where q.tenant = '' and (q.queue = p_queue collate "C" or q.queue = '*')
     order by q.queue = p_queue collate "C" desc limit 1;
    return v_rules;
end
$$;
