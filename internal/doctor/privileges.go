package doctor

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/twinhold/twinhold/internal/conntag"
	"github.com/twinhold/twinhold/internal/mysqlerr"
	"github.com/twinhold/twinhold/reservation"
)

// serveRights tries every right that a router uses, without using it.
func serveRights(ctx context.Context, db *sql.DB, _ Options) (reservation.Finding, error) {
	const check = "privileges_serve"
	var lacks []string
	for _, m := range serving() {
		switch err := try(ctx, db, m.query); mysqlerr.Of(err) {
		case 0:
		case mysqlerr.Denied:
			lacks = append(lacks, m.right+" on "+m.table)
		case mysqlerr.ReadOnly: // its own finding says so
			return reservation.Finding{Check: check, Severity: reservation.Fine, Found: "not known: the server takes no writes"}, nil
		case mysqlerr.NoTable: // the schema's own finding says so
		default:
			return reservation.Finding{}, fmt.Errorf("doctor: try the account's rights: %w", err)
		}
	}
	if len(lacks) == 0 {
		return reservation.Finding{Check: check, Severity: reservation.Fine, Found: "SELECT, INSERT, UPDATE, DELETE where serve needs them"}, nil
	}
	return reservation.Finding{
		Check: check, Severity: reservation.Failure, Found: "the account lacks " + strings.Join(lacks, "; "),
		Fix: "GRANT SELECT, INSERT, UPDATE, DELETE ON the schema TO the account",
	}, nil
}

func try(ctx context.Context, db *sql.DB, query string) error {
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return err //nolint:wrapcheck // judged by its number
	}
	defer rows.Close()
	return errors.Join(rows.Err(), rows.Close())
}

// forMigrate is what migrate uses beyond what serve does: tables are created, changed, and taken back.
func forMigrate() []string { return []string{"CREATE", "ALTER", "INDEX", "DROP"} }

// migrateRights reads what is granted, since a right to change tables cannot be tried without a change. What comes by a
// role is not listed there.
func migrateRights(ctx context.Context, db *sql.DB, _ Options) (reservation.Finding, error) {
	const check = "privileges_ddl"
	_, role, err := account(ctx, db)
	if err != nil {
		return reservation.Finding{}, err
	}
	have, err := schemaRights(ctx, db)
	if err != nil {
		return reservation.Finding{}, err
	}
	lacks := slices.DeleteFunc(forMigrate(), func(r string) bool { return slices.Contains(have, r) })
	switch {
	case len(lacks) == 0:
		return reservation.Finding{Check: check, Severity: reservation.Fine, Found: strings.Join(forMigrate(), ", ") + " on the schema"}, nil
	case role != "NONE":
		return reservation.Finding{Check: check, Severity: reservation.Fine, Found: "not known: rights come by the role " + role}, nil
	default:
		return reservation.Finding{
			Check: check, Severity: reservation.Warning, Found: "this account cannot run migrate: it lacks " + strings.Join(lacks, ", "),
			Fix: "run migrate under an account that has them (that is the safer way), or GRANT " + strings.Join(lacks, ", ") + " ON the schema TO this one",
		}, nil
	}
}

// schemaRights are the rights on the schema, and on everything.
func schemaRights(ctx context.Context, db *sql.DB) ([]string, error) {
	var have []string
	collect := func(s string) { have = append(have, s) }
	if err := texts(ctx, db, qSchema, collect); err != nil {
		return nil, err
	}
	onAll, err := rightsOnAll(ctx, db)
	if err != nil {
		return nil, err
	}
	if slices.Contains(onAll, "ALL PRIVILEGES") {
		return append(have, forMigrate()...), nil
	}
	return append(have, onAll...), nil
}

// globalRights warns of an account that may do anything: a mistake made with it reaches every schema, and read_only does
// not stop it.
func globalRights(ctx context.Context, db *sql.DB, _ Options) (reservation.Finding, error) {
	const check = "privileges_global"
	user, _, err := account(ctx, db)
	if err != nil {
		return reservation.Finding{}, err
	}
	onAll, err := rightsOnAll(ctx, db)
	if err != nil {
		return reservation.Finding{}, err
	}
	var much []string
	for _, r := range []string{"ALL PRIVILEGES", "SUPER", "INSERT", "UPDATE", "DELETE", "DROP", "CREATE USER", "GRANT OPTION"} {
		if slices.Contains(onAll, r) {
			much = append(much, r)
		}
	}
	return reservation.Judge(check, len(much) == 0, reservation.Warning, user+" has "+orNothing(much)+" on *.*",
		"give the pod an account of its own with SELECT, INSERT, UPDATE, DELETE on its schema (PROCESS on *.* for this command, "+conntag.ServerRight+" for conns --server)"), nil
}

// connsRights tells whether twinhold conns --server may read the server's statement tables. Nothing else needs them.
func connsRights(ctx context.Context, db *sql.DB, _ Options) (reservation.Finding, error) {
	const check = "privileges_conns"
	err := conntag.MayAskServer(ctx, db)
	switch {
	case err == nil:
		return reservation.Finding{Check: check, Severity: reservation.Fine, Found: conntag.ServerRight + ", for conns --server"}, nil
	case !denied(err):
		return reservation.Finding{}, fmt.Errorf("doctor: try the account's rights: %w", err)
	}
	grant, err := conntag.GrantForServer(ctx, db)
	if err != nil {
		return reservation.Finding{}, fmt.Errorf("doctor: try the account's rights: %w", err)
	}
	return reservation.Finding{
		Check: check, Severity: reservation.Warning, Found: "twinhold conns --server cannot be used; nothing else needs " + conntag.ServerRight,
		Fix: grant,
	}, nil
}

func orNothing(s []string) string {
	if len(s) == 0 {
		return "none of the dangerous rights"
	}
	return strings.Join(s, ", ")
}

// rightsOnAll reads the rights on *.* from lines such as: GRANT SELECT, SUPER ON *.* TO `u`@`h` WITH GRANT OPTION.
func rightsOnAll(ctx context.Context, db *sql.DB) ([]string, error) {
	var rights []string
	err := texts(ctx, db, qGrants, func(line string) {
		list, to, found := strings.Cut(line, " ON *.* TO ")
		list, granted := strings.CutPrefix(list, "GRANT ")
		if !found || !granted {
			return
		}
		for r := range strings.SplitSeq(list, ",") {
			rights = append(rights, strings.TrimSpace(r))
		}
		if strings.HasSuffix(to, " WITH GRANT OPTION") {
			rights = append(rights, "GRANT OPTION")
		}
	})
	return rights, err
}

func account(ctx context.Context, db *sql.DB) (user, role string, err error) {
	if err = db.QueryRowContext(ctx, qUser).Scan(&user, &role); err != nil {
		return "", "", fmt.Errorf("doctor: ask for the account: %w", err)
	}
	return user, role, nil
}

// texts reads a list of texts.
func texts(ctx context.Context, db *sql.DB, query string, each func(string)) error {
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return fmt.Errorf("doctor: read the account's rights: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			return fmt.Errorf("doctor: read the account's rights: %w", err)
		}
		each(s)
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("doctor: read the account's rights: %w", err)
	}
	return nil
}
