
-- The table is copied anew from this transaction on: an operator wants it.
DECLARE
    seen text := pg_current_snapshot()::text;
    made int8;
BEGIN
    IF NOT EXISTS (SELECT FROM rindle._published(ARRAY[relation::oid], '{}')) THEN
        RAISE EXCEPTION 'no publication publishes %', relation
            USING ERRCODE = 'undefined_object', HINT = 'Name a published table: SELECT * FROM pg_publication_tables.';
    END IF;
    made := rindle._append(rindle._facts('RESYNC', rindle._concerned(ARRAY[relation::oid], '{}', '{}', '{}'), seen)
        || jsonb_build_object('resync', jsonb_build_array(relation::oid::int8)));
    IF made IS NULL THEN
        RAISE EXCEPTION 'this database is a copy of one that was prepared'
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Run rindle pg prepare.';
    END IF;
    RETURN made;
END
