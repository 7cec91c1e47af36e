-- pgonce._ledger_seq_at(p_account, p_at): the last entry of an account's shard before a time.
-- answers  its position; 0 where there is none
-- note     positions have no gaps and times never go back, so a search by halves finds it without an index of
--          its own
create or replace function pgonce._ledger_seq_at(p_account pgonce.ledger_account, p_at timestamptz)
returns bigint
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    -- Not in the collation of a column: Citus would take it for another tenant.
    v_tenant  text collate "default" := (p_account).tenant;
    v_account text collate "C" := (p_account).account;
    v_shard   smallint := (p_account).shard;
    v_low     bigint := 0;
    v_high    bigint := (p_account).entries;
    v_half    bigint;
begin
    while v_low < v_high loop
        v_half := (v_low + v_high + 1) / 2;
        if exists (select from pgonce.ledger_entry e
                    where e.tenant = v_tenant and e.account = v_account and e.shard = v_shard
                      and e.seq = v_half and e.posted_at < p_at)
        then
            v_low := v_half;
        else
            v_high := v_half - 1;
        end if;
    end loop;
    return v_low;
end
$$;
