-- The ledger's journal. ref is the 16 bytes of a claimed reservation's id, or an adjustment's id, or empty.
-- adjustment_id repeats ref for adjustments, so that one id names one adjustment in the whole shop.
-- +goose NO TRANSACTION
-- +goose Up
CREATE TABLE IF NOT EXISTS ledger_entries (
  shop_id            BIGINT         NOT NULL,
  inventory_item_id  BIGINT         NOT NULL,
  inventory_group_id BIGINT         NOT NULL,
  kind               VARBINARY(16)  NOT NULL,
  ref                VARBINARY(255) NOT NULL,
  adjustment_id      VARBINARY(255) NULL,
  delta              BIGINT         NOT NULL,
  forced             BOOLEAN        NOT NULL DEFAULT FALSE,
  created_at         DATETIME(6)    NOT NULL,
  PRIMARY KEY (shop_id, inventory_item_id, inventory_group_id, kind, ref),
  UNIQUE KEY ledger_entries_adjustment (shop_id, adjustment_id),
  KEY ledger_entries_ref (ref)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

-- +goose Down
DROP TABLE IF EXISTS ledger_entries;
