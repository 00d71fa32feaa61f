-- The pool: one row, and so one record lock, per reservable piece. Ids run from 1 to the pool's size and are reused.
-- +goose NO TRANSACTION
-- +goose Up
CREATE TABLE IF NOT EXISTS reservation_units (
  shop_id            BIGINT NOT NULL,
  inventory_item_id  BIGINT NOT NULL,
  inventory_group_id BIGINT NOT NULL,
  id                 INT    NOT NULL,
  PRIMARY KEY (shop_id, inventory_item_id, inventory_group_id, id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

-- +goose Down
DROP TABLE IF EXISTS reservation_units;
