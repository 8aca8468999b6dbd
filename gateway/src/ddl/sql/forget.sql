
-- The gateway's own: rows that every slot is past. The newest stay for a day, for a gateway that starts again reads the
-- last transactions once more.
DECLARE
    gone int8;
BEGIN
    DELETE FROM rindle.published_schema p
    WHERE p.id <= through AND p.made_at < now() - interval '1 day';
    GET DIAGNOSTICS gone = ROW_COUNT;
    RETURN gone;
END
