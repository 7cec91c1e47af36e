-- pgonce.refuse_zombie(p_consumer, p_lane, p_epoch): says that a relay does not hold a lane.
-- raises   P4012, always
create or replace function pgonce.refuse_zombie(p_consumer text, p_lane integer, p_epoch bigint)
returns void
language plpgsql volatile set search_path = ''
as $$
begin
    raise exception 'epoch % does not hold lane % of consumer "%"', coalesce(p_epoch::text, 'null'), p_lane, p_consumer
        using errcode = 'P4012',
        detail = coalesce((select format('Now epoch %s, owner %s.', c.epoch, coalesce(c.owner, 'none'))
            from pgonce.outbox_cursor c where c.consumer = p_consumer and c.lane = p_lane), 'There is no such lane.'),
        hint = 'Stop delivering, and claim lanes again.';
end
$$;
