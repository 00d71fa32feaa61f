-- The pod's epoch and stage as MySQL holds them. Every write reads its row FOR SHARE first.
-- +goose NO TRANSACTION
-- +goose Up
CREATE TABLE IF NOT EXISTS pod_fence (
  pod         VARBINARY(255)  NOT NULL,
  epoch       BIGINT UNSIGNED NOT NULL,
  stage       VARBINARY(16)   NOT NULL,
  marks       BIGINT          NOT NULL DEFAULT 0,
  frozen      BOOLEAN         NOT NULL DEFAULT FALSE,
  updated_at  DATETIME(6)     NOT NULL,
  PRIMARY KEY (pod)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

-- +goose Down
DROP TABLE IF EXISTS pod_fence;
