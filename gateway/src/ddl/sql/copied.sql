
-- The gateway's own: a backfill is complete. Its transaction is the position at which followers show it.
DECLARE
    made int8 := rindle._append(jsonb_build_object('v', 1, 'copied', document));
BEGIN
    IF made IS NULL THEN
        RAISE EXCEPTION 'this database is a copy of one that was prepared'
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Run rindle pg prepare.';
    END IF;
    RETURN made;
END
