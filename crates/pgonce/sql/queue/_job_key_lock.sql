-- pgonce._job_key_lock(p_tenant, p_queue, p_key): the advisory lock that stands between those who put a job behind
--          another of its key (shared) and those who end one (exclusive).
-- answers  one of 256 for each queue: a transaction that enqueues many jobs holds no more
-- note     nobody waits for it. Who cannot have it chooses the way that is right without knowing: a job is left ready,
--          and its claim decides; a key is looked at again later
create or replace function pgonce._job_key_lock(p_tenant text, p_queue text, p_key text)
returns bigint
language sql immutable parallel safe
return pgonce._lock_id('', 'job key', p_queue || chr(31) || (hashtextextended((p_tenant || chr(31) || p_key) collate "C", 0) & 255)::text);
