-- whole: the epoch of the last handover in which MySQL was seen to hold nothing back any more that Redis has ended.
-- +goose NO TRANSACTION
-- +goose Up
SET @ddl = (SELECT IF(COUNT(*) = 0, 'ALTER TABLE pod_fence ADD COLUMN whole BIGINT UNSIGNED NOT NULL DEFAULT 0', 'DO 0')
FROM information_schema.columns
WHERE table_schema = DATABASE() AND table_name = 'pod_fence' AND column_name = 'whole');
PREPARE ddl FROM @ddl;
EXECUTE ddl;
DEALLOCATE PREPARE ddl;

-- +goose Down
ALTER TABLE pod_fence DROP COLUMN whole;
