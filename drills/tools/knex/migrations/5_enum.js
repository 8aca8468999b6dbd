exports.up = async (knex) => {
  await knex.schema.alterTable("users", (table) => {
    table.enu("role", ["reader", "writer"], { useNative: true, enumName: "user_role" }).defaultTo("reader");
    table.enu("checked", ["yes", "no"]).defaultTo("no");
  });
  await knex("users").where("id", "<", 10).update({ role: "writer" });
  await knex.raw(`alter type user_role rename value 'writer' to 'author'`);
};
exports.down = async () => {};
