-- pgonce._raise_lane_fenced(p_subscription, p_lane, p_epoch): says that a relay does not hold a lane.
-- raises   P4012, always
create or replace function pgonce._raise_lane_fenced(p_subscription text, p_lane integer, p_epoch bigint)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception 'epoch % does not hold lane % of subscription "%"', coalesce(p_epoch::text, 'null'), p_lane, p_subscription
        using errcode = 'P4012',
        detail = coalesce((select format('Now epoch %s, owner %s.', c.epoch, coalesce(c.owner, 'none'))
            from pgonce.outbox_cursor c where c.subscription = p_subscription collate "C" and c.lane = p_lane), 'There is no such lane.'),
        hint = 'Stop delivering, and claim lanes again.';
end
$$;
