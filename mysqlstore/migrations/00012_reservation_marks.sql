-- One row per outcome that was answered without Redis, until Redis has it. The reservation's own row says the same
-- (unmirrored), which keeps the purge away. Marks are rows and not a counter, so that those who mark wait for nobody.
-- +goose NO TRANSACTION
-- +goose Up
CREATE TABLE IF NOT EXISTS reservation_marks (
  reservation_id BINARY(16)  NOT NULL,
  created_at     DATETIME(6) NOT NULL,
  PRIMARY KEY (reservation_id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

-- +goose Down
DROP TABLE IF EXISTS reservation_marks;
