-- pgonce._delete_events(p_queue): on Citus, removes every event of a subscription's queue, delivered or not.
-- writes   on every server; it reads every shard
create or replace function pgonce._delete_events(p_queue text)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue text collate "C" := p_queue;
begin
    -- Rows of all servers, after some of a table that each has.
    perform set_config('citus.multi_shard_modify_mode', 'sequential', true);
    delete from pgonce.job j using pgonce.job_live l where l.tenant = j.tenant and l.id = j.id and l.queue = v_queue;
    delete from pgonce.job_live l where l.queue = v_queue;
    delete from pgonce.job j using pgonce.job_end e where e.tenant = j.tenant and e.id = j.id and e.queue = v_queue;
    delete from pgonce.job_end e where e.queue = v_queue;
    delete from pgonce.job_bucket b where b.queue = v_queue;
    delete from pgonce.job_recheck r where r.queue = v_queue;
end
$$;
