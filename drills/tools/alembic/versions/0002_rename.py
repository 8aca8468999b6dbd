from alembic import op

revision, down_revision = "0002", "0001"


def upgrade():
    op.execute("UPDATE account SET note = 'second' WHERE id = 2")
    op.alter_column("account", "note", new_column_name="remark")
    op.rename_table("account", "customer")
    op.execute("INSERT INTO customer(name, remark) VALUES ('renamed', 'third')")
