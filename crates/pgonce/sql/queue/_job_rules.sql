-- pgonce._job_rules(p_queue): what a queue allows: its own row, else that of '*'.
create or replace function pgonce._job_rules(p_queue text)
returns pgonce.job_queue
language sql stable
begin atomic
    select q from pgonce.job_queue q
     where q.tenant = '' and (q.queue = p_queue collate "C" or q.queue = '*')
     order by q.queue = p_queue collate "C" desc limit 1;
end;
