-- Every change of the fence and its brakes that somebody answers for. Rows are only ever added.
-- raised is the epoch that the change led to, NULL for a brake: one change of epoch is one record.
-- +goose NO TRANSACTION
-- +goose Up
CREATE TABLE IF NOT EXISTS pod_audit (
  id     BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
  pod    VARBINARY(255)  NOT NULL,
  at     DATETIME(6)     NOT NULL,
  action VARBINARY(16)   NOT NULL,
  raised BIGINT UNSIGNED NULL,
  body   JSON            NOT NULL,
  PRIMARY KEY (id),
  UNIQUE KEY pod_audit_raised (pod, raised)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

-- +goose Down
DROP TABLE IF EXISTS pod_audit;
