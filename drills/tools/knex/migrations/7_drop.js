exports.up = async (knex) => {
  await knex.schema.alterTable("users", (table) => {
    table.dropColumn("tags");
    table.dropTimestamps();
    table.dropIndex(["role", "address"], "users_role");
  });
  await knex("articles").insert({ user_id: 1, body: { last: true } });
  await knex.schema.dropTable("articles");
};
exports.down = async () => {};
