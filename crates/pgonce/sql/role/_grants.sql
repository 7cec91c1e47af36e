-- pgonce._grants(): what each part of pgonce's work may touch.
-- answers  part: app, relay, consumer, operator, viewer, 'every' one of them, or the 'owner' alone; privilege; object, as a
--          grant names it; the columns where it is not all of them
-- note     a function that is not named under a part is the owner's: functions with the owner's rights call it. A test
--          fails for an object that is not named here
create or replace function pgonce._grants()
returns table (part text, privilege text, object text, columns text)
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
    return query
        select g.part, g.privilege, 'pgonce.' || n.name, g.columns
          from (values
            -- Inlined statements and PL/pgSQL that run with the application's rights; row level security says on which rows.
            ('app', 'select, insert', null, 'intent'),
            ('app', 'select', null, 'scope'),
            ('app', 'select, insert', null, 'outbox'),
            ('app', 'insert', null, 'inbox_marker'),
            ('consumer', 'select, insert', null, 'outbox'),
            ('consumer', 'insert', null, 'inbox_marker'),
            ('relay', 'select', null, 'outbox_backlog outbox_subscriptions outbox_lanes outbox_log outbox_wal_listeners'),
            ('consumer', 'select', null, 'inbox_backlog projections queues'),
            ('operator', 'select', null, 'intent attempt operator_act scope installation suppressed sample sweep role_grant tenant_binding
                outbox outbox_default outbox_partition outbox_watermark outbox_state outbox_subscription outbox_cursor
                outbox_relay parked outbox_skipped inbox_contract inbox_marker inbox_cursor inbox_message projection
                ledger_account ledger_group ledger_entry ledger_pending ledger_accounts ledger_groups
                transition_rule transition_entity transition_command transition_timer timelines
                job job_live job_end job_queue job_bucket job_schedule job_recheck jobs job_groups queues
                import import_chunk import_row import_key imports external_reference
                external_provider external_call external_event external_calls
                region region_rule region_fact region_pending region_task regions double_commits
                stuck most_retried suppression outbox_backlog outbox_subscriptions outbox_lanes outbox_log outbox_wal_listeners
                outbox_events dead_letters inbox_backlog inbox_poison projections'),
            -- Rebuilding a projection runs the user's functions, so it runs with the operator's rights.
            ('operator', 'insert', null, 'inbox_marker'),
            ('operator', 'update', 'rebuilt_at, rebuilt_rows', 'projection'),
            ('operator', 'select, insert, update, delete', null, 'projection_gate projection_build projection_build_gate'),
            -- Nothing with an answer, a payload or headers.
            ('viewer', 'select', null, 'scope stuck most_retried suppression outbox_backlog outbox_subscriptions outbox_lanes
                outbox_log outbox_wal_listeners inbox_backlog projections queues job_groups regions'),
            ('viewer', 'select', 'tenant, id, queue, group_name, priority, status, attempts, owner, failure_code, failure_message,
                created_at, due_at, ended_at', 'jobs'),
            ('viewer', 'select', 'subscription, tenant, topic, type, subject, seq, message_id, attempts, reason, parked_at,
                created_at, behind', 'dead_letters'),
            ('viewer', 'select', 'consumer, tenant, seq, source, message_id, key, type, attempts, failure_code,
                failure_message, received_at, size, behind', 'inbox_poison'),
            ('viewer', 'select', 'tenant, effect_key, provider, scope, step, status, reference, sends, looks, decides, failure_code,
                failure_message, decided_by, disputed, requested_at, sent_at, next_look_at, deadline_at, decided_at', 'external_calls'),
            ('owner', 'select, insert, delete', null, 'open_claim'),
            ('owner', 'select, update', null, 'job_running'),
            ('every', 'select', null, 'migration routines')
          ) as g (part, privilege, columns, names)
         cross join regexp_split_to_table(g.names, '[[:space:]]+') as n (name);
    return query
        select g.part, g.privilege, 'sequence pgonce.' || n.name, null::text
          from (values
            ('app', 'usage', 'outbox_seq'),
            ('consumer', 'usage', 'outbox_seq'),
            ('operator', 'select', 'outbox_seq lease_number inbox_seq job_seq region_seq'),
            -- For the view outbox_log.
            ('relay', 'select', 'outbox_seq'),
            ('viewer', 'select', 'outbox_seq'),
            ('owner', 'usage', 'operator_act_number_seq transition_seq')
          ) as g (part, privilege, names)
         cross join regexp_split_to_table(g.names, '[[:space:]]+') as n (name);
    return query
        select g.part, 'execute', 'function pgonce.' || n.name, null::text
          from (values
            -- They touch no table.
            ('every', 'now _fixed_length _lock_id lock try_lock fingerprint _canonical_json _canonical_number _utf16_order
                _names_fit _check_names _is_lease _is_first _intent_name _is_marked _is_open_attempt _open_attempt _assert_same_transaction
                _raise_transaction_ended _force_durable_commit _is_one_node _assert_one_node _remote_tables _busy _retention_for
                _lane_of _is_header_name _json_size _check_event _event_size _derived_message_id _is_wanted _is_unread _glob_patterns _tenant_is_allowed
                _session_tenant _own_tenant _check_tenant insert_or_fetch _insert_or_fetch_sql _existing_row _note_existing _raise_row_not_found
                update_once _row_has _raise_nothing_to_set resource_id _sha1 _readable
                _day_of _message_fits _raise_message_fenced _raise_message_id_reused _version_of _projection_lock
                _external_status _figures'),
            ('app', 'claim _claim_fast _claim_full _lease_fresh _claim_optimistic claim_first _raise_busy _raise_long_answer _raise_no_row _scope_is_allowed _is_unguarded
                _guarded_scopes _guard_claim _raise_bad_names
                _success_row _success_row_with_retention succeed _succeed_lease _succeed_full fail heartbeat guard release wait
                answer_of _replay_of _replay_state _contract _contract_of _answer_to_keep _simple_retention _count_suppressed
                publish _event_row accept _accept_full accept_batch _insert_markers store_message'),
            ('consumer', 'publish _event_row accept _accept_full accept_batch _insert_markers store_message claim_messages _claim_messages
                finish_messages fail_message release_messages _renew_messages _blocked_keys _insert_new_markers _assert_same_batch _raise_batch_ended
                _lease_partition _renew_partition _advance_partition _release_partition advance_projection project
                _require_projection _create_inbox_partitions _drop_inbox_partitions _purge_inbox
                claim_events settle_events release_events'),
            ('app', 'ledger_open ledger_close ledger_post ledger_settle ledger_reverse ledger_balance ledger_statement ledger_verify'),
            ('consumer', 'ledger_open ledger_post ledger_settle ledger_reverse ledger_balance ledger_statement'),
            ('operator', 'ledger_open ledger_close ledger_balance ledger_statement ledger_verify ledger_repair'),
            ('app', 'transition _transition _check_guard set_timer fire_timers _due_timers _postpone_timer'),
            ('app', 'refer'),
            ('consumer', 'refer'),
            ('app', '_import_begin _import_hold _import_record _import_keys _import_target import_cancel import_result'),
            ('operator', '_import_begin _import_hold _import_record _import_keys _import_target import_cancel import_result'),
            ('operator', 'define_transition'),
            -- pgonce._scope_is_allowed calls it in a region, with the application's rights.
            ('app', '_check_region region_of'),
            ('viewer', '_region_is_current _unread_above'),
            ('operator', 'define_region_rule region_of resolve_double_commit _beat_region _merge_pending _purge_facts _region_is_current
                _end_moved_leases _apply_region_rule _holders_of_intents _writers_of_intents'),
            ('app', 'enqueue cancel_job _job _job_group'),
            ('consumer', 'enqueue claim_jobs finish_jobs fail_job renew_jobs _purge_jobs _peek_jobs _job _job_group'),
            ('operator', 'enqueue cancel_job retry_jobs define_queue define_schedule _purge_jobs _job _job_group'),
            ('app', 'external_send external_record external_observe external_due'),
            ('consumer', 'external_observe external_due'),
            ('operator', 'define_provider external_settle external_observe _external_risk _external_rules'),
            ('relay', '_claim_lanes _claim_lanes_of _poll_outbox _has_new_events _read_lanes _due_parked _settle_lane _advance_lanes _release_lanes
                outbox_caught_up _unread_above _create_outbox_partitions _drop_outbox_partitions'),
            ('operator', 'define_scope drop_scope _contract _contract_of purge intervene _act_risk _take_stale _decide_stale _probe_name find _verdict _history
                create_subscription alter_subscription drop_subscription evict_subscription redrive skip replay replay_range
                recover event_status outbox_caught_up _unread_above set_outbox_retention _create_outbox_partitions _drop_outbox_partitions
                define_inbox retry_messages skip_message replay_messages set_partition
                _create_inbox_partitions _drop_inbox_partitions _purge_inbox
                define_projection _define_projection _require_projection _require_build _begin_build _drop_build _step_build
                _build_event _end_rebuild _end_verify _projection_page _projection_rest _projection_has _projection_columns
                _projection_match'),
            -- What changes pgonce itself for everyone, and what only functions with the owner's rights call.
            ('owner', 'grant_to revoke_from _apply_grants _grants isolate_tenants bind_tenant _refuse_bound _bound_as _is_granted set_strict
                _set_clock _move_clock _reset_clock _backoff _set_wal_publication
                _begin_epoch _installation_epoch _first_fence _lease_number _lease_fence _next_fence _timeline
                _guard_scopes _assert_claim_settled _owner_or_session _fence_is_current _raise_not_holder _check_transition _record_attempt _forget_attempts _forget_replays _projection_gone
                _database_life _like_patterns _require_subscription _outbox_floor _record_watermark _rebase_outbox _leased_lanes
                _current_ids _snapshot_is_foreign _id_is_foreign _outbox_misfit _advance_outbox_seq
                _raise_lane_fenced _ended_between _others_snapshot _is_in_window _lane_window _outbox_is_settled _record_skip _unpark _wake_subject
                _inbox_rules _kept_since _kept_until _mark_batch_full _raise_cursor_fenced _is_after _is_at _retry_delay _audit_inbox
                _raise_bad_version _append_only _lock_tries _ledger_amount _ledger_assert_balanced _ledger_balance_at _ledger_broken _ledger_digest
                _ledger_genesis _ledger_hash _ledger_heads _ledger_lines _ledger_move _ledger_record _ledger_seq_at
                _audit_act _audit_rules _job_rules _job_key_lock _unblock_key _free_key _key_is_busy _audit_job _end_job _cron_field _cron_next
                _fire_schedules _wake_jobs _queue_room _claim_queue
                _effect_key _external_gate _external_health _external_step _external_decide _external_join
                _external_lock _external_settle_command _end_calls _purge_external _sample
                region_join region_leave _add_region _connect_region _activate_region _record_old_facts _land_facts _land_fact _record_fact
                _merge_intent _verdict_of _home_of _region_slot _set_claim_switch')
          ) as g (part, names)
         cross join regexp_split_to_table(g.names, '[[:space:]]+') as n (name);
end
$$;
revoke execute on function pgonce._grants() from public;
