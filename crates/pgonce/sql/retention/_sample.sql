-- pgonce._sample(): records what was counted until this minute, for charts. pgonce.purge calls it.
-- writes   a row of pgonce.sample, one for each minute; removes those of minutes after two days, and of hours after ninety
-- note     intents are counted as PostgreSQL counts inserted rows: those of transactions that were rolled back are among them,
--          and the count begins anew when its statistics are reset
create or replace function pgonce._sample()
returns void
language sql volatile
begin atomic
    insert into pgonce.sample (at, intents, suppressed, events, jobs)
    select date_trunc('minute', pgonce.now()), pg_stat_get_tuples_inserted('pgonce.intent'::regclass),
           (select least(coalesce(sum(s.replays::numeric + s.refusals + s.busy + s.conflicts), 0), 9223372036854775807)::bigint from pgonce.suppressed s),
           coalesce(pg_sequence_last_value('pgonce.outbox_seq'::regclass), 0)
               - coalesce((select w.next_block from pgonce.sweep w where w.tenant = '' and w.name = 'outbox_skipped'), 0),
           coalesce(pg_sequence_last_value('pgonce.job_seq'::regclass), 0)
    on conflict on constraint one_sample_per_minute do nothing;
    delete from pgonce.sample s
     where s.at < pgonce.now() - interval '90 days'
        or s.at < pgonce.now() - interval '2 days' and date_trunc('hour', s.at) <> s.at;
end;
