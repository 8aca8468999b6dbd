exports.config = { transaction: false };
exports.up = async (knex) => {
  await knex.raw("create index concurrently users_role on users(role, address)");
  await knex.schema.alterTable("articles", (table) => table.index(["user_id"]));
  await knex("users").where({ id: 6 }).del();
};
exports.down = async () => {};
