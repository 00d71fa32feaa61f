package mysqlstore

import "context"

// MigrateTo brings a schema to an older version of this program's.
func MigrateTo(ctx context.Context, dsn string, version int64) error {
	db, err := OpenDB(dsn, Options{})
	if err != nil {
		return err
	}
	defer db.Close()
	p, err := provider(db)
	if err == nil {
		_, err = p.UpTo(ctx, version)
	}
	return err
}

// Packets tells whether several statements travel in one packet.
func (s *Store) Packets() bool { return s.packets != nil }
