// Package mysqlerr tells why MySQL did not do what it was asked, so that a command can say what to do about it.
//
// It knows the server's numbers, and the two or three errors for which the number alone does not say enough. It promises
// nothing of errors that are none of MySQL's but Unreachable, and never asks a server.
package mysqlerr

import (
	"context"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"strings"

	"github.com/go-sql-driver/mysql"
)

// Class is a kind of trouble.
type Class uint8

// The classes. The zero Class is no error's.
const (
	// Other is an error of MySQL's that is none of the following, or none of MySQL's.
	Other Class = iota + 1
	// Unreachable: no answer.
	Unreachable
	// Login: the user or the password is wrong, or the user may not come from here.
	Login
	// Denied: the account has not the right.
	Denied
	// ReadOnly: the server takes no writes.
	ReadOnly
	// Full: no space is left where the server keeps its data.
	Full
	// NoSchema and NoTable: it is not there.
	NoSchema
	NoTable
)

// The server's numbers.
const (
	erWriting           = 3 // from below the server
	erCannotMakeTable   = 1005
	erCannotMakeSchema  = 1006
	erDiskFull          = 1021
	erErrorOnWrite      = 1026
	erEngine            = 1030
	erSchemaDenied      = 1044
	erLoginDenied       = 1045
	erNoSchema          = 1049
	erTableFull         = 1114
	erTableDenied       = 1142
	erColumnDenied      = 1143
	erNoTable           = 1146
	erPrivilegeDenied   = 1227 // the privilege is named
	erOptionPrevents    = 1290
	erLoginDeniedAtOnce = 1698
	erReadOnlyMode      = 1836
	erInnoDBReadOnly    = 1874
)

// Of gives an error's class; 0 of nil.
func Of(err error) Class {
	if err == nil {
		return 0
	}
	if e, ok := errors.AsType[*mysql.MySQLError](err); ok {
		return ofServer(e)
	}
	if _, ok := errors.AsType[net.Error](err); ok {
		return Unreachable
	}
	for _, gone := range []error{driver.ErrBadConn, mysql.ErrInvalidConn, io.EOF, io.ErrUnexpectedEOF, context.DeadlineExceeded} {
		if errors.Is(err, gone) {
			return Unreachable
		}
	}
	return Other
}

func ofServer(e *mysql.MySQLError) Class {
	switch e.Number {
	case erLoginDenied, erLoginDeniedAtOnce:
		return Login
	case erSchemaDenied, erTableDenied, erColumnDenied, erPrivilegeDenied:
		return Denied
	case erReadOnlyMode, erInnoDBReadOnly:
		return ReadOnly
	case erOptionPrevents: // other options prevent other statements
		if strings.Contains(e.Message, "read-only") {
			return ReadOnly
		}
	case erDiskFull, erTableFull:
		return Full
	case erWriting, erCannotMakeTable, erCannotMakeSchema, erErrorOnWrite, erEngine:
		if strings.Contains(e.Message, "No space left on device") {
			return Full
		}
	case erNoSchema:
		return NoSchema
	case erNoTable:
		return NoTable
	}
	return Other
}
