-- The request ledger. cart keeps the lines in every state, so that a record can be rebuilt elsewhere.
-- judged is what MySQL would have answered to a mirrored reserve; NULL where it was not asked.
-- +goose NO TRANSACTION
-- +goose Up
CREATE TABLE IF NOT EXISTS reservations (
  id            BINARY(16)      NOT NULL,
  shop_id       BIGINT          NOT NULL,
  idem_key      VARBINARY(255)  NULL,
  request_hash  BINARY(32)      NOT NULL,
  cart          MEDIUMBLOB      NOT NULL,
  outcome       VARBINARY(16)   NOT NULL,
  shortages     MEDIUMBLOB      NULL,
  state         VARBINARY(16)   NOT NULL,
  decided_by    VARBINARY(16)   NOT NULL,
  epoch         BIGINT UNSIGNED NOT NULL,
  unmirrored    BOOLEAN         NOT NULL DEFAULT FALSE,
  judged        MEDIUMBLOB      NULL,
  late          BOOLEAN         NOT NULL DEFAULT FALSE,
  created_at    DATETIME(6)     NOT NULL,
  expires_at    DATETIME(6)     NOT NULL,
  purge_at      DATETIME(6)     NOT NULL,
  pinned_at     DATETIME(6)     NULL,
  released_at   DATETIME(6)     NULL,
  expired_at    DATETIME(6)     NULL,
  claimed_at    DATETIME(6)     NULL,
  PRIMARY KEY (id),
  UNIQUE KEY reservations_key (shop_id, idem_key),
  KEY reservations_due (state, expires_at),
  KEY reservations_purge (purge_at)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

-- +goose Down
DROP TABLE IF EXISTS reservations;
