package conntag_test

import (
	"database/sql"
	"database/sql/driver"
	"testing"

	"github.com/twinhold/twinhold/internal/conntag"
)

// optional are the interfaces that database/sql looks for in what a driver gives it. driver.Execer and Queryer are
// left out: it asks for them only where the ones with a context are missing.
func optional(v any) map[string]bool {
	has := map[string]bool{}
	_, has["ConnBeginTx"] = v.(driver.ConnBeginTx)
	_, has["ConnPrepareContext"] = v.(driver.ConnPrepareContext)
	_, has["ExecerContext"] = v.(driver.ExecerContext)
	_, has["QueryerContext"] = v.(driver.QueryerContext)
	_, has["NamedValueChecker"] = v.(driver.NamedValueChecker)
	_, has["SessionResetter"] = v.(driver.SessionResetter)
	_, has["Validator"] = v.(driver.Validator)
	_, has["Pinger"] = v.(driver.Pinger)
	_, has["StmtExecContext"] = v.(driver.StmtExecContext)
	_, has["StmtQueryContext"] = v.(driver.StmtQueryContext)
	_, has["ColumnConverter"] = v.(interface {
		ColumnConverter(idx int) driver.ValueConverter
	})
	_, has["RowsNextResultSet"] = v.(driver.RowsNextResultSet)
	_, has["RowsColumnTypeScanType"] = v.(driver.RowsColumnTypeScanType)
	_, has["RowsColumnTypeDatabaseTypeName"] = v.(driver.RowsColumnTypeDatabaseTypeName)
	_, has["RowsColumnTypeLength"] = v.(driver.RowsColumnTypeLength)
	_, has["RowsColumnTypeNullable"] = v.(driver.RowsColumnTypeNullable)
	_, has["RowsColumnTypePrecisionScale"] = v.(driver.RowsColumnTypePrecisionScale)
	return has
}

// things are one of each that a driver gives: a connection, a statement and two kinds of rows.
func things(t *testing.T, c driver.Connector) map[string]any {
	t.Helper()
	db := sql.OpenDB(c)
	t.Cleanup(func() { _ = db.Close() })
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	all := map[string]any{}
	err = conn.Raw(func(raw any) error {
		all["conn"] = raw
		text, err := raw.(driver.QueryerContext).QueryContext(t.Context(), "/* conn_tag:x */ SELECT 1", nil)
		if err != nil {
			return err
		}
		all["text rows"] = text
		if err := text.Close(); err != nil {
			return err
		}
		st, err := raw.(driver.ConnPrepareContext).PrepareContext(t.Context(), "/* conn_tag:x */ SELECT 1")
		if err != nil {
			return err
		}
		all["stmt"] = st
		binary, err := st.(driver.StmtQueryContext).QueryContext(t.Context(), nil)
		if err != nil {
			return err
		}
		all["binary rows"] = binary
		return binary.Close()
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestNoInterfaceOfTheDriverIsLost(t *testing.T) {
	t.Parallel()
	meter, err := conntag.New(conntag.Options{})
	if err != nil {
		t.Fatal(err)
	}
	c := connectorTo(t)
	bare, wrapped := things(t, c), things(t, meter.Wrap(c))
	seen := 0
	for name, thing := range bare {
		ours := optional(wrapped[name])
		for iface, has := range optional(thing) {
			if has {
				seen++
			}
			if has != ours[iface] {
				t.Errorf("%s, driver.%s: the driver has it %t, the wrapped one %t", name, iface, has, ours[iface])
			}
		}
	}
	const conn, stmt, rows = 8 + 0, 4, 5
	if want := conn + stmt + 2*rows; seen != want {
		t.Errorf("%d interfaces were compared, want %d: has the driver changed?", seen, want)
	}
	if meter.Wrap(c).Driver() != c.Driver() {
		t.Error("another driver")
	}
}
