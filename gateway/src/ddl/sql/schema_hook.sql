
-- Announces by hand: what is published now, whole.
DECLARE
    caller name := CASE current_setting('role') WHEN 'none' THEN session_user ELSE current_setting('role') END;
    made int8;
BEGIN
    -- Each announcement is a row that stays: whoever changes no schema has no use for one.
    IF NOT (has_database_privilege(caller, current_database(), 'CREATE')
        OR EXISTS (SELECT FROM pg_publication p WHERE pg_has_role(caller, p.pubowner, 'USAGE'))
        OR EXISTS (SELECT FROM pg_class c WHERE c.relkind IN ('r', 'p') AND c.oid >= 16384
            AND pg_has_role(caller, c.relowner, 'USAGE'))) THEN
        RAISE EXCEPTION 'role % may not announce schema changes', quote_ident(caller)
            USING ERRCODE = 'insufficient_privilege',
            HINT = 'Call it as the owner of a table or of a publication, or with the right to CREATE in the database.';
    END IF;
    IF publication IS NOT NULL AND NOT EXISTS (SELECT FROM pg_publication p WHERE p.pubname = publication) THEN
        RAISE EXCEPTION 'publication % does not exist', quote_ident(publication)
            USING ERRCODE = 'undefined_object', HINT = 'SELECT pubname FROM pg_publication';
    END IF;
    IF current_setting('wal_level') = 'logical' THEN
        made := rindle._append(rindle._everything('SCHEMA HOOK'));
    END IF;
    IF made IS NULL THEN
        RAISE NOTICE 'nothing was announced: no gateway follows this database'
            USING HINT = 'It is a copy of one that was prepared, or wal_level is not logical. Run rindle pg prepare.';
    END IF;
    RETURN made;
END
