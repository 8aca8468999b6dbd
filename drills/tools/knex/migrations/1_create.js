exports.up = async (knex) => {
  await knex.schema.createTable("users", (table) => {
    table.increments("id");
    table.string("email", 80).notNullable().unique();
    table.float("score").defaultTo(1.5);
    table.timestamps(true, true);
  });
  await knex.schema.createTable("posts", (table) => {
    table.uuid("id").primary().defaultTo(knex.raw("gen_random_uuid()"));
    table.integer("user_id").references("users.id").onDelete("CASCADE");
    table.jsonb("body");
  });
  await knex.raw(`alter publication ?? add table users, posts`, [process.env.PUBLICATION]);
  await knex("users").insert(Array.from({ length: 50 }, (_, n) => ({ email: `u${n}@example.org` })));
  await knex.raw(`insert into posts(user_id, body) select id, jsonb_build_object('n', id) from users where id % 3 = 0`);
};
exports.down = async () => {};
