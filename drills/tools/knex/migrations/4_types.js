exports.up = async (knex) => {
  await knex.schema.alterTable("users", (table) => {
    table.text("address").notNullable().alter();
    table.decimal("score", 12, 3).alter();
  });
  await knex("users").insert({ address: "x".repeat(200), score: 3.125 });
};
exports.down = async () => {};
