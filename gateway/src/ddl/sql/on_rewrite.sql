
-- The catalog does not show what a rewrite did, so the rewrite itself is told.
DECLARE
    seen text := pg_current_snapshot()::text;
    rewritten oid := pg_event_trigger_table_rewrite_oid();
BEGIN
    IF current_setting('wal_level') <> 'logical' THEN
        RETURN;
    END IF;
    IF EXISTS (SELECT FROM rindle._published(ARRAY[rewritten], ARRAY[rewritten])) THEN
        PERFORM rindle._append(rindle._facts(tg_tag, '{}', seen) || jsonb_build_object('rewritten',
            jsonb_build_array(jsonb_build_array(rewritten::int8, pg_event_trigger_table_rewrite_reason()))));
    END IF;
END
