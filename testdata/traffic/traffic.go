// Package traffic holds two recorded days of orders (see README.md beside it for their source and licence), so that the
// demo needs no file but the binary.
package traffic

import "embed"

// Days holds the CSV files, by name.
//
//go:embed *.csv
var Days embed.FS
