package devpods

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/go-sql-driver/mysql"
)

// createSchema makes an empty schema, if it is not there. The name is one of ours, never a caller's.
func createSchema(ctx context.Context, c *mysql.Config, name string) (err error) {
	connector, err := mysql.NewConnector(c)
	if err != nil {
		return fmt.Errorf("MySQL DSN: %w", err)
	}
	db := sql.OpenDB(connector)
	defer func() { err = errors.Join(err, db.Close()) }()
	if _, err := db.ExecContext(ctx, "CREATE DATABASE IF NOT EXISTS /* conn_tag:devpods.schema */ "+name); err != nil {
		return fmt.Errorf("create schema %s: %w", name, err)
	}
	return nil
}

// quote writes a YAML string. "${" becomes "$${", since the configuration takes ${NAME} from the environment.
func quote(s string) string { return strings.ReplaceAll(strconv.Quote(s), "${", "$${") }
