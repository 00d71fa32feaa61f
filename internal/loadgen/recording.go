package loadgen

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// Recording is one parsed file: invoices of a CSV, or requests of JSON lines.
type Recording struct {
	Name     string
	Invoices []Invoice // in order of their first line
	Requests []Request // in order of the file
	// NotGoods counts the lines that were left out, by code (postage, fees, manual entries).
	NotGoods map[string]int
	// Rows counts all lines of data, those left out included.
	Rows int
}

// Invoice is one cart or cancellation, with its goods in order of the file.
type Invoice struct {
	Number string
	At     time.Time // of its first line
	Line   int       // of its first line
	Goods  []Good
}

// Good is one line of an invoice.
type Good struct {
	Code, Country string
	Quantity      int64 // not 0; negative: given back or written off
	Line          int
}

// Cancellation tells whether the invoice gives an earlier one back.
func (i Invoice) Cancellation() bool { return len(i.Number) > 0 && i.Number[0] == 'C' }

// Request is one line of JSON.
type Request struct {
	Op    reservation.Op
	Given bool // the line names its op
	Shop  int64
	Key   string // of the reserve, also in a claim or release of it
	Lines []reservation.Line
	TTL   time.Duration
	// Adjust is set in an adjustment; its shop is Shop.
	Adjust reservation.Adjustment
	Line   int
}

// ParseError says what is wrong on which line of which file.
type ParseError struct {
	File         string
	Line, Column int // Column is 0 where the line as a whole is wrong
	Reason       string
}

// Error gives file:line:column: reason.
func (e *ParseError) Error() string {
	switch {
	case e.Line == 0:
		return fmt.Sprintf("%s: %s", e.File, e.Reason)
	case e.Column == 0:
		return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Reason)
	default:
		return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Reason)
	}
}

// maxFile bounds a file of orders or stock: it is read whole.
const maxFile = 1 << 30

// OpenRegular opens a file that will be read to its end. Devices and pipes, which may never end, are refused.
func OpenRegular(path string) (*os.File, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("%s: there is no such file: %w", path, os.ErrNotExist)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", path, err)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file", path)
	case info.Size() > maxFile:
		return nil, fmt.Errorf("%s has %d bytes: at most %d are read", path, info.Size(), int64(maxFile))
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

// ReadFile reads a file of either kind.
func ReadFile(path string) (rec Recording, err error) {
	f, err := OpenRegular(path)
	if err != nil {
		return Recording{}, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return Read(path, f)
}

// Read reads from r, row by row. name stands before every error. What begins with { is JSON lines, all else CSV.
func Read(name string, r io.Reader) (Recording, error) {
	br := bufio.NewReader(r)
	if err := skipBOM(br); err != nil {
		return Recording{}, fmt.Errorf("%s: %w", name, err)
	}
	first, err := firstByte(br)
	switch {
	case errors.Is(err, io.EOF):
		return Recording{}, &ParseError{File: name, Line: 1, Reason: "the file is empty: it needs a header line and orders, or JSON lines"}
	case err != nil:
		return Recording{}, fmt.Errorf("%s: %w", name, err)
	case first == '{':
		return readJSONL(name, br)
	default:
		return readCSV(name, br)
	}
}

func skipBOM(br *bufio.Reader) error {
	head, err := br.Peek(3)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if bytes.Equal(head, []byte("\xef\xbb\xbf")) {
		_, err = br.Discard(3)
		return err
	}
	return nil
}

// firstByte looks at the first byte that is no white space, as far as the buffer reaches, and consumes nothing,
// so that the parsers count lines from the top.
func firstByte(br *bufio.Reader) (byte, error) {
	for n := 1; n <= br.Size(); n++ {
		head, err := br.Peek(n)
		if err != nil {
			return 0, err
		}
		switch c := head[n-1]; c {
		case ' ', '\t', '\r', '\n':
		default:
			return c, nil
		}
	}
	return 0, nil
}
