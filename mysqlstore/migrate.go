package mysqlstore

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"

	"github.com/go-sql-driver/mysql"
	"github.com/pressly/goose/v3"
)

//go:embed migrations/*.sql
var migrations embed.FS

const (
	erTableExists  = 1050
	erColumnExists = 1060
	erNoSuchColumn = 1091
	migrateTries   = 5
)

// Migrate creates the schema, or brings an older one up to date. It may be run again at any time, also after a run
// that failed half-way, and by several processes at once: each file holds one DDL statement that does nothing where
// it has been done.
func Migrate(ctx context.Context, dsn string) error {
	db, err := OpenDB(dsn, Options{})
	if err != nil {
		return err
	}
	defer db.Close()
	var last error
	for range migrateTries {
		if last = migrateUp(ctx, db); last == nil {
			return nil
		}
		// Two migrators that start at once may both create goose's own table, or do the same change of one of ours.
		var me *mysql.MySQLError
		if !errors.As(last, &me) || (me.Number != erTableExists && me.Number != erColumnExists && me.Number != erNoSuchColumn) {
			break
		}
	}
	return fmt.Errorf("migrate: %w", last)
}

func migrateUp(ctx context.Context, db *sql.DB) error {
	p, err := provider(db)
	if err != nil {
		return err
	}
	_, err = p.Up(ctx)
	return err
}

func provider(db *sql.DB) (*goose.Provider, error) {
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return nil, err
	}
	return goose.NewProvider(goose.DialectMySQL, db, files)
}
