-- on_hand: what is owned. unpooled: what is on hand, not in the pool and not held; negative means promised twice.
-- version goes up with every change of on_hand.
-- +goose NO TRANSACTION
-- +goose Up
CREATE TABLE IF NOT EXISTS inventory_ledger (
  shop_id            BIGINT NOT NULL,
  inventory_item_id  BIGINT NOT NULL,
  inventory_group_id BIGINT NOT NULL,
  on_hand            BIGINT NOT NULL,
  unpooled           BIGINT NOT NULL,
  version            BIGINT NOT NULL,
  PRIMARY KEY (shop_id, inventory_item_id, inventory_group_id),
  CONSTRAINT inventory_ledger_on_hand CHECK (on_hand >= 0)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

-- +goose Down
DROP TABLE IF EXISTS inventory_ledger;
