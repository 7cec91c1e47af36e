-- pgonce.outbox_caught_up on Citus: whether nothing is left that a relay could deliver now. p_with is that of one server, and not used:
--          under a load that does not end it may never be true.
create or replace function pgonce.outbox_caught_up(p_subscription text, p_with pg_snapshot)
returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue text collate "C" := 'outbox/' || (pgonce._require_subscription(p_subscription)).subscription;
    v_now   timestamptz := pgonce.now();
begin
    perform 1 from pgonce.job_live l
      where l.queue = v_queue and (l.state in ('ready', 'running', 'limited') or l.due_at <= v_now) limit 1;
    return not found;
end
$$;
