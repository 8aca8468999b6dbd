import os

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0001", None


def upgrade():
    account = op.create_table(
        "account",
        sa.Column("id", sa.Integer, sa.Identity(), primary_key=True),
        sa.Column("name", sa.String(40), nullable=False),
        sa.Column("note", sa.Text),
        sa.Column("balance", sa.Numeric(10, 2), server_default="0", nullable=False),
    )
    op.create_table(
        "visit",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("account_id", sa.Integer, sa.ForeignKey("account.id"), index=True),
        sa.Column("seen", sa.JSON),
    )
    op.execute('ALTER PUBLICATION "{PUBLICATION}" ADD TABLE account, visit'.format(**os.environ))
    op.bulk_insert(account, [{"name": f"account {n}", "note": "first"} for n in range(50)])
    op.execute("INSERT INTO visit SELECT id, id, '{\"page\": 1}' FROM account WHERE id % 2 = 0")
