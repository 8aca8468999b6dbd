
DECLARE
    seen text := pg_current_snapshot()::text;
    shown oid[] := ARRAY(SELECT c.oid FROM pg_class c WHERE c.relkind IN ('r', 'p') AND c.relpersistence <> 't');
BEGIN
    -- Functions in FROM are inlined, and planned once a session.
    shown := ARRAY(SELECT p.oid FROM rindle._published(shown, '{}') AS p(oid));
    RETURN rindle._facts(tag, shown, seen)
        || rindle._all_publications() || '{"full": true}';
END
