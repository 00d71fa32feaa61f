package loadgen

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// columns are those that are needed; others are ignored, and the order is free.
func columns() []string {
	return []string{"InvoiceNo", "StockCode", "Quantity", "InvoiceDate", "Country"}
}

const (
	colInvoice = iota
	colCode
	colQuantity
	colDate
	colCountry
	colCount
)

// maxField bounds one field; the longest real one is a country of 20 letters.
const maxField = 200

// IsGood tells goods from postage, fees, discounts and manual entries: a good's code starts with five digits.
// Codes are taken byte for byte, so that 85099b and 85099B are two goods.
func IsGood(code string) bool {
	if len(code) < 5 {
		return false
	}
	for i := range 5 {
		if code[i] < '0' || code[i] > '9' {
			return false
		}
	}
	return true
}

type csvReader struct {
	name  string
	r     *csv.Reader
	at    [colCount]int // index of each column
	rec   Recording
	byNum map[string]int // invoice number to its index
}

func readCSV(name string, r io.Reader) (Recording, error) {
	c := &csvReader{
		name: name, r: csv.NewReader(r), byNum: make(map[string]int),
		rec: Recording{Name: name, NotGoods: make(map[string]int)},
	}
	c.r.ReuseRecord = true
	if err := c.header(); err != nil {
		return Recording{}, err
	}
	for {
		row, err := c.r.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return Recording{}, c.syntax(err)
		}
		if err := c.row(row); err != nil {
			return Recording{}, err
		}
	}
	if c.rec.Rows == 0 {
		return Recording{}, &ParseError{File: name, Line: 2, Reason: "there is a header and no order below it"}
	}
	return c.rec, nil
}

func (c *csvReader) header() error {
	row, err := c.r.Read()
	if err != nil {
		return c.syntax(err)
	}
	for i, want := range columns() {
		at := slices.Index(row, want)
		if at < 0 {
			return c.wrong(0, fmt.Sprintf("the header has no column %s: it needs %s", want, strings.Join(columns(), ",")))
		}
		if again := slices.Index(row[at+1:], want); again >= 0 {
			return c.wrong(at+1+again, fmt.Sprintf("the header has the column %s twice", want))
		}
		c.at[i] = at
	}
	return nil
}

// syntax turns an error of the CSV reader into ours.
func (c *csvReader) syntax(err error) error {
	var pe *csv.ParseError
	switch {
	case errors.Is(err, csv.ErrFieldCount) && errors.As(err, &pe):
		return &ParseError{File: c.name, Line: pe.StartLine, Reason: "the line has another number of fields than the header"}
	case errors.As(err, &pe):
		return &ParseError{File: c.name, Line: pe.Line, Column: pe.Column, Reason: "this is not CSV: " + pe.Err.Error()}
	case errors.Is(err, io.EOF):
		return &ParseError{File: c.name, Line: 1, Reason: "the file is empty: it needs a header line and orders"}
	default:
		return fmt.Errorf("%s: %w", c.name, err)
	}
}

// wrong places a reason at a field of the row that was read last.
func (c *csvReader) wrong(field int, reason string) error {
	line, column := c.r.FieldPos(field)
	return &ParseError{File: c.name, Line: line, Column: column, Reason: reason}
}

func (c *csvReader) row(row []string) error {
	c.rec.Rows++
	var f [colCount]string
	for i, name := range columns() {
		f[i] = row[c.at[i]]
		if f[i] == "" {
			return c.wrong(c.at[i], name+" is empty")
		}
		if len(f[i]) > maxField {
			return c.wrong(c.at[i], fmt.Sprintf("%s has %d bytes: %d at most", name, len(f[i]), maxField))
		}
	}
	quantity, err := c.quantity(f[colQuantity], f[colInvoice][0] == 'C')
	if err != nil {
		return err
	}
	at, err := parseTime(f[colDate])
	if err != nil {
		return c.wrong(c.at[colDate], err.Error())
	}
	line, _ := c.r.FieldPos(0)
	i, known := c.byNum[f[colInvoice]]
	if !known {
		i = len(c.rec.Invoices)
		number := strings.Clone(f[colInvoice])
		c.byNum[number] = i
		c.rec.Invoices = append(c.rec.Invoices, Invoice{Number: number, At: at, Line: line})
	}
	if !IsGood(f[colCode]) {
		c.rec.NotGoods[strings.Clone(f[colCode])]++
		return nil
	}
	inv := &c.rec.Invoices[i]
	inv.Goods = append(inv.Goods, Good{
		Code: strings.Clone(f[colCode]), Country: strings.Clone(f[colCountry]), Quantity: quantity, Line: line,
	})
	return nil
}

func (c *csvReader) quantity(s string, cancellation bool) (int64, error) {
	q, err := strconv.ParseInt(s, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange) || err == nil && (q > reservation.MaxQuantity || q < -reservation.MaxQuantity):
		return 0, c.wrong(c.at[colQuantity], fmt.Sprintf("Quantity %s is out of range: -%d to %d, not 0", s, reservation.MaxQuantity, reservation.MaxQuantity))
	case err != nil:
		return 0, c.wrong(c.at[colQuantity], fmt.Sprintf("Quantity %q is not a whole number", s))
	case q == 0:
		return 0, c.wrong(c.at[colQuantity], "Quantity is 0: a line moves at least one piece, one way or the other")
	case cancellation && q > 0:
		return 0, c.wrong(c.at[colQuantity], fmt.Sprintf("Quantity %d of a cancellation (its invoice begins with C) is not negative", q))
	default:
		return q, nil
	}
}

func parseTime(s string) (time.Time, error) {
	for _, layout := range []string{time.DateTime, "2006-01-02 15:04"} {
		if t, err := time.Parse(layout, s); err == nil {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("InvoiceDate %q is not a time: write it as 2011-12-05 08:38:00", s)
}
