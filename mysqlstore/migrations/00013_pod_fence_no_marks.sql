-- Marks are counted where they are (reservation_marks).
-- +goose NO TRANSACTION
-- +goose Up
SET @ddl = (SELECT IF(COUNT(*) = 1, 'ALTER TABLE pod_fence DROP COLUMN marks', 'DO 0')
FROM information_schema.columns
WHERE table_schema = DATABASE() AND table_name = 'pod_fence' AND column_name = 'marks');
PREPARE ddl FROM @ddl;
EXECUTE ddl;
DEALLOCATE PREPARE ddl;

-- +goose Down
ALTER TABLE pod_fence ADD COLUMN marks BIGINT NOT NULL DEFAULT 0;
