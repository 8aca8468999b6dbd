exports.up = async (knex) => {
  await knex.schema.alterTable("users", (table) => {
    table.boolean("active").notNullable().defaultTo(true);
    table.specificType("tags", "text[]").defaultTo("{new}");
    table.uuid("token").defaultTo(knex.raw("gen_random_uuid()"));
    table.bigIncrements("serial", { primaryKey: false });
  });
  await knex("users").where({ id: 4 }).update({ active: false });
  await knex("users").insert({ address: "later@example.org" });
};
exports.down = async () => {};
