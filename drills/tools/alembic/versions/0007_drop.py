from alembic import op

revision, down_revision = "0007", "0006"


def upgrade():
    op.drop_column("customer", "remark")
    op.drop_index("customer_name", "customer")
    op.drop_constraint("customer_token", "customer", type_="unique")
    op.execute("INSERT INTO visit VALUES (1000, 1, NULL)")
    op.drop_table("visit")
    op.execute("INSERT INTO customer(name) VALUES ('last')")
