// Runs the next migration.
const { PGPORT, PGDATABASE } = process.env;
const knex = require("knex")({
  client: "pg",
  connection: { host: "127.0.0.1", port: Number(PGPORT), user: "postgres", database: PGDATABASE },
  pool: { min: 0, max: 1 },
  migrations: { directory: `${__dirname}/migrations` },
});
knex.migrate
  .up()
  .then(([, done]) => console.log(done.join(" ")))
  .catch((error) => {
    console.error(`ERROR: ${error.message}`);
    process.exitCode = 1;
  })
  .finally(() => knex.destroy());
