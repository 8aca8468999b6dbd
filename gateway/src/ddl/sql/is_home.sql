
-- A restored dump or a copied database has these functions too, and no gateway that reads what they would write.
BEGIN
    RETURN {database} = (SELECT d.oid::int8 FROM pg_database d WHERE d.datname = current_database())
        AND {system} = (SELECT s.system_identifier FROM pg_control_system() s);
END
