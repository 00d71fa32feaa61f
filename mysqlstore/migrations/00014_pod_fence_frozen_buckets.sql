-- frozen_buckets: the buckets that take no new reservations, [[shop,item,group],...]; NULL where there are none.
-- +goose NO TRANSACTION
-- +goose Up
SET @ddl = (SELECT IF(COUNT(*) = 0, 'ALTER TABLE pod_fence ADD COLUMN frozen_buckets MEDIUMTEXT NULL', 'DO 0')
FROM information_schema.columns
WHERE table_schema = DATABASE() AND table_name = 'pod_fence' AND column_name = 'frozen_buckets');
PREPARE ddl FROM @ddl;
EXECUTE ddl;
DEALLOCATE PREPARE ddl;

-- +goose Down
ALTER TABLE pod_fence DROP COLUMN frozen_buckets;
