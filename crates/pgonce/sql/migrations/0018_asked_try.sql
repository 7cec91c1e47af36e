-- 0018_asked_try: a step says when its last try was sent, so that a look-up by a command says nothing against a later one.
-- breaking: no

alter type pgonce.external_step add attribute sent_at timestamptz;
