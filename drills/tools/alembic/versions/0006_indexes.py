from alembic import op

revision, down_revision = "0006", "0005"


def upgrade():
    with op.get_context().autocommit_block():
        op.create_index("customer_name", "customer", ["name", "kind"], postgresql_concurrently=True)
    op.create_unique_constraint("customer_token", "customer", ["token"])
    op.create_check_constraint("customer_balance", "customer", "balance >= 0")
    op.execute("DELETE FROM customer WHERE name = 'renamed'")
