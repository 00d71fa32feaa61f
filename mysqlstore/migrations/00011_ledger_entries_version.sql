-- version: which change of the bucket's on_hand this entry is, as inventory_ledger counted it. 0 in entries that are
-- older than this column. MySQL has no ADD COLUMN IF NOT EXISTS, so the schema is asked first.
-- +goose NO TRANSACTION
-- +goose Up
SET @ddl = (SELECT IF(COUNT(*) = 0, 'ALTER TABLE ledger_entries ADD COLUMN version BIGINT NOT NULL DEFAULT 0', 'DO 0')
FROM information_schema.columns
WHERE table_schema = DATABASE() AND table_name = 'ledger_entries' AND column_name = 'version');
PREPARE ddl FROM @ddl;
EXECUTE ddl;
DEALLOCATE PREPARE ddl;

-- +goose Down
ALTER TABLE ledger_entries DROP COLUMN version;
