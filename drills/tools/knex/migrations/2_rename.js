exports.up = async (knex) => {
  await knex.schema.alterTable("users", (table) => table.renameColumn("email", "address"));
  await knex.schema.renameTable("posts", "articles");
  await knex("articles").where({ user_id: 3 }).update({ body: { n: "renamed" } });
};
exports.down = async () => {};
