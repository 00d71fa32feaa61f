-- The live lines: what is promised and not yet paid, clustered by bucket.
-- +goose NO TRANSACTION
-- +goose Up
CREATE TABLE IF NOT EXISTS reserved_quantities (
  shop_id            BIGINT     NOT NULL,
  inventory_item_id  BIGINT     NOT NULL,
  inventory_group_id BIGINT     NOT NULL,
  reservation_id     BINARY(16) NOT NULL,
  quantity           BIGINT     NOT NULL,
  PRIMARY KEY (shop_id, inventory_item_id, inventory_group_id, reservation_id),
  KEY reserved_quantities_reservation (reservation_id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

-- +goose Down
DROP TABLE IF EXISTS reserved_quantities;
