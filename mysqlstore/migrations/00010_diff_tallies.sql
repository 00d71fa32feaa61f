-- +goose Up
-- Counts of the comparison, one row an hour, router run and count; a router overwrites its own rows only.
CREATE TABLE IF NOT EXISTS diff_tallies (
  pod    VARBINARY(255) NOT NULL,
  hour   DATETIME       NOT NULL,
  router VARBINARY(64)  NOT NULL,
  op     VARCHAR(16)    NOT NULL,
  kind   VARCHAR(16)    NOT NULL,
  name   VARCHAR(32)    NOT NULL,
  n      BIGINT         NOT NULL,
  PRIMARY KEY (pod, hour, router, op, kind, name)
);

-- +goose Down
DROP TABLE IF EXISTS diff_tallies;
