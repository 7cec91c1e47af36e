-- Found by the program itself, without a query of their own.

-- check: migration-pending
-- severity: critical
-- title: the schema is not that of this program
-- why: Functions and tables do not fit each other's expectations; commands may fail, and checks of this list may not apply.

-- check: clock-drift
-- severity: warning
-- title: this machine's clock and the server's differ
-- why: Only the server's clock decides about leases and expiry, but keys made from the time (UUID version 7), signatures of webhooks and delivery times come from clients.

-- check: pooler-between
-- severity: notice
-- title: something stands between this program and the server
-- why: Behind a pooler in transaction mode, relays and consumers need `behind_pooler`, and following the write-ahead log needs a direct address. A mapped port looks the same, and is harmless.

-- check: not-checked
-- severity: notice
-- title: a check could not be made
-- why: What was not looked at may be wrong. Run doctor as the schema's owner, and see the reason.
